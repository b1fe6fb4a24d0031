"""An override: for one rule or all, and for everybody or some identities, another quota or another mode.

The set of overrides is one document. It is read whole or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal, NamedTuple, get_args

from sluicegate.clock import LATEST_US
from sluicegate.errors import OverrideError, QuotaError
from sluicegate.identity import digest, identity_text, joined
from sluicegate.rules.terms import read

Action = Literal["quota", "shadow", "enforce", "off", "deny", "allow"]
ACTIONS: Final[tuple[str, ...]] = get_args(Action)
EVERY_RULE: Final = "*"
HEAD: Final = 64  # bytes of a document that tell it from every other: format, version and digest
FORMAT: Final = 1  # of the document; a reader refuses a higher one, because it cannot know what that means
MOST: Final = 10_000  # overrides of a document: each process keeps all of them
MOST_PATTERNS: Final = 100  # of them with a pattern: a new identity is compared with each
_BY_HAND: Final = "write overrides with the command or the API; sluicegate override remove '*' removes all"
_TEXTS: Final = ("rule", "action", "by", "why", "id")
LONGEST: Final = 200  # characters of each of these texts
_HEAD: Final = re.compile(r"sluicegate ([0-9]{1,15}) ([0-9]{1,15})(?: ([^ ]*))?")
DIGEST: Final = re.compile(r"[\w-]{22}", re.ASCII)
_PATTERN: Final = re.compile(r"(user:|text:|ip:|header:[^=*]+=|path:[^=*]+=)([^*]*)\*([^*]*)", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_IDENTITIES: Final = 10_000  # of one override


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What holds instead of a rule, for whom, and until when. Raises OverrideError for values that cannot hold,
    and QuotaError for a wrong quota.

    - `rule`: the name of a rule, "default" for the default limits, or "*" for every rule.
    - `action`: "quota" (another one), "shadow", "enforce", "off" (the rule does not apply), "deny" (403) or "allow"
      (as "off"; for "*" no rule applies at all).
    - `quota`: the text of the quota, for that action.
    - `digests`, `pattern`, `tier`: for whom; without any of them for everybody. A pattern is text with one `*`, as
      "user:test-*". A tier is one of the rule's Tiers.
    - `until`: microseconds since 1970; None: until it is removed. `at` is when it was written.
    - `by`, `why`: who wrote it, and the reason.

    >>> Override(rule="export", action="quota", quota="100/minute", tier="free").target
    ('export', 'tier', 'free', False)
    """

    rule: str
    action: Action
    quota: str | None = None
    digests: tuple[str, ...] = ()
    pattern: str | None = None
    tier: str | None = None
    until: int | None = None
    by: str = ""
    why: str = ""
    at: int = 0
    id: str = ""

    def __post_init__(self) -> None:
        for option in _TEXTS:
            given = getattr(self, option)
            if not isinstance(given, str) or len(given) > LONGEST:
                raise _error(option, str(given)[:20], "not text, or too long", f"give {LONGEST} characters at most")
            if _CONTROL.search(given):  # a list has a line for each override
                raise _error(option, given[:20], "more than a line of text", "give text without control characters")
        if not self.rule:
            raise _error("rule", "", "not the name of a rule", 'give a name, or "*" for every rule')
        if self.action not in ACTIONS:
            raise _error("action", self.action, "not known", f"use one of {', '.join(ACTIONS)}")
        if (self.action == "quota") is (self.quota is None):
            raise _error("quota", self.quota, f"does not fit the action {self.action!r}", "give both or neither")
        if self.quota is not None:
            read(self.quota)  # raises QuotaError
        if self.digests != ():  # nothing else means everybody: no null and no empty list
            object.__setattr__(self, "digests", tuple(sorted(_listed(self.digests))))
        if self.pattern is not None:
            kind, before, after = _parts(self.pattern)
            object.__setattr__(self, "pattern", f"{kind}{before}*{after}")
        if self.tier is not None and (not isinstance(self.tier, str) or self.rule == EVERY_RULE):
            raise _error("tier", self.tier, "not a tier of one rule", "give the rule that has this tier")
        if (self.digests != ()) + (self.pattern is not None) + (self.tier is not None) > 1:
            given = ", ".join(filter(None, (self.pattern, self.tier, *self.digests[:1])))
            raise _error("for whom", given, "told in two ways", "give identities, a pattern or a tier")
        if self.action == "deny" and self.target[:2] == (EVERY_RULE, "everybody"):  # also those of who would remove it
            expected = 'give identities or a pattern, or the rule that is to refuse everybody; "*" is every rule'
            raise _error("deny", self.rule, "would refuse every request of everybody", expected)
        for option, moment in (("until", 0 if self.until is None else self.until), ("at", self.at)):
            if type(moment) is not int or not 0 <= moment <= LATEST_US:
                raise _error(option, moment, "not a moment", "give microseconds since 1970, before 2150")

    @property
    def is_list(self) -> bool:
        """Whether it refuses or lets pass. Then it holds before each quota and mode, which stay for its end."""
        return self.action in ("deny", "allow")

    @property
    def target(self) -> tuple[str, str, str, bool]:
        """The rule, for whom it is, and whether it is a list. Two overrides with one target cannot hold together."""
        if self.digests:
            return self.rule, "identities", " ".join(self.digests), self.is_list
        if self.pattern is not None:
            return self.rule, "pattern", self.pattern, self.is_list
        return self.rule, "everybody" if self.tier is None else "tier", self.tier or "", self.is_list

    def holds(self, now: int) -> bool:
        """True if it has not ended."""
        return self.until is None or self.until > now

    def conflicts(self, other: Override) -> bool:
        """True if some identity may match the patterns of both, and neither pattern is the longer one."""
        one, two = self.pattern or "", other.pattern or ""
        same = (self.rule, self.is_list) == (other.rule, other.is_list)
        return same and len(one) == len(two) and _may_meet(one, two)


def _listed(digests: object) -> Iterable[str]:
    if not isinstance(digests, (tuple, list)) or not 0 < len(digests) <= _IDENTITIES:
        raise _error("identities", type(digests), "not a list of digests", f"give 1 to {_IDENTITIES}")
    for each in digests:
        if not isinstance(each, str) or not DIGEST.fullmatch(each):
            raise _error("identities", each, "not a digest", _BY_HAND)
    return set(digests)


def _parts(pattern: object) -> tuple[str, str, str]:
    """Return the kind of a pattern, and what stands before and after its `*`. The names of headers have no case."""
    found = _PATTERN.fullmatch(pattern) if isinstance(pattern, str) else None
    if found is None:
        expected = 'give one kind and one *, as "user:test-*", "header:X-API-Key=ab*", "text:*@example.com"'
        raise _error("pattern", pattern, "not a pattern", expected)
    kind, before, after = found.groups()
    return kind.lower() if kind.startswith("header:") else kind, before, after


def pattern_of(pattern: object) -> re.Pattern[str]:
    """Return what the texts of the identities under a pattern match. One `*` stands for any characters.

    >>> from sluicegate.identity import encoder
    >>> bool(pattern_of("user:test-*").fullmatch(encoder("user")("test-7")))
    True
    """
    kind, before, after = _parts(pattern)
    start = "" if kind == "text:" else re.escape(joined([identity_text(kind[:-1])])) + "[0-9]+:"
    return re.compile(f"{start}s{re.escape(before)}.*{re.escape(after)}", re.DOTALL)


def sample_of(pattern: str) -> str:
    """Return a text under this pattern, and under another one only if that matches all texts of this one."""
    kind, before, after = _parts(pattern)
    start = "" if kind == "text:" else joined([identity_text(kind[:-1])]) + "0:"
    return f"{start}s{before}*{after}"


def _may_meet(one: str, other: str) -> bool:
    """True if some text may match both patterns."""
    (start, end), (other_start, other_end) = one.split("*"), other.split("*")
    starts = start.startswith(other_start) or other_start.startswith(start)
    return starts and (end.endswith(other_end) or other_end.endswith(end))


_FACTS: Final = {each.name: each.default for each in fields(Override)}  # and what they are if they are left out


def _facts(override: Override) -> dict[str, object]:
    """Return what an override has, without what it leaves out."""
    pairs = [(name, getattr(override, name)) for name in _FACTS]
    return {name: given for name, given in pairs if given != _FACTS[name]}


class Document(NamedTuple):
    """A set of overrides, as it is on a server: a line with the format, the version and a digest of the rest, and the
    set as JSON. The first HEAD bytes are different for different sets, so a reader compares only them.
    """

    version: int = 0  # how many changes were made
    held: tuple[Override, ...] = ()

    def text(self) -> bytes:
        """Return the document as it is kept."""
        body = json.dumps([_facts(each) for each in self.held], separators=(",", ":"))
        return f"sluicegate {FORMAT} {self.version} {digest(body)}\n{body}".encode()

    @classmethod
    def of(cls, text: bytes) -> Document:
        """Read a document. Raises OverrideError if any part of it cannot hold, or if its format is newer."""
        if not text:
            return cls()
        head, _, body = text.partition(b"\n")
        words = _HEAD.fullmatch(head.decode("latin-1"))
        if words is None:
            raise _error("overrides", head[:20].decode("latin-1"), "not a set of overrides", _BY_HAND)
        written, version, told = words.groups()
        if int(written) > FORMAT:
            problem = f"the format of a newer sluicegate; this one reads {FORMAT}"
            raise _error("overrides: format", int(written), problem, "update sluicegate in this process")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list) or told != digest(body.decode(errors="replace")):
            raise _error("overrides", int(version), "changed by hand, so its digest is wrong", _BY_HAND)
        return cls(int(version), checked([override_of(each) for each in found]))


def override_of(found: object) -> Override:
    """Make an override from a mapping of its facts."""
    if not isinstance(found, Mapping) or not {"rule", "action"} <= found.keys() <= _FACTS.keys():
        given = sorted(map(str, found))[:20] if isinstance(found, Mapping) else type(found)
        raise _error("override", given, "not what an override has", f"known are {', '.join(_FACTS)}")
    try:
        return Override(**found)
    except QuotaError as error:
        raise _error("quota", found.get("quota"), error.problem, error.expected) from None


def checked(listed: Iterable[Override]) -> tuple[Override, ...]:
    """Return these overrides. Raises OverrideError for a tie between two of them, or for too many."""
    held, patterns = tuple(listed), list[Override]()
    seen = dict[object, Override]()  # what is taken: a table, so that 10,000 overrides are read in linear time
    for each in held:
        taken: set[object] = {(each.rule, digest, each.is_list) for digest in each.digests} or {each.target}
        taken.add(each.id)
        ties = [seen[one] for one in taken if one in seen]
        if ties := ties or [one for one in patterns if each.pattern and each.conflicts(one)]:
            problem = f"{ties[0].id} holds for some of the same identities, and neither is the narrower"
            expected = f"remove {ties[0].id}, or give both the same identities"
            raise _error("override of the rule", each.rule, problem, expected)
        seen.update(dict.fromkeys(taken, each))
        if each.pattern is not None:
            patterns.append(each)
    if len(held) > MOST or len(patterns) > MOST_PATTERNS:
        problem = f"more than {MOST} overrides, or {MOST_PATTERNS} of them with a pattern"
        raise _error("overrides", len(held), problem, "remove some, or give groups of identities a tier")
    return held


class Entry(NamedTuple):
    """One change in the history: who has written what, when and why."""

    at: int  # microseconds since 1970
    by: str
    what: str  # the action, "remove" or "undo"
    added: tuple[Override, ...] = ()
    removed: tuple[Override, ...] = ()
    why: str = ""

    def text(self) -> str:
        """Return the entry as JSON."""
        sets = {name: [_facts(each) for each in getattr(self, name)] for name in ("added", "removed")}
        return json.dumps({**self._asdict(), **sets}, separators=(",", ":"))

    @classmethod
    def of(cls, text: str | bytes) -> Entry:
        """Read an entry. Raises OverrideError for text that is none."""
        try:
            found = json.loads(text)
            sets = {name: tuple([override_of(each) for each in found[name]]) for name in ("added", "removed")}
            # The rest of an entry has the form of an override's facts.
            one = Override(rule=found["what"], action="off", **{name: found[name] for name in ("at", "by", "why")})
            return cls(one.at, one.by, one.rule, why=one.why, **sets)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _error("history", "…", "not an entry of the history", _BY_HAND) from error


def _error(what: str, given: object, problem: str, expected: str) -> OverrideError:
    return OverrideError(what, given, problem=problem, expected=expected)

"""Candidates: the sets of rules that a replay tries, from TOML files or from the text of --rule.

[NAME:] QUOTA[; QUOTA…] [by KEY[, KEY…]] [on [METHOD[,METHOD]] PATH] [with ALGORITHM] [cost FIELD[/UNIT]]
[when STATUS[,STATUS|4xx]]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from sluicegate.errors import RuleError
from sluicegate.replay.caller import FieldCost, LogKey, StatusIn
from sluicegate.replay.traffic import COLUMNS, FIELD
from sluicegate.rules.rule import METHODS, Rule
from sluicegate.web.settings import Settings

FORM: Final = "[NAME:] QUOTA [by KEY] [on [METHOD] PATH] [with ALGORITHM] [cost FIELD[/UNIT]] [when STATUS]"
Options = dict[str, Any]
"""Options of a rule, before they are checked."""
_WORDS: Final = ("by", "on", "with", "cost", "when")
_NAME: Final = re.compile(r"([A-Za-z][\w.-]{0,63}):\s+")
_KEYS: Final = ("ip", "user", "header:", "path:", "field:")
_LONGEST: Final = 1_000


class Candidate(NamedTuple):
    """One set of rules. All of them hold together, as in an application."""

    name: str
    settings: Settings


def from_file(path: str | Path, **options: Any) -> Candidate:
    """Read the rules of a TOML file. The options replace settings of the file."""
    return Candidate(Path(path).stem, replace(Settings.from_toml(path), **options))


def log_key(given: Any) -> Any:
    """Return the key that only a log has for its text, as "path:2" and "field:tenant"; any other value unchanged."""
    kind, _, name = given.partition(":") if isinstance(given, str) else ("", "", "")
    if kind == "path" and name.isascii() and name.isdecimal() and 0 < int(name[:4]) <= 100:
        return LogKey(kind, str(int(name)))
    return LogKey(kind, name) if kind == "field" and name else given


def rules_of(settings: Settings) -> list[Rule]:
    """Return the rules of settings, which have made each mapping a Rule."""
    return [each for each in settings.rules if isinstance(each, Rule)]


def as_if_enforced(candidate: Candidate) -> Candidate:
    """Return a candidate whose rules in shadow refuse too: whom they would refuse is what a replay is for."""
    settings = candidate.settings
    rules = [replace(rule, mode="enforce", enforce_percent=100) for rule in rules_of(settings)]
    return candidate._replace(settings=replace(settings, mode="enforce", rules=rules))


def enforced(candidate: Candidate, rule: str) -> float:
    """Return the percentage of identities for which a candidate enforces a rule: 0 for a rule in shadow."""
    settings = candidate.settings
    rules = {each.name: each for each in rules_of(settings)}
    if settings.mode == "shadow" or (rule in rules and rules[rule].mode == "shadow"):
        return 0
    return rules[rule].enforce_percent if rule in rules else 100


def from_rules(texts: Sequence[str], **options: Any) -> Candidate:
    """Make one candidate from texts of --rule. Settings are given as options."""
    rules = [parse_rule(text) for text in texts]
    given = {"key": "ip", "rules": rules, **options}
    name = " + ".join(
        [text if rule["name"] == "rule" else rule["name"] for rule, text in zip(rules, texts, strict=True)]
    )
    return Candidate(name, Settings.from_mapping(given, source="--rule"))


def parse_rule(text: str) -> Options:
    """Read the options of one rule from its text.

    >>> parse_rule("login: 5/minute by ip on POST /login")
    {'name': 'login', 'quota': '5/minute', 'key': 'ip', 'path': '/login', 'methods': ['POST']}
    """
    return _Reader(text).options()


def parse_key(text: str) -> Any:
    """Read a key alone, from the text of --by."""
    return _Reader(text, "--by").by(text, 0)["key"]


def parse_requests(text: str) -> Options:
    """Read the path and the methods alone, from the text of --group."""
    return _Reader(text, "--group").on(text, 0)


class _Reader:
    """Reads the text of one rule, or of a part of one. Each error shows the place in the text."""

    def __init__(self, text: str, what: str = "--rule") -> None:
        self.text = text
        self._what = what

    def error(self, at: int, problem: str, expected: str) -> RuleError:
        """Return an error about the text from this place on."""
        return RuleError(self._what, self.text, problem=f"at character {at + 1}, {problem}", expected=expected)

    def options(self) -> Options:
        text = self.text
        if len(text) > _LONGEST:
            raise RuleError("--rule", text, problem=f"{len(text)} characters", expected=f"give at most {_LONGEST}")
        named = _NAME.match(text)
        start = named.end() if named else 0
        parts = self._parts(start)
        quota, _ = parts.pop("", ("", start))
        if not quota:
            raise self.error(start, "the quota is missing", f"write {FORM}")
        plain = not any(sign in quota for sign in ";,|")  # several quotas get the words of their periods
        options: Options = {"name": named[1] if named else quota if plain else "rule", "quota": quota}
        readers: dict[str, Callable[[str, int], Options]] = {
            "by": self.by,
            "on": self.on,
            "with": lambda given, _: {"algorithm": given},
            "cost": self._cost,
            "when": self._when,
        }
        for word, (given, place) in parts.items():
            options |= readers[word](given, place)
        return options

    def _parts(self, start: int) -> dict[str, tuple[str, int]]:
        """Return what follows each word, with its place; the quota follows no word."""
        found: dict[str, tuple[str, int]] = {}
        word, at = "", start
        for mark, end in [*self._marks(start), ("", len(self.text))]:
            given = self.text[at:end]
            if word in found:
                raise self.error(at, f'"{word}" is given twice', "keep one of the two")
            if word and not given.strip():
                raise self.error(at, f'nothing follows "{word}"', f"write {FORM}")
            found[word] = given.strip(), at + len(given) - len(given.lstrip())
            word, at = mark, end + len(mark)
        return found

    def _marks(self, at: int) -> Iterator[tuple[str, int]]:
        for word in self.text[at:].split():
            at = self.text.index(word, at)
            if word in _WORDS:
                yield word, at
            at += len(word)

    def by(self, given: str, at: int) -> Options:
        keys = [self._key(part, place) for part, place in _items(given, at)]
        return {"key": keys[0] if len(keys) == 1 else tuple(keys)}

    def _key(self, part: str, at: int) -> Any:
        kind, colon, name = part.partition(":")
        if part in ("ip", "user") or (kind == "header" and name):
            return part
        if (found := log_key(part)) is not part:
            return found
        if (
            colon
            and kind not in ("header", "path", "field")
            and all(word.isidentifier() for word in (*kind.split("."), name))
        ):
            return f"{kind}.{name}"
        known = "use ip, user, header:Name, path:2, field:name or module:function, with commas between several"
        near = get_close_matches(f"{kind}{colon}", _KEYS, 1)
        raise self.error(at, f'"{part}" is no key', f'did you mean "{near[0]}"? {known}' if near else known)

    def on(self, given: str, at: int) -> Options:
        words = given.split() or [""]
        if len(words) > 2:
            place = at + given.index(words[2])
            raise self.error(place, f'"{words[2]}" is too much', "write methods and a path, as in POST,PUT /login")
        path = words[-1] if words[-1].startswith("/") else None
        methods = words[0] if len(words) == 2 or path is None else None
        if len(words) == 2 and path is None:
            problem = f'"{words[1]}" does not begin with a slash'
            raise self.error(at + given.index(words[1]), problem, "write methods and a path, as in POST,PUT /login")
        names = methods and [method for method in methods.split(",") if method]
        if methods is not None and not (names and all([name.upper() in METHODS for name in names])):
            problem = f'"{methods}" is no such method, nor a path: a path begins with a slash'
            raise self.error(at, problem, "write methods and a path, as in POST,PUT /login")
        return {"path": path, "methods": names}

    def _cost(self, given: str, at: int) -> Options:
        name, slash, unit = given.partition("/")
        if given.isascii() and given.isdecimal():
            return {"cost": int(given)}
        if slash and not (unit.isascii() and unit.isdecimal() and 0 < len(unit) <= 15 and int(unit)):
            raise self.error(at + len(name) + 1, f'"{unit}" is not a whole number above 0', "write it like bytes/1024")
        if not name or " " in name:
            raise self.error(at, f'"{given}" is no field', "write it like bytes/1024")
        column = name if name in COLUMNS else f"{FIELD}{name}"
        return {"cost": FieldCost(column, int(unit) if slash else 1)}

    def _when(self, given: str, at: int) -> Options:
        statuses, hundreds = set(), set()
        for status, place in _items(given, at):
            number = status.lower().replace("xx", "00")
            if len(number) != 3 or number[0] not in "12345" or not (number.isascii() and number.isdecimal()):
                raise self.error(place, f'"{status}" is no status', "write it like 401,403 or 4xx")
            if number == status:
                statuses.add(int(number))
            else:
                hundreds.add(int(number[0]))
        return {"charge_when": StatusIn(frozenset(statuses), frozenset(hundreds))}


def _items(given: str, at: int) -> Iterator[tuple[str, int]]:
    """Yield what stands between commas, each with its place."""
    for item in given.split(","):
        yield item.strip(), at + len(item) - len(item.lstrip())
        at += len(item) + 1

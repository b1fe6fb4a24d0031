"""From a decision to what a client is told: header fields, status, body. Pure: values in, text out.

The fields come in dialects, because draft-ietf-httpapi-ratelimit-headers is still a draft and its wire format moves;
`Retry-After` in whole seconds is the one signal that every client understands. This module knows values, and the words
of `problem`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache
from typing import Final, cast

from sluicegate.clock import MICROSECOND, epoch_seconds
from sluicegate.errors import RuleError, SettingsError
from sluicegate.plan import BAN, Check, Decision, Outcome, Terms, new
from sluicegate.problem import PROBLEM, detail, problem, status_of, title

Field = tuple[str, str]
Fields = list[Field]
Dialect = Callable[[Decision, float], Fields]

EXPOSED: Final = ("RateLimit", "RateLimit-Policy", "Retry-After")
"""What a CORS layer outside the limiter should list in Access-Control-Expose-Headers."""

_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*+)"?')  # also one without an end: else each quote is tried anew
_LISTS: Final = ("ratelimit", "ratelimit-policy")
_SINGLE: Final = re.compile("limit=([0-9]{1,15}), remaining=([0-9]{1,15})")  # draft 7
_DELAY: Final = re.compile("[0-9]{1,15}")
_DATE: Final = re.compile(  # the three forms of RFC 9110 §5.6.7, the last two of which are obsolete
    "[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [1-9][0-9]{3} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
    "|[A-Z][a-z]{5,8}, [0-9]{2}-[A-Z][a-z]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
    "|[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} [1-9][0-9]{3}"
)
_LONGEST_ACCEPT: Final = 1_024  # characters that are read; browsers send some 150


@dataclass(frozen=True, eq=False, slots=True)
class Denial:
    """A whole answer to a request that was refused. Compared by identity: the same is given again and again."""

    status: int
    fields: tuple[Field, ...]
    body: bytes


def seconds(microseconds: int) -> int:
    """Whole seconds, rounded up: a client that waits so long is not too early."""
    return -(-microseconds // MICROSECOND)


def retry_after(decision: Decision) -> int | None:
    """The value of `Retry-After` on a refusal: at least 1, because clients take 0 for "at once". None for never.

    Also None where a wait has nothing to do with it: for who is on the list of those who are denied.
    """
    if decision.forbidden:
        return None
    longest = MICROSECOND
    for (terms, _, _), outcome in zip(decision.checks, decision.results, strict=True):
        if not outcome.allowed and outcome.retry_after is None:
            return None
        if not outcome.allowed and not terms.held:  # a place is free as soon as any request ends: 1 is a fair guess
            longest = max(longest, outcome.retry_after or 0)
    return seconds(longest)


def response_fields(decision: Decision, dialect: str | None, *, epoch: float, status: int) -> Fields:
    """The fields of the dialect for a response of this status: none on 1xx and 3xx, nor where no rule applied.

    `epoch` is the time of day in seconds since 1970, for the one dialect that tells a moment.
    """
    if dialect is None or status < 200 or 300 <= status < 400:
        return []
    fields = DIALECTS[dialect](decision, epoch)
    foreign = status == 429 and decision.allowed  # somebody else's refusal: what is left here says nothing about it
    return [field for field in fields if field[0] != "RateLimit"] if foreign else fields


def denial(decision: Decision, dialect: str | None, *, epoch: float, accept: str = "") -> Denial:
    """The answer to a refused request: 429, or 503 when it was the store that failed. The body suits `accept`."""
    # In whole seconds a flood gets the same answer again and again: it is remembered.
    second, rest = divmod(epoch, 1) if dialect == "x-ratelimit" else (0.0, 0.0)  # the others tell no moment
    since = round(rest * MICROSECOND)
    checks, outcomes = [], []
    for terms, _, _ in decision.checks:
        checks.append(new(Check, (terms, "", 1)))
    for allowed, limit, left, retry, reset, ahead, _, source in decision.results:
        told = (allowed, limit, left, retry and _whole(retry), _whole(reset + since), _whole(ahead), 0, source)
        outcomes.append(new(Outcome, told))
    return _denial(new(Decision, (False, tuple(checks), tuple(outcomes))), dialect, second, text=wants_text(accept))


def _whole(microseconds: int) -> int:
    return seconds(microseconds) * MICROSECOND


@lru_cache(maxsize=1024)
def _denial(decision: Decision, dialect: str | None, epoch: float, *, text: bool) -> Denial:
    status, wait = status_of(decision), retry_after(decision)
    if text:
        body, media = f"{title(decision)}. {detail(decision, wait)}\n".encode(), "text/plain; charset=utf-8"
    else:
        body, media = json.dumps(problem(decision, wait)).encode(), PROBLEM
    fields = denial_fields(decision, dialect, epoch=epoch, status=status)
    return Denial(status, (("Content-Type", media), ("Content-Length", str(len(body))), *fields), body)


def denial_fields(decision: Decision, dialect: str | None, *, epoch: float, status: int) -> Fields:
    """What every answer to a refused request carries, whoever made it and whatever status it has."""
    wait = retry_after(decision)
    fields = response_fields(decision, dialect, epoch=epoch, status=status)
    if wait is not None and status >= 400:  # on a redirect it would mean something else
        fields.insert(0, ("Retry-After", str(wait)))
    return [("Cache-Control", "no-store"), *fields]


def wants_text(accept: str) -> bool:
    """Whether a client that sent this `Accept` would rather read text (a browser) than JSON (everything else).

    Of a long one only the media types that end within the first 1,024 characters are read.
    """
    if len(accept) > _LONGEST_ACCEPT:
        accept = accept[: _LONGEST_ACCEPT + 1].rpartition(",")[0]
    return _wants_text(accept)


@lru_cache(maxsize=64)  # a flood sends the same again and again
def _wants_text(accept: str) -> bool:
    best, text = 0.0, False
    for part in accept.lower().split(","):
        media, *params = (piece.strip() for piece in part.split(";"))
        weight = next((_weight(param[2:]) for param in params if param.startswith("q=")), 1.0)
        is_text = media in ("text/html", "text/plain", "text/*", "application/xhtml+xml")
        if weight > best and (is_text or media in ("*/*", "application/*", "application/json", PROBLEM)):
            best, text = weight, is_text
    return text


def merge(existing: Iterable[Field], fields: Iterable[Field], *, epoch: Callable[[], float] = epoch_seconds) -> Fields:
    """Add fields to those that a response has, perhaps from another limiter.

    Lists of draft 11 grow and the names in them stay unique; a dialect with room for one answer tells the tighter one;
    the later `Retry-After` wins; `no-store` is never lost. `epoch` reads the time of day in seconds since 1970. It is
    called only if the response has a `Retry-After` with a date.

    >>> merge([("RateLimit", '"a";r=1')], [("RateLimit", '"a";r=5')])
    [('RateLimit', '"a";r=1, "a-2";r=5')]
    """
    merged, added = list(existing), list(fields)
    names = {name.lower() for name, _ in added}
    if not any([name.lower() in names for name, _ in merged]):
        return merged + added
    left, left_too = _share(merged), _share(added)
    tighter = left is not None and left_too is not None and left <= left_too
    for name, new_value in _renamed(added, merged):
        lines = [line for other, line in merged if other.lower() == name.lower()]
        merged = [field for field in merged if field[0].lower() != name.lower()]
        if name.lower() == "retry-after":
            value = max([new_value, *lines], key=lambda line: _wait(line, epoch))
        else:
            value = _together(name.lower(), [*lines, new_value], keep=tighter)
        merged.append((name, value))
    return merged


def check_dialect(dialect: object) -> None:
    """Refuse a dialect that is not one."""
    if dialect is not None and (not isinstance(dialect, str) or dialect not in DIALECTS):
        expected = f"use one of {', '.join(DIALECTS)}, or None"
        raise SettingsError("headers", dialect, problem="not known", expected=expected)


def quoted(name: str) -> str:
    """A name as a Structured Field String (RFC 9651 §4.1.6). RuleError for what cannot be one."""
    if not _PRINTABLE.fullmatch(name):
        raise RuleError("name", name, problem="not printable ASCII", expected="give letters, digits or signs")
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


@lru_cache(maxsize=4096)
def _written(terms: Terms) -> tuple[str, str, bool] | None:
    """What draft 11 always says of a rule: a policy, how an item about it begins, and whether the item tells a time."""
    if terms.algorithm == BAN or terms.shadow:
        return None
    name, unit = quoted(terms.name), 'qu="concurrent-requests"' if terms.held else f"w={seconds(terms.window_us)}"
    return f"{name};q={terms.params[0]};{unit}", f"{name};r=", not terms.held


def _draft_11(decision: Decision, epoch: float) -> Fields:
    """Draft 11: lists of named items. `t`: no more than `r` can be used within so many seconds."""
    policies = items = ""
    allowed, checks, outcomes = decision
    for (terms, _, _), (passed, _, left, _, _, ahead, _, source) in zip(checks, outcomes, strict=True):
        written = _written(terms)
        if written is None or source == "policy":
            continue
        policy, item, timed = written
        policies = f"{policies}, {policy}" if policies else policy
        if allowed or not passed:  # a refusal names only what was violated
            told = f"{item}{left};t={seconds(ahead)}" if ahead and timed else f"{item}{left}"
            items = f"{items}, {told}" if items else told
    fields = [("RateLimit-Policy", policies)] if policies else []
    return [*fields, ("RateLimit", items)] if items else fields  # no items: refused by a ban alone


def _of_one(write: Dialect) -> Dialect:
    """A dialect with room for one answer, that of the binding rule. What a policy decided was counted nowhere.

    Where a ban or the want of a place alone refuses there is none: what is left of a quota says nothing then.
    """

    def fields(decision: Decision, epoch: float) -> Fields:
        both = zip(decision.checks, decision.results, strict=True)
        pairs = [pair for pair in both if pair[1].source != "policy" and not pair[0].terms.shadow]
        rules = [pair for pair in pairs if pair[0].terms.algorithm != BAN and not pair[0].terms.held]
        if len(rules) < len(pairs):
            pairs = rules if decision.allowed or not all([outcome.allowed for _, outcome in rules]) else []
        checks, outcomes = tuple([check for check, _ in pairs]), tuple([outcome for _, outcome in pairs])
        return write(Decision(decision.allowed, checks, outcomes), epoch) if pairs else []

    return fields


def _policies(decision: Decision) -> str:
    """The policies of drafts before 8, which have no names."""
    return ", ".join(f"{check.terms.params[0]};w={seconds(check.terms.window_us)}" for check in decision.checks)


def _numbers(decision: Decision, *, since: int = 0) -> tuple[int, int, int]:
    """Limit, remaining and reset of the binding rule."""
    outcome = cast("tuple[Check, Outcome]", decision.binding)[1]
    return outcome.limit, outcome.remaining, seconds(since + outcome.reset_after)


@_of_one
def _draft_7(decision: Decision, epoch: float) -> Fields:
    limit, remaining, reset = _numbers(decision)
    combined = f"limit={limit}, remaining={remaining}, reset={reset}"
    return [("RateLimit-Policy", _policies(decision)), ("RateLimit", combined)]


@_of_one
def _draft_6(decision: Decision, epoch: float) -> Fields:
    return [("RateLimit-Policy", _policies(decision)), *_trio(*_numbers(decision), prefix="RateLimit")]


@_of_one
def _x_ratelimit(decision: Decision, epoch: float) -> Fields:
    """The vendors' old trio; reset is a moment, in seconds since 1970, rounded up."""
    return _trio(*_numbers(decision, since=round(epoch * MICROSECOND)))


@_of_one
def _x_ratelimit_delta(decision: Decision, epoch: float) -> Fields:
    return _trio(*_numbers(decision))


def _trio(limit: int, remaining: int, reset: int, *, prefix: str = "X-RateLimit") -> Fields:
    values = {"Limit": limit, "Remaining": remaining, "Reset": reset}
    return [(f"{prefix}-{name}", str(value)) for name, value in values.items()]


DIALECTS: Final[dict[str, Dialect]] = {
    "draft-11": _draft_11,
    "draft-7": _draft_7,
    "draft-6": _draft_6,
    "x-ratelimit": _x_ratelimit,
    "x-ratelimit-delta": _x_ratelimit_delta,
}


def _weight(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](\.[0-9]{0,3})?", text) else 0.0


def _renamed(added: Fields, existing: Fields) -> Fields:
    """The added fields, their items under names that the existing ones do not have: the same in policy and answer."""
    taken = {name for field, value in existing if field.lower() in _LISTS for name in _STRING.findall(value)}
    names: dict[str, str] = {}

    def fresh(match: re.Match[str]) -> str:
        old, number = match[1], 2
        if old not in names:
            name = old
            while name in taken:
                name, number = f"{old}-{number}", number + 1
            names[old] = name
            taken.add(name)
        return f'"{names[old]}"'

    return [(name, _STRING.sub(fresh, value) if name.lower() in _LISTS else value) for name, value in added]


def _together(name: str, lines: list[str], *, keep: bool) -> str:
    """One line from several of a field, the last one new. `keep`: what was told before is the tighter answer."""
    *old, new = lines
    if not old:
        return new
    if name == "cache-control":
        return ", ".join(old) if "no-store" in ", ".join(old).lower() else new
    if name in _LISTS and not any(_SINGLE.match(line) for line in lines):
        return ", ".join(lines)
    return old[-1] if keep else new


def _wait(line: str, epoch: Callable[[], float]) -> float:
    """The seconds that a `Retry-After` asks for; less than any wait of ours if it is neither a number nor a date."""
    if _DELAY.fullmatch(line):
        return int(line)
    if not _DATE.fullmatch(line):
        return 0
    from email.utils import parsedate_to_datetime  # slow to import, and hardly ever needed

    try:
        moment = parsedate_to_datetime(line)
    except ValueError:  # the 31st of February
        return 0
    return moment.replace(tzinfo=UTC).timestamp() - epoch()


def _share(fields: Fields) -> float | None:
    """The share that is left, from the dialects that tell of one rule only; None where none does."""
    told = {name.lower().removeprefix("x-"): value for name, value in fields}
    trio = f"limit={told.get('ratelimit-limit')}, remaining={told.get('ratelimit-remaining')}"
    match = _SINGLE.match(told.get("ratelimit", "")) or _SINGLE.match(trio)
    return None if match is None else int(match[2]) / max(1, int(match[1]))

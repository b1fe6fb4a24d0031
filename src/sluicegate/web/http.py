"""HTTP header fields and responses made from decisions: functions from values to text. And what a CORS preflight is.

There are several dialects of the fields, because draft-ietf-httpapi-ratelimit-headers is still a draft and its format
changes. `Retry-After` in whole seconds is the one field that every client understands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache, partial
from typing import Final, Literal, NamedTuple, cast

from sluicegate.clock import MICROSECOND, epoch_seconds
from sluicegate.errors import RuleError, SettingsError, nearest
from sluicegate.plan import BAN, DENIED, LIMITED, UNAVAILABLE, Check, Decision, Outcome, Source, Terms

Field = tuple[str, str]
Fields = list[Field]
Dialect = Callable[[Decision, float], Fields]
DialectName = Literal["draft-11", "draft-7", "draft-6", "x-ratelimit", "x-ratelimit-delta", "openai"]


class FieldNames(NamedTuple):
    """The names of the fields of the dialect "x-ratelimit". The setting `headers` may have other names for them."""

    limit: str = "X-RateLimit-Limit"
    remaining: str = "X-RateLimit-Remaining"
    reset: str = "X-RateLimit-Reset"


HeadersSpec = DialectName | FieldNames | Mapping[str, str] | None
"""What the setting `headers` takes. `read_dialect` makes FieldNames of a mapping."""

AnyDialect = str | FieldNames | Mapping[str, str] | None
"""The same, with any text for the name of a dialect."""

EXPOSED: Final = ("RateLimit", "RateLimit-Policy", "Retry-After")
"""The fields that a CORS layer outside the limiter should list in Access-Control-Expose-Headers."""

NAMES: Final = frozenset(
    [
        "cache-control",
        "retry-after",
        "ratelimit-policy",
        "ratelimit",
        *[f"{prefix}ratelimit-{name}" for prefix in ("", "x-") for name in ("limit", "remaining", "reset")],
        *[f"x-ratelimit-{name}-{unit}" for name in ("limit", "remaining", "reset") for unit in ("requests", "tokens")],
        "retry-after-ms",
    ]
)
"""The names in lower case of all fields that a decision may add. Other fields of a response cannot collide."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # the name of a field (RFC 9110 §5.6.2)
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")  # what a Structured Field String can carry (RFC 9651 §3.3.3)
# With the sign before a parameter's. Or unterminated: otherwise the search restarts at each quote.
_STRING: Final = re.compile(r'(=?)"((?:[^"\\]|\\.)*+)"?')
_LISTS: Final = ("ratelimit", "ratelimit-policy")  # fields of draft 11 with one item for each rule, so they can grow
_BYTES: Final = "content-bytes"  # with requests, the default, and concurrent-requests the only units of draft 11
_SINGLE: Final = re.compile("limit=([0-9]{1,15}), remaining=([0-9]{1,15})")  # draft 7
_DELAY: Final = re.compile("[0-9]{1,15}")
_DATE: Final = re.compile(  # the three date forms of RFC 9110 §5.6.7; the last two forms are obsolete
    "[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [1-9][0-9]{3} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
    "|[A-Z][a-z]{5,8}, [0-9]{2}-[A-Z][a-z]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
    "|[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} [1-9][0-9]{3}"
)
LESS: Final = MICROSECOND - 1
"""Added before a division, to round up: faster than to negate twice."""
_LONGEST_ACCEPT: Final = 1_024  # characters; browsers send about 150

TYPES: Final = "https://iana.org/assignments/http-problem-types#"  # requested by draft 11, not yet registered
PROBLEM: Final = "application/problem+json"
# By status. With _BANNED these are the problem types of draft 11; for 403 the phrase of the status, because its type is
# about:blank (RFC 9457 §4.2.1).
_TITLES: Final = {LIMITED: "Quota Exceeded", UNAVAILABLE: "Temporary Reduced Capacity", DENIED: "Forbidden"}
FORBIDDEN: Final = "This client is not allowed here."
_BANNED: Final = "Abnormal Usage Detected"
_IN_PREFLIGHTS: Final = ("origin", "access-control-request-method")  # a browser always sends both
_NOT_IN_PREFLIGHTS: Final = ("transfer-encoding", "authorization", "cookie")  # the signs of a body or of credentials


@dataclass(frozen=True, eq=False, slots=True)
class Denial:
    """The whole response to a refused request. Compared by object identity: one object is sent many times."""

    status: int
    content_type: str
    fields: tuple[Field, ...]  # the fields of every response to this refusal, whatever its body
    body: bytes
    wait: int | None  # the value of `Retry-After`; None if no wait helps
    body_fields: tuple[Field, ...]  # the fields that describe the body
    all_fields: tuple[Field, ...]  # both
    lines: tuple[tuple[bytes, bytes], ...]  # both, as ASGI messages have them


def seconds(microseconds: int) -> int:
    """Convert microseconds to whole seconds, rounded up, so that a client that waits this long is not too early."""
    return (microseconds + LESS) // MICROSECOND


def retry_after(decision: Decision) -> int | None:
    """Return the value of `Retry-After` on a refusal, in seconds: at least 1, as clients read 0 as "retry at once".

    None if no wait helps: the cost is above the limit, or the client is on the deny list.
    """
    if decision.forbidden:
        return None
    longest = MICROSECOND
    for (terms, _, _), outcome in zip(decision.checks, decision.outcomes, strict=True):
        if not outcome.allowed and outcome.retry_after is None:
            return None
        if not outcome.allowed and not terms.held:  # any request that ends frees a slot: 1 s is a fair guess
            longest = max(longest, outcome.retry_after or 0)
    return seconds(longest)


def fields_for(decision: Decision, dialect: AnyDialect, *, status: int, epoch: float | None = None) -> Fields:
    """Return the fields that a decision adds to a response with this status, whatever code made the response.

    A refusal adds `Cache-Control: no-store` and, to an error, `Retry-After`. The dialect adds its fields, except to a
    response with the status 1xx or 3xx, and except if no rule applied. `epoch` is the time in seconds since
    1970, by default now. Only the dialect "x-ratelimit" uses it, also under other names.
    """
    fields: Fields = []
    if dialect is not None and status >= 200 and not 300 <= status < 400:
        write = DIALECTS[dialect] if isinstance(dialect, str) else _named(cast("FieldNames", dialect))
        fields = write(decision, epoch_seconds() if epoch is None else epoch)
    if decision.allowed:
        # Other code made this 429: the remaining units of this limiter do not explain it.
        return [field for field in fields if field[0] != "RateLimit"] if status == 429 else fields
    if status >= 400 and (delay := retry_after(decision)) is not None:  # has another meaning on a redirect
        fields.insert(0, ("Retry-After", str(delay)))
        if dialect == "openai":
            fields.insert(1, ("retry-after-ms", str(delay * 1000)))
    return [("Cache-Control", "no-store"), *fields]


def denial(decision: Decision, dialect: AnyDialect, *, accept: str = "", epoch: float | None = None) -> Denial:
    """Return the response to a refused request: 429; 503 if the store failed; 403 for a denied client. `accept` chooses
    the type of the body.

    Responses are cached. The cache key has all values of the response, in whole seconds, so that a flood of requests
    gets the same object again and again. Draft 11 does not show when a limit is full again.
    """
    second, since = 0.0, 0
    if dialect == "x-ratelimit" or isinstance(dialect, FieldNames):  # only this dialect has a time of day
        second, rest = divmod(epoch_seconds() if epoch is None else epoch, 1)
        since = round(rest * MICROSECOND)
    _, checks, outcomes = decision
    # Waits that end in the same second keep their order, by the rank of each among all.
    waits = [0] if len(outcomes) == 1 else sorted({outcome.retry_after or 0 for outcome in outcomes}, reverse=True)
    rows: list[_Row] = []
    for (terms, _, _), (allowed, limit, left, retry, reset, ahead, _, source) in zip(checks, outcomes, strict=True):
        rank, wait = 0 if len(waits) == 1 else waits.index(retry or 0), retry and (retry + LESS) // MICROSECOND
        full = 0 if dialect == "draft-11" else (reset + since + LESS) // MICROSECOND
        rows.append((terms, allowed, limit, left, wait, full, (ahead + LESS) // MICROSECOND, source, rank))
    return _denial(tuple(rows), cast("str | FieldNames | None", dialect), wants_text(accept), epoch=second)


_Row = tuple[Terms, bool, int, int, int | None, int, int, Source, int]
_Rows = tuple[_Row, ...]
"""What a response has of each check: the times in whole seconds, and the rank of the wait."""


@lru_cache(maxsize=1024)
def _denial(rows: _Rows, dialect: str | FieldNames | None, text: bool, *, epoch: float = 0.0) -> Denial:
    checks, outcomes = [], []
    for terms, allowed, limit, left, retry, reset, ahead, source, rank in rows:
        checks.append(Check(terms, "", 1))
        times = (retry and retry * MICROSECOND - rank, reset * MICROSECOND, ahead * MICROSECOND)
        outcomes.append(Outcome(allowed, limit, left, *times, source=source))
    decision = Decision(allowed=False, checks=tuple(checks), outcomes=tuple(outcomes))
    return make_denial(decision, dialect, epoch=epoch, text=text)


def make_denial(decision: Decision, dialect: AnyDialect, *, epoch: float, text: bool) -> Denial:
    """Make the response to a refused request: as text if `text` is True, else as problem details."""
    status, wait = decision.status, retry_after(decision)
    described = problem(decision, status=status, wait=wait)
    if text:
        body, media = f"{described['title']}. {described['detail']}\n".encode(), "text/plain; charset=utf-8"
    else:
        body, media = json.dumps(described).encode(), PROBLEM
    fields = tuple(fields_for(decision, dialect, epoch=epoch, status=status))
    about_body = (("Content-Type", media), ("Content-Length", str(len(body))))
    both = (*about_body, *fields)
    return Denial(
        status,
        content_type=media,
        fields=fields,
        body=body,
        wait=wait,
        body_fields=about_body,
        all_fields=both,
        lines=tuple(map(encoded, both)),
    )


def problem(decision: Decision, *, status: int, wait: int | None) -> dict[str, object]:
    """Return the body of the response to a refused request. `wait` is the value of `Retry-After`."""
    name = _BANNED if decision.banned else _TITLES[status]  # the title: the problem's type in words
    kind = "about:blank" if status == DENIED else TYPES + name.lower().replace(" ", "-")
    body: dict[str, object] = {"type": kind, "title": name, "status": status, "detail": detail(decision, wait)}
    if status == DENIED:
        return body
    pairs = zip(decision.checks, decision.outcomes, strict=True)
    refused = [check.terms for check, outcome in pairs if not outcome.allowed and outcome.source != "policy"]
    # The same names as in the header fields. A ban is left out, because a ban is not a policy.
    return {**body, "violated-policies": [terms.name for terms in refused if terms.algorithm != BAN]}


def detail(decision: Decision, wait: int | None) -> str:
    """Return a sentence that says what the client can do. It contains no identity."""
    if decision.forbidden:
        return FORBIDDEN
    if wait is None:
        return "This request costs more than its limit, so it can never pass."
    if not decision.unavailable and (binding := decision.binding) is not None and binding[0].terms.message is not None:
        return binding[0].terms.message
    return f"Retry after {wait} second{'' if wait == 1 else 's'}."


def wants_text(accept: str) -> bool:
    """True if a client with this `Accept` prefers text (a browser) to JSON (every other client).

    Only the media types that end within the first 1,024 characters are read.
    """
    if len(accept) > _LONGEST_ACCEPT:
        accept = accept[: _LONGEST_ACCEPT + 1].rpartition(",")[0]
    return _wants_text(accept)


@lru_cache(maxsize=64)  # a flood of requests repeats one value
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
    """Add fields to the fields of a response, which another limiter may have written.

    The lists of draft 11 grow, and the names in these lists stay unique. A dialect with room for one rule keeps the
    tighter rule. The later `Retry-After` wins. `no-store` is never lost. `epoch` is a function that returns the current
    time in seconds since 1970. It is called only if the response has a `Retry-After` with a date.

    >>> merge([("RateLimit", '"a";r=1')], [("RateLimit", '"a";r=5')])
    [('RateLimit', '"a";r=1, "a-2";r=5')]
    """
    merged, added = list(existing), list(fields)
    names = {name.lower() for name, _ in added}
    if not any([name.lower() in names for name, _ in merged]):
        return merged + added
    left, left_too = _part_left(merged), _part_left(added)
    tighter = left is not None and left_too is not None and left <= left_too
    for name, new_value in _renamed(added, merged):
        lines = [line for other, line in merged if other.lower() == name.lower()]
        merged = [field for field in merged if field[0].lower() != name.lower()]
        if name.lower() == "retry-after":
            value = max([new_value, *lines], key=lambda line: _wait(line, epoch))
        else:
            value = _join(name.lower(), [*lines, new_value], keep=tighter)
        merged.append((name, value))
    return merged


def is_preflight(method: str, lines: Callable[[str], Sequence[str]]) -> bool:
    """True if this is a CORS preflight in the form that browsers send. `lines` returns all lines of a header.

    A bare OPTIONS is an ordinary request. So is an OPTIONS with a body or with credentials: a preflight of the Fetch
    standard has neither, and the application might read them.
    """
    return (
        method == "OPTIONS"
        and all([any(lines(name)) for name in _IN_PREFLIGHTS])
        and not any([any(lines(name)) for name in _NOT_IN_PREFLIGHTS])
        and all([line in ("", "0") for line in lines("content-length")])
    )


@lru_cache(maxsize=64)
def environ_name(name: str) -> str:
    """Return the name of a header in a WSGI environ. Two headers have no HTTP_ before their name (PEP 3333)."""
    key = name.upper().replace("-", "_")
    return key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"


def read_dialect(given: object) -> HeadersSpec:
    """Return the dialect that this is the name of, the names that a mapping gives to fields, or None. Else raise
    SettingsError.

    >>> read_dialect({"limit": "X-Limit"}).reset
    'X-RateLimit-Reset'
    """
    if isinstance(given, Mapping):
        given = _read_names(given)
    if given is None or isinstance(given, FieldNames) or (isinstance(given, str) and given in DIALECTS):
        return cast("HeadersSpec", given)
    expected = f"use one of {', '.join(DIALECTS)}, names of fields, or None"
    raise SettingsError("headers", given, problem="not known", expected=expected)


_TAKEN: Final = frozenset(
    {"age", "cache-control", "connection", "date", "etag", "expires", "keep-alive", "last-modified", "location"}
    | {"retry-after", "server", "set-cookie", "trailer", "transfer-encoding", "upgrade", "vary", "www-authenticate"}
)
"""Fields of a response (RFC 9110, 9111, 9112, 6265) that a second value would break; `Content-…` are others."""


def _read_names(given: Mapping[object, object]) -> FieldNames:
    for field, name in given.items():
        if field not in FieldNames._fields:
            expected = nearest(str(field), FieldNames._fields, "give limit, remaining or reset")
            raise SettingsError("headers", field, problem="no such field", expected=expected)
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            expected = 'give the name of a header field, as {"limit": "X-RateLimit-Limit"}'
            raise SettingsError(f"headers: {field}", name, problem="not a name of a field", expected=expected)
        if name.lower().startswith("content-") or name.lower() in _TAKEN:
            expected = "give a name that no response has already"
            raise SettingsError(f"headers: {field}", name, problem="means something else in HTTP", expected=expected)
    names = FieldNames()._replace(**cast("dict[str, str]", given))
    if len({name.lower() for name in names}) < len(names):
        raise SettingsError("headers", {**given}, problem="two fields of one name", expected="give each its own")
    return names


def quoted(name: str) -> str:
    """Return a name as a Structured Field String (RFC 9651 §4.1.6). Raises RuleError if it cannot be one."""
    if not _PRINTABLE.fullmatch(name):
        raise RuleError("name", name, problem="not printable ASCII", expected="give letters, digits or signs")
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


@lru_cache(maxsize=4096)
def policy_text(terms: Terms) -> tuple[Field, str, bool] | None:
    """Return the constant text of draft 11 for a rule: its policy, the start of its item, and whether that has a time.

    Return None for a ban and for a shadow rule, because these have neither a policy nor an item.
    """
    if terms.algorithm == BAN or terms.shadow:
        return None
    name, unit = quoted(terms.name), 'qu="concurrent-requests"' if terms.held else f"w={seconds(terms.window_us)}"
    if terms.unit == _BYTES:
        unit = f'qu="{_BYTES}";{unit}'
    return ("RateLimit-Policy", f"{name};q={terms.limit};{unit}"), f"{name};r=", not terms.held


def encoded(field: Field) -> tuple[bytes, bytes]:
    """Return a field encoded for ASGI messages."""
    return field[0].lower().encode("latin-1"), field[1].encode("latin-1")


def _draft_11(decision: Decision, epoch: float) -> Fields:
    """Write the fields of draft 11: lists with one named item for each rule. In an item, `r` is the number of units
    left, and `t` is the number of seconds until more units become free.
    """
    allowed, checks, outcomes = decision
    policies = items = ""
    for (terms, _, _), (passed, _, left, _, _, ahead, _, source) in zip(checks, outcomes, strict=True):
        text = policy_text(terms)
        if text is None or source == "policy":
            continue
        (_, policy), item, timed = text
        policies = f"{policies}, {policy}" if policies else policy
        if allowed or not passed:  # a refusal lists only the violated policies
            # The same rounding as in `seconds`, without a call.
            value = f"{item}{left};t={(ahead + LESS) // MICROSECOND}" if ahead and timed else f"{item}{left}"
            items = f"{items}, {value}" if items else value
    fields = [("RateLimit-Policy", policies)] if policies else []
    return [*fields, ("RateLimit", items)] if items else fields  # there are no items if only a ban refuses


def _of_one(write: Dialect) -> Dialect:
    """Make a dialect with room for one rule, the binding rule. The dialect skips outcomes of a failure policy, because
    a failure policy counts nothing.

    It writes no fields if only a ban or a concurrency limit refuses: what a quota has left does not explain that.
    """

    def fields(decision: Decision, epoch: float) -> Fields:
        both = zip(decision.checks, decision.outcomes, strict=True)
        pairs = [pair for pair in both if pair[1].source != "policy" and not pair[0].terms.shadow]
        rules = [pair for pair in pairs if pair[0].terms.algorithm != BAN and not pair[0].terms.held]
        if len(rules) < len(pairs):
            pairs = rules if decision.allowed or not all([outcome.allowed for _, outcome in rules]) else []
        checks, outcomes = tuple([check for check, _ in pairs]), tuple([outcome for _, outcome in pairs])
        return write(Decision(decision.allowed, checks, outcomes), epoch) if pairs else []

    return fields


def _policies(decision: Decision) -> str:
    """Write the policies without names, as in the drafts before 8."""
    return ", ".join(f"{check.terms.limit};w={seconds(check.terms.window_us)}" for check in decision.checks)


def _numbers(decision: Decision, *, since: int = 0) -> tuple[int, int, int]:
    """Return the limit, the remaining units and the reset time of the binding rule."""
    outcome = cast("tuple[Check, Outcome]", decision.binding)[1]
    return outcome.limit, outcome.remaining, seconds(since + outcome.reset_after)


@_of_one
def _draft_7(decision: Decision, epoch: float) -> Fields:
    limit, remaining, reset = _numbers(decision)
    combined = f"limit={limit}, remaining={remaining}, reset={reset}"
    return [("RateLimit-Policy", _policies(decision)), ("RateLimit", combined)]


@_of_one
def _draft_6(decision: Decision, epoch: float) -> Fields:
    return [("RateLimit-Policy", _policies(decision)), *zip(_OF_DRAFT_6, map(str, _numbers(decision)), strict=True)]


_OF_DRAFT_6: Final = FieldNames("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")


@lru_cache(maxsize=64)  # an application has one
def _named(names: FieldNames) -> Dialect:
    """Return the dialect "x-ratelimit" with these names: the older fields that many vendors use. `reset` is a moment in
    seconds since 1970, rounded up.
    """

    @_of_one
    def fields(decision: Decision, epoch: float) -> Fields:
        return [*zip(names, map(str, _numbers(decision, since=round(epoch * MICROSECOND))), strict=True)]

    return fields


@_of_one
def _x_ratelimit_delta(decision: Decision, epoch: float) -> Fields:
    return [*zip(FieldNames(), map(str, _numbers(decision)), strict=True)]


def _openai(decision: Decision, epoch: float) -> Fields:
    """Write three fields for requests and three for tokens, as the API of OpenAI documents them. Rules of other units
    have none.
    """
    fields: Fields = []
    pairs = list(zip(decision.checks, decision.outcomes, strict=True))
    for unit, write in _OPENAI.items():
        of_unit = [pair for pair in pairs if (pair[0].terms.unit or "requests") == unit]
        checks, outcomes = tuple([check for check, _ in of_unit]), tuple([outcome for _, outcome in of_unit])
        passed = all([outcome.allowed for outcome in outcomes])
        fields += write(Decision(passed, checks, outcomes), epoch)
    return fields


def _of_unit(decision: Decision, epoch: float, *, unit: str) -> Fields:
    outcome = cast("tuple[Check, Outcome]", decision.binding)[1]
    values = {"limit": outcome.limit, "remaining": outcome.remaining, "reset": duration(outcome.reset_after)}
    return [(f"x-ratelimit-{name}-{unit}", str(value)) for name, value in values.items()]


_OPENAI: Final = {unit: _of_one(partial(_of_unit, unit=unit)) for unit in ("requests", "tokens")}


def duration(microseconds: int) -> str:
    """Return a time in the format of Go, which the API of OpenAI has, in whole seconds that are rounded up.

    >>> duration(360_000_000), duration(1_500_000), duration(0)
    ('6m0s', '2s', '0s')
    """
    minutes, rest = divmod(seconds(microseconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"


DIALECTS: Final[dict[str, Dialect]] = {
    "draft-11": _draft_11,
    "draft-7": _draft_7,
    "draft-6": _draft_6,
    "x-ratelimit": _named(FieldNames()),
    "x-ratelimit-delta": _x_ratelimit_delta,
    "openai": _openai,
}


def _weight(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](\.[0-9]{0,3})?", text) else 0.0


def _renamed(added: Fields, existing: Fields) -> Fields:
    """Return the added fields with items renamed to names that the existing fields do not have. An item has the same
    name in both fields.
    """
    texts = [value for field, value in existing if field.lower() in _LISTS]
    taken = {name for text in texts for sign, name in _STRING.findall(text) if not sign}
    names: dict[str, str] = {}

    def free_name(match: re.Match[str]) -> str:
        sign, old = match.groups()
        if not sign and old not in names:
            name, number = old, 2
            while name in taken:
                name, number = f"{old}-{number}", number + 1
            names[old] = name
            taken.add(name)
        return match[0] if sign else f'"{names[old]}"'

    return [(name, _STRING.sub(free_name, value) if name.lower() in _LISTS else value) for name, value in added]


def _join(name: str, lines: list[str], *, keep: bool) -> str:
    """Return one line made from all lines of a field. The last is new. `keep` is True if an older one is tighter."""
    *old, new = lines
    if not old:
        return new
    if name == "cache-control":
        return ", ".join(old) if "no-store" in ", ".join(old).lower() else new
    if name in _LISTS and not any(_SINGLE.match(line) for line in lines):
        return ", ".join(lines)
    return old[-1] if keep else new


def _wait(line: str, epoch: Callable[[], float]) -> float:
    """Return the seconds of a `Retry-After`; 0, less than sluicegate ever sends, if it is neither number nor date."""
    if _DELAY.fullmatch(line):
        return int(line)
    if not _DATE.fullmatch(line):
        return 0
    from email.utils import parsedate_to_datetime  # slow to import and rarely needed

    try:
        moment = parsedate_to_datetime(line)
    except ValueError:  # for example 31 February
        return 0
    return moment.replace(tzinfo=UTC).timestamp() - epoch()


def _part_left(fields: Fields) -> float | None:
    """Return the fraction of the limit that is left, read from a dialect with room for one rule, or else None."""
    values = {name.lower().removeprefix("x-"): value for name, value in fields}
    trio = f"limit={values.get('ratelimit-limit')}, remaining={values.get('ratelimit-remaining')}"
    match = _SINGLE.match(values.get("ratelimit", "")) or _SINGLE.match(trio)
    return None if match is None else int(match[2]) / max(1, int(match[1]))

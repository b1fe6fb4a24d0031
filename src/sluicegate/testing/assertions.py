"""Assertions about a response of any framework or HTTP client. When one fails, the message shows how the response
stands: its status, its fields, the rules that refused, and what is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from sluicegate.plan import Decision
from sluicegate.web.http import FORBIDDEN, NAMES, PROBLEM

_REFUSED: Final = 429
_DENIED: Final = 403
_ITEM: Final = re.compile(r'"((?:[^"\\]|\\.)*)";r=([0-9]+)')  # of draft 11
_REMAINING: Final = ("ratelimit-remaining", "x-ratelimit-remaining", "x-ratelimit-remaining-requests")
_COMBINED: Final = re.compile("limit=[0-9]+, remaining=([0-9]+), reset=[0-9]+")
_CODES: Final = ("status_code", "status")  # where responses have their status,
_BODIES: Final = ("content", "data", "body")  # and their body, in bytes


def assert_limited(
    response: object, *, rule: str | None = None, retry_after: int | None = None, status: int = _REFUSED
) -> None:
    """Fail unless the limiter refused this request.

    `rule` is the name of a rule that refused. `retry_after` is the number of seconds in `Retry-After`. `status` is the
    status of a refusal if `on_denied` chooses another. `response` is a response of Flask, Starlette, Django, REST
    framework, requests or httpx; or `(status, headers)` or `(status, headers, body)` of plain WSGI; or, of plain ASGI,
    the message that starts the response, or all messages.

    >>> assert_limited(("429 Too Many Requests", [("Retry-After", "30")]), retry_after=30)
    """
    found = _read(response)
    if found.status != status:
        raise _failure(f"expected a refusal with the status {status}", found)
    if found.passed:
        raise _failure("expected a refusal by the limiter, but it allowed this request: other code answered", found)
    if retry_after is not None and found.retry_after != str(retry_after):
        raise _failure(f"expected Retry-After: {retry_after}", found)
    refused = found.refused or found.left  # a refusal with another status has the fields of the rule that refused
    if rule is not None and rule not in refused:
        raise _failure(f"expected a refusal by the rule {rule!r}", found)


def assert_allowed(response: object, *, rule: str | None = None, remaining: int | None = None) -> None:
    """Fail if the limiter refused this request. `remaining` is what is left of the limit: under `rule`, or under the
    only rule of the response. `response` is the same as in `assert_limited`.

    >>> assert_allowed(("200 OK", [("RateLimit", '"default";r=4;t=60')]), rule="default", remaining=4)
    """
    found = _read(response)
    if found.problem or (not found.passed and (found.status == _REFUSED or found.waits)):
        raise _failure("expected that the limiter allows this request", found)
    if rule is not None and rule not in found.left:
        raise _failure(f"expected that the rule {rule!r} applies", found)
    left = set(found.left.values() if rule is None else [found.left[rule]])
    if remaining is not None and left != {remaining}:
        under = f" under the rule {rule!r}" if rule is not None else "; give rule=" if len(found.left) > 1 else ""
        raise _failure(f"expected {remaining} left{under}", found)


class _Standing(NamedTuple):
    """What a response says about limits."""

    status: int
    fields: list[tuple[str, str]]  # of a limiter
    left: dict[str, int]  # by the name of the rule; the name is empty in a dialect without names
    refused: tuple[str, ...]  # the names of the rules that refused
    problem: bool  # whether the body is a limiter's
    no_store: bool  # every refusal of the limiter has this directive of Cache-Control

    @property
    def passed(self) -> bool:
        """True if the limiter has allowed the request: there are its fields, and they are not those of a refusal."""
        return not self.no_store and any(["ratelimit" in name.lower() for name, _ in self.fields])

    @property
    def waits(self) -> bool:
        """True if it has the two fields of a refusal, whose status `on_denied` may choose."""
        return self.no_store and self.retry_after is not None

    @property
    def retry_after(self) -> str | None:
        return next((value for name, value in self.fields if name.lower() == "retry-after"), None)


def _failure(expected: str, found: _Standing) -> AssertionError:
    lines = [expected, f"  status: {found.status}", *[f"  {name}: {value}" for name, value in found.fields]]
    lines += [f"  left: {left} under {name!r}" if name else f"  left: {left}" for name, left in found.left.items()]
    if found.refused:
        lines.append(f"  refused by: {', '.join(map(repr, found.refused))}")
    if "" in found.left:
        lines.append('  no names of rules: the dialect of `headers` has none; leave out rule, or use "draft-11"')
    if not found.fields:
        lines.append("  no header field of a limiter: no rule applied, or the setting `headers` is None")
    return AssertionError("\n".join(lines))


def _read(response: object) -> _Standing:
    status, headers, body = _parts(response)
    fields = [(name, value) for name, value in headers if name.lower() in NAMES]
    details = _problem(headers, body)
    known = {name.lower(): value for name, value in fields}
    left = {name: int(count) for name, count in _ITEM.findall(known.get("ratelimit", ""))}
    if not left:
        combined = _COMBINED.fullmatch(known.get("ratelimit", ""))
        count = combined[1] if combined else next((known[name] for name in _REMAINING if name in known), None)
        left = {} if count is None else {"": int(count)}
    names = details.get("violated-policies")
    refused = [name for name in left if name and status == _REFUSED] if names is None else names
    ours = names is not None or (status == _DENIED and FORBIDDEN.encode() in body)
    no_store = "no-store" in known.get("cache-control", "")
    return _Standing(status, fields=fields, left=left, refused=tuple(refused), problem=ours, no_store=no_store)


def _problem(headers: Iterable[tuple[str, str]], body: bytes) -> dict[str, Any]:
    """Return the problem details in the body; empty if the body is something else."""
    described = any([name.lower() == "content-type" and value == PROBLEM for name, value in headers])
    return json.loads(body) if described and body else {}


def _parts(response: object) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return the status, the header fields and the body of any kind of response."""
    if isinstance(response, Decision):  # a tuple too
        raise TypeError("a Decision is not a response; write assert decision.allowed, or assert not decision.allowed")
    messages: object = [response] if isinstance(response, Mapping) else response
    if isinstance(messages, (list, tuple)) and messages:
        if isinstance(messages[0], Mapping):
            start = next(each for each in messages if "status" in each)
            body = b"".join([each.get("body", b"") for each in messages if each is not start])
            return start["status"], _pairs(start.get("headers", ())), body
        status, headers, *rest = messages
        return int(str(status).split()[0]), _pairs(headers), b"".join(rest[0]) if rest else b""
    for code in _CODES:
        status, headers = getattr(response, code, None), getattr(response, "headers", None)
        if isinstance(status, int) and headers is not None:
            body = next((getattr(response, name) for name in _BODIES if hasattr(response, name)), b"")
            return status, _pairs(headers), body
    raise TypeError(f"a {type(response).__name__} is not a response, and not (status, headers)")


def _pairs(headers: Any) -> list[tuple[str, str]]:
    pairs = headers.items() if hasattr(headers, "items") else headers
    return [(_text(name), _text(value)) for name, value in pairs]


def _text(given: str | bytes) -> str:
    return given.decode("latin-1") if isinstance(given, bytes) else given

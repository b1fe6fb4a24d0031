"""What a refusal is called: its status, its title, and the body that RFC 9457 describes.

Who is refused by a quota, by a ban, by a list or because the store does not answer is told apart here. This module
knows values only.
"""

from __future__ import annotations

from typing import Any, Final

from sluicegate.plan import BAN, Decision

TYPES: Final = "https://iana.org/assignments/http-problem-types#"  # requested by draft 11, not yet registered
PROBLEM: Final = "application/problem+json"
_FORBIDDEN: Final = 403
_TITLES: Final = {429: "Quota Exceeded", 503: "Temporary Reduced Capacity", _FORBIDDEN: "Forbidden"}
_BANNED: Final = "Abnormal Usage Detected"


def status_of(decision: Decision) -> int:
    """The status of a refusal: 429, 503 when it was the store that failed, 403 for who is denied by a list."""
    return _FORBIDDEN if decision.forbidden else 503 if decision.unavailable else 429


def title(decision: Decision) -> str:
    """The title of the problem: its type in words."""
    return _BANNED if decision.banned else _TITLES[status_of(decision)]


def problem(decision: Decision, wait: int | None) -> dict[str, Any]:
    """The body; `wait` is what `Retry-After` says."""
    status, name = status_of(decision), title(decision)
    kind = "about:blank" if status == _FORBIDDEN else TYPES + name.lower().replace(" ", "-")
    body = {"type": kind, "title": name, "status": status, "detail": detail(decision, wait)}
    if status == _FORBIDDEN:
        return body
    pairs = zip(decision.checks, decision.results, strict=True)
    refused = [check.terms for check, told in pairs if not told.allowed and told.source != "policy"]
    # Those that the header fields name: a ban is no policy.
    return {**body, "violated-policies": [terms.name for terms in refused if terms.algorithm != BAN]}


def detail(decision: Decision, wait: int | None) -> str:
    """What the client may do about it; nothing of who it is, nor of others."""
    if decision.forbidden:
        return "This client is not allowed here."
    if wait is None:
        return "This request costs more than its limit, so it can never pass."
    return f"Retry after {wait} second{'' if wait == 1 else 's'}."

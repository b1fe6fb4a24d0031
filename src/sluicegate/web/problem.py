"""The problem details of a refusal (RFC 9457): title, type, detail.

The values differ for a quota, a ban, the deny list, and a store that is unavailable.
"""

from __future__ import annotations

from typing import Final

from sluicegate.plan import BAN, DENIED, LIMITED, UNAVAILABLE, Decision

TYPES: Final = "https://iana.org/assignments/http-problem-types#"  # requested by draft 11, not yet registered
PROBLEM: Final = "application/problem+json"
# By status. With _BANNED these are the problem types of draft 11; for 403 the phrase of the status, because its type is
# about:blank (RFC 9457 §4.2.1).
_TITLES: Final = {LIMITED: "Quota Exceeded", UNAVAILABLE: "Temporary Reduced Capacity", DENIED: "Forbidden"}
FORBIDDEN: Final = "This client is not allowed here."
_BANNED: Final = "Abnormal Usage Detected"


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

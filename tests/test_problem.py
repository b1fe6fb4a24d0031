"""The problem details of refusals, and the fields of refusals by a ban or by the deny list."""

from __future__ import annotations

import json

import pytest

from sluicegate import Ban, Limiter, ManualClock, Quota
from sluicegate.plan import FORBIDDEN, Check, Decision, Plan
from sluicegate.rules.ban import with_bans
from sluicegate.rules.terms import make_terms
from sluicegate.web.http import DIALECTS, TYPES, denial, detail, fields_for, problem, retry_after

BAN = Ban(after=2, within=60, duration=90)


def decide(requests: int, *, wait: float = 0, quota: Quota | None = None) -> Decision:
    """The last of several decisions. The clock advances before it."""
    clock = ManualClock()
    limiter = Limiter(clock=clock)
    [terms] = make_terms("login", (Quota(1, 30) if quota is None else quota,), algorithm="gcra", ban=BAN.terms)
    plan = Plan(with_bans([Check(terms, "a", 1)]))
    for _ in range(requests - 1):
        limiter.run(plan)
    clock.advance(wait)
    return limiter.run(plan)


ALLOWED, REFUSED, STRUCK_OUT = decide(1), decide(2), decide(3)
POLICY = '"login";q=1;w=30'
BANNED = decide(4, wait=30.5)  # the rule itself would allow it


@pytest.mark.parametrize(
    ("decision", "status", "name", "wait", "violated"),
    [
        (REFUSED, 429, "Quota Exceeded", 30, ["login"]),
        (STRUCK_OUT, 429, "Abnormal Usage Detected", 90, ["login"]),
        (BANNED, 429, "Abnormal Usage Detected", 60, []),
    ],
)
def test_a_ban_is_a_problem_of_its_own(
    decision: Decision, status: int, name: str, wait: int, violated: list[str]
) -> None:
    assert (decision.status, retry_after(decision)) == (status, wait)
    assert problem(decision, status=status, wait=wait) == {
        "type": TYPES + name.lower().replace(" ", "-"),
        "title": name,
        "status": status,
        "detail": f"Retry after {wait} seconds.",
        "violated-policies": violated,
    }
    text = denial(decision, None, epoch=0, accept="text/html").body.decode()
    assert text == f"{name}. Retry after {wait} seconds.\n"


@pytest.mark.parametrize(
    ("dialect", "allowed", "struck_out", "banned"),
    [
        ("draft-11", [POLICY, '"login";r=0;t=30'], [POLICY, '"login";r=0;t=30'], [POLICY]),
        ("draft-7", ["1;w=30", "limit=1, remaining=0, reset=30"], ["1;w=30", "limit=1, remaining=0, reset=30"], []),
        ("draft-6", ["1;w=30", "1", "0", "30"], ["1;w=30", "1", "0", "30"], []),
        ("x-ratelimit", ["1", "0", "130"], ["1", "0", "130"], []),
        ("x-ratelimit-delta", ["1", "0", "30"], ["1", "0", "30"], []),
    ],
)  # fmt: skip
def test_a_ban_is_no_policy(dialect: str, allowed: list[str], struck_out: list[str], banned: list[str]) -> None:
    def values(decision: Decision) -> list[str]:
        status = 200 if decision.allowed else 429
        fields = fields_for(decision, dialect, epoch=100, status=status)
        return [value for name, value in fields if "RateLimit" in name]

    assert [values(decision) for decision in (ALLOWED, STRUCK_OUT, BANNED)] == [allowed, struck_out, banned]
    assert fields_for(BANNED, dialect, epoch=100, status=429)[:2] == [
        ("Cache-Control", "no-store"),
        ("Retry-After", "60"),
    ]


def test_a_decision_with_a_ban() -> None:
    values = [(each.rule, each.limit, each.remaining, each.retry_after, each.banned) for each in (ALLOWED, REFUSED)]
    assert values == [("login", 1, 0, 0.0, False), ("login", 1, 0, 30.0, False)]
    assert (BANNED.rule, BANNED.retry_after, BANNED.reset_after) == ("ban", 59.5, 59.5)
    assert not BANNED.degraded
    assert not BANNED.forbidden


def test_a_ban_that_has_not_begun_never_binds() -> None:
    nearly = decide(2, wait=30, quota=Quota(1000, 30))
    assert (nearly.rule, nearly.limit) == ("login", 1000)


@pytest.mark.parametrize("dialect", [None, *DIALECTS])
def test_the_response_to_a_denied_client_has_no_wait_and_no_quota(dialect: str | None) -> None:
    assert (FORBIDDEN.forbidden, FORBIDDEN.banned, FORBIDDEN.unavailable, FORBIDDEN.rule) == (True, False, False, None)
    answer = denial(FORBIDDEN, dialect, epoch=100)
    assert answer.status == 403
    assert dict(answer.all_fields) == {
        "Content-Type": "application/problem+json",
        "Content-Length": str(len(answer.body)),
        "Cache-Control": "no-store",
    }
    words = detail(FORBIDDEN, None)
    assert json.loads(answer.body) == {"type": "about:blank", "title": "Forbidden", "status": 403, "detail": words}

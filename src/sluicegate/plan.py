"""Check, Plan, Outcome, Decision: the values that flow through sluicegate.

They are tuples, so they are frozen and cheap, and they know nothing: no clock, no store, no framework.
Times are integers in microseconds; only Decision, which users read, speaks in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from sluicegate.clock import MICROSECOND
from sluicegate.quota import Quota

new: Final = tuple.__new__
"""Makes one of the values below from a tuple of all its fields, in half the time: for what every check makes."""

BAN: Final = "ban"
"""The algorithm of a ban's terms, which no rule can choose: see `sluicegate.algorithms.ban`."""

NEVER: Final = None
"""The `retry_after` of a request that no amount of waiting lets through: its cost is above the limit."""


Source = Literal["store", "local", "policy"]
"""Who made an outcome: the store, its stand-in in this process's memory, or a policy that counts nothing."""

FAILURE_POLICIES: Final = ("local", "allow", "deny")
"""What may become of a check whose store does not answer: counted here, let pass, or refused."""


class Terms(NamedTuple):
    """What is the same in every check of one rule, computed once at start-up. Compared and hashed by identity."""

    name: str  # unique among the rules of a request; shown in header fields
    rule_id: str  # what the budget is kept under: scope, algorithm, period
    algorithm: str  # the algorithm's own name; the familiar aliases are resolved
    params: tuple[int, ...]  # the algorithm's; the first is always the limit
    window_us: int  # how long the limit takes to come back whole; shown in header fields
    quota: Quota  # what all this was made from
    count_denied: bool = False
    on_store_failure: str | None = None  # the policy of this rule; None: the application's
    lease: int = 1  # permits that a process may take in one trip to the store
    shadow: bool = False  # counted and reported, and refuses nobody
    refund_when: Callable[..., bool] | None = None  # whether a response gives the charge back
    held: bool = False  # the charge is released when the response has ended
    ban: Terms | None = None  # of the ban that a refusal counts towards

    def __deepcopy__(self, memo: object) -> Terms:
        """The same object, for another would be compared as another."""
        return self


Terms.__eq__ = object.__eq__  # type: ignore[method-assign]
Terms.__hash__ = object.__hash__  # type: ignore[method-assign]


class Check(NamedTuple):
    """One rule for one identity at one cost."""

    terms: Terms
    identity: str
    cost: int

    def __repr__(self) -> str:  # identities are personal data: they stay out of logs
        return f"Check({self.terms.rule_id!r}, identity=…, cost={self.cost})"


class Plan(NamedTuple):
    """The checks of one request, no two of one budget: all are charged, or none. With `charge=False` none ever is.

    With `forced=True` each is charged, allowed or not, as far as its limit goes: what has been used already is owed.
    `network` says which network the request came from. A store calls it only when it has no room for an identity.
    """

    checks: tuple[Check, ...]
    charge: bool = True
    forced: bool = False
    network: Callable[[], str] | None = None


class Outcome(NamedTuple):
    """What one check came to. Times are microseconds from now.

    For 10 per second of which 6 are used, a check at cost 1 has `limit` 10 and leaves `remaining` 3.
    A shadow check is always `allowed`; its `retry_after` is 0 if it would have passed, and else how long it would wait.
    """

    allowed: bool
    limit: int
    remaining: int  # units left after this request (never negative)
    retry_after: int | None  # the least wait after which the same cost passes (0 when it just did), or NEVER
    reset_after: int  # until everything is free again and the key may be forgotten
    next_after: int  # until `remaining` next grows; 0 when nothing is used
    at: int = 0  # when that was, by the store's own clock: a refund names the charge by it
    source: Source = "store"


class Decision(NamedTuple):
    """The answer to one request: whether it may pass, and what to tell the client. True when allowed.

    The numbers are those of the binding rule: among the rules that refused, the one that takes longest
    to free, or a ban if one holds; when all allowed, the one with the smallest share left. A shadow rule is never
    binding. Times are in seconds.
    """

    allowed: bool
    checks: tuple[Check, ...]
    results: tuple[Outcome, ...]

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def degraded(self) -> bool:
        """Whether the store did not answer, and its stand-in or a policy did for at least one rule."""
        return any([outcome.source != "store" for outcome in self.results])

    @property
    def unavailable(self) -> bool:
        """Whether the request was refused because a rule wants that while the store does not answer: 503, not 429."""
        return any([outcome.source == "policy" and not outcome.allowed for outcome in self.results])

    @property
    def banned(self) -> bool:
        """Whether a ban holds: what refuses is not, or not only, a quota."""
        pairs = zip(self.checks, self.results, strict=True)
        return any([check.terms.algorithm == BAN and not outcome.allowed for check, outcome in pairs])

    @property
    def forbidden(self) -> bool:
        """Whether the request was refused by the list of those who are denied: 403, and no wait helps."""
        return not self.allowed and not self.results

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """The outcome of each rule by the rule's name, in rule order."""
        return {check.terms.name: outcome for check, outcome in zip(self.checks, self.results, strict=True)}

    @property
    def would_refuse(self) -> tuple[str, ...]:
        """The names of the shadow rules that would have refused this request."""
        pairs = zip(self.checks, self.results, strict=True)
        return tuple([check.terms.name for check, told in pairs if check.terms.shadow and told.retry_after != 0])

    @property
    def binding(self) -> tuple[Check, Outcome] | None:
        """The check that decided, with its outcome; None when no rule applied."""
        pairs = [pair for pair in zip(self.checks, self.results, strict=True) if not pair[0].terms.shadow]
        refused = [pair for pair in pairs if not pair[1].allowed]
        if refused:
            return max(refused, key=lambda pair: (pair[0].terms.algorithm == BAN, _wait(pair[1])))
        rules = [pair for pair in pairs if pair[0].terms.algorithm != BAN]
        return min(rules, key=lambda pair: pair[1].remaining / pair[1].limit, default=None)

    @property
    def rule(self) -> str | None:
        """The name of the binding rule; None when no rule applied."""
        pair = self.binding
        return None if pair is None else pair[0].terms.name

    @property
    def limit(self) -> int | None:
        """The limit of the binding rule; None when no rule applied."""
        pair = self.binding
        return None if pair is None else pair[1].limit

    @property
    def remaining(self) -> int | None:
        """What the binding rule still allows after this request; None when no rule applied."""
        pair = self.binding
        return None if pair is None else pair[1].remaining

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the same request passes if nobody else comes: 0.0 when allowed, None for never."""
        pairs = zip(self.checks, self.results, strict=True)
        waits = [outcome.retry_after for check, outcome in pairs if not check.terms.shadow]
        if any(wait is NEVER for wait in waits):
            return None
        return max((wait for wait in waits if wait is not None), default=0) / MICROSECOND

    @property
    def reset_after(self) -> float:
        """Seconds until the binding rule's limit is whole again."""
        pair = self.binding
        return 0.0 if pair is None else pair[1].reset_after / MICROSECOND


FORBIDDEN: Final = Decision(allowed=False, checks=(), results=())
"""What is decided about somebody on the list of those who are denied: no rule is asked, and no store."""


def strikers(checks: tuple[Check, ...], ban: Check) -> list[bool]:
    """Of each check of a plan, whether its refusal is a strike towards a ban: it names the ban, for this identity."""
    return [terms.ban is ban.terms and identity == ban.identity for terms, identity, _ in checks]


def charged(plan: Plan, outcomes: tuple[Outcome, ...]) -> list[tuple[Check, Outcome]]:
    """What a store charged for a plan, and can be refunded: nothing unless every check was allowed."""
    if not plan.charge or not all([outcome.allowed for outcome in outcomes]):
        return []
    return [
        (check, outcome)
        for check, outcome in zip(plan.checks, outcomes, strict=True)
        if check.cost and outcome.source == "store" and not (check.terms.shadow and outcome.retry_after != 0)
    ]


def in_shadow(outcome: Outcome, *, passed: bool) -> Outcome:
    """The outcome of a shadow check, from how it stands and whether it would have passed: never a refusal."""
    return outcome._replace(allowed=True, retry_after=0 if passed else outcome.retry_after)


def _wait(outcome: Outcome) -> float:
    return float("inf") if outcome.retry_after is None else outcome.retry_after

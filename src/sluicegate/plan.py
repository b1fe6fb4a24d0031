"""Check, Plan, Outcome, Decision: the values that flow through sluicegate.

The values are tuples, so they are frozen and cheap. Times are integers in microseconds. Only Decision, which users
read, has seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, final, get_args

from sluicegate.clock import MICROSECOND
from sluicegate.errors import ConfigurationError, SluicegateError
from sluicegate.quota import Quota

new: Final = tuple.__new__
"""Makes one of the values below from a tuple of all its fields, in half the time of a call of its class."""

BAN: Final = "ban"
"""The algorithm of a ban's terms, which no rule can choose: see `sluicegate.algorithms.ban`."""

NEVER: Final = None
"""The `retry_after` of a request that no amount of waiting lets through: its cost is above the limit."""


Source = Literal["store", "local", "policy"]
"""Who made an outcome: the store, the local fallback in this process's memory, or a policy that counts nothing."""

FailurePolicy = Literal["local", "allow", "deny"]
"""What happens to a check while the store is unavailable: it is counted in this process, allowed, or refused."""

FAILURE_POLICIES: Final[tuple[str, ...]] = get_args(FailurePolicy)

LIMITED: Final = 429
UNAVAILABLE: Final = 503
DENIED: Final = 403


Handler = Callable[[Any], object]
Handlers = Handler | Sequence[Handler]
"""What `on_decision` may be: a function of a DecisionEvent (`sluicegate.observe.events`), or several."""


class Terms(NamedTuple):
    """The constant part of every check of one rule, computed at start-up. Compared and hashed by object identity."""

    name: str  # unique among the rules of a request; shown in header fields
    rule_id: str  # the first part of the budget's key: scope, algorithm, period
    algorithm: str  # the algorithm's own name; aliases are resolved
    params: tuple[int, ...]  # the algorithm's parameters; the first is always the limit
    window_us: int  # the time until a used-up limit is full again; shown in header fields
    quota: Quota  # the quota that these terms were made from
    count_denied: bool = False
    on_store_failure: str | None = None  # the rule's policy; None means the application's policy
    shadow: bool = False  # a shadow rule: it is counted and reported, and never refuses
    group: str = ""  # of a shadow rule: the name of its first quota; a group is charged as a whole or not at all
    refund_when: Callable[..., bool] | None = None  # says whether a response refunds the charge
    held: bool = False  # the charge is refunded when the response has ended
    cost_after: Callable[..., object] | None = None  # returns the actual cost when the response has ended
    unit: str | None = None  # what the quota counts; None means requests
    ban: Terms | None = None  # the ban that a refusal counts towards
    tier: str | None = None  # that has this quota, if the rule has tiers
    once: Terms | None = None  # the record of keys whose requests are charged once: see `sluicegate.rules.once`
    per: str | None = None  # of a record: the header that has the key
    message: str | None = None  # the text of a refusal, instead of the usual one
    on_denied: Callable[..., Any] | None = None  # the function that makes the response to a refusal

    @property
    def lasts(self) -> bool:
        """True if the charge is settled or released when the response has ended."""
        return self.held or self.cost_after is not None

    @property
    def limit(self) -> int:
        """The limit in units: the first of the algorithm's parameters."""
        return self.params[0]

    def __deepcopy__(self, memo: object) -> Terms:
        """Return the same object: terms are compared by identity, so a copy would not be equal."""
        return self


Terms.__eq__ = object.__eq__  # type: ignore[method-assign]
Terms.__hash__ = object.__hash__  # type: ignore[method-assign]


class Check(NamedTuple):
    """One rule for one identity at one cost."""

    terms: Terms
    identity: str
    cost: int

    @property
    def budget(self) -> tuple[str, str]:
        """What the check charges: one rule's budget of one identity."""
        return self.terms.rule_id, self.identity

    @property
    def group(self) -> Group:
        """The same for the checks of one shadow rule for one identity. Either all of them are charged or none."""
        return self.terms.shadow, self.terms.group, self.identity

    def __repr__(self) -> str:  # an identity is personal data and must not be logged
        return f"Check({self.terms.rule_id!r}, identity=…, cost={self.cost})"


Group = tuple[bool, str, str]
"""The checks that are charged together: see `Check.group`."""

Checks = tuple[Check, ...]
"""The checks of a plan."""


Network = Callable[[], str] | None
"""Returns the network that a request came from. A store calls it only when it has no room for an identity."""


@final
class Plan(NamedTuple):
    """The checks of one request. Each check has a different budget, and bans come last. Either all checks are charged
    or none. `charge=False` charges none.

    With `forced=True` each check is charged, allowed or not, up to its limit, because the units have already been used.
    """

    checks: tuple[Check, ...]
    charge: bool = True
    forced: bool = False
    network: Network = None


class Outcome(NamedTuple):
    """The result of one check. Times are in microseconds from now.

    If a quota is 10 per second and 6 units are used, a check at cost 1 has `limit` 10 and leaves `remaining` 3. A
    shadow check is always `allowed`; its `retry_after` is 0 if an enforced check would have passed, or else the time
    that an enforced check would have to wait.
    """

    allowed: bool
    limit: int
    remaining: int  # the units left after this request (never negative)
    retry_after: int | None  # the shortest wait after which the same cost passes (0 if it passed now), or NEVER
    reset_after: int  # the time until the limit is full again and the key may be deleted
    next_after: int  # the time until `remaining` next grows; 0 if nothing is used
    at: int = 0  # the time of the check on the store's clock; a refund uses it to find the charge
    source: Source = "store"


Outcomes = tuple[Outcome, ...]
"""One outcome for each check of a plan."""


@final
class Decision(NamedTuple):
    """The decision about one request: whether the request may pass, and the numbers for the client. A decision is true
    if it allows.

    The numbers belong to the binding rule. If rules refused, the binding rule is the refusing rule with the longest
    wait, or a ban if a ban is active. If all rules allowed, it is the rule with the smallest fraction of its limit
    left. A shadow rule is never binding. Times are in seconds.
    """

    allowed: bool
    checks: tuple[Check, ...]
    outcomes: tuple[Outcome, ...]

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def degraded(self) -> bool:
        """True if the store was unavailable, so that the local fallback or a policy decided at least one rule."""
        return any([outcome.source != "store" for outcome in self.outcomes])

    @property
    def unavailable(self) -> bool:
        """True if a rule refused because the store is unavailable (`on_store_failure="deny"`): 503, not 429."""
        return any([outcome.source == "policy" and not outcome.allowed for outcome in self.outcomes])

    @property
    def banned(self) -> bool:
        """True if a ban is active: the refusal comes from the ban, and perhaps from quotas as well."""
        pairs = zip(self.checks, self.outcomes, strict=True)
        return any([check.terms.algorithm == BAN and not outcome.allowed for check, outcome in pairs])

    @property
    def forbidden(self) -> bool:
        """True if the request was refused by the `deny` list: 403, and waiting does not help."""
        return not self.allowed and not self.outcomes

    @property
    def status(self) -> int:
        """The status of a refusal: 429; 503 if the store is unavailable; 403 if the `deny` list refused it."""
        return DENIED if self.forbidden else UNAVAILABLE if self.unavailable else LIMITED

    @property
    def by_rule(self) -> dict[str, Outcome]:
        """The outcome of each rule by the rule's name, in rule order. Of a ban that two keys share: the last."""
        return {check.terms.name: outcome for check, outcome in zip(self.checks, self.outcomes, strict=True)}

    @property
    def would_refuse(self) -> tuple[str, ...]:
        """The names of the shadow rules that would have refused this request."""
        pairs = zip(self.checks, self.outcomes, strict=True)
        return tuple([check.terms.name for check, outcome in pairs if check.terms.shadow and outcome.retry_after != 0])

    @property
    def binding(self) -> tuple[Check, Outcome] | None:
        """The check of the binding rule, with its outcome; None if no rule applied."""
        pairs = [pair for pair in zip(self.checks, self.outcomes, strict=True) if not pair[0].terms.shadow]
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
        """The units that the binding rule still allows after this request; None when no rule applied."""
        pair = self.binding
        return None if pair is None else pair[1].remaining

    @property
    def retry_after(self) -> float | None:
        """The seconds until the same request passes if no others come: 0.0 if allowed, None if it never passes, because
        its cost is above the limit or the `deny` list refused it.
        """
        pairs = zip(self.checks, self.outcomes, strict=True)
        waits = [outcome.retry_after for check, outcome in pairs if not check.terms.shadow]
        if self.forbidden or any(wait is NEVER for wait in waits):
            return None
        return max((wait for wait in waits if wait is not None), default=0) / MICROSECOND

    @property
    def reset_after(self) -> float:
        """The seconds until the binding rule's limit is full again."""
        pair = self.binding
        return 0.0 if pair is None else pair[1].reset_after / MICROSECOND


class RateLimitExceeded(SluicegateError):
    """A request was refused. `decision` has the rule and the time to wait."""

    code = "SG021"

    def __init__(self, decision: Decision) -> None:
        if not hasattr(decision, "retry_after"):
            expected = "give the decision that a limiter returned, as limiter.hit(…) does"
            given = type(decision).__name__  # the value may name the client
            raise ConfigurationError("RateLimitExceeded", given, problem="not a decision", expected=expected)
        self.decision = decision
        wait = decision.retry_after
        problem, when = f"rate limit {decision.rule!r} exceeded", f"retry after {str(wait).removesuffix('.0')} seconds"
        if decision.forbidden:
            problem, when = "refused by the deny list", "it can never pass"
        elif wait is None:
            when = "it can never pass: its cost is above the limit"
        super().__init__(f"{problem}; {when} [{self.code}]")


FORBIDDEN: Final = Decision(allowed=False, checks=(), outcomes=())
"""The decision about a client on the `deny` list: no rule is checked, and no store is called."""


def strikers(checks: tuple[Check, ...], ban: Check) -> list[bool]:
    """Return for each check of a plan whether its refusal is a strike towards this ban of this identity."""
    return [terms.ban is ban.terms and identity == ban.identity for terms, identity, _ in checks]


def charged(plan: Plan, outcomes: tuple[Outcome, ...]) -> list[tuple[Check, Outcome]]:
    """Return the charges of a plan that a store made and can refund: none unless every check was allowed."""
    if not plan.charge or not all([outcome.allowed for outcome in outcomes]):
        return []
    pairs = list(zip(plan.checks, outcomes, strict=True))
    refused = shadow_refusals(pairs)
    return [
        (check, outcome)
        for check, outcome in pairs
        if check.cost and outcome.source == "store" and check.group not in refused
    ]


def shadow_refusals(pairs: Iterable[tuple[Check, Outcome]]) -> set[Group]:
    """Return the groups of the shadow checks that an enforced rule would have refused: nothing of them is charged."""
    return {check.group for check, outcome in pairs if check.terms.shadow and outcome.retry_after != 0}


def uncharged(decision: Decision) -> Decision:
    """Return a decision that charged nothing: the cost of each check is 0."""
    return decision._replace(checks=tuple([check._replace(cost=0) for check in decision.checks]))


def in_shadow(outcome: Outcome, *, passed: bool) -> Outcome:
    """Make the outcome of a shadow check from the outcome of a normal check. `passed` says whether the normal check
    passed. The result is never a refusal.
    """
    return outcome._replace(allowed=True, retry_after=0 if passed else outcome.retry_after)


def _wait(outcome: Outcome) -> float:
    return float("inf") if outcome.retry_after is None else outcome.retry_after

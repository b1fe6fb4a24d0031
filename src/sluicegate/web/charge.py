"""A charge inside a view: a rule that the view itself charges, joined with what was decided about the request before.

An adapter finds the state and the endpoint of the request, and makes a `Charge`. The charge runs on the gate of the
request, without the budgets that the request was charged for already. If it refuses, the earlier charges of the request
are given back. Then it raises RateLimitExceeded, which the adapter answers like its own refusals.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, Unpack, cast

from sluicegate.awaiting import label_of
from sluicegate.errors import NotEnforcedError, RuleError
from sluicegate.plan import BAN, Check, Decision, Plan, RateLimitExceeded
from sluicegate.rules.key import Caller
from sluicegate.rules.rule import QuotaFunction
from sluicegate.rules.terms import QuotaSpec
from sluicegate.web.bound import Bound
from sluicegate.web.charges import Charges, held, kept, made, owed, uncharged
from sluicegate.web.endpoint import Endpoint, scope_of, short_name
from sluicegate.web.gate import AsyncGate, Gate, Undecided
from sluicegate.web.marks import Mark, RuleOptions, make_mark
from sluicegate.web.request_state import RequestState
from sluicegate.web.settlement import AsyncSettlement, HeldCharges, Settlement

AnyQuota = QuotaSpec | QuotaFunction

_RULES: Final = 1024  # that views of one application charge


class LateOptions(RuleOptions, total=False):
    """The options of a rule that is charged after the middleware's: those of `@limit`, except `override_defaults`."""

    scope: str | None
    name: str | None


class ChargeOptions(LateOptions, total=False):
    """The options of a charge inside a view. `refund_earlier=False`: if it refuses, the earlier charges stay."""

    refund_earlier: bool


class Charged(Decision):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]  # final for users
    """The decision of a charge. As a `with` block it releases the slot of a concurrency limit at the end of the block.

    Without a block, the slot is released when the response has ended.
    """

    _state: RequestState | None = None  # None: nothing was charged
    _taken: Decision  # the decision as the settlement knows it
    _slots: Sequence[HeldCharges] = ()
    _call: Callable[..., Any] | None = None  # calls an async function, where this is needed in sync code

    def __enter__(self) -> Self:
        if self._state is not None and self._state.settlement is not None:
            self._slots = self._state.settlement.keep(self._taken)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        release = self._release()
        if release is not None:
            _ = release() if self._call is None else self._call(release)

    async def leave(self) -> None:
        """Do the same as `__exit__` in async code."""
        release = self._release()
        released = None if release is None else release()
        if released is not None:
            await released

    def for_request(self, state: RequestState, taken: Decision) -> Self:
        """Set the request that was charged. Return this decision."""
        self._state, self._taken = state, taken
        return self

    def called_by(self, call: Callable[..., Any]) -> Self:
        """Set the function that calls an async function in sync code. Return this decision."""
        self._call = call
        return self

    def _release(self) -> Callable[[], Awaitable[None] | None] | None:
        """Return the function that releases the slots of the block; None if there are none."""
        if not self._slots or self._state is None or self._state.settlement is None:
            return None
        self._state.regain([pair for each in self._slots for pair in each.charges])
        return partial(self._state.settlement.release, self._slots)


class AsyncCharge:
    """A charge that is made when it is awaited, or when its `async with` block begins."""

    __slots__ = ("_charged", "_run")

    def __init__(self, run: Coroutine[Any, Any, Charged]) -> None:
        self._run = run  # a coroutine: if it is never awaited, Python warns

    def __await__(self) -> Generator[Any, Any, Decision]:
        return self._run.__await__()

    async def __aenter__(self) -> Decision:
        self._charged = await self._run
        return self._charged.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._charged.leave()


class ChargedRule(NamedTuple):
    """The rule of a charge, for any view. Equal arguments have the same mark."""

    mark: Mark
    refund_earlier: bool

    @classmethod
    def of(cls, what: str, quota: AnyQuota, **options: Unpack[ChargeOptions]) -> ChargedRule:
        """Make it from the arguments of a charge. Raises ConfigurationError for wrong arguments."""
        given = {name: tuple(value) if isinstance(value, (list, set)) else value for name, value in options.items()}
        quota = tuple(quota) if isinstance(quota, list) else quota
        try:
            hash((quota, *given.values()))
        except TypeError:
            return _make(what, quota, **given)
        return _known(what, quota, **given)


def _make(what: str, quota: Any, *, refund_earlier: object = True, **options: Any) -> ChargedRule:
    if "override_defaults" in options:
        problem = "the default limits are charged already"
        expected = "leave it out, or write @limit(…, override_defaults=True) on the view"
        raise RuleError(what, "override_defaults", problem=problem, expected=expected)
    if not isinstance(refund_earlier, bool):
        problem, expected = "neither True nor False", "give True or False"
        raise RuleError("refund_earlier", refund_earlier, problem=problem, expected=expected)
    return ChargedRule(make_mark(quota, what, ("refund_earlier",), **options), refund_earlier)


# Bounded: a lambda that is written in the call is another function each time. `typed`: True is not the cost 1.
_known = lru_cache(maxsize=512, typed=True)(_make)


def bounds_of(gate: Gate | AsyncGate, mark: Mark, view: Endpoint) -> tuple[Bound, ...]:
    """Return the rule that a view charges. Its budget is separate from the budgets of `@limit` and of other quotas.

    `view` has only a label and a route. The gate keeps the rules, because they live as long as the application.
    """
    found = gate.charged.get((mark, view))
    if found is None:
        if len(gate.charged) >= _RULES:  # a lambda that is written in the call is another function each time
            gate.charged.clear()
        scope = scope_of(view._replace(label=f"{view.label}~{text_of(mark)}"))
        found = gate.charged[mark, view] = gate.bind_rule(mark.rule_for(short_name(view), scope))
    return found


def text_of(mark: Mark) -> str:
    """Return the quota of a mark as text, or the name of its function."""
    quota = mark.rule.quota
    quotas = quota if isinstance(quota, tuple) else (quota,)
    return label_of(quota) if callable(quota) else "; ".join(map(str, quotas))


def unlimited() -> Charged:
    """Return the decision of a charge where limits are off."""
    return Charged(allowed=True, checks=(), outcomes=())


class Charge:
    """One charge for one request: everything except the calls of the store."""

    def __init__(self, rule: ChargedRule, state: RequestState, endpoint: Endpoint, *, is_message: bool = False) -> None:
        self.bounds = bounds_of(state.gate, rule.mark, endpoint._replace(view=None, marks=(), names=()))
        self._label = endpoint.label
        self._state = state
        self._is_message = is_message  # a message of a WebSocket: each is charged, whatever was charged before
        self._gives_back = rule.refund_earlier
        self._known: Charges = []  # what the request was charged already, under this rule

    def run(self, caller: Caller) -> Charged:
        """Charge the rule. Raises RateLimitExceeded if it refuses."""
        try:
            decision = cast("Gate", self._state.gate).finish(None, caller, self.bounds, trim=self._trim)
        except Undecided as error:
            decision = error.decision
        back = self._join(decision)
        if back:
            cast("Settlement", self._settlement()).give_back(back)
        return self._conclude(decision)

    async def run_async(self, caller: Caller) -> Charged:
        """Do the same as `run`, with awaits. Once begun, giving back completes even if the task is cancelled."""
        try:
            decision = await cast("AsyncGate", self._state.gate).finish(None, caller, self.bounds, trim=self._trim)
        except Undecided as error:
            decision = error.decision
        back = self._join(decision)
        if back:
            await cast("AsyncSettlement", self._settlement()).give_back(back)
        return self._conclude(decision)

    def _trim(self, plan: Plan) -> Plan:
        """Return the plan without the budgets that this request was charged for already."""
        if not self._state.can_hold and any([check.terms.held for check in plan.checks]):
            problem = "the response has ended, so nothing would release the slot"
            raise NotEnforcedError("charge in", self._label, problem=problem, expected="use limiter.hold(…)")
        earlier = {_budget(check): (check, outcome) for check, outcome in self._earlier()}
        self._known = [earlier[_budget(check)] for check in plan.checks if _budget(check) in earlier]
        if not self._known:
            return plan
        checks = tuple([check for check in plan.checks if _budget(check) not in earlier])
        bans_only = all([check.terms.algorithm == BAN for check in checks])
        return plan._replace(checks=() if bans_only else checks)

    def _join(self, decision: Decision | None) -> Charges:
        """Add the decision to the state of the request. Return the charges to give back.

        The request is still allowed after a refusal: the view may catch it. If not, the adapter refuses.
        """
        state = self._state
        if decision is None:
            return []
        if self._is_message:  # the fields were sent with the handshake, and no response will refund the charge
            slots = held(owed(decision))
            if slots:
                state.owe(slots)
            return []
        if decision.allowed:
            state.note(decision)
            return []
        inside = [] if state.settlement is None else [outcome for _, outcome in state.settlement.in_blocks]
        earlier = [pair for pair in self._earlier() if all([pair[1] is not each for each in inside])]
        back = made(earlier) if self._gives_back else []
        state.regain(back)  # first: after a cancellation nothing is given back twice
        if decision.outcomes:
            state.note(uncharged(decision))
        return back

    def _conclude(self, decision: Decision | None) -> Charged:
        """Return the decision about this charge alone. Raises RateLimitExceeded if it refuses."""
        shown = Decision(allowed=True, checks=(), outcomes=()) if decision is None else self._as_shown(decision)
        if not shown.allowed:
            raise RateLimitExceeded(shown)
        checks, outcomes = zip(*self._known, strict=True) if self._known else ((), ())
        charged = Charged(allowed=True, checks=(*shown.checks, *checks), outcomes=(*shown.outcomes, *outcomes))
        return charged if decision is None else charged.for_request(self._state, decision)

    def _as_shown(self, decision: Decision) -> Decision:
        """Return the decision with the names that the header fields have."""
        checks, state = decision.checks, self._state
        if self._is_message or state.decision is None or not checks:
            return decision
        pairs = zip(checks, state.decision.checks[-len(checks) :], strict=True)
        return decision._replace(checks=tuple([each._replace(terms=shown.terms) for each, shown in pairs]))

    def _earlier(self) -> Charges:
        """Return what the request is charged now, before this charge."""
        return [] if self._is_message else kept(self._state.decision)

    def _settlement(self) -> Settlement | AsyncSettlement:
        return self._state.settlement or self._state.gate.settlement()


async def run_async(charge: Charge | None, caller: Caller) -> Charged:
    """Run a charge; None allows, because limits are off."""
    return unlimited() if charge is None else await charge.run_async(caller)


run_async.__qualname__ = "charge"  # Python's warning about a forgotten await shows it


def _budget(check: Check) -> tuple[str, str]:
    return check.terms.rule_id, check.identity

"""A charge inside a view: a rule that the view itself charges, joined with what was decided about the request before.

An adapter finds the state and the endpoint of the request, and makes a `Charge`. The charge runs on the gate of the
request, without the budgets that the request was charged for already. If it refuses, the earlier charges of the request
are given back. Then it raises RateLimitExceeded, which the adapter answers like its own refusals.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Hashable, Sequence
from functools import lru_cache, partial
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self, Unpack, cast

from sluicegate.errors import AsyncMismatchError, NotEnforcedError, RuleError, check_flag
from sluicegate.identity import digest
from sluicegate.plan import BAN, Check, Checks, Decision, Outcome, Plan, RateLimitExceeded, uncharged
from sluicegate.rules.key import Caller
from sluicegate.rules.rule import QuotaFunction
from sluicegate.rules.terms import QuotaSpec
from sluicegate.rules.tiers import Tiers
from sluicegate.runtime.awaiting import label_of
from sluicegate.stores import Mode
from sluicegate.web.bound import Bound, Bounds
from sluicegate.web.charges import Charges, kept, lasting, log, made, owed
from sluicegate.web.endpoint import Arrival, Endpoint, scope_of, short_name
from sluicegate.web.gate import AsyncGate, Gate, Undecided
from sluicegate.web.marks import EXEMPT, LateOptions, Mark, make_mark
from sluicegate.web.request_state import NO_MARKS, RequestState
from sluicegate.web.settlement import AsyncSettlement, HeldCharges, Settlement

AnyQuota = QuotaSpec | QuotaFunction

_RULES: Final = 1024  # that are kept: the application's views have fewer
_UNREADABLE: Final = re.compile(r"<locals>\.|[^A-Za-z0-9_.]")  # in the label of a view
_LONGEST: Final = 41  # characters of a label in a scope: with a digest, the scope is as long as a plain one may be
_CHARGE: Final = re.compile(r"([A-Za-z0-9_.]*)-[A-Za-z0-9_-]{22}:")


class ChargeOptions(LateOptions, total=False):
    """The options of a charge inside a view. `refund_earlier=False`: if it refuses, the earlier charges stay."""

    refund_earlier: bool


class Charged(Decision):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]  # final for users
    """The decision of a charge. As a `with` block it releases the slot of a concurrency limit at the end of the block.

    Without a block, the slot is released when the response has ended.
    """

    _state: RequestState | None = None  # None: nothing was charged
    _own: Sequence[Outcome] = ()  # of what this charge took, and no earlier one
    _slots: Sequence[HeldCharges] = ()
    _call: Callable[..., object] | None = None  # calls an async function, where this is needed in sync code

    def __enter__(self) -> Self:
        if self._state is not None and self._state.settlement is not None:
            with self._state.gate.lock:
                self._slots = self._state.settlement.keep(self.outcomes, self._own)
        if not self._slots and any([check.terms.held and check.cost for check in self.checks]):
            problem, expected = "its slot was released already", "make a charge for each block"
            raise NotEnforcedError("charge in", "a with block", problem=problem, expected=expected)
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

    def settle(self, used: int) -> None:
        """Note how many units this charge has cost so far, in place of what `cost_after` would return. The last number
        counts, when the response has ended.
        """
        if self._state is not None and self._state.settlement is not None:
            self._state.settlement.settle(used, own=self._own)

    def for_request(self, state: RequestState, own: Sequence[Outcome]) -> Self:
        """Set the request that was charged. Return this decision."""
        self._state, self._own = state, own
        return self

    def called_by(self, call: Callable[..., object]) -> Self:
        """Set the function that calls an async function in sync code. Return this decision."""
        self._call = call
        return self

    def _release(self) -> Callable[[], Awaitable[None] | None] | None:
        """Return the function that releases the slots of the block; None if there are none."""
        if not self._slots or self._state is None or self._state.settlement is None:
            return None
        with self._state.gate.lock:
            for each in self._slots:
                each.blocks -= 1
            over = [each for each in self._slots if each.in_block and not each.blocks]
            self._state.regain([pair for each in over for pair in each.charges])
        return partial(self._state.settlement.release, over) if over else None


class AsyncCharge:
    """A charge that is made when it is awaited, or when its `async with` block begins."""

    __slots__ = ("_charged", "_name", "_place", "_run")

    def __init__(self, run: Coroutine[Any, Any, Charged]) -> None:
        self._run = run  # a coroutine: if it is never awaited, Python warns
        self._name: str = getattr(run, "__qualname__", "charge")
        caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # of the function that makes the charge
        self._place: tuple[str, int] | None = caller.f_code.co_filename, caller.f_lineno  # None: it was begun

    def __await__(self) -> Generator[Any, Any, Decision]:
        return self._begun().__await__()

    async def __aenter__(self) -> Decision:
        self._charged = await self._begun()
        return self._charged.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._charged.leave()

    if not TYPE_CHECKING:  # a type checker knows that this is no plain block

        def __enter__(self) -> NoReturn:
            place, name = self._shown_place(), self._name
            self._begun().close()
            problem, expected = "in a plain with block, which cannot wait", f"write async with {name}(…)"
            raise AsyncMismatchError(f"{name} at", place, problem=problem, expected=expected)

        def __exit__(self, *_: object) -> None:
            """Never called. Python looks for it before it calls `__enter__`."""

    def __del__(self) -> None:
        if self._place is not None:
            name = self._name
            text = "sluicegate: %s: %s was not awaited, so nothing was charged; write await %s(…) [SG009]"
            log.error(text, self._shown_place(), name, name)

    def _begun(self) -> Coroutine[Any, Any, Charged]:
        self._place = None
        return self._run

    def _shown_place(self) -> str:
        return "{}, line {}".format(*(self._place or ()))


class ChargedRule(NamedTuple):
    """The rule of a charge, for any view."""

    mark: Mark
    refund_earlier: bool
    lasts: bool  # the next call with the same arguments has this rule again

    @classmethod
    def of(cls, what: str, quota: AnyQuota, **options: Unpack[ChargeOptions]) -> ChargedRule:
        """Make it from the arguments of a charge. Raises ConfigurationError for wrong arguments."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, (list, set)) else value for name, value in options.items()
        }
        quota = tuple(quota) if isinstance(quota, list) else quota
        known: Hashable = (what, _sameness(quota), *[(name, _sameness(value)) for name, value in given.items()])
        try:
            found = _known.get(known)
        except TypeError:  # a part of it cannot be hashed
            known = found = None
        if found is not None:
            return found
        lasts = known is not None and all(map(_lasts, (quota, *given.values())))
        if "override_defaults" in given:
            problem = "the default limits are charged already"
            expected = "leave it out, or write @limit(…, override_defaults=True) on the view"
            raise RuleError(what, "override_defaults", problem=problem, expected=expected)
        refund_earlier = given.pop("refund_earlier", True)
        check_flag("refund_earlier", refund_earlier, error=RuleError)
        made = cls(make_mark(quota, what, ("refund_earlier",), **given), refund_earlier, lasts)
        if lasts:
            if len(_known) >= _RULES:
                _known.clear()
            _known[known] = made
        return made

    def charge(self, state: RequestState, endpoint: Endpoint, *, is_message: bool = False) -> Charge:
        """Return the charge of this rule for one request to an endpoint."""
        bounds = bounds_of(state.gate, self, endpoint._replace(view=None, marks=(), names=()))
        return Charge(bounds, state, endpoint.label, is_message=is_message, gives_back=self.refund_earlier)


_known: Final[dict[Hashable, ChargedRule]] = {}


def _sameness(value: object) -> Hashable:
    """Return a value that is equal for two arguments of a charge only if they mean the same.

    A function that is written in the call is another object each time, but its code is the same.
    """
    if isinstance(value, FunctionType) and _lasts(value):
        return value.__code__
    if isinstance(value, tuple):
        return tuple, *map(_sameness, value)
    return type(value), value  # True is not 1


def _lasts(value: object) -> bool:
    """True for an argument that has nothing of one request: a closure, a method or a partial may have."""
    if isinstance(value, tuple):
        return all(map(_lasts, value))
    if isinstance(value, FunctionType):
        return value.__closure__ is None and value.__defaults__ is None and value.__kwdefaults__ is None
    return not callable(value) or isinstance(value, (type, Tiers))


def bounds_of(gate: Gate | AsyncGate, rule: ChargedRule, view: Endpoint) -> tuple[Bound, ...]:
    """Return the rule that a view charges. Its budget is separate from the budgets of `@limit`, and of charges with
    another quota or another key.

    `view` has only a label and a route. The gate keeps the rules, because they live as long as the application.
    """
    mark = rule.mark
    found = gate.charged.get((mark, view))
    if found is None:
        text = "~".join([text_of(mark), *([] if mark.rule.key is None else [_shown(mark.rule.key)])])
        whole = scope_of(view._replace(label=f"{view.label}~{text}"))
        scope = f"{short_label(view.label)}-{digest(whole)}"
        found = gate.bind_rule(mark.rule_for(short_name(view), scope))
        if rule.lasts:
            if len(gate.charged) >= _RULES:
                gate.charged.clear()
            gate.charged[mark, view] = found
    return found


def short_label(label: str) -> str:
    """Return the label of a view as the ids of its charges show it."""
    return _UNREADABLE.sub("", label)[-_LONGEST:]


def view_of(rule_id: str) -> str | None:
    """Return the view that has made a charge with this id of a rule, for people; None for other rules.

    >>> view_of("shop.orders-7Gb0o9Qe_P1kzJrX2YvWmA:sw60"), view_of("login:sw60")
    ('shop.orders', None)
    """
    found = _CHARGE.match(rule_id)
    return None if found is None else found[1]


def text_of(mark: Mark) -> str:
    """Return the quota of a mark as text, or the name of its function."""
    return _shown(mark.rule.quota)


def _shown(part: object) -> str:
    """Return the text of a quota or a key, as a scope has it."""
    if isinstance(part, tuple):
        return "; ".join(map(_shown, part))
    return label_of(part) if callable(part) else str(part)


def unlimited() -> Charged:
    """Return the decision of a charge where limits are off."""
    return Charged(allowed=True, checks=(), outcomes=())


class Charge:
    """One charge for one request: everything except the calls of the store."""

    def __init__(
        self,
        bounds: Bounds,
        state: RequestState,
        label: str,
        *,
        is_message: bool = False,
        gives_back: bool = True,
        mode: Mode = "charge",
    ) -> None:
        self.bounds = bounds
        self._mode: Mode = mode
        self._state = state
        self._label = label  # of the view, for errors
        self._is_message = is_message  # of a WebSocket: each is charged, whatever was charged before
        self._gives_back = gives_back  # a refusal gives back what the request was charged before
        self._known: Charges = []  # what the request was charged already, under this rule
        self._looser: Charges = []  # what it was charged in the same budgets under a higher limit: that is given back

    def run(self, caller: Caller) -> Charged:
        """Charge the rule. Raises RateLimitExceeded if it refuses."""
        gate, settlement = cast("Gate", self._state.gate), cast("Callable[[], Settlement]", self._settlement)

        def before(given: Checks) -> Checks:
            checks = self._trim(given)
            if self._looser:
                self._state.regain(self._looser)  # first: after a cancellation nothing is given back twice
                settlement().refund(self._looser)
            return checks

        try:
            decision = gate.decide(caller, self.bounds, before, mode=self._mode)
        except Undecided as error:
            decision = error.decision
        back, shown = self._join(decision)
        if back:
            settlement().give_back(back)
        if self._looser and not shown.allowed and not self._gives_back:
            self._state.note(gate.limiter.run(self._again()))
        return self._conclude(shown)

    async def run_async(self, caller: Caller) -> Charged:
        """Do the same as `run`, with awaits. Once begun, giving back completes even if the task is cancelled."""
        gate, settlement = cast("AsyncGate", self._state.gate), cast("Callable[[], AsyncSettlement]", self._settlement)

        async def before(given: Checks) -> Checks:
            checks = self._trim(given)
            if self._looser:
                self._state.regain(self._looser)  # first: after a cancellation nothing is given back twice
                await settlement().refund(self._looser)
            return checks

        try:
            decision = await gate.decide(caller, self.bounds, before, mode=self._mode)
        except Undecided as error:
            decision = error.decision
        back, shown = self._join(decision)
        if back:
            await settlement().give_back(back)
        if self._looser and not shown.allowed and not self._gives_back:
            self._state.note(await gate.limiter.run(self._again()))
        return self._conclude(shown)

    def _trim(self, given: Checks) -> Checks:
        """Return the checks without the budgets that this request was charged for already, with the names that the
        header fields will have. What is charged again under a lower limit is in `_looser`: it is given back first.
        """
        if any([check.terms.lasts for check in given]):
            self._check_lasts()
        if self._is_message and any([check.terms.cost_after is not None for check in given]):
            problem, expected = "a message has no response that tells the cost", "use limiter.reserve(…)"
            raise RuleError("charge in", self._label, problem=problem, expected=expected)
        charges = self._earlier()
        earlier, taken = {check.budget: (check, outcome) for check, outcome in charges}, made(charges)
        checks: list[Check] = []
        for check in given:
            pair = earlier.get(check.budget)
            if pair is not None and check.terms.limit >= pair[0].terms.limit:
                self._known.append(pair)
                continue
            if pair in taken and not check.terms.held:
                self._looser.append(pair)
            checks.append(check)
        if all([check.terms.algorithm == BAN for check in checks]):
            return ()
        return tuple(checks) if self._is_message else self._state.named(checks)

    def _join(self, decision: Decision | None) -> tuple[Charges, Decision]:
        """Add the decision to the state of the request. Return the charges to give back, and the decision.

        The request is still allowed after a refusal: the view may catch it. If not, the adapter refuses.
        """
        state = self._state
        if decision is None:
            return [], NOTHING
        with state.gate.lock:  # a view may charge in several threads
            if decision.allowed:
                state.replace(self._looser, made(list(zip(decision.checks, decision.outcomes, strict=True))))
            if self._is_message or not state.can_refuse:  # no response will refund a charge, or show it
                later = lasting(owed(decision))
                if later:
                    state.owe(later)
                if decision.allowed and not self._is_message:
                    state.join(decision)
                return [], decision
            if decision.allowed:
                state.note(decision)
                return [], decision
            inside = [] if state.settlement is None else [outcome for _, outcome in state.settlement.in_blocks]
            earlier = [pair for pair in self._earlier() if all([pair[1] is not each for each in inside])]
            back = [pair for pair in made(earlier) if not pair[0].terms.count_denied] if self._gives_back else []
            state.regain(back)  # first: after a cancellation nothing is given back twice
            if decision.outcomes:
                state.note(uncharged(decision)._replace(allowed=True))
            return back, decision

    def _conclude(self, shown: Decision) -> Charged:
        """Return the decision about this charge alone. Raises RateLimitExceeded if it refuses."""
        if not shown.allowed:
            raise RateLimitExceeded(shown)
        if any([check.terms.lasts for check in shown.checks]):
            self._check_lasts()
        checks, outcomes = zip(*self._known, strict=True) if self._known else ((), ())
        charged = Charged(allowed=True, checks=(*shown.checks, *checks), outcomes=(*shown.outcomes, *outcomes))
        return charged.for_request(self._state, shown.outcomes)

    def _again(self) -> Plan:
        """Return the plan that charges again what was given back for a stricter rule, which has refused."""
        return Plan(tuple([check for check, _ in self._looser]))

    def _check_lasts(self) -> None:
        """Raise NotEnforcedError for a slot that nothing would release, or a cost that nothing would settle."""
        if not self._state.can_hold:
            problem = "the response has ended, so nothing would release the slot or settle the cost"
            expected = "use limiter.hold(…) or limiter.reserve(…)"
            raise NotEnforcedError("charge in", self._label, problem=problem, expected=expected)

    def _earlier(self) -> Charges:
        """Return what the request is charged now, before this charge."""
        return [] if self._is_message else kept(self._state.decision)

    def _settlement(self) -> Settlement | AsyncSettlement:
        return self._state.settlement or self._state.gate.settlement()


class MarkCharge(Charge):
    """The charge of marks that the adapter did not find before it called the view.

    `bounds` are the rules of the marks, with the budgets that they have where the adapter finds the view.
    """

    def __init__(self, bounds: Bounds, state: RequestState, label: str, *, marks: Collection[Mark]) -> None:
        super().__init__(bounds, state, label)
        self._undecided = frozenset(marks)
        # Before the charge: of several calls at the same time one is charged. If each were, one that is refused would
        # give back what another was charged, whose view runs.
        state.note_marks(marks)

    @classmethod
    def of(cls, state: RequestState, arrival: Arrival) -> MarkCharge | None:
        """Return the charge of those marks that the request was not charged for; None if there are none."""
        endpoint, marks = arrival
        left = {mark: placed for mark, placed in zip(marks, endpoint.marks, strict=True) if mark not in state.enforced}
        if EXEMPT in left:
            state.note_marks(left)
            return None
        if not left:
            return None
        return cls(_bounds_of_marks(state.gate, endpoint, tuple(left.values())), state, endpoint.label, marks=left)

    def run(self, caller: Caller) -> Charged:
        try:
            return super().run(caller)
        finally:
            self._state.enforced -= self._undecided

    async def run_async(self, caller: Caller) -> Charged:
        try:
            return await super().run_async(caller)
        finally:
            self._state.enforced -= self._undecided

    def _conclude(self, shown: Decision) -> Charged:
        charged = super()._conclude(shown)  # raises for a refusal
        # Only now the note stays. A caller may catch a refusal: a second call of the view is then charged again.
        self._undecided = NO_MARKS
        return charged


@lru_cache(maxsize=1024)
def _bounds_of_marks(gate: Gate | AsyncGate, endpoint: Endpoint, marks: tuple[Mark, ...]) -> Bounds:
    return gate.bind_own(endpoint, marks)


NOTHING: Final = Decision(allowed=True, checks=(), outcomes=())
"""The decision where there was nothing to charge."""


async def run_async(charge: Charge | None, caller: Caller) -> Charged:
    """Run a charge; None allows, because limits are off."""
    return unlimited() if charge is None else await charge.run_async(caller)


run_async.__qualname__ = "charge"  # Python's warning about a forgotten await shows it

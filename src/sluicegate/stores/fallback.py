"""Fallback: a wrapper that decides when its store fails.

When the store fails, a circuit breaker stops calling it and a local fallback decides. Only StoreError is caught: any
other exception is a bug in the store, and must not admit every request. A charge is never sent twice. While the breaker
is open, no request waits for the store: a probe runs a request's plan without charging it, in its own thread or task.

A request that finds a probe due starts it. Between requests, a watch of the breaker starts the probes, until the store
has answered one. So the store is found again without traffic. With a clock that is moved by hand there is no watch,
because time stands still between requests.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context
from functools import partial
from math import inf
from typing import Any, Final, Generic, TypeVar
from weakref import WeakMethod

from sluicegate.clock import MICROSECOND, monotonic
from sluicegate.errors import ConfigurationError, StoreError, cause_text
from sluicegate.observe.status import Status, describe
from sluicegate.plan import Check, Checks, Decision, Outcome, Outcomes, Plan, Terms, new
from sluicegate.runtime import fork
from sluicegate.stores import AsyncStore, Hit, Origin, Store, network_of
from sluicegate.stores.breaker import LONGEST_US, Attempt, Breaker, Breakers
from sluicegate.stores.deny_cache import MASK, Refusals
from sluicegate.stores.local_fallback import LocalFallback
from sluicegate.stores.threads import start_thread

_QUIET: Final = 60.0  # seconds without another line about failures of single plans under the same rule
_MAX_REPORTED: Final = 4096  # rules: those made for each request would grow without bound
_NO_ANSWER: Final[Outcomes] = ()
_LATE: Final = 0.001  # seconds: a watch wakes when the probe is due, and not just before

_AnyStore = TypeVar("_AnyStore", Store, AsyncStore)

log = logging.getLogger("sluicegate")


class _Fallback(ABC, Generic[_AnyStore]):
    """What the sync and the async fallback share."""

    _store: _AnyStore

    def __init__(self, *, breakers: Breakers, local_fallback: LocalFallback, owned: bool = True) -> None:
        self._breakers = breakers
        self._breaker = breakers.whole if breakers.single else None
        self._local_fallback = local_fallback
        self._owned = owned
        self._reported: dict[tuple[str, str], float] = {}  # when a failure under a rule may be logged again
        self._last_error: str | None = None

    def describe(self) -> Status:
        """Return the status of the store inside, with its circuits and what the local fallback has decided."""
        circuits, local = self._breakers.describe(), self._local_fallback
        return describe(self._store)._replace(
            available=all([circuit.state != "open" for circuit in circuits]),
            circuits=circuits,
            degraded_decisions=local.decisions,
            degraded_allowed=local.allowed,
            last_error=self._last_error,
        )

    def remembered(self, identity: str) -> set[str]:
        """Return the ids of the rules under which this process counts for an identity while the store is down."""
        return self._local_fallback.remembered(identity)

    @abstractmethod
    def _watch(self, plan: Plan, breaker: Breaker) -> None:
        """Begin to probe the store of an open breaker between requests, if nothing does it already."""

    @contextmanager
    def _asking(self, plan: Plan) -> Generator[bool]:
        """Return a `with` block for a call of the store that is no decision. It gets True if the store is available. It
        reports and suppresses a failure of the store.
        """
        breaker = self._breaker_of(plan)
        closed = breaker.closed
        try:
            yield closed != 0
        except StoreError as error:
            self._failed(error, breaker, closed=closed, plan=plan)

    @contextmanager
    def _forgetting(self, rule_id: str, identity: str) -> Generator[None]:
        """Drop a budget in the local fallback. Return a `with` block to drop it in the store. It raises a failure."""
        self._local_fallback.forget(rule_id, identity)
        breaker, attempt = self._breakers.of(identity), None
        closed = breaker.closed
        if not closed:
            attempt = breaker.trial(charge=False) or breaker.probe()
            if attempt is None and breaker.needs_probe:
                raise self._circuit_open(breaker)
            # Without an attempt the store has replied to a probe: this call may succeed, but it proves nothing.
        try:
            with attempt or nullcontext():
                yield
        except StoreError as error:
            if attempt is None:
                self._failed(error, breaker, closed=closed)
            raise

    def _breaker_of(self, plan: Plan) -> Breaker:
        return self._breakers.of(*_identities(plan))

    def _failed(self, error: StoreError, asked: Breaker, *, closed: int, plan: Plan | None = None) -> None:
        """Report a failure to the breaker of what it concerns, or to the log if no breaker is concerned."""
        if closed:  # else the error may only say that the circuit is open
            self._last_error = cause_text(error.cause)
        breaker = self._breakers.failed(error, asked, closed=closed, charge=plan is not None and plan.charge)
        if plan is not None and breaker is not None:
            self._watch(plan, breaker)
        elif plan is not None:
            self._report(error, plan)

    def _failed_over(self, plan: Plan, error: StoreError, asked: Breaker, *, closed: int) -> Outcomes:
        """Report a failure, and let the local fallback decide."""
        self._failed(error, asked, closed=closed, plan=plan)
        return self._local_fallback.answer(plan, error)

    def healthy(self, terms: tuple[Terms, ...], refusals: Refusals) -> Hit | None:
        """Return a function that decides checks of these terms while the store is healthy; None if `run` must do it. It
        does the same as `run` of a deny cache with these refusals around this store.
        """
        breaker, prepare = self._breaker, getattr(self._store, "prepare_send", None)
        if breaker is None or prepare is None or any([each.shadow or each.held for each in terms]):
            return None
        send = prepare(terms)
        if send is None:
            return None
        return self._charging(terms, send, refusals, breaker=breaker)

    @abstractmethod
    def _charging(self, terms: tuple[Terms, ...], send: _Sending, refusals: Refusals, *, breaker: Breaker) -> Hit:
        """Return the function of `healthy`. It sends with `send`, which `prepare_send` of the store has returned.

        It is one function, and not two that sync and async code share: a call costs 4 % of what the client does.
        """

    @contextmanager
    def _rest(self, checks: Checks, before: _Before, *, refusals: Refusals, breaker: Breaker) -> Generator[_Rest]:
        """Return a `with` block for a refusal, an error reply, or no reply to a charge. It sets the outcomes."""
        _, now, mark, closed, origin = before
        rest = _Rest(Plan(checks, network=network_of(origin)))
        try:
            yield rest
            self._local_fallback.note(checks, rest.outcomes)
        except StoreError as error:
            rest.outcomes = self._failed_over(rest.plan, error, breaker, closed=closed)
        finally:
            refusals.learn(rest.plan, rest.outcomes, (now, [mark] * len(checks)))

    def _report(self, error: StoreError, plan: Plan) -> None:
        """Log a failure that opens no circuit: once for a rule, or once a minute if the failure concerns plans."""
        now = monotonic()
        terms = [check.terms for check in plan.checks]
        due = [each for each in terms if self._reported.get((each.rule_id, error.concerns), -inf) <= now]
        if due:
            if len(self._reported) >= _MAX_REPORTED:
                self._reported.clear()
            for each in due:
                self._reported[each.rule_id, error.concerns] = inf if error.concerns == "rule" else now + _QUIET
            names = ", ".join(dict.fromkeys([each.name for each in due]))
            message = "sluicegate: rule %s: %s; circuit stays closed: on_store_failure decides"
            fields = {"sluicegate_event": "check_failed", "sluicegate_rule": names, "sluicegate_store": error.store}
            log.warning(message, names, error, extra={**fields, "sluicegate_error": cause_text(error.cause)})

    def _circuit_open(self, breaker: Breaker) -> StoreError:
        return StoreError(breaker.store, f"circuit open since a failure: {breaker.cause}", concerns=breaker.concerns)


_Before = tuple[int, int, object, int, Origin | None]
"""What was read before a charge: for the deny cache the place of the identity's mark, the time and the mark; whether
the breaker was `closed`; and the origin.
"""


class _Rest:
    """A charge whose reply does not say that all checks were charged."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.outcomes: Outcomes = _NO_ANSWER

    @property
    def decision(self) -> Decision:
        """The decision from the outcomes."""
        return new(Decision, (all([outcome.allowed for outcome in self.outcomes]), self.plan.checks, self.outcomes))


_Sending = Callable[[str, int], Any]
"""Charges an identity a cost. Returns what was sent, with the reply as its first item; None if nothing was sent."""


class Fallback(_Fallback[Store]):
    """A store that uses the store inside while it is available, and the local fallback while it is not.

    `close` closes the store inside only if it is `owned`. `launch` runs a probe outside of the request that started it.
    """

    def __init__(
        self,
        store: Store,
        *,
        breakers: Breakers,
        local_fallback: LocalFallback,
        owned: bool = True,
        launch: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        super().__init__(breakers=breakers, local_fallback=local_fallback, owned=owned)
        self._store = store
        self._launch = partial(start_thread, "probe") if launch is None else launch
        self._closing = threading.Event()
        self._start()
        fork.renew(self)

    def after_fork(self) -> None:
        """Begin without watches: their threads are the parent's."""
        closed, self._closing = self._closing.is_set(), threading.Event()
        if closed:
            self._closing.set()
        self._start()

    def _start(self) -> None:
        self._watches: dict[Breaker, threading.Thread] = {}
        self._beginning = threading.RLock()  # held while a watch begins; a signal handler may fail meanwhile

    def __repr__(self) -> str:
        return f"Fallback({self._store!r})"

    def _charging(self, terms: tuple[Terms, ...], send: _Sending, refusals: Refusals, *, breaker: Breaker) -> Hit:
        store: Any = self._store
        passed, rest = store.passed(terms), partial(self._rest, refusals=refusals, breaker=breaker)
        note, read, marks, changed = self._local_fallback.note, refusals.read, refusals.marks, refusals.changed
        first, *others = terms

        def hit(identity: str, cost: int, origin: Origin | None = None) -> Decision | None:
            checks: Checks = (new(Check, (first, identity, cost)),)
            for each in others:
                checks += (new(Check, (each, identity, cost)),)
            closed = breaker.closed
            if not closed or not cost or (refusals.kept and checks in refusals.kept):
                return None
            now, at = read(), hash(identity) & MASK
            mark = marks[at]
            try:
                sent = send(identity, cost)
                if sent is None:
                    return None
                outcomes = passed(checks, sent[0])
                if outcomes is not None:
                    note(checks, outcomes)
                    marks[at] = outcomes  # a new object
                    if refusals.index:
                        changed(checks)
                    return new(Decision, (True, checks, outcomes))
                with rest(checks, (at, now, mark, closed, origin)) as left:
                    left.outcomes = store.resume(left.plan, sent, sent[0])
                return left.decision
            except BaseException:
                changed(checks)
                raise

        return hit

    def run(self, plan: Plan) -> Outcomes:
        """Charge every check of the plan, or none: in the store, or in the local fallback."""
        breaker = self._breaker or self._breaker_of(plan)
        closed = breaker.closed
        try:
            outcomes = self._store.run(plan) if closed else self._attempt(plan, breaker)
        except StoreError as error:
            return self._failed_over(plan, error, breaker, closed=closed)
        self._local_fallback.note(plan[0], outcomes)
        return outcomes

    def refund(self, plan: Plan, outcomes: Outcomes) -> None:
        """Refund a plan where it was charged. A charge that cannot be refunded now expires with its window."""
        self._local_fallback.refund(plan, outcomes)
        with self._asking(plan) as available:
            if available:
                self._store.refund(plan, outcomes)

    def renew(self, plan: Plan, outcomes: Outcomes) -> Outcomes:
        """Renew a plan where it was charged. A charge that cannot be renewed now stays as it was."""
        outcomes = self._local_fallback.renew(plan, outcomes)
        with self._asking(plan) as available:
            if available:
                outcomes = self._store.renew(plan, outcomes)
        return outcomes

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop a budget in the store and in the local fallback. Raises StoreError if the store did not drop it."""
        with self._forgetting(rule_id, identity):
            self._store.forget(rule_id, identity)

    def close(self) -> None:
        """Forget what was counted here and end the probes. Close the store if it is owned."""
        self._closing.set()
        self._local_fallback.close()
        if self._owned:
            self._store.close()

    def _attempt(self, plan: Plan, breaker: Breaker) -> Outcomes:
        """Run the plan in the store if this request may be the trial. Otherwise raise StoreError."""
        trial = breaker.trial(charge=plan.charge)
        if trial is not None:
            with trial:
                return self._store.run(plan)
        probe = breaker.probe()
        if probe is not None:
            ask = partial(self._probe, _peek(plan), breaker, probe=probe)
            try:
                self._launch(ask)
            except RuntimeError:  # no thread can start: this request waits for the reply, at most its deadline
                ask()
        raise self._circuit_open(breaker)

    def _probe(self, plan: Plan, breaker: Breaker, *, probe: Attempt) -> None:
        with suppress(StoreError, ConfigurationError), probe:  # the trial raises the same error in a request
            self._store.run(plan)
        self._breakers.replaced(breaker, *_identities(plan))

    def _watch(self, plan: Plan, breaker: Breaker) -> None:
        """Begin to probe the store of an open breaker in a thread, if no thread does it already."""
        if not breaker.timed or not breaker.needs_probe or self._closing.is_set():
            return
        watch = self._watches.get(breaker)
        if watch is None or not watch.is_alive():
            with self._beginning:
                watch = self._watches.get(breaker)
                if watch is None or not watch.is_alive():
                    ask = WeakMethod(self._probe)
                    work = partial(_probe_until_answered, ask, _peek(plan), breaker=breaker, closing=self._closing)
                    with suppress(RuntimeError):  # no thread can start: a later request begins the watch
                        self._watches[breaker] = start_thread("watch", work)


def _probe_until_answered(
    ask: WeakMethod[Callable[..., None]], plan: Plan, *, breaker: Breaker, closing: threading.Event
) -> None:
    """Probe at the times that the breaker allows, until it needs no probe or the fallback is closed or deleted."""
    while breaker.needs_probe and not closing.wait(breaker.wait_us / MICROSECOND + _LATE):
        found = ask()
        if found is None:
            return
        probe = breaker.probe()
        if probe is not None:
            found(plan, breaker, probe=probe)
        del found  # the fallback may be deleted while this thread waits


class AsyncFallback(_Fallback[AsyncStore]):
    """A Fallback for asynchronous code. The probe is a task of the event loop that started it.

    Timers and probes have a context of their own: that of a request would keep the request alive for the whole outage,
    and its event would measure the probes.
    """

    def __init__(
        self,
        store: AsyncStore,
        *,
        breakers: Breakers,
        local_fallback: LocalFallback,
        deadline: float,
        owned: bool = True,
    ) -> None:
        super().__init__(breakers=breakers, local_fallback=local_fallback, owned=owned)
        self._store = store
        # The store has a deadline, and must meet it before the probe ends: what it finds out then, it has to note.
        self._probe_deadline = deadline + LONGEST_US / MICROSECOND
        self._probes: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references
        self._watches: dict[Breaker, tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle]] = {}
        fork.renew(self)

    def after_fork(self) -> None:
        """Begin without probes and watches: their loops are the parent's."""
        fork.keep((self._probes, self._watches))
        self._probes, self._watches = set(), {}

    def __repr__(self) -> str:
        return f"AsyncFallback({self._store!r})"

    def _charging(self, terms: tuple[Terms, ...], send: _Sending, refusals: Refusals, *, breaker: Breaker) -> Hit:
        store: Any = self._store
        passed, rest = store.passed(terms), partial(self._rest, refusals=refusals, breaker=breaker)
        note, read, marks, changed = self._local_fallback.note, refusals.read, refusals.marks, refusals.changed
        first, *others = terms

        async def end(checks: Checks, sent: Any, before: _Before) -> Decision:
            try:
                reply = await sent[0]
                # A part of a batch is read already.
                outcomes = (reply,) if type(reply) is Outcome else passed(checks, reply)
                if outcomes is not None:
                    note(checks, outcomes)
                    marks[before[0]] = outcomes
                    if refusals.index:
                        changed(checks)
                    return new(Decision, (True, checks, outcomes))
            except BaseException:
                changed(checks)
                raise
            with rest(checks, before) as left:
                left.outcomes = await store.resume(left.plan, sent, reply)
            return left.decision

        def hit(identity: str, cost: int, origin: Origin | None = None) -> Any:
            checks: Checks = (new(Check, (first, identity, cost)),)
            for each in others:
                checks += (new(Check, (each, identity, cost)),)
            closed = breaker.closed
            if not closed or not cost or (refusals.kept and checks in refusals.kept):
                return None
            now, at = read(), hash(identity) & MASK
            mark = marks[at]
            try:
                sent = send(identity, cost)
            except BaseException:
                changed(checks)
                raise
            return None if sent is None else end(checks, sent, (at, now, mark, closed, origin))

        return hit

    async def run(self, plan: Plan) -> Outcomes:
        breaker = self._breaker or self._breaker_of(plan)
        closed = breaker.closed
        try:
            outcomes = await (self._store.run(plan) if closed else self._attempt(plan, breaker))
        except StoreError as error:
            return self._failed_over(plan, error, breaker, closed=closed)
        self._local_fallback.note(plan[0], outcomes)
        return outcomes

    async def refund(self, plan: Plan, outcomes: Outcomes) -> None:
        self._local_fallback.refund(plan, outcomes)
        with self._asking(plan) as available:
            if available:
                await self._store.refund(plan, outcomes)

    async def renew(self, plan: Plan, outcomes: Outcomes) -> Outcomes:
        outcomes = self._local_fallback.renew(plan, outcomes)
        with self._asking(plan) as available:
            if available:
                outcomes = await self._store.renew(plan, outcomes)
        return outcomes

    async def forget(self, rule_id: str, identity: str) -> None:
        with self._forgetting(rule_id, identity):
            await self._store.forget(rule_id, identity)

    async def close(self) -> None:
        """Forget what was counted here and end the probes of this loop. Close the store if it is owned."""
        self._local_fallback.close()
        here = asyncio.get_running_loop()
        for task in [task for task in self._probes if task.get_loop() is here]:
            task.cancel()
        for breaker in [breaker for breaker, (loop, _) in self._watches.items() if loop is here]:
            self._watches.pop(breaker)[1].cancel()
        if self._owned:
            await self._store.close()

    async def _attempt(self, plan: Plan, breaker: Breaker) -> Outcomes:
        trial = breaker.trial(charge=plan.charge)
        if trial is not None:
            with trial:
                return await self._store.run(plan)
        self._probe_if_due(_peek(plan), breaker)
        raise self._circuit_open(breaker)

    def _probe_if_due(self, plan: Plan, breaker: Breaker) -> bool:
        probe = breaker.probe()
        if probe is not None:
            task = asyncio.get_running_loop().create_task(self._probe(plan, breaker, probe), context=Context())
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)
        return probe is not None

    async def _probe(self, plan: Plan, breaker: Breaker, probe: Attempt) -> None:
        with suppress(StoreError, ConfigurationError), probe:  # the trial raises the same error in a request
            try:
                async with asyncio.timeout(self._probe_deadline):
                    await self._store.run(plan)
            except TimeoutError as error:
                raise StoreError(breaker.store, error) from error
        self._breakers.replaced(breaker, *_identities(plan))
        self._watch(plan, breaker)

    def _watch(self, plan: Plan, breaker: Breaker) -> None:
        """Begin to probe the store of an open breaker by a timer of this loop, if no timer does it already."""
        if not breaker.timed or not breaker.needs_probe:
            return
        watch = self._watches.get(breaker)
        if watch is None or watch[0].is_closed():
            self._set_timer(_peek(plan), breaker)

    def _set_timer(self, plan: Plan, breaker: Breaker) -> None:
        loop = asyncio.get_running_loop()
        seconds = breaker.wait_us / MICROSECOND + _LATE
        wake = partial(_call, WeakMethod(self._wake), plan=plan, breaker=breaker)
        self._watches[breaker] = loop, loop.call_later(seconds, wake, context=Context())

    def _wake(self, plan: Plan, breaker: Breaker) -> None:
        """Probe now, and set the next timer, or leave that to the end of the probe."""
        del self._watches[breaker]
        if breaker.needs_probe and not self._probe_if_due(plan, breaker):
            self._set_timer(plan, breaker)


def _call(wake: WeakMethod[Callable[..., None]], plan: Plan, breaker: Breaker) -> None:
    """Call a method of a fallback, unless the fallback was deleted."""
    found = wake()
    if found is not None:
        found(plan, breaker)


def _identities(plan: Plan) -> list[str]:
    return [check.identity for check in plan.checks]


def _peek(plan: Plan) -> Plan:
    """Return the plan of a probe. It charges nothing, and keeps nothing of the request."""
    return plan._replace(charge=False, network=None)

"""The guard of a store: the deny cache, the circuit breaker and the local fallback, around each call of the store.

First a remembered refusal is repeated. Otherwise the guard reads whether the circuit is closed, and the marks of the
deny cache. Then the store is called. What that has changed is noted on every way out, also after a cancellation. A
refusal is remembered only if the marks are still the same. A failure counts only against the circuit that was read.

When the store fails, a circuit breaker stops calling it and a local fallback decides. Only StoreError is caught: any
other exception is a bug in the store, and must not admit every request. A charge is never sent twice. While the breaker
is open, no request waits for the store: a probe runs a request's checks without charging them, in its own thread or
task.

A request that finds a probe due starts it. Between requests, a watch of the breaker starts the probes, until the store
has answered one. So the store is found again without traffic. With a clock that is moved by hand there is no watch,
because time stands still between requests.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context
from functools import partial
from math import inf
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar
from weakref import WeakMethod

from sluicegate.clock import MICROSECOND, monotonic
from sluicegate.errors import ConfigurationError, StoreError, cause_text
from sluicegate.observe.status import Status, describe
from sluicegate.plan import Checks, Network, Outcomes, Plan, Terms
from sluicegate.runtime import fork
from sluicegate.stores import (
    AsyncRun,
    AsyncRunsPlans,
    AsyncStore,
    Mode,
    Run,
    RunsPlans,
    Store,
    compiled,
    plan_of,
    terms_of,
)
from sluicegate.stores.breaker import LONGEST_US, Attempt, Breaker, Breakers
from sluicegate.stores.deny_cache import Refusals
from sluicegate.stores.local_fallback import LocalFallback
from sluicegate.stores.threads import start_thread
from sluicegate.stores.timed import timed, timed_async

_QUIET: Final = 60.0  # seconds without another line about failures of single plans under the same rule
_MAX_REPORTED: Final = 4096  # rules: those made for each request would grow without bound
_NO_ANSWER: Final[Outcomes] = ()  # the outcomes of a call until it has returned: it may have charged
_ALLOWED: Final = itemgetter(0)  # of an outcome
_LATE: Final = 0.001  # seconds: a watch wakes when the probe is due, and not just before

_AnyStore = TypeVar("_AnyStore", Store, AsyncStore)

log = logging.getLogger("sluicegate")


Before = tuple[int, list[object]]
"""What was read before the store was called: the clock of the deny cache, and its marks."""


class Guard(ABC, Generic[_AnyStore]):
    """What the sync and the async guarded store share: everything but the calls of the store.

    `close` closes the store inside only if it is `owned`. If it is `measured`, its calls are measured for the events.
    """

    _store: _AnyStore

    def __init__(
        self,
        *,
        refusals: Refusals,
        breakers: Breakers,
        local_fallback: LocalFallback,
        owned: bool = True,
        measured: bool = False,
    ) -> None:
        self.refusals = refusals
        self._breakers = breakers
        self._breaker = breakers.whole if breakers.single else None
        self._local_fallback = local_fallback
        self._owned = owned
        self._measured = measured
        self._reported: dict[tuple[str, str], float] = {}  # when a failure under a rule may be logged again
        self._last_error: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r})"

    def _failed(
        self, checks: Checks, mode: Mode, network: Network, *, asked: Breaker, closed: int, error: StoreError
    ) -> Outcomes:
        """Report a failure of the store, and let the local fallback decide. Raises `error` if a policy is "raise"."""
        plan = plan_of(checks, mode, network)
        # First: under the policy "raise" the next line raises.
        self._note_failure(error, asked, closed=closed, plan=plan)
        return self._local_fallback.answer(plan, error)

    def _learn(self, checks: Checks, mode: Mode, outcomes: Outcomes, *, before: Before) -> None:
        """Note what a call of the store has changed. `outcomes` are empty if it raised: it may have charged."""
        # If the store inside has a fallback of its own, it may have charged before its reply was lost.
        refused = outcomes and not all(map(_ALLOWED, outcomes)) and outcomes[0][7] == "store"
        if refused and mode == "charge":
            self.refusals.remember(checks, outcomes, *before)
        elif mode != "peek":
            self.refusals.changed(checks)

    def describe(self) -> Status:
        """Return the status of the store inside, with its circuits and what was decided without it."""
        circuits, local = self._breakers.describe(), self._local_fallback
        return describe(self._store)._replace(
            available=all([circuit.state != "open" for circuit in circuits]),
            circuits=circuits,
            degraded_decisions=local.decisions,
            degraded_allowed=local.allowed,
            cached_refusals=self.refusals.repeated,
            last_error=self._last_error,
        )

    def remembered(self, identity: str) -> set[str]:
        """Return the ids of the rules under which this process remembers something of an identity."""
        return self._local_fallback.remembered(identity) | self.refusals.rule_ids(identity)

    @abstractmethod
    def _watch(self, checks: Checks, breaker: Breaker) -> None:
        """Begin to probe the store of an open breaker between requests, if nothing does it already."""

    @contextmanager
    def _asking(self, plan: Plan) -> Generator[bool]:
        """Return a `with` block for a call of the store that is no decision. It gets True if the store is available. It
        reports and suppresses a failure of the store. Then it drops the refusals on these budgets: they have more left
        now, or their slots are held for longer.
        """
        breaker = self._breaker_of(plan.checks)
        closed = breaker.closed
        try:
            yield closed != 0
        except StoreError as error:
            self._note_failure(error, breaker, closed=closed, plan=plan)
        finally:
            self.refusals.changed(plan.checks)

    @contextmanager
    def _forgetting(self, rule_id: str, identity: str) -> Generator[None]:
        """Drop a budget in the local fallback. Return a `with` block to drop it in the store. It raises a failure."""
        self._local_fallback.forget(rule_id, identity)  # first: the store may raise
        breaker, attempt = self._breakers.of(identity), None
        closed = breaker.closed
        try:
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
                    self._note_failure(error, breaker, closed=closed)
                raise
        finally:
            self.refusals.drop(rule_id, identity)

    def _breaker_of(self, checks: Checks) -> Breaker:
        return self._breakers.of(*_identities(checks))

    def _note_failure(self, error: StoreError, asked: Breaker, *, closed: int, plan: Plan | None = None) -> None:
        """Report a failure to the breaker of what it concerns, or to the log if no breaker is concerned."""
        if closed:  # else the error may only say that the circuit is open
            self._last_error = cause_text(error.cause)
        breaker = self._breakers.failed(error, asked, closed=closed, charge=plan is not None and plan.charge)
        if plan is not None and breaker is not None:
            self._watch(plan.checks, breaker)
        elif plan is not None:
            self._report(error, plan)

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


class GuardedStore(Guard[Store], RunsPlans):
    """A store inside its guard. `launch` runs a probe outside of the request that started it."""

    def __init__(
        self,
        store: Store,
        *,
        launch: Callable[[Callable[[], None]], object] | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(**parts)
        self._store = store
        self._launch = partial(start_thread, "probe") if launch is None else launch
        self._closing = threading.Event()
        self._start()
        fork.renew(self)

    def after_fork(self) -> None:
        """Begin without watches: their threads are the parent's."""
        # A new Event: a thread of the parent may have held the lock of the old one.
        closed, self._closing = self._closing.is_set(), threading.Event()
        if closed:
            self._closing.set()
        self._start()

    def _start(self) -> None:
        self._watches: dict[Breaker, threading.Thread] = {}
        self._beginning = threading.RLock()  # held while a watch begins; a signal handler may fail meanwhile

    def compile(self, terms: tuple[Terms, ...], mode: Mode) -> Run:
        """Return what decides checks of these terms: in the store, or without it."""
        run, refusals, local = self._compiled(terms, mode), self.refusals, self._local_fallback
        kept, read, marks_of, usual = refusals.kept, refusals.read, refusals.marks_of, mode == "charge"

        def decide(checks: Checks, network: Network = None) -> Outcomes:
            if kept and usual:
                repeated = refusals.repeat(checks)
                if repeated is not None:
                    return repeated
            breaker, outcomes = self._breaker or self._breaker_of(checks), _NO_ANSWER
            # Before the call: what another request changes meanwhile must be seen after it.
            closed, before = breaker.closed, (read(), marks_of(checks))
            try:
                outcomes = (run if closed else self._attempt(run, mode, breaker))(checks, network)
                local.note(checks, outcomes)
            except StoreError as error:
                return self._failed(checks, mode, network, asked=breaker, closed=closed, error=error)
            finally:  # on every way out: also after a cancellation the store may have charged
                self._learn(checks, mode, outcomes, before=before)
            return outcomes

        return decide

    def _compiled(self, terms: tuple[Terms, ...], mode: Mode) -> Run:
        run: Run = compiled(self._store, terms, mode)
        return timed(run) if self._measured else run

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
        self._closing.set()  # first: no watch begins from now on
        self._local_fallback.close()
        if self._owned:
            self._store.close()

    def _attempt(self, run: Run, mode: Mode, breaker: Breaker) -> Run:
        """Return a Run for an open circuit. It calls the store if this request may be the trial. Otherwise it starts a
        probe, if one is due, and raises StoreError.
        """

        def attempt(checks: Checks, network: Network) -> Outcomes:
            trial = breaker.trial(charge=mode != "peek")
            if trial is not None:
                with trial:
                    return run(checks, network)
            probe = breaker.probe()
            if probe is not None:
                ask = partial(self._probe, checks, breaker, probe=probe)
                try:
                    self._launch(ask)
                except RuntimeError:  # no thread can start: this request waits for the reply, at most its deadline
                    ask()
            raise self._circuit_open(breaker)

        return attempt

    def _probe(self, checks: Checks, breaker: Breaker, *, probe: Attempt) -> None:
        with suppress(StoreError, ConfigurationError), probe:  # the trial raises the same error in a request
            self._compiled(terms_of(checks), "peek")(checks, None)
        self._breakers.replaced(breaker, *_identities(checks))

    def _watch(self, checks: Checks, breaker: Breaker) -> None:
        """Begin to probe the store of an open breaker in a thread, if no thread does it already."""
        if not breaker.timed or not breaker.needs_probe or self._closing.is_set():
            return
        watch = self._watches.get(breaker)  # first without the lock: every failure comes here
        if watch is None or not watch.is_alive():
            with self._beginning:
                watch = self._watches.get(breaker)
                if watch is None or not watch.is_alive():
                    ask = WeakMethod(self._probe)
                    work = partial(_probe_until_answered, ask, checks, breaker=breaker, closing=self._closing)
                    with suppress(RuntimeError):  # no thread can start: a later request begins the watch
                        self._watches[breaker] = start_thread("watch", work)


def _probe_until_answered(
    ask: WeakMethod[Callable[..., None]], checks: Checks, *, breaker: Breaker, closing: threading.Event
) -> None:
    """Probe at the times that the breaker allows, until it needs no probe or the guard is closed or deleted."""
    while breaker.needs_probe and not closing.wait(breaker.wait_us / MICROSECOND + _LATE):
        found = ask()
        if found is None:
            return
        probe = breaker.probe()
        if probe is not None:
            found(checks, breaker, probe=probe)
        del found  # the guard may be deleted while this thread waits


class AsyncGuardedStore(Guard[AsyncStore], AsyncRunsPlans):
    """A GuardedStore for asynchronous code. The probe is a task of the event loop that started it.

    Timers and probes have a context of their own: that of a request would keep the request alive for the whole outage,
    and its event would measure the probes.
    """

    def __init__(self, store: AsyncStore, *, deadline: float, **parts: Any) -> None:
        super().__init__(**parts)
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

    def compile(self, terms: tuple[Terms, ...], mode: Mode) -> AsyncRun:
        run, refusals, local = self._compiled(terms, mode), self.refusals, self._local_fallback
        kept, read, marks_of, usual = refusals.kept, refusals.read, refusals.marks_of, mode == "charge"

        async def decide(checks: Checks, network: Network = None) -> Outcomes:
            if kept and usual:
                repeated = refusals.repeat(checks)
                if repeated is not None:
                    return repeated
            breaker, outcomes = self._breaker or self._breaker_of(checks), _NO_ANSWER
            # Before the call: what another request changes meanwhile must be seen after it.
            closed, before = breaker.closed, (read(), marks_of(checks))
            try:
                found: Any = (run if closed else self._attempt(run, mode, breaker))(checks, network)
                outcomes = found if type(found) is tuple else await found
                local.note(checks, outcomes)
            except StoreError as error:
                return self._failed(checks, mode, network, asked=breaker, closed=closed, error=error)
            finally:  # on every way out: also after a cancellation the store may have charged
                self._learn(checks, mode, outcomes, before=before)
            return outcomes

        return decide

    def _compiled(self, terms: tuple[Terms, ...], mode: Mode) -> AsyncRun:
        run: AsyncRun = compiled(self._store, terms, mode)
        return timed_async(run) if self._measured else run

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

    def _attempt(self, run: AsyncRun, mode: Mode, breaker: Breaker) -> AsyncRun:
        async def attempt(checks: Checks, network: Network) -> Outcomes:
            trial = breaker.trial(charge=mode != "peek")
            if trial is not None:
                with trial:
                    return await _outcomes(run(checks, network))
            self._probe_if_due(checks, breaker)
            raise self._circuit_open(breaker)

        return attempt

    def _probe_if_due(self, checks: Checks, breaker: Breaker) -> bool:
        probe = breaker.probe()
        if probe is not None:
            task = asyncio.get_running_loop().create_task(self._probe(checks, breaker, probe), context=Context())
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)
        return probe is not None

    async def _probe(self, checks: Checks, breaker: Breaker, probe: Attempt) -> None:
        with suppress(StoreError, ConfigurationError), probe:  # the trial raises the same error in a request
            try:
                async with asyncio.timeout(self._probe_deadline):
                    await _outcomes(self._compiled(terms_of(checks), "peek")(checks, None))
            except TimeoutError as error:
                raise StoreError(breaker.store, error) from error
        self._breakers.replaced(breaker, *_identities(checks))
        self._watch(checks, breaker)

    def _watch(self, checks: Checks, breaker: Breaker) -> None:
        """Begin to probe the store of an open breaker by a timer of this loop, if no timer does it already."""
        if not breaker.timed or not breaker.needs_probe:
            return
        watch = self._watches.get(breaker)
        if watch is None or watch[0].is_closed():
            self._set_timer(checks, breaker)

    def _set_timer(self, checks: Checks, breaker: Breaker) -> None:
        loop = asyncio.get_running_loop()
        seconds = breaker.wait_us / MICROSECOND + _LATE
        wake = partial(_call, WeakMethod(self._wake), checks=checks, breaker=breaker)
        self._watches[breaker] = loop, loop.call_later(seconds, wake, context=Context())

    def _wake(self, checks: Checks, breaker: Breaker) -> None:
        """Probe now, and set the next timer, or leave that to the end of the probe."""
        del self._watches[breaker]
        if breaker.needs_probe and not self._probe_if_due(checks, breaker):
            self._set_timer(checks, breaker)


def _call(wake: WeakMethod[Callable[..., None]], checks: Checks, breaker: Breaker) -> None:
    """Call a method of a guard, unless the guard was deleted."""
    found = wake()
    if found is not None:
        found(checks, breaker)


async def _outcomes(found: Outcomes | Awaitable[Outcomes]) -> Outcomes:
    """Return what an AsyncRun returned, or await it."""
    return found if isinstance(found, tuple) else await found


def _identities(checks: Checks) -> list[str]:
    return [check.identity for check in checks]

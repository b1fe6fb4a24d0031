"""The in-process store: dictionaries and one lock, without a thread, a timer or a scan.

A check costs the same for any number of identities. The number of keys is bounded: see `memory_table` for how keys are
evicted.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from sluicegate.algorithms import KEPT
from sluicegate.clock import Clock, SystemClock, read_us, reading
from sluicegate.errors import StoreURLError, shows_half_made
from sluicegate.identity import digest
from sluicegate.plan import (
    BAN,
    NEVER,
    Check,
    Checks,
    Network,
    Outcome,
    Outcomes,
    Plan,
    Terms,
    charged,
    in_shadow,
    strikers,
)
from sluicegate.runtime import fork
from sluicegate.runtime.hidden import shown_url
from sluicegate.stores import DEADLINE, Mode, Run, RunsPlans, compiled, plan_of
from sluicegate.stores.async_adapter import AsyncAdapter
from sluicegate.stores.memory_table import Entry, MemoryTable, SharedBudget

if TYPE_CHECKING:
    from sluicegate.observe.status import Status

MAX_KEYS: Final = 100_000  # about 33 MB of one-hit keys
_COUNT: Final = "[0-9]{1,15}"

_UNKNOWN: Final[dict[str, Entry]] = {}  # the entries of a rule that has none
_CheckOf = Callable[[Any, int, int, tuple[int, ...]], Outcome]
_ChargeOf = Callable[[Any, int, int, tuple[int, ...]], Any]
_Found = tuple[Check, Entry | None, _ChargeOf | None, tuple[int, ...], Outcome]
"""A check with its entry, the function that charges that entry (None for one outside the table), and its outcome."""


@shows_half_made
class MemoryStore(RunsPlans):
    """A store in this process's memory: safe between threads and tasks, not shared with other processes.

    `max_keys` bounds how many identities are kept, for all rules together. `clock` is for tests.

    >>> len(MemoryStore(max_keys=1000))
    0
    """

    def __init__(self, *, max_keys: int = MAX_KEYS, clock: Clock | None = None) -> None:
        if not isinstance(max_keys, int) or isinstance(max_keys, bool) or max_keys < 1:
            raise StoreURLError("max_keys", max_keys, problem="not a whole number above 0", expected="give 1 or more")
        if clock is not None:
            read_us(clock)  # raises for a clock that cannot work
        self.clock = clock
        self._now_us = (SystemClock() if clock is None else clock).now_us
        # Taken only by `with`: after `acquire` the exception of a signal handler could leave it taken. A handler or
        # finalizer may call this store in a thread that holds it, so it is reentrant.
        self._lock: Any = threading.RLock()  # the stubs lack `_is_owned`, which threading.Condition uses too
        self._refunds: deque[tuple[Plan, tuple[Outcome, ...]]] = deque()  # refunds that could not be made at once
        self._table = MemoryTable(max_keys)
        self._turn = 0  # how many decisions were made: the lock lets in a signal handler of the thread that holds it
        fork.renew(self)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._table)

    def __repr__(self) -> str:
        return f"MemoryStore(max_keys={self._table.most})"

    def separate(self, name: str, *, clock: Clock | None = None) -> MemoryStore:
        """Return an empty store, on this clock unless the store has one."""
        return MemoryStore(max_keys=self._table.most, clock=self.clock or clock)

    def warn(self, *, strict: bool) -> None:
        """Warn (SG101) if this process is one of several workers, each with a separate memory store."""
        from sluicegate.stores.worker_count import warn_of_memory  # here: a local fallback does not need it

        warn_of_memory(strict=strict)

    def describe(self) -> Status:
        """Return the status: how full the memory is."""
        from sluicegate.observe.status import Status

        most, evictions = self._table.most, self._table.evictions
        return Status("memory://", topology="memory", entries=len(self), max_entries=most, evictions=evictions)

    def after_fork(self) -> None:
        """Begin empty: another thread of the parent may have been in the middle of a charge."""
        self._lock = threading.RLock()
        self.close()

    def compile(self, terms: tuple[Terms, ...], mode: Mode) -> Run:
        """Return what decides checks of these terms: one lock, one reading of the clock, a loop that checks all, and
        then a loop that charges all.
        """
        table, rules, refunds, (read, unit) = self._table, self._table.by_rule, self._refunds, reading(self.clock)
        parts: list[tuple[str, _CheckOf, _ChargeOf | None, tuple[int, ...], bool]] = [
            (each.rule_id, KEPT[each.algorithm].check, KEPT[each.algorithm].charge, each.params, each.shadow)
            for each in terms
        ]
        usual, conclude = mode == "charge", self._uncharged

        def run(checks: Checks, network: Network = None) -> Outcomes:
            taking, shadow_refuses, found = usual, False, list[_Found]()
            with self._lock:
                turn = self._turn
                now = read() // unit  # inside the lock: of two charges the later one has no earlier time
                if refunds:  # made before this plan was decided, so it finds their units free
                    self._give_back_due(now)
                # `strict` would take as long as all the rest of the line.
                for check, (rule_id, check_of, charge_of, params, shadow) in zip(checks, parts):  # noqa: B905
                    charge = charge_of
                    entry = rules.get(rule_id, _UNKNOWN).get(check[1])
                    if entry is None:
                        # None: `_charge` charges it, because a new identity needs an entry or uses a shared budget.
                        entry, charge = table.find(check, now, network), None
                    outcome = check_of(None if entry is None else entry.state, now, check[2], params)
                    found.append((check, entry, charge, params, outcome))
                    if not outcome[0]:
                        if shadow:
                            shadow_refuses = True
                        else:
                            taking = False
                if self._turn != turn:  # a signal handler or a finalizer has decided meanwhile, in this thread
                    return self.run(plan_of(checks, mode, network))  # not this function: it must not refer to itself
                self._turn = turn + 1
                if shadow_refuses or not taking:
                    return conclude(found, mode, now, taking=taking, network=network)
                outcomes: Outcomes = ()
                for check, entry, charge, params, outcome in found:
                    outcomes += (outcome,)
                    terms, _, cost = check
                    if not cost:
                        continue
                    if charge is None or entry is None or entry.expires < 0:  # evicted for another check of the plan
                        self._charge(check, entry, now, network=network).mark(terms, outcome, now)
                        continue
                    entry.expires = 0  # first: a signal handler must not find it expired during the charge
                    entry.state = charge(entry.state, now, cost, params)
                    entry.mark(terms, outcome, now)
                return outcomes

        return run

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Give back what the plan was charged, unless the windows of the charges have passed."""
        self._refunds.append((plan, outcomes))
        # A finalizer may call this in a thread that holds the lock, in the middle of a charge. Then the next call that
        # takes the lock makes the refund first.
        if not self._lock._is_owned():
            with self._lock:
                self._give_back_due(self._now_us())

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Give back what the plan was charged, then charge it again as of now."""
        with self._lock:
            now = self._now_us()
            self._give_back_due(now)
            pairs = charged(plan, outcomes)
            for check, outcome in pairs:
                entry = self._table.of(check)
                if entry is not None:
                    _give_back(check, entry, outcome, now=now)
                entry = self._charge(check, entry, now, network=plan.network)
                entry.mark(check.terms, _check(check, 0, entry, now), now)
        return tuple([outcome._replace(at=now) for outcome in outcomes]) if pairs else outcomes

    def forget(self, rule_id: str, identity: str) -> None:
        with self._lock:
            self._give_back_due(self._now_us())
            entry = self._table.get(rule_id, identity)
            if entry is not None:
                entry.forget()

    def close(self) -> None:
        with self._lock:
            self._refunds.clear()
            self._table.clear()

    def bans(self, terms: Terms) -> dict[str, int]:
        """Return the digests of the identities that this ban blocks, each with the microseconds left."""
        with self._lock:
            now, known = self._now_us(), self._table.by_rule.get(terms.rule_id, {})
            states = [(identity, entry.state) for identity, entry in known.items()]
        outcomes = {identity: KEPT[BAN].check(state, now, 0, terms.params) for identity, state in states}
        return {digest(identity): outcome.next_after for identity, outcome in outcomes.items() if not outcome.allowed}

    def rule_ids(self, identity: str) -> set[str]:
        """Return the ids of the rules under which this identity has a budget of its own."""
        with self._lock:
            now, rules = self._now_us(), list(self._table.by_rule.items())  # a copy: a finalizer may add a rule
            found = [(rule_id, known.get(identity)) for rule_id, known in rules]
            return {rule_id for rule_id, entry in found if entry is not None and not entry.expired(now)}

    def _give_back_due(self, now: int) -> None:
        """Make the refunds that are due. The caller holds the lock."""
        while self._refunds:
            plan, outcomes = self._refunds.popleft()
            for check, outcome in charged(plan, outcomes):
                entry = self._table.of(check)
                if entry is not None:
                    entry.mark(check.terms, _give_back(check, entry, outcome, now=now), now)

    def _strike(self, checks: Checks, found: Sequence[Outcome], now: int) -> Outcomes:
        """Count the refusals of a plan towards the bans that its rules name. Returns the outcomes after that."""
        outcomes = list(found)
        for at, ban in enumerate(checks):
            waits = []
            if ban.terms.algorithm == BAN and found[at].allowed:
                pairs = zip(found, strikers(checks, ban), strict=True)
                waits = [outcome.retry_after or 0 for outcome, strikes in pairs if strikes and not outcome.allowed]
            entry = self._table.get(ban.terms.rule_id, ban.identity)
            # Without room it gets no strike: on a shared budget one client would ban all the others.
            if waits and (entry is not None or self._table.has_room(now)):
                entry = self._charge(ban._replace(cost=1), entry, now)
                outcomes[at] = _check(ban, 0, entry, now)
                entry.mark(ban.terms, outcomes[at], now)
                entry.refused_until = max(entry.refused_until, now + max(waits))  # a refused client keeps its strikes
        return tuple(outcomes)

    def _charge(self, check: Check, entry: Entry | None, now: int, *, network: Network = None) -> Entry:
        """Add the cost to the entry. Add a new entry if there is none, or if another check of the plan evicted it."""
        if entry is None or entry.evicted:
            entry = self._table.admit(check, now, state=None if entry is None else entry.state, network=network)
        terms, _, cost = check
        if isinstance(entry, SharedBudget):
            self._table.add_user(check, entry, now)
        entry.expires = 0  # first: a signal handler must not find it expired during the charge; `mark` notes it again
        entry.state = KEPT[terms.algorithm].charge(entry.state, now, cost, terms.params)
        return entry

    def _uncharged(self, found: list[_Found], mode: Mode, now: int, *, taking: bool, network: Network) -> Outcomes:
        """Return the outcomes of checks that are not all charged: `taking`, those of each shadow rule that passes."""
        refused = {check.group for check, _, _, _, outcome in found if check.terms.shadow and not outcome.allowed}
        outcomes = []
        for check, entry, _, _, outcome in found:
            if taking and check.group not in refused:
                if check.cost:
                    self._charge(check, entry, now, network=network).mark(check.terms, outcome, now)
                outcomes.append(outcome)
            else:
                counts = mode == "forced" or (mode == "charge" and check.terms.count_denied)
                outcomes.append(self._refused(check, entry, outcome, now=now, counts=counts, network=network))
        if mode == "peek" or taking or not found or found[-1][0].terms.algorithm != BAN:
            return tuple(outcomes)
        return self._strike(tuple([each[0] for each in found]), outcomes, now)

    def _refused(
        self, check: Check, entry: Entry | None, outcome: Outcome, *, now: int, counts: bool, network: Network
    ) -> Outcome:
        """Return the outcome of a check whose plan was not charged, after charging it if it `counts` all the same."""
        allowed, terms = outcome.allowed, check.terms
        if counts and check.cost and outcome.retry_after is not NEVER:
            entry = self._charge(check, entry, now, network=network)
            outcome = _check(check, check.cost, entry, now)
            entry.mark(check.terms, outcome, now)
        elif entry is not None and not (allowed or terms.shadow) and outcome.retry_after is not None:
            entry.refused_until = now + outcome.retry_after
        if outcome.allowed:
            outcome = _check(check, 0, entry, now)
        if terms.shadow:
            return in_shadow(outcome, passed=allowed)
        return outcome if outcome.allowed is allowed else outcome._replace(allowed=allowed)


def _check(check: Check, cost: int, entry: Entry | None, now: int) -> Outcome:
    """Return the outcome of the check's algorithm."""
    terms = check.terms
    return KEPT[terms.algorithm].check(None if entry is None else entry.state, now, cost, terms.params)


def _give_back(check: Check, entry: Entry, outcome: Outcome, *, now: int) -> Outcome:
    """Undo a charge, unless its window has passed. Returns the outcome after that."""
    terms, _, cost = check
    entry.state = KEPT[terms.algorithm].refund(entry.state, now, cost, terms.params, outcome.at)
    entry.refused_until = 0
    return _check(check, 0, entry, now)


@shows_half_made
class AsyncMemoryStore(AsyncAdapter):
    """A memory store for AsyncLimiter. Its lock is held for microseconds, so it needs no thread."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.memory = store
        self.warn = store.warn

    def compile(self, terms: tuple[Terms, ...], mode: Mode) -> Run:
        """Return what decides checks of these terms at once: its outcomes need no await."""
        run: Run = compiled(self.memory, terms, mode)
        return run

    def separate(self, name: str, *, clock: Clock | None = None) -> AsyncMemoryStore:
        return AsyncMemoryStore(self.memory.separate(name, clock=clock))

    async def bans(self, terms: Terms) -> dict[str, int]:
        return self.memory.bans(terms)

    async def rule_ids(self, identity: str) -> set[str]:
        return self.memory.rule_ids(identity)

    def __repr__(self) -> str:
        return f"Async{self._store!r}"


def open_sync(url: str, *, prefix: str, clock: Clock | None, deadline: float = DEADLINE) -> MemoryStore:
    """Return a store for `memory://` or `memory://?max_keys=100000`. It does not use `prefix` and `deadline`."""
    found = _max_keys(url)
    if isinstance(found, str):
        expected = "use memory:// or memory://?max_keys=100000"
        raise StoreURLError("store", shown_url(url), problem=found, expected=expected)
    return MemoryStore(max_keys=found, clock=clock)


def _max_keys(url: str) -> int | str:
    """Return the number in a URL, or the problem with it.

    The caller raises the error, so no variable of the traceback holds a part of the URL.
    """
    from urllib.parse import parse_qsl, urlsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        return "not understood after memory://"
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    keys = options.pop("max_keys", str(MAX_KEYS))
    if options:
        return f"unknown option {', '.join(options)}"
    if parts.netloc or parts.path.strip("/") or not re.fullmatch(_COUNT, keys):
        return "not understood after memory://"
    return int(keys)


def open_async(url: str, *, prefix: str, clock: Clock | None, deadline: float = DEADLINE) -> AsyncMemoryStore:
    return AsyncMemoryStore(open_sync(url, prefix=prefix, clock=clock, deadline=deadline))

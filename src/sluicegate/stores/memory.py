"""The in-process store: dictionaries and one lock, without a thread, a timer or a scan.

A check costs the same for any number of identities. The number of keys is bounded: see `memory_table` for how keys are
evicted.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import islice, repeat
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
    Group,
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
from sluicegate.stores import COUNTED, DEADLINE, HISTORY, OLDER, Counted, Mode, Run, RunsPlans, compiled, plan_of
from sluicegate.stores.async_adapter import AsyncAdapter
from sluicegate.stores.memory_table import Entry, MemoryTable

if TYPE_CHECKING:
    from sluicegate.observe.status import Status

MAX_KEYS: Final = 100_000  # about 33 MB of one-hit keys
_TABLES: Final = 50  # tables of counts
_COUNT: Final = "[0-9]{1,15}"
_STATE: Final = repeat("state")  # what is set of each entry
_NO_OUTCOMES: Final[Outcomes] = ()
_States = dict[Entry, Any]  # by the entry that is to get it

_UNKNOWN: Final[dict[str, Entry]] = {}  # the entries of a rule that has none
_Part = tuple[dict[str, Entry], Callable[..., tuple[Outcome, Any]], tuple[int, ...], Terms]
"""Of one check of a Run: the entries of its rule, the algorithm, the parameters and the terms."""


@shows_half_made
class MemoryStore(RunsPlans):
    """A store in this process's memory: safe between threads and tasks, not shared with other processes.

    `max_keys` bounds how many identities are kept, for all rules together. `clock` is for tests.

    >>> len(MemoryStore(max_keys=1000))
    0
    """

    is_here: Final = True  # no other process sees it, and no call takes long

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
        self._overrides = b""  # of this process: other processes have their own
        self._entries: deque[bytes] = deque(maxlen=HISTORY)
        self._counts: dict[str, dict[str, int]] = {}  # of this process, the table that was added to last at the end
        # What belongs to the plan that is decided. The lock lets in a signal handler of the thread that holds it: if
        # the handler decides or changes something, this is another object afterwards.
        self._deciding: object = None
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
        """Return what decides checks of these terms: one lock, one reading of the clock, a loop that decides all, and
        one step that charges all.
        """
        table, refunds, (read, unit) = self._table, self._refunds, reading(self.clock)
        parts: list[_Part] = [
            (table.by_rule.get(each.rule_id, _UNKNOWN), KEPT[each.algorithm].decide, each.params, each)
            for each in terms
        ]
        charges, conclude = mode == "charge", self._conclude
        usual = charges and len({each.rule_id for each in terms}) == len(terms)  # else a budget may be named twice

        def run(checks: Checks, network: Network = None) -> Outcomes:
            # Annotated, because a call such as list[Entry]() takes a tenth of the time of the whole function.
            entries: list[Entry] = []
            states: list[Any] = []
            taking, outcomes = usual, _NO_OUTCOMES
            with self._lock:
                if refunds:  # made before this plan is decided, so it finds their units free
                    self._give_back_due(self._now_us())
                self._deciding = entries
                now = read() // unit  # inside the lock: of two charges the later one has no earlier time
                # `strict` would take as long as all the rest of the line.
                for check, (known, decide, params, same) in zip(checks, parts):  # noqa: B905
                    entry = known.get(check[1])
                    if entry is None:
                        entry = table.find(check, now, network, plan=entries if usual else None)
                        if entry.table is not None:  # a rule's entries are in a new dictionary if it had none left
                            parts[len(entries)] = entry.table, decide, params, same
                        elif check[2]:
                            taking = False
                    outcome, state = decide(entry.state, now, check[2], params)
                    if not outcome[0] or entry.terms is not same:
                        taking = False
                    entries.append(entry)
                    # A cost of 0 writes nothing: a state too far ahead of a clock that went back is not lost.
                    states.append(state if check[2] else entry.state)
                    outcomes += (outcome,)
                charging = map(setattr, entries, _STATE, states)
                if taking and self._deciding is entries:
                    any(charging)  # in C: no signal handler runs since the line before, nor between two charges
                    return outcomes
                return conclude(checks, mode, entries, found=outcomes, now=now, network=network)

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
            self._change(pairs, [check for check, _ in pairs], now=now, at=now, network=plan.network)
        return tuple([outcome._replace(at=now) for outcome in outcomes]) if pairs else outcomes

    def charge(self, plan: Plan, *, at: int) -> None:
        """Charge a plan, allowed or not, as of another time. The table's time stays the present: at an earlier one the
        states of other keys would lie ahead of the clock, and count as empty.
        """
        with self._lock:
            self._change((), plan.checks, now=self._now_us(), at=at, network=plan.network)

    def forget(self, rule_id: str, identity: str) -> None:
        with self._lock:
            self._give_back_due(self._now_us())
            self._deciding = None
            entry = self._table.get(rule_id, identity)
            if entry is not None:
                entry.expires = entry.refused_until = 0  # the next look at it removes it
                entry.state = None

    def close(self) -> None:
        with self._lock:
            self._deciding = None
            self._refunds.clear()
            self._table.clear()

    def bans(self, terms: Terms) -> dict[str, int]:
        """Return the digests of the identities that this ban blocks, each with the microseconds left."""
        with self._lock:
            now, known = self._now_us(), self._table.by_rule.get(terms.rule_id, {})
            states = [(identity, entry.state) for identity, entry in known.items()]
        outcomes = {identity: KEPT[BAN].decide(state, now, 0, terms.params)[0] for identity, state in states}
        return {digest(identity): outcome.next_after for identity, outcome in outcomes.items() if not outcome.allowed}

    def read_overrides(self, known: bytes) -> bytes | None:
        """Return the document of the overrides; None if it begins with `known`."""
        return None if known and self._overrides.startswith(known) else self._overrides

    def write_overrides(self, before: bytes, after: bytes, entry: str) -> bool:
        """Replace the document, and add an entry to the history. False if it is not what it was `before`."""
        with self._lock:
            if self._overrides != before:
                return False
            self._overrides = after
            self._entries.appendleft(entry.encode())
            while sum(map(len, islice(self._entries, 1, None))) > OLDER:
                self._entries.pop()
        return True

    def override_entries(self, count: int) -> list[bytes]:
        """Return the last entries of the history, the newest first."""
        with self._lock:
            return [*islice(self._entries, count)]

    def add_counts(self, tables: Sequence[Counted]) -> None:
        """Add to some tables of counts. The last _TABLES are kept, whatever their seconds."""
        with self._lock:
            for name, _, counts in tables:
                table = Counter(self._counts.pop(name, None))
                table.update(counts)
                self._counts[name] = dict(table.most_common(COUNTED))
            while len(self._counts) > _TABLES:
                del self._counts[next(iter(self._counts))]

    def read_counts(self, names: Sequence[str]) -> list[dict[str, int]]:
        """Return the tables of these names."""
        with self._lock:
            return [dict(self._counts.get(name, ())) for name in names]

    def named(self, who: str) -> str | None:
        """Return the text of the identity with this digest, if it has a budget. Looks at every key."""
        with self._lock:
            texts = [text for known in self._table.by_rule.values() for text in known]
        return next((text for text in texts if digest(text) == who), None)

    def rule_ids(self, identity: str) -> set[str]:
        """Return the ids of the rules under which this identity has a budget of its own."""
        with self._lock:
            now, rules = self._now_us(), list(self._table.by_rule.items())  # a copy: a finalizer may add a rule
            found = [(rule_id, known.get(identity)) for rule_id, known in rules]
            return {rule_id for rule_id, entry in found if entry is not None and not entry.expired(now)}

    def _give_back_due(self, now: int) -> None:
        """Make the refunds that are due. The caller holds the lock."""
        while self._refunds:
            self._change(charged(*self._refunds.popleft()), (), now=now, at=now)

    def _change(
        self,
        refunds: Iterable[tuple[Check, Outcome]],
        charges: Iterable[Check],
        *,
        now: int,
        at: int,
        network: Network = None,
    ) -> None:
        """Undo charges whose windows have not passed, and make others, allowed or not, as of `at`."""
        while True:
            after: _States = {}
            self._deciding = after
            for check, outcome in refunds:
                terms, _, cost = check
                entry = self._table.of(check)
                if entry is not None:
                    state = after.get(entry, entry.state)
                    after[entry] = KEPT[terms.algorithm].refund(state, now, cost, terms.params, outcome.at)
            for check in charges:
                entry = self._table.of(check) or Entry(check.terms, check.identity)
                self._charge(check, entry, now, after=after, at=at, network=network, plan=after)
            changing = map(setattr, after, _STATE, after.values())
            if self._deciding is after:
                any(changing)  # in one step, as in `run`
                for entry in after:
                    entry.expires = entry.refused_until = 0  # not known: the next look notes them
                return

    def _strike(
        self, checks: Checks, entries: list[Entry], outcomes: list[Outcome], *, now: int, after: _States
    ) -> None:
        """Count the refusals of a plan towards the bans that its rules name, and note the outcomes after that."""
        found = tuple(outcomes)
        for at, ban in enumerate(checks):
            waits = []
            if ban.terms.algorithm == BAN and found[at].allowed:
                pairs = zip(found, strikers(checks, ban), strict=True)
                waits = [outcome.retry_after or 0 for outcome, strikes in pairs if strikes and not outcome.allowed]
            # Without room it gets no strike: on a shared budget one client would ban all the others.
            if waits and (entries[at].table is not None or self._table.has_room(now)):
                entry = self._charge(ban._replace(cost=1), entries[at], now, after=after, at=now, plan=entries)
                outcomes[at], _ = KEPT[BAN].decide(after[entry], now, 0, ban.terms.params)
                entry.refused_until = max(entry.refused_until, now + max(waits))  # a refused client keeps its strikes

    def _charge(
        self,
        check: Check,
        entry: Entry,
        now: int,
        *,
        after: _States,
        at: int,
        network: Network = None,
        plan: Container[Entry],
    ) -> Entry:
        """Note in `after` the state that the charge of a check, allowed or not, gives to its entry. Return the entry,
        which is in the table or is a shared budget.
        """
        terms, _, cost = check
        entry = self._table.admit(check, entry, now, network=network, plan=plan)
        entry.measure(terms, now)
        state = after.get(entry, entry.state)
        _, after[entry] = KEPT[terms.algorithm].decide(state, at, cost, terms.params, forced=True)
        return entry

    def _conclude(
        self, checks: Checks, mode: Mode, entries: list[Entry], *, found: Outcomes, now: int, network: Network
    ) -> Outcomes:
        """Return the outcomes of a plan whose checks are not all charged as they were decided: checks refused, an entry
        has no place yet or was charged under other terms, two checks may share an entry, or a signal handler or
        finalizer has decided meanwhile, in this thread. Then the plan is decided again.
        """
        refused: set[Group] = set()
        outcomes: list[Outcome] = []
        after: _States = {}
        added: list[Entry] = []  # for charges that are not made
        taking = mode == "charge"
        for check, outcome in zip(checks, found, strict=True):
            if not outcome[0]:  # by index, as below: a refusal costs an attacker nothing
                if not check[0].shadow:
                    taking = False
                    break
                refused.add(check.group)
        for place, check in enumerate(checks):
            (terms, _, cost), outcome, entry = check, found[place], entries[place]
            passed, never = outcome[0], outcome[3] is NEVER
            takes = taking and not (refused and check.group in refused)
            counts = cost and not never and (takes or mode == "forced" or (mode == "charge" and terms.count_denied))
            if counts:
                entry = entries[place] = self._charge(
                    check, entry, now, after=after, at=now, network=network, plan=entries
                )
            if takes:
                outcomes.append(outcome)
                continue
            state, decide = after.get(entry, entry.state), KEPT[terms.algorithm].decide
            if counts:
                outcome, _ = decide(state, now, cost, terms.params)
            elif entry.state is None and entry.expires > now and entry.table is not None:
                added.append(entry)
            elif not (passed or never or terms.shadow):
                entry.refused_until = now + (outcome[3] or 0)
            if outcome[0]:  # as it is without the cost, which is not charged
                outcome, _ = decide(state, now, 0, terms.params)
            if terms.shadow:
                outcome = in_shadow(outcome, passed=passed)
            elif outcome[0] is not passed:
                outcome = outcome._replace(allowed=passed)
            outcomes.append(outcome)
        if mode != "peek" and not taking and checks and checks[-1].terms.algorithm == BAN:
            self._strike(checks, entries, outcomes, now=now, after=after)
        charging = map(setattr, after, _STATE, after.values())
        if self._deciding is not entries:
            return self.run(plan_of(checks, mode, network))
        any(charging)  # in one step, as in `run`
        if added:
            self._table.withdraw(added)
        return tuple(outcomes)


@shows_half_made
class AsyncMemoryStore(AsyncAdapter):
    """A memory store for AsyncLimiter. Its lock is held for microseconds, so it needs no thread."""

    is_here: Final = True

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.memory = store
        self.warn = store.warn
        self.read_overrides, self.write_overrides = store.read_overrides, store.write_overrides
        self.override_entries = store.override_entries

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

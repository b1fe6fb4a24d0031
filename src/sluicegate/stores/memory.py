"""The in-process store: a dictionary, one lock, no thread, no timer, no scan.

Every check costs the same however many identities there are. The number of keys is bounded; how room is made as
requests come is told in `entries`. This module knows values and algorithms.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from typing import Final

from sluicegate.algorithms import KEPT
from sluicegate.clock import Clock, SystemClock, read_us
from sluicegate.errors import StoreURLError
from sluicegate.hidden import shown_url
from sluicegate.identity import digest
from sluicegate.plan import BAN, NEVER, Check, Outcome, Plan, Terms, charged, in_shadow, strikers
from sluicegate.stores import DEADLINE
from sluicegate.stores.awaited import Awaited
from sluicegate.stores.entries import WHOLE, Entries, Entry, Network, Shared

MAX_KEYS: Final = 100_000  # about 40 MB of one-hit keys
_COUNT: Final = "[0-9]{1,15}"


class MemoryStore:
    """A store in this process's memory; safe between threads and tasks, shared with no other process.

    `max_keys` bounds the identities that are remembered, all rules together; `clock` is for tests.

    >>> len(MemoryStore(max_keys=1000))
    0
    """

    def __init__(self, *, max_keys: int = MAX_KEYS, clock: Clock | None = None) -> None:
        if not isinstance(max_keys, int) or isinstance(max_keys, bool) or max_keys < 1:
            raise StoreURLError("max_keys", max_keys, problem="not a whole number above 0", expected="give 1 or more")
        if clock is not None:
            read_us(clock)  # says what cannot work
        self._max_keys = max_keys
        self._now_us = (SystemClock() if clock is None else clock).now_us
        self._lock = threading.Lock()
        self._refunds: deque[tuple[Plan, tuple[Outcome, ...]]] = deque()  # those that could not be made at once
        self._entries = Entries(max_keys)
        self._known = self._entries.by_key

    def __len__(self) -> int:
        """How many keys are held."""
        return len(self._known)

    def __repr__(self) -> str:
        return f"MemoryStore(max_keys={self._max_keys})"

    def caution(self, *, strict: bool) -> None:
        """Warn (SG101) where this process is one of several workers, each with such a store of its own."""
        from sluicegate.workers import warn_of_memory  # here: the stand-in of another store does not ask

        warn_of_memory(strict=strict)

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Charge every check of the plan, or none."""
        checks, charging, forced, network = plan
        with self._lock:
            now = self._now_us()
            if self._refunds:
                self._give_back_due(now)
            if len(checks) == 1:  # as most plans are: what follows, for a key that is known
                check = checks[0]
                terms, identity, cost = check
                entry = self._known.get((terms.rule_id, identity))
                if entry is not None:
                    algorithm, params = KEPT[terms.algorithm], terms.params
                    outcome = algorithm.check(entry.state, now, cost, params)
                    if not charging or forced or not outcome.allowed:
                        outcome = self._stand(check, entry, outcome, plan=plan, now=now)
                    elif cost:
                        entry.state = algorithm.charge(entry.state, now, cost, params)
                        entry.expires = now + outcome.reset_after
                        if not terms.shadow:  # as entry.mark does
                            remaining = outcome.remaining
                            entry.left = remaining * WHOLE // outcome.limit
                            if remaining == 0:
                                entry.refused_until = now + outcome.next_after
                    return (outcome,)
            met = []
            for check in checks:
                entry = self._entries.find(check, now, network)
                met.append((check, entry, _check(check, check.cost, entry, now)))
            taking = charging and not forced
            taking = taking and all([outcome.allowed or check.terms.shadow for check, _, outcome in met])
            told = []
            for check, entry, outcome in met:
                if not taking or not outcome.allowed:
                    told.append(self._stand(check, entry, outcome, plan=plan, now=now))
                    continue
                if check.cost:
                    self._charge(check, entry, now, network=network).mark(check, outcome, now)
                told.append(outcome)
            if charging and not taking and checks and checks[-1].terms.algorithm == BAN:
                return self._struck(checks, told, now)
            return tuple(told)

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        """Give back what the plan was charged, as far as the windows that it fell into are still there."""
        self._refunds.append((plan, outcomes))
        # A finalizer calls this from wherever the garbage collector runs, so also in a thread that holds the lock. To
        # wait for the lock there would stop the process. The next call that takes the lock makes the refund first.
        if self._lock.acquire(blocking=False):
            try:
                self._give_back_due(self._now_us())
            finally:
                self._lock.release()

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """Give back what the plan was charged, and charge it again as of now."""
        with self._lock:
            now = self._now_us()
            self._give_back_due(now)
            pairs = charged(plan, outcomes)
            for check, outcome in pairs:
                entry = self._entries.of(check)
                if entry is not None:
                    _give_back(check, entry, outcome, now=now)
                entry = self._charge(check, entry, now, network=plan.network)
                entry.mark(check, _check(check, 0, entry, now), now)
        return tuple([outcome._replace(at=now) for outcome in outcomes]) if pairs else outcomes

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop what is known of one identity under one rule."""
        with self._lock:
            self._give_back_due(self._now_us())
            entry = self._known.get((rule_id, identity))
            if entry is not None:
                entry.forget()

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._refunds.clear()
            self._entries.clear()

    def bans(self, terms: Terms) -> dict[str, int]:
        """The digests of all whom this ban holds for, with the microseconds that are left of it."""
        with self._lock:
            now = self._now_us()
            states = [(key[1], entry.state) for key, entry in self._known.items() if key[0] == terms.rule_id]
        told = {identity: KEPT[BAN].check(state, now, 0, terms.params) for identity, state in states}
        return {digest(identity): outcome.next_after for identity, outcome in told.items() if not outcome.allowed}

    def _give_back_due(self, now: int) -> None:
        """Make the refunds that are due. The lock is held."""
        while self._refunds:
            plan, outcomes = self._refunds.popleft()
            for check, outcome in charged(plan, outcomes):
                entry = self._entries.of(check)
                if entry is not None:
                    entry.mark(check, _give_back(check, entry, outcome, now=now), now)

    def _struck(self, checks: tuple[Check, ...], told: list[Outcome], now: int) -> tuple[Outcome, ...]:
        """The outcomes of a refused plan, when its refusals have been counted towards the bans that they name."""
        outcomes = list(told)
        for at, ban in enumerate(checks):
            waits = []
            if ban.terms.algorithm == BAN and told[at].allowed:
                pairs = zip(told, strikers(checks, ban), strict=True)
                waits = [outcome.retry_after or 0 for outcome, strikes in pairs if strikes and not outcome.allowed]
            entry = self._known.get((ban.terms.rule_id, ban.identity))
            if waits and (entry is not None or self._entries.has_room(now)):
                entry = self._charge(ban._replace(cost=1), entry, now)
                outcomes[at] = _check(ban, 0, entry, now)
                entry.mark(ban, outcomes[at], now)
                entry.refused_until = max(entry.refused_until, now + max(waits))  # who is refused keeps its strikes
        return tuple(outcomes)

    def _charge(self, check: Check, entry: Entry | None, now: int, *, network: Network = None) -> Entry:
        """Add the cost to the entry; a new one if there is none, or if a check of the same plan took its place."""
        if entry is None or entry.gone:
            entry = self._entries.admit(check, now, state=None if entry is None else entry.state, network=network)
        terms, _, cost = check
        if isinstance(entry, Shared):
            self._entries.welcome(check, entry, now)
        entry.state = KEPT[terms.algorithm].charge(entry.state, now, cost, terms.params)
        return entry

    def _stand(self, check: Check, entry: Entry | None, outcome: Outcome, *, plan: Plan, now: int) -> Outcome:
        """How a check stands after a plan that took nothing, save what counts refusals, or was forced."""
        allowed, terms = outcome.allowed, check.terms
        counts = plan.charge and (terms.count_denied or plan.forced)
        if counts and check.cost and outcome.retry_after is not NEVER:
            entry = self._charge(check, entry, now, network=plan.network)
            outcome = _check(check, check.cost, entry, now)
            entry.mark(check, outcome, now)
        elif entry is not None and not (allowed or terms.shadow) and outcome.retry_after is not None:
            entry.refused_until = now + outcome.retry_after
        if outcome.allowed:
            outcome = _check(check, 0, entry, now)
        if terms.shadow:
            return in_shadow(outcome, passed=allowed)
        return outcome if outcome.allowed is allowed else outcome._replace(allowed=allowed)


def _check(check: Check, cost: int, entry: Entry | None, now: int) -> Outcome:
    """Ask the check's algorithm."""
    state = None if entry is None else entry.state
    return KEPT[check.terms.algorithm].check(state, now, cost, check.terms.params)


def _give_back(check: Check, entry: Entry, outcome: Outcome, *, now: int) -> Outcome:
    """Undo a charge, as far as the window that it fell into is still there, and say how it stands then."""
    terms, _, cost = check
    entry.state = KEPT[terms.algorithm].refund(entry.state, now, cost, terms.params, outcome.at)
    entry.refused_until = 0
    return _check(check, 0, entry, now)


class AsyncMemoryStore(Awaited):
    """A memory store for AsyncLimiter: the same, awaited. Its lock is held for microseconds, so it needs no thread."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._memory = store
        self.caution = store.caution

    async def bans(self, terms: Terms) -> dict[str, int]:
        """As of MemoryStore."""
        return self._memory.bans(terms)

    def __repr__(self) -> str:
        return f"Async{self._store!r}"


def open_sync(url: str, *, prefix: str, clock: Clock | None, deadline: float = DEADLINE) -> MemoryStore:
    """A store for `memory://` or `memory://?max_keys=100000`. It has no use for prefix and deadline."""
    found = _max_keys(url)
    if isinstance(found, str):
        expected = "use memory:// or memory://?max_keys=100000"
        raise StoreURLError("store", shown_url(url), problem=found, expected=expected)
    return MemoryStore(max_keys=found, clock=clock)


def _max_keys(url: str) -> int | str:
    """What a URL says, or what is wrong with it: where that is raised, no variable holds a part of the URL."""
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
    """The same for an AsyncLimiter."""
    return AsyncMemoryStore(open_sync(url, prefix=prefix, clock=clock, deadline=deadline))

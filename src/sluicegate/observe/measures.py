"""What the metrics of both libraries count: decisions under labels, and the stores of this process.

Rule names and routes are few, unless an application makes the name of an action from data ("reply-4711"). A metrics
server keeps every combination of labels for months, so those beyond a bound are counted as one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from sluicegate.clock import monotonic
from sluicegate.limiter import AsyncLimiter, Limiter
from sluicegate.observe.events import DecisionEvent, Labels, Line
from sluicegate.observe.status import describe
from sluicegate.reservation import IN_FLIGHT
from sluicegate.runtime import fork

MOST: Final = 2000
"""The combinations of labels of one metric in one process. Later names are counted under the name "other"."""

MOST_BANS: Final = 10_000
"""The identities under a ban that one process counts."""

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""The buckets for the store's seconds: a server near by answers within a millisecond, the usual deadline is 0.1."""

DEGRADED: Final = frozenset({"local", "policy"})
"""The sources of an outcome that was made without the store."""

HELP: Final = {
    "decisions": "Decisions, by endpoint.",
    "outcomes": "What each rule of a decision said.",
    "shadow_refusals": "Allowed decisions that rules in shadow would have refused, by endpoint.",
    "near_limit": "Outcomes that left at most a tenth of the limit.",
    "degraded_decisions": "Decisions without the store.",
    "store_seconds": "Seconds that the calls of the store took for a decision.",
    "open_circuits": "Circuit breakers that are not closed.",
    "entries": "Budgets in the memory of this process.",
    "evictions": "Budgets that were evicted because the memory was full.",
    "degraded_allowed": "Decisions without the store that allowed: at most so many too many.",
    "slots": "Concurrency slots that this process holds.",
    "bans": "Identities under a ban that this process has refused.",
}
"""What each metric is."""

Names = tuple[str, ...]
Add = Callable[[int], object]
Adders = Mapping[Names, Add]
Observe = Callable[[float], object]
_Counter = TypeVar("_Counter")


class Series(dict[Names, _Counter]):
    """A counter for each combination of labels, made when it is first needed. The second label may be an invented name.

    >>> series = Series(list)
    >>> series["shop", "reply"]
    ['shop', 'reply']
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[Names], _Counter]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, labels: Names) -> _Counter:
        if len(self) >= MOST and labels[1:2] not in {(), ("other",)}:
            return self[labels[0], "other", *labels[2:]]
        made = self[labels] = self._make(labels)
        return made


class Kind:
    """The events with the same labels: how many, and what they add to."""

    __slots__ = ("_adders", "count", "is_degraded", "is_usual", "observe")

    def __init__(self, labels: Labels, adders: Iterable[Add], observe: Observe) -> None:
        _, _, _, said, lines = labels
        self._adders = tuple(adders)
        self.observe = observe  # adds the seconds of the store to their histogram
        self.count = 0  # those that are not added yet
        self.is_degraded = any([source in DEGRADED for _, _, source, _ in lines])
        self.is_usual = not self.is_degraded and said == "allowed" and all([line[1] == "allowed" for line in lines])

    def flush(self) -> None:
        """Add what was counted."""
        count, self.count = self.count, 0
        for add in self._adders if count else ():
            add(count)


class Kinds(dict[Labels, Kind]):
    """Counts events by their labels: one look-up for each event. `flush` adds the counts to those of each metric.

    The metrics are given as what adds to them: `decisions` by application, endpoint, method and result, `outcomes` by
    application, rule, result and source, `shadow` by application, endpoint and method, `near` by application and rule,
    `degraded` by application. `observe` returns what adds to the histogram of an application.
    """

    __slots__ = ("_decisions", "_degraded", "_near", "_observe", "_outcomes", "_shadow")

    def __init__(
        self,
        *,
        decisions: Adders,
        outcomes: Adders,
        shadow: Adders,
        near: Adders,
        degraded: Adders,
        observe: Callable[[Names], Observe],
    ) -> None:
        super().__init__()
        self._decisions, self._outcomes, self._near, self._degraded = decisions, outcomes, near, degraded
        self._shadow, self._observe = shadow, observe

    def __missing__(self, labels: Labels) -> Kind:
        if len(self) >= MOST:
            self.flush()  # each metric bounds its own labels
            self.clear()
        made = self[labels] = Kind(labels, self._adders(labels), self._observe(labels[:1]))
        return made

    def flush(self) -> None:
        """Add what was counted."""
        for kind in self.values():
            kind.flush()

    def _adders(self, labels: Labels) -> Iterator[Add]:
        """Yield what events with these labels add to."""
        application, endpoint, method, said, lines = labels
        yield self._decisions[application, endpoint, method, said]
        for rule, its, source, near in lines:
            yield self._outcomes[application, rule, its, source]
            if near:
                yield self._near[application, rule]
        if said == "allowed" and any([its == "shadow" for _, its, _, _ in lines]):
            yield self._shadow[application, endpoint, method]
        if any([source in DEGRADED for _, _, source, _ in lines]):
            yield self._degraded[application,]


class StoreNumbers(NamedTuple):
    """The numbers of all limiters of this process that use one store. Those in GROWING are since the last reading."""

    open_circuits: int = 0
    entries: int = 0
    evictions: int = 0
    degraded_allowed: int = 0


GROWING: Final = StoreNumbers._fields[2:]


class Stores:
    """Reads the numbers of the stores of this process. What only grows is read as its growth, because a limiter that is
    deleted takes its numbers along.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: WeakKeyDictionary[Limiter | AsyncLimiter, tuple[int, ...]] = WeakKeyDictionary()
        fork.renew(self)

    def after_fork(self) -> None:
        """Renew the lock. The child counts on from the numbers of its parent."""
        self._lock = threading.Lock()

    def read(self) -> dict[str, StoreNumbers]:
        """Return the numbers by store. A store is named as in a status, without its password."""
        found: dict[str, StoreNumbers] = {}
        with self._lock:
            limiters: list[Limiter | AsyncLimiter] = [*Limiter.existing(), *AsyncLimiter.existing()]
            for limiter in limiters:
                status = describe(limiter.store)
                grown: tuple[int, ...] = tuple([getattr(status, name) for name in GROWING])
                before = self._before.get(limiter, (0,) * len(GROWING))
                self._before[limiter] = grown
                numbers = StoreNumbers(
                    sum(circuit.state != "closed" for circuit in status.circuits),
                    status.entries or 0,
                    *[max(0, now - then) for now, then in zip(grown, before, strict=True)],
                )
                known = found.get(status.store, StoreNumbers())
                found[status.store] = StoreNumbers(*map(sum, zip(known, numbers, strict=True)))
        return found


class Slots:
    """The slots that this process holds, by store and rule. A rule whose slots are all free stays, with 0."""

    def __init__(self) -> None:
        self._sums: dict[Names, int] = {}

    def read(self) -> dict[Names, int]:
        """Return how many slots are held now."""
        sums = dict.fromkeys(self._sums, 0)
        for store, checks in IN_FLIGHT.read():
            for terms, _, cost in [check for check in checks if check.terms.held]:
                labels = describe(store).store, terms.name
                if labels not in sums and len(sums) >= MOST:
                    labels = labels[0], "other"
                sums[labels] = sums.get(labels, 0) + cost
        self._sums = sums
        return sums


class Bans:
    """The bans that this process has met, and that still last. A client whose next request a ban lets pass is free."""

    def __init__(self) -> None:
        self.until: dict[tuple[Names, str], float] = {}  # those that may still last
        self._rules: set[Names] = set()

    def clear(self) -> None:
        """Forget all bans."""
        self.until.clear()
        self._rules.clear()

    def note(self, event: DecisionEvent, lines: Iterable[Line]) -> None:
        """Note who is banned, and who is not banned any more."""
        for at, (rule, said, _, _) in enumerate(lines):
            name = event.application, rule
            if said == "banned":
                wait = event.rules[at].retry_after
                if len(self.until) >= MOST_BANS:
                    self.read()  # it drops those that are over
                if len(self.until) < MOST_BANS:
                    self._rules.add(name)
                    self.until[name, event.rules[at].identity] = inf if wait is None else monotonic() + wait
            elif name in self._rules:
                self.until.pop((name, event.rules[at].identity), None)

    def read(self) -> dict[Names, int]:
        """Return how many identities are banned now, by application and ban."""
        now = monotonic()
        self.until = {key: until for key, until in self.until.items() if until > now}
        found = dict.fromkeys(self._rules, 0)
        for name, _ in self.until:
            found[name] += 1
        return found

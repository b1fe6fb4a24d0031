"""The closed loop: what clients that honour Retry-After would have met. Each client asks one request after the other:
it waits as long as a refusal says, asks again, and goes on with its next request, at the earliest when that was logged.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

from sluicegate.extras import needs
from sluicegate.replay.decide import Budgets, Decider, Ready, Suspected, wait_of
from sluicegate.replay.plain import Met, steps_of

with needs("replay"):
    import polars as pl

WAITING: Final = 50_000  # requests that may wait at the same time, in a loop that is computed in order of time
_PATIENCE: Final = 20  # refusals of one request, after which its client gives up: waiting does not help


@dataclass
class Waits:
    """What clients met: their delays in milliseconds with three digits, and how often."""

    delays: Counter[int] = field(default_factory=Counter)
    never: int = 0  # requests that no wait lets through
    retries: int = 0
    longest: int = 0  # microseconds
    unknown: str = ""  # why nothing is known

    def __add__(self, other: Waits) -> Waits:
        return Waits(
            self.delays + other.delays,
            self.never + other.never,
            retries=self.retries + other.retries,
            longest=max(self.longest, other.longest),
            unknown=self.unknown or other.unknown,
        )

    def add(self, met: Met) -> None:
        if met.delays:
            delays = pl.Series("delay", met.delays)
            self.longest = max([self.longest, *met.delays])
            self.delays.update(dict(_shortened(delays).value_counts().iter_rows()))
        self.retries += met.retries
        self.never += met.never

    def passed(self, delay: int) -> None:
        """Count a request that passed this many microseconds later than it was logged."""
        if delay > 0:
            self.delays[shortened(delay)] += 1
            self.longest = max(self.longest, delay)


def shortened(delay_us: int) -> int:
    """Return a delay in milliseconds with three digits, rounded up, so that the number of different delays is small."""
    value = -(-delay_us // 1000)
    scale = 10 ** max(0, len(str(value)) - 3)
    return int(-(-value // scale) * scale)


def _shortened(delays: pl.Series) -> pl.Series:
    """Return `shortened` of each."""
    value = -(-delays // 1000)
    scale = pl.lit(10, pl.Int64()).pow((pl.col("delay").cast(pl.String()).str.len_bytes().cast(pl.Int64()) - 3).clip(0))
    return value.to_frame().select(-(-pl.col("delay") // scale) * scale).to_series()


def waits_of(ready: Ready, found: Suspected) -> Waits:
    """Return what those who might be refused would have met. The others would not have waited."""
    waits = Waits()
    if ready.alone is None and ready.plain:
        columns = ["time", "set"]
        for times, sets in found.rest.group_by("identity").agg(columns).select(columns).iter_rows():
            Client(ready).several(times, sets, waits)
        return waits
    if ready.alone is None:
        fresh = ready.fresh()
        for _, mine in found.rest.group_by("identity", maintain_order=True):
            Client(fresh).all(mine, waits)
        return waits
    terms, met, columns = ready.terms[0], Met(), ["time", *(["cost"] if found.cost is None else [])]
    for times, *costs in found.rest.group_by("identity").agg(columns).select(columns).iter_rows():
        steps_of(terms, found.cost).wait(times, costs[0] if costs else found.cost or 0, met)
    waits.add(met)
    return waits


class Client:
    """A client that waits. Its requests may come in pieces. The candidate must count each identity alone."""

    def __init__(self, ready: Ready) -> None:
        cost = ready.alone.rule.cost if ready.alone is not None else None
        self._ready = ready
        self._steps = steps_of(ready.terms[0], cost if isinstance(cost, int) else None)
        self._budgets = Budgets(ready)
        self._decider = Decider(ready)
        self._now = 0

    def feed(self, found: Suspected) -> Waits:
        """Return the waits of the next requests that some rule applies to."""
        waits = Waits()
        if self._ready.alone is not None:
            met, rest = Met(), found.rest
            costs = rest["cost"].to_list() if found.cost is None else found.cost
            self._steps.wait(rest["time"].to_list(), costs, met)
            waits.add(met)
        elif self._ready.plain:
            self.several(found.rest["time"].to_list(), found.rest["set"].to_list(), waits)
        else:
            self.all(found.rest, waits)
        return waits

    def several(self, times: Sequence[int], sets: Sequence[int], waits: Waits) -> None:
        """Count the waits under several plain rules."""
        ask, now = self._budgets.ask, self._now
        for logged, chosen in zip(times, sets, strict=True):
            now = max(now, logged)
            while (refusal := ask(now, chosen)) is not None and refusal[0] is not None:
                waits.retries += 1
                now += refusal[0]
            if refusal is None:
                waits.passed(now - logged)
            else:
                waits.never += 1
        self._now = now

    def all(self, frame: pl.DataFrame, waits: Waits) -> None:
        """Count the waits under any rules."""
        at = {name: place for place, name in enumerate(frame.columns)}
        decider, now = self._decider, self._now
        for values in frame.iter_rows():
            logged = values[at["time"]]
            now = max(now, logged)
            for _ in range(_PATIENCE):
                decision = decider.decide(now, self._ready.request(values, at))
                if decision is None or decision.allowed:
                    waits.passed(now - logged)
                    break
                wait = wait_of(decision)
                if wait is None:
                    waits.never += 1
                    break
                waits.retries += 1
                now += wait
            else:
                waits.never += 1
        self._now = now


class Loop:
    """The closed loop of a candidate that does not count each identity alone, in order of time. Each client asks one
    request after the other; those behind a request that waits are kept.
    """

    def __init__(self, ready: Ready) -> None:
        self._ready = ready.fresh()
        self._decider = Decider(self._ready)
        self._lines: dict[str | None, deque[tuple[Sequence[Any], dict[str, int]]]] = {}  # of each client that waits
        self._refusals: Counter[str | None] = Counter()  # of the first request of each line
        self._due: list[tuple[int, int, str | None]] = []  # (time, a number, client)
        self._numbers = count()
        self._kept = 0
        self.waits = Waits()

    def feed(self, frame: pl.DataFrame) -> None:
        """Ask the requests of a frame that a rule applies to. The column `identity` has the clients."""
        at = {name: place for place, name in enumerate(frame.columns)}
        for values in frame.iter_rows():
            client, now = values[at["identity"]], values[at["time"]]
            self._wake(now)
            if self.waits.unknown:
                return
            self._kept += 1
            if client in self._lines:
                self._lines[client].append((values, at))
            else:
                self._lines[client] = deque([(values, at)])
                self._ask(client, now)
            if self._kept > WAITING:
                self.waits = Waits(unknown=f"more than {WAITING:,} requests would wait at the same time")
                self._lines.clear()
                self._due.clear()

    def end(self) -> Waits:
        """Return what the clients met, after all of them have gone on."""
        while self._due:
            self._wake(self._due[0][0])
        return self.waits

    def _wake(self, now: int) -> None:
        while self._due and self._due[0][0] <= now:
            time, _, client = heappop(self._due)
            self._ask(client, time)

    def _ask(self, client: str | None, now: int) -> None:
        """Ask the requests of a client until one must wait."""
        line, waits = self._lines[client], self.waits
        while line:
            values, at = line[0]
            decision = None
            if self._refusals[client] < _PATIENCE:
                decision = self._decider.decide(now, self._ready.request(values, at))
                wait = None if decision is None or decision.allowed else wait_of(decision)
                if wait is not None:
                    waits.retries += 1
                    self._refusals[client] += 1
                    heappush(self._due, (now + wait, next(self._numbers), client))
                    return
            if self._refusals[client] == _PATIENCE or (decision is not None and not decision.allowed):
                waits.never += 1
            else:
                waits.passed(now - values[at["time"]])
            line.popleft()
            self._kept -= 1
            del self._refusals[client]
        del self._lines[client]

"""The closed loop: what clients that honour Retry-After would have met. Each client asks one request after the other:
it waits as long as a refusal says, asks again, and goes on with its next request, at the earliest when that was logged.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final

from sluicegate.errors import needs
from sluicegate.replay.caller import LoggedRequest
from sluicegate.replay.decide import Decider, OneIdentity, Ready, by_identity, one_identity, wait_of
from sluicegate.replay.plain import PATIENCE, Met

with needs("replay"):
    import polars as pl

WAITING: Final = 50_000  # requests that may wait at the same time, in a loop that is computed in order of time


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
            self.longest = max([self.longest, *met.delays])
            self.delays.update(dict(_shortened(pl.Series("delay", met.delays)).value_counts().iter_rows()))
        self.retries += met.retries
        self.never += met.never


def _shortened(delays: pl.Series) -> pl.Series:
    """Return delays in milliseconds with three digits, rounded up, so that the number of different ones is small."""
    value = -(-delays // 1000)
    scale = pl.lit(10, pl.Int64()).pow((pl.col("delay").cast(pl.String()).str.len_bytes().cast(pl.Int64()) - 3).clip(0))
    return value.to_frame().select(-(-pl.col("delay") // scale) * scale).to_series()


def waits_of(ready: Ready, found: pl.DataFrame, kept: OneIdentity | None = None) -> Waits:
    """Return what those who might be refused would have met. The others would not have waited. If they are a piece of
    the requests of one identity, that one is `kept`.
    """
    waits, met = Waits(), Met()
    fresh = ready if ready.plain or kept else Ready(ready.candidate)  # with empty budgets
    for _, _, times, values in by_identity(ready, found):
        (kept or one_identity(fresh)).wait(times, values, met)
    waits.add(met)
    return waits


class Loop:
    """The closed loop of a candidate that does not count each identity alone, in order of time. Each client asks one
    request after the other; those behind a request that waits are kept.
    """

    def __init__(self, ready: Ready) -> None:
        self._ready = Ready(ready.candidate)  # with budgets of its own
        self._decider = Decider(self._ready)
        self._lines: dict[str | None, deque[tuple[int, LoggedRequest]]] = {}  # of each client that waits
        self._refusals: Counter[str | None] = Counter()  # of the first request of each line
        self._due: list[tuple[int, int, str | None]] = []  # (time, a number, client)
        self._numbers = count()
        self._kept = 0
        self._met = Met()
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
            request = now, self._ready.request(values, at)
            if client in self._lines:
                self._lines[client].append(request)
            else:
                self._lines[client] = deque([request])
                self._ask(client, now)
            if self._kept > WAITING:
                self.waits = Waits(unknown=f"more than {WAITING:,} requests would wait at the same time")
                self._lines.clear()
                self._due.clear()
                return
        self.waits.add(self._met)
        self._met = Met()

    def end(self) -> Waits:
        """Return what the clients met, after all of them have gone on."""
        while self._due:
            self._wake(self._due[0][0])
        self.waits.add(self._met)
        return self.waits

    def _wake(self, now: int) -> None:
        while self._due and self._due[0][0] <= now:
            time, _, client = heappop(self._due)
            self._ask(client, time)

    def _ask(self, client: str | None, now: int) -> None:
        """Ask the requests of a client until one must wait."""
        line, met = self._lines[client], self._met
        while line:
            logged, request = line[0]
            decision = None
            if self._refusals[client] < PATIENCE:
                decision = self._decider.decide(now, request)
                wait = None if decision is None or decision.allowed else wait_of(decision)
                if wait is not None:
                    met.retries += 1
                    self._refusals[client] += 1
                    heappush(self._due, (now + wait, next(self._numbers), client))
                    return
            gives_up = self._refusals[client] == PATIENCE or (decision is not None and not decision.allowed)
            met.end(logged, None if gives_up else now)
            line.popleft()
            self._kept -= 1
            del self._refusals[client]
        del self._lines[client]

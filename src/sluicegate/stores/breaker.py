"""The breaker: whether a store may be asked now, and who says so when that changes. A state machine without I/O.

Closed: every request asks the store. One failure opens it: an outage costs one deadline, not one for each request.
Open: no request asks. When the back-off has passed, one probe is due, away from any request. Half open: the probe was
answered, so one request goes through for real, the trial; it closes the breaker, or opens it for longer. The two are
different questions: a server that is full answers a probe, which writes nothing, and refuses the trial.

The probe and the trial are lent to one caller each, and come back by themselves after a while: who had them may have
been lost with a forked process or a closed event loop. This module knows clocks and errors; no store and no plan.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

from sluicegate.awaiting import called_at_once, give_up, waits
from sluicegate.clock import MICROSECOND, Clock, SystemClock
from sluicegate.errors import StoreError
from sluicegate.stores import StoreChange

FIRST_US: Final = 50_000  # the first back-off
LONGEST_US: Final = MICROSECOND  # and the last: with a deadline, a server is found again within two seconds
_STEADY_US: Final = 2 * MICROSECOND  # closed for less than this, the next failure goes on where the last one ended

log = logging.getLogger("sluicegate")


class Breaker:
    """The state of one store, safe between threads.

    `deadline` says, in seconds, how long a probe or a trial may take; `jitter` is a number from 0 to 1, drawn for every
    back-off. `closed` is 0 unless closed, else which time it is: a request reads it once, asks the store if it may, and
    says it again should that fail, for a failure that comes late says nothing of a store that has recovered since.
    """

    def __init__(
        self,
        *,
        deadline: float,
        clock: Clock | None = None,
        on_change: Callable[[StoreChange], object] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.closed = 1
        self._times = 1  # how often it has been closed
        self.store = ""  # the last one that failed, by its name for people
        self._lent_us = round(deadline * MICROSECOND) + LONGEST_US
        self._now_us = (SystemClock() if clock is None else clock).now_us
        self._on_change = on_change
        self._jitter = jitter
        self._lock = threading.RLock()  # a refund by a finalizer may fail in a thread that holds it
        self._half = False
        self._backoff_us = 0
        self._free_at = 0  # when the next probe or trial may be lent
        self._closed_at = 0

    @property
    def wait_us(self) -> int:
        """Until the store may be asked next; 0 when it may be now."""
        return 0 if self.closed else max(0, self._free_at - self._now_us())

    def probe(self) -> Loan | None:
        """Leave to see whether the store answers, away from any request; None while that is not due."""
        return Loan(self, then=self._answered) if self._lend(half=False) else None

    def trial(self) -> Loan | None:
        """Leave to send one request through; None while the store has not answered a probe."""
        return Loan(self, then=self.recovered) if self._lend(half=True) else None

    def failed(self, error: StoreError, *, closed: int) -> None:
        """The store failed a request that was sent because the breaker was `closed`."""
        with self._lock:
            changed = closed != 0 and closed == self.closed
            if changed:
                again = self._backoff_us > 0 and self._now_us() - self._closed_at < _STEADY_US
                self._open(error, 2 * self._backoff_us if again else FIRST_US)
        if changed:
            log.warning("sluicegate: %s; it is left alone, and asked now and then whether it is back", error)
            self._tell(StoreChange(error.store, available=False, error=error))

    def failed_again(self, error: StoreError) -> None:
        """The probe or the trial failed."""
        with self._lock:
            if not self.closed:
                self._open(error, 2 * self._backoff_us)

    def give_back(self) -> None:
        """What was lent came to nothing: its task was cancelled, or its thread could not start."""
        with self._lock:
            self._half, self._free_at = False, self._now_us() + FIRST_US

    def _open(self, error: StoreError, backoff_us: int) -> None:
        self.closed, self._half, self.store = 0, False, error.store
        self._backoff_us = min(backoff_us, LONGEST_US)
        self._free_at = self._now_us() + round(self._backoff_us * (1 + self._jitter()) / 2)

    def _lend(self, *, half: bool) -> bool:
        with self._lock:
            now = self._now_us()
            if self.closed or self._half is not half or now < self._free_at:
                return False
            self._free_at = now + self._lent_us
            return True

    def _answered(self) -> None:
        with self._lock:
            if not self.closed:
                self._half, self._free_at = True, self._now_us()

    def recovered(self) -> None:
        """The store answers again: close."""
        with self._lock:
            changed = not self.closed
            if changed:
                self._times += 1
                self.closed, self._half, self._closed_at = self._times, False, self._now_us()
        if changed:
            log.warning("sluicegate: store %s answers again", self.store)
            self._tell(StoreChange(self.store, available=True, error=None))

    def _tell(self, change: StoreChange) -> None:
        if self._on_change is not None:
            try:
                answer = self._on_change(change)
                if waits(answer):
                    give_up(answer)
                    raise called_at_once("on_store_change", self._on_change)
            except Exception:
                log.exception("sluicegate: on_store_change failed")


class Breakers:
    """The breakers of one store: one for all of it, or one for each server where a store is made of several.

    Such a store has `parts(*identities)`: the servers that would answer for them, by the names that its errors have,
    as far as it knows. A server that is down is then no trouble of the others.
    """

    def __init__(self, make: Callable[[], Breaker], *, parts: Callable[..., tuple[str, ...]] | None = None) -> None:
        self.whole = make()
        self.single = parts is None
        self._make = make
        self._parts = parts
        self._of: dict[str, Breaker] = {}

    def of(self, *identities: str) -> Breaker:
        """The breaker that a request for these identities must ask: an open one if there is any."""
        if self._parts is None or not self._of:
            return self.whole
        found = [self._of[part] for part in self._parts(*identities) if part in self._of]
        return next((breaker for breaker in [self.whole, *found] if not breaker.closed), self.whole)

    def failed(self, error: StoreError, asked: Breaker, *, closed: int, identities: tuple[str, ...]) -> None:
        """Tell the breaker of the server that failed; `asked` was `closed` when the request was sent."""
        if not closed or self._parts is None or error.store not in self._parts(*identities):
            asked.failed(error, closed=closed)
            return
        breaker = self._of.get(error.store)
        if breaker is None:
            breaker = self._of.setdefault(error.store, self._make())
        breaker.failed(error, closed=breaker.closed)

    def answered(self, breaker: Breaker, *identities: str) -> None:
        """A probe was answered. If it was by another server, which took the place of the one that failed, so be it."""
        if breaker is not self.whole and self._parts is not None and breaker.store not in self._parts(*identities):
            breaker.recovered()


class Loan:
    """The probe or the trial in one caller's hands: a `with` block that tells the breaker what came of it."""

    __slots__ = ("_breaker", "_then")

    def __init__(self, breaker: Breaker, *, then: Callable[[], None]) -> None:
        self._breaker, self._then = breaker, then

    def __enter__(self) -> None:
        """The store may be asked."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._then()
        elif isinstance(error, StoreError):
            self._breaker.failed_again(error)
        else:
            self._breaker.give_back()

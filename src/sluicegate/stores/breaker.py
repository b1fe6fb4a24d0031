"""The circuit breaker: a state machine without I/O that says whether a store may be called now.

- **Closed**: every request calls the store. One failure opens the breaker, so an outage costs one deadline, not one
  for each request.
- **Open**: no request calls the store. When the back-off has passed, one probe is due, outside of any request.
- **Half open**: the store has replied to the probe. One request, the trial, goes to the store. It closes the breaker,
  or opens it for longer.

A probe and a trial test different things: a server whose memory is full replies to a probe, which writes nothing, and
refuses the trial. So a call that charges nothing (a peek, a reset) is the trial only if such a call would have failed
too: not after an error reply to a charge.

Only a failure that concerns the breaker's server or store opens it. A failure that concerns one plan or one rule does
not: the server answers others.

One caller at a time gets the probe or the trial. If that caller does not report a result, because its process was
forked or its event loop was closed, another caller may get it after a while.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from sluicegate.clock import MICROSECOND, Clock, SystemClock, epoch_seconds
from sluicegate.errors import Concerns, StoreError, cause_text
from sluicegate.observe.status import CircuitState, CircuitStatus
from sluicegate.runtime import fork
from sluicegate.runtime.awaiting import async_mismatch, close_unawaited, waits
from sluicegate.stores import StoreChange

FIRST_US: Final = 50_000  # the first back-off
LONGEST_US: Final = MICROSECOND  # the longest back-off: with a deadline, a server is found again within two seconds
_STEADY_US: Final = 2 * MICROSECOND  # a failure after a shorter time closed doubles the last back-off

_JITTER: Final = random.SystemRandom().random  # an application may have seeded `random.random` for its own use
_PROBING: Final = f"probing every {LONGEST_US / MICROSECOND:g} s"
_OPENED: Final = {  # by what the breaker concerns
    "node": f"sluicegate: %s; circuit open: node unavailable, other nodes are not affected, {_PROBING}",
    "store": f"sluicegate: %s; circuit open: store unavailable, {_PROBING}",
}
_REPLACED: Final = "sluicegate: store %s replaced by %s: circuit closed"  # the one that failed, and the present one

log = logging.getLogger("sluicegate")

Attempt = AbstractContextManager[None]
"""A probe or a trial: a `with` block that reports its result to the breaker."""


class Breaker:
    """The state of one store, safe between threads.

    `deadline` is how many seconds a probe or a trial may take. `jitter` returns a number from 0 to 1 for every
    back-off. `closed` is 0 while the breaker is open, else a number that grows each time it closes. A request reads it
    once before it calls the store, and passes the same number to `failed`. So a late failure does not open a breaker
    that has closed again since. `store` and `cause` name the failure that opened the breaker.
    """

    def __init__(
        self,
        *,
        deadline: float,
        clock: Clock | None = None,
        on_change: Callable[[StoreChange], object] | None = None,
        jitter: Callable[[], float] = _JITTER,
    ) -> None:
        self.closed = 1
        self.concerns: Concerns = "store"  # "node" for one server of several
        self.serving: Callable[[], str] | None = None  # of a store whose server may be replaced: the present one
        self.timed = clock is None  # else its time stands still between requests
        self.store = ""
        self.cause = ""
        self._since = epoch_seconds()  # when it last opened or closed
        self._one_failed = False  # whether `store` names a server, not the whole store
        self._times = 1  # how often it has been closed
        self._opened_by: tuple[Concerns, ...] = ("node", "store")
        self._fails_peeks = False  # whether a call that charges nothing would have failed as the last one did
        # So long one caller has the probe or the trial. After that another may get it: the first may be gone.
        self._attempt_us = round(deadline * MICROSECOND) + LONGEST_US
        self._now_us = (SystemClock() if clock is None else clock).now_us
        self._on_change = on_change
        self._jitter = jitter
        self._lock = threading.RLock()  # a refund by a finalizer may fail in a thread that holds it
        self._half = False  # whether the store has answered a probe, so that a trial is next
        self._backoff_us = 0  # the last back-off; 0 if it has never opened
        self._free_at = 0  # when the next probe or trial may begin
        self._closed_at = 0  # a failure soon after it doubles the back-off
        fork.renew(self)

    def after_fork(self) -> None:
        """Forget the probe that is under way in the parent: the child may start one at once."""
        self._lock = threading.RLock()
        self._half, self._free_at = False, 0

    @property
    def wait_us(self) -> int:
        """Return the microseconds until the store may be called next; 0 if it may be called now."""
        return 0 if self.closed else max(0, self._free_at - self._now_us())

    def describe(self, part: str = "") -> CircuitStatus:
        """Return the state, for a status."""
        with self._lock:
            state: CircuitState = "closed" if self.closed else "probing" if self._half else "open"
            error = None if self.closed else self.cause
            return CircuitStatus(part=part, state=state, since=self._since, error=error)

    def probe(self) -> Attempt | None:
        """Return the right to check, outside of any request, whether the store replies; None while no check is due."""
        return self._attempt(self._answered) if self._start(half=False) else None

    def trial(self, *, charge: bool = True) -> Attempt | None:
        """Return the right to send one request to the store; None while the store has not replied to a probe, or if the
        request does not `charge` and would prove nothing.
        """
        if not (charge or self._fails_peeks) or not self._start(half=True):
            return None
        return self._attempt(self.recovered, charge=charge)

    @contextmanager
    def _attempt(self, then: Callable[[], None], *, charge: bool = False) -> Generator[None]:
        """Return a `with` block that reports its result. `then` is called if the server has answered."""
        try:
            yield
        except StoreError as error:
            if self.is_opened_by(error):
                self.failed_again(error, charge=charge)
            elif error.concerns == "plan":
                self.give_back()
            else:  # the server has answered, and refuses the rule
                then()
            raise
        except BaseException:
            self.give_back()
            raise
        then()

    @property
    def needs_probe(self) -> bool:
        """True while the breaker is open and the store has not answered a probe."""
        return not self.closed and not self._half

    def failed(self, error: StoreError, *, closed: int, charge: bool = True) -> None:
        """Open the breaker, because a request failed that was sent while the breaker was `closed`."""
        if not closed:
            return
        with self._lock:
            changed = closed == self.closed
            if changed:
                again = self._backoff_us > 0 and self._now_us() - self._closed_at < _STEADY_US
                self.store, self.cause = error.store, cause_text(error.cause)  # text: an exception keeps its frames
                self._one_failed = error.concerns == "node"
                self._since = epoch_seconds()
                self._open(2 * self._backoff_us if again else FIRST_US, error, charge=charge)
        if changed:  # outside the lock: the log and the hook run code of the user
            log.warning(_OPENED[self.concerns], error, extra=_fields("circuit_opened", error.store, self.cause))
            self._call_hook(StoreChange(error.store, available=False, error=error))

    def failed_again(self, error: StoreError, *, charge: bool) -> None:
        """Open for longer, because the probe or the trial failed."""
        with self._lock:
            if not self.closed:
                self._open(2 * self._backoff_us, error, charge=charge)

    def give_back(self) -> None:
        """Free the probe or the trial without a result: its task was cancelled, or its thread could not start."""
        with self._lock:
            self._half, self._free_at = False, self._now_us() + FIRST_US

    def is_opened_by(self, error: StoreError) -> bool:
        """True if the failure concerns the server or the store of this breaker."""
        return error.concerns in self._opened_by

    def leave_nodes(self) -> None:
        """Let failures of single servers not open this breaker, because each server has a breaker."""
        self._opened_by = ("store",)

    def _open(self, backoff_us: int, error: StoreError, *, charge: bool) -> None:
        self.closed, self._half = 0, False
        # A cause that is text is an error reply, which may refuse only to write.
        self._fails_peeks = not charge or not isinstance(error.cause, str)
        self._backoff_us = min(backoff_us, LONGEST_US)
        # From half of it to all of it, at random: the processes do not probe a server that comes back all at once.
        self._free_at = self._now_us() + round(self._backoff_us * (1 + self._jitter()) / 2)

    def _start(self, *, half: bool) -> bool:
        """True if the caller may start a probe, or a trial if `half`."""
        with self._lock:
            now = self._now_us()
            if self.closed or self._half is not half or now < self._free_at:
                return False
            self._free_at = now + self._attempt_us
            return True

    def _answered(self) -> None:
        """Allow a trial, because the store replied to a probe."""
        with self._lock:
            if not self.closed:
                self._half, self._free_at = True, self._now_us()

    def recovered(self) -> None:
        """Close the breaker, because the store works again."""
        server = self.serving() if self._one_failed and self.serving is not None else ""
        if server in ("", self.store):
            self._close("sluicegate: store %s recovered: circuit closed")
        else:
            self._close(_REPLACED, server)

    def replaced(self) -> None:
        """Close the breaker, because other servers have the keys of this one, so that no request needs it."""
        self._close(_REPLACED, "another server")

    def _close(self, message: str, *more: str) -> None:
        with self._lock:
            changed = not self.closed
            if changed:
                self._times, self._since = self._times + 1, epoch_seconds()
                self.closed, self._half, self._closed_at = self._times, False, self._now_us()
        if changed:
            log.info(message, self.store, *more, extra=_fields("circuit_closed", self.store, self.cause))
            self._call_hook(StoreChange(self.store, available=True, error=None))

    def _call_hook(self, change: StoreChange) -> None:
        if self._on_change is not None:
            try:
                answer = self._on_change(change)
                if waits(answer):
                    close_unawaited(answer)
                    raise async_mismatch("on_store_change", self._on_change)
            except Exception:
                log.exception("sluicegate: on_store_change failed")


def _fields(event: str, store: str, error: str) -> dict[str, str]:
    """Return the fields of a log line, which docs/logs.md names."""
    return {"sluicegate_event": event, "sluicegate_store": store, "sluicegate_error": error}


class Breakers:
    """The breakers of one store: one for the whole store, or one for each server of a store with several servers.

    A store with several servers has `parts(*identities)`: the servers that keep the keys of these identities, or all
    servers, by the names in its errors, as far as the store knows them. A server that is down does not affect the
    others. A store whose server may be replaced by another one has `serving()`: the name of the present one.
    """

    def __init__(
        self,
        make: Callable[[], Breaker],
        *,
        parts: Callable[..., tuple[str, ...]] | None = None,
        serving: Callable[[], str] | None = None,
    ) -> None:
        self.whole = make()
        self.whole.serving = serving
        self.single = parts is None
        if parts is not None:
            self.whole.leave_nodes()
        self._make = make
        self._parts = parts
        self._of: dict[str, Breaker] = {}

    def of(self, *identities: str) -> Breaker:
        """Return the breaker for a request with these identities: an open one if there is any."""
        if self._parts is None or not self._of:
            return self.whole
        found = [self._of[part] for part in self._parts(*identities) if part in self._of]
        return next((breaker for breaker in [self.whole, *found] if not breaker.closed), self.whole)

    def failed(self, error: StoreError, asked: Breaker, *, closed: int, charge: bool) -> Breaker | None:
        """Report a failure to the breaker of what it concerns; `asked` was `closed` when the request was sent. Return
        the breaker; None if no breaker is concerned.
        """
        breaker: Breaker | None = self.whole
        if self._parts is not None and error.concerns == "node":
            breaker = self._of.get(error.store)
            if breaker is None and error.store in self._parts():  # else requests are sent to other servers by now
                breaker = self._make()
                breaker.concerns = "node"
                breaker = self._of.setdefault(error.store, breaker)
        if breaker is None or error.concerns in ("plan", "rule"):
            return None
        # Only `asked` was read before the request was sent. Another breaker counts the failure as it is now.
        breaker.failed(error, closed=closed if breaker is asked else breaker.closed, charge=charge)
        return breaker

    def describe(self) -> tuple[CircuitStatus, ...]:
        """Return the state of the breaker of the whole store, and of each node that has failed."""
        return (self.whole.describe(), *[breaker.describe(part) for part, breaker in list(self._of.items())])

    def replaced(self, breaker: Breaker, *identities: str) -> bool:
        """Close and forget a server's breaker if it no longer keeps the keys of these identities. Else return False."""
        if breaker is self.whole or self._parts is None or breaker.store in self._parts(*identities):
            return False
        self._of.pop(breaker.store, None)
        breaker.replaced()
        return True

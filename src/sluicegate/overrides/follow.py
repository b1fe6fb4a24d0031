"""Following the overrides: each process looks at most once a second whether they have changed, beside its requests.

A look is one small command to the server, or the `stat` of a file. A request waits for it only after more than two
seconds without the end of a look: the process was idle, and must not decide by what held before. What is found is
checked whole. While it cannot be read or cannot hold, the last good set holds, each override until its own end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from logging import getLogger
from os import getpid
from socket import gethostname
from threading import Event, Lock
from typing import Any, Final

from sluicegate.clock import MICROSECOND, Clock, SystemClock, epoch_seconds
from sluicegate.errors import ConfigurationError, StoreError, warn
from sluicegate.identity import digest
from sluicegate.overrides.applied import Applied
from sluicegate.overrides.override import HEAD, Document, Override
from sluicegate.stores import Counted

# Between two looks. With the name once a minute it is still at most one command a second.
EVERY_US: Final = MICROSECOND * 21 // 20
_TELLS_US: Final = 60 * MICROSECOND
_IDLE_US: Final = 2 * MICROSECOND  # without the end of a look, after which a request waits: all follow within this time
_MINUTES: Final = 3  # that a process is listed after it has told its name
_log = getLogger("sluicegate")


def mark_of(text: str) -> str:
    """Return a mark of the secret of a process, by the text that it gives to the identity "". Processes with the same
    mark give an identity the same text.
    """
    return digest(text)[:8]


def _held_in(text: bytes) -> tuple[Override, ...]:
    return Document.of(text).held


class Following:
    """What holds now, and when to look again. `parse` returns the overrides in what a look has found.

    `clock` is for tests; then it also tells the moment at which an override ends. `seal` is that of Applied.
    """

    def __init__(
        self,
        parse: Callable[[Any], tuple[Override, ...]] = _held_in,
        *,
        clock: Clock | None = None,
        seal: Callable[[str], str] | None = None,
    ) -> None:
        self._parse, self._seal, self._clock = parse, seal, clock
        self.now_us = (SystemClock() if clock is None else clock).now_us
        self.applied: Applied | None = None  # what holds instead of rules now
        self.known = b""  # the beginning of the document that was read last, whether it can hold or not
        self.held: tuple[Override, ...] = ()
        self.refused: str | None = None  # why what was read last does not hold
        self._lock = Lock()  # around `applied` and `_next_end`, which belong together
        self.due = 0  # by the clock: before it there is nothing to do
        self._began: int | None = None  # the last look
        self.looked = Event()  # set at its end
        self._ended: int | None = None
        self._told: int | None = None  # when this process last told its name
        self._next_end: int | None = None  # of an override, by the clock

    def begin(self) -> tuple[bool, bool]:
        """Return what a request has to do that has found `due` in the past: begin a look, and wait for the look."""
        now = self.now_us()
        if self._next_end is not None and now >= self._next_end:
            self._apply(now)
        begins = self._began is None or now - self._began >= EVERY_US
        if begins:
            self.looked = Event()  # first: another thread that finds that a look has begun waits for this one
            self._began = now  # of several requests at a time one looks
        waits = self._ended is None or now - self._ended > _IDLE_US
        if waits:
            self.due = 0  # the others ask too, until the look has ended: they wait for it
        else:
            self._set_due()
        return begins, waits

    @contextmanager
    def look(self) -> Generator[None]:
        """The time of one look. What is wrong with the found, or with the permissions, is said once; while the server
        is away, what is known goes on to hold.
        """
        try:
            yield
        except (ConfigurationError, StoreError) as error:
            if not isinstance(error, StoreError) or error.concerns == "rule":
                self._refuse(str(error))
        finally:  # also after an error of a user's own store: nobody waits for ever
            self._ended = self.now_us()
            self._set_due()
            self.looked.set()

    def take(self, found: Any) -> None:
        """Let what a look has found hold. This may take long: a set may have 10,000 overrides."""
        self.known = found[:HEAD]
        self.held = self._parse(found)
        self._apply(self.now_us())
        self._set_due()
        self.refused = None

    def after_fork(self) -> None:
        """Look at once, and tell the name: the process is another one. Its parent's look does not end here."""
        self.looked, self._lock = Event(), Lock()  # a thread of the parent may hold theirs
        self.known = b""  # the parent may have read what it did not apply before the fork
        self._began = self._ended = self._told = None
        self.due = 0

    def introduction(self, text: str) -> list[Counted]:
        """Return what tells the server the name of this process, and the mark of its secret: once a minute, else
        nothing. `text` is that of the identity "".
        """
        now = self.now_us()
        if self._told is not None and now - self._told < _TELLS_US:
            return []
        self._told = now
        name = f"{gethostname()}:{getpid()} {mark_of(text)}"
        return [Counted(_tables()[0], 60 * _MINUTES, {name: 1})]

    def _refuse(self, why: str) -> None:
        """Keep the last good set, because what was found cannot hold. Say so once."""
        if why != self.refused:
            self.refused = why
            told = {"sluicegate_event": "overrides_refused", "sluicegate_error": why}  # docs/logs.md names them
            _log.warning("sluicegate: the overrides that were found cannot hold: %s", why, extra=told)
            warn("SG115", "overrides", strict=False, why=why)

    def _apply(self, now: int) -> None:
        """Apply the overrides that have not ended."""
        # An end is a moment of the calendar, and the clock of a process may begin anywhere.
        epoch, held = int(epoch_seconds() * MICROSECOND) if self._clock is None else now, self.held
        live = tuple([each for each in held if each.holds(epoch)])
        ends = [each.until for each in live if each.until is not None]
        before = () if self.applied is None else self.applied.overrides
        applied = self.applied if live == before else Applied(live, seal=self._seal) if live else None
        with self._lock:
            if held is not self.held:  # a look in another thread has found a newer set
                return
            self._next_end = now + min(ends) - epoch if ends else None
            self.applied = applied
        if live != before:
            _log.info("sluicegate: %d overrides hold now", len(live), extra={"sluicegate_event": "overrides_changed"})

    def _set_due(self) -> None:
        began = 0 if self._began is None else self._began + EVERY_US
        self.due = began if self._next_end is None else min(began, self._next_end)


def _tables() -> list[str]:
    """Return the names of the tables that have the names of processes, the newest first: one for each minute."""
    minute = int(epoch_seconds()) // 60
    return [f"processes:{minute - ago}" for ago in range(_MINUTES)]


def processes(store: Any) -> list[str]:
    """Return the names and marks of the processes that follow the overrides in a store, as they told it in the last
    minutes.
    """
    return sorted({name for table in store.read_counts(_tables()) for name in table})


def who_follows(store: Any) -> str:
    """Return a sentence for a person who has changed the overrides in a store."""
    if processes(store):
        return "All processes follow within 2 seconds."
    return "No process follows: they had no request lately, have another store or prefix, or follow a file."

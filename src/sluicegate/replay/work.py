"""The work on one partition: count its identities' requests under each candidate. Several processes share it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any, Final

from sluicegate.errors import ReplayError
from sluicegate.extras import needs
from sluicegate.identity import digest
from sluicegate.quota import Quota
from sluicegate.replay.candidates import Candidate
from sluicegate.replay.closed_loop import waits_of
from sluicegate.replay.curves import Scale
from sluicegate.replay.decide import Ready, refusals_of, suspected
from sluicegate.replay.one import NOBODY, Fastest, One
from sluicegate.replay.partitions import Part, Single
from sluicegate.replay.peaks import PEAK, peaks
from sluicegate.replay.tally import (
    Common,
    Grid,
    Name,
    Tally,
    add,
    common,
    following,
    in_order,
    of_one,
    passing,
    readable,
    rounded,
    tally,
)
from sluicegate.web.bound import Bound

with needs("replay"):
    import polars as pl

Counted = tuple[Common, list[Tally]]
_THREADS: Final = "POLARS_MAX_THREADS"


def applies_to(bound: Bound) -> str:
    """Return the methods and the path of a rule as text."""
    known: frozenset[str] = bound.methods or frozenset()
    methods = ",".join(sorted(known - {"HEAD"} or known))  # a rule for GET is one for HEAD as well
    return " ".join([each for each in (methods, bound.rule.path) if each])


@dataclass(frozen=True)
class Work:
    """What is to be counted of each partition of one key."""

    candidates: tuple[Candidate, ...]
    sane: Quota
    grid: Grid
    requests: int
    curves: bool
    show: bool

    def count(self, part: Part) -> Counted:
        """Decide about the requests of one partition under each candidate, and count."""
        if isinstance(part, Single):
            return self._count_single(part)
        found = part.load()
        ordered = found.frame.sort("identity", maintain_order=True, nulls_last=True)
        insane = passing(ordered.filter(pl.col("identity").is_not_null()), self.sane)
        shared = common(ordered, insane, grid=self.grid)
        name = self._namer(found.texts)
        tallies = [
            self._tally(Ready(candidate), number, ordered, insane=insane, name=name)
            for number, candidate in enumerate(self.candidates)
        ]
        if self.curves:
            shared.rates = self._rates(ordered)
        return shared, tallies

    def _namer(self, texts: pl.DataFrame) -> Name:
        """Return the function from the number of an identity to what the report calls it."""

        def name(identity: int) -> str:
            text = texts.filter(pl.col("identity") == identity)["text"].item()
            return readable(text) if self.show else digest(text)

        return name

    def _count_single(self, part: Single) -> Counted:
        """Decide about the requests of one identity, piece by piece."""
        ones = [
            One(Ready(candidate), number, curves=Scale(candidate, self.requests) if self.curves else None)
            for number, candidate in enumerate(self.candidates)
        ]
        shared, tallies = Common(), [Tally() for _ in ones]
        periods = self._periods() if self.curves else {}
        sane, fastest = Fastest([self.sane.period_us]), {text: Fastest(each[2]) for text, each in periods.items()}
        for piece in part.pieces():
            rows, name = piece.frame, self._namer(piece.texts)
            known = rows.filter(pl.col("identity").is_not_null())
            shared = add(shared, common(rows, NOBODY, grid=self.grid))
            sane.feed(known["time"])
            for text, (ready, bound, _) in periods.items():
                fastest[text].feed(known.filter(ready.applies(known, bound))["time"])
            found = [one.tally(rows, self.grid, name) for one in ones]
            tallies = [*map(following, tallies, found)]
        insane = sane.most[self.sane.period_us] > self.sane.limit
        for each in tallies:
            of_one(shared, each, grid=self.grid, insane=insane)
        for text, fast in fastest.items():
            shared.rates.update([(period, text, rounded(peak)) for period, peak in fast.most.items() if peak])
        return shared, tallies

    def _periods(self) -> dict[str, tuple[Ready, Bound, set[int]]]:
        """Return the periods of the rules, by what the rules apply to."""
        periods: dict[str, tuple[Ready, Bound, set[int]]] = {}
        for ready in [each for each in map(Ready, self.candidates) if each.by_identity]:
            for bound in ready.bounds:
                of_rule = periods.setdefault(applies_to(bound), (ready, bound, set()))[2]
                of_rule |= {each.quota.period_us for each in bound.terms or ()}
        return periods

    def _rates(self, ordered: pl.DataFrame) -> Counter[tuple[int, str, int]]:
        """Count the identities by their peak in each period of a rule, of the requests that the rule applies to."""
        found: Counter[tuple[int, str, int]] = Counter()
        for text, (ready, bound, chosen) in self._periods().items():
            mine = ordered.filter(ready.applies(ordered, bound) & ordered["identity"].is_not_null())
            most = peaks(mine.select("identity", "time"), ["identity"], sorted(chosen))
            for period in chosen:
                for peak, number in most[f"{PEAK}{period}"].value_counts().iter_rows():
                    found[period, text, rounded(peak)] += number
        return found

    def _tally(self, ready: Ready, number: int, ordered: pl.DataFrame, *, insane: pl.Series, name: Name) -> Tally:
        if not ready.by_identity:
            refusals, decided = in_order(ordered, number)
            return tally(ordered, refusals, decided=decided, insane=insane, grid=self.grid, name=name)
        some = suspected(ready, ordered)
        refusals = refusals_of(ready, some)
        found = tally(ordered, refusals, decided=some.decided, insane=insane, grid=self.grid, name=name)
        fast = pl.col("identity").is_in(insane.implode())
        who = some.rest.join(refusals, on="row", how="semi").select("identity").unique()
        wait = some.rest.join(who, on="identity", how="semi", maintain_order="left")  # who is never refused never waits
        found.innocent_waits = waits_of(ready, some._replace(rest=wait.filter(~fast)))
        found.waits = found.innocent_waits + waits_of(ready, some._replace(rest=wait.filter(fast)))
        if self.curves:
            found.curves = Scale(ready.candidate, self.requests).points(ordered, insane)
        return found


def total(work: Work, parts: Sequence[Part], processes: int, *, step: Callable[[], object]) -> Counted:
    """Count all partitions, in several processes if there are several, and add up. `step` is called after each."""
    found: Counted = Common(), [Tally() for _ in work.candidates]
    with workers(processes if len(parts) > 1 and _can_travel(work) else 1) as each:
        for shared, tallies in each(work.count, parts):
            found = add(found[0], shared), [add(one, other) for one, other in zip(found[1], tallies, strict=True)]
            step()
    return found


Each = Callable[..., Iterator[Any]]
"""`map`: a function, and iterables of its arguments."""


@contextmanager
def workers(processes: int) -> Generator[Each]:
    """Return `map`, or one that calls the function in so many processes."""
    if processes < 2:
        yield map
        return
    # Fresh interpreters: a fork would copy the threads of polars half. Each has its own share of the cores.
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    context, others = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    with _interrupts_held():  # it starts a process that tracks semaphores
        pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)
    try:
        yield partial(_in_turn, pool, 2 * processes)
    except BrokenProcessPool as error:
        expected = "look in the system's log whether memory ran out"
        raise ReplayError("a process of", "replay", problem="it was killed", expected=expected) from error
    finally:
        for process in multiprocessing.active_children():  # after an error they still count what nobody waits for
            if process not in others:
                process.terminate()
        pool.shutdown(cancel_futures=True)
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before


def _in_turn(
    pool: ProcessPoolExecutor, ahead: int, function: Callable[..., Any], *arguments: Iterable[Any]
) -> Iterator[Any]:
    """Yield what the function returns, in the order of its arguments. The pool has at most `ahead` calls."""
    waiting: deque[Future[Any]] = deque()
    for each in zip(*arguments, strict=False):
        with _interrupts_held():
            waiting.append(pool.submit(function, *each))
        if len(waiting) == ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@contextmanager
def _interrupts_held() -> Generator[None]:
    """Hold a terminal's signals back while processes start: they inherit that until they ignore them themselves."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    signal.siginterrupt(signal.SIGINT, True)  # polars has put its own handler around Python's, and waits went on
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Leave the signals of a terminal to the process that started this one: it ends this one. End also when that
    process was killed and could not.
    """
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):  # Windows has one
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _can_travel(work: Work) -> bool:
    """True if the candidates can be sent to another process: a function that is made in a function cannot."""
    try:
        pickle.dumps(work)
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    return True

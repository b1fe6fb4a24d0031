"""The work on one partition: count its identities' requests under each candidate. Several processes share it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import Any, Final, TypeVar

from sluicegate.errors import ReplayError, needs
from sluicegate.identity import digest
from sluicegate.replay import kinds
from sluicegate.replay.candidates import Candidate
from sluicegate.replay.closed_loop import waits_of
from sluicegate.replay.curves import Known, Scale
from sluicegate.replay.decide import Ready, decided, ruled
from sluicegate.replay.partitions import Part
from sluicegate.replay.peaks import PEAK, peaks
from sluicegate.replay.tally import Common, Grid, Name, Tally, add, common, in_order, readable, rounded, tally
from sluicegate.web.bound import Bound

with needs("replay"):
    import polars as pl

Counted = tuple[Common, list[Tally]]
_IS_KNOWN: Final = pl.col("identity").is_not_null()
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
    resolution: int  # of the times, in microseconds
    grid: Grid
    curves: bool
    show: bool
    sees_assets: bool = False

    def count(self, part: Part) -> Counted:
        """Decide about the requests of one partition under each candidate, and count."""
        held = part.load()
        rows, name = held.frame, self._namer(held.texts)
        figures = kinds.kinds(rows.filter(_IS_KNOWN), sees_assets=self.sees_assets, resolution=self.resolution)
        who = figures.table.select("identity", "kind")
        shared = common(rows, grid=self.grid)
        shared.kinds = Counter(who["kind"])
        shared.rates = self._rates(rows) if self.curves else Counter()
        known: Known = {}
        ready = map(Ready, self.candidates)
        return shared, [self._tally(*each, rows, who=who, name=name, known=known) for each in enumerate(ready)]

    def _tally(
        self, number: int, ready: Ready, rows: pl.DataFrame, *, who: pl.DataFrame, name: Name, known: Known
    ) -> Tally:
        """Count what one candidate decides about the requests of some identities. `who` has the kind of each."""
        if not ready.plain:
            refusals, ruled = in_order(rows, number)
            return tally(rows, refusals, decided=ruled, kinds=who, grid=self.grid, name=name)
        rest, ruled, refusals = decided(ready, rows)
        found = tally(rows, refusals, decided=ruled, kinds=who, grid=self.grid, name=name)
        refused = rest.join(refusals, on="row", how="semi").select("identity").unique()
        rest = rest.join(refused, on="identity", how="semi", maintain_order="left")  # who is never refused never waits
        programs = who.filter(kind=kinds.AUTOMATED)["identity"]
        is_program = pl.col("identity").is_in(programs.implode())
        found.people_waits = waits_of(ready, rest.filter(~is_program))
        found.waits = found.people_waits + waits_of(ready, rest.filter(is_program))
        if self.curves:
            found.curves = Scale(ready).points(rows, programs, known)
        return found

    def _namer(self, texts: pl.DataFrame) -> Name:
        """Return the function from the number of an identity to what the report calls it."""

        def name(identity: int) -> str:
            text = texts.filter(pl.col("identity") == identity)["text"].item()
            return readable(text) if self.show else digest(text)

        return name

    def _rates(self, rows: pl.DataFrame) -> Counter[tuple[int, str, int]]:
        """Count the identities by the most requests in each period of a rule, and by what the rule applies to. A
        candidate and the number of its quota say that to frames.
        """
        rules: dict[str, tuple[Ready, int, set[int]]] = {}
        for ready in [each for each in map(Ready, self.candidates) if each.plain]:
            for number, (at, terms) in enumerate(zip(ready.owner, ready.terms, strict=True)):
                periods = rules.setdefault(applies_to(ready.bounds[at]), (ready, number, set()))[2]
                periods.add(terms.quota.period_us)
        rates = Counter[tuple[int, str, int]]()
        for text, (ready, number, periods) in rules.items():
            found = peaks(ruled(ready, rows).filter(ready.having(number)), ["identity"], periods)
            for period in periods:
                for peak, identities in found[f"{PEAK}{period}"].value_counts().iter_rows():
                    rates[period, text, rounded(peak)] += identities
        return rates


def total(work: Work, parts: Sequence[Part], processes: int, *, step: Callable[[], object]) -> Counted:
    """Count all partitions, in several processes if there are several, and add up. `step` is called after each."""
    found: Counted = Common(), [Tally() for _ in work.candidates]
    with workers(processes if len(parts) > 1 and _can_travel(work) else 1) as each:
        work = replace(work, sees_assets=with_assets(each(loading, parts)))
        for shared, tallies in each(work.count, parts):
            found = add(found[0], shared), [add(one, other) for one, other in zip(found[1], tallies, strict=True)]
            step()
    return found


def loading(part: Part) -> tuple[int, int]:
    """Return how many identities that may be people loaded assets, and how many there are."""
    return kinds.loading(part.load().frame.filter(_IS_KNOWN))


def with_assets(loaded: Iterable[tuple[int, int]]) -> bool:
    """Return whether the log has the assets that browsers load, from what `loading` returned of each part."""
    pairs = [*loaded]
    return kinds.sees_assets(sum([loads for loads, _ in pairs]), sum([of for _, of in pairs]))


Returned = TypeVar("Returned")
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
        yield partial(_in_turn, pool)
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
    pool: ProcessPoolExecutor, function: Callable[..., Returned], *arguments: Iterable[object]
) -> Iterator[Returned]:
    """Yield what the function returns, in the order of its arguments."""
    with _interrupts_held():  # it starts the processes
        found = pool.map(function, *arguments)
    yield from found


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

"""breaker.py: a table of events and the states that follow, the log, the hook, and lost attempts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import Any

import pytest

from sluicegate import ManualClock, StoreError
from sluicegate.stores import StoreChange
from sluicegate.stores.breaker import FIRST_US, LONGEST_US, Attempt, Breaker

DOWN = StoreError("there:6379", "it hangs")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def make(clock: ManualClock, *, jitter: float = 1, **options: Any) -> Breaker:
    return Breaker(deadline=0.1, clock=clock, jitter=lambda: jitter, **options)


def fail(breaker: Breaker) -> None:
    breaker.failed(DOWN, closed=breaker.closed)


def lent(take: Callable[[], Attempt | None], error: Exception | None = None) -> bool:
    """True if an attempt was allowed. The store then replies, or fails."""
    loan = take()
    if loan is None:
        return False
    with suppress(StoreError, RuntimeError), loan:
        if error is not None:
            raise error
    return True


def state(breaker: Breaker, clock: ManualClock) -> str:
    """The state of the breaker, found out by what it allows."""
    if breaker.closed:
        return "closed"
    clock.advance(2)
    return "half" if breaker.trial() is not None else "open"


Step = Callable[[Breaker, ManualClock], object]
STEPS: dict[str, Step] = {
    "fails": lambda breaker, clock: fail(breaker),
    "fails late": lambda breaker, clock: breaker.failed(DOWN, closed=1),
    "waits": lambda breaker, clock: clock.advance(1),
    "probe answered": lambda breaker, clock: lent(breaker.probe),
    "probe failed": lambda breaker, clock: lent(breaker.probe, DOWN),
    "probe cancelled": lambda breaker, clock: lent(breaker.probe, RuntimeError()),
    "trial passed": lambda breaker, clock: lent(breaker.trial),
    "trial failed": lambda breaker, clock: lent(breaker.trial, DOWN),
    "trial cancelled": lambda breaker, clock: lent(breaker.trial, RuntimeError()),
}
RECOVERED = "fails, waits, probe answered, trial passed"


@pytest.mark.parametrize(
    ("story", "end"),
    [
        ("", "closed"),
        ("probe answered, trial passed", "closed"),  # no attempt was allowed
        ("fails", "open"),
        ("fails, fails", "open"),
        ("fails, probe answered", "open"),  # not due yet
        ("fails, waits, trial passed", "open"),  # no trial without a probe
        ("fails, waits, probe failed", "open"),
        ("fails, waits, probe cancelled", "open"),
        ("fails, waits, probe answered", "half"),
        ("fails, waits, probe answered, probe failed", "half"),  # no further probe
        ("fails, waits, probe answered, fails late", "half"),
        ("fails, waits, probe answered, trial failed", "open"),
        ("fails, waits, probe answered, trial cancelled", "open"),
        (RECOVERED, "closed"),
        (f"{RECOVERED}, fails late", "closed"),  # a request that was sent before the outage
        (f"{RECOVERED}, fails", "open"),
        (f"fails, waits, probe cancelled, waits, {RECOVERED.removeprefix('fails, ')}", "closed"),
    ],
)
def test_states(clock: ManualClock, story: str, end: str) -> None:
    breaker = make(clock)
    for step in filter(None, story.split(", ")):
        STEPS[step](breaker, clock)
    assert state(breaker, clock) == end


@pytest.mark.parametrize(("jitter", "part"), [(0, 2), (1, 1)])
def test_the_back_off_doubles_to_a_second(clock: ManualClock, jitter: float, part: int) -> None:
    breaker = make(clock, jitter=jitter)
    fail(breaker)
    waits = []
    for _ in range(7):
        waits.append(breaker.wait_us * part)
        clock.advance_us(breaker.wait_us - 1)
        assert breaker.probe() is None
        clock.advance_us(1)
        assert lent(breaker.probe, DOWN)
    assert waits == [50_000, 100_000, 200_000, 400_000, 800_000, 1_000_000, 1_000_000]


def test_a_refused_trial_continues_the_last_back_off(clock: ManualClock) -> None:
    """A full server replies to commands that write nothing, and refuses all others."""
    breaker = make(clock)
    fail(breaker)
    for longer in (100_000, 200_000, 400_000):
        clock.advance(1)
        assert lent(breaker.probe)
        assert lent(breaker.trial, DOWN)
        assert breaker.wait_us == longer
    assert breaker.closed == 0


@pytest.mark.parametrize(("steady", "backoff"), [(1.9, 2 * FIRST_US), (2, FIRST_US)])
def test_a_failure_soon_after_the_recovery_continues_the_back_off(
    clock: ManualClock, steady: float, backoff: int
) -> None:
    breaker = make(clock)
    for step in RECOVERED.split(", "):
        STEPS[step](breaker, clock)
    clock.advance(steady)
    fail(breaker)
    assert breaker.wait_us == backoff


def test_a_lost_attempt_is_allowed_again(clock: ManualClock) -> None:
    """It was lost with a forked process, or with an event loop that was closed."""
    breaker = make(clock)
    fail(breaker)
    clock.advance(1)
    for take in (breaker.probe, breaker.trial):
        assert take() is not None
        clock.advance_us(100_000 + LONGEST_US - 1)
        assert take() is None
        clock.advance_us(1)
        assert lent(take)
    assert breaker.closed


def test_one_line_and_one_call_for_each_transition(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluicegate")
    changes: list[StoreChange] = []
    breaker = make(clock, on_change=changes.append)
    for step in f"fails, fails, fails late, waits, probe failed, waits, {RECOVERED}, fails late, fails".split(", "):
        STEPS[step](breaker, clock)
    expected = [("there:6379", False, DOWN), ("there:6379", True, None), ("there:6379", False, DOWN)]
    assert changes == expected
    assert {record.name for record in caplog.records} == {"sluicegate"}
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    assert ["recovered" in record.getMessage() for record in caplog.records] == [False, True, False]
    assert all("there:6379" in record.getMessage() for record in caplog.records)


def test_a_hook_that_fails_is_logged_and_changes_nothing(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    def broken(change: StoreChange) -> None:
        raise LookupError("the hook's own mistake")

    caplog.set_level(logging.INFO)
    breaker = make(clock, on_change=broken)
    for step in RECOVERED.split(", "):
        STEPS[step](breaker, clock)
    assert breaker.closed
    assert [record.exc_info is not None for record in caplog.records] == [False, True, False, True]


def test_only_one_of_many_threads_gets_the_probe_and_one_failure_counts(clock: ManualClock) -> None:
    changes: list[StoreChange] = []
    breaker = make(clock, on_change=changes.append)
    together = Barrier(8)

    def request(closed: int) -> Attempt | None:
        together.wait()
        breaker.failed(DOWN, closed=closed)
        together.wait()
        if not together.wait():
            clock.advance(1)
        together.wait()
        return breaker.probe()

    with ThreadPoolExecutor(8) as pool:
        probes = list(pool.map(request, [breaker.closed] * 8))
    assert sum(probe is not None for probe in probes) == 1
    assert len(changes) == 1


def test_a_system_clock_and_a_random_jitter_are_the_defaults() -> None:
    breaker = Breaker(deadline=0.1)
    fail(breaker)
    assert FIRST_US // 4 < breaker.wait_us <= FIRST_US

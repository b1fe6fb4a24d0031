"""Load for an HTTP server: a steady number of requests a second over a few kept connections, timed one by one.

A test runs the load while it causes a fault, and names each step: `load.phase("fault")`. The latency of a request is
the time from its sending to its response. While a request hangs, its connection skips the requests that are due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from math import ceil
from threading import Event, Lock, Thread
from time import perf_counter
from typing import NamedTuple, Self

from tests.servers import HOST, PATIENCE

NO_RESPONSE = 0  # the status of a request without a response


class Sample(NamedTuple):
    phase: str
    path: str
    at: float  # seconds since the load began
    seconds: float
    status: int
    body: bytes


class Summary(NamedTuple):
    """The results of requests; times in seconds."""

    requests: int
    statuses: Counter[int]
    p50: float
    p99: float
    max: float

    def __str__(self) -> str:
        times = ", ".join(f"{name} {getattr(self, name) * 1000:.1f} ms" for name in ("p50", "p99", "max"))
        return f"{self.requests} requests {dict(self.statuses)}: {times}"


class NothingSentError(AssertionError):
    """A phase was over before a request was sent in it."""


class Load:
    """Requests to each of the paths in turn, from the start of the `with` block until `stop`. `headers` may depend on
    the phase.

    One thread for each of the `connections` sends requests, on a connection that it keeps. Together they send at most
    `rate` requests a second, evenly, and at most `limit` in all; then the threads wait. `phase` is the name of the
    first phase. `on_phase` is called with the name of each later phase when the phase begins.
    """

    def __init__(
        self,
        port: int,
        *paths: str,
        phase: str = "before",
        rate: float = 200,
        connections: int = 8,
        limit: int = 20_000,
        headers: Callable[[str], Mapping[str, str]] = lambda phase: {},
        on_phase: Callable[[str], object] = lambda phase: None,
    ) -> None:
        self._port, self._headers, self._on_phase = port, headers, on_phase
        self._paths = paths or ("/",)
        self._pause = connections / rate
        self._limit = limit
        self._phase = phase
        self._samples: list[Sample] = []
        self._sent = 0
        self._flying: Counter[str] = Counter()
        self._lock = Lock()
        self._over = Event()
        self._began = perf_counter()
        self._threads = [Thread(target=self._drive, args=(number / rate,)) for number in range(connections)]

    def __enter__(self) -> Self:
        self._began = perf_counter()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more requests, and wait for the responses."""
        self._over.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE)
            assert not thread.is_alive(), "a request hangs"

    def run(self, seconds: float) -> None:
        """Send requests for `seconds`."""
        self._over.wait(seconds)

    def run_until(self, done: Callable[[], object], what: str, *, patience: float) -> float:
        """Send requests until `done` returns true. Returns the seconds that took. TimeoutError after `patience`."""
        began = perf_counter()
        while not done():
            if perf_counter() - began > patience:
                raise TimeoutError(f"{what}: not within {patience} seconds")
            self._over.wait(0.01)
        return perf_counter() - began

    def phase(self, name: str) -> None:
        """Name the requests from now on. Waits until all earlier requests have their response."""
        with self._lock:
            before, self._phase = self._phase, name
        self._on_phase(name)
        self.run_until(lambda: not self._flying[before], f"{before} to end", patience=PATIENCE)

    def samples(self, phase: str, path: str | None = None) -> list[Sample]:
        """Return the requests of a phase, in the order of sending, for one path or all."""
        found = [sample for sample in self._samples if sample.phase == phase and path in (None, sample.path)]
        return sorted(found, key=lambda sample: sample.at)

    def summary(self, phase: str, path: str | None = None) -> Summary:
        """Return the figures of the requests of a phase."""
        samples = self.samples(phase, path)
        times = sorted([sample.seconds for sample in samples])
        if not times:
            raise NothingSentError(f"nothing was sent in {phase}")
        p50, p99 = times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)]
        return Summary(len(times), Counter([sample.status for sample in samples]), p50, p99, times[-1])

    def _drive(self, wait: float) -> None:
        connection = HTTPConnection(HOST, self._port, timeout=PATIENCE)
        due = self._began + wait
        try:
            while not self._over.wait(max(0.0, due - perf_counter())):
                with self._lock:
                    if self._sent == self._limit:
                        return
                    path, phase = self._paths[self._sent % len(self._paths)], self._phase
                    self._sent += 1
                    self._flying[phase] += 1
                sample = self._ask(connection, path, phase)
                with self._lock:
                    self._samples.append(sample)
                    self._flying[phase] -= 1
                # The thread's next time slot that has not passed. Otherwise threads that hung together stay in step.
                due += self._pause * max(1, ceil((perf_counter() - due) / self._pause))
        finally:
            connection.close()

    def _ask(self, connection: HTTPConnection, path: str, phase: str) -> Sample:
        headers = dict(self._headers(phase))
        began = perf_counter()
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, HTTPException) as error:
            connection.close()  # the next request opens it again
            status, body = NO_RESPONSE, repr(error).encode()
        return Sample(phase, path, began - self._began, perf_counter() - began, status, body)

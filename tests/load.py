"""Load for an HTTP server: a steady number of requests a second over a few kept connections, timed one by one.

A test drives it while it breaks something, and names what it is doing: `load.phase("fault")`. Latency is what a request
waits from the moment when it is sent; what was due while the one before it hung is not sent at all.
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

NO_ANSWER = 0  # the status of a request that got none


class Sample(NamedTuple):
    phase: str
    path: str
    at: float  # seconds since the load began
    seconds: float
    status: int
    body: bytes


class Summary(NamedTuple):
    """What requests came to; times in seconds."""

    requests: int
    statuses: Counter[int]
    p50: float
    p99: float
    max: float

    def __str__(self) -> str:
        times = ", ".join(f"{name} {getattr(self, name) * 1000:.1f} ms" for name in ("p50", "p99", "max"))
        return f"{self.requests} requests {dict(self.statuses)}: {times}"


class Load:
    """Requests from the `with` on until `stop`, to each of the paths in turn. `headers` may depend on the phase.

    At most `rate` a second go out, evenly, by as many threads as `connections`, each with a connection of its own that
    it keeps; and at most `limit` in all, then the threads rest. `phase` is the first one's name.
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
    ) -> None:
        self._port, self._headers = port, headers
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
        """Let what was sent be answered, and send no more."""
        self._over.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE)
            assert not thread.is_alive(), "a request hangs"

    def run(self, seconds: float) -> None:
        """Let it go on for so long."""
        self._over.wait(seconds)

    def run_until(self, done: Callable[[], object], what: str, *, patience: float) -> float:
        """Let it go on until it is so; answer how many seconds that took. TimeoutError after `patience`."""
        began = perf_counter()
        while not done():
            if perf_counter() - began > patience:
                raise TimeoutError(f"{what}: not within {patience} seconds")
            self._over.wait(0.01)
        return perf_counter() - began

    def phase(self, name: str) -> None:
        """Name what is sent from now on, once everything that was sent before is answered."""
        with self._lock:
            before, self._phase = self._phase, name
        self.run_until(lambda: not self._flying[before], f"{before} to end", patience=PATIENCE)

    def samples(self, phase: str, path: str | None = None) -> list[Sample]:
        """What was sent in a phase, in the order of sending; of one path or of all."""
        found = [sample for sample in self._samples if sample.phase == phase and path in (None, sample.path)]
        return sorted(found, key=lambda sample: sample.at)

    def summary(self, phase: str, path: str | None = None) -> Summary:
        """The same in figures."""
        samples = self.samples(phase, path)
        times = sorted([sample.seconds for sample in samples])
        assert times, f"nothing was sent in {phase}"
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
                # The next of its own moments that is not over: else threads that hung together would go on together.
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
            status, body = NO_ANSWER, repr(error).encode()
        return Sample(phase, path, began - self._began, perf_counter() - began, status, body)

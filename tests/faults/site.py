"""A site: a real HTTP server with the pages of one adapter, a real Valkey behind a proxy as its store, and load."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest

from sluicegate.identity import digest, identity_text
from tests.faults.apps import VARIABLE
from tests.load import Load, NothingSentError
from tests.proxies import Proxy
from tests.running import Answer, ask, running
from tests.servers import PATIENCE, Server, free_port, valkey_server
from tests.servers import ask as ask_server

UVICORN = "-m uvicorn --host 127.0.0.1 --port {port} --log-level warning --factory tests.faults.apps:{name}"
GUNICORN = "-m gunicorn --bind 127.0.0.1:{port} --worker-class gthread --threads 8 tests.faults.apps:{name}()"
ADAPTERS = {
    "asgi": UVICORN,
    "starlette": UVICORN,
    "django_asgi": UVICORN,
    "wsgi": GUNICORN,
    "flask": GUNICORN,
    "django_wsgi": GUNICORN,
}
SAMPLED = ("asgi", "wsgi")  # an adapter of each kind
PAIRS = (("asgi", "flask"), ("wsgi", "starlette"), ("asgi", "django_wsgi"), ("wsgi", "django_asgi"))
DEADLINE = 0.25  # more than the default: a busy machine must not look like a store that hangs
ADDED = DEADLINE + 0.02  # seconds: the p99 of added delay in the first second of an outage
OPEN = 0.001  # seconds: the added median once the circuit is open (or the time of the free page, if longer)
RECOVERY = 2.0  # seconds from the server's return to the first charge in it
SHORTLY = 0.2  # seconds for a phase that measures only counts and medians
LIMITED, FREE = "/limited", "/free"  # half of the load goes to a page without rules: it shows how busy the machine is
FIELD = "X-Phase"  # the header with the identity: every phase of every test has its own


def on_sites(name: str, faults: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize a test with each adapter's site and each fault. Without --matrix a fault has a site of each kind."""
    pairs = []
    for number, fault in enumerate(faults):
        for adapter in ADAPTERS:
            marks = () if adapter in PAIRS[number % len(PAIRS)] else (pytest.mark.matrix,)
            pairs.append(pytest.param(adapter, fault, marks=marks, id=f"{adapter}-{fault}"))
    return pytest.mark.parametrize(("open_site", name), pairs, indirect=["open_site"])


class Site:
    """A server and a proxy on which a test can cause faults, and load in phases that the test can measure."""

    def __init__(self, adapter: str, server: Server, log: Path) -> None:
        self.server = server
        self.log = log  # what the application logs
        self.proxy = Proxy(server.port)
        self.port = free_port()
        self._command = ADAPTERS[adapter].format(port=self.port, name=adapter).split()
        self._test_id, self._noted = uuid4().hex, 0

    @contextmanager
    def open(self) -> Iterator[Site]:
        """Serve the pages. The store may be down."""
        options = {
            "store": self.proxy.url,
            "deadline": DEADLINE,
            "rules": [{"name": "pages", "quota": "10000/day", "path": LIMITED, "key": f"header:{FIELD}"}],
            "algorithm": "sliding-log",  # its keys have one member for each charge
        }
        with self.proxy, running(self._command, self.port, env={VARIABLE: json.dumps(options)}, log_to=self.log):
            yield self

    @contextmanager
    def load(self, *, phase: str) -> Iterator[Load]:
        """Send load to both pages, in phases of this test only."""
        self._test_id, self._noted = uuid4().hex, len(self.log.read_text())
        self._note(phase)
        with Load(self.port, LIMITED, FREE, rate=300, phase=phase, headers=self.headers, on_phase=self._note) as load:
            yield load

    def logged(self) -> str:
        """What the application has logged since the load began, with the names of the phases between the lines."""
        return self.log.read_text()[self._noted :]

    def waited(self, phase: str) -> bool:
        """Whether a request waited for its whole deadline in this phase, or before it and opened the circuit."""
        before, _, after = self.log.read_text().rpartition(f"-- {phase}\n")
        since_closed = before[before.rfind("recovered") + 1 :]
        return "TimeoutError" in since_closed + after.partition("\n-- ")[0]

    def _note(self, phase: str) -> None:
        with self.log.open("a") as log:
            log.write(f"-- {phase}\n")

    @contextmanager
    def healthy_load(self) -> Iterator[Load]:
        """Send load as `load` does. Phase "before" begins after a phase in which every request was charged: after the
        start or after a fault.
        """
        with self.load(phase="warm 0") as load:
            for number in count(1):
                load.run(SHORTLY)
                load.phase(f"warm {number}")
                done = f"warm {number - 1}"
                if self.charged(done) == load.summary(done, LIMITED).requests:
                    break
                assert number * SHORTLY < PATIENCE, "the store does not charge all requests"
            load.phase("before")
            yield load

    def ask(self, phase: str) -> Answer:
        """Send one request with a phase."""
        return ask(self.port, "GET", LIMITED, self.headers(phase))

    def headers(self, phase: str) -> dict[str, str]:
        """Return the header of a phase."""
        return {FIELD: self._identity(phase)}

    def await_recovery(self, load: Load, phase: str) -> None:
        """Wait until 10 requests of a phase are charged in the server."""
        try:
            load.run_until(lambda: self.charged(phase) >= 10, "requests charged in the server", patience=RECOVERY)
        except TimeoutError as error:
            raise TooSlow(*error.args) from error

    def restore(self) -> None:
        """Repair every fault."""
        self.proxy.heal()
        if self.server.process is None:
            self.server.start()
        self.server.resume()
        self.server.command("CONFIG SET maxmemory 0")

    def charged(self, phase: str) -> int:
        """Return how many charges of a phase are in the server."""
        identity = digest(identity_text((f"header:{FIELD.lower()}", self._identity(phase))))
        keys = ask_server(self.server, "KEYS", f"sg:{{{identity}}}:*")
        return sum(ask_server(self.server, "ZCARD", key) for key in keys)

    def _identity(self, phase: str) -> str:
        return f"{self._test_id} {phase}"


@contextmanager
def serving(adapter: str, *, server_is_up: bool = True) -> Iterator[Site]:
    """Run a site with its own server."""
    with ExitStack() as everything:
        server = valkey_server()
        everything.callback(server.stop)
        if server_is_up:
            server.start()
        log = Path(everything.enter_context(TemporaryDirectory())) / "log"
        yield everything.enter_context(Site(adapter, server, log).open())


class TooSlow(AssertionError):
    """Something took longer than promised. This can happen on a busy machine."""


def retry_if_slow(attempt: Callable[[], None]) -> None:
    """Run a test up to three times if it raises TooSlow. Slow code fails all three times."""
    for _ in range(2):
        try:
            return attempt()
        except (TooSlow, NothingSentError) as error:
            print(f"too slow, running again: {error}")
    return attempt()


def assert_charged(site: Site, load: Load, phase: str, charges: int) -> None:
    """Assert that every request of a phase was charged once, unless one waited so long that the machine itself hung."""
    limited = load.summary(phase, LIMITED)
    assert charges <= limited.requests, phase
    holds = charges == limited.requests or limited.max > DEADLINE / 2
    assert_unless_slow(site, phase, holds, f"{charges} charges, {limited}")


def assert_unless_slow(site: Site, phase: str, holds: bool, figures: str) -> None:
    """Something holds about the charges of a phase. It may fail if requests waited too long, which is told apart.

    Then the circuit opened, and requests that waited for nothing were decided locally. The request that waited may be
    one of a phase before: the circuit that it opened stays open for a while.
    """
    if not holds:
        raise (TooSlow if site.waited(phase) else AssertionError)(f"{phase}: {figures}\n{site.logged()}")


def assert_bounded(load: Load, *phases: str) -> None:
    """Assert that every request passed, and that the p99 of the added delay is within the promise.

    The added delay is the p99 on the limited page minus the maximum on the page without rules, which has the same
    delays of a busy machine. `pytest -rA` shows the figures.
    """
    for phase in phases:
        limited, free = load.summary(phase, LIMITED), load.summary(phase, FREE)
        figures = f"{phase}: {limited}; without rules: {free}"
        print(figures)
        assert set(limited.statuses) == {200} == set(free.statuses), figures
        if limited.p99 - free.max > ADDED:
            raise TooSlow(figures)


def assert_circuit_open(load: Load) -> None:
    """Assert that requests do not wait for a store whose circuit is open. The best of three short phases counts."""
    for number in range(3):
        load.phase(f"open {number}")
        load.run(SHORTLY)
        load.phase("open")
        limited, free = load.summary(f"open {number}", LIMITED), load.summary(f"open {number}", FREE)
        assert set(limited.statuses) == {200} == set(free.statuses), limited
        if limited.p50 - free.p50 <= max(OPEN, free.p50):
            return
    raise TooSlow(f"circuit open: {limited}; without rules: {free}")

"""A site: a real HTTP server with one adapter's page, whose store is a real Valkey behind a proxy, and load on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from uuid import uuid4

from sluicegate.identity import digest, identity_text
from tests.faults.apps import VARIABLE
from tests.load import Load
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
DEADLINE = 0.25  # more than the default: a busy machine must not pass for a store that hangs
ADDED = DEADLINE + 0.02  # seconds that the slowest in a hundred waits longer in the first second of an outage
OPEN = 0.001  # and the median, once the store is left alone (or as long as the page takes, where that is longer)
RECOVERY = 2.0  # seconds from the server's return to the first charge in it
SHORTLY = 0.2  # seconds for a phase in which nothing is at stake but counts and medians
LIMITED, FREE = "/limited", "/free"  # half of the load goes to a page without rules: it shows how busy the machine is
FIELD = "X-Phase"  # the header that says who asks: every phase of every test is an identity of its own


class Site:
    """What a test of faults holds: `server` and `proxy` to break, and the load's phases to look at."""

    def __init__(self, adapter: str, server: Server) -> None:
        self.server = server
        self.proxy = Proxy(server.port)
        self.port = free_port()
        self._command = ADAPTERS[adapter].format(port=self.port, name=adapter).split()
        self._story = uuid4().hex

    @contextmanager
    def open(self) -> Iterator[Site]:
        """The page, served. Its store need not be there."""
        options = {
            "store": self.proxy.url,
            "deadline": DEADLINE,
            "rules": [{"name": "pages", "quota": "10000/day", "path": LIMITED, "key": f"header:{FIELD}"}],
            "algorithm": "sliding-log",  # which holds one member for each charge
        }
        with self.proxy, running(self._command, self.port, env={VARIABLE: json.dumps(options)}):
            yield self

    @contextmanager
    def load(self, *, phase: str) -> Iterator[Load]:
        """Load on both pages, in phases that no other test knows."""
        self._story = uuid4().hex
        with Load(self.port, LIMITED, FREE, rate=300, phase=phase, headers=self.headers) as load:
            yield load

    @contextmanager
    def healthy_load(self) -> Iterator[Load]:
        """The same, and "before" begins once a whole phase was charged: nothing is left of the start, or of a fault."""
        with self.load(phase="warm 0") as load:
            for number in count(1):
                load.run(SHORTLY)
                load.phase(f"warm {number}")
                done = f"warm {number - 1}"
                if self.charged(done) == load.summary(done, LIMITED).requests:
                    break
                assert number * SHORTLY < PATIENCE, "the store does not come into use"
            load.phase("before")
            yield load

    def ask(self, phase: str) -> Answer:
        """One request of a phase of its own."""
        return ask(self.port, "GET", LIMITED, self.headers(phase))

    def headers(self, phase: str) -> dict[str, str]:
        """What a request says of its phase."""
        return {FIELD: self._identity(phase)}

    def await_recovery(self, load: Load, phase: str) -> None:
        """Wait until requests of a phase are charged in the server, and go on to be."""
        try:
            load.run_until(lambda: self.charged(phase) >= 10, "requests charged in the server", patience=RECOVERY)
        except TimeoutError as error:
            raise TooSlow(*error.args) from error

    def restore(self) -> None:
        """As it was, whatever was broken."""
        self.proxy.heal()
        if self.server.process is None:
            self.server.start()
        self.server.resume()
        self.server.command("CONFIG SET maxmemory 0")

    def charged(self, phase: str) -> int:
        """How many charges the server holds of a phase."""
        identity = digest(identity_text((f"header:{FIELD.lower()}", self._identity(phase))))
        keys = ask_server(self.server, "KEYS", f"sg:{{{identity}}}:*")
        return sum(ask_server(self.server, "ZCARD", key) for key in keys)

    def _identity(self, phase: str) -> str:
        return f"{self._story} {phase}"


@contextmanager
def standing(adapter: str, *, server_is_up: bool = True) -> Iterator[Site]:
    """A site, with a server of its own."""
    with ExitStack() as everything:
        server = valkey_server()
        everything.callback(server.stop)
        if server_is_up:
            server.start()
        yield everything.enter_context(Site(adapter, server).open())


class TooSlow(AssertionError):
    """Something took longer than is promised. On a machine that has others to serve, that happens."""


def steadily(story: Callable[[], None]) -> None:
    """Tell a story up to three times, as long as it is only too slow: what is slow by itself is slow every time."""
    for _ in range(2):
        try:
            return story()
        except TooSlow as error:
            print(f"again, for it was too slow: {error}")
    return story()


def assert_charged(load: Load, phase: str, charges: int) -> None:
    """Every request of a phase was charged once, unless one waited so long that it was the machine that hung."""
    limited = load.summary(phase, LIMITED)
    assert charges <= limited.requests, phase
    assert charges == limited.requests or limited.max > DEADLINE / 2, f"{phase}: {charges} charges, {limited}"


def assert_bounded(load: Load, *phases: str) -> None:
    """Every request passed, and the slowest in a hundred waited no longer than is promised.

    That is what it waits longer than the slowest on the page without rules, which meets the same bad moments of a busy
    machine. `pytest -rA` shows the figures.
    """
    for phase in phases:
        limited, free = load.summary(phase, LIMITED), load.summary(phase, FREE)
        told = f"{phase}: {limited}; without rules: {free}"
        print(told)
        assert set(limited.statuses) == {200} == set(free.statuses), told
        if limited.p99 - free.max > ADDED:
            raise TooSlow(told)


def assert_left_alone(load: Load) -> None:
    """Requests do not wait for a store that is known to be out. The best of three short phases counts."""
    for number in range(3):
        load.phase(f"open {number}")
        load.run(SHORTLY)
        load.phase("open")
        limited, free = load.summary(f"open {number}", LIMITED), load.summary(f"open {number}", FREE)
        assert set(limited.statuses) == {200} == set(free.statuses), limited
        if limited.p50 - free.p50 <= max(OPEN, free.p50):
            return
    raise TooSlow(f"left alone: {limited}; without rules: {free}")

"""The load generator of the fault tests: its rate, its bounds and its results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest

from tests.load import NO_RESPONSE, Load
from tests.servers import PATIENCE, free_port


class Page(BaseHTTPRequestHandler):
    """Responds at once, after 0.1 s, or not at all, as the request's X-Wish says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        wish = self.headers["X-Wish"]
        if wish == "late":
            Event().wait(0.1)
        if wish == "none":
            self.close_connection = True
            return
        self.send_response(503 if wish == "busy" else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


class Server(ThreadingHTTPServer):
    """It accepts all connections of a load at once. The standard library has room for five; others wait for seconds."""

    request_queue_size = 100


@contextmanager
def page() -> Iterator[int]:
    with Server(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def run_until_sent(load: Load, phase: str, count: int) -> None:
    load.run_until(lambda: len(load.samples(phase)) >= count, f"{count} requests", patience=PATIENCE)


def test_each_phase_has_its_own_results() -> None:
    with page() as port, Load(port, rate=200, headers=lambda phase: {"X-Wish": phase}) as load:
        for phase in ("before", "late", "busy", "none", "after"):
            load.phase(phase)
            run_until_sent(load, phase, 20)
        load.stop()
        statuses = {phase: set(load.summary(phase).statuses) for phase in ("before", "late", "busy", "none", "after")}
        assert statuses == {"before": {200}, "late": {200}, "busy": {503}, "none": {NO_RESPONSE}, "after": {200}}
        before, late = load.summary("before"), load.summary("late")
        assert before.p50 <= before.p99 <= before.max
        assert max(before.p50, 0.1) < late.p50 < 10
        assert "requests {200: " in str(late)
        assert load.samples("before")[0].body == b"ok"


def test_requests_alternate_between_paths() -> None:
    with page() as port, Load(port, "/a", "/b", rate=200, phase="only") as load:
        run_until_sent(load, "only", 20)
        load.stop()
        counts = [load.summary("only", path).requests for path in ("/a", "/b")]
        assert abs(counts[0] - counts[1]) <= 1
        assert sum(counts) == load.summary("only").requests


def test_the_rate_and_the_number_of_requests_are_bounded() -> None:
    with page() as port, Load(port, rate=100, connections=4, limit=30) as load:
        took = load.run_until(lambda: len(load.samples("before")) == 30, "30 requests", patience=10)
        assert took >= 0.25
        load.run(0.1)
        assert load.summary("before").requests == 30


def test_a_missing_server_raises_no_error() -> None:
    with Load(free_port(), rate=100, connections=2) as load:
        run_until_sent(load, "before", 4)
        with pytest.raises(TimeoutError, match="the moon"):
            load.run_until(lambda: False, "the moon", patience=0.05)
        load.stop()
        assert set(load.summary("before").statuses) == {NO_RESPONSE}

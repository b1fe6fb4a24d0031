"""Openings and ownership of the connections for threads, against servers that are slow, hung, scripted or real."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import hiredis
import pytest

from sluicegate import StoreError
from sluicegate.plan import Check, Plan
from sluicegate.stores import open_store
from sluicegate.stores.redis.commands import Command, pack
from sluicegate.stores.redis.connections import Connection, Connections, _Pool
from sluicegate.stores.redis.steps import Address, NoReplyError, Send, Steps
from sluicegate.stores.redis.url import OPENING, servers
from sluicegate.testing.store import terms
from tests.proxies import Proxy
from tests.servers import HOST, Server, valkey_server, wait_until
from tests.stores.modes import PATIENCE

PLAN = Plan((Check(terms("fixed-window", "1000000/day", scope="openings"), "alice", 1),))
GET = Command(pack("GET", "x"))
SLOW = Command(pack("SLOW", "x"))
OK = b"+OK\r\n"
Answer = Callable[[int, str], "bytes | None"]  # of the connection with this number, to a command; None: no answer


def wait(seconds: float) -> None:
    """Be slow, as a distant or a busy server is."""
    threading.Event().wait(seconds)


class Scripted:
    """A server that answers by a script. A reply may be sent late, or in pieces."""

    def __init__(self, answer: Answer, *, late: float = 0.0, piece: int = 1 << 20) -> None:
        self.answer, self.late, self.piece = answer, late, piece
        self.accepted = 0
        self.open = 0
        self.heard: list[str] = []
        self._listener = socket.create_server((HOST, 0), backlog=100)
        self.port: int = self._listener.getsockname()[1]
        self._accepted: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def connections(self, url: str = "redis://user:secret@{}/3", *, deadline: float = 0.3) -> Connections:
        return Connections(servers(url.format(f"{HOST}:{self.port}")), deadline=deadline)

    def ask(self, connections: Connections, command: Command = GET, *, deadline: float | None = None) -> Any:
        patience = connections.patience
        looks = patience.looks if deadline is None else deadline / patience.look
        return connections.send(Send(Address(HOST, self.port), command), looks)

    def close(self) -> None:
        for each in (self._listener, *self._accepted):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._accepted.append(connection)
                self.accepted += 1
                threading.Thread(target=self._serve, args=(connection, self.accepted), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        reader = hiredis.Reader()
        self.open += 1
        with suppress(OSError), connection:
            while data := connection.recv(65536):
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    name = words[0].decode()
                    self.heard.append(name)
                    reply = self.answer(number, name)
                    wait(self.late)
                    for start in range(0, len(reply or b""), self.piece):
                        wait(self.late if start else 0)
                        connection.sendall((reply or b"")[start : start + self.piece])
        self.open -= 1


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(answer: Answer = lambda number, name: OK, **options: Any) -> Scripted:
        made.append(Scripted(answer, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_distant_server_is_used_though_its_opening_takes_longer_than_the_deadline(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.stores.redis.connections.STUCK", PATIENCE)
    arrived = threading.Event()

    def answer(number: int, name: str) -> bytes:
        arrived.wait(PATIENCE)
        return OK

    server = scripted(answer)
    with closing(server.connections(deadline=PATIENCE)) as connections:
        early = server.ask(connections, deadline=0.1)
        assert isinstance(early, NoReplyError)
        assert (early.sent, early.concerns) == (False, "server")
        arrived.set()
        assert [server.ask(connections) for _ in range(3)] == [b"OK"] * 3
        assert server.accepted == 1
        assert server.heard == ["AUTH", "SELECT", *["GET"] * 3]


def test_a_request_that_waits_long_begins_a_second_opening(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.stores.redis.connections.STUCK", 0.1)
    server = scripted(lambda number, name: None if number == 1 else OK)
    with closing(server.connections(deadline=PATIENCE)) as connections:
        assert server.ask(connections) == b"OK"


def test_an_opening_ends_after_its_own_time_although_bytes_come(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.stores.redis.connections.OPENING", 0.2)
    server = scripted(lambda number, name: b"+" + b"x" * 2000 + b"\r\n", late=0.02, piece=1)
    with closing(server.connections(deadline=0.1)) as connections:
        assert server.ask(connections).sent is False
        wait_until("the connection is closed", lambda: server.open == 0)


@pytest.mark.parametrize("reply", [b"+" + b"x" * 200 + b"\r\n", b"*60\r\n" + b":1\r\n" * 60])
def test_the_deadline_holds_for_a_reply_in_pieces(scripted: Callable[..., Scripted], reply: bytes) -> None:
    server = scripted(lambda number, name: reply)
    with closing(server.connections("redis://{}")) as connections:
        assert server.ask(connections, deadline=PATIENCE) != OK
        server.late, server.piece = 0.03, 1
        began = time.monotonic()
        error = server.ask(connections)
        assert isinstance(error, NoReplyError)
        assert (error.sent, error.concerns) == (True, "server")
        assert time.monotonic() - began < 0.03 * len(reply) / 2


def test_a_refused_connection_is_an_error_at_once(scripted: Callable[..., Scripted]) -> None:
    server = scripted()
    server.close()
    connections = Connections(servers(f"redis://{HOST}:{1}"), deadline=PATIENCE)
    began = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        send = Send(Address(HOST, 1), GET)
        errors: list[Any] = list(threads.map(lambda _: connections.send(send, connections.patience.looks), range(8)))
    assert time.monotonic() - began < PATIENCE / 2
    assert all((error.sent, error.concerns) == (False, "server") for error in errors)
    assert all(isinstance(error.cause, Exception) and "refused" in str(error.cause) for error in errors)


def test_a_thread_takes_a_connection_that_comes_free_before_its_opening(scripted: Callable[..., Scripted]) -> None:
    def answer(number: int, name: str) -> bytes | None:
        if number > 1:
            return None  # these never open
        wait(0.3 if name == "SLOW" else 0)
        return OK

    server = scripted(answer)
    with closing(server.connections(deadline=PATIENCE)) as connections, ThreadPoolExecutor(1) as threads:
        assert server.ask(connections) == b"OK"
        slow = threads.submit(server.ask, connections, SLOW)
        wait_until("the connection is busy", lambda: "SLOW" in server.heard)
        began = time.monotonic()
        assert server.ask(connections) == b"OK"
        assert time.monotonic() - began < min(OPENING, PATIENCE)
        assert slow.result() == b"OK"
        assert server.accepted == 2


def test_a_thread_whose_connection_another_takes_opens_one_more(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Connection] = []
    wake = _Pool._wake

    def take(pool: _Pool) -> None:
        if not taken:
            taken.append(pool._idle.pop())
        wake(pool)

    monkeypatch.setattr(_Pool, "_wake", take)
    server = scripted()
    with closing(server.connections(deadline=PATIENCE)) as connections:
        assert server.ask(connections) == b"OK"
        assert server.accepted == 2


@pytest.mark.parametrize("most", [1, 2])
def test_busy_connections_concern_the_plan_alone(scripted: Callable[..., Scripted], most: int) -> None:
    free = threading.Event()

    def answer(number: int, name: str) -> bytes | None:
        if number > 1:
            return None
        if name == "SLOW":
            free.wait(PATIENCE)
        return OK

    server = scripted(answer)
    url = f"redis://user:secret@{{}}/3?max_connections={most}"
    with closing(server.connections(url, deadline=PATIENCE)) as connections, ThreadPoolExecutor(1) as threads:
        assert server.ask(connections) == b"OK"
        slow = threads.submit(server.ask, connections, SLOW)
        wait_until("the connection is busy", lambda: "SLOW" in server.heard)
        error = server.ask(connections, deadline=0.2)
        free.set()
        assert (error.sent, error.concerns) == (False, "plan")
        assert "busy" in str(error)
        assert slow.result() == b"OK"
        assert server.ask(connections) == b"OK"


def test_a_server_that_does_not_open_is_not_asked_by_each_request(scripted: Callable[..., Scripted]) -> None:
    server = scripted(lambda number, name: None)
    with closing(server.connections(deadline=0.02)) as connections:
        errors = [server.ask(connections) for _ in range(10)]
        assert all((error.sent, error.concerns) == (False, "server") for error in errors)
        assert server.accepted <= 2  # one a second


def test_many_threads_open_no_more_connections_than_they_need(scripted: Callable[..., Scripted]) -> None:
    server = scripted(late=0.05)
    with closing(server.connections(deadline=PATIENCE)) as connections, ThreadPoolExecutor(6) as threads:
        for _ in range(3):
            assert list(threads.map(lambda _: server.ask(connections), range(18))) == [b"OK"] * 18
        assert server.accepted <= 6


@pytest.mark.parametrize("url", ["redis+cluster://user:secret@{}", "redis+sentinel://user:secret@{}/main"])
def test_a_node_that_does_not_open_leaves_time_for_another(scripted: Callable[..., Scripted], url: str) -> None:
    server = scripted(lambda number, name: None)
    with closing(server.connections(url)) as connections:
        began = time.monotonic()
        error = server.ask(connections, deadline=2)
        assert time.monotonic() - began < 1.7
        assert (error.sent, error.concerns) == (False, "server")


def test_a_command_without_patience_left_is_not_sent(scripted: Callable[..., Scripted]) -> None:
    server = scripted(lambda number, name: None if name == "SLOW" else OK)

    def steps() -> Steps[NoReplyError]:
        for command in (SLOW, GET):
            yield Send(Address(HOST, server.port), command)
        reply = yield Send(Address(HOST, server.port), GET)
        assert isinstance(reply, NoReplyError), "it was sent"
        return reply

    with closing(server.connections(deadline=0.2)) as connections:
        wait_until("the server to answer", lambda: server.ask(connections) == b"OK")
        heard = server.heard.count("GET")
        error = connections.drive(steps())
        assert (error.sent, error.concerns) == (False, "plan")
        assert server.heard.count("GET") == heard


@pytest.mark.parametrize("text", ["LOADING Redis is loading", "NOAUTH give a password", "READONLY no", "X y z"])
def test_an_error_reply_has_the_words_of_the_server_and_keeps_the_connection(
    scripted: Callable[..., Scripted], text: str
) -> None:
    server = scripted(lambda number, name: f"-{text}\r\n".encode() if name == "GET" else OK)
    with closing(server.connections(deadline=PATIENCE)) as connections:
        for command in (GET, GET, GET.asking()):
            reply = server.ask(connections, command)
            assert isinstance(reply, Exception)
            assert not isinstance(reply, NoReplyError)
            assert str(reply) == text
        assert server.accepted == 1
        assert server.heard[-2:] == ["ASKING", "GET"]


def test_of_two_replies_the_last_is_the_answer(scripted: Callable[..., Scripted]) -> None:
    server = scripted(lambda number, name: b"-ERR no cluster\r\n" if name == "ASKING" else b"+%s\r\n" % name.encode())
    with closing(server.connections("redis://{}", deadline=PATIENCE)) as connections:
        assert [server.ask(connections, each) for each in (GET.asking(), SLOW)] == [b"GET", b"SLOW"]


@pytest.mark.parametrize("how", ["retire", "close"])
def test_a_connection_in_use_is_closed_after_its_reply(scripted: Callable[..., Scripted], how: str) -> None:
    told = threading.Event()

    def answer(number: int, name: str) -> bytes | None:
        if name == "SLOW":
            told.wait(PATIENCE)
        return OK

    server = scripted(answer)
    connections = server.connections(deadline=PATIENCE)
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(server.ask, connections, SLOW) for _ in range(2)]
        wait_until("the connections are busy", lambda: server.heard.count("SLOW") == 2)
        if how == "retire":
            connections.retire(Address(HOST, server.port))
        else:
            connections.close()
        told.set()
        assert [each.result() for each in asked] == [b"OK"] * 2
        wait_until("the connections are closed", lambda: server.open == 0)
        assert server.ask(connections) == b"OK"
        assert server.accepted == 3
    connections.close()
    wait_until("every connection is closed", lambda: server.open == 0)


def test_an_opening_that_ends_after_close_leaves_no_connection(scripted: Callable[..., Scripted]) -> None:
    server = scripted(late=0.2)
    connections = server.connections(deadline=0.05)
    assert isinstance(server.ask(connections), NoReplyError)
    connections.close()
    wait_until("it was opened", lambda: "SELECT" in server.heard)
    wait_until("it is closed", lambda: server.open == 0)


def test_a_connection_that_its_thread_lost_does_not_count(scripted: Callable[..., Scripted]) -> None:
    server = scripted()
    with closing(server.connections("redis://{}?max_connections=1", deadline=PATIENCE)) as connections:
        assert server.ask(connections) == b"OK"
        (pool,) = connections.pools.values()
        gc.disable()  # the count does not wait for the collector
        try:
            threading.Thread(target=pool._idle.pop).start()  # takes it, and ends
            wait_until("the socket is closed", lambda: server.open == 0)
            assert server.ask(connections) == b"OK"
        finally:
            gc.enable()


def test_without_threads_the_request_opens_the_connection(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        if thread.name == "sluicegate-opening":
            raise RuntimeError("can't start new thread")
        start(thread)

    server, start = scripted(), threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", refused)
    with closing(server.connections(deadline=PATIENCE)) as connections:
        assert [server.ask(connections) for _ in range(2)] == [b"OK"] * 2
        assert server.accepted == 1
        server.close()
        wait(0.05)
        assert server.ask(connections).sent is False


def test_an_opening_whose_start_is_interrupted_does_not_count(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`threading` keeps the thread, and all that it knows, if a signal handler raises before the thread runs."""
    kept: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        kept.append(thread)
        raise KeyboardInterrupt

    server = scripted()
    with closing(server.connections("redis://{}?max_connections=1", deadline=PATIENCE)) as connections:
        with monkeypatch.context() as patched:
            patched.setattr("sluicegate.stores.threads.Thread.start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                server.ask(connections)
        assert server.ask(connections) == b"OK"


EXIT = """
import sys, time
from sluicegate.stores.redis.commands import Command, pack
from sluicegate.stores.redis.connections import Connections
from sluicegate.stores.redis.steps import Address, Send
from sluicegate.stores.redis.url import servers
connections = Connections(servers(sys.argv[1]), deadline=0.2)
port = int(sys.argv[1].rpartition(":")[2])
error = connections.send(Send(Address("127.0.0.1", port), Command(pack("GET", "x"))), connections.patience.looks)
print(error.sent)
print(time.monotonic(), flush=True)
"""


def test_an_opening_does_not_delay_the_end_of_the_process(scripted: Callable[..., Scripted]) -> None:
    server = scripted(lambda number, name: None)
    script = [sys.executable, "-c", EXIT, f"redis://:secret@{HOST}:{server.port}"]
    done = subprocess.run(script, check=True, capture_output=True, text=True, timeout=3 * PATIENCE)
    sent, left = done.stdout.split()
    assert (sent, done.stderr) == ("False", "")
    assert time.monotonic() - float(left) < OPENING - 1


RELEASED_AT_THE_END = """
import sys
from sluicegate import Limiter
limiter = Limiter(sys.argv[1], deadline=0.2)
def body():
    with limiter.hold("5 at once", "alice"):
        yield
left = body()
next(left)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("fault", ["cut", "black_hole"])
def test_a_slot_that_is_released_without_its_connection_does_not_hold_up_the_end_of_the_process(
    valkey: Server, fault: str
) -> None:
    """The finalizer needs an opening, or a watch of the store, and Python 3.11 waits for ever for a new thread."""
    pipe = subprocess.PIPE
    with Proxy(valkey.port) as proxy:
        script = [sys.executable, "-c", RELEASED_AT_THE_END, proxy.url]
        with subprocess.Popen(script, stdin=pipe, stdout=pipe, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "held\n"
                getattr(proxy, fault)()
                process.communicate("\n", timeout=PATIENCE)
            finally:
                process.kill()
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("credentials", "cause"), [("", "NOAUTH"), (":wrong-secret@", "WRONGPASS"), ("bob:wrong-secret@", "WRONGPASS")]
)
def test_a_wrong_password_is_the_cause_in_the_error(credentials: str, cause: str) -> None:
    with valkey_server("--requirepass", "right-secret") as server:
        url = f"redis://{credentials}{HOST}:{server.port}"
        with closing(open_store(url, prefix="openings", deadline=PATIENCE)) as store:
            began = time.monotonic()
            with pytest.raises(StoreError, match=cause) as raised:
                store.run(PLAN)
            assert time.monotonic() - began < PATIENCE / 2
            assert "secret" not in str(raised.value)

"""A server that a test scripts turn by turn: an event loop whose clock the test moves, and sockets whose other end the
test reads and writes.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Callable
from typing import Any, cast

import hiredis

from sluicegate.plan import Check
from sluicegate.stores.redis.async_connections import AsyncConnections
from sluicegate.stores.redis.commands import AnyCommand, Command, SingleCheck, pack
from sluicegate.stores.redis.encoding import Encoder
from sluicegate.stores.redis.steps import Address, Send
from sluicegate.stores.redis.url import Servers
from sluicegate.testing.store import terms

DEADLINE = 0.1
ADDRESS = Address("scripted", 1)
TERMS = terms("gcra", "1000/day", scope="machine")
ENCODER = Encoder(prefix="m", clock=None, split=False, batches=True)


class _Selector(selectors.DefaultSelector):
    """A selector that reports nothing while it is `blind`, as for a loop that runs its timers before it reads."""

    blind = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return [] if self.blind else super().select(timeout)


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop that runs turn by turn, and whose time passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.eyes = _Selector()
        super().__init__(self.eyes)

    def time(self) -> float:
        return self.now

    def turn(self, times: int = 1) -> None:
        """Run what is ready."""
        for _ in range(times):
            self.call_soon(self.stop)
            self.run_forever()

    def do(self, call: Callable[[], Any]) -> Any:
        """Call a function in the loop, in one turn."""
        result: list[Any] = []
        self.call_soon(lambda: result.append(call()))
        self.turn()
        return result[0]

    def settle(self) -> None:
        """Run until nothing moves any more without time."""
        self.turn(12)

    def pass_time(self, seconds: float, *, step: float = 0.005) -> None:
        """Let time pass for a loop that is not busy."""
        for _ in range(round(seconds / step)):
            self.now += step
            self.turn(2)
        self.settle()

    def end(self) -> None:
        """End as asyncio.run does."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.settle()
        self.run_until_complete(self.shutdown_asyncgens())
        self.settle()
        self.close()


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._parser = hiredis.Reader()
        self.commands: list[list[bytes]] = []  # every command that has come
        self.closed = False  # whether the client has closed the connection
        sock.setblocking(False)

    def read(self) -> list[list[bytes]]:
        """Read what has come. Return the new commands."""
        before = len(self.commands)
        while not self.closed:
            try:
                data = self._sock.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.closed = not data
            self._parser.feed(data)
        while (words := self._parser.gets()) is not False:
            self.commands.append(words)
        return self.commands[before:]

    def write(self, data: bytes) -> None:
        """Send bytes to the client, if it has not closed the connection."""
        try:
            self._sock.sendall(data)
        except OSError:
            self.closed = True

    def close(self) -> None:
        """Close the server's end."""
        self._sock.close()


class _Connection:
    """What redis-py's connection is to the code: `connect` waits until the test opens or refuses it."""

    username = "sluicegate"  # with a user, redis-py itself gets a reply before it calls a connection open

    def __init__(self) -> None:
        self._reader: Any = None
        self._writer: Any = None
        self.opened = asyncio.get_running_loop().create_future()
        self.peer: Peer | None = None

    async def connect(self) -> None:
        await self.opened
        ours, theirs = socket.socketpair()
        self.peer = Peer(theirs)
        self._reader, self._writer = await asyncio.open_connection(sock=ours)


class Scripted:
    """The servers of a store, under the test's hand. It stands for `Servers`."""

    host = None

    def __init__(self) -> None:
        self.connections: list[_Connection] = []

    def connection(self, address: Address, **_: Any) -> _Connection:
        self.connections.append(_Connection())
        return self.connections[-1]

    def shown(self, error: Exception) -> Exception:
        return error

    @property
    def opening(self) -> list[_Connection]:
        """The openings that wait for the test."""
        return [each for each in self.connections if not each.opened.done()]

    @property
    def peers(self) -> list[Peer]:
        """The server's ends, oldest first."""
        return [each.peer for each in self.connections if each.peer is not None]

    def driver(self) -> AsyncConnections:
        """The connections under test."""
        return AsyncConnections(cast(Servers, self), deadline=DEADLINE)


class Ask:
    """One caller of `ask`, in a task."""

    def __init__(self, loop: ManualLoop, driver: AsyncConnections, command: AnyCommand) -> None:
        self.asked = loop.now

        async def main() -> Any:
            return await driver.send(Send(ADDRESS, command), driver.patience.looks)

        self.task = loop.create_task(main())

    @property
    def done(self) -> bool:
        return self.task.done()

    @property
    def reply(self) -> Any:
        """The reply or the NoReplyError. Fails while there is none."""
        return self.task.result()


def command(number: int) -> Command:
    """A command that a server can tell from others."""
    return Command(pack("ASK", number))


def check(number: int) -> SingleCheck:
    """The command of one plan, which goes in a batch with others."""
    made = ENCODER.compile((TERMS,), "charge")((Check(TERMS, str(number), 1),))
    assert isinstance(made, SingleCheck)
    return made

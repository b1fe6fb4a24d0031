"""Connections for asyncio: one for each event loop and server, shared by everyone who waits there.

What is asked in one turn of the loop leaves in few writes, each command with its own answer, error and cancellation.
Nothing waits for company: a command that is alone leaves at the end of the turn that it came in. redis-py opens the
connection; then its transport is ours. This module knows addresses and packed commands; nothing of plans.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

import hiredis
from redis.exceptions import RedisError

from sluicegate.plan import new
from sluicegate.stores.redis.asks import Address, Ask, LinkError
from sluicegate.stores.redis.commands import AnyCommand, Lone, Together, parts, together
from sluicegate.stores.redis.drivers import AsyncDriver
from sluicegate.stores.redis.links import BUSY, check_tag, watcher
from sluicegate.stores.redis.servers import Servers

_FEW: Final = 8  # commands that leave at once where the server has nothing to do: it begins while the next are made
_MANY: Final = 32  # and where it has: one run of many costs it less


class _Waiting(NamedTuple):
    """A command that is not answered yet, with who waits for it: several where several went together."""

    command: AnyCommand | Together
    until: float
    answers: tuple[asyncio.Future[Any], ...]


class SharedLink(asyncio.Protocol):
    """One open connection of one loop. Replies come in the order of the commands."""

    def __init__(self, address: Address, connection: Any) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._waiting: deque[_Waiting] = deque()
        self._unsent: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None
        self._missing = 0  # replies to the oldest command that are still to come before its answer
        self._writer = connection._writer  # closes the transport when it is collected, so it is kept
        self._transport: asyncio.Transport = self._writer.transport
        connection._reader = connection._writer = None  # ours from here on
        self._transport.set_protocol(self)
        self._watch = watcher(self._transport.get_extra_info("socket"))
        self._heard = self._loop.time()
        self._open = True
        self._retired = False

    def there(self) -> bool:
        """Whether it is open, also as far as the loop has not looked yet since nothing was to come.

        What a server says unasked can only be a farewell, or TLS's own: then it costs a new connection, no more.
        """
        if self._open and not self._waiting and not self._unsent and self._loop.time() - self._heard > BUSY:
            self._heard = self._loop.time()
            if self._watch():
                self.fail(ConnectionError("the server closed the connection"))
        return self._open

    def ask(self, command: AnyCommand, until: float) -> asyncio.Future[Any]:
        """The answer to come, or the LinkError there is instead."""
        answer = self._loop.create_future()
        unsent = self._unsent
        if not unsent:
            self._loop.call_soon(self._send)
            if self._timer is None:
                self._timer = self._loop.call_at(until, self._look)
        unsent.append(new(_Waiting, (command, until, (answer,))))
        if len(unsent) >= (_MANY if self._waiting else _FEW):
            self._send()
        return answer

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if len(unsent) > 1:
            unsent = _grouped(unsent)
        self._waiting += unsent
        if unsent and self._open:
            self._transport.write(b"".join([each.command.frame for each in unsent]))

    def data_received(self, data: bytes) -> None:
        """Give every reply to whoever waits for it; to nobody if that one was cancelled."""
        reader, waiting = self._reader, self._waiting
        self._heard = self._loop.time()
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                command, until, answers = waiting[0]
                self._missing += 1
                if self._missing < command.replies:
                    continue
                self._missing = 0
                check_tag(command, reply)
                waiting.popleft()
                if type(command) is not Together:
                    replies = [reply]
                elif type(reply) is list:
                    replies = parts(reply)
                elif command.replies == 1 and str(reply).startswith("NOSCRIPT"):  # it did not run
                    self._unsent.append(_Waiting(command.with_text(), until, answers))
                    self._send()
                    continue
                else:
                    replies = [reply] * len(answers)
                for answer, told in zip(answers, replies, strict=True):
                    if not answer.done():
                        answer.set_result(told)
        except (hiredis.HiredisError, ConnectionError, IndexError) as error:
            self.fail(error)
        if self._retired and not waiting and not self._unsent:
            self.fail(ConnectionError("left"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody will be answered any more."""
        self.fail(exc if exc is not None else ConnectionError("the server closed the connection"))

    def eof_received(self) -> None:
        """The server's farewell; the transport closes itself."""

    def retire(self) -> None:
        """Close it once everybody who waits is answered."""
        self._retired = True
        if not self._waiting and not self._unsent:
            self.fail(ConnectionError("left"))

    def fail(self, error: BaseException) -> None:
        """Close it, with this error for everyone who waits."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
        self._transport.abort()
        waiting, unsent = self._waiting, self._unsent
        self._waiting, self._unsent = deque(), []
        for sent, group in ((True, waiting), (False, unsent)):
            for answer in [answer for each in group for answer in each.answers if not answer.done()]:
                answer.set_result(LinkError(self._address, error, sent=sent))

    def _look(self) -> None:
        """When the oldest command is out of time, so is the connection; else look again when it will be."""
        self._timer = None
        waiting = self._waiting
        if not waiting:
            return
        if waiting[0].until <= self._loop.time():
            self.fail(TimeoutError("no answer within the deadline"))
        else:
            self._timer = self._loop.call_at(waiting[0].until, self._look)


def _grouped(unsent: list[_Waiting]) -> list[_Waiting]:
    """The same with those of one shape together, as far as they can be."""
    groups: dict[int, list[_Waiting]] = {}
    for each in unsent:
        command = each.command
        kind = id(each) if type(command) is not Lone or command.shape.many is None else id(command.shape)
        if kind in groups:
            groups[kind].append(each)
        else:
            groups[kind] = [each]
    return [group[0] if len(group) == 1 else _together(group) for group in groups.values()]


def _together(group: list[_Waiting]) -> _Waiting:
    commands = [cast(Lone, each.command) for each in group]
    answers = tuple([each.answers[0] for each in group])
    return _Waiting(together(commands), group[0].until, answers)


class SharedLinks(AsyncDriver):
    """The connections of one store: for each event loop, one to each server."""

    def __init__(self, servers: Servers, *, deadline: float) -> None:
        self._servers = servers
        self._deadline = deadline
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Links] = WeakKeyDictionary()

    def until(self) -> float:
        """When a call that begins now must be over."""
        return asyncio.get_running_loop().time() + self._deadline

    def ask(self, ask: Ask, until: float) -> Awaitable[Any]:
        """The reply, or the LinkError there is instead."""
        links = self._loops.get(asyncio.get_running_loop())
        link = None if links is None else links.get(ask.address)
        if type(link) is SharedLink and link.there():
            return link.ask(ask.command, until)
        return self._ask_anew(ask, until)

    async def _ask_anew(self, ask: Ask, until: float) -> Any:
        try:
            link = await self._link(self._links(), ask, until=until)
        except LinkError as error:
            return error
        return await link.ask(ask.command, until)

    def _links(self) -> _Links:
        loop = asyncio.get_running_loop()
        links = self._loops.get(loop)
        if links is None:
            links = self._loops[loop] = {}
        return links

    def leave(self, address: Address) -> None:
        """Let the next caller open another connection; this one is closed when all who wait there are answered."""
        link = self._links().pop(address, None)
        if isinstance(link, SharedLink):
            link.retire()

    async def close(self) -> None:
        """Close the running loop's connections."""
        for link in self._loops.pop(asyncio.get_running_loop(), {}).values():
            if isinstance(link, SharedLink):
                link.fail(ConnectionError("the store was closed"))
            else:
                link.cancel()

    async def _link(self, links: _Links, ask: Ask, *, until: float) -> SharedLink:
        """The connection that is being opened to this address, by whoever came first."""
        opening = links.get(ask.address)
        if not isinstance(opening, asyncio.Task):
            opening = links[ask.address] = asyncio.create_task(self._open(links, ask))
            opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # all who wait may be gone
        try:
            async with asyncio.timeout_at(until):
                return await asyncio.shield(opening)
        except (RedisError, OSError) as error:
            failed = self._servers.shown(error)
        raise LinkError(ask.address, failed, sent=False) from failed

    async def _open(self, links: _Links, ask: Ask) -> SharedLink:
        try:
            async with asyncio.timeout(self._deadline):
                if self._servers.prepare is not None:
                    await asyncio.to_thread(self._servers.prepare)
                connection = self._servers.connection(
                    ask.address, timeout=self._deadline, later=True, sentinel=ask.sentinel
                )
                await connection.connect()
            link = links[ask.address] = SharedLink(ask.address, connection)
        except BaseException:
            links.pop(ask.address, None)
            raise
        return link


_Links = dict[Address, "SharedLink | asyncio.Task[SharedLink]"]

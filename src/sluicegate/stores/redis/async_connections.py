"""Connections for asyncio: one for each event loop and server, shared by all tasks of the loop.

The commands of one turn of the loop are sent in few writes. Each command has its own reply, error and cancellation. No
command is delayed to wait for others: a single command is sent at the end of its turn.

redis-py opens the connection: TCP, TLS, AUTH and SELECT. Then this module reads and writes on its transport. To read
with redis-py's `read_response` costs 14 % of the throughput of 64 tasks on asyncio and 23 % on uvloop, and its errors
lack their codes.

Who owns what:

- The caller owns the future of its reply. A command whose caller was cancelled before the write is not written.
- The connection owns the queue, its timer and the opening. The opening goes on when all callers have left.
- The loop owns its connections. They are closed by `close` or at the end of the loop. If the loop was closed without
  `asyncio.run`, the next loop closes them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context
from math import inf
from operator import methodcaller
from typing import Any, Final, NamedTuple, cast

import hiredis
from redis.exceptions import NoPermissionError

from sluicegate.plan import new
from sluicegate.runtime import fork
from sluicegate.stores.redis.commands import Command, Fields, HitShape, batch, split_reply
from sluicegate.stores.redis.connections import BUSY, check_tag, concerns_of, failure_of, watcher
from sluicegate.stores.redis.drivers import AsyncDriver
from sluicegate.stores.redis.patience import Patience
from sluicegate.stores.redis.steps import MALFORMED, Address, Concerns, NoReplyError, Send
from sluicegate.stores.redis.url import OPENING, STUCK, RedisConnection, Servers, is_silent

_FEW: Final = 8  # commands that are sent at once to an idle server: it begins while the next ones are made
_MANY: Final = 32  # and to a busy server: one run of many costs the server less

_DONE: Final = methodcaller("done")  # a function of C: it runs for every caller of every write
_Answer = asyncio.Future[object]


class _Waiting(NamedTuple):
    """One command, or single checks that can be one batch, and the futures of the callers. Until it is written, other
    single checks join.
    """

    command: Fields  # of the first caller
    digests: list[bytes]  # of the identities of all callers, if it can be a batch
    answers: list[_Answer]
    at: int  # the look when it was asked, later when it was written
    looks: float  # how many looks may find no reply
    sent: Any = None  # the command that was written: of one caller, or of all
    brings: bool = False  # its script: the server did not know it

    @property
    def is_over(self) -> bool:
        """True if every caller has its reply or was cancelled."""
        return all(map(_DONE, self.answers))


class AsyncConnection(asyncio.Protocol):
    """One connection of one event loop, from its opening to its end. Replies come in the order of the commands.

    It takes commands while it opens: they wait. It is in `used` as long as it takes commands, and in `kept` until it is
    closed.
    """

    def __init__(
        self,
        servers: Servers,
        step: Send,
        patience: Patience,
        *,
        used: dict[Address, AsyncConnection],
        kept: set[AsyncConnection],
    ) -> None:
        self._servers = servers
        self._patience = patience
        self.address, self._sentinel = step.address, step.sentinel
        self._used, self._kept = used, kept
        used[self.address] = self
        kept.add(self)
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._waiting: deque[_Waiting] = deque()
        self.unsent: dict[int, _Waiting] = {}  # by `id()` of the shape, or of the future if nothing may join
        self._received = 0  # replies to the oldest command that have come before its answer
        self._timer: asyncio.TimerHandle | None = None  # of the next look, while a command waits
        self._looks = 0
        self._progress = 0  # the look of the last step of the opening, or of the last reply
        self._openings: set[asyncio.Task[None]] = set()
        self._began = -inf  # when the last opening began
        self._transport: asyncio.WriteTransport | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._watch: Callable[[], object] = bool  # until there is a socket: `bool()` is False, no data
        self._heard = -inf  # when the last data came
        self._answered = False  # whether a command has its reply; it did not run if the script is unknown
        self._retired = self._closed = False

    def send(self, command: Fields, looks: float, answer: _Answer | None = None) -> _Answer | None:
        """Return a future of the reply, or of a NoReplyError; None if the server has closed the connection.

        A single check joins the batch of its rule that leaves in this turn of the loop.
        """
        shape, digest, _, _ = command  # of a single check; else nothing may join
        unsent, group = self.unsent, self.unsent.get(id(shape))
        if group is not None and group[4] <= looks:  # by numbers, which cost less than names
            if answer is None:
                answer = self._loop.create_future()
            group[1].append(digest)
            answers = group[2]
            answers.append(answer)
            if len(answers) >= _FEW and (len(answers) >= _MANY or not self._waiting):
                self._flush()
            return answer
        is_open = self._transport is not None
        if answer is None:
            if not unsent and is_open and not self._waiting and self._is_lost():
                return None
            answer = self._loop.create_future()
        if is_open and not unsent:
            self._loop.call_soon(self._flush)
        key = id(shape) if is_open and type(shape) is HitShape else id(answer)
        group = new(_Waiting, (command, [digest], [answer], self._looks, looks, None, False))
        unsent[key if key not in unsent else id(answer)] = group
        if not is_open:
            self._set_timer()
            self._open()
        elif len(unsent) >= (_MANY if self._waiting else _FEW):
            self._flush()
        return answer

    def _is_lost(self) -> bool:
        """Check an idle connection, because the loop may not have read it yet. Close it if there is data.

        Data that arrives without a command means that the server closes the connection, or belongs to TLS. In the
        second case the only cost is a new connection.
        """
        lost = self._loop.time() - self._heard > BUSY and bool(self._watch())
        if lost:
            self.fail(ConnectionError("the server closed the connection"))
        return lost

    def retire(self) -> None:
        """Take no further command, and close the connection when all waiting commands have their reply."""
        self._leave()
        self._close_if_done()

    def _leave(self) -> None:
        self._retired = True
        if self._used.get(self.address) is self:
            del self._used[self.address]

    def fail(self, error: BaseException, *, concerns: Concerns = "server") -> None:
        """Close the connection and fail all waiting commands with this error."""
        if self._closed:
            return
        self.forget()
        waiting, unsent, self._waiting, self.unsent = self._waiting, self.unsent, deque(), {}
        self._answer(waiting, error, sent=True, concerns=concerns)
        self._answer(unsent.values(), error, sent=False, concerns=concerns)

    def forget(self) -> None:
        """Close the connection without a result for its callers: the loop may be closed already."""
        self._closed = True
        self._leave()
        self._kept.discard(self)
        transport, self._transport = self._transport, None
        if self._loop.is_closed():
            _close_socket(transport)
            return
        self._stop_timer()
        for opening in self._openings:
            opening.cancel()
        if transport is not None:
            transport.abort()
        self._writer = None

    def data_received(self, data: bytes) -> None:
        """Pass each reply to its caller, unless the caller was cancelled."""
        reader, waiting = self._reader, self._waiting
        self._heard = self._loop.time()
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                oldest = waiting[0]
                sent, answers = oldest.sent, oldest.answers
                self._received += 1
                if self._received < sent.replies:
                    continue
                self._received = 0
                check_tag(sent.tag, reply)
                if len(answers) == 1:
                    replies = [reply]
                elif type(reply) is list:
                    replies = split_reply(reply, len(answers), oldest.command[0].read)
                elif str(reply).startswith("NOSCRIPT") and not oldest.brings:
                    waiting.popleft()  # it did not run: again with its script, for the callers that still wait
                    self.unsent[id(oldest)] = oldest._replace(brings=True)
                    self._flush()
                    continue
                else:
                    replies = [reply] * len(answers)
                waiting.popleft()
                self._answered, self._progress = True, self._looks
                for answer, each in zip(answers, replies, strict=True):
                    if not answer.done():
                        answer.set_result(each)
        except (hiredis.HiredisError, ConnectionError, *MALFORMED) as error:
            self.fail(error)
        if self._retired:
            self._close_if_done()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all waiting commands."""
        error = ConnectionError("the server closed the connection") if exc is None else exc
        self.fail(error, concerns=concerns_of(exc, answered=self._answered))

    def eof_received(self) -> None:
        """Fail all waiting commands at once, because the transport would lose those that are written from now on."""
        self.connection_lost(None)

    def _open(self) -> None:
        """Begin an opening, unless one began a short time ago. The first that succeeds is kept."""
        now = self._loop.time()
        if self._closed or now - self._began < STUCK:
            return
        self._began = now
        # The transport keeps the context in which it is made: that of a request would stay as long as the connection.
        opening = self._loop.create_task(self._connect(), context=Context())
        if not opening.done():  # an eager task may be done already
            self._openings.add(opening)
            opening.add_done_callback(self._openings.discard)

    async def _connect(self) -> None:
        redis_connection = None
        try:
            async with asyncio.timeout(OPENING):
                if self._servers.host is not None:
                    await asyncio.to_thread(self._servers.host.ensure, self._patience.deadline)
                redis_connection = self._servers.connection(
                    self.address,
                    timeout=OPENING,
                    asynchronous=True,
                    sentinel=self._sentinel,
                    progress=self._note,
                )
                await redis_connection.connect()
                if is_silent(redis_connection):
                    await redis_connection.send_command("PING")
                    with suppress(NoPermissionError):
                        await redis_connection.read_response()
            self._begin(_stream_of(redis_connection))
        except BaseException as error:
            if redis_connection is not None and redis_connection._writer is not None:
                _stream_of(redis_connection).transport.abort()  # redis-py leaves it open if its task is cancelled
            if self._transport is not None:
                return  # another opening was quicker
            if isinstance(error, Exception):
                self.fail(self._servers.shown(failure_of(error)))
            else:
                self.fail(ConnectionError("the opening of the connection was cancelled"), concerns="plan")
                raise

    def _note(self) -> None:
        """Note progress: the callers go on waiting."""
        self._progress = self._looks

    def _begin(self, writer: asyncio.StreamWriter) -> None:
        """Use the open stream. Send the commands that wait for it."""
        if self._closed or self._transport is not None:
            writer.transport.abort()
            return
        for opening in self._openings - {asyncio.current_task()}:
            opening.cancel()
        self._writer = writer  # kept, because it closes the transport when it is garbage-collected
        self._transport = transport = writer.transport
        transport.set_protocol(self)
        self._watch = watcher(transport.get_extra_info("socket"))
        unsent, self.unsent = self.unsent, {}
        for each in unsent.values():
            self.send(each.command, each.looks, each.answers[0])
        self._flush()
        if self._retired:
            self._close_if_done()

    def _flush(self) -> None:
        """Write the unsent commands. Their time begins now. A command without a caller is not written."""
        unsent, self.unsent = self.unsent, {}
        transport = self._transport
        if not unsent or transport is None:
            return
        writes = []
        for each in unsent.values():
            command, digests, answers, _, looks, _, brings = each
            if any(map(_DONE, answers)):
                left = [pair for pair in zip(digests, answers, strict=True) if not pair[1].done()]
                if not left:
                    continue
                digests, answers = [digest for digest, _ in left], [answer for _, answer in left]
            shape, _, tag, _ = command
            made = batch(shape, digests, tag) if type(shape) is HitShape else Command(*command)
            made = made.with_text() if brings else made
            writes.append(new(_Waiting, (command, digests, answers, self._looks, looks, made, brings)))
        if writes:
            self._set_timer()
            self._waiting += writes
            transport.write(b"".join([each.sent.frame for each in writes]))

    def _look(self) -> None:
        """Count a look, however late this loop is. Fail the callers whose looks are used up, and retire the connection
        if a command was written.
        """
        self._timer = None
        self._looks += 1
        opening = self._transport is None
        queue = list(self.unsent.values() if opening else self._waiting)
        overdue: list[_Waiting] = []
        left: list[_Waiting] = []
        for each in queue:
            (overdue if self._is_overdue(each) else left).append(each)
        if overdue and opening:
            self.unsent = {id(each.answers[0]): each for each in left}
            self._answer(overdue, TimeoutError("no connection within the deadline"), sent=False)
        elif overdue:
            error = TimeoutError("no answer within the deadline")
            self._leave()
            self._answer(overdue, error, sent=True)
            unsent, self.unsent = self.unsent, {}
            self._answer(unsent.values(), error, sent=False)
        if left:
            self._set_timer()
        if self._retired:
            self._close_if_done()

    def _is_overdue(self, each: _Waiting) -> bool:
        """True if its looks have found nothing. The first look may come at once, so one more is due. Another one
        follows if data lies in the socket, because the loop reads it before the next look: it may be the reply.
        """
        waited, silent = self._looks - each.at, self._looks - max(each.at, self._progress)
        if silent <= each.looks and waited <= self._patience.longest:
            return False
        return silent > each.looks + 1 or waited > self._patience.longest + 1 or not self._watch()

    def _answer(
        self, group: Iterable[_Waiting], error: BaseException, *, sent: bool, concerns: Concerns = "server"
    ) -> None:
        for answer in [answer for each in group for answer in each.answers if not answer.done()]:
            answer.set_result(NoReplyError(self.address, error, sent=sent, concerns=concerns))

    def _close_if_done(self) -> None:
        if not self.unsent and all([each.is_over for each in self._waiting]):
            self.fail(ConnectionError("left"))

    def _set_timer(self) -> None:
        """Look again soon."""
        if self._timer is None:
            # A timer keeps its context: that of a request would stay until the next look, and so on.
            self._timer = self._loop.call_later(self._patience.look, self._look, context=Context())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


def _stream_of(redis_connection: RedisConnection) -> asyncio.StreamWriter:
    """Take the stream's writer out of redis-py's connection, which has no public name for it."""
    writer: asyncio.StreamWriter = redis_connection._writer
    redis_connection._reader = redis_connection._writer = None
    return writer


def _close_socket(transport: asyncio.WriteTransport | None) -> None:
    """Close the socket of a closed loop's transport, which can do nothing by itself. asyncio has no public name for the
    socket. uvloop has already closed it.
    """
    sock = None if transport is None else getattr(transport.get_extra_info("socket"), "_sock", None)
    if sock is not None:
        sock.close()


class _LoopConnections:
    """The connections of one event loop: to each address the one in use, and those that are being left."""

    def __init__(self) -> None:
        self.used: dict[Address, AsyncConnection] = {}
        self.open: set[AsyncConnection] = set()
        self.closed = False  # whether `close` was called on this loop
        self._end: AsyncGenerator[None] | None = None

    def connect(self, servers: Servers, step: Send, patience: Patience) -> AsyncConnection:
        """Return a new connection to an address."""
        if self._end is None:
            self._end = _at_end_of_loop(self.open)
            _run(self._end.__anext__())
        return AsyncConnection(servers, step, patience, used=self.used, kept=self.open)

    def close(self) -> None:
        """Close all connections."""
        end, self._end = self._end, None
        if end is not None:
            _run(end.aclose())

    def forget(self) -> None:
        """Close all sockets: the loop is closed."""
        for connection in list(self.open):
            connection.forget()


async def _at_end_of_loop(connections: set[AsyncConnection]) -> AsyncGenerator[None]:
    """Close the connections when this generator is closed. asyncio closes open generators at the end of a loop: it is
    the only public hook there. They are closed too when the store is garbage-collected.
    """
    try:
        yield
    finally:
        for connection in list(connections):
            connection.fail(ConnectionError("the store was closed"), concerns="plan")


async def _and_a_turn(answer: _Answer) -> object:
    """Return the reply after the transport, which is closing, has closed its socket."""
    reply = await answer
    await asyncio.sleep(0)
    return reply


def _run(step: Coroutine[object, None, object]) -> None:
    """Run a coroutine that does not wait."""
    with suppress(StopIteration, StopAsyncIteration):
        step.send(None)


class AsyncConnections(AsyncDriver):
    """The connections of one store: for each event loop, one to each server."""

    def __init__(self, servers: Servers, *, deadline: float) -> None:
        self._servers = servers
        self.patience = Patience(deadline)
        self.loops: dict[asyncio.AbstractEventLoop, _LoopConnections] = {}
        fork.renew(self)

    def after_fork(self) -> None:
        """Drop all connections without closing them: their sockets and loops belong to the parent."""
        fork.keep(self.loops)
        self.loops = {}

    def send(self, step: Send, looks: float) -> Awaitable[object]:
        """Send a command. Return the reply, or a NoReplyError."""
        here = self.loops.get(asyncio.get_running_loop()) or self._of_this_loop()
        if step[0] in here.used:
            answer = here.used[step[0]].send(step[1], looks)
            if answer is not None:
                return answer
        connection = here.connect(self._servers, step, self.patience)
        answer = cast(_Answer, connection.send(step.command, looks))  # one that opens takes every command
        if here.closed:  # a slot is released after `close`, which is not called again
            connection.retire()
            return _and_a_turn(answer)
        return answer

    def _of_this_loop(self) -> _LoopConnections:
        loop = asyncio.get_running_loop()
        if loop in self.loops:
            return self.loops[loop]
        for other in [each for each in list(self.loops) if each.is_closed()]:
            self.loops.pop(other).forget()
        return self.loops.setdefault(loop, _LoopConnections())

    def retire(self, address: Address) -> None:
        """Let the next caller open another connection. This one closes when its waiting commands have their reply."""
        connection = self._of_this_loop().used.get(address)
        if connection is not None:
            connection.retire()

    async def close(self) -> None:
        """Close the running loop's connections. A later call on this loop opens one, and closes it after the reply."""
        connections = self._of_this_loop()
        connections.closed = True
        connections.close()
        await asyncio.sleep(0)  # in the next turn the transports close their sockets
        if self._servers.host is not None:
            self._servers.host.leave()

"""The adapter for any ASGI application, pure ASGI: the base that the Starlette adapter stands on.

It turns a scope into a caller, asks the gate, and either passes the request on untouched, with fields added to the
response's start, or answers it before its body is read. The application is called once, outside every try.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, MutableMapping, Sequence
from inspect import isawaitable
from typing import Any, Final, NamedTuple, NoReturn

from headgate.clock import epoch_seconds
from headgate.errors import ConfigurationError, SettingsError
from headgate.gate import AsyncGate
from headgate.http import Denial, Fields, denial, is_preflight, merge, response_fields
from headgate.marks import Mark
from headgate.passage import Passage, Place
from headgate.plan import Decision
from headgate.settings import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

REASON: Final = "rate limit exceeded"  # of a WebSocket that is closed
DENIAL_EXTENSION: Final = "websocket.http.response"
_STATE: Final = "headgate"
_STARTS: Final = ("http.response.start", "websocket.http.response.start")


class AsgiCaller:
    """What a scope tells about who is asking."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    @property
    def native(self) -> Any:
        """The scope itself; the Starlette adapter gives its own request."""
        return self.scope

    @property
    def method(self) -> str:
        """The method; a WebSocket handshake is a GET."""
        return str(self.scope.get("method", "GET"))

    @property
    def path(self) -> str:
        """The path below the application's mount point."""
        path, root = str(self.scope["path"]), str(self.scope.get("root_path", ""))
        return path.removeprefix(root) if root and path.startswith(f"{root}/") else path

    @property
    def peer(self) -> str | None:
        """The client's host; None on a unix socket."""
        client = self.scope.get("client")
        return str(client[0]) if client else None

    def header(self, name: str) -> Sequence[str]:
        """All lines of a header, in order."""
        wanted = name.lower().encode("latin-1")
        return [value.decode("latin-1") for key, value in self.scope["headers"] if key == wanted]

    def path_value(self, name: str) -> str | None:
        """A parameter of the matched path."""
        value = self.scope.get("path_params", {}).get(name)
        return None if value is None else str(value)

    def user(self) -> Hashable | None:
        """The user that an authentication middleware outside this one has left in the scope."""
        user = self.scope.get("user")
        if user is None or not getattr(user, "is_authenticated", False):
            return None
        try:
            return str(user.identity)
        except (AttributeError, NotImplementedError):  # Starlette's SimpleUser has only a display name
            return str(user.display_name)


class Arrival(NamedTuple):
    """Where a request has arrived. `marks` are as the decorators left them; a method's are renamed in the place."""

    caller: AsgiCaller
    place: Place = Place()
    marks: tuple[Mark, ...] = ()


class RateLimitMiddleware:
    """Limits every HTTP request and WebSocket handshake of an ASGI application.

    Options are those of `headgate.settings.Settings`; or hand over a whole `settings`. Wrong ones raise here, at
    start-up. `on_denied(scope, decision)` returns an ASGI application that answers, or an awaitable of one.
    """

    def __init__(self, app: ASGIApp, /, *, settings: Settings | None = None, **options: Any) -> None:
        self.app = app
        if settings is not None and options:
            problem, expected = "given beside settings=", "put it into the settings, or leave those out"
            raise SettingsError("options", sorted(options), problem=problem, expected=expected)
        self.settings = Settings.from_mapping(options, source="RateLimitMiddleware") if settings is None else settings
        self.gate = AsyncGate(self.settings)
        self._checked = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._live(scope, receive, send)
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        if not self._checked:
            self._check(scope)
        outer, passage = passage_of(scope), Passage(self.gate)
        scope.setdefault("state", {})[_STATE] = passage
        if not self.settings.enabled:
            return await self.pass_on((scope, receive, send))
        arrival = self.arrive(scope)
        await self._ask(arrival, passage, outer)
        decision = passage.decision
        if decision is not None and not decision.allowed:
            return await self._deny(decision, arrival.caller, (scope, receive, send))
        return await self.pass_on((scope, receive, self._telling(passage, send)))

    def arrive(self, scope: Scope) -> Arrival:
        """Who asks, and where the request will arrive; an unknown application has one place for all."""
        return Arrival(AsgiCaller(scope))

    def places(self, scope: Scope) -> list[Place]:
        """Every place that can be seen ahead."""
        return [Place()]

    async def pass_on(self, call: tuple[Scope, Receive, Send]) -> None:
        """Call the application."""
        await self.app(*call)

    async def own_answer(self, decision: Decision, caller: AsgiCaller) -> ASGIApp | None:
        """The user's own answer to a refused request, if there is one."""
        return await answer_of(self.settings, caller, decision)

    async def _ask(self, arrival: Arrival, passage: Passage, outer: Passage | None) -> None:
        """Charge what holds here; what a limiter further outside has charged already is not charged again."""
        place = arrival.place
        if outer is not None:
            passage.enforced.update(outer.enforced)
        done = [mark for mark in place.marks if mark in passage.enforced]
        passage.enforced.update(place.marks)
        passage.enforced.update(arrival.marks)
        if not is_preflight(arrival.caller.method, arrival.caller.header):
            bounds = self.gate.bind(place, frozenset(done)) if done else self.gate.bind(place)
            passage.note(await self.gate.decide(arrival.caller, bounds))

    def _check(self, scope: Scope) -> None:
        """Bind all places that can be seen, so that rules which cannot work are errors now and not one by one."""
        places = self.places(scope)
        self.gate.check_routes({name for place in places for name in place.names})
        for place in places:
            self.gate.bind(place)
        self._checked = True

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application live, unless its rules cannot work. Servers want to be told, raising is not enough."""
        try:
            self._check(scope)
        except ConfigurationError as error:
            await refuse_to_start(error, receive, send)
        await self.app(scope, receive, self._closing(send))

    def _closing(self, send: Send) -> Send:
        """A send that closes the gate when the application has shut down."""

        async def close(message: Message) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self.gate.close()
            await send(message)

        return close

    def _telling(self, passage: Passage, send: Send) -> Send:
        """A send that adds the fields of the decision to the start of the response."""
        dialect = self.settings.headers

        async def tell(message: Message) -> None:
            decision = passage.decision
            if decision is not None and message["type"] in _STARTS:
                status, epoch = message["status"], epoch_seconds()
                fields = response_fields(decision, dialect, epoch=epoch, status=status)
                if not decision.allowed:  # refused further inside
                    answer = denial(decision, dialect, epoch=epoch)
                    fields = _carried(answer, message) if status == answer.status else fields
                message = _with(message, fields)
            await send(message)

        return tell

    async def _deny(self, decision: Decision, caller: AsgiCaller, call: tuple[Scope, Receive, Send]) -> None:
        """Answer a refused request, without reading its body."""
        scope, receive, send = call
        if scope["type"] == "websocket":
            await receive()  # the handshake has to be heard before it is answered
            if not can_deny(scope):
                await send({"type": "websocket.close", "code": 1008, "reason": REASON})
                return
        accept = ",".join(caller.header("accept"))
        answer = denial(decision, self.settings.headers, epoch=epoch_seconds(), accept=accept)
        own = await self.own_answer(decision, caller)
        if own is not None:
            await own(scope, receive, _completing(answer, send))
            return
        kind = _STARTS[1] if scope["type"] == "websocket" else _STARTS[0]
        await send({"type": kind, "status": answer.status, "headers": _encoded(answer.fields)})
        body = b"" if caller.method == "HEAD" else answer.body
        await send({"type": kind.replace("start", "body"), "body": body, "more_body": False})


def passage_of(scope: Scope) -> Passage | None:
    """What headgate has done about the request of this scope; None where no adapter has seen it."""
    state = scope.get("state")
    found = state.get(_STATE) if isinstance(state, MutableMapping) else getattr(state, _STATE, None)
    return found if isinstance(found, Passage) else None


async def refuse_to_start(error: ConfigurationError, receive: Receive, send: Send) -> NoReturn:
    """Tell the server, in the words of the lifespan protocol, why the application cannot start."""
    await receive()
    await send({"type": "lifespan.startup.failed", "message": str(error)})
    raise error


def can_deny(scope: Scope) -> bool:
    """Whether the server can answer a WebSocket handshake with a response."""
    return DENIAL_EXTENSION in (scope.get("extensions") or {})


async def answer_of(settings: Settings, caller: AsgiCaller, decision: Decision) -> ASGIApp | None:
    """What `on_denied` answers; None without one."""
    if settings.on_denied is None:
        return None
    own = settings.on_denied(caller.native, decision)
    answer: ASGIApp = await own if isawaitable(own) else own
    return answer


def _encoded(fields: Fields) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields]


def _with(message: Message, fields: Fields) -> Message:
    """The message with these fields; its other headers stay as they are."""
    return {**message, "headers": _merged(message.get("headers", ()), fields)} if fields else message


def _merged(headers: Any, fields: Fields) -> list[tuple[bytes, bytes]]:
    """The response's own headers, untouched where they do not speak of rate limits, with the fields added."""
    own = [(name, value) for name, value in headers]
    clashes = [pair for pair in own if b"ratelimit" in pair[0].lower() or pair[0].lower() == b"retry-after"]
    if not clashes:
        return own + _encoded(fields)
    spoken = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in clashes]
    return [pair for pair in own if pair not in clashes] + _encoded(merge(spoken, fields))


def _carried(answer: Denial, message: Message) -> Fields:
    """What every denial carries, for a response that somebody else has made."""
    names = {name.lower() for name, _ in message.get("headers", ())}
    own = [field for field in answer.fields if not field[0].startswith("Content-")]
    return [field for field in own if field[0] != "Cache-Control" or b"cache-control" not in names]


def _completing(answer: Denial, send: Send) -> Send:
    """A send that adds to a user's own denial what every denial carries."""

    async def complete(message: Message) -> None:
        await send(_with(message, _carried(answer, message)) if message["type"] in _STARTS else message)

    return complete

"""The adapter for any ASGI application, pure ASGI: the base that the Starlette adapter stands on.

It turns a scope into a caller, asks the gate, and either passes the request on untouched, with fields added to the
response's start, or answers it before its body is read. The application is called once, and nothing that it raises is
caught. What a response gives back is given back before it starts; what is held, when the application has returned or
the last byte was sent.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Hashable, MutableMapping, Sequence
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any, Final, NoReturn, cast

from headgate.clock import epoch_seconds
from headgate.ending import AsyncEnding
from headgate.errors import ConfigurationError, SettingsError
from headgate.gate import AsyncGate, Bound
from headgate.http import denial, denial_fields, response_fields
from headgate.messages import HTTP, STARTS, WEBSOCKET, Message, denied, encoded_name, is_last, merged, response_of
from headgate.passage import NOWHERE, Arrival, Passage, Place, warn_of_twice
from headgate.plan import Decision
from headgate.preflight import is_preflight
from headgate.settings import Settings, hide

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

SERVED: Final[ContextVar[Scope | None]] = ContextVar("headgate_served", default=None)
"""The request that is being served, for views that do not take one."""

REASON: Final = "rate limit exceeded"  # of a WebSocket that is closed
DENIAL_EXTENSION: Final = "websocket.http.response"
_STATE: Final = "headgate"


class AsgiCaller:
    """What a scope tells about who is asking."""

    __slots__ = ("method", "scope")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.method: str = scope.get("method", "GET").upper()  # a WebSocket handshake is a GET

    @property
    def native(self) -> Any:
        """The scope itself; the Starlette adapter gives its own request."""
        return self.scope

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
        wanted, lines = encoded_name(name), []
        for key, value in self.scope["headers"]:
            if key == wanted:
                lines.append(value.decode("latin-1"))
        return lines

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


class RateLimitMiddleware:
    """Limits every HTTP request and WebSocket handshake of an ASGI application.

    Options are those of `headgate.settings.Settings`; or hand over a whole `settings`. Wrong ones raise here, at
    start-up. `on_denied(scope, decision)` returns an ASGI application that answers, or an awaitable of one.
    """

    def __init__(self, app: ASGIApp, /, *, settings: Settings | None = None, **options: Any) -> None:
        options = hide(options)
        self.app = app
        self._checked = False
        self._everywhere: tuple[Bound, ...] = ()
        if settings is not None and options:
            problem, expected = "given beside settings=", "put it into the settings, or leave those out"
            raise SettingsError("options", sorted(options), problem=problem, expected=expected)
        self.settings = Settings.from_mapping(options, source="RateLimitMiddleware") if settings is None else settings
        self.gate = AsyncGate(self.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await (self._live if kind == "lifespan" else self.app)(scope, receive, send)
            return
        if not self._checked:
            self._check(scope)
        state = scope.setdefault("state", {})
        outer, passage = state.get(_STATE), Passage(self.gate)
        state[_STATE] = passage
        if self.settings.enabled:
            caller, arrival = self.arrive(scope)
            is_plain = arrival is NOWHERE and outer is None
            bounds = self._everywhere if is_plain else self._bounds(passage, outer, arrival)
            if bounds and is_preflight(caller.method, caller.header):
                bounds = ()
            if bounds or self.gate.denies:
                decision = await self.gate.decide(caller, bounds)
                passage.note(decision)
                if outer is not None:
                    warn_of_twice(outer, self.gate, decision)
                if decision is not None and not decision.allowed:
                    await self._deny(decision, caller, (scope, receive, send))
                    return
            send = self._telling(passage, send)
        before = SERVED.get()
        SERVED.set(scope)
        try:  # no `except`: whatever the application raises is its own
            await self.app(scope, receive, send)
        finally:
            if passage.ending is not None:
                await cast("AsyncEnding", passage.ending).over(sys.exception())
        SERVED.set(before)  # not in the `finally`: after an error nobody asks

    def arrive(self, scope: Scope) -> tuple[AsgiCaller, Arrival]:
        """Who asks, and where the request will arrive; an unknown application has one place for all."""
        return AsgiCaller(scope), NOWHERE

    def places(self, scope: Scope) -> list[Place]:
        """Every place that can be seen ahead."""
        return [NOWHERE.place]

    def own_answer(self, decision: Decision, caller: AsgiCaller) -> Awaitable[ASGIApp | None]:
        """The user's own answer to a refused request, if there is one."""
        return answer_of(self.settings, caller, decision)

    def _bounds(self, passage: Passage, outer: Passage | None, arrival: Arrival) -> tuple[Bound, ...]:
        """The rules that hold here; what a limiter further outside has charged already is not charged again."""
        place, marks = arrival
        if outer is not None:
            passage.enforced.update(outer.enforced)
        done = frozenset([mark for mark in place.marks if mark in passage.enforced])
        passage.enforced.update(place.marks, marks)
        return self.gate.bind(place, done)

    def _check(self, scope: Scope) -> None:
        """Bind all places that can be seen, so that rules which cannot work are errors now and not one by one."""
        places = self.places(scope)
        self.gate.check_routes({name for place in places for name in place.names})
        for place in places:
            self.gate.bind(place)
        self._everywhere = self.gate.bind(NOWHERE.place)
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

        def tell(message: Message) -> Awaitable[None]:
            if passage.ending is not None:
                return self._attend(passage, message, send)
            decision = passage.decision
            if decision is not None and message["type"] in STARTS:
                message = self._told(decision, message)
            return send(message)

        return tell

    def _told(self, decision: Decision, message: Message) -> Message:
        told = response_fields if decision.allowed else denial_fields
        fields = told(decision, self.settings.headers, epoch=epoch_seconds(), status=message["status"])
        return {**message, "headers": merged(message.get("headers", ()), fields)} if fields else message

    async def _attend(self, passage: Passage, message: Message, send: Send) -> None:
        """Send a message of a request that owes something when it is answered, or until it is over."""
        ending = cast("AsyncEnding", passage.ending)
        response = None if ending.answered_once else response_of(message)
        if response is None:
            await ending.going_on()
        else:
            passage.regain(await ending.answered(response))
        decision = passage.decision
        await send(message if decision is None or message["type"] not in STARTS else self._told(decision, message))
        if is_last(message):
            await ending.ended()

    async def _deny(self, decision: Decision, caller: AsgiCaller, call: tuple[Scope, Receive, Send]) -> None:
        """Answer a refused request, without reading its body."""
        scope, receive, send = call
        start, rest = HTTP
        if scope["type"] == "websocket":
            await receive()  # the handshake has to be heard before it is answered
            if not can_deny(scope):
                await send({"type": "websocket.close", "code": 1008, "reason": REASON})
                return
            start, rest = WEBSOCKET
        own = await self.own_answer(decision, caller)
        if own is not None:
            await own(scope, receive, self._telling(scope["state"][_STATE], send))
            return
        accept = ",".join(caller.header("accept"))
        answer = denial(decision, self.settings.headers, epoch=epoch_seconds(), accept=accept)
        await send({"type": start, "status": answer.status, "headers": [*denied(answer)]})
        await send({"type": rest, "body": b"" if caller.method == "HEAD" else answer.body, "more_body": False})


def passage_of(scope: Scope) -> Passage | None:
    """What headgate has done about the request of this scope; None where no adapter has seen it."""
    state = scope.get("state")
    is_mapping = isinstance(state, (dict, MutableMapping))  # nearly always a dict, which is soon seen
    found: object = cast("Any", state).get(_STATE) if is_mapping else getattr(state, _STATE, None)
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

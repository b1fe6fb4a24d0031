"""The adapter for any ASGI application, pure ASGI: the base that the Starlette adapter stands on.

It turns a scope into a caller, asks the gate, and either passes the request on untouched, with fields added to the
response's start, or answers it before its body is read. The application is called once. What it raises is its own, with
one exception: a RateLimitExceeded that leaves the application before a response has started is answered as a refusal of
this limiter. The gate refunds what the response refunds before the response starts. It frees the place of a concurrency
limit when the application has returned or the last byte was sent.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Hashable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any, Final, NoReturn, cast

from sluicegate.clock import epoch_seconds
from sluicegate.ending import AsyncEnding
from sluicegate.errors import ConfigurationError, RateLimitExceeded, SettingsError
from sluicegate.gate import AsyncGate, Bound
from sluicegate.http import denial, denial_fields, response_fields
from sluicegate.messages import (
    ACCEPT,
    BEGINNINGS,
    HTTP,
    STARTS,
    WEBSOCKET,
    Message,
    denied,
    encoded_name,
    is_last,
    listed,
    merged,
    response_of,
)
from sluicegate.passage import NOWHERE, Arrival, Passage, Place, warn_of_twice
from sluicegate.plan import Decision
from sluicegate.preflight import is_preflight
from sluicegate.settings import Settings, hide

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

SERVED: Final[ContextVar[Scope | None]] = ContextVar("sluicegate_served", default=None)
"""The request that is being served, for views that do not take one."""

REASON: Final = "rate limit exceeded"  # of a WebSocket that is closed
DENIAL_EXTENSION: Final = "websocket.http.response"
_STATE: Final = "sluicegate"
_FRAMEWORKS: Final = frozenset({"starlette", "fastapi", "sluicegate"})
_RUNNING: Final = frozenset({"starlette.middleware.authentication", "starlette.middleware.base"})  # the user's own code


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
        path, root = str(self.scope.get("path", "")), str(self.scope.get("root_path", ""))
        return path.removeprefix(root) if root and path.startswith(f"{root}/") else path

    @property
    def peer(self) -> str | None:
        """The client's host; None on a unix socket."""
        client = self.scope.get("client")
        return str(client[0]) if client else None

    def header(self, name: str) -> Sequence[str]:
        """All lines of a header, in order."""
        wanted, lines = encoded_name(name), []
        for key, value in header_lines(self.scope):
            if key == wanted:
                lines.append(value.decode("latin-1"))
        return lines

    def path_value(self, name: str) -> str | None:
        """A parameter of the matched path."""
        value = (self.scope.get("path_params") or {}).get(name)
        return None if value is None else str(value)

    def user(self) -> Hashable | None:
        """The user that an authentication middleware outside this one has left in the scope."""
        user = self.scope.get("user")
        if user is None or not getattr(user, "is_authenticated", False):
            return None
        for attribute in ("identity", "display_name"):  # Starlette's SimpleUser has only a display name
            with suppress(AttributeError, NotImplementedError):
                name = getattr(user, attribute)
                if name is not None and name != "":  # else all users without a name would be one identity
                    return str(name)
        return None


class Exchange(Passage):
    """The passage of one request, and the state of its response."""

    __slots__ = ("begun", "covered", "refused")

    def __init__(self, gate: AsyncGate) -> None:
        self.gate, self.decision, self.ending, self.enforced = gate, None, None, set()  # made for every request
        self.begun = ""  # the type of the message that began the response, or of a later one that closed the socket
        self.covered = False  # another limiter inside this one answers what the application raises
        self.refused: Decision | None = None  # by the application, and still to be answered

    def takes(self, error: RateLimitExceeded | RuntimeError) -> bool:
        """Whether an error of the application is a refusal that can be answered: no response has started.

        So is a RuntimeError that Starlette raised from a refusal, because this limiter held a response back.
        """
        if isinstance(error, RateLimitExceeded):
            if self.refused is None and self.begun in ("", ACCEPT):
                self.refused = self.refuse(error.decision)
        elif not isinstance(error.__cause__, RateLimitExceeded):
            return False
        return self.refused is not None

    def holds_back(self, message: Message) -> bool:
        """Whether the start of a response is a framework's 500 for a RateLimitExceeded. This limiter answers that
        itself.

        Any other response that is made while a RateLimitExceeded is handled is the application's own answer to it, and
        gets the fields of that refusal.
        """
        error = sys.exception()
        if not isinstance(error, RateLimitExceeded) or self.covered or self.begun:
            return False
        refused = self.refuse(error.decision)
        if message.get("status") == 500:
            self.refused = refused
        return self.refused is not None


class RateLimitMiddleware:
    """Limits every HTTP request and WebSocket handshake of an ASGI application.

    Options are those of `sluicegate.settings.Settings`; or hand over a whole `settings`. Wrong ones raise here, at
    start-up. `on_denied(scope, decision)` returns an ASGI application that answers, or an awaitable of one.
    """

    def __init__(self, app: ASGIApp, /, *, settings: Settings | None = None, **options: Any) -> None:
        options = hide(options)
        self.app = app
        self._checked = False
        self._everywhere: tuple[Bound, ...] = ()
        self.settings = Settings.given(settings, options, source="RateLimitMiddleware")
        self.gate = AsyncGate(self.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await (self._live if kind == "lifespan" else self.app)(scope, receive, send)
            return
        if not self._checked:
            self._check(scope)
        state = scope.get("state")
        if state is None:
            state = scope["state"] = {}
        outer, passage = state.get(_STATE), Exchange(self.gate)
        if outer is not None and not isinstance(outer, Exchange):
            raise _taken()
        state[_STATE] = passage
        if self.settings.enabled:
            caller, arrival = self.arrive(scope)
            is_plain = arrival is NOWHERE and outer is None
            bounds = self._everywhere if is_plain else self._bounds(passage, outer, arrival)
            if caller.method == "OPTIONS" and self._is_free(scope, caller):
                bounds = ()
            if bounds or self.gate.denies:
                decision = await self.gate.decide(caller, bounds)
                passage.note(decision)
                if outer is not None:
                    warn_of_twice(outer, self.gate, decision)
                if decision is not None and not decision.allowed:
                    if kind == "websocket":
                        await receive()  # the handshake has to be heard before it is answered
                    await self._deny(decision, caller, (scope, receive, send), passage=passage)
                    return
        if outer is not None:
            outer.covered = True
        before = SERVED.get()
        SERVED.set(scope)
        try:
            try:  # every other error of the application is its own
                await self.app(scope, receive, self._telling(passage, send))
            except (RateLimitExceeded, RuntimeError) as error:
                if not passage.takes(error):
                    raise
            if passage.refused is not None:
                refused, passage.refused = passage.refused, None
                await self._deny(refused, self.caller(scope), (scope, receive, send), passage=passage)
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

    def caller(self, scope: Scope) -> AsgiCaller:
        """Who asks, of a scope that the application has seen already."""
        return AsgiCaller(scope)

    def answers_preflight(self, scope: Scope) -> bool:
        """Whether something other than a view answers a CORS preflight: here, a CORS layer that can be seen ahead."""
        answering = (type(each) for each in chain(self.app) if is_cors(type(each)) or not passes_preflight(type(each)))
        return is_cors(next(answering, None))

    def own_answer(self, decision: Decision, caller: AsgiCaller) -> Awaitable[ASGIApp | None]:
        """The user's own answer to a refused request, if there is one."""
        return answer_of(self.settings, caller, decision)

    def _is_free(self, scope: Scope, caller: AsgiCaller) -> bool:
        """Whether this is a preflight that runs no view. The method counts as sent: no CORS layer answers "options"."""
        return is_preflight(scope["method"], caller.header) and self.answers_preflight(scope)

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
        await self.app(scope, receive, self._closing(scope, send))

    def _closing(self, scope: Scope, send: Send) -> Send:
        """A send that looks at the state of an application that has started, and closes the gate when it has ended."""

        async def close(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete" and _STATE in (scope.get("state") or ()):
                raise _taken()
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self.gate.close()
            await send(message)

        return close

    def _telling(self, passage: Exchange, send: Send) -> Send:
        """A send that adds the fields of the decision to the start of the response."""

        def tell(message: Message) -> Awaitable[None]:
            if passage.ending is not None or passage.refused is not None:
                return self._attend(passage, message, send)
            kind = message["type"]
            if kind in BEGINNINGS:
                if sys.exception() is not None and passage.holds_back(message):
                    return _nothing()
                passage.begun = kind
                decision = passage.decision
                if decision is not None and kind in STARTS:
                    message = self._told(decision, message)
            return send(message)

        return tell

    def _told(self, decision: Decision, message: Message) -> Message:
        told = response_fields if decision.allowed else denial_fields
        fields = told(decision, self.settings.headers, epoch=epoch_seconds(), status=message["status"])
        return {**message, "headers": merged(message.get("headers", ()), fields)} if fields else message

    async def _attend(self, passage: Exchange, message: Message, send: Send) -> None:
        """Send a message of a request that owes something when it is answered, or until it is over."""
        if passage.refused is not None:
            return  # it belongs to a response that was held back
        if message["type"] in BEGINNINGS:
            if passage.holds_back(message):
                return
            passage.begun, message = message["type"], listed(message)
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

    async def _deny(
        self, decision: Decision, caller: AsgiCaller, call: tuple[Scope, Receive, Send], *, passage: Exchange
    ) -> None:
        """Answer a refused request. Before its body is read if we refused; later if the application raised the
        refusal."""
        scope, receive, send = call
        telling = self._telling(passage, send)
        start, rest = HTTP
        if scope["type"] == "websocket":
            if passage.begun or not can_deny(scope):
                await telling({"type": "websocket.close", "code": 1008, "reason": REASON})
                return
            start, rest = WEBSOCKET
        own = await self.own_answer(decision, caller)
        if own is not None:
            await own(scope, receive, telling)
            return
        dialect = self.settings.headers
        if passage.decision is not decision:  # the fields are those of everything that was decided
            send, dialect = telling, None
        accept = ",".join(caller.header("accept"))
        answer = denial(decision, dialect, epoch=epoch_seconds(), accept=accept)
        await send({"type": start, "status": answer.status, "headers": [*denied(answer)]})
        await send({"type": rest, "body": b"" if caller.method == "HEAD" else answer.body, "more_body": False})


def _taken() -> SettingsError:
    """The error for an application that keeps a value of its own under our name in the state."""
    problem = "each request's decision is kept under this name"
    return SettingsError("state", _STATE, problem=problem, expected="give what the lifespan yields another name")


async def _nothing() -> None:
    """Send nothing: the message is held back."""


def header_lines(scope: Scope) -> Sequence[tuple[bytes, bytes]]:
    """The header lines of a request; none where the scope has none. What can be read only once is kept in a list."""
    lines = scope.get("headers")
    if lines is None:
        return ()
    if not isinstance(lines, (list, tuple)):
        lines = scope["headers"] = list(lines)
    return cast("Sequence[tuple[bytes, bytes]]", lines)


def chain(app: Any) -> Iterator[Any]:
    """An application, and the one it wraps, and so on, as long as each has the attribute `app`."""
    seen: set[int] = set()
    while app is not None:
        app = getattr(app, "__self__", app)  # a router gives its middleware a method of its own
        if id(app) in seen:
            return
        seen.add(id(app))
        yield app
        app = getattr(app, "middleware_stack", None) or getattr(app, "app", None)


def is_cors(kind: object) -> bool:
    """Whether this class is Starlette's CORS layer, which answers every preflight, or inherits how that is called."""
    cors = getattr(sys.modules.get("starlette.middleware.cors"), "CORSMiddleware", None)
    return cors is not None and isinstance(kind, type) and issubclass(kind, cors) and kind.__call__ is cors.__call__


def passes_preflight(kind: object) -> bool:
    """Whether this is a framework's layer or a limiter that passes a preflight on and runs no code of the user's.

    Any other layer may answer, and look at what the client sent before it does: an API key, for example.
    """
    module = str(getattr(kind, "__module__", ""))
    return module.partition(".")[0] in _FRAMEWORKS and module not in _RUNNING


def passage_of(scope: Scope) -> Passage | None:
    """What sluicegate has done about the request of this scope; None where no adapter has seen it."""
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
    answer: ASGIApp | None = await own if isawaitable(own) else own
    if answer is not None and not callable(answer):
        expected = "return a response of the framework (in plain ASGI an application), or None for sluicegate's own"
        raise SettingsError("on_denied", type(answer), problem="not a response", expected=expected)
    return answer

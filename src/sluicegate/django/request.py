"""The state of one Django request: what keys read from it, and what the gate has decided about it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from functools import partial
from typing import Any, Final, Self, cast
from weakref import finalize, ref

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest

from sluicegate.django.users import UNKNOWN, UserLookup, known_user
from sluicegate.plan import Decision
from sluicegate.runtime import fork
from sluicegate.stores.completion import running_loop
from sluicegate.web.bound import Bound
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.http import environ_name
from sluicegate.web.preflight import is_preflight
from sluicegate.web.request_state import NO_MARKS, RequestState

_PENDING: Final = "_sluicegate_pending"  # attribute of a request
STATE: Final = "sluicegate"  # attribute of a request: its state
OUTER: Final = "sluicegate.state"  # key of an environ: the state that `sluicegate.wsgi` has made
_LATE: Final = frozenset(("rest_framework", "ninja"))  # packages that authenticate inside the view


class DjangoRequestState(RequestState):
    """One Django request: what keys read from it, and what the gate has decided about it.

    Stored on the request as `request.sluicegate`. Its reference to the request is weak: a strong one would make a
    cycle, and the request would live until the garbage collector runs. `meta` is strong: it refers to no request, and
    a plan may read the address after the request's task was cancelled. A copy of the request, which a middleware may
    pass on, has the same state; it may be freed before the request itself.
    """

    __slots__ = (
        "__weakref__",
        "_request",
        "alone",
        "bounds",
        "charged",
        "found_user",
        "login_failed",
        "meta",
        "open",
        "own_request",
        "releases_at_close",
    )
    is_async = False

    def __init__(self, request: HttpRequest, gate: Gate | AsyncGate) -> None:
        # Not by super(): this runs for every request.
        self.gate, self.decision, self.settlement, self.enforced = gate, None, None, NO_MARKS
        self._request: Callable[[], Any] = ref(request)
        self.own_request: Callable[[], Any] = self._request  # not a copy of it, which Django would not close
        self.meta: dict[str, Any] = request.META
        self.bounds: Collection[Bound] = ()  # the rules that are being charged
        self.charged = False  # the plan of the endpoint has been decided
        self.found_user: Any = UNKNOWN  # the user found by the lookup: one request does one lookup
        self.login_failed = False  # Django has sent its signal about it
        self.releases_at_close = False  # closing the request releases its slots
        self.alone = False  # a decorator has made this state: there is no middleware
        self.open = True  # the response is not finished, except for the body of a stream

    @property
    def can_hold(self) -> bool:
        """True until the response is finished, or while closing it will release slots."""
        return (self.open or self.releases_at_close) and super().can_hold

    @property
    def can_refuse(self) -> bool:
        """True until the middleware has finished the response."""
        return self.open and not self.alone

    def charging(self, request: HttpRequest, bounds: Collection[Bound]) -> Self:
        """Return this state, about to charge these rules. A middleware may have passed on a copy of the request."""
        self._request, self.meta, self.bounds = ref(request), request.META, bounds
        return self

    @property
    def native(self) -> HttpRequest:
        """The request that is being charged; the one of this state if that was a copy and is gone."""
        request: HttpRequest | None = self._request()
        return self.own_request() if request is None else request

    @property
    def method(self) -> str:
        """The method. Django has converted it to capitals."""
        method: str | None = self.native.method
        return "GET" if method is None else method

    @property
    def path(self) -> str:
        """The path below the script's mount point."""
        path: str = self.native.path_info
        return path

    @property
    def peer(self) -> str | None:
        """The address of the socket's other end; missing or empty on a unix socket."""
        address = self.meta.get("REMOTE_ADDR")
        return None if address is None else str(address)

    def header(self, name: str) -> Sequence[str]:
        """Return a header as one line: the server or Django has joined its lines."""
        value = self.meta.get(environ_name(name))
        return () if value is None else (value,)

    def path_value(self, name: str) -> str | None:
        """Return a parameter of the matched path."""
        match = self.native.resolver_match
        value = None if match is None else match.kwargs.get(name)
        return None if value is None else str(value)

    def user(self) -> Hashable | Awaitable[Hashable | None] | None:
        """Return the primary key of the signed-in user, or an awaitable of it where the session has to be awaited."""
        name: Any = known_user(self.native, is_async=self.is_async)
        if name is UNKNOWN:
            name = self.found_user
        return self._look_up() if name is UNKNOWN else cast("Hashable | None", name)

    def _look_up(self) -> Hashable | Awaitable[Hashable | None] | None:
        name = self.found_user = UserLookup(self, self.gate, self.bounds).run()
        return name

    def signs_in_later(self) -> bool:
        """True if the request has credentials, and the project has a framework that reads them inside the view."""
        return "HTTP_AUTHORIZATION" in self.meta and not _LATE.isdisjoint(sys.modules)

    def pending(self) -> Any:
        """Return what keeps the decisions about the request until it is closed; None if the request is gone."""
        request: Any = self.own_request()
        return None if request is None else pending_of(request)

    def is_cors_preflight(self) -> bool:
        """True if this is a CORS preflight as browsers send it."""
        return self.method == "OPTIONS" and is_preflight("OPTIONS", self.header)


class AsyncDjangoRequestState(DjangoRequestState):
    """The same on an event loop, where finding the user may have to be awaited."""

    __slots__ = ("_scope",)
    is_async = True

    def __init__(self, request: HttpRequest, gate: Gate | AsyncGate) -> None:
        super().__init__(request, gate)
        self._scope: dict[str, Any] | None = getattr(request, "scope", None)

    def header(self, name: str) -> Sequence[str]:
        """Return a header, joined from lines with just this name: Django before 5.2.13 also joins X_Forwarded_For."""
        if self._scope is None:
            return super().header(name)
        wanted = name.lower().encode("latin-1")
        lines = [value.decode("latin-1") for key, value in self._scope["headers"] if key == wanted]
        return (",".join(lines),) if lines else ()

    async def _look_up(self) -> Hashable | None:
        name = self.found_user = await UserLookup(self, self.gate, self.bounds).run_async()
        return name


def pending_of(request: HttpRequest) -> Any:
    """Return what keeps the decisions about a request for `on_decision`. The end of the request delivers them.

    Django closes the request with its response. If Django's task is cancelled, it closes nothing: then freeing the
    request delivers them, on the loop if there is one, because a request may be freed at any line of any thread. A
    request of WSGI has no task. It may be freed before its response is sent.
    """
    pending = vars(request).get(_PENDING)
    if pending is None:
        from sluicegate.observe.events import Pending

        pending = vars(request)[_PENDING] = Pending(("", request.method or "GET"))
        end_with(request, pending.end)
        if isinstance(request, ASGIRequest):
            loop = running_loop()
            end = pending.end if loop is None else partial(_end_on, loop, pending)
            finalize(request, partial(end_here, end, fork.generation())).atexit = False
    match = request.resolver_match
    if match is not None:
        pending.at = match.route or "", pending.at[1]
    return pending


def end_with(request: HttpRequest, end: Callable[[], None]) -> None:
    """Let the `close` of a request also call `end`, whatever else fails. It must not keep the request alive."""
    before, reference = vars(request).get("close"), ref(request)

    def close() -> None:
        try:
            if before is not None:
                before()
            elif (alive := reference()) is not None:
                type(alive).close(alive)
        finally:
            end()

    vars(request)["close"] = close


def _end_on(loop: Any, pending: Any) -> None:
    try:
        loop.call_soon_threadsafe(pending.end)
    except RuntimeError:  # the loop is closed
        pending.end()


def end_here(end: Callable[[], None], process: int) -> None:
    """Deliver, or release slots, unless this is a child of the process that serves the request."""
    if process == fork.generation():
        end()


def native_of(request: Any) -> HttpRequest | None:
    """Return Django's request: the argument itself, or the one inside REST framework's request. None without one."""
    found = getattr(request, "_request", request)
    return found if isinstance(found, HttpRequest) else None


def state_of(request: Any) -> DjangoRequestState | None:
    """Return the state of a request, also of REST framework's; None if sluicegate has not seen it."""
    facts = vars(request)  # not getattr: most requests have neither attribute, and that costs an exception
    found = (vars(facts["_request"]) if "_request" in facts else facts).get(STATE)
    return found if isinstance(found, DjangoRequestState) else None


def outer_of(request: HttpRequest) -> RequestState | None:
    """Return the state that a limiter around the whole project (`sluicegate.wsgi` or `sluicegate.asgi`) has made."""
    scope: Any = vars(request).get("scope")
    state: RequestState | None = None if scope is None else scope.get("state", {}).get("sluicegate")
    return state or request.META.get(OUTER)


def decision(request: Any) -> Decision | None:
    """Return the decision about this request, for views and other middleware; None if no rule applied.

    Takes a request of Django or of REST framework.
    """
    state = state_of(request)
    return None if state is None else state.decision


def begin(request: HttpRequest, gate: Gate | AsyncGate) -> DjangoRequestState:
    """Make the state of a request, and store it on the request."""
    state = vars(request)[STATE] = new_state(request, gate)
    return state


def new_state(request: HttpRequest, gate: Gate | AsyncGate) -> DjangoRequestState:
    """Make the state of a request."""
    return (AsyncDjangoRequestState if isinstance(gate, AsyncGate) else DjangoRequestState)(request, gate)

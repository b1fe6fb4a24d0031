"""The state of one Django request: what keys read from it, and what the gate has decided about it.

Django closes a request with the response that it sends, also when that response has replaced others. If Django's task
is cancelled, it closes nothing. Then the request is over when its object is freed.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self
from weakref import finalize, ref

from django.http import HttpRequest

from sluicegate.django.users import UNKNOWN, UserLookup, known_user
from sluicegate.errors import RuleError
from sluicegate.plan import Decision
from sluicegate.runtime import fork
from sluicegate.stores.completion import running_loop
from sluicegate.web.bound import Bound
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.http import environ_name, is_preflight
from sluicegate.web.request_state import NO_MARKS, RequestState

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from sluicegate.observe.events import Pending

_PENDING: Final = "_sluicegate_pending"  # attribute of a request
STATE: Final = "sluicegate"  # attribute of a request: its state
OUTER: Final = "sluicegate.state"  # key of an environ: the state that `sluicegate.wsgi` has made
_LATE: Final = frozenset(("rest_framework", "ninja"))  # packages that authenticate inside the view


class DjangoRequestState(RequestState):
    """One Django request: what keys read from it, and what the gate has decided about it.

    Stored on the request as `request.sluicegate`. Its references to the request are weak: a strong one would make a
    cycle, and the request would live until the garbage collector runs. `meta` is strong: it refers to no request, and
    a plan may read the address after the request's task was cancelled. A copy of the request, which a middleware may
    pass on, has the same state; it may be freed before the request itself.
    """

    bounds: Collection[Bound] = ()  # the rules that are being charged
    charged = False  # the plan of the endpoint has been decided
    found_user: object = UNKNOWN  # the user found by the lookup: one request does one lookup
    login_failed = False  # Django has sent its signal about it
    releases_at_close = False  # closing the request releases its slots
    alone = False  # a decorator has made this state: there is no middleware
    open = True  # the response is not finished, except for the body of a stream

    def __init__(self, request: HttpRequest, gate: Gate | AsyncGate) -> None:
        # Not by super(): this runs for every request.
        self.gate, self.decision, self.settlement, self.enforced = gate, None, None, NO_MARKS
        # The request that is charged, perhaps a copy, and the one that Django closes.
        self.current = self.own_request = ref(request)
        self.meta = request.META
        self._scope = vars(request).get("scope")  # under ASGI: the headers as they were sent

    @property
    def can_hold(self) -> bool:
        """True until the response is finished, or while closing it will release slots."""
        return (self.open or self.releases_at_close) and super().can_hold

    @property
    def can_refuse(self) -> bool:
        """True until the middleware has finished the response, or the guard that is alone has."""
        return self.open

    def charging(self, request: HttpRequest, bounds: Collection[Bound]) -> Self:
        """Return this state, about to charge these rules. A middleware may have passed on a copy of the request."""
        self.current, self.meta, self.bounds = ref(request), request.META, bounds
        return self

    @property
    def native(self) -> HttpRequest:
        """The request that is being charged; the one of this state if that was a copy and is gone."""
        request = self.current() or self.own_request()
        if request is None:  # a charge goes on after its request was freed: the event of it has no method then
            raise AttributeError("the request of this state was freed")
        return request

    @property
    def method(self) -> str:
        """The method. Django has converted it to capitals."""
        return self.native.method or "GET"

    @property
    def path(self) -> str:
        """The path below the script's mount point."""
        return self.native.path_info

    @property
    def peer(self) -> str | None:
        """The address of the socket's other end; missing or empty on a unix socket."""
        address = self.meta.get("REMOTE_ADDR")
        return None if address is None else str(address)

    def header(self, name: str) -> Sequence[str]:
        """Return a header as one line: the server or Django has joined its lines.

        Under ASGI only lines with just this name: Django before 5.2.13 also joins those of X_Forwarded_For.
        """
        if self._scope is None:
            value = self.meta.get(environ_name(name))
            return () if value is None else (value,)
        wanted = name.lower().encode("latin-1")
        lines = [value.decode("latin-1") for key, value in self._scope["headers"] if key == wanted]
        return (",".join(lines),) if lines else ()

    def path_value(self, name: str) -> str | None:
        """Return a parameter of the matched path."""
        match = self.native.resolver_match
        value = None if match is None else match.kwargs.get(name)
        return None if value is None else str(value)

    def user(self) -> Hashable | Awaitable[Hashable | None] | None:
        """Return the primary key of the signed-in user, or an awaitable of it where the session has to be awaited."""
        request = self.current() or self.own_request()  # as `native`, without a call
        if getattr(request, "user", None) is None:
            return None
        name = known_user(request, is_async=isinstance(self.gate, AsyncGate))
        name = self.found_user if name is UNKNOWN else name
        return UserLookup(self).start() if name is UNKNOWN else name

    def signs_in_later(self) -> bool:
        """True if the request has credentials, and the project has a framework that reads them inside the view."""
        return "HTTP_AUTHORIZATION" in self.meta and not _LATE.isdisjoint(sys.modules)

    def pending(self) -> Pending | None:
        """Return what keeps the decisions about the request until it is closed; None if the request is gone."""
        request = self.own_request()
        return None if request is None else pending_of(request)

    def is_cors_preflight(self) -> bool:
        """True if this is a CORS preflight as browsers send it."""
        return self.method == "OPTIONS" and is_preflight("OPTIONS", self.header)


def pending_of(request: HttpRequest) -> Pending:
    """Return what keeps the decisions about a request for `on_decision`. The end of the request delivers them."""
    pending: Pending | None = vars(request).get(_PENDING)
    if pending is None:
        from sluicegate.observe.events import Pending

        pending = vars(request)[_PENDING] = Pending(("", request.method or "GET"))
        at_close(request, pending.end)
        if hasattr(request, "scope"):  # a request of WSGI has no task, and may be freed before its response is sent
            if_lost(request, pending.end, anywhere=True)
    match = request.resolver_match
    if match is not None:
        pending.at = match.route or "", pending.at[1]
    return pending


def at_close(request: HttpRequest, end: Callable[[], None]) -> None:
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


def if_lost(request: HttpRequest, end: Callable[[], None], *, anywhere: bool = False) -> None:
    """Call `end` on the loop when this request is freed: Django does not close a request whose task was cancelled.

    If it may be called `anywhere`, it is called also after the end of the loop.
    """
    ending = partial(_on_loop, running_loop(), end, process=fork.generation(), anywhere=anywhere)
    finalize(request, ending).atexit = False


def _on_loop(loop: AbstractEventLoop | None, end: Callable[[], None], *, process: int, anywhere: bool) -> None:
    """Call `end` on the loop: a request may be freed at any line of any thread. A child of fork ends nothing."""
    if process != fork.generation():
        return
    if loop is None or (anywhere and loop.is_closed()):
        end()
    else:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end)


def native_of(request: object) -> HttpRequest | None:
    """Return Django's request: the argument itself, or the one inside REST framework's request. None without one."""
    found = getattr(request, "_request", request)
    return found if isinstance(found, HttpRequest) else None


def native_request(request: object, what: str) -> HttpRequest:
    """Return Django's request, for `what` needs it. Raises RuleError without one."""
    native = native_of(request)
    if native is None:
        raise RuleError(what, type(request), problem="not a request", expected="give the view's own request first")
    return native


def state_of(request: object) -> DjangoRequestState | None:
    """Return the state of a request, also of REST framework's; None if sluicegate has not seen it."""
    found = getattr(getattr(request, "_request", request), STATE, None)
    return found if isinstance(found, DjangoRequestState) else None


def outer_of(request: HttpRequest) -> RequestState | None:
    """Return the state that a limiter around the whole project (`sluicegate.wsgi` or `sluicegate.asgi`) has made."""
    scope = vars(request).get("scope")
    state: RequestState | None = None if scope is None else scope.get("state", {}).get("sluicegate")
    return state or request.META.get(OUTER)


def decision(request: object) -> Decision | None:
    """Return the decision about this request, for views and other middleware; None if no rule applied.

    Takes a request of Django or of REST framework.
    """
    state = state_of(request)
    return None if state is None else state.decision


def begin(request: HttpRequest, gate: Gate | AsyncGate) -> DjangoRequestState:
    """Make the state of a request, and store it on the request."""
    state = vars(request)[STATE] = DjangoRequestState(request, gate)
    return state

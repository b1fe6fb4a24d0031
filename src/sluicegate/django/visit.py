"""One request at the gate: what a request tells about who is asking, and where it keeps what was decided.

This module knows Django's request; no response, no settings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Hashable, Sequence
from typing import Any, cast

from django.http import HttpRequest

from sluicegate.django.users import UNKNOWN, Look, known_user
from sluicegate.gate import AsyncGate, Bound, Gate
from sluicegate.passage import Passage
from sluicegate.plan import Decision
from sluicegate.preflight import is_preflight

_PLAIN_META = ("CONTENT_TYPE", "CONTENT_LENGTH")  # PEP 3333: the two headers without HTTP_ before their names


class Visit(Passage):
    """What the gate has done about one request, found on it as `request.sluicegate`."""

    __slots__ = ("charged", "ends", "looked", "open")

    def __init__(self, gate: Gate | AsyncGate) -> None:
        super().__init__(gate)
        self.charged = False  # the plan of the place where the request arrived has been decided
        self.looked: Any = UNKNOWN  # whom a look has found: one request looks once
        self.ends = False  # the end of the request releases what it holds
        self.open = True  # somebody outside will still add the fields to the response


class DjangoCaller:
    """What a request tells about who is asking, where nothing has to be awaited. `bounds` are the rules that ask."""

    __slots__ = ("bounds", "request", "visit")

    def __init__(self, request: HttpRequest, visit: Visit, bounds: Collection[Bound] = ()) -> None:
        self.request = request
        self.visit = visit
        self.bounds = bounds

    @property
    def native(self) -> HttpRequest:
        """The request."""
        return self.request

    @property
    def method(self) -> str:
        """The method; Django has put it in capitals."""
        return "GET" if self.request.method is None else self.request.method

    @property
    def path(self) -> str:
        """The path below the script's mount point."""
        return self.request.path_info

    @property
    def peer(self) -> str | None:
        """The address of the socket's other end; missing or empty on a unix socket."""
        address = self.request.META.get("REMOTE_ADDR")
        return None if address is None else str(address)

    def header(self, name: str) -> Sequence[str]:
        """A header. Its lines have been joined by the server or by Django."""
        return _header(self.request, name)

    def path_value(self, name: str) -> str | None:
        """A parameter of the matched path."""
        match = self.request.resolver_match
        value = None if match is None else match.kwargs.get(name)
        return None if value is None else str(value)

    def user(self) -> Hashable | Awaitable[Hashable | None] | None:
        """The primary key of the signed-in user."""
        name = known_user(self.request, later=False)
        if name is UNKNOWN:
            name = self.visit.looked
        if name is UNKNOWN:
            name = self.visit.looked = Look(self, self.visit.gate, self.bounds).now()
        return cast("Hashable | None", name)


class AsyncDjangoCaller(DjangoCaller):
    """The same on an event loop, where the user may have to be awaited."""

    __slots__ = ()

    def header(self, name: str) -> Sequence[str]:
        """A header, from the lines of just this name: Django before 5.2.13 takes X_Forwarded_For for one of them."""
        scope = getattr(self.request, "scope", None)
        if scope is None:
            return super().header(name)
        wanted = name.lower().encode("latin-1")
        lines = [value.decode("latin-1") for key, value in scope["headers"] if key == wanted]
        return (",".join(lines),) if lines else ()

    def user(self) -> Hashable | Awaitable[Hashable | None] | None:
        """The primary key of the signed-in user, or an awaitable of it where that takes a look into the session."""
        name = known_user(self.request, later=True)
        if name is UNKNOWN:
            name = self.visit.looked
        return self._look() if name is UNKNOWN else cast("Hashable | None", name)

    async def _look(self) -> Hashable | None:
        name = self.visit.looked = await Look(self, self.visit.gate, self.bounds).later()
        return name


def visit_of(request: Any) -> Visit | None:
    """What sluicegate has done about this request; None where it has not seen it. Takes wrapped requests as well."""
    found = getattr(getattr(request, "_request", request), "sluicegate", None)
    return found if isinstance(found, Visit) else None


def outer_of(request: HttpRequest) -> Passage | None:
    """What a limiter around the whole project, for WSGI or for ASGI, has done about this request."""
    state = getattr(request, "scope", {}).get("state", {})
    return cast("Passage | None", state.get("sluicegate") or request.META.get("sluicegate.passage"))


def decision(request: Any) -> Decision | None:
    """How this request stands with its limits, for views and other middleware; None where no rule applied.

    Takes a request of Django or of REST framework.
    """
    visit = visit_of(request)
    return None if visit is None else visit.decision


def is_preflight_of(request: HttpRequest) -> bool:
    """Whether this is a CORS preflight as browsers send it."""
    return request.method == "OPTIONS" and is_preflight("OPTIONS", lambda name: _header(request, name))


def begin(request: HttpRequest, gate: Gate | AsyncGate) -> Visit:
    """Leave a new visit on the request."""
    visit = Visit(gate)
    setattr(request, "sluicegate", visit)  # noqa: B010  # HttpRequest does not declare it
    return visit


def _header(request: HttpRequest, name: str) -> tuple[str, ...]:
    """A header. Its lines have been joined by the server or by Django."""
    key = name.upper().replace("-", "_")
    value = request.META.get(key if key in _PLAIN_META else f"HTTP_{key}")
    return () if value is None else (value,)

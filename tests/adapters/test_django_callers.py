"""What keys read from a Django request: user, address, headers (DJ2, DJ7, C7, C8 of our checklist)."""

from __future__ import annotations

import asyncio
import gc
import io
import json
from copy import copy
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.functional import SimpleLazyObject

from sluicegate import ManualClock
from sluicegate.address import Trust
from sluicegate.django import conf, decision, limit
from sluicegate.django.request import DjangoRequestState, begin
from sluicegate.identity import identity_text
from sluicegate.rules.key import address_key
from sluicegate.web.gate import AsyncGate, Gate
from tests.adapters.django_app import AUTH, OURS, SESSIONS, User, serving

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "addresses.json").read_text())


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def cookie_of(user: str) -> list[tuple[str, str]]:
    """The cookie of a session in which this user has signed in."""
    session = SessionStore()
    session["_auth_user_id"] = user
    session["_auth_user_backend"] = "tests.adapters.django_app.Backend"
    session.save()
    return [("Cookie", f"sessionid={session.session_key}")]


# ---- DJ2: users --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[OURS, SESSIONS, AUTH], [SESSIONS, AUTH, OURS]], ids=["first", "last"])
def test_dj02_the_user_is_known_at_every_position_of_the_limiter(order: list[str], asgi: bool) -> None:
    with serving(asgi=asgi, middleware=order, default_limits=["1/minute"], clock=ManualClock()) as site:
        seven, eight = cookie_of("7"), cookie_of("8")
        assert site.statuses("/open", "/open", headers=seven) == [200, 429]
        assert site.statuses("/open", headers=seven, peer="203.0.113.1") == [429]  # the user, not the address
        assert site.statuses("/open", headers=eight) == [200]
        assert site.statuses("/nowhere", headers=eight) == [429]  # and on a 404
        assert site.statuses("/open", "/open") == [200, 429]  # not signed in: the address


def test_dj02_without_authentication_it_is_the_address(asgi: bool) -> None:
    with serving(asgi=asgi, default_limits=["1/minute"], key="user", clock=ManualClock()) as site:
        assert site.statuses("/open", "/open") == [200, 429]
        assert site.statuses("/open", peer="203.0.113.1") == [200]


class Anonymous:
    is_authenticated = False
    pk = None


class Unsaved(User):
    def __init__(self) -> None:
        super().__init__("")
        self.pk = None  # type: ignore[assignment]


USERS: list[tuple[str, Any, Any]] = [
    ("plain", lambda: User("7"), "7"),
    ("lazy, without auser", lambda: SimpleLazyObject(lambda: User("7")), "7"),
    ("anonymous", Anonymous, None),
    ("lazy anonymous", lambda: SimpleLazyObject(Anonymous), None),
    ("without a primary key", Unsaved, None),
    ("a number", lambda: User(7), "7"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("user", "expect"), [row[1:] for row in USERS], ids=[row[0] for row in USERS])
def test_dj02_users_of_other_authentications(user: Any, expect: Any) -> None:
    request: Any = HttpRequest()
    request.user = user()
    assert DjangoRequestState(request, conf.sync_gate()).user() == expect
    request.user = user()  # a new one, not read yet

    async def read() -> Any:
        found: Any = DjangoRequestState(request, conf.async_gate()).user()
        return await found if asyncio.iscoroutine(found) else found

    assert asyncio.run(read()) == expect


# ---- DJ7, C7: addresses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", [None, ""])
def test_dj07_a_missing_peer_has_its_own_budget(peer: str | None, asgi: bool) -> None:
    with serving(asgi=asgi, default_limits=["1/minute"], clock=ManualClock()) as site:
        assert site.statuses("/open", "/open", peer=peer) == [200, 429]
        assert site.statuses("/open") == [200]


def wsgi_request(vector: dict[str, Any]) -> HttpRequest:
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "wsgi.input": io.BytesIO()}
    if vector["peer"] is not None:
        environ["REMOTE_ADDR"] = vector["peer"]
    if vector["lines"]:
        environ["HTTP_" + vector["trusted_header"].upper().replace("-", "_")] = ",".join(vector["lines"])
    return WSGIRequest(environ)


def asgi_request(vector: dict[str, Any]) -> HttpRequest:
    name = vector["trusted_header"].lower().encode()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "client": vector["peer"] and (vector["peer"], 1),
        "headers": [(name, line.encode("latin-1", "replace")) for line in vector["lines"]],
    }
    return ASGIRequest(scope, io.BytesIO())


@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize("make", [wsgi_request, asgi_request])
@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_c07_c08_the_address_table(vector: dict[str, Any], make: Any) -> None:
    key = address_key(Trust.of(vector["trusted_proxies"], vector["trusted_header"]))
    request = make(vector)
    assert key(DjangoRequestState(request, conf.sync_gate()), {}) == identity_text(("ip", vector["expect"]))


def test_the_state_reads_what_the_application_would_read() -> None:
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/ü".encode().decode("latin-1"), "wsgi.input": io.BytesIO()}
    request = WSGIRequest({**environ, "CONTENT_TYPE": "text/plain", "HTTP_X_A": "1"})
    state = DjangoRequestState(request, conf.sync_gate())
    assert (state.method, state.path, state.peer) == ("POST", "/ü", None)
    assert [state.header(name) for name in ("Content-Type", "x-a", "X-B")] == [("text/plain",), ("1",), ()]
    assert state.path_value("name") is None
    bare = HttpRequest()
    assert DjangoRequestState(bare, conf.sync_gate()).method == "GET"


# ---- one object per request --------------------------------------------------------------------------------------


def hidden(view: Any) -> Any:
    """The view without its mark: the middleware charges the defaults, and then the decorator charges its own rule."""
    return lambda request: view(request)  # noqa: PLW0108  # the lambda hides the mark


def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse("answer")


async def answer_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("answer")


@pytest.mark.parametrize("view", [answer, answer_async], ids=["def", "async def"])
def test_one_object_reads_one_request(view: Any, asgi: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[Any] = []
    for gate in (Gate, AsyncGate):
        decide: Any = gate.decide

        def noted(self: Any, caller: Any, *given: Any, decide: Any = decide, **options: Any) -> Any:
            readers.append(caller)
            return decide(self, caller, *given, **options)

        monkeypatch.setattr(gate, "decide", noted)
    limited = limit("9/minute")(view)
    around = markcoroutinefunction(hidden(limited)) if view is answer_async else hidden(limited)
    with serving(asgi=asgi, urls=[path("x", around)], default_limits=["9/minute"], clock=ManualClock()) as site:
        assert site.statuses("/x") == [200]
    middleware, decorator = readers
    assert middleware is decorator


def test_a_request_that_is_done_needs_no_garbage_collector() -> None:
    # Under WSGI only: under ASGI Django itself makes cycles around a request.
    found: list[Any] = []

    def view(request: HttpRequest) -> HttpResponse:
        assert decision(request) is not None
        found.append(ref(request))
        return HttpResponse()

    gc.disable()
    try:
        with serving(asgi=False, urls=[path("x", view)], default_limits=["9/minute"], clock=ManualClock()) as site:
            assert site.statuses("/x") == [200]
            assert found[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("make", [wsgi_request, asgi_request])
def test_the_address_can_be_read_after_the_request_was_freed(make: Any) -> None:
    # A charge continues after the request's task is cancelled, and may then count by network.
    request = make({"peer": "10.0.0.1", "trusted_header": "X-Forwarded-For", "lines": ["203.0.113.7"]})
    gate = conf.async_gate() if make is asgi_request else conf.sync_gate()
    state = begin(request, gate)
    del request
    gc.collect()
    assert (state.peer, state.header("X-Forwarded-For")) == ("10.0.0.1", ("203.0.113.7",))


def readdressing(get_response: Any) -> Any:
    """A middleware that passes on a copy of the request, with another address."""

    def changed(request: Any) -> Any:
        other = copy(request)
        other.META = {**request.META, "REMOTE_ADDR": "203.0.113.1"}
        return other

    if not iscoroutinefunction(get_response):
        return lambda request: get_response(changed(request))

    async def middleware(request: HttpRequest) -> Any:
        return await get_response(changed(request))

    return markcoroutinefunction(middleware)


readdressing.async_capable = True  # type: ignore[attr-defined]


def test_keys_read_the_request_that_the_view_gets(asgi: bool) -> None:
    order = [OURS, f"{__name__}.readdressing"]
    with serving(asgi=asgi, middleware=order, default_limits=["1/minute"], key="ip", clock=ManualClock()) as site:
        assert site.statuses("/open") == [200]
        assert site.statuses("/open", peer="198.51.100.77") == [429]


def closed(get_response: Any) -> Any:
    """A middleware that returns the response of a limited view, which it calls with a copy of the request."""
    view = limit("9/minute")(answer_async if iscoroutinefunction(get_response) else answer)

    def middleware(request: HttpRequest) -> Any:
        return view(copy(request))

    return markcoroutinefunction(middleware) if iscoroutinefunction(get_response) else middleware


closed.async_capable = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_a_middleware_that_responds_by_a_view_with_a_copy(method: str, asgi: bool) -> None:
    # The copy is freed before the middleware above charges the default limits.
    options: Any = {"default_limits": ["1/minute"], "key": "ip", "clock": ManualClock()}
    with serving(asgi=asgi, middleware=[OURS, f"{__name__}.closed"], **options) as site:
        assert site.statuses(f"{method} /open", f"{method} /open") == [200, 429]


@pytest.mark.parametrize("make", [wsgi_request, asgi_request])
def test_a_state_whose_copy_of_the_request_was_freed_reads_its_own_request(make: Any) -> None:
    request = make({"peer": "10.0.0.1", "trusted_header": "X-Forwarded-For", "lines": ["203.0.113.7"]})
    state = begin(request, conf.async_gate() if make is asgi_request else conf.sync_gate())
    other = copy(request)
    other.method = "OPTIONS"
    assert (state.charging(other, ()).native, state.method) == (other, "OPTIONS")
    del other
    gc.collect()
    assert state.native is request
    assert (state.method, state.path, state.path_value("name"), state.user()) == ("GET", request.path_info, None, None)
    assert not state.is_cors_preflight()

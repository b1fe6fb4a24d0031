"""Who is asking, as Django's requests tell it: users, addresses, headers (DJ2, DJ7, C7, C8 of our checklist)."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from sluicegate import ManualClock
from sluicegate.address import Trust
from sluicegate.django import gates
from sluicegate.django.visit import AsyncDjangoCaller, DjangoCaller, Visit
from sluicegate.identity import identity_text
from sluicegate.key import address_key
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
def test_dj02_the_user_is_known_wherever_the_limiter_stands(order: list[str], asgi: bool) -> None:
    with serving(later=asgi, middleware=order, default_limits=["1/minute"], clock=ManualClock()) as site:
        seven, eight = cookie_of("7"), cookie_of("8")
        assert site.statuses("/open", "/open", headers=seven) == [200, 429]
        assert site.statuses("/open", headers=seven, peer="203.0.113.1") == [429]  # the user, not the address
        assert site.statuses("/open", headers=eight) == [200]
        assert site.statuses("/nowhere", headers=eight) == [429]  # and on a 404
        assert site.statuses("/open", "/open") == [200, 429]  # a stranger: the address


def test_dj02_without_authentication_it_is_the_address(asgi: bool) -> None:
    with serving(later=asgi, default_limits=["1/minute"], key="user", clock=ManualClock()) as site:
        assert site.statuses("/open", "/open") == [200, 429]
        assert site.statuses("/open", peer="203.0.113.1") == [200]


class Stranger:
    is_authenticated = False
    pk = None


class Unsaved(User):
    def __init__(self) -> None:
        super().__init__("")
        self.pk = None  # type: ignore[assignment]


USERS: list[tuple[str, Any, Any]] = [
    ("plain", lambda: User("7"), "7"),
    ("lazy, without auser", lambda: SimpleLazyObject(lambda: User("7")), "7"),
    ("stranger", Stranger, None),
    ("lazy stranger", lambda: SimpleLazyObject(Stranger), None),
    ("without a primary key", Unsaved, None),
    ("a number", lambda: User(7), "7"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("user", "expect"), [row[1:] for row in USERS], ids=[row[0] for row in USERS])
def test_dj02_users_of_other_authentications(user: Any, expect: Any) -> None:
    request: Any = HttpRequest()
    request.user = user()
    assert DjangoCaller(request, Visit(gates.sync_gate())).user() == expect
    request.user = user()  # nobody has looked at this one

    async def ask() -> Any:
        found = AsyncDjangoCaller(request, Visit(gates.async_gate())).user()
        return await found if asyncio.iscoroutine(found) else found

    assert asyncio.run(ask()) == expect


# ---- DJ7, C7: addresses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", [None, ""])
def test_dj07_a_missing_peer_has_a_budget_of_its_own(peer: str | None, asgi: bool) -> None:
    with serving(later=asgi, default_limits=["1/minute"], clock=ManualClock()) as site:
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
    assert key(DjangoCaller(make(vector), Visit(gates.sync_gate()))) == identity_text(("ip", vector["expect"]))


def test_callers_tell_what_the_application_would_read() -> None:
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/ü".encode().decode("latin-1"), "wsgi.input": io.BytesIO()}
    caller = DjangoCaller(
        WSGIRequest({**environ, "CONTENT_TYPE": "text/plain", "HTTP_X_A": "1"}), Visit(gates.sync_gate())
    )
    assert (caller.method, caller.path, caller.peer) == ("POST", "/ü", None)
    assert [caller.header(name) for name in ("Content-Type", "x-a", "X-B")] == [("text/plain",), ("1",), ()]
    assert caller.path_value("name") is None
    assert DjangoCaller(HttpRequest(), Visit(gates.sync_gate())).method == "GET"

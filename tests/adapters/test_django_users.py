"""The lookup of the user for the key "user": it changes no response and no cached page, and repeats no query.

With Django's own sessions and users, in a database.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.contrib.auth import (
    BACKEND_SESSION_KEY,
    HASH_SESSION_KEY,
    SESSION_KEY,
    alogin,
    alogout,
    get_user_model,
    login,
    logout,
)
from django.contrib.sessions.backends.db import SessionStore
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.utils.functional import SimpleLazyObject

from sluicegate import ManualClock
from sluicegate.django import limit, rate_limited
from sluicegate.errors import IdentityError
from sluicegate.testing.client import Answer
from tests.adapters.django_app import AUTH, OURS, SESSIONS, Site, by_wsgi, call_asgi, serving

User: Any = get_user_model()
Session: Any = SessionStore.get_model_class()
HERE = "tests.adapters.test_django_users"
ORDERS = {"first": [OURS, SESSIONS, AUTH], "last": [SESSIONS, AUTH, OURS]}
DATABASE = {
    "AUTHENTICATION_BACKENDS": ["django.contrib.auth.backends.ModelBackend"],
    "SESSION_ENGINE": "django.contrib.sessions.backends.db",
}
COOKIES = {"SESSION_ENGINE": "django.contrib.sessions.backends.signed_cookies"}
CACHED = {"SESSION_ENGINE": "django.contrib.sessions.backends.cache"}
MADE_UP = "madeupmadeupmadeupmadeupmadeup00"
ADDRESS = "198.51.100.9"
MAX_MISSES = 5


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=ORDERS)
def order(request: pytest.FixtureRequest) -> list[str]:
    return ORDERS[request.param]


@pytest.fixture(scope="module")
def _tables() -> None:
    call_command("migrate", verbosity=0)


@pytest.fixture(autouse=True)
def _rows(_tables: None) -> Iterator[None]:
    User.objects.create(username="alice", pk=7)
    User.objects.create(username="bob", pk=8)
    yield
    User.objects.all().delete()
    Session.objects.all().delete()
    cache.clear()


def cookie_of(name: str | None) -> str:
    """A session in which alice or bob has signed in, or an anonymous session with a cart."""
    session = import_module(settings.SESSION_ENGINE).SessionStore()
    if name is None:
        session["cart"] = 1
    else:
        user = User.objects.get(username=name)
        session[SESSION_KEY] = str(user.pk)
        session[BACKEND_SESSION_KEY] = DATABASE["AUTHENTICATION_BACKENDS"][0]
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return str(session.session_key)


def ask(site: Site, page: str, session: str | None = None, **options: Any) -> Answer:
    """Send a request in this thread, which has the database connection."""
    headers = [*options.get("headers", ()), *([] if session is None else [("Cookie", f"sessionid={session}")])]
    expected = {"method": "GET", "path": page, "headers": headers, "peer": options.get("peer", ADDRESS)}
    if site.asgi:
        return async_to_sync(call_asgi)(site.app, expected)
    return by_wsgi(site.app, expected, b"")


def queries(of: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        of()
    return len([query for query in captured.captured_queries if query["sql"].startswith("SELECT")])


# ---- views -------------------------------------------------------------------------------------------------------


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("plain")


async def plain_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("plain")


def named(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.user.get_username())


async def named_async(request: Any) -> HttpResponse:
    return HttpResponse((await request.auser()).get_username())


def carted(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(request.session.get("cart")))


def kept(request: HttpRequest) -> HttpResponse:
    request.session["kept"] = 1
    return HttpResponse("kept")


def other(request: Any) -> HttpResponse:
    login(request, User.objects.get(username="bob"))
    return HttpResponse(request.user.get_username() + str(SESSION_KEY in request.session))


async def other_async(request: Any) -> HttpResponse:
    await alogin(request, await User.objects.aget(username="bob"))
    return HttpResponse((await request.auser()).get_username())


def out(request: Any) -> HttpResponse:
    logout(request)
    return HttpResponse(request.user.get_username() + "out")


async def out_async(request: Any) -> HttpResponse:
    await alogout(request)
    return HttpResponse((await request.auser()).get_username() + "out")


VIEWS: tuple[Any, ...] = (
    plain,
    plain_async,
    named,
    named_async,
    carted,
    kept,
    other,
    other_async,
    out,
    out_async,
)
URLS = [path(view.__name__, view) for view in VIEWS]
COOKIES_BY_VISITOR: dict[str, Callable[[], str | None]] = {
    "nobody": lambda: None,
    "alice": lambda: cookie_of("alice"),
    "a cart": lambda: cookie_of(None),
    "invented": lambda: MADE_UP,
    "too short": lambda: "short",
}


def seen(site: Site, page: str, session: str | None) -> tuple[int, dict[str, str], bytes]:
    """The response without our fields and without what differs each time: session keys and dates."""
    answer = ask(site, page, session)
    shown = {name: value for name, value in answer.headers if "ratelimit" not in name}
    if "set-cookie" in shown:
        shown["set-cookie"] = shown["set-cookie"].strip().partition("=")[0] + str('""' in shown["set-cookie"])
    return answer.status, shown, answer.body


@pytest.mark.parametrize("engine", [{}, COOKIES, CACHED], ids=["database", "signed cookies", "cache"])
@pytest.mark.parametrize("visitor", COOKIES_BY_VISITOR)
@pytest.mark.parametrize("page", [f"/{view.__name__}" for view in VIEWS] + ["/nowhere"])
def test_every_response_is_the_same_without_the_limiter(
    page: str, visitor: str, engine: dict[str, Any], asgi: bool
) -> None:
    answers = []
    for middleware in ([SESSIONS, AUTH], *ORDERS.values()):
        options: dict[str, Any] = {"django_settings": {**DATABASE, **engine}, "urls": URLS}
        with serving(asgi=asgi, middleware=middleware, default_limits=["9/minute"], **options) as site:
            answers.append(seen(site, page, COOKIES_BY_VISITOR[visitor]()))
    assert answers[1:] == answers[:1] * 2


# ---- what it costs -----------------------------------------------------------------------------------------------

# (who, page, queries without the limiter, queries with it)
COSTS = [
    ("nobody", "/plain", 0, 0),
    ("nobody", "/named", 0, 0),
    ("nobody", "/nowhere", 0, 0),
    ("too short", "/plain", 0, 0),
    ("alice", "/plain", 0, 2),  # the session and the user
    ("alice", "/named", 2, 2),
    ("alice", "/named_async", 2, 2),
    ("a cart", "/plain", 0, 1),
    ("a cart", "/carted", 1, 1),
    ("invented", "/plain", 0, 1),
    ("invented", "/nowhere", 0, 1),
    ("invented", "/named", 1, 2),
]


@pytest.mark.parametrize(("visitor", "page", "without", "with_limiter"), COSTS)
def test_the_lookup_repeats_no_query_of_the_application(
    visitor: str, page: str, without: int, with_limiter: int, order: list[str], asgi: bool
) -> None:
    counted = []
    for middleware in ([SESSIONS, AUTH], order):
        options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS}
        with serving(asgi=asgi, middleware=middleware, default_limits=["9/minute"], **options) as site:
            session = COOKIES_BY_VISITOR[visitor]()
            counted.append(queries(lambda site=site, session=session: ask(site, page, session)))  # type: ignore[misc]
    assert counted == [without, with_limiter]


def test_users_have_own_budgets_and_anonymous_clients_one_per_address(order: list[str], asgi: bool) -> None:
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "clock": ManualClock()}
    with serving(asgi=asgi, middleware=order, default_limits=["1/minute"], **options) as site:
        alice, bob, again = cookie_of("alice"), cookie_of("bob"), cookie_of("alice")
        expected = [(alice, 200), (again, 429), (bob, 200), (None, 200), (None, 429), (MADE_UP, 429)]
        for session, status in expected:
            assert ask(site, "/plain", session).status == status
        assert ask(site, "/plain", bob, peer="203.0.113.1").status == 429
        assert ask(site, "/plain", MADE_UP, peer="203.0.113.1").status == 200


def test_two_decisions_about_one_request_do_one_lookup(asgi: bool) -> None:
    """A decorator that is hidden from the middleware decides after it, and the page does not vary by the cookie."""
    inner = limit("9/minute")(lambda request: HttpResponse("inner"))
    urls = [path("x", lambda request: inner(request))]  # noqa: PLW0108  # it hides the mark
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": urls, "default_limits": ["9/minute"]}
    with serving(asgi=asgi, middleware=[SESSIONS, AUTH, OURS], **options) as site:
        alice, answers = cookie_of("alice"), []
        assert queries(lambda: answers.append(ask(site, "/x", alice))) == 2
        assert answers[0].all("vary") == []
        assert (answers[0].one("ratelimit") or "").count("r=8") == 2


@pytest.mark.parametrize("visitor", ["invented", "a cart", "alice"])
def test_all_rules_of_a_request_do_one_lookup(visitor: str, asgi: bool) -> None:
    inner = limit("9/minute")(lambda request: HttpResponse("inner"))
    urls = [path("x", limit("9/minute")(lambda request: inner(request)))]  # noqa: PLW0108  # it hides the mark
    rules = [{"name": name, "quota": "9/minute", "key": key} for name, key in (("a", "user"), ("b", ("user", "ip")))]
    options: dict[str, Any] = {"default_limits": ["9/minute"], "rules": rules, "allow": [("user", "99")]}
    with serving(asgi=asgi, middleware=[SESSIONS, AUTH, OURS], urls=urls, django_settings=DATABASE, **options) as site:
        session = COOKIES_BY_VISITOR[visitor]()
        assert queries(lambda: ask(site, "/x", session)) == (2 if visitor == "alice" else 1)


# ---- the per-site cache ------------------------------------------------------------------------------------------

PER_SITE = [
    "django.middleware.cache.UpdateCacheMiddleware",
    OURS,
    SESSIONS,
    AUTH,
    "django.middleware.cache.FetchFromCacheMiddleware",
]


@pytest.mark.parametrize("page", ["/plain", "/plain_async"])
def test_a_page_that_does_not_read_the_user_is_cached_once(page: str, asgi: bool) -> None:
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "default_limits": ["99/minute"]}
    with serving(asgi=asgi, middleware=PER_SITE, **options) as site:
        for visitor in ("nobody", "alice", "a cart", "invented"):
            answer = ask(site, page, COOKIES_BY_VISITOR[visitor]())
            assert (answer.body, answer.all("vary")) == (b"plain", [])
    assert len(cache._cache) == 2  # type: ignore[attr-defined]  # one page, and the headers it varies by


@pytest.mark.parametrize("page", ["/named", "/named_async"])
def test_a_page_about_the_user_is_cached_for_that_user(page: str, asgi: bool) -> None:
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "default_limits": ["99/minute"]}
    with serving(asgi=asgi, middleware=PER_SITE, **options) as site:
        alice, bob = cookie_of("alice"), cookie_of("bob")
        bodies = [ask(site, page, session).body for session in (alice, bob, None, alice, bob, None)]
    assert bodies == [b"alice", b"bob", b""] * 2


def test_a_page_from_a_kept_lazy_user_is_cached_for_that_user(asgi: bool) -> None:
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": [path("x", current)]}
    order = [*PER_SITE[:-1], f"{HERE}.KeepsUser", PER_SITE[-1]]
    with serving(asgi=asgi, middleware=order, default_limits=["99/minute"], **options) as site:
        assert [ask(site, "/x", cookie_of(name)).body for name in ("alice", "bob")] == [b"alice", b"bob"]


class _Middleware:
    """A middleware that changes each request before it passes it on."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        self.begin(request)
        return self.get_response(request)

    def begin(self, request: Any) -> None:
        raise NotImplementedError


class KeepsUser(_Middleware):
    """Stores the lazy user under another name for templates, as some packages do."""

    def begin(self, request: Any) -> None:
        request.kept = request.user


def current(request: Any) -> HttpResponse:
    return HttpResponse(request.kept.get_username())


# ---- other authentications ---------------------------------------------------------------------------------------


class Tokens(_Middleware):
    """Signs in by a header, lazily, and sets only `request.user`, as most such middleware does."""

    def begin(self, request: Any) -> None:
        before = request.user

        def user() -> Any:
            name = request.META.get("HTTP_X_TOKEN")
            return before if name is None else User.objects.get(username=name)

        request.user = SimpleLazyObject(user)


class AsyncTokens(_Middleware):
    """Signs in by a header, and sets only `request.auser`."""

    def begin(self, request: Any) -> None:
        before = request.auser

        async def user() -> Any:
            name = request.META.get("HTTP_X_TOKEN")
            return await before() if name is None else await User.objects.aget(username=name)

        request.auser = user


class Remote(_Middleware):
    """Signs in by a header, not lazily."""

    def begin(self, request: Any) -> None:
        name = request.META.get("HTTP_X_TOKEN")
        if name is not None:
            request.user = User(username=name, pk=7)


class Headers(_Middleware):
    """Reads the session key from a header, for an application without cookies."""

    def begin(self, request: Any) -> None:
        request.session = SessionStore(request.META.get("HTTP_X_TOKEN"))


@pytest.mark.parametrize("name", ["Tokens", "Remote", "AsyncTokens"])
def test_a_user_without_a_session_has_its_own_budget(name: str, asgi: bool) -> None:
    if name == "AsyncTokens" and not asgi:
        return  # WSGI does not await `auser`
    order = [OURS, SESSIONS, AUTH, f"{HERE}.{name}"]
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "clock": ManualClock()}
    with serving(asgi=asgi, middleware=order, default_limits=["1/minute"], **options) as site:
        alice: Any = {"headers": [("X-Token", "alice")]}
        assert [ask(site, "/plain", **alice).status for _ in range(2)] == [200, 429]
        assert ask(site, "/plain", peer="203.0.113.1", **alice).status == 429
        assert [ask(site, "/plain").status for _ in range(2)] == [200, 429]


def test_a_session_key_from_a_header_is_read(asgi: bool) -> None:
    order = [OURS, SESSIONS, f"{HERE}.Headers", AUTH]
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "clock": ManualClock()}
    with serving(asgi=asgi, middleware=order, default_limits=["1/minute"], **options) as site:
        alice, bob = cookie_of("alice"), cookie_of("bob")
        expected = [(alice, 200), (bob, 200), (alice, 429)]
        assert [(name, ask(site, "/plain", headers=[("X-Token", name)]).status) for name, _ in expected] == expected


class ReadsUser(_Middleware):
    """Reads the user before the limiter does."""

    def begin(self, request: Any) -> None:
        if not iscoroutinefunction(self.get_response):
            request.signed_in = request.user.is_authenticated

    def __call__(self, request: Any) -> Any:
        if not iscoroutinefunction(self.get_response):
            return super().__call__(request)

        async def read_user() -> Any:
            await request.auser()
            return await self.get_response(request)

        return read_user()


@pytest.mark.parametrize(("visitor", "cost"), [("alice", 2), ("invented", 1), ("nobody", 0)])
def test_a_user_that_another_middleware_has_read_is_reused(visitor: str, cost: int, asgi: bool) -> None:
    order = [OURS, SESSIONS, AUTH, f"{HERE}.ReadsUser"]
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "default_limits": ["1/minute"]}
    with serving(asgi=asgi, middleware=order, **options) as site:
        session, answers = COOKIES_BY_VISITOR[visitor](), []
        assert queries(lambda: answers.append(ask(site, "/plain", session))) == cost
        assert answers[0].all("vary") == ["Cookie"]  # because that middleware read the user
        assert ask(site, "/plain", session, peer="203.0.113.1").status == (429 if visitor == "alice" else 200)


@pytest.mark.parametrize(("page", "body"), [("/read", b"alice"), ("/read_async", b"bob")])
def test_an_auser_of_another_authentication_stays(page: str, body: bytes, asgi: bool) -> None:
    order = [OURS, SESSIONS, AUTH, f"{HERE}.AsyncTokens"]
    urls = [path("read", named), path("read_async", named_async)]
    with serving(asgi=asgi, middleware=order, urls=urls, django_settings=DATABASE, default_limits=["9/m"]) as site:
        assert ask(site, page, cookie_of("alice"), headers=[("X-Token", "bob")]).body == body


class OnlyUser(_Middleware):
    """Uses Django's function for `request.user`, and sets no `auser`."""

    def begin(self, request: Any) -> None:
        middleware = import_module("django.contrib.auth.middleware")  # it needs the settings
        request.user = SimpleLazyObject(partial(middleware.get_user, request))


def test_a_django_user_without_auser_has_its_own_budget(asgi: bool) -> None:
    order = [OURS, SESSIONS, f"{HERE}.OnlyUser"]
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "clock": ManualClock()}
    with serving(asgi=asgi, middleware=order, default_limits=["1/minute"], **options) as site:
        alice = cookie_of("alice")
        expected = [(alice, ADDRESS, 200), (alice, "203.0.113.1", 429), (None, ADDRESS, 200)]
        assert [
            (visitor, peer, ask(site, "/plain", visitor, peer=peer).status) for visitor, peer, _ in expected
        ] == expected


class SetsUser(_Middleware):
    """Sets a `request.user` that is not one of Django's."""

    user: Any

    def begin(self, request: Any) -> None:
        request.user = self.user


# (user, whether it is an error)
SET_USERS: dict[str, tuple[Any, bool]] = {
    "a name": ("alice", True),
    "without a key": (SimpleNamespace(is_authenticated=True, id=7), True),
    "a lazy name": (SimpleLazyObject(lambda: "alice"), True),
    "a lazy user without a key": (SimpleLazyObject(lambda: SimpleNamespace(is_authenticated=True)), True),
    "nobody": (SimpleNamespace(is_authenticated=False), False),
    "a lazy None": (SimpleLazyObject(lambda: None), False),
}


@pytest.mark.parametrize("visitor", SET_USERS)
def test_a_user_without_a_key_is_an_error(
    visitor: str, asgi: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    user, wrong = SET_USERS[visitor]
    monkeypatch.setattr(SetsUser, "user", user, raising=False)
    order = [OURS, SESSIONS, AUTH, f"{HERE}.SetsUser"]
    with serving(asgi=asgi, middleware=order, urls=URLS, default_limits=["1/minute"]) as site:
        assert [ask(site, "/plain").status for _ in range(2)] == ([500, 500] if wrong else [200, 429])
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [type(error) for error in errors] == ([IdentityError] * 2 if wrong else [])
    assert all("request.user" in str(error) and "alice" not in str(error) for error in errors)
    assert not [record for record in caplog.records if record.name == "sluicegate.django.users"]


# ---- sessions that Django ends -----------------------------------------------------------------------------------


def test_a_changed_password_ends_the_session_as_without_the_limiter(asgi: bool) -> None:
    answers: list[Any] = []
    for middleware in ([SESSIONS, AUTH], [SESSIONS, AUTH, OURS]):
        options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "default_limits": ["9/minute"]}
        with serving(asgi=asgi, middleware=middleware, **options) as site:
            session = cookie_of("alice")
            User.objects.filter(pk=7).update(password=f"{len(answers)}")
            answers.append(seen(site, "/named", session))
            assert not SessionStore().exists(session)
    assert answers[0] == answers[1]
    assert answers[0][1]["set-cookie"] == "sessionidTrue"


# ---- views that change the session or the user -------------------------------------------------------------------


def written_elsewhere(request: Any) -> HttpResponse:
    """Another request writes to the same session during this one."""
    session = SessionStore(request.COOKIES["sessionid"])
    session["cart"] = 5
    session.save()
    return HttpResponse("written")


@pytest.mark.parametrize("visitor", ["alice", "a cart"])
@pytest.mark.parametrize("save", [False, True])
def test_what_another_request_writes_is_not_overwritten(visitor: str, save: bool, asgi: bool) -> None:
    options: dict[str, Any] = {
        "django_settings": {**DATABASE, "SESSION_SAVE_EVERY_REQUEST": save},
        "urls": [path("x", written_elsewhere)],
    }
    with serving(asgi=asgi, middleware=[OURS, SESSIONS, AUTH], default_limits=["9/minute"], **options) as site:
        session = COOKIES_BY_VISITOR[visitor]()
        assert ask(site, "/x", session).status == 200
        assert SessionStore(session).get("cart") == 5


async def swapped_async(request: Any) -> HttpResponse:
    request.session = SessionStore(request.META["HTTP_X_SESSION"])
    return HttpResponse((await request.auser()).get_username())


def swapped(request: Any) -> HttpResponse:
    request.session = SessionStore(request.META["HTTP_X_SESSION"])
    return HttpResponse(request.user.get_username())


def posed(request: Any) -> HttpResponse:
    request._cached_user = User.objects.get(username="bob")
    return HttpResponse(request.user.get_username())


async def posed_async(request: Any) -> HttpResponse:
    request._acached_user = await User.objects.aget(username="bob")
    return HttpResponse((await request.auser()).get_username())


def remembered(request: Any) -> HttpResponse:
    return HttpResponse(request.user.get_username() + str(request._cached_user == request.user))


async def remembered_async(request: Any) -> HttpResponse:
    user = await request.auser()
    return HttpResponse(user.get_username() + str(request._acached_user is user))


def saved(request: Any) -> HttpResponse:
    request.session["kept"] = 1
    return HttpResponse(request.user.get_username() + str(request.user is request.user))


CHANGES: list[tuple[Any, bytes]] = [
    (swapped, b"bob"),
    (swapped_async, b"bob"),
    (posed, b"bob"),
    (posed_async, b"bob"),
    (remembered, b"aliceTrue"),
    (remembered_async, b"aliceTrue"),
    (saved, b"aliceTrue"),
]


@pytest.mark.parametrize(("view", "body"), CHANGES, ids=[view.__name__ for view, _ in CHANGES])
@pytest.mark.parametrize("save", [False, True])
def test_the_view_gets_the_same_user_as_without_the_limiter(view: Any, body: bytes, save: bool, asgi: bool) -> None:
    changed = {**DATABASE, "SESSION_SAVE_EVERY_REQUEST": save}
    for middleware in ([SESSIONS, AUTH], [OURS, SESSIONS, AUTH]):
        options: dict[str, Any] = {"django_settings": changed, "urls": [path("x", view)]}
        with serving(asgi=asgi, middleware=middleware, default_limits=["9/minute"], **options) as site:
            answer = ask(site, "/x", cookie_of("alice"), headers=[("X-Session", cookie_of("bob"))])
            assert (answer.status, answer.body) == (200, body)


# ---- the limit on lookups ----------------------------------------------------------------------------------------


@pytest.fixture
def _few_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.django.users.MISSES", f"{MAX_MISSES}/minute")


@pytest.mark.usefixtures("_few_misses")
@pytest.mark.parametrize("page", ["/plain", "/nowhere"])
def test_lookups_that_find_nothing_are_limited_for_each_network(page: str, asgi: bool) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "clock": clock}
    with serving(asgi=asgi, middleware=[OURS, SESSIONS, AUTH], default_limits=["1/minute"], **options) as site:
        alice = cookie_of("alice")

        def one(of: int, peer: str = ADDRESS) -> int:
            return queries(lambda: ask(site, page, f"{MADE_UP}{of}", peer=peer))

        assert [one(number) for number in range(MAX_MISSES + 3)] == [1] * MAX_MISSES + [
            0
        ] * 3  # also those of refused requests
        assert one(0, "203.0.113.1") == 1  # another network
        assert queries(lambda: ask(site, "/plain", alice)) == 0  # at the same address alice is counted by address,
        assert ask(site, "/plain", alice).status == 429
        assert ask(site, "/plain", alice, peer="203.0.113.2").status == 200  # and at another address by user
        clock.advance(60)
        assert one(0) == 1
        assert queries(lambda: ask(site, "/plain", alice)) == 2


@pytest.mark.usefixtures("_few_misses")
def test_sessions_that_exist_do_not_count_as_misses(asgi: bool) -> None:
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "clock": ManualClock()}
    with serving(asgi=asgi, middleware=[OURS, SESSIONS, AUTH], default_limits=["1/minute"], **options) as site:
        for session in (cookie_of(None), cookie_of("alice")):
            expected = {queries(lambda session=session: ask(site, "/plain", session)) for _ in range(MAX_MISSES + 2)}  # type: ignore[misc]
            assert expected <= {1, 2}


# ---- without the session table -----------------------------------------------------------------------------------


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(f"failed for {MADE_UP}")


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(SessionStore, "load", broken)
    monkeypatch.setattr(SessionStore, "aload", broken)
    return monkeypatch


# (policy of the application, option of the rule, statuses)
POLICIES: list[tuple[str, dict[str, Any], list[int]]] = [
    ("local", {}, [200, 429]),
    ("allow", {}, [200, 429]),  # a client that makes its own lookup fail gains nothing
    ("deny", {}, [503, 503]),
    ("local", {"on_store_failure": "deny"}, [503, 503]),
    ("deny", {"on_store_failure": "local"}, [200, 429]),
    ("deny", {"key": "ip"}, [200, 429]),  # it does not read the user
    ("deny", {"key": ("path:name", "user")}, [503, 503]),
    ("deny", {"mode": "shadow"}, [200, 200]),  # it never refuses
    ("deny", {"methods": ["POST"]}, [200, 200]),  # it does not apply to GET
    ("deny", {"quota": lambda request: "1/minute"}, [503, 503]),
]


@pytest.mark.parametrize(("policy", "option", "expect"), POLICIES)
def test_the_failure_policy_decides_when_the_lookup_fails(
    policy: str, option: dict[str, Any], expect: list[int], asgi: bool, outage: Any
) -> None:
    rule = {"name": "r", "quota": "1/minute", **option}
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "rules": [rule], "on_store_failure": policy}
    signals: list[Any] = []
    rate_limited.connect(lambda decision, **_: signals.append(decision.unavailable), weak=False, dispatch_uid="test")
    try:
        with serving(asgi=asgi, middleware=[SESSIONS, AUTH, OURS], clock=ManualClock(), **options) as site:
            answers = [ask(site, "/plain", MADE_UP) for _ in range(2)]
            assert [answer.status for answer in answers] == expect
            assert ask(site, "/plain").status in (200, 429)  # a request without a session needs no lookup
    finally:
        rate_limited.disconnect(dispatch_uid="test")
    assert answers[0].all("vary") == []
    if 503 in expect:
        assert signals == [True, True]
        assert (answers[0].one("retry-after"), answers[0].one("ratelimit")) == ("1", None)
        assert b"Temporary Reduced Capacity" in answers[0].body


def test_a_failed_lookup_is_not_repeated_for_the_next_rule(asgi: bool, outage: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def load(*_: Any) -> Any:
        tried.append(1)
        raise RuntimeError

    outage.setattr(SessionStore, "load", load)
    outage.setattr(SessionStore, "aload", load)
    rules = [{"name": name, "quota": "9/minute"} for name in "abc"]
    with serving(asgi=asgi, middleware=[SESSIONS, AUTH, OURS], django_settings=DATABASE, rules=rules) as site:
        assert ask(site, "/open", MADE_UP).status == 200
    assert tried == [1]


def test_a_view_that_reads_the_user_fails_as_without_the_limiter(asgi: bool, outage: Any) -> None:
    statuses = []
    for middleware in ([SESSIONS, AUTH], [SESSIONS, AUTH, OURS]):
        options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "default_limits": ["9/minute"]}
        with serving(asgi=asgi, middleware=middleware, **options) as site:
            statuses.append([ask(site, page, MADE_UP).status for page in ("/named", "/plain", "/nowhere")])
    assert statuses == [[500, 200, 404]] * 2


def test_an_outage_is_logged_once_and_without_the_session(
    asgi: bool, outage: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate")
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "default_limits": ["99/minute"]}
    with serving(asgi=asgi, middleware=[SESSIONS, AUTH, OURS], **options) as site:
        alice = cookie_of("alice")
        for _ in range(3):
            ask(site, "/plain", alice)
        outage.undo()
        for _ in range(3):
            ask(site, "/plain", alice)
        outage.setattr(SessionStore, "load", broken)
        outage.setattr(SessionStore, "aload", broken)
        ask(site, "/plain", alice)  # less than a minute later: not logged
    _assert_logged_once(caplog)


def test_a_client_that_makes_lookups_fail_cannot_fill_the_log(
    asgi: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A session id with NUL does this: some databases refuse it. Lookups of another client succeed in between."""
    caplog.set_level(logging.INFO, "sluicegate")
    load, aload = SessionStore.load, SessionStore.aload
    monkeypatch.setattr(SessionStore, "load", lambda self: (broken if self.session_key == MADE_UP else load)(self))
    monkeypatch.setattr(SessionStore, "aload", lambda self: (broken if self.session_key == MADE_UP else aload)(self))
    options: dict[str, Any] = {"django_settings": DATABASE, "urls": URLS, "default_limits": ["99/minute"]}
    with serving(asgi=asgi, middleware=[SESSIONS, AUTH, OURS], clock=ManualClock(), **options) as site:
        alice = cookie_of("alice")
        for _ in range(3):
            ask(site, "/plain", MADE_UP)
            ask(site, "/plain", alice)
    _assert_logged_once(caplog)


def _assert_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    logged = [record for record in caplog.records if record.name.startswith("sluicegate")]
    assert [record.levelname for record in logged] == ["WARNING", "INFO"]
    assert "RuntimeError" in logged[0].getMessage()
    assert all(MADE_UP not in record.getMessage() and not record.exc_info for record in logged)

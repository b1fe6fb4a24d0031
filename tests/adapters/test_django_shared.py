"""A Django view may return one HttpResponse object to many requests. Each answer has the fields of its last reader, and
its own end."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, cast

import pytest
from django.core.asgi import get_asgi_application
from django.core.handlers.wsgi import WSGIHandler
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path

from sluicegate import ManualClock, Rule
from sluicegate.django import exempt, limit
from tests.adapters.django_app import OURS, call_asgi, serving
from tests.adapters.wsgi_client import make_environ

HERE = "tests.adapters.test_django_shared"
HELD: dict[str, Any] = {"rules": [Rule(name="held", quota="1 at once")]}
pytestmark = pytest.mark.filterwarnings("ignore:.*SG104")  # by a decorator alone


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def of(same: Any, **options: Any) -> dict[str, Any]:
    """A project in which `/x` has a limit, and `/free` has none. Both return the same response."""
    urls = [path("x", lambda request: same), path("free", exempt(lambda request: same))]
    return {"urls": urls, "clock": ManualClock(), **options}


def began(target: str = "/x") -> tuple[int, Any]:
    """The status of a response that the server is still sending, and its body, which the server will close."""
    started: list[str] = []
    start: Any = lambda status, headers, exc_info=None: started.append(status)  # noqa: E731
    body: Any = get_wsgi_application()(make_environ(path=target), start)
    return int(started[0][:3]), body


def status_of(target: str = "/x") -> int:
    status, body = began(target)
    body.close()
    return status


def test_each_answer_of_one_response_has_the_fields_of_its_last_reader(asgi: bool) -> None:
    with serving(asgi=asgi, **of(HttpResponse("same"), default_limits=["9/minute"])) as site:
        answers = [site.request("GET", target) for target in ("/free", "/x", "/x", "/free", "/x", "/free")]
    expected = [None, *[f'"default";r={left};t=60' for left in (8, 7, 7, 6, 6)]]
    assert [answer.one("ratelimit") for answer in answers] == expected
    assert [answer.one("ratelimit-policy") is None for answer in answers] == [each is None for each in expected]
    assert {answer.body for answer in answers} == {b"same"}


@pytest.mark.parametrize("dialect", ["draft-7", "x-ratelimit", None])
def test_of_other_dialects(dialect: Any, asgi: bool) -> None:
    with serving(asgi=asgi, **of(HttpResponse("same"), default_limits=["9/minute"], headers=dialect)) as site:
        answers = [site.request("GET", target).headers for target in ("/x", "/free", "/x")]
    assert [len(headers) for headers in answers] == [len(answers[0])] * 3
    assert len({name for name, _ in answers[2]}) == len(answers[2])


def test_what_the_view_has_written_itself_is_joined_once(asgi: bool) -> None:
    same = HttpResponse("same", headers={"RateLimit": '"own";r=1', "Cache-Control": "private"})
    same.set_cookie("seen", "yes")
    with serving(asgi=asgi, **of(same, default_limits=["9/minute"])) as site:
        own = '"own";r=1, '
        for left in (8, 7, 6):
            answer = site.request("GET", "/x")
            assert answer.one("ratelimit") == f'{"" if left < 8 else own}"default";r={left};t=60'
            assert (answer.one("cache-control"), (answer.one("set-cookie") or "").strip()) == (
                "private",
                "seen=yes; Path=/",
            )


def test_a_template_that_is_rendered_later() -> None:
    same = TemplateResponse(HttpRequest(), engines["django"].from_string("same"))
    with serving(asgi=False, **of(same, default_limits=["9/minute"])) as site:
        answers = [site.request("GET", "/x") for _ in range(3)]
    assert [answer.body for answer in answers] == [b"same"] * 3
    assert [answer.one("ratelimit") for answer in answers] == [f'"default";r={left};t=60' for left in (8, 7, 6)]


# ---- slots ---------------------------------------------------------------------------------------------------------


def early(get_response: Callable[..., Any]) -> Callable[..., Any]:
    """A middleware that returns one response before any view."""
    return lambda request: EARLY


EARLY = HttpResponse("early", status=503)


@pytest.mark.parametrize("headers", ["draft-11", None])
def test_a_request_ends_no_other(headers: Any) -> None:
    with serving(asgi=False, **of(HttpResponse("same"), **HELD, headers=headers)):
        for _ in range(3):
            status, body = began()
            assert [status, status_of("/free"), status_of(), status_of("/free"), status_of()] == [
                200,
                200,
                429,
                200,
                429,
            ]
            body.close()


def test_the_first_request_may_be_the_free_one() -> None:
    with serving(asgi=False, **of(HttpResponse("same"), **HELD)):
        _, free = began("/free")
        status, body = began()
        free.close()
        assert (status, status_of()) == (200, 429)
        body.close()
        assert status_of() == 200


def test_each_answer_releases_its_own_slot() -> None:
    two = [Rule(name="held", quota="2 at once")]
    with serving(asgi=False, **of(HttpResponse("same"), rules=two)):
        first, second = began(), began()
        assert [first[0], second[0], began()[0]] == [200, 200, 429]
        second[1].close()
        third = began()
        assert (third[0], began()[0]) == (200, 429)
        third[1].close()
        first[1].close()
        assert [began()[0] for _ in range(3)] == [200, 200, 429]


def test_a_refusal_that_replaces_a_response_ends_no_other_request() -> None:
    with serving(asgi=False, middleware=[OURS, f"{HERE}.early"], clock=ManualClock(), **HELD):
        for _ in range(2):
            status, body = began()
            assert [status, *[status_of() for _ in range(3)]] == [503, 429, 429, 429]
            body.close()


def test_a_slot_of_a_decorator_alone() -> None:
    same = HttpResponse("same")
    urls = [path("x", limit("1 at once")(lambda request: same)), path("y", limit("9/minute")(lambda request: same))]
    with serving(asgi=False, middleware=[], urls=urls, clock=ManualClock()):
        for _ in range(3):
            status, body = began()
            assert [status, status_of("/y"), status_of()] == [200, 200, 429]
            body.close()


def test_a_slot_under_asgi() -> None:
    same = HttpResponse("same")
    statuses: list[int] = []

    async def asked(app: Any, target: str, *events: asyncio.Event) -> None:
        async def held(scope: Any, receive: Any, send: Any) -> None:
            async def wait(message: Any) -> None:
                if events:
                    begins, goes_on = events
                    begins.set()
                    await goes_on.wait()
                await send(message)

            await app(scope, receive, wait)

        answer = await call_asgi(held, {"method": "GET", "path": target, "headers": [], "peer": "203.0.113.1"})
        statuses.append(answer.status)

    async def main() -> None:
        app = get_asgi_application()
        for _ in range(2):
            begins, goes_on = asyncio.Event(), asyncio.Event()
            first = asyncio.create_task(asked(app, "/x", begins, goes_on))
            await begins.wait()
            for target in ("/free", "/x", "/free", "/x"):
                await asked(app, target)
            goes_on.set()
            await first

    with serving(asgi=True, **of(same, **HELD)):
        asyncio.run(main())
    assert statuses == [200, 429, 200, 429, 200] * 2


def test_requests_at_the_same_time_have_the_same_object() -> None:
    same = HttpResponse("same")
    both = threading.Barrier(8)

    def view(request: HttpRequest) -> HttpResponse:
        both.wait(10)
        return same

    with (
        serving(asgi=False, urls=[path("x", view)], clock=ManualClock(), rules=[Rule(name="held", quota="8 at once")]),
        ThreadPoolExecutor(8) as pool,
    ):
        app: Any = WSGIHandler()  # one for all threads, as of a server

        def ask(_: int) -> tuple[Any, str]:
            sent: list[Any] = []
            return app(make_environ(path="/x"), lambda status, headers: sent.append(headers)), dict(sent[0])[
                "RateLimit"
            ]

        for _ in range(5):
            found = [*pool.map(ask, range(8))]
            assert len({id(body) for body, _ in found}) == 8
            assert sorted(fields for _, fields in found) == [f'"held";r={left}' for left in range(8)]
            for body, _ in found:
                body.close()


def test_an_answer_of_on_denied(asgi: bool) -> None:
    refused, clock = HttpResponse("slow", status=429), ManualClock()
    given = {**of(HttpResponse("same"), default_limits=["1/minute"]), "clock": clock}
    with serving(asgi=asgi, **given, on_denied=lambda request, decision: refused) as site:
        assert site.request("GET", "/x").status == 200
        for left in (60, 50, 40):
            answer = site.request("GET", "/x")
            assert (answer.status, answer.one("retry-after")) == (429, str(left))
            assert answer.one("ratelimit") == f'"default";r=0;t={left}'
            clock.advance(10)


# ---- what is sent ----------------------------------------------------------------------------------------------


class Odd(HttpResponse):
    """A response whose class cannot be copied by the copy module, nor made without its arguments."""

    def __new__(cls, page: str) -> Self:
        return super().__new__(cls)

    def __init__(self, page: str) -> None:
        super().__init__(page)
        self.page = page

    def __getstate__(self) -> Any:
        raise AssertionError

    def __copy__(self) -> Self:
        return self


def test_a_class_with_a_pickle_and_a_new_of_its_own(asgi: bool) -> None:
    with serving(asgi=asgi, **of(Odd("same"), default_limits=["9/minute"])) as site:
        answers = [site.request("GET", "/x") for _ in range(3)]
    assert [(answer.body, answer.one("ratelimit")) for answer in answers] == [
        (b"same", f'"default";r={left};t=60') for left in (8, 7, 6)
    ]


seen: list[Any] = []


def watch(get_response: Callable[..., Any]) -> Callable[..., Any]:
    """A middleware that keeps and changes the responses, as others do."""

    def respond(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = get_response(request)
        seen.append(response)
        response.set_cookie(f"c{len(seen)}", "1")
        response.headers[f"X-{len(seen)}"] = "1"
        response.write(str(len(seen)))
        return response

    return respond


@pytest.mark.parametrize("held", [False, True])
def test_only_a_request_with_a_slot_gets_a_response_of_its_own(held: bool) -> None:
    same, closed = HttpResponse("same"), list[str]()
    cast(Any, same)._resource_closers.append(lambda: closed.append("view"))
    seen.clear()
    with serving(asgi=False, middleware=[f"{HERE}.watch", OURS], **of(same, **(HELD if held else {}))):
        assert status_of() == 200
    assert ([each is same for each in seen], closed) == ([not held], ["view"])


def test_a_function_that_others_put_around_close_is_called_once_for_each() -> None:
    same, closed = HttpResponse("same"), list[int]()

    def count(get_response: Any) -> Any:
        def respond(request: HttpRequest) -> HttpResponse:
            response: Any = get_response(request)
            before, number = response.close, len(closed)

            def close() -> None:
                before()
                closed.append(number)

            response.close = close
            return response

        return respond

    globals()["count"] = count
    with serving(asgi=False, middleware=[f"{HERE}.count", OURS], **of(same, **HELD)):
        assert [status_of() for _ in range(4)] == [200] * 4
    assert closed == [0, 1, 2, 3]


def test_a_pickle_has_nothing_of_the_request(asgi: bool) -> None:
    seen.clear()
    options = of(HttpResponse("same"), default_limits=["9/minute"])
    with serving(asgi=False, middleware=[f"{HERE}.watch", OURS], **options) as site:
        site.request("GET", "/x")
    stored = pickle.loads(pickle.dumps(seen[0]))
    assert "RateLimit" not in stored.headers
    with serving(asgi=asgi, **of(stored, default_limits=["9/minute"])) as site:
        fields = [site.request("GET", "/x").one("ratelimit") for _ in range(3)]
    assert fields == [f'"default";r={left};t=60' for left in (8, 7, 6)]


class Parts:
    """A body that can be read again and again."""

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"a", b"b"])


def test_one_stream_releases_every_slot() -> None:
    """Django reads a stream once: the next request gets what is left."""
    with serving(asgi=False, **of(StreamingHttpResponse(Parts()), **HELD)) as site:
        assert site.statuses(*["/x"] * 5) == [200] * 5

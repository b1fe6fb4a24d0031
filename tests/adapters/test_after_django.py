"""What is owed after a Django response: both servers, streams and files, guards alone, and tasks that are cancelled."""

from __future__ import annotations

import asyncio
import gc
import io
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.core.exceptions import BadRequest, PermissionDenied
from django.core.wsgi import get_wsgi_application
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.urls import path
from django.utils.decorators import async_only_middleware, sync_only_middleware

from sluicegate import ManualClock, Rule
from sluicegate.django import limit
from sluicegate.identity import identity_text
from sluicegate.plan import Check, Plan
from sluicegate.testing.after import Watched
from tests.adapters.django_app import OURS, serving

HERE = "tests.adapters.test_after_django"
HELD = Rule(name="held", quota="1 at once for 1 hour")
UNLESS_FINE = Rule(name="fails", quota="1/hour", charge_when=lambda response: response.status_code >= 400)
RULES: Any = (HELD, UNLESS_FINE)


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def said(store: Watched) -> list[str]:
    return [name for name, _ in store.log]


def left(store: Watched, rule: Rule) -> int:
    check = Check(rule.terms("sliding-window")[0], identity_text(("ip", "198.51.100.9")), 0)
    return store.run(Plan((check,)))[0].remaining


class Pages:
    """Views in the colours of Django, by name."""

    @staticmethod
    def fine(request: HttpRequest) -> HttpResponse:
        return HttpResponse("page")

    @staticmethod
    async def fine_later(request: HttpRequest) -> HttpResponse:
        return HttpResponse("page")

    @staticmethod
    def missing(request: HttpRequest) -> HttpResponse:
        raise Http404

    @staticmethod
    def forbidden(request: HttpRequest) -> HttpResponse:
        raise PermissionDenied

    @staticmethod
    async def bad(request: HttpRequest) -> HttpResponse:
        raise BadRequest

    @staticmethod
    def fails(request: HttpRequest) -> HttpResponse:
        raise RuntimeError("view")

    @staticmethod
    async def fails_later(request: HttpRequest) -> HttpResponse:
        raise RuntimeError("view")

    @staticmethod
    def streams(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(chunks())

    @staticmethod
    def streams_later(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(chunks_later())

    @staticmethod
    def file(request: HttpRequest) -> FileResponse:
        return FileResponse(io.BytesIO(b"file" * 9999))


def chunks() -> Iterator[bytes]:
    yield b"one"
    yield b"two"


async def chunks_later() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


PAGES = {name: view.__func__ for name, view in vars(Pages).items() if isinstance(view, staticmethod)}
CASES = pytest.mark.parametrize(
    ("name", "status"),
    [
        ("fine", 200), ("fine_later", 200), ("missing", 404), ("forbidden", 403), ("bad", 400),
        ("fails", 500), ("fails_later", 500), ("streams", 200), ("streams_later", 200), ("file", 200),
    ],
)  # fmt: skip
MIXED = pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")  # one of the colours, each time


# Django does not close the body of a request that is cancelled, or left by an exception.
LEAVES_A_FILE = pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile")


@MIXED
@CASES
def test_every_response_is_judged_and_releases_once(name: str, status: int, asgi: bool) -> None:
    store = Watched(ManualClock())
    urls = [path("page", PAGES[name])]
    with serving(later=asgi, urls=urls, rules=RULES, store=store.of_colour(later=asgi)) as site:
        assert site.statuses("/page") == [status]
    assert said(store) == ["run", "release"]
    assert left(store, UNLESS_FINE) == (1 if status == 200 else 0)


@pytest.mark.filterwarnings("ignore:.*SG104")
@MIXED
@CASES
def test_a_guard_without_the_middleware_does_as_much(name: str, status: int, asgi: bool) -> None:
    view = limit("1/hour", charge_when=lambda response: response.status_code >= 400)(PAGES[name])
    with serving(later=asgi, urls=[path("page", view)], middleware=[], clock=ManualClock()) as site:
        again = 200 if status == 200 else 429
        assert site.statuses("/page", "/page", "/page") == [status, again, again]


@LEAVES_A_FILE
def test_exceptions_that_propagate_are_judged_and_release(asgi: bool) -> None:
    store = Watched(ManualClock())
    options: Any = {"rules": RULES, "store": store.of_colour(later=asgi)}
    propagate = {"DEBUG_PROPAGATE_EXCEPTIONS": True}
    with (
        serving(later=asgi, urls=[path("page", Pages.fails)], django_settings=propagate, **options) as site,
        pytest.raises(RuntimeError, match="view"),
    ):
        site.request("GET", "/page")
    assert said(store) == ["run", "release"]
    assert left(store, UNLESS_FINE) == 0
    gc.collect()  # here, where its warning is expected


@sync_only_middleware
def replaces(get_response: Any) -> Any:
    """Answers in the place of a response, which it drops."""

    def middleware(request: HttpRequest) -> HttpResponse:
        get_response(request)
        return HttpResponse("another", status=304)

    return middleware


@async_only_middleware
def breaks(get_response: Any) -> Any:
    """Fails when the response has been made."""

    async def middleware(request: HttpRequest) -> HttpResponse:
        await get_response(request)
        raise RuntimeError("outside")

    return middleware


@pytest.mark.parametrize(("outside", "status"), [("replaces", 304), ("breaks", 500)])
def test_a_response_that_is_replaced_outside_still_releases(outside: str, status: int, asgi: bool) -> None:
    store = Watched(ManualClock())
    options: Any = {"rules": RULES, "store": store.of_colour(later=asgi)}
    urls = [path("page", Pages.fine)]
    with serving(later=asgi, urls=urls, middleware=[f"{HERE}.{outside}", OURS], **options) as site:
        assert site.statuses("/page") == [status]
    assert said(store) == ["run", "release"]


def test_what_is_held_lasts_until_the_response_is_closed() -> None:
    store = Watched(ManualClock())
    for view in (Pages.fine, Pages.streams, Pages.file):
        store.log.clear()
        with serving(later=False, urls=[path("page", view)], rules=[HELD], store=store):
            environ = RequestFactory().get("/page").environ
            response: Any = get_wsgi_application()(environ, start)
            b"".join(response)
            assert said(store) == ["run"]
            response.close()
            assert said(store) == ["run", "release"]


def test_a_file_is_handed_to_the_server_unless_it_holds_something() -> None:
    for rules, handed in (([UNLESS_FINE], True), ([HELD], False)):
        store = Watched(ManualClock())
        with serving(later=False, urls=[path("page", Pages.file)], rules=rules, store=store):
            environ = {**RequestFactory().get("/page").environ, "wsgi.file_wrapper": Wrapper}
            response: Any = get_wsgi_application()(environ, start)
            assert isinstance(response, Wrapper) is handed
            response.close()


def start(*started: Any) -> Any:
    """A server's start_response."""


class Wrapper:
    def __init__(self, file: Any, size: int) -> None:
        self.close = file.close


# ---- disconnects and cancellations -------------------------------------------------------------------------------


class Waiting:
    """A view, and a stream, that wait for ever."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def view(self, request: HttpRequest) -> HttpResponse:
        await self._wait()
        return HttpResponse()

    async def stream(self, request: HttpRequest) -> StreamingHttpResponse:
        async def chunks() -> AsyncIterator[str]:
            yield "one"
            await self._wait()

        return StreamingHttpResponse(chunks())

    async def _wait(self) -> None:
        self.reached.set()
        await asyncio.Event().wait()


@LEAVES_A_FILE
@pytest.mark.parametrize("what", ["view", "stream"])
@pytest.mark.parametrize("how", ["disconnect", "cancel"])
def test_a_client_that_has_gone_frees_what_it_held(what: str, how: str) -> None:
    store, waiting, gone = Watched(ManualClock()), Waiting(), asyncio.Event()
    main_task: asyncio.Task[Any] | None = None
    incoming = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if incoming:
            return incoming.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None: ...

    async def serve() -> None:
        scope = {"type": "http", "method": "GET", "path": "/page", "query_string": b"", "headers": []}
        task = asyncio.create_task(get_asgi_application()({**scope, "client": ("198.51.100.9", 1)}, receive, send))
        await waiting.reached.wait()
        if how == "disconnect":
            gone.set()
            await task
        else:  # by the server; Django leaves its own tasks behind then, which the loop cancels when it is shut down
            task.cancel()
            await asyncio.wait([task])
            for other in asyncio.all_tasks() - {main_task}:
                other.cancel()

    async def main() -> None:
        nonlocal main_task
        main_task = asyncio.current_task()
        await serve()
        async with asyncio.timeout(20):
            while "release" not in said(store):
                gc.collect()
                await asyncio.sleep(0)

    urls = [path("page", getattr(waiting, what))]
    with serving(later=True, urls=urls, rules=RULES, store=store.of_colour(later=True)):
        asyncio.run(main())
    gc.collect()
    assert said(store) == ["run", "release"]
    assert left(store, UNLESS_FINE) == (0 if what == "view" else 1)  # who hangs up before the answer has paid

"""Charges that depend on a Django response: both servers, streams and files, guards alone, cancelled tasks."""

from __future__ import annotations

import asyncio
import gc
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from copy import copy
from types import FunctionType
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.asgi import get_asgi_application
from django.core.exceptions import BadRequest, PermissionDenied
from django.core.handlers.base import BaseHandler
from django.core.wsgi import get_wsgi_application
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import path
from django.utils.decorators import async_only_middleware, sync_and_async_middleware, sync_only_middleware

from sluicegate import ManualClock, Rule
from sluicegate.django import limit
from sluicegate.identity import identity_text
from sluicegate.plan import Check, Plan
from sluicegate.testing.charges import Watched
from tests.adapters.django_app import OURS, serving

HERE = "tests.adapters.test_charges_django"
HELD = Rule(name="held", quota="1 at once for 1 hour")
UNLESS_FINE = Rule(name="fails", quota="1/hour", charge_when=lambda response: response.status_code >= 400)
RULES: Any = (HELD, UNLESS_FINE)


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def called(store: Watched) -> list[str]:
    return [name for name, _ in store.log]


def left(store: Watched, rule: Rule) -> int:
    check = Check(rule.terms("sliding-window")[0], identity_text(("ip", "198.51.100.9")), 0)
    return store.run(Plan((check,)))[0].remaining


class Pages:
    """Sync and async views of Django, by name."""

    @staticmethod
    def fine(request: HttpRequest) -> HttpResponse:
        return HttpResponse("page")

    @staticmethod
    async def fine_async(request: HttpRequest) -> HttpResponse:
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
    async def fails_async(request: HttpRequest) -> HttpResponse:
        raise RuntimeError("view")

    @staticmethod
    def streams(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(chunks())

    @staticmethod
    def streams_async(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(async_chunks())

    @staticmethod
    def file(request: HttpRequest) -> FileResponse:
        return FileResponse(io.BytesIO(b"file" * 9999))


def chunks() -> Iterator[bytes]:
    yield b"one"
    yield b"two"


async def async_chunks() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


PAGES = {name: view.__func__ for name, view in vars(Pages).items() if isinstance(view, staticmethod)}
CASES = pytest.mark.parametrize(
    ("name", "status"),
    [
        ("fine", 200), ("fine_async", 200), ("missing", 404), ("forbidden", 403), ("bad", 400),
        ("fails", 500), ("fails_async", 500), ("streams", 200), ("streams_async", 200), ("file", 200),
    ],
)  # fmt: skip
MIXED = pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")  # sync under ASGI, or async under WSGI


# Django does not close the body of a request that is cancelled or that raises.
LEAVES_A_FILE = pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile")


@MIXED
@CASES
def test_every_response_settles_and_releases_once(name: str, status: int, asgi: bool) -> None:
    store = Watched(ManualClock())
    urls = [path("page", PAGES[name])]
    with serving(asgi=asgi, urls=urls, rules=RULES, store=store.for_mode(is_async=asgi)) as site:
        assert site.statuses("/page") == [status]
    assert called(store) == ["run", "release"]
    assert left(store, UNLESS_FINE) == (1 if status == 200 else 0)


@MIXED
@LEAVES_A_FILE
@pytest.mark.parametrize("is_async", [False, True], ids=["an iterator", "an async iterator"])
def test_a_stream_that_raises_frees_its_slot(is_async: bool, asgi: bool) -> None:
    """Without the garbage collector, and before the loop ends: Django under ASGI does not close its response."""

    def broken() -> Iterator[bytes]:
        yield b"one"
        raise LookupError

    async def broken_async() -> AsyncIterator[bytes]:
        for chunk in broken():
            yield chunk

    store = Watched(ManualClock())
    urls = [path("page", lambda request: StreamingHttpResponse(broken_async() if is_async else broken()))]
    with serving(asgi=asgi, urls=urls, rules=[HELD], store=store.for_mode(is_async=asgi)) as site:
        gc.disable()
        try:
            with suppress(LookupError):
                site.request("GET", "/page")
            assert called(store) == ["run", "release"]
        finally:
            gc.enable()
            gc.collect()  # now, while the warning is ignored


@pytest.mark.filterwarnings("ignore:.*SG104")
@MIXED
@CASES
def test_a_guard_without_the_middleware_settles_too(name: str, status: int, asgi: bool) -> None:
    own = FunctionType(PAGES[name].__code__, globals())  # the mark stays on a view: other tests use the one of PAGES
    view = limit("1/hour", charge_when=lambda response: response.status_code >= 400)(own)
    with serving(asgi=asgi, urls=[path("page", view)], middleware=[], clock=ManualClock()) as site:
        again = 200 if status == 200 else 429
        assert site.statuses("/page", "/page", "/page") == [status, again, again]


@LEAVES_A_FILE
def test_exceptions_that_propagate_settle_and_release(asgi: bool) -> None:
    store = Watched(ManualClock())
    options: Any = {"rules": RULES, "store": store.for_mode(is_async=asgi)}
    propagate = {"DEBUG_PROPAGATE_EXCEPTIONS": True}
    with (
        serving(asgi=asgi, urls=[path("page", Pages.fails)], django_settings=propagate, **options) as site,
        pytest.raises(RuntimeError, match="view"),
    ):
        site.request("GET", "/page")
    assert called(store) == ["run", "release"]
    assert left(store, UNLESS_FINE) == 0
    gc.collect()  # here, where the warning is expected


@sync_only_middleware
def replaces(get_response: Any) -> Any:
    """Replaces a response, and drops the old one."""

    def middleware(request: HttpRequest) -> HttpResponse:
        get_response(request)
        return HttpResponse("another", status=304)

    return middleware


@async_only_middleware
def breaks(get_response: Any) -> Any:
    """Raises after the response was made."""

    async def middleware(request: HttpRequest) -> HttpResponse:
        await get_response(request)
        raise RuntimeError("outside")

    return middleware


@pytest.mark.parametrize(("outside", "status"), [("replaces", 304), ("breaks", 500)])
def test_a_response_that_is_replaced_outside_still_releases(outside: str, status: int, asgi: bool) -> None:
    store = Watched(ManualClock())
    options: Any = {"rules": RULES, "store": store.for_mode(is_async=asgi)}
    urls = [path("page", Pages.fine)]
    with serving(asgi=asgi, urls=urls, middleware=[f"{HERE}.{outside}", OURS], **options) as site:
        assert site.statuses("/page") == [status]
    assert called(store) == ["run", "release"]


@sync_and_async_middleware
def copies(get_response: Any) -> Any:
    """Passes on a copy of the request."""

    def middleware(request: HttpRequest) -> Any:
        return get_response(copy(request))

    return markcoroutinefunction(middleware) if iscoroutinefunction(get_response) else middleware


@MIXED
@CASES
def test_slots_are_released_although_a_middleware_copies_the_request(name: str, status: int, asgi: bool) -> None:
    store = Watched(ManualClock())
    options: Any = {"rules": RULES, "store": store.for_mode(is_async=asgi), "urls": [path("page", PAGES[name])]}
    gc.disable()  # Django closes the request: no garbage collector is needed
    try:
        with serving(asgi=asgi, middleware=[OURS, f"{HERE}.copies"], **options) as site:
            assert site.statuses("/page") == [status]
        assert called(store) == ["run", "release"]
    finally:
        gc.enable()


@pytest.mark.parametrize("copying", [[], [f"{HERE}.copies"]], ids=["the request", "a copy"])
def test_a_slot_is_held_until_the_response_is_closed(copying: list[str]) -> None:
    store = Watched(ManualClock())
    for view in (Pages.fine, Pages.streams, Pages.file):
        store.log.clear()
        with serving(asgi=False, urls=[path("page", view)], middleware=[OURS, *copying], rules=[HELD], store=store):
            environ = RequestFactory().get("/page").environ
            response: Any = get_wsgi_application()(environ, start)
            b"".join(response)
            assert called(store) == ["run"]
            response.close()
            assert called(store) == ["run", "release"]


def test_a_file_goes_to_the_server_unless_the_request_holds_a_slot() -> None:
    for rules, handed in (([UNLESS_FINE], True), ([HELD], False)):
        store = Watched(ManualClock())
        with serving(asgi=False, urls=[path("page", Pages.file)], rules=rules, store=store):
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
    """A view and a stream that wait forever."""

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
def test_a_client_that_disconnects_frees_its_slot(what: str, how: str) -> None:
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
        else:  # by the server; Django then leaves tasks behind, which the loop cancels at its shutdown
            task.cancel()
            await asyncio.wait([task])
            for other in asyncio.all_tasks() - {main_task}:
                other.cancel()

    async def main() -> None:
        nonlocal main_task
        main_task = asyncio.current_task()
        await serve()
        async with asyncio.timeout(20):
            while "release" not in called(store):
                gc.collect()
                await asyncio.sleep(0)

    urls = [path("page", getattr(waiting, what))]
    with serving(asgi=True, urls=urls, rules=RULES, store=store.for_mode(is_async=True)):
        asyncio.run(main())
    gc.collect()
    assert called(store) == ["run", "release"]
    assert left(store, UNLESS_FINE) == (0 if what == "view" else 1)  # a client that disconnects early keeps its charge


def test_a_request_that_asgi_drops_frees_the_slot_that_synchronous_middleware_took() -> None:
    """Django closes nothing if its task is cancelled when the thread of synchronous middleware has its response."""
    store = Watched(ManualClock())
    with serving(asgi=False, urls=[path("page", Pages.fine)], rules=[HELD], store=store.for_mode(is_async=False)):
        handler = BaseHandler()
        handler.load_middleware()
        request: HttpRequest = AsyncRequestFactory().get("/page")
        response = handler.get_response(request)
        assert called(store) == ["run"]
        del request, response
        gc.collect()
    assert called(store) == ["run", "release"]

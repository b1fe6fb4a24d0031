"""One view at two routes: `@exempt` around a function frees one route; `@limit` limits both, with one budget."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from types import ModuleType
from typing import Any

import fastapi.routing
import pytest
from fastapi import FastAPI
from flask import Flask
from flask.views import MethodView, View
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

import sluicegate.fastapi
import sluicegate.flask
import sluicegate.starlette
from sluicegate import ManualClock
from sluicegate.flask import RateLimiter
from sluicegate.starlette import RateLimitMiddleware
from sluicegate.web.marks import EXEMPT, marks_of
from tests.adapters.asgi_client import AsgiClient
from tests.adapters.wsgi_client import WsgiClient

Statuses = Callable[..., list[int]]
Views = dict[str, Any]


def in_starlette(views: Views, **options: Any) -> Statuses:
    app = Starlette(routes=[Route(path, view) for path, view in views.items()])
    app.add_middleware(RateLimitMiddleware, clock=ManualClock(), **options)
    return AsgiClient(app).statuses


def in_two_mounts(views: Views, **options: Any) -> Statuses:
    """Each view in a mount of its own, whose routes are read only when a request reaches it."""
    app = Starlette(routes=[Mount(path, routes=[Route("/", view)]) for path, view in views.items()])
    app.add_middleware(RateLimitMiddleware, clock=ManualClock(), **options)
    client = AsgiClient(app)
    return lambda *paths: client.statuses(*[f"{path}/" for path in paths])


def in_fastapi(views: Views, **options: Any) -> Statuses:
    app = FastAPI()
    for path, view in views.items():
        app.get(path)(view)
    app.add_middleware(RateLimitMiddleware, clock=ManualClock(), **options)
    return AsgiClient(app).statuses


def in_flask(views: Views, **options: Any) -> Statuses:
    app = Flask(__name__)
    for path, view in views.items():
        is_class = isinstance(view, type) and issubclass(view, View)
        app.add_url_rule(path, path[1:], view.as_view(path[1:]) if is_class else view)
    RateLimiter(app, clock=ManualClock(), **options)
    return WsgiClient(app).statuses


def starlette_function() -> Any:
    def view(request: Request) -> Response:
        return PlainTextResponse("page")

    return view


def starlette_async() -> Any:
    async def view(request: Request) -> Response:
        return PlainTextResponse("page")

    return view


def starlette_partial() -> Any:
    async def view(text: str, request: Request) -> Response:
        return PlainTextResponse(text)

    return partial(view, "page")


def starlette_method() -> Any:
    class Shop:
        async def view(self, request: Request) -> Response:
            return PlainTextResponse("page")

    return Shop().view


def starlette_class() -> Any:
    class Page(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("page")

    return Page


class AsgiPage:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("page")(scope, receive, send)


def fastapi_generator() -> Any:
    def view() -> Iterator[str]:
        yield "page"

    return view


def fastapi_async_generator() -> Any:
    async def view() -> AsyncIterator[str]:
        yield "page"

    return view


def fastapi_parameter() -> Any:
    async def view(text: str = "page") -> str:
        return text

    return view


def flask_function() -> Any:
    def view() -> str:
        return "page"

    return view


def flask_async() -> Any:
    async def view() -> str:
        return "page"

    return view


def flask_generator() -> Any:
    def view() -> Iterator[str]:
        yield "page"

    return view


def flask_view_class() -> Any:
    class Page(View):
        def dispatch_request(self) -> str:
            return "page"

    return Page


def flask_method_view() -> Any:
    class Page(MethodView):
        def get(self) -> str:
            return "page"

    return Page


class CallablePage:
    def __call__(self) -> str:
        return "page"


def flask_method() -> Any:
    class Shop:
        def view(self) -> str:
            return "page"

    return Shop().view


def keeping(view: Any) -> Any:
    """A usual decorator: it keeps the attributes."""

    @wraps(view)
    async def wrapper(*args: Any) -> Any:
        return await view(*args)

    return wrapper


Row = tuple[Callable[..., Statuses], ModuleType, Callable[[], Any]]
ROWS: dict[str, Row] = {
    "starlette function": (in_starlette, sluicegate.starlette, starlette_function),
    "starlette async": (in_starlette, sluicegate.starlette, starlette_async),
    "starlette decorated": (in_starlette, sluicegate.starlette, lambda: keeping(starlette_async())),
    "starlette partial": (in_starlette, sluicegate.starlette, starlette_partial),
    "starlette method": (in_starlette, sluicegate.starlette, starlette_method),
    "starlette class": (in_starlette, sluicegate.starlette, starlette_class),
    "starlette mounts": (in_two_mounts, sluicegate.starlette, starlette_async),
    "fastapi function": (in_fastapi, sluicegate.fastapi, flask_function),
    "fastapi async": (in_fastapi, sluicegate.fastapi, flask_async),
    "fastapi parameter": (in_fastapi, sluicegate.fastapi, fastapi_parameter),
    "fastapi partial": (in_fastapi, sluicegate.fastapi, lambda: partial(lambda text: text, text="page")),
    "flask function": (in_flask, sluicegate.flask, flask_function),
    "flask async": (in_flask, sluicegate.flask, flask_async),
    "flask generator": (in_flask, sluicegate.flask, flask_generator),
    "flask partial": (in_flask, sluicegate.flask, lambda: partial(str, "page")),
    "flask object": (in_flask, sluicegate.flask, CallablePage),
    "flask method": (in_flask, sluicegate.flask, flask_method),
    "flask view class": (in_flask, sluicegate.flask, flask_view_class),
    "flask method view": (in_flask, sluicegate.flask, flask_method_view),
}
if hasattr(fastapi.routing, "iter_route_contexts"):  # endpoints that yield came after the oldest FastAPI
    ROWS |= {
        "fastapi generator": (in_fastapi, sluicegate.fastapi, fastapi_generator),
        "fastapi async generator": (in_fastapi, sluicegate.fastapi, fastapi_async_generator),
    }
CHANGED_IN_PLACE: dict[str, Row] = {
    **{name: row for name, row in ROWS.items() if "class" in name or "object" in name or "method view" in name},
    "starlette application": (in_starlette, sluicegate.starlette, AsgiPage),
}
WRAPPED = {name: row for name, row in ROWS.items() if name not in CHANGED_IN_PLACE}
FIRST = pytest.mark.parametrize("decorated_first", [False, True], ids=["bare first", "decorated first"])


def pair(bare: Any, decorated: Any, *, decorated_first: bool) -> Views:
    """`/bare` and `/decorated`, in this order or the other."""
    views = {"/bare": bare, "/decorated": decorated}
    return dict(reversed(views.items())) if decorated_first else views


@FIRST
@pytest.mark.parametrize(("serve", "adapter", "make"), WRAPPED.values(), ids=WRAPPED)
def test_exempt_at_one_route_leaves_the_other_limited(
    serve: Callable[..., Statuses], adapter: Any, make: Callable[[], Any], decorated_first: bool
) -> None:
    view = make()
    views = pair(view, adapter.exempt(view), decorated_first=decorated_first)
    statuses = serve(views, default_limits="1/minute")
    assert statuses("/decorated", "/decorated", "/bare", "/bare", "/decorated") == [200, 200, 200, 429, 200]


@FIRST
@pytest.mark.parametrize(("serve", "adapter", "make"), CHANGED_IN_PLACE.values(), ids=CHANGED_IN_PLACE)
def test_exempt_changes_a_class_or_an_object_in_place(
    serve: Callable[..., Statuses], adapter: Any, make: Callable[[], Any], decorated_first: bool
) -> None:
    view = make()
    assert adapter.exempt(view) is view
    statuses = serve(pair(view, view, decorated_first=decorated_first), default_limits="1/minute")
    assert statuses("/decorated", "/decorated", "/bare", "/bare") == [200, 200, 200, 200]


OWN_BUDGETS = {"flask partial", "flask object"}  # in Flask the wrapper of one is another view, with its own budget
ONE_BUDGET = {name: row for name, row in ROWS.items() if name not in OWN_BUDGETS}


@FIRST
@pytest.mark.parametrize(("serve", "adapter", "make"), ONE_BUDGET.values(), ids=ONE_BUDGET)
def test_limit_at_one_route_limits_both_with_one_budget(
    serve: Callable[..., Statuses], adapter: Any, make: Callable[[], Any], decorated_first: bool
) -> None:
    """A route that has the bare view is never unlimited by mistake: a route decorator below `@limit` took that one."""
    view = make()
    statuses = serve(pair(view, adapter.limit("2/minute")(view), decorated_first=decorated_first))
    assert statuses("/bare", "/decorated", "/bare", "/decorated") == [200, 200, 429, 429]


ABOVE: dict[str, Row] = {
    "fastapi": (in_fastapi, sluicegate.fastapi, flask_async),
    "flask": (in_flask, sluicegate.flask, flask_function),
}


@pytest.mark.parametrize(("serve", "adapter", "make"), ABOVE.values(), ids=ABOVE)
def test_limit_above_a_route_decorator_holds(
    serve: Callable[..., Statuses], adapter: Any, make: Callable[[], Any]
) -> None:
    """The route has the bare function."""
    view = make()
    decorated = adapter.limit("1/minute")(view)
    assert serve({"/a": view})("/a", "/a") == [200, 429]
    assert serve({"/a": view, "/b": decorated})("/a", "/a", "/b") == [200, 429, 429], "also beside another route"


@pytest.mark.parametrize(("serve", "adapter", "make"), ABOVE.values(), ids=ABOVE)
def test_exempt_above_a_route_decorator_frees_nothing(
    serve: Callable[..., Statuses], adapter: Any, make: Callable[[], Any]
) -> None:
    view = make()
    adapter.exempt(view)
    assert serve({"/a": view}, default_limits="1/minute")("/a", "/a") == [200, 429]


def kinds(view: Any) -> tuple[bool, ...]:
    """The kind of a view, as frameworks find it out."""
    return inspect.iscoroutinefunction(view), isinstance(view, type), inspect.isfunction(view)


def module_view(number: int, *, text: str = "") -> str:
    return text * number


exempt_view = sluicegate.starlette.exempt(module_view)
exempt_view.__name__ = exempt_view.__qualname__ = "exempt_view"


class StaticMethods:
    @sluicegate.flask.exempt
    @staticmethod
    def static(text: str) -> str:
        return text

    @sluicegate.starlette.exempt
    @classmethod
    def of_class(cls, text: str) -> str:
        return f"{cls.__name__} {text}"


ADAPTERS = pytest.mark.parametrize("adapter", [sluicegate.starlette, sluicegate.flask], ids=["starlette", "flask"])


@ADAPTERS
@pytest.mark.parametrize("make", [starlette_function, starlette_async])
def test_an_exempt_function_is_another_function_that_looks_the_same(adapter: Any, make: Callable[[], Any]) -> None:
    view = make()
    free = adapter.exempt(view)
    assert (marks_of(view), marks_of(free)) == ((), (EXEMPT,))
    assert free.__wrapped__ is view
    assert inspect.signature(free) == inspect.signature(view)
    assert kinds(free) == kinds(view)
    assert (free.__name__, free.__qualname__, free.__module__) == (view.__name__, view.__qualname__, view.__module__)


@pytest.mark.parametrize("decorate", [sluicegate.flask.limit("9/minute"), sluicegate.flask.exempt])
def test_a_decorated_class_keeps_its_closed_methods(decorate: Any) -> None:
    class Crud(MethodView):
        def get(self) -> str:
            return "read"

        def delete(self) -> str:
            return "deleted"

    class ReadOnly(Crud):
        methods = ["GET"]  # noqa: RUF012

    app = Flask(__name__)
    app.add_url_rule("/items", view_func=decorate(ReadOnly).as_view("items"))
    RateLimiter(app, clock=ManualClock())
    assert WsgiClient(app).request("DELETE", "/items").status == 405


def test_a_limited_class_that_registers_itself_is_limited() -> None:
    routes: list[Route] = []

    class Base(HTTPEndpoint):
        def __init_subclass__(cls) -> None:
            routes.append(Route("/board", cls))

    @sluicegate.starlette.limit("1/minute")
    class Board(Base):
        async def get(self, request: Request) -> Response:
            return PlainTextResponse(type(super()).__name__)

    app = Starlette(routes=routes)
    app.add_middleware(RateLimitMiddleware, clock=ManualClock())
    assert AsgiClient(app).statuses("/board", "/board") == [200, 429]
    assert routes[0].endpoint is Board


def test_static_and_class_methods_stay_what_they_are() -> None:
    assert StaticMethods.static("a") == StaticMethods().static("a") == "a"
    assert StaticMethods.of_class("a") == StaticMethods().of_class("a") == "StaticMethods a"
    assert marks_of(StaticMethods.static) == (EXEMPT,)


def test_a_decorated_function_of_a_module_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(exempt_view)) is exempt_view

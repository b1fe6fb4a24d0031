"""`del app` frees a Flask application at once, with and without the limiter: no reference cycle contains it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from flask import Blueprint, Flask, abort, request
from flask.views import MethodView

from sluicegate import Limiter, ManualClock, RateLimitExceeded, Rule
from sluicegate.flask import RateLimited, RateLimiter, charge, limit, rate_limited
from sluicegate.stores.memory import MemoryStore
from tests.adapters.wsgi_client import WsgiClient

Build = Callable[[Flask], object]
HELD = Rule(name="held", quota="1 at once")


def test_a_freed_application_frees_the_store_that_its_views_charged() -> None:
    app, store = Flask("board"), MemoryStore()
    charges(app)
    RateLimiter(app, store=store)
    assert WsgiClient(app).request("GET", "/open").status == 200
    ref = weakref.ref(store)
    del app, store
    assert ref() is None


def is_freed(build: Build, paths: Sequence[str], *limiters: dict[str, Any]) -> bool:
    """Whether reference counting alone frees an application that has served these paths."""
    app = Flask("board", static_folder="static")
    app.logger.disabled = True
    build(app)
    for options in limiters:
        RateLimiter(app, **{"clock": ManualClock(), "config_prefix": None} | options)
    for path in paths:
        for method in ("GET", "GET", "HEAD", "OPTIONS"):
            WsgiClient(app).request(method, path)
    ref = weakref.ref(app)
    del app
    return ref() is None


@pytest.fixture(autouse=True, scope="module")
def _no_collector() -> Any:
    gc.disable()
    yield
    gc.enable()


def page() -> str:
    return "page"


async def async_page() -> str:
    return "async"


def exceeding() -> str:
    raise RateLimitExceeded(Limiter(clock=ManualClock()).hit("1/hour", "alice", cost=2))


def pages(app: Flask) -> None:
    app.add_url_rule("/open", view_func=page)


def marked(app: Flask) -> None:
    class Items(MethodView):
        @limit("1/minute")
        def get(self) -> str:
            return "items"

    inside = limit("3/minute")(Blueprint("inside", __name__, url_prefix="/inside"))
    inside.add_url_rule("/page", view_func=page)
    app.register_blueprint(inside)
    app.add_url_rule("/open", "open", limit("1/minute")(page))
    app.add_url_rule("/async", "async", limit("1/minute")(async_page))
    app.add_url_rule("/items", view_func=Items.as_view("items"))


def charging() -> str:
    charge(request, "2/minute")
    with charge(request, "2 at once"):
        return "charged"


def charges(app: Flask) -> None:
    app.add_url_rule("/open", view_func=charging)


def exceeds(app: Flask) -> None:
    app.add_url_rule("/open", view_func=exceeding)


def async_handler(app: Flask) -> None:
    async def answer(error: Exception) -> str:
        return "answered"

    exceeds(app)
    app.register_error_handler(RateLimitExceeded, answer)


def handles(app: Flask) -> None:
    pages(app)
    app.register_error_handler(429, lambda error: ("slow", 429))
    app.register_error_handler(RateLimited, lambda error: ("slow", 429))


def early(app: Flask) -> None:
    pages(app)
    app.before_request(lambda: ("early", 401))


def aborts(app: Flask) -> None:
    app.add_url_rule("/open", view_func=lambda: abort(401))


def fails(app: Flask) -> None:
    app.add_url_rule("/open", view_func=lambda: str(1 / 0))


async def slow_async(request: Any, decision: Any) -> str:
    return "slow"


LIMITERS = pytest.mark.parametrize(
    "limiters",
    [
        [{"default_limits": ["1/minute"]}],
        [{}],
        [{"enabled": False}],
        [{"default_limits": ["1/minute"], "on_denied": lambda request, decision: ("slow", 429)}],
        [{"default_limits": ["1/minute"], "on_denied": slow_async}],
        [{"rules": [HELD, Rule(name="waits", quota="1/minute", charge_when=lambda response: False)]}],
        [{"default_limits": ["2/minute"]}, {"default_limits": ["1/minute"], "key": lambda request: request.path}],
    ],
    ids=["defaults", "none", "off", "on_denied", "async on_denied", "held", "two"],
)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(
    ("build", "paths"),
    [
        (pages, ["/open"]),
        (marked, ["/open", "/inside/page", "/async", "/items"]),
        (handles, ["/open"]),
        (early, ["/open"]),
        (exceeds, ["/open"]),
        (charges, ["/open"]),
    ],
)
@LIMITERS
def test_an_application_is_freed_at_once(
    limiters: list[dict[str, Any]], build: Build, paths: list[str], used: bool
) -> None:
    # asgiref keeps a cycle with the error that an async function handles, as for an async error handler.
    tied = build is exceeds and limiters[0].get("on_denied") is slow_async and not is_freed(async_handler, paths)
    assert is_freed(build, paths if used else (), *limiters) or tied


@pytest.mark.parametrize("path", ["/open", "/nowhere", "/static/none"])
@pytest.mark.parametrize("build", [pages, aborts, fails, early])
@LIMITERS
def test_only_cycles_of_flask_itself_are_left_to_the_collector(
    limiters: list[dict[str, Any]], build: Build, path: str
) -> None:
    """An error without a handler (404, 500) is a variable of a frame that its own traceback refers to."""
    assert is_freed(build, [path], *limiters) or not is_freed(build, [path])


def test_the_limiter_is_freed_with_the_application() -> None:
    app = Flask("board")
    marked(app)
    RateLimiter(app, default_limits=["1/minute"])
    signals: list[Any] = []

    def note(sender: Flask, decision: Any) -> None:
        signals.append(decision.rule)

    rate_limited.connect(note, app)
    WsgiClient(app).statuses("/open", "/open")
    installed = weakref.ref(app.extensions["sluicegate"][0])
    ref = weakref.ref(app)
    del app
    assert (ref(), installed(), signals) == (None, None, ["default"])

"""Charges that depend on a WSGI response: all ways to start, send and fail, and those of Flask."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from wsgiref.util import FileWrapper

import pytest
from flask import Flask, Response, abort, send_file, stream_with_context
from flask.globals import request_ctx
from flask.signals import request_finished

from sluicegate import ManualClock, Rule
from sluicegate.flask import RateLimiter, limit
from sluicegate.testing.charges import Watched
from sluicegate.wsgi import RateLimitMiddleware
from tests.adapters.wsgi_client import WsgiClient, make_environ

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

HELD = Rule(name="held", quota="1 at once for 1 hour")
UNLESS_FINE = Rule(name="fails", quota="1/hour", charge_when=lambda response: response.status_code >= 400)
IF_FINE = Rule(name="works", quota="1/hour", refund_when=lambda response: response.status_code >= 400)


class Start:
    """A server's start_response, which keeps the headers until the first byte."""

    def __init__(self) -> None:
        self.statuses: list[str] = []
        self.written: list[bytes] = []

    def __call__(self, status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], object]:
        if exc_info and self.written:
            raise exc_info[1]
        self.statuses.append(status)
        return self.written.append


def at_once(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [])
    return [b"page"]


def late(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    start_response("401 Unauthorized", [])
    yield b"page"


def twice(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [])
    try:
        raise RuntimeError("twice")
    except RuntimeError as error:
        start_response("500 Sorry", [], (RuntimeError, error, error.__traceback__))  # type: ignore[arg-type]
    return [b"sorry"]


def written(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("404 Not Found", [])(b"page")
    return []


def raises(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    raise RuntimeError("before anything")


def raises_at_first(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    raise RuntimeError("before anything")
    yield b""


def raises_midway(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    start_response("200 OK", [])
    yield b"pa"
    raise RuntimeError("midway")


def exits(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    raise SystemExit(3)


def says_nothing(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    return []


def serve(app: Any, *, read: bool = True) -> Start:
    """Read the body as a server does: it closes the iterable in every case."""
    start = Start()
    chunks: Any = ()
    try:
        chunks = app(make_environ(), start)
        for chunk in chunks if read else ():
            start.written.append(chunk)
    except (RuntimeError, SystemExit):
        pass
    finally:
        getattr(chunks, "close", list)()
    return start


@pytest.mark.parametrize(
    ("app", "read", "charged"),  # the rules that keep their charge: the one for errors, the one for the rest
    [
        (at_once, True, ["works"]),
        (late, True, ["fails"]),
        (twice, True, []),  # each start settles, and the first has refunded one charge
        (written, True, ["fails"]),
        (raises, True, ["fails"]),
        (raises_at_first, True, ["fails"]),
        (raises_midway, True, ["works"]),
        (says_nothing, True, ["fails"]),
        (exits, True, ["fails", "works"]),  # no response, and no error of a view
        (late, False, ["fails", "works"]),  # the client disconnects before the response
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_every_way_to_respond_settles_once_and_releases(app: Any, read: bool, charged: list[str]) -> None:
    store = Watched(ManualClock())
    serve(RateLimitMiddleware(app, rules=[HELD, UNLESS_FINE, IF_FINE], store=store), read=read)
    left = {name: store.run(plan_of(rule))[0].remaining for name, rule in _RULES.items()}
    assert [name for name in left if not left[name]] == charged
    assert [name for name, _ in store.log].count("release") == 1


_RULES = {"fails": UNLESS_FINE, "works": IF_FINE, "held": HELD}


def plan_of(rule: Rule) -> Any:
    """The units of a rule that the client has left."""
    from sluicegate.identity import identity_text
    from sluicegate.plan import Check, Plan

    return Plan((Check(rule.terms("sliding-window")[0], identity_text(("ip", "198.51.100.9")), 0),))


def test_a_body_is_returned_unchanged_unless_the_request_holds_a_slot() -> None:
    file = FileWrapper(io.BytesIO(b"file"))

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", [])
        return file

    for rules, same in (([], True), ([UNLESS_FINE], True), ([HELD], False)):
        limited = RateLimitMiddleware(app, rules=rules, store=Watched(ManualClock()))
        assert (limited(make_environ(), Start()) is file) is same


def test_a_slot_is_held_until_the_body_is_read_or_closed() -> None:
    for read in (list, lambda chunks: chunks.close()):
        store = Watched(ManualClock())
        chunks: Any = RateLimitMiddleware(at_once, rules=[HELD], store=store)(make_environ(), Start())
        assert [name for name, _ in store.log] == ["run"]
        read(chunks)
        chunks.close()
        assert [name for name, _ in store.log] == ["run", "release"]


# ---- Flask -------------------------------------------------------------------------------------------------------


class Board:
    """A Flask application with a concurrency limit and a charge for failures, and the calls of its store."""

    def __init__(self, view: Callable[..., Any], prepare: Callable[[Flask], object] | None = None) -> None:
        self.app = Flask("board")
        self.app.logger.disabled = True
        if prepare is not None:
            prepare(self.app)
        self.store = Watched(ManualClock())
        RateLimiter(self.app, rules=[HELD, UNLESS_FINE], store=self.store)
        self.app.add_url_rule("/open", view_func=view)

    def outcome(self) -> tuple[int, list[str], bool]:
        """The status, the calls of the store, and whether the failure was charged."""
        status = WsgiClient(self.app).request("GET", "/open").status
        log = [name for name, _ in self.store.log]
        return status, log, not self.store.run(plan_of(UNLESS_FINE))[0].remaining


def fine() -> str:
    return "page"


def streams() -> Response:
    def chunks() -> Iterator[str]:
        yield "one"
        yield "two"

    return Response(stream_with_context(chunks()))


def breaks() -> Response:
    def chunks() -> Iterator[str]:
        yield "one"
        raise RuntimeError("midway")

    return Response(chunks())


def sends_file() -> Response:
    return send_file(io.BytesIO(b"file" * 9999), "text/plain")


def fails() -> str:
    raise RuntimeError("view")


def denies() -> str:
    abort(403)


def handles_errors(app: Flask) -> None:
    app.register_error_handler(RuntimeError, lambda error: ("handled", 418))


def breaks_after(app: Flask) -> None:
    @app.after_request
    def broken(response: Response) -> Response:
        raise RuntimeError("after")


def changes_status(app: Flask) -> None:
    @app.after_request
    def changed(response: Response) -> Response:
        return Response("another", 402)


def breaks_signal(app: Flask) -> None:
    def broken(sender: Any, **extra: Any) -> None:
        raise RuntimeError("finished")

    app.extensions["kept"] = broken  # signals hold weak references
    request_finished.connect(broken, app)


@pytest.mark.parametrize("first", [True, False], ids=["before-us", "after-us"])
@pytest.mark.parametrize(
    ("view", "prepare", "status", "charged"),
    [
        (fine, None, 200, False),
        (streams, None, 200, False),
        (breaks, None, 500, False),  # it had started with 200
        (sends_file, None, 200, False),
        (fails, None, 500, True),
        (denies, None, 403, True),
        (fails, handles_errors, 418, True),
        (fine, breaks_after, 500, True),
        (fails, breaks_after, 500, True),
        (fine, changes_status, 402, True),
        (fine, breaks_signal, 500, False),  # refunded by the first response, which an error then replaced
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_flask_settles_by_the_sent_response_and_releases_once(
    view: Any, prepare: Any, status: int, charged: bool, first: bool
) -> None:
    board = Board(view, prepare if first else None)
    if prepare is not None and not first:
        prepare(board.app)
    assert board.outcome() == (status, ["run", "release"], charged)


def test_flask_releases_if_the_server_never_reads_the_body() -> None:
    for view in (streams, sends_file):
        board = Board(view)
        chunks: Any = board.app(make_environ(), Start())
        assert [name for name, _ in board.store.log] == ["run"]
        chunks.close()
        assert [name for name, _ in board.store.log] == ["run", "release"]


def test_flask_releases_when_errors_propagate() -> None:
    board = Board(fails)
    board.app.testing = True
    with pytest.raises(RuntimeError):
        board.app.test_client().get("/open")
    assert [name for name, _ in board.store.log] == ["run", "release"]


def flows() -> Response:
    """Stream without the context: an older Flask leaves it pushed if the stream is lost."""
    return Response(iter(["one", "two"]))


def pops() -> str:
    """Handle an error while a copy of the context ends."""
    with suppress(LookupError):
        context: Any = request_ctx
        context.push()
        try:
            raise LookupError
        except LookupError:
            context.pop()
    return "page"


def breaks_close(app: Flask) -> None:
    @app.after_request
    def after(response: Response) -> Response:
        response.call_on_close(lambda: 1 / 0)
        return response


@pytest.mark.parametrize("prepare", [lambda app: None, breaks_close], ids=["none", "close"])
@pytest.mark.parametrize(("view", "trace"), [(fine, True), (flows, True), (pops, True), (fine, False)])
def test_flask_ends_a_request_when_its_response_is_closed_and_not_earlier(prepare: Any, view: Any, trace: bool) -> None:
    app, store, events = Flask("board"), Watched(ManualClock()), list[bool]()
    prepare(app)
    RateLimiter(app, rules=[HELD], store=store, on_decision=lambda event: events.append(event.allowed))
    app.add_url_rule("/open", view_func=view)
    try:
        raise LookupError  # a server or a middleware may handle an error of its own meanwhile
    except LookupError as error:
        error.__traceback__ = error.__traceback__ if trace else None
        chunks: Any = app(make_environ(), Start())
        assert ([name for name, _ in store.log], events) == (["run"], [])
        with suppress(ZeroDivisionError):
            chunks.close()
    assert ([name for name, _ in store.log], events) == (["run", "release"], [True])


def breaks_teardown(app: Flask) -> None:
    app.teardown_request(lambda error: 1 / 0)  # type: ignore[type-var]


def breaks_context(app: Flask) -> None:
    app.teardown_appcontext(lambda error: 1 / 0)  # type: ignore[type-var]


def refuses_fields(status: str, headers: Any, exc_info: Any = None) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "prepare", [breaks_teardown, breaks_context, lambda app: None], ids=["teardown", "context", "server"]
)
@pytest.mark.parametrize("view", [fine, flows])
def test_the_slot_of_a_response_that_flask_loses_ends_with_its_lease(prepare: Any, view: Any) -> None:
    """The server never gets that response, so nothing closes it."""
    app, clock = Flask("board"), ManualClock()
    prepare(app)
    RateLimiter(app, rules=[HELD], clock=clock)
    app.add_url_rule("/open", view_func=view)

    def status() -> str:
        statuses: list[str] = []

        def refuses(status: str, headers: Any, exc_info: Any = None) -> Any:
            statuses.append(status[:3])
            raise ZeroDivisionError

        with suppress(ZeroDivisionError):
            app(make_environ(), refuses)
        return statuses[0]

    assert [status(), status()] == ["200", "429"]
    clock.advance(3600)
    assert [status(), status()] == ["200", "429"]


def test_flask_ends_no_request_of_an_error_handler_that_asks_another_application() -> None:
    outer, app, store = Flask("outer"), Flask("board"), Watched(ManualClock())
    RateLimiter(app, rules=[HELD], store=store)
    app.add_url_rule("/open", view_func=fine)
    asked: list[Any] = []

    @outer.errorhandler(500)
    def ask(error: Exception) -> str:
        asked.append(app(make_environ(), Start()))
        return "broken"

    outer.add_url_rule("/open", view_func=fails)
    outer(make_environ(), Start())
    assert [name for name, _ in store.log] == ["run"]
    asked[0].close()
    assert [name for name, _ in store.log] == ["run", "release"]


def test_flask_guards_settle_too() -> None:
    """The guard of a view that another view calls enforces it. The charge depends on the sent response."""
    app = Flask("board")
    RateLimiter(app, store=Watched(ManualClock()))

    @limit("2/hour", charge_when=lambda response: response.status_code == 401)
    def inner() -> str:
        return "inner"

    @app.get("/outer/<int:status>")
    def outer(status: int) -> tuple[str, int]:
        return inner(), status

    client = WsgiClient(app)
    assert client.statuses(*[f"/outer/{status}" for status in (401, 200, 200, 401, 200)]) == [401, 200, 200, 401, 429]

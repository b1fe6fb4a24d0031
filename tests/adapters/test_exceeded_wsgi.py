"""`raise RateLimitExceeded(decision)` under Flask or the WSGI adapter: handled as the adapter's own refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from flask import Blueprint, Flask, Response
from werkzeug.exceptions import HTTPException

from sluicegate import Decision, Limiter, ManualClock, RateLimitExceeded, Rule
from sluicegate.errors import SluicegateError
from sluicegate.flask import RateLimited, RateLimiter, decision, limit, rate_limited
from sluicegate.testing import BrokenStore
from sluicegate.testing.charges import Watched
from sluicegate.testing.client import Answer
from sluicegate.wsgi import RateLimitMiddleware
from tests.adapters.wsgi_client import WsgiClient, call, check_fields, make_environ

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

View = Callable[[], Any]
HELD = Rule(name="held", quota="1 at once for 1 hour")


class Mails:
    """The application's own limiter: one mail an hour."""

    def __init__(self, **options: Any) -> None:
        self.limiter = Limiter(**{"clock": ManualClock()} | options)

    def send(self) -> Any:  # None
        decision = self.limiter.hit("1/hour", "alice", action="mail")
        if not decision:
            raise RateLimitExceeded(decision)

    def used_up(self) -> Mails:
        self.limiter.hit("1/hour", "alice", action="mail")
        return self


# Two applications with one page that runs `step` first


def flask_app(step: Callable[[], Any], **options: Any) -> WsgiClient:
    app = Flask("mails")
    RateLimiter(app, **{"clock": ManualClock()} | options)

    @app.route("/open", methods=["GET", "POST"])
    def page() -> str:
        step()
        return "sent"

    return WsgiClient(app)


def flask_async(step: Callable[[], Any], **options: Any) -> WsgiClient:
    app = Flask("mails")
    RateLimiter(app, **{"clock": ManualClock()} | options)

    @app.route("/open", methods=["GET", "POST"])
    async def page() -> str:
        step()
        return "sent"

    return WsgiClient(app)


def flask_before(step: Callable[[], Any], **options: Any) -> WsgiClient:
    app = Flask("mails")
    RateLimiter(app, **{"clock": ManualClock()} | options)
    app.before_request(lambda: step() and None)
    app.get("/open")(lambda: "sent")
    return WsgiClient(app)


def flask_in_a_blueprint(step: Callable[[], Any], **options: Any) -> WsgiClient:
    app, pages = Flask("mails"), Blueprint("pages", __name__)
    RateLimiter(app, **{"clock": ManualClock()} | options)
    pages.get("/open")(lambda: step() or "sent")
    pages.register_error_handler(ValueError, lambda error: ("of the blueprint", 418))
    app.register_blueprint(pages)
    return WsgiClient(app)


def bare(step: Callable[[], Any], **options: Any) -> WsgiClient:
    def page(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        step()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"sent"]

    return WsgiClient(RateLimitMiddleware(page, **{"clock": ManualClock()} | options))


def bare_generator(step: Callable[[], Any], **options: Any) -> WsgiClient:
    def page(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        step()
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"sent"

    return WsgiClient(RateLimitMiddleware(page, **{"clock": ManualClock()} | options))


BARE = [bare, bare_generator]
APPS = pytest.mark.parametrize("app", [flask_app, flask_async, flask_before, flask_in_a_blueprint, *BARE])


@APPS
@pytest.mark.parametrize("options", [{"default_limits": ["9/minute"]}, {}, {"enabled": False}])
def test_it_is_a_429_like_a_refusal_of_the_adapter(app: Any, options: Any) -> None:
    client = app(Mails().send, **options)
    assert client.statuses("/open", "/open") == [200, 429]
    answer = client.request("GET", "/open")
    check_fields(answer)
    assert (answer.one("retry-after"), answer.one("cache-control")) == ("3600", "no-store")
    assert answer.one("content-type") == "application/problem+json"
    problem = json.loads(answer.body)
    assert (problem["status"], problem["violated-policies"]) == (429, ["mail"])
    assert answer.one("ratelimit") == '"mail";r=0;t=3600'
    first = '"default";q=9;w=60, ' if "default_limits" in options else ""
    assert answer.one("ratelimit-policy") == f'{first}"mail";q=1;w=3600'


@APPS
def test_the_body_suits_the_client_and_the_method(app: Any) -> None:
    client = app(Mails().used_up().send)
    text = client.request("GET", "/open", headers=[("Accept", "text/html")])
    assert (text.one("content-type"), text.body) == (
        "text/plain; charset=utf-8",
        b"Quota Exceeded. Retry after 3600 seconds.\n",
    )
    head = client.request("HEAD", "/open")
    assert (head.status, head.body, head.one("retry-after")) == (429, b"", "3600")


@APPS
def test_the_status_is_that_of_the_decision(app: Any) -> None:
    store_down = app(Mails(store=BrokenStore(), clock=None, on_store_failure="deny").send).request("GET", "/open")
    assert (store_down.status, store_down.one("retry-after")) == (503, "1")

    def forbid() -> None:
        raise RateLimitExceeded(Decision(allowed=False, checks=(), outcomes=()))

    denied = app(forbid, default_limits=["9/minute"]).request("GET", "/open")
    assert (denied.status, denied.one("retry-after"), denied.one("cache-control")) == (403, None, "no-store")


@APPS
def test_an_allowed_decision_is_a_429_too(app: Any) -> None:
    """This is misuse. Clients must not get a wait of 0."""
    passed = Limiter(clock=ManualClock()).hit("2/hour", "alice", action="mail")
    assert passed.allowed

    def misuse() -> None:
        raise RateLimitExceeded(passed)

    answer = app(misuse).request("GET", "/open")
    check_fields(answer)
    assert (answer.status, answer.one("retry-after"), answer.one("cache-control")) == (429, "1", "no-store")
    assert answer.one("ratelimit") is None


@APPS
def test_subclasses_are_handled_and_other_errors_are_not(app: Any) -> None:
    class TooManyMails(RateLimitExceeded): ...

    refused = Limiter(clock=ManualClock()).hit("1/hour", "alice", cost=2, action="mail")

    def raising(error: Exception) -> Callable[[], None]:
        def step() -> None:
            raise error

        return step

    answer = app(raising(TooManyMails(refused))).request("GET", "/open")
    assert (answer.status, answer.one("retry-after")) == (429, None)  # it can never pass
    assert app(raising(RuntimeError("mail"))).request("GET", "/open").status == 500


@pytest.mark.parametrize("app", [flask_app, flask_async, flask_in_a_blueprint, *BARE])
def test_the_response_settles_the_charges(app: Any) -> None:
    store = Watched(ManualClock())
    given_back = Rule(name="fails", quota="1/hour", refund_when=lambda response: response.status_code == 429)
    client = app(Mails().used_up().send, rules=[HELD, given_back], store=store, clock=None)
    assert client.statuses("/open", "/open", "/open") == [429, 429, 429]
    assert [name for name, _ in store.log].count("release") == 3


# Flask's handlers, `on_denied` and the signal


def raising_board(prepare: Callable[[Flask], object], **options: Any) -> Answer:
    app = Flask("mails")
    prepare(app)
    RateLimiter(app, **{"default_limits": ["9/minute"]} | options)
    mails = Mails().used_up()
    app.get("/open")(lambda: mails.send() or "sent")
    return WsgiClient(app).request("GET", "/open")


def handler(kind: Any) -> Callable[[Flask], object]:
    def handle(error: Any) -> Any:
        return f"{type(error).__name__} {error.decision.rule}", 420

    return lambda app: app.register_error_handler(kind, handle)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (429, b"RateLimited mail"),
        (RateLimited, b"RateLimited mail"),
        (HTTPException, b"RateLimited mail"),
        (Exception, b"RateLimited mail"),
        (RateLimitExceeded, b"RateLimitExceeded mail"),
        (SluicegateError, b"RateLimitExceeded mail"),
    ],
)
def test_flasks_handlers_go_first(kind: Any, body: bytes) -> None:
    answer = raising_board(handler(kind))
    assert (answer.status, answer.body) == (420, body)
    if body.startswith(b"RateLimited"):
        assert (answer.one("retry-after"), answer.one("cache-control")) == ("3600", "no-store")
        check_fields(answer)


@pytest.mark.parametrize("first", [True, False])
def test_a_handler_may_be_registered_before_the_limiter_or_after_it(first: bool) -> None:
    app = Flask("mails")
    if first:
        handler(RateLimitExceeded)(app)
    RateLimiter(app)
    if not first:
        handler(RateLimitExceeded)(app)
    mails = Mails().used_up()
    app.get("/open")(lambda: mails.send() or "sent")
    assert WsgiClient(app).request("GET", "/open").body == b"RateLimitExceeded mail"


@pytest.mark.parametrize("kind", [429, RateLimitExceeded, HTTPException])
def test_a_blueprints_handlers_are_used_for_it_only(kind: Any) -> None:
    app, pages = Flask("mails"), Blueprint("pages", __name__)
    RateLimiter(app)
    mails = Mails().used_up()
    for owner, path in ((pages, "/inside"), (app, "/outside")):
        owner.get(path, endpoint=path[1:])(lambda: mails.send() or "sent")
    pages.register_error_handler(kind, lambda error: ("of the blueprint", 418))
    app.register_blueprint(pages)
    answers = [WsgiClient(app).request("GET", path) for path in ("/inside", "/outside")]
    assert [answer.status for answer in answers] == [418, 429]
    assert answers[0].body == b"of the blueprint"


def test_trapped_errors_stay_errors_without_a_handler() -> None:
    def trap(app: Flask) -> Any:
        app.config["TRAP_HTTP_EXCEPTIONS"] = True
        app.logger.disabled = True

    assert raising_board(trap).status == 500
    assert raising_board(lambda app: (trap(app), handler(429)(app))).status == 420


def test_the_signal_and_on_denied_are_called_once() -> None:
    signals: list[Any] = []

    def slow(request: Any, decision: Decision) -> dict[str, str]:
        signals.append(decision.rule)
        return {"slow": "down"}

    app = Flask("mails")
    RateLimiter(app, on_denied=slow)
    mails = Mails().used_up()
    app.get("/open")(lambda: mails.send() or "sent")
    with rate_limited.connected_to(lambda sender, decision: signals.append(sender), app):
        answer = WsgiClient(app).request("GET", "/open")
    assert signals == [app, "mail"]
    assert (json.loads(answer.body), answer.one("retry-after")) == ({"slow": "down"}, "3600")


def test_on_denied_may_raise_the_refusal() -> None:
    def raises(request: Any, decision: Decision) -> Any:
        raise RateLimitExceeded(decision)

    for seen in (handler(RateLimitExceeded), lambda app: None):
        app = Flask("mails")
        seen(app)
        RateLimiter(app, default_limits=["1/minute"], on_denied=raises, clock=ManualClock())
        client = WsgiClient(app)
        client.request("GET", "/open")
        answer = client.request("GET", "/open")
        assert answer.one("ratelimit") == '"default";r=0;t=60'
        assert answer.status == (
            420 if app.error_handler_spec[None][None][RateLimitExceeded].__name__ == "handle" else 429
        )


def test_the_decision_about_this_request_may_be_raised_and_is_not_named_twice() -> None:
    app = Flask("mails")
    RateLimiter(app, default_limits=["9/minute"], clock=ManualClock())

    @app.get("/open")
    def page() -> str:
        found = decision()
        assert found is not None
        raise RateLimitExceeded(found)

    answer = WsgiClient(app).request("GET", "/open")
    assert (answer.status, answer.one("ratelimit-policy")) == (429, '"default";q=9;w=60')


def test_a_refusal_inside_a_view_names_the_same_rules_in_body_and_fields() -> None:
    app = Flask("mails")
    RateLimiter(app, default_limits=["9/minute"], clock=ManualClock())
    mail = limit("1/minute", name="default")(lambda: "mail")
    app.get("/open", endpoint="open")(lambda: "".join(mail()))
    client = WsgiClient(app)
    client.request("GET", "/open")
    answer = client.request("GET", "/open")
    assert answer.one("ratelimit") == '"default-2";r=0;t=60'
    assert json.loads(answer.body)["violated-policies"] == ["default-2"]


# Bare WSGI


def test_wsgi_s_on_denied_makes_the_response_and_is_closed() -> None:
    closed: list[str] = []

    class Sorry(list[bytes]):
        def close(self) -> None:
            closed.append("sorry")

    def sorry(environ: WSGIEnvironment, decision: Decision) -> WSGIApplication:
        def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            start_response("420 Calm", [("Content-Type", "text/plain")])
            return Sorry([str(decision.rule).encode()])

        return answer

    for app in BARE:
        answer = app(Mails().used_up().send, on_denied=sorry).request("GET", "/open")
        assert (answer.status, answer.body, answer.one("retry-after")) == (420, b"mail", "3600")
    assert closed == ["sorry", "sorry"]


def test_a_response_that_has_started_is_not_replaced() -> None:
    mails = Mails().used_up()

    def started(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        mails.send()
        return []

    def midway(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"one"
        mails.send()

    for rules in ([], [HELD]):
        for app in (started, midway):
            store = Watched(ManualClock())
            with pytest.raises(RateLimitExceeded):
                call(RateLimitMiddleware(app, rules=rules, store=store), make_environ())
            assert [name for name, _ in store.log] == (["run", "release"] if rules else [])


def test_a_generator_that_starts_late_is_read_and_closed() -> None:
    noted: list[str] = []

    def late(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        try:
            start_response("200 OK", [("Content-Type", "text/plain")])
            noted.append("one")
            yield b"one"
            noted.append("two")
            yield b"two"
        finally:
            noted.append("closed")

    chunks: Any = RateLimitMiddleware(late)(make_environ(), lambda *_: bytes)
    assert noted == []
    assert (next(iter(chunks)), noted[0]) == (b"one", "one")
    chunks.close()
    assert noted == ["one", "closed"]
    assert WsgiClient(RateLimitMiddleware(late)).request("GET", "/open") == Answer(
        200, [("content-type", "text/plain")], b"onetwo"
    )


def test_an_inner_middleware_handles_what_the_application_raises() -> None:
    mails = Mails().used_up()

    def page(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        mails.send()
        return []

    inner = RateLimitMiddleware(page, default_limits=["5/minute"], clock=ManualClock())
    answer = WsgiClient(RateLimitMiddleware(inner, default_limits=["9/hour"], clock=ManualClock())).request("GET", "/")
    check_fields(answer)
    assert answer.status == 429


def test_a_refusal_in_a_flask_stream_passes() -> None:
    app, mails = Flask("mails"), Mails().used_up()
    RateLimiter(app)

    @app.get("/open")
    def page() -> Response:
        def chunks() -> Iterator[str]:
            yield "one"
            mails.send()

        return Response(chunks())

    with pytest.raises(RateLimitExceeded):
        WsgiClient(app).request("GET", "/open")

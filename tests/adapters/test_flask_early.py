"""Requests that get a response before our limits: all are charged, except preflights that no view handles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from flask import Blueprint, Flask, Response, abort, g, got_request_exception, make_response, redirect, request
from flask.views import MethodView
from werkzeug.exceptions import HTTPException

from sluicegate import ManualClock, Rule
from sluicegate.flask import RateLimiter, decision, exempt, limit, rate_limited
from sluicegate.observe.events import DecisionEvent
from sluicegate.testing.charges import Watched
from sluicegate.testing.client import Answer
from tests.adapters.wsgi_client import WsgiClient, call, check_fields, make_environ

FIVE: Any = {"default_limits": ["5/minute"]}
HELD = Rule(name="held", quota="1 at once for 1 hour")
HERE = {"REMOTE_ADDR": "198.51.100.9"}
PREFLIGHT = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")]


def board(early: Callable[[Flask], object], **options: Any) -> Flask:
    """An application with a function that was registered before the limiter."""
    app = Flask("board")
    app.logger.disabled = True
    early(app)
    RateLimiter(app, **{"clock": ManualClock()} | options)
    app.get("/open", endpoint="open")(lambda: "open")
    app.get("/free", endpoint="free")(exempt(lambda: "free"))
    app.route("/own", methods=["GET", "OPTIONS"], endpoint="own")(lambda: "own")
    return app


def keyed(app: Flask) -> None:
    """A check of an API key."""

    @app.before_request
    def check() -> None:
        if request.headers.get("X-Key") != "right":
            abort(401)


def returns(app: Flask) -> None:
    app.before_request(lambda: ("closed", 503))


def raises(app: Flask) -> None:
    def broken() -> None:
        raise RuntimeError("broken")

    app.before_request(broken)


def aborts_async(app: Flask) -> None:
    @app.before_request
    async def check() -> None:
        abort(401)


def preprocesses(app: Flask) -> None:
    app.url_value_preprocessor(lambda endpoint, values: abort(410))


def no_response(app: Flask) -> None:
    app.before_request(cast(Any, lambda: 5))


def trapped(app: Flask) -> None:
    app.config["TRAP_HTTP_EXCEPTIONS"] = True
    keyed(app)


def handled(app: Flask) -> None:
    app.register_error_handler(401, lambda error: ("who?", 402))
    keyed(app)


EARLY = [(keyed, 401), (returns, 503), (raises, 500), (aborts_async, 401), (preprocesses, 410), (no_response, 500)]
EARLY += [(trapped, 500), (handled, 402)]


@pytest.mark.parametrize("path", ["/open", "/nowhere"])
@pytest.mark.parametrize(("early", "status"), EARLY)
def test_every_early_response_is_charged_and_refused(early: Any, status: int, path: str) -> None:
    client = WsgiClient(board(early, **FIVE))
    answers = [client.request("GET", path) for _ in range(7)]
    assert [answer.status for answer in answers] == [status] * 5 + [500 if early is trapped else 429] * 2
    for answer in answers[:5] if early is trapped else answers:
        check_fields(answer)
    assert [answer.one("ratelimit") for answer in answers[:5]] == [
        f'"default";r={left};t=60' for left in range(4, -1, -1)
    ]


@pytest.mark.parametrize(("early", "status"), EARLY)
def test_nothing_is_charged_if_no_rule_applies_or_the_limiter_is_off(early: Any, status: int) -> None:
    assert WsgiClient(board(early, **FIVE, enabled=False)).statuses(*["/open"] * 7) == [status] * 7
    assert WsgiClient(board(early, **FIVE)).statuses(*["/free"] * 7) == [status] * 7


def test_an_error_that_the_server_gets_is_charged_and_has_its_event() -> None:
    events: list[DecisionEvent] = []
    app = board(raises, **FIVE, on_decision=events.append)
    app.config["PROPAGATE_EXCEPTIONS"] = True
    for number in range(1, 8):
        with pytest.raises(RuntimeError, match="broken"):
            app.test_client().get("/open")
        assert len(events) == number
    assert [event.allowed for event in events] == [True] * 5 + [False] * 2


def test_static_files_stay_free_and_a_rule_may_name_them(tmp_path: Path) -> None:
    for options, expected in (
        (FIVE, [401] * 7),
        ({"rules": [Rule(name="s", quota="5/minute", route="static")]}, [401] * 5 + [429] * 2),
    ):
        app = Flask("board", static_folder=str(tmp_path), static_url_path="/static")
        keyed(app)
        RateLimiter(app, **options)
        assert WsgiClient(app).statuses(*["/static/a.css"] * 7) == expected


def test_a_right_key_is_charged_once_out_of_the_same_budget() -> None:
    client = WsgiClient(board(keyed, **FIVE))
    keys = ["wrong", "right", "right", "wrong", "right", "right", "wrong"]
    answers = [client.request("GET", "/open", headers=[("X-Key", key)]) for key in keys]
    assert [answer.status for answer in answers] == [401, 200, 200, 401, 200, 429, 429]
    assert [answer.one("ratelimit") for answer in answers[:5]] == [
        f'"default";r={left};t=60' for left in range(4, -1, -1)
    ]


def test_the_order_stays_as_registered() -> None:
    """An earlier function may set a value that a key reads; a later one runs only if the request is allowed."""
    seen: list[str] = []

    def names(app: Flask) -> None:
        @app.before_request
        def set_user() -> None:
            g.user = request.headers.get("X-User")
            seen.append("early")

    app = board(names, default_limits=["1/minute"], key=lambda request: g.user)
    app.before_request(lambda: seen.append("late"))
    client = WsgiClient(app)
    users = ["alice", "bob", "alice"]
    assert [client.request("GET", "/open", headers=[("X-User", user)]).status for user in users] == [200, 200, 429]
    assert seen == ["early", "late"] * 2 + ["early"]


def test_the_rules_are_those_of_the_matched_route() -> None:
    app = Flask("board")
    keyed(app)
    RateLimiter(app, default_limits=["5/minute"], rules=[{"name": "named", "quota": "3/minute", "route": "named"}])
    pages = limit("2/minute")(Blueprint("pages", __name__))
    pages.get("/page", endpoint="page")(lambda: "page")
    pages.before_request(lambda: abort(409))
    app.register_blueprint(pages)
    app.get("/named", endpoint="named")(lambda: "named")
    app.get("/decorated", endpoint="decorated")(limit("1/minute", override_defaults=True)(lambda: "decorated"))
    client = WsgiClient(app)
    assert client.statuses("/decorated", "/decorated", "/page", "/page", "/page") == [401, 429, 401, 401, 429]
    assert client.statuses("/named", "/named", "/named", "/named") == [401, 401, 401, 429]


@pytest.mark.parametrize("path", ["/open", "/page"])
def test_a_blueprints_own_before_request_runs_after_ours_as_before(path: str) -> None:
    app, pages = Flask("board"), Blueprint("pages", __name__)
    RateLimiter(app, **FIVE)
    pages.get("/page", endpoint="page")(lambda: "page")
    pages.before_request(lambda: abort(401))
    app.register_blueprint(pages)
    app.get("/open", endpoint="open")(lambda: "open")
    expected = 401 if path == "/page" else 200
    assert WsgiClient(app).statuses(*[path] * 6) == [expected] * 5 + [429]


# Responses to a refusal


def answers_429(app: Flask) -> None:
    keyed(app)
    app.register_error_handler(429, lambda error: (f"{error.decision.rule} {error.retry_after}", 420))


def answers_all(app: Flask) -> None:
    keyed(app)
    app.register_error_handler(HTTPException, lambda error: (str(error.code), 420 if error.code == 429 else error.code))


@pytest.mark.parametrize(("early", "body"), [(answers_429, b"default 60"), (answers_all, b"429")])
def test_handlers_are_used(early: Any, body: bytes) -> None:
    client = WsgiClient(board(early, default_limits=["1/minute"]))
    answers = [client.request("GET", "/open") for _ in range(2)]
    assert [answer.status for answer in answers] == [401, 420]
    assert (answers[1].body, answers[1].one("retry-after"), answers[1].one("cache-control")) == (body, "60", "no-store")


def test_on_denied_and_the_signal() -> None:
    calls: list[Any] = []

    def denied(request: Any, decision: Any) -> Any:
        calls.append((request.path, decision.rule))
        return "slow"

    app = board(keyed, default_limits=["1/minute"], on_denied=denied)
    with rate_limited.connected_to(lambda sender, decision: calls.append(sender), app):
        answers = [WsgiClient(app).request("GET", "/open") for _ in range(2)]
    assert (answers[1].status, answers[1].body) == (429, b"slow")
    assert calls == [app, ("/open", "default")]


def test_on_denied_may_abort_and_a_key_may_fail() -> None:
    def away(request: Any, decision: Any) -> Any:
        abort(418)

    assert WsgiClient(board(keyed, default_limits=["1/minute"], on_denied=away)).statuses("/open", "/open") == [
        401,
        418,
    ]

    def broken(request: Any) -> str:
        raise LookupError("key")

    assert WsgiClient(board(keyed, **FIVE, key=broken)).statuses("/open") == [500]
    app = board(keyed, **FIVE, key=broken)
    app.register_error_handler(LookupError, lambda error: ("no key", 400))
    assert WsgiClient(app).statuses("/open") == [400]


def test_text_head_and_dialects() -> None:
    client = WsgiClient(board(keyed, default_limits=["1/minute"], headers="draft-7"))
    assert client.request("GET", "/open").one("ratelimit") == "limit=1, remaining=0, reset=60"
    assert (
        client.request("GET", "/open", headers=[("Accept", "text/html")]).one("content-type")
        == "text/plain; charset=utf-8"
    )
    assert client.request("HEAD", "/open").body == b""


def test_the_replaced_response_is_closed_and_its_cors_fields_are_kept() -> None:
    closed: list[str] = []

    def early(app: Flask) -> None:
        @app.before_request
        def streams() -> Response:
            response = Response(iter(["a"]), 401)
            response.call_on_close(lambda: closed.append("stream"))
            response.set_cookie("secret", "1")
            return response

        @app.after_request
        def cors(response: Response) -> Response:
            response.headers["Access-Control-Allow-Origin"] = "https://a.example"
            response.headers["Vary"] = "Origin"
            return response

    client = WsgiClient(board(early, default_limits=["1/minute"]))
    answers = [client.request("GET", "/open") for _ in range(2)]
    assert [(answer.status, answer.one("access-control-allow-origin"), answer.one("vary")) for answer in answers] == [
        (401, "https://a.example", "Origin"),
        (429, "https://a.example", "Origin"),
    ]
    assert answers[1].one("set-cookie") is None
    assert closed == ["stream", "stream"]


# Several limiters, and charges that wait for the response


def two(early: Any, first: str, second: str) -> WsgiClient:
    app = Flask("board")
    app.logger.disabled = True
    early(app)
    for name, quota in (("first", first), ("second", second)):
        RateLimiter(app, rules=[Rule(name=name, quota=quota)], clock=ManualClock(), config_prefix=None)
    app.get("/open", endpoint="open")(lambda: "open")
    return WsgiClient(app)


@pytest.mark.parametrize(("early", "status"), [*EARLY, (lambda app: None, 200)])
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("1/minute", "9/minute", [('"second";r=8;t=60, "first";r=0;t=60', False), ('"first";r=0;t=60', True)]),
        ("9/minute", "1/minute", [('"second";r=0;t=60, "first";r=8;t=60', False), ('"second";r=0;t=60', True)]),
    ],
)
def test_several_limiters_decide_in_their_order(
    early: Any, status: int, first: str, second: str, expected: Any
) -> None:
    """The second does not charge a request that the first has refused, as without an early response."""
    if early is trapped:
        return  # a refusal is an error there
    client = two(early, first, second)
    answers = [client.request("GET", "/open") for _ in range(2)]
    assert [(answer.one("ratelimit"), answer.status == 429) for answer in answers] == expected
    assert answers[0].status == status


@pytest.mark.parametrize(("early", "status"), EARLY)
@pytest.mark.parametrize("kept", [True, False])
def test_what_waits_for_the_response_is_settled_by_it(early: Any, status: int, kept: bool) -> None:
    store = Watched(ManualClock())
    waits = Rule(name="waits", quota="1/hour", charge_when=lambda response: (response.status_code == status) is kept)
    client = WsgiClient(board(early, rules=[HELD, waits], store=store, clock=None))
    assert client.statuses("/open", "/open") == [status, (500 if early is trapped else 429) if kept else status]
    assert [name for name, _ in store.log].count("release") == (1 if kept else 2)


# Requests for which `after` is not called


def breaks_after(app: Flask) -> None:
    @app.after_request
    def broken(response: Response) -> Response:
        raise RuntimeError("after")


def both(app: Flask) -> None:
    keyed(app)
    breaks_after(app)


def left(app: Flask) -> int | None:
    """The remainder of the default limit, read in a context where only the limiter's function runs."""
    [installed] = app.extensions["sluicegate"]
    with app.test_request_context("/open", environ_base=HERE):
        installed.before()
        found = decision()
    return None if found is None else found.by_rule["default"].remaining


@pytest.mark.parametrize("early", [both, keyed, raises])
def test_an_error_that_ends_the_request_is_charged_too(early: Any) -> None:
    app = board(early, **FIVE)
    assert set(WsgiClient(app).statuses(*["/open"] * 3)) <= {500, 401}
    assert left(app) == 1


@pytest.mark.parametrize("early", [raises, trapped, both])
def test_an_error_that_is_propagated_is_charged_and_releases(early: Any) -> None:
    store = Watched(ManualClock())
    app = board(early, **FIVE, rules=[HELD], store=store, clock=None)
    app.testing = True
    for _ in range(3):
        with pytest.raises((RuntimeError, HTTPException)):
            app.test_client().get("/open", environ_base=HERE)
    assert [name for name, _ in store.log] == ["run", "release"] * 3
    assert left(app) == 1


def test_a_limiter_that_is_off_charges_no_error_either() -> None:
    app = board(raises, **FIVE, enabled=False)
    app.testing = True
    with pytest.raises(RuntimeError):
        app.test_client().get("/open", environ_base=HERE)
    assert left(app) is None


def test_errors_of_views_are_charged_once() -> None:
    app = board(breaks_after, **FIVE)
    assert WsgiClient(app).statuses("/open", "/open") == [500, 500]
    assert left(app) == 2


# Contexts without a request


def test_a_context_without_a_dispatch_charges_nothing() -> None:
    store = Watched(ManualClock())
    app = board(keyed, **FIVE, store=store, clock=None)
    with app.test_request_context("/open"):
        assert decision() is None
    with pytest.raises(RuntimeError), app.test_request_context("/open"):
        raise RuntimeError("in a command")
    assert store.log == []
    with app.test_request_context("/open", headers={"X-Key": "right"}):
        assert app.preprocess_request() is None
        found = decision()
        assert found is not None
        assert app.process_response(make_response("x")).headers["RateLimit"].startswith('"default";r=4')
    with app.test_request_context("/open"):
        with pytest.raises(HTTPException):
            app.preprocess_request()
        assert decision() is None
        assert app.process_response(make_response("x", 401)).headers["RateLimit"].startswith('"default";r=3')
        assert app.process_response(make_response("x", 401)).headers["RateLimit"].startswith('"default";r=3')
    assert [name for name, _ in store.log] == ["run"] * 2


def test_a_view_called_by_an_earlier_function_is_charged_and_released_once() -> None:
    store = Watched(ManualClock())
    app = Flask("board")
    inner = limit("2/hour", name="inner")(limit("1 at once", name="slot")(lambda: "inner"))
    app.before_request(lambda: None if inner() else "never")
    RateLimiter(app, **FIVE, store=store)
    app.get("/open", endpoint="open")(lambda: "open")
    answers = [WsgiClient(app).request("GET", "/open") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[0].one("ratelimit-policy") == (
        '"inner";q=2;w=3600, "slot";q=1;qu="concurrent-requests", "default";q=5;w=60'
    )
    assert [name for name, _ in store.log].count("release") == 2


# Preflights


def ask(app: Flask, path: str = "/open", *, times: int = 7, **headers: str) -> list[int]:
    client = WsgiClient(app)
    lines = [*PREFLIGHT, *[(name.replace("_", "-"), value) for name, value in headers.items()]]
    return [client.request("OPTIONS", path, headers=lines).status for _ in range(times)]


def nothing(app: Flask) -> None: ...


def cors_by_after_request(app: Flask) -> None:
    """As flask-cors does."""

    @app.after_request
    def cors(response: Response) -> Response:
        response.headers["Access-Control-Allow-Origin"] = "*"
        return response


def cors_by_before_request(app: Flask) -> None:
    @app.before_request
    def cors() -> Any:
        return ("", 200, {"Access-Control-Allow-Origin": "*"}) if request.method == "OPTIONS" else None


def slashed(app: Flask) -> None:
    app.get("/slashed/", endpoint="slashed")(lambda: "slashed")


def no_automatic_options(app: Flask) -> None:
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.add_url_rule("/plain", "plain", lambda: "plain", provide_automatic_options=False)


@pytest.mark.parametrize(
    ("early", "path", "status"),
    [
        (nothing, "/open", 200),
        (nothing, "/nowhere", 404),
        (cors_by_after_request, "/open", 200),
        (cors_by_before_request, "/open", 200),
        (cors_by_before_request, "/own", 200),
        (cors_by_before_request, "/nowhere", 200),
        (slashed, "/slashed", 308),
        (no_automatic_options, "/plain", 405),
    ],
)
def test_a_preflight_that_no_view_handles_is_free(early: Any, path: str, status: int) -> None:
    app = board(early, **FIVE)
    assert ask(app, path) == [status] * 7
    assert left(app) == 4


class Page(MethodView):
    def get(self) -> str:
        return "get"

    def options(self) -> str:
        return "options"


def any_method(app: Flask) -> None:
    app.url_map.add(app.url_rule_class("/any", endpoint="any"))
    app.view_functions["any"] = lambda: "any"


@pytest.mark.parametrize(
    ("early", "path", "status"),
    [
        (nothing, "/own", 200),
        (lambda app: app.add_url_rule("/asked", view_func=Page.as_view("asked")), "/asked", 200),
        (any_method, "/any", 200),
        (keyed, "/open", 401),
        (keyed, "/nowhere", 401),
        (raises, "/open", 500),
    ],
    ids=["view", "class", "any method", "key", "key, nowhere", "error"],
)
def test_a_preflight_that_a_view_handles_or_a_check_refuses_is_charged(early: Any, path: str, status: int) -> None:
    app = board(early, **FIVE)
    assert ask(app, path) == [status] * 5 + [429] * 2


@pytest.mark.parametrize("first", [True, False])
def test_keys_cannot_be_guessed_by_preflights(first: bool) -> None:
    app = board(keyed if first else nothing, **FIVE)
    if not first:
        keyed(app)
    assert ask(app, X_Key="wrong", times=3) == [401] * 3
    assert ask(app, X_Key="right", times=3) == [200] * 3
    assert ask(app, X_Key="wrong", times=3) == [401, 401, 429]


def test_a_mark_on_a_view_that_handles_preflights_is_charged() -> None:
    app = Flask("board")
    app.route("/own", methods=["GET", "OPTIONS"], endpoint="own")(limit("2/minute")(lambda: "own"))
    RateLimiter(app)
    assert ask(app, "/own", times=3) == [200, 200, 429]


@pytest.mark.parametrize("early", [nothing, cors_by_before_request, keyed])
@pytest.mark.parametrize("path", ["/open", "/own", "/nowhere"])
def test_preflights_of_the_denied_are_denied(early: Any, path: str) -> None:
    calls: list[int] = []
    app = board(early, **FIVE, deny=["198.51.100.0/24"])
    app.before_request(lambda: calls.append(1))
    assert ask(app, path, times=3) == [403] * 3
    assert calls == []


def test_an_early_response_to_a_denied_client_is_replaced() -> None:
    assert WsgiClient(board(keyed, deny=["198.51.100.9"])).statuses("/open", "/free", "/nowhere") == [403] * 3


def test_other_listeners_of_the_error_are_still_called() -> None:
    calls: list[Any] = []
    app = board(raises, **FIVE)

    def note(sender: Flask, exception: BaseException) -> None:
        calls.append(type(exception))

    with got_request_exception.connected_to(note, app):
        WsgiClient(app).statuses("/open", "/open")
    assert calls == [RuntimeError] * 2


def test_a_redirect_of_an_earlier_function_is_charged() -> None:
    app = board(lambda app: app.before_request(lambda: redirect("/login")), default_limits=["1/minute"])
    answers: list[Answer] = [call(app, make_environ()) for _ in range(2)]
    assert [(answer.status, answer.one("ratelimit")) for answer in answers] == [
        (302, None),
        (429, '"default";r=0;t=60'),
    ]

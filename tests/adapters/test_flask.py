"""Our checklist for Flask (FL…), and its items for all adapters that need a real Flask request (C…).

FL03 is in test_flask_views.py; FL09, the command line, is in cli/test_check.py.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import flask_login
import pytest
from flask import (
    Blueprint,
    Flask,
    Response,
    abort,
    copy_current_request_context,
    g,
    make_response,
    redirect,
    request,
    stream_with_context,
)
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException, ServiceUnavailable, TooManyRequests
from werkzeug.middleware.proxy_fix import ProxyFix

from sluicegate import ManualClock, Rule, Settings
from sluicegate.errors import (
    AsyncMismatchError,
    NotEnforcedError,
    RuleError,
    SettingsError,
    SluicegateError,
    SluicegateWarning,
    StoreURLError,
    StrictError,
    forget_warnings,
)
from sluicegate.flask import (
    Denied,
    Installation,
    RateLimited,
    RateLimiter,
    StoreUnavailable,
    charge,
    decision,
    extension,
    limit,
    rate_limited,
    responses,
)
from sluicegate.identity import identity_text
from sluicegate.testing import BrokenStore, ShutStore
from sluicegate.testing.client import Answer
from tests.adapters.test_flask_exam import make_app
from tests.adapters.wsgi_client import (
    Recorder,
    WsgiClient,
    address_environ,
    addresses,
    call,
    check_fields,
    make_environ,
)

ONE: Any = {"default_limits": ["1/minute"]}
WHOLE = Settings(**ONE, on_decision=[].append)
PREFLIGHT = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")]


def client(**options: Any) -> WsgiClient:
    """The application of the common tests, under a limiter with these options."""
    app = make_app([])
    RateLimiter(app, **{"clock": None if "store" in options else ManualClock()} | options)
    return WsgiClient(app)


def refused(app: Flask, path: str = "/open", **headers: str) -> Answer:
    """The first refusal."""
    speaker = WsgiClient(app)
    while (answer := speaker.request("GET", path, headers=list(headers.items()))).status == 200:
        pass
    return answer


def test_the_headers_are_the_same_by_werkzeugs_own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for keeps in (True, False):
        monkeypatch.setattr(responses, "_KEEPS_A_LIST", keeps)
        speaker = client(default_limits=["2/minute"])
        found.append(
            [(each.status, each.headers, each.body) for each in [speaker.request("GET", "/open") for _ in "abc"]]
        )
    assert found[0] == found[1]
    assert [status for status, _, _ in found[0]] == [200, 200, 429]


class OwnHeaders(Response):
    def get_wsgi_headers(self, environ: Any) -> Any:
        headers = super().get_wsgi_headers(environ)
        headers["X-Own"] = "1"
        return headers


def change(**changed: Any) -> Callable[[Response], Response]:
    """An `after_request` function that sets a header, or removes it, or sets an attribute of the response."""

    def after(response: Response) -> Response:
        for name, value in changed.items():
            if hasattr(Response, name):
                setattr(response, name, value)
            elif value is None:
                response.headers.pop(name.replace("_", "-"), None)
            else:
                response.headers[name.replace("_", "-")] = value
        return response

    return after


@pytest.mark.parametrize(
    "after",
    [
        change(),
        change(Location="/elsewhere"),
        change(Content_Location="/é"),
        change(Content_Length=None),
        change(data=b"another body"),
        change(status_code=200),
        change(status_code=304),
        change(status_code=503, Retry_After="100"),
    ],
)
@pytest.mark.parametrize("kind", [Response, OwnHeaders, type("Other", (Response,), {"default_mimetype": "text/x"})])
def test_a_refusal_has_the_headers_that_werkzeug_would_send(
    after: Callable[[Response], Response], kind: type[Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for ours in (responses.refusal_class, lambda app: app.response_class):
        monkeypatch.setattr(extension, "refusal_class", ours)
        app = make_app([])
        app.response_class = kind
        app.after_request(after)
        RateLimiter(app, default_limits=["1/minute"], clock=ManualClock())
        answer = [WsgiClient(app).request("GET", "/open") for _ in "ab"][1]
        found.append((answer.status, answer.headers, answer.body))
    assert found[0] == found[1]


class ByKeyword(Response):
    """As in many applications: Flask gives text and keywords."""

    def __init__(self, response: str = "", **options: Any) -> None:
        super().__init__(response.strip(), **options)


class Hooked(Response):
    def __init_subclass__(cls, *, table: str) -> None:
        """Each subclass needs a keyword."""


class Registered(type):
    names: ClassVar[set[str]] = set()

    def __init__(cls, name: str, *given: Any) -> None:
        assert name not in Registered.names
        Registered.names.add(name)


def test_a_refusal_is_a_response_of_any_class_of_the_application() -> None:
    for kind in (ByKeyword, Hooked, Registered("Listed", (Response,), {}), type("Plain", (Response,), {})):
        app = make_app([])
        app.response_class = kind
        sent: list[Response] = []
        app.after_request(lambda response, sent=sent: sent.append(response) or response)
        RateLimiter(app, **ONE, clock=ManualClock())
        answer = refused(app)
        assert (answer.status, answer.one("retry-after")) == (429, "60"), kind
        assert b'"status":429' in answer.body.replace(b" ", b"")
        assert isinstance(sent[-1], kind)


# FL01: one instance, several applications


def test_fl01_one_instance_on_two_apps_with_their_own_configuration() -> None:
    limiter = RateLimiter()
    apps = []
    for quota in ("1/minute", "2/minute"):
        app = make_app([])
        app.config["SLUICEGATE_DEFAULT_LIMITS"] = [quota]
        limiter.init_app(app)
        apps.append(app)
    assert [WsgiClient(app).statuses("/open", "/open", "/open") for app in apps] == [[200, 429, 429], [200, 200, 429]]
    assert not hasattr(limiter, "app")


def test_fl01_every_setting_can_come_from_the_config() -> None:
    app = make_app([])
    app.config.from_mapping(
        SLUICEGATE_STORE="memory://",
        SLUICEGATE_DEFAULT_LIMITS="2/minute; 9/hour",
        SLUICEGATE_RULES=[{"name": "reads", "quota": "5/minute", "methods": ["GET"]}],
        SLUICEGATE_KEY=["ip", "header:X-Key"],
        SLUICEGATE_ALGORITHM="fixed-window",
        SLUICEGATE_HEADERS="draft-7",
        SLUICEGATE_TRUSTED_PROXIES=1,
        SLUICEGATE_TRUSTED_HEADER="X-Real-IP",
        SLUICEGATE_ON_STORE_FAILURE="deny",
        SLUICEGATE_ENABLED=True,
        SLUICEGATE_PREFIX="shop",
        SLUICEGATE_ON_DENIED=lambda request, decision: ("slow", 429),
        SLUICEGATE_CLOCK=ManualClock(),
    )
    RateLimiter(app)
    assert WsgiClient(app).statuses("/open", "/open", "/open") == [200, 200, 429]
    installed: list[Installation] = app.extensions["sluicegate"]
    assert installed[0].settings.prefix == "shop"
    installed[0].close()


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {"settings": WHOLE}),
        ({"SLUICEGATE": WHOLE}, {}),
        ({}, {"settings": WHOLE, "config_prefix": None}),
        ({"ADMIN": WHOLE}, {"config_prefix": "ADMIN_"}),
    ],
)
def test_fl01_settings_as_one_value(config: dict[str, Any], options: dict[str, Any]) -> None:
    app = make_app([])
    app.config.update(config)
    RateLimiter(app, **options)
    assert WsgiClient(app).statuses("/open", "/open") == [200, 429]
    assert app.extensions["sluicegate"][0].settings.application == app.name  # in the events


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ({"SLUICEGATE_STOR": "memory://"}, {}, 'did you mean "store"?'),
        (
            {"SLUICEGATE_STORE": "redis://:secret@r"},
            {"store": "memory://"},
            "given as store= and as app.config['SLUICEGATE_STORE']",
        ),
        ({"SLUICEGATE_ENABLED": "yes"}, {}, "neither True nor False"),
        ({}, {"default_limit": ["1/s"]}, 'did you mean "default_limits"?'),
        ({"SLUICEGATE": {"SECRET": "secret"}}, {}, 'write app.config["SLUICEGATE_STORE"] and so on'),
        ({"SLUICEGATE": "secret.toml"}, {}, "a str is not read; give Settings(…)"),
        ({"SLUICEGATE": WHOLE}, {"settings": WHOLE}, "given as settings= and as app.config['SLUICEGATE']"),
        ({"SLUICEGATE": WHOLE}, {"store": "redis://:secret@r"}, "['store']: given beside settings="),
        ({"SLUICEGATE_STORE": "redis://:secret@r"}, {"settings": WHOLE}, "['store']: given beside settings="),
        ({}, {"settings": {"secret": "secret"}}, "not Settings; give Settings(…)"),
        ({}, {"config_prefix": "sluicegate_"}, 'use capitals, as "SLUICEGATE_"'),
        ({}, {"config_prefix": ""}, 'use capitals, as "SLUICEGATE_"'),
        ({}, {"config_prefix": 5}, 'use capitals, as "SLUICEGATE_"'),
    ],
)
def test_fl01_wrong_configuration_cannot_start(config: dict[str, Any], options: dict[str, Any], words: str) -> None:
    app = Flask(__name__)
    app.config.update(config)
    with pytest.raises(SettingsError) as caught:
        RateLimiter(app, **options)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("prefix", [None, "ADMIN_"])
def test_fl01_other_names_in_the_config_are_ignored(prefix: str | None) -> None:
    app = Flask(__name__)
    app.config.update(SLUICEGATE={"STORE": "nowhere://"}, ADMIN={"STORE": "nowhere://"})
    RateLimiter(app, config_prefix=prefix)
    assert app.extensions["sluicegate"][0].settings.store == "memory://"


@pytest.mark.parametrize(
    "thing", [5, "app", Flask, Flask(__name__).wsgi_app, lambda request: "key", ["1/minute"], Response]
)
def test_fl01_only_a_flask_application_can_be_limited(thing: Any) -> None:
    for install in (RateLimiter, RateLimiter().init_app):
        with pytest.raises(SettingsError, match="give a Flask application"):
            install(thing)


def test_fl01_a_key_by_position_beside_an_application_by_name() -> None:
    make: Any = RateLimiter
    with pytest.raises(SettingsError, match="options by name"):
        make(lambda: "key", app=Flask(__name__))


def test_fl01_none_is_not_an_application() -> None:
    nothing: Any = None
    with pytest.raises(SettingsError, match="give a Flask application"):
        RateLimiter().init_app(nothing)


# FL02: the application's own error handlers


def test_fl02_errorhandler_429_is_used_and_the_fields_stay() -> None:
    app = make_app([])
    RateLimiter(app, **ONE, clock=ManualClock())

    @app.errorhandler(429)
    def slow(error: RateLimited) -> ResponseReturnValue:
        assert error.decision.rule == "default"
        assert error.retry_after == 60
        return "slow down", 429

    answer = refused(app)
    assert (answer.status, answer.body) == (429, b"slow down")
    assert (answer.one("retry-after"), answer.one("cache-control")) == ("60", "no-store")
    check_fields(answer)


def test_fl02_a_handler_for_all_http_errors_is_used() -> None:
    """The handler of Flask's own documentation, which rewrites the error's response."""
    app = make_app([])
    RateLimiter(app, **ONE, clock=ManualClock())

    @app.errorhandler(HTTPException)
    def rewrite(error: HTTPException) -> Any:
        response: Any = error.get_response()
        response.data = f"{error.code} {error.name}: {error.description}"
        response.content_type = "text/plain"
        return response

    answer = refused(app)
    assert answer.body == b"429 Too Many Requests: Retry after 60 seconds."
    assert (answer.one("retry-after"), answer.one("content-type")) == ("60", "text/plain")
    check_fields(answer)


def test_fl02_a_blueprints_handler_is_used() -> None:
    app, pages = Flask(__name__), Blueprint("pages", __name__)
    pages.get("/hello")(lambda: "hello")
    pages.register_error_handler(429, lambda error: ("pages", 429))
    app.register_blueprint(pages)
    RateLimiter(app, **ONE)
    assert refused(app, "/hello").body == b"pages"
    assert refused(app, "/elsewhere").one("content-type") == "application/problem+json"


@pytest.mark.parametrize("status", [200, 302, 420])
def test_fl02_a_handler_may_choose_another_status(status: int) -> None:
    app = make_app([])
    RateLimiter(app, **ONE, clock=ManualClock())
    app.register_error_handler(429, lambda error: redirect("/slow", status) if status == 302 else ("x", status))
    app_client = WsgiClient(app)
    app_client.request("GET", "/open")
    answer = app_client.request("GET", "/open")
    assert (answer.status, answer.one("cache-control")) == (status, "no-store")
    assert answer.one("retry-after") == ("60" if status == 420 else None)
    assert (answer.one("ratelimit") is None) is (status == 302)


def test_fl02_the_errors_are_werkzeugs_own() -> None:
    assert issubclass(RateLimited, TooManyRequests)
    assert issubclass(StoreUnavailable, ServiceUnavailable)


@pytest.mark.parametrize("error", [RateLimited, StoreUnavailable, Denied])
def test_fl02_an_application_cannot_make_our_errors(error: Any) -> None:
    for given in ((), ("slow down",)):
        with pytest.raises(RuleError, match=r"raise RateLimitExceeded\(decision\)"):
            error(*given)


@pytest.mark.parametrize(
    ("accept", "media"),
    [("text/html,*/*;q=0.8", "text/plain; charset=utf-8"), ("*/*", "application/problem+json")],
)
def test_fl02_without_a_handler_the_response_is_ours(accept: str, media: str) -> None:
    app = make_app([])
    RateLimiter(app, **ONE)
    assert refused(app, Accept=accept).one("content-type") == media


def test_fl02_a_refusal_of_never_has_no_retry_after() -> None:
    app = make_app([])
    RateLimiter(app, rules=[{"name": "bulk", "quota": "5/minute", "cost": lambda request: 6}])
    answer = refused(app)
    assert (answer.status, answer.one("retry-after")) == (429, None)
    assert b"can never pass" in answer.body


# on_denied


@pytest.mark.parametrize(
    ("value", "status", "body"),
    [
        ("slow", 429, b"slow"),
        (b"slow", 429, b"slow"),
        ({"slow": 1}, 429, b'{"slow":1}\n'),
        (["slow"], 429, b'["slow"]\n'),
        (("slow", {"X-A": "b"}), 429, b"slow"),
        (("slow", 200), 200, b"slow"),
        (("slow", "420 Calm"), 420, b"slow"),
        (("slow", 418, {"X-A": "b"}), 418, b"slow"),
        (Response("slow", 503), 503, b"slow"),
        (Response("slow"), 200, b"slow"),
    ],
)
def test_on_denied_returns_what_a_view_may_return(value: Any, status: int, body: bytes) -> None:
    speaker = client(**ONE, on_denied=lambda request, decision: value)
    speaker.request("GET", "/open")
    answer = speaker.request("GET", "/open")
    assert (answer.status, answer.body, answer.one("cache-control")) == (status, body, "no-store")
    assert answer.one("retry-after") == ("60" if status >= 400 else None)
    assert answer.one("ratelimit") == '"default";r=0;t=60'


def test_on_denied_gets_request_and_decision_and_may_return_none() -> None:
    seen: list[tuple[str, str | None]] = []
    speaker = client(**ONE, on_denied=lambda request, decision: seen.append((request.path, decision.rule)))
    assert speaker.statuses("/open", "/redirect") == [200, 429]
    assert seen == [("/redirect", "default")]


def test_on_denied_may_be_async() -> None:
    async def slow(request: Any, decision: Any) -> str:
        return "slow"

    assert client(default_limits=["1/minute"], on_denied=slow).statuses("/open", "/open") == [200, 429]


# FL04: requests without a view


def test_fl04_errors_redirects_and_options_are_counted_and_static_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("a")
    app = Flask(__name__, static_folder=str(tmp_path), static_url_path="/static")
    pages = Blueprint("pages", __name__, static_folder=str(tmp_path), static_url_path="/files")
    limit("1/minute")(pages)
    app.register_blueprint(pages)
    app.get("/slash/")(lambda: "slash")
    RateLimiter(app, default_limits=["5/minute"])
    speaker = WsgiClient(app)
    assert speaker.statuses("/static/a.css", "/static/none", "/files/a.css", "/files/a.css") == [200, 404, 200, 200]
    assert speaker.statuses("/none", "/slash") == [404, 308]
    assert speaker.statuses("/slash/", method="POST") == [405]
    assert speaker.statuses("/slash/", "/slash/", "/slash/", method="OPTIONS") == [200, 200, 429]
    assert speaker.request("OPTIONS", "/slash/", headers=PREFLIGHT).status == 200


@pytest.mark.parametrize(
    ("rule", "statuses"),
    [
        ({"route": "static"}, [200, 429]),
        ({"path": "/static/*"}, [200, 429]),
        ({"path": "/static/b*"}, [200, 200]),
        ({}, [200, 200]),
    ],
)
def test_fl04_a_rule_that_names_static_files_holds_for_them(
    rule: dict[str, str], statuses: list[int], tmp_path: Path
) -> None:
    (tmp_path / "a.css").write_text("a")
    app = Flask(__name__, static_folder=str(tmp_path), static_url_path="/static")
    RateLimiter(app, rules=[{"name": "files", "quota": "1/minute", **rule}])
    assert WsgiClient(app).statuses("/static/a.css", "/static/a.css") == statuses


def test_fl04_a_view_that_is_only_called_static_is_limited() -> None:
    app = Flask(__name__, static_folder=None)
    app.add_url_rule("/static/<filename>", "static", lambda filename: "x")
    RateLimiter(app, **ONE)
    assert WsgiClient(app).statuses("/static/a", "/static/a") == [200, 429]


# FL05: two limiters on one application


def two(first: dict[str, Any], second: dict[str, Any]) -> WsgiClient:
    app = make_app([])
    RateLimiter(app, **first, clock=ManualClock())
    RateLimiter(app, **second, clock=ManualClock(), config_prefix="SECOND_")
    return WsgiClient(app)


def test_fl05_two_limiters_add_one_list_of_fields_and_enforce_a_mark_once() -> None:
    speaker = two({"default_limits": ["9/minute"]}, {"default_limits": ["3/hour"]})
    answer = speaker.request("GET", "/limited")
    check_fields(answer)
    assert answer.one("ratelimit") == '"default";r=2;t=3600, "default-2";r=8;t=60, "limited";r=1;t=60'
    assert speaker.statuses("/limited", "/limited") == [200, 429]


def test_fl05_exempt_and_override_hold_for_both() -> None:
    speaker = two({"default_limits": ["1/minute"]}, {"default_limits": ["1/hour"]})
    assert speaker.statuses("/exempt", "/exempt", "/strict", "/strict") == [200, 200, 200, 429]
    assert speaker.statuses("/open", "/open") == [200, 429]


def test_fl05_the_second_refuses_too() -> None:
    speaker = two({"default_limits": ["9/minute"]}, {"default_limits": ["1/hour"]})
    speaker.request("GET", "/open")
    answer = speaker.request("GET", "/open")
    check_fields(answer)
    assert (answer.status, answer.one("retry-after")) == (429, "3600")


def test_fl05_each_has_a_config_of_its_own_and_the_view_reads_one_decision() -> None:
    app = Flask(__name__)
    app.config.update(SLUICEGATE_DEFAULT_LIMITS=["9/minute"], BURST_DEFAULT_LIMITS=["5/second"], SLUICEGATE_PREFIX="a")
    RateLimiter(app)
    RateLimiter(app, config_prefix="BURST_")
    RateLimiter(app, config_prefix=None)

    @app.get("/a")
    def view() -> str:
        found = decision()
        assert found is not None
        return str([outcome.limit for outcome in found.outcomes])

    assert WsgiClient(app).request("GET", "/a").body == b"[9, 5]"


@pytest.mark.parametrize("prefix", ["sluicegate", "burst"])
def test_fl05_two_that_would_count_one_budget_twice_cannot_start(prefix: str) -> None:
    app, url = Flask(__name__), "redis://localhost:1/0"
    RateLimiter(app, store=url)
    if prefix == "burst":
        RateLimiter(app, store=url, prefix=prefix)
    else:
        with pytest.raises(SettingsError, match="give each a prefix of its own"):
            RateLimiter(app, store=url)


DEFAULTS: dict[str, Any] = {"default_limits": ["9/minute"]}
LOGIN: dict[str, Any] = {"rules": [{"name": "login", "quota": "5/minute", "route": "login"}]}


@pytest.mark.parametrize(
    ("first", "second", "warns"),
    [
        (DEFAULTS, DEFAULTS, ["default"]),
        (LOGIN, {"rules": [Rule(name="all", quota="9/minute"), *LOGIN["rules"]]}, ["login"]),
        ({**DEFAULTS, **LOGIN}, {**DEFAULTS, **LOGIN}, ["default", "login"]),
        ({}, {}, []),
        (DEFAULTS, LOGIN, []),
        (DEFAULTS, {"default_limits": ["9/hour"]}, []),
        (DEFAULTS, {**DEFAULTS, "key": "ip"}, []),
        (DEFAULTS, {**DEFAULTS, "prefix": "second"}, []),
    ],
)
def test_fl05_two_with_equal_rules_in_memory_warn(first: Any, second: Any, warns: list[str]) -> None:
    """Issue 26."""
    app = Flask(__name__)
    RateLimiter(app, **first)
    forget_warnings()  # each is given once in a process
    with warnings.catch_warnings(record=True, action="always") as seen:
        RateLimiter(app, **second)
    assert [str(each.message).partition(":")[0] for each in seen] == [f"rule '{name}'" for name in warns]
    if warns:
        with pytest.raises(StrictError, match=r"\[SG105\]"):
            RateLimiter(app, **second, strict=True)


def test_fl05_two_that_read_one_configuration_warn() -> None:
    app = Flask(__name__)
    app.config["SLUICEGATE_DEFAULT_LIMITS"] = ["9/minute"]
    RateLimiter(app)
    forget_warnings()
    with pytest.warns(SluicegateWarning, match=r"\[SG105\]"):
        RateLimiter(app)


def test_fl05_init_app_twice_is_an_error() -> None:
    app = Flask(__name__)
    limiter = RateLimiter(app)
    with pytest.raises(SettingsError, match="call init_app once"):
        limiter.init_app(app)


# FL06: contexts and proxies


def test_fl06_test_client_and_contexts() -> None:
    app = make_app([])
    RateLimiter(app, **ONE)
    assert [app.test_client().get("/open").status_code for _ in range(2)] == [200, 429]
    with app.test_request_context("/open", environ_base={"REMOTE_ADDR": "203.0.113.1"}):
        assert decision() is None
        assert app.preprocess_request() is None
        found = decision()
        assert found is not None
        assert found.remaining == 0
        assert app.process_response(Response("x")).headers["RateLimit"].startswith('"default";r=0')
        refused = app.preprocess_request()
        assert isinstance(refused, Response)
        assert refused.status_code == 429


def in_a_thread(task: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(task).result()


def failing(task: Callable[[], Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        copy_current_request_context(lambda: 1 // 0)()
    task()


@pytest.mark.parametrize("run", [lambda task: task(), in_a_thread, failing], ids=["here", "thread", "failing"])
@pytest.mark.parametrize("charged", ["limit", "charge", "charge in the copy"])
def test_fl06_a_copy_of_the_context_does_not_end_the_request(run: Callable[[Any], None], charged: str) -> None:
    app, inside = Flask("x"), []
    RateLimiter(app, clock=ManualClock())
    quotas: Any = [("1 at once", {}), ("2/hour", {"refund_when": lambda response: response.status_code >= 500})]

    def charge_all() -> None:
        for quota, options in quotas:
            charge(request, quota, scope=f"of {charged}", **options)

    def view() -> str:
        if charged == "charge":
            charge_all()
        run(copy_current_request_context(charge_all if charged == "charge in the copy" else lambda: None))
        if charged != "charge in the copy" and "More" in request.headers:
            inside.append(WsgiClient(app).request("GET", "/").status)
        return "done"

    if charged == "limit":
        for quota, options in quotas:
            view = limit(quota, **options)(view)
    app.add_url_rule("/", view_func=view)
    client = WsgiClient(app)
    assert [client.request("GET", "/", headers=[("More", "1")]).status] == [200]
    assert [client.request("GET", "/").status for _ in range(2)] == [200, 429]
    assert set(inside) <= {429}


def after_the_response(take: Callable[[], None], late: list[Any]) -> Any:
    late.append(copy_current_request_context(take))
    return "done"


def after_an_error(take: Callable[[], None], late: list[Any]) -> Any:
    late.append(copy_current_request_context(take))
    raise RuntimeError("lost")


def in_a_stream(take: Callable[[], None], late: list[Any]) -> Any:
    return Response(stream_with_context(str(step()) for step in (take, take)))


def in_a_copy_in_a_stream(take: Callable[[], None], late: list[Any]) -> Any:
    copied = copy_current_request_context(take)
    return Response(str(step()) for step in (copied, copied))


REFUNDED = Rule(name="refunded", quota="9/day", refund_when=lambda response: response.status_code >= 500)


@pytest.mark.parametrize("rules", [[], [REFUNDED]], ids=["no rule", "a refund"])
@pytest.mark.parametrize("view", [after_the_response, after_an_error, in_a_stream, in_a_copy_in_a_stream])
def test_fl06_a_late_slot_is_released_or_not_taken(view: Any, rules: list[Rule]) -> None:
    app, late, seen = Flask("x"), list[Any](), list[object]()
    app.config["PROPAGATE_EXCEPTIONS"] = True
    RateLimiter(app, clock=ManualClock(), rules=rules)

    def take() -> None:
        try:
            seen.append(charge(request, "1 at once").allowed)
        except SluicegateError as error:
            seen.append(type(error))

    app.add_url_rule("/", view_func=lambda: view(take, late))
    for _ in range(2):
        WsgiClient(app).request("GET", "/")
        for task in late:
            task()
        late.clear()
    ended = view in (after_the_response, after_an_error)
    assert set(seen) in ([{NotEnforcedError}] if ended else [{NotEnforcedError}, {True}])


def test_fl06_a_stream_with_the_context_holds_its_slot_until_it_ends() -> None:
    app = Flask("x")
    RateLimiter(app, clock=ManualClock())

    @app.get("/")
    @limit("1 at once")
    def view() -> Any:
        copy_current_request_context(lambda: None)()
        return Response(stream_with_context(path for path in (request.path, request.path)))

    client = app.test_client()
    first = client.get("/", buffered=False)
    assert next(iter(first.iter_encoded())) == b"/"
    assert client.get("/").status_code == 429
    first.close()
    assert client.get("/").status_code == 200


class OwnWays(Flask):
    def handle_user_exception(self, e: Exception) -> Any:
        return super().handle_user_exception(e)


def handled(app: Flask, kind: Any) -> Flask:
    app.register_error_handler(kind, lambda error: ("answered", 418))
    return app


def trapped(app: Flask) -> Flask:
    app.config["TRAP_HTTP_EXCEPTIONS"] = True
    return app


def replaced(app: Flask) -> Flask:
    app.handle_user_exception = lambda e: Response("answered", 418)  # type: ignore[method-assign]
    return app


@pytest.mark.parametrize(
    ("make", "raises"),
    [
        (lambda: Flask("x"), False),
        (lambda: handled(Flask("x"), 404), False),
        (lambda: handled(Flask("x"), 429), True),
        (lambda: handled(Flask("x"), TooManyRequests), True),
        (lambda: handled(Flask("x"), HTTPException), True),
        (lambda: handled(Flask("x"), Exception), True),
        (lambda: trapped(Flask("x")), True),
        (lambda: OwnWays("x"), True),
        (lambda: replaced(Flask("x")), True),
    ],
    ids=["no handler", "404", "429", "TooManyRequests", "HTTPException", "Exception", "trap", "subclass", "replaced"],
)
def test_a_refusal_raises_if_a_handler_may_handle_it(make: Callable[[], Flask], raises: bool) -> None:
    app = make()
    RateLimiter(app, **ONE)
    with app.test_request_context("/open", environ_base={"REMOTE_ADDR": "203.0.113.1"}):
        assert app.preprocess_request() is None
        if raises:
            with pytest.raises(RateLimited):
                app.preprocess_request()
        else:
            refused = app.preprocess_request()
            assert isinstance(refused, Response)
            assert (refused.status_code, refused.headers["Content-Type"]) == (429, "application/problem+json")


def test_fl06_requests_inside_one_application_context_are_apart() -> None:
    """They share flask.g, so the state of a request cannot be kept there."""
    app = make_app([])
    RateLimiter(app, default_limits=["9/minute"])
    with app.app_context():
        g.mine = 1
        speaker = app.test_client()
        assert "RateLimit" in speaker.get("/open").headers
        assert "RateLimit" not in speaker.get("/exempt").headers


@pytest.mark.parametrize(
    ("trusted", "expected"),
    [(None, "203.0.113.7"), (["10.0.0.0/8"], "203.0.113.7"), (["192.0.2.0/24"], "10.0.0.1")],
)
def test_fl06_with_proxy_fix_only_one_reads_the_header(trusted: Any, expected: str) -> None:
    store = Recorder()
    app = make_app([])
    RateLimiter(app, store=store, **ONE, trusted_proxies=trusted)
    environ = make_environ(peer="10.0.0.1", headers=[("X-Forwarded-For", "6.6.6.6, 203.0.113.7")])
    call(ProxyFix(app.wsgi_app), environ)
    assert store.identity == identity_text(("ip", expected))


@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize("row", addresses())
def test_c07_c08_the_address_table(row: dict[str, Any]) -> None:
    store = Recorder()
    app = make_app([])
    RateLimiter(
        app,
        store=store,
        default_limits=["9/minute"],
        trusted_proxies=row["trusted_proxies"],
        trusted_header=row["trusted_header"],
    )
    call(app, address_environ(row))
    assert store.identity == identity_text(("ip", row["expect"]))


@pytest.mark.parametrize(
    ("peer", "expected"),
    [("", "no-peer"), (None, "no-peer"), ("unknown", "peer unknown"), ("203.0.113.7:51234", "203.0.113.7")],
)
def test_fl08_remote_addr_may_be_anything(peer: str | None, expected: str) -> None:
    store = Recorder()
    app = make_app([])
    RateLimiter(app, store=store, **ONE)
    call(app, make_environ(peer=peer))
    assert store.identity == identity_text(("ip", expected))


# Users


def login_app(store: Recorder) -> Flask:
    app = make_app([])
    app.secret_key = "only for tests"
    login = flask_login.LoginManager(app)

    @login.request_loader
    def load(request: Any) -> Any:
        name = request.headers.get("X-User")
        if name is None:
            return None
        user = flask_login.UserMixin()
        user.id = name
        return user

    RateLimiter(app, store=store, **ONE)
    return app


@pytest.mark.parametrize(
    ("user", "server", "expected"),
    [
        ("alice", None, ("user", "alice")),
        ("alice", "other", ("user", "alice")),
        (None, "other", ("user", "other")),
        (None, None, ("ip", "198.51.100.9")),
    ],
)
def test_the_user_is_flask_logins_or_the_servers(user: str | None, server: str | None, expected: Any) -> None:
    store = Recorder()
    environ = make_environ(headers=[] if user is None else [("X-User", user)])
    call(login_app(store), environ | ({} if server is None else {"REMOTE_USER": server}))
    assert store.identity == identity_text(expected)


def test_flask_login_is_not_imported_where_it_is_not_used() -> None:
    script = (
        "import sys; from flask import Flask; from sluicegate.flask import RateLimiter; app = Flask('a');"
        "RateLimiter(app, default_limits=['1/minute']); app.test_client().get('/'); print('flask_login' in sys.modules)"
    )
    assert _python(script) == "False"


# FL10: the signal


def test_fl10_the_signal_has_the_application_and_a_failing_listener_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, other = make_app([]), make_app([])
    for each in (app, other):
        RateLimiter(each, **ONE)
    signals: list[tuple[Any, str | None]] = []

    def failing(sender: Flask, decision: Any) -> None:
        raise RuntimeError("listener")

    async def listening(sender: Flask, decision: Any) -> None:
        signals.append((sender, decision.rule))

    with rate_limited.connected_to(failing, app), rate_limited.connected_to(listening, app):
        assert refused(other).status == 429
        assert refused(app).status == 429
    assert signals == [(app, "default")]
    assert [record.message for record in caplog.records] == [
        "sluicegate: a listener of the signal rate_limited failed; the request is refused all the same"
    ]


# FL11: fields on responses of other functions


def test_fl11_fields_on_errors_and_on_responses_of_other_before_requests() -> None:
    app = Flask(__name__)
    app.logger.disabled = True
    RateLimiter(app, default_limits=["9/minute"])

    @app.before_request
    def closed() -> ResponseReturnValue | None:
        if request.path == "/closed":
            abort(503)
        return ("early", 200) if request.path == "/early" else None

    @app.get("/boom")
    def boom() -> str:
        raise RuntimeError("boom")

    speaker = WsgiClient(app)
    for path, status in (("/closed", 503), ("/early", 200), ("/boom", 500), ("/none", 404)):
        answer = speaker.request("GET", path)
        assert answer.status == status
        check_fields(answer)
        assert answer.one("ratelimit"), path


def test_fl11_fields_of_the_application_are_kept() -> None:
    app = Flask(__name__)
    RateLimiter(app, default_limits=["9/minute"], clock=ManualClock())

    @app.get("/a")
    def view() -> Response:
        response = make_response("a", 503)
        response.headers.add("RateLimit", '"mine";r=1')
        response.headers.add("RateLimit", '"default";r=2')
        response.headers["RateLimit-Policy"] = '"mine";q=1;w=1, "default";q=2;w=1'
        response.headers["Retry-After"] = "7"
        return response

    answer = WsgiClient(app).request("GET", "/a")
    assert answer.one("ratelimit") == '"mine";r=1, "default";r=2, "default-2";r=8;t=60'
    assert answer.one("ratelimit-policy") == '"mine";q=1;w=1, "default";q=2;w=1, "default-2";q=9;w=60'
    assert answer.one("retry-after") == "7"


@pytest.mark.parametrize(("status", "wait", "left"), [(429, "60", True), (420, "60", True), (302, None, False)])
def test_fl11_the_fields_match_the_status_that_a_hook_has_set(status: int, wait: str | None, left: bool) -> None:
    app = make_app([])
    RateLimiter(app, **ONE, clock=ManualClock())

    @app.after_request
    def changed(response: Response) -> Response:
        if response.status_code == 429:
            response.status_code, response.headers["Cache-Control"] = status, "public"
        return response

    answer = [WsgiClient(app).request("GET", "/open") for _ in range(2)][1]
    assert (answer.status, answer.one("retry-after"), answer.one("cache-control")) == (status, wait, "no-store")
    assert answer.one("ratelimit") == ('"default";r=0;t=60' if left else None)


# FL12: no I/O at import and in init_app


def test_fl12_nothing_is_read_at_import_and_nothing_is_opened_by_init_app() -> None:
    limiter = RateLimiter(store="redis://203.0.113.1:1/0", default_limits=["1/minute"])  # no server listens there
    app = Flask(__name__)
    limiter.init_app(app)
    assert app.extensions["sluicegate"][0].extension is limiter


def test_fl12_a_wrong_option_shows_at_init_app() -> None:
    limiter = RateLimiter(store="nowhere://")
    with pytest.raises(StoreURLError, match="nowhere"):
        limiter.init_app(Flask(__name__))


def test_an_async_key_cannot_start() -> None:
    async def key(request: Any) -> str:
        return "k"

    with pytest.raises(AsyncMismatchError):
        RateLimiter(Flask(__name__), **ONE, key=key)


# C: for all adapters


def test_c05_an_allowed_response_is_unchanged() -> None:
    plain, under = client(enabled=False), client(default_limits=["9/minute"], headers=None)
    for path in ("/open", "/stream", "/items/x", "/nowhere", "/redirect"):
        assert under.request("GET", path) == plain.request("GET", path)


def test_c05_a_stream_is_not_read_in_advance() -> None:
    made: list[str] = []

    def chunks() -> Iterator[str]:
        for chunk in ("one", "two"):
            made.append(chunk)
            yield chunk

    app = Flask(__name__)
    app.get("/a")(limit("9/minute")(chunks))
    RateLimiter(app)
    body = iter(app(make_environ(path="/a"), lambda *_: bytes))
    assert made == []
    assert (next(body), made) == (b"one", ["one"])


@pytest.mark.parametrize(
    ("policy", "statuses"),
    [("local", [200, 200, 429]), ("allow", [200, 200, 200]), ("deny", [503, 503, 503])],
)
def test_c15_without_the_store_the_policy_decides(policy: str, statuses: list[int]) -> None:
    speaker = client(store=BrokenStore(), default_limits=["2/minute"], on_store_failure=policy)
    assert speaker.statuses("/open", "/open", "/open") == statuses


def test_c15_a_handler_for_503_is_used_and_retry_after_stays() -> None:
    app = make_app([])
    RateLimiter(app, store=BrokenStore(), **ONE, on_store_failure="deny")
    app.register_error_handler(503, lambda error: (f"{error.retry_after} {error.decision.degraded}", 503))
    answer = refused(app)
    assert (answer.body, answer.one("retry-after"), answer.one("cache-control")) == (b"1 True", "1", "no-store")


def test_c16_only_what_was_opened_is_closed() -> None:
    app, store = make_app([]), Recorder()
    RateLimiter(app, store=store)
    for limiter in app.extensions["sluicegate"]:
        limiter.close()
    assert store.closed == 0


def test_c17_dialects() -> None:
    names = {
        "draft-7": {"ratelimit-policy", "ratelimit"},
        "draft-6": {"ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"},
        "x-ratelimit": {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"},
    }
    for dialect, expected in names.items():
        answer = client(**ONE, headers=dialect).request("GET", "/open")
        assert {name for name, _ in answer.headers if "ratelimit" in name} == expected


def test_refusals_before_the_body_is_read() -> None:
    app = make_app([])
    RateLimiter(app, store=ShutStore(), **ONE)
    environ = make_environ("POST", body=b"x" * 1000)
    body = environ["wsgi.input"]
    assert call(app, environ).status == 429
    assert body.tell() == 0


def test_the_oldest_flask_is_tested_too() -> None:
    """scripts/test-oldest runs this file on the lower bound in pyproject.toml."""
    assert tuple(map(int, version("flask").split(".")[:2])) >= (2, 3)


def _python(script: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, capture_output=True, text=True)
    return done.stdout.strip()

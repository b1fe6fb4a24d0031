"""The plain WSGI middleware: the protocol, and the items of the checklist (C…) that a plain application can show."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import http_sf
import pytest
from werkzeug.wsgi import ClosingIterator

from sluicegate import Limiter, ManualClock, Rule
from sluicegate.errors import (
    AlgorithmError,
    AsyncMismatchError,
    ConfigurationError,
    QuotaError,
    RuleError,
    SettingsError,
)
from sluicegate.identity import identity_text
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import BrokenStore
from sluicegate.testing.client import Answer
from sluicegate.web.settings import Settings
from sluicegate.wsgi import RateLimitMiddleware, WsgiCaller
from tests.adapters.wsgi_client import (
    Recorder,
    WsgiClient,
    address_environ,
    addresses,
    call,
    check_fields,
    make_environ,
    sf_list,
)

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Fields = list[tuple[str, str]]


def page(status: str = "200 OK", fields: Fields | None = None) -> WSGIApplication:
    """An application with one response."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(status, [("Content-Type", "text/plain"), *(fields or [])])
        return [b"page"]

    return app


def ask(app: Callable[..., Iterable[bytes]], **request: Any) -> Answer:
    return call(app, make_environ(**request))


def test_c01_retry_after_is_whole_seconds_and_exactly_enough() -> None:
    clock = ManualClock()
    app = RateLimitMiddleware(page(), default_limits=["3/minute", "5/hour"], clock=clock)
    for step in (0.0, 0.3, 1.7, 20.9, 0.000001, 59.999999, 3000.0):
        clock.advance(step)
        while (answer := ask(app)).status == 200:
            pass
        wait = answer.one("retry-after") or ""
        assert answer.status == 429
        assert re.fullmatch("[1-9][0-9]*", wait)
        clock.advance(int(wait))
        assert ask(app).status == 200


def test_c02_c03_c04_fields_parse_and_agree() -> None:
    app = RateLimitMiddleware(page(), default_limits=["2/minute", "3/hour"], clock=ManualClock())
    answers = [ask(app) for _ in range(4)]
    for answer in answers:
        check_fields(answer)
    refused = answers[-1]
    assert (refused.status, refused.one("cache-control")) == (429, "no-store")
    assert [name for name, _ in sf_list(refused, "ratelimit")] == ["default-minute"]


def test_c05_an_allowed_response_is_the_applications_own() -> None:
    class Body(list[bytes]):
        def close(self) -> None: ...

    body = Body([b"a", b"b"])

    def bare(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain"), ("Set-Cookie", "a"), ("Set-Cookie", "b")])
        assert write is writer
        return body

    def writer(data: bytes) -> None: ...

    started: list[Any] = []

    def start_response(status: str, headers: Fields, exc_info: Any = None) -> Callable[[bytes], object]:
        started.append((status, headers, exc_info))
        return writer

    app = RateLimitMiddleware(bare, default_limits=["9/minute"], headers=None)
    assert app(make_environ(), start_response) is body
    own = [("Content-Type", "text/plain"), ("Set-Cookie", "a"), ("Set-Cookie", "b")]
    assert started == [("200 OK", own, None)]


def test_c05_exc_info_is_passed_on_and_a_second_start_has_the_fields_too() -> None:
    def failing(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            raise ValueError("late")
        except ValueError:
            start_response("500 Oh No", [("Content-Type", "text/plain")], sys.exc_info())
        return [b"sorry"]

    answer = ask(RateLimitMiddleware(failing, default_limits=["9/minute"]))
    assert (answer.status, answer.body) == (500, b"sorry")
    assert len(answer.all("ratelimit")) == 1


@pytest.mark.parametrize(
    ("status", "own", "expected"),
    [
        ("302 Found", [("Location", "/")], None),
        ("304 Not Modified", [], None),
        ("200 OK", [("RateLimit", '"default";r=1')], '"default";r=1, "default-2";r=8;t=60'),
        ("200 OK", [("ratelimit", '"a";r=1'), ("RateLimit", '"b";r=2')], '"a";r=1, "b";r=2, "default";r=8;t=60'),
        ("503 No", [("Retry-After", "7")], '"default";r=8;t=60'),
    ],
)
def test_c06_fields_are_merged_with_existing_ones(status: str, own: Fields, expected: str | None) -> None:
    app = RateLimitMiddleware(page(status, own), default_limits=["9/minute"], clock=ManualClock())
    started: list[Fields] = []
    app(make_environ(), lambda _status, headers, _info=None: started.append(headers))  # type: ignore[arg-type]
    [headers] = started
    answer = Answer(200, [(name.lower(), value) for name, value in headers], b"")
    assert answer.one("ratelimit") == expected
    assert answer.one("retry-after") == dict(own).get("Retry-After")


@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize("row", addresses())
def test_c07_c08_the_address_table(row: dict[str, Any]) -> None:
    store = Recorder()
    app = RateLimitMiddleware(
        page(),
        store=store,
        default_limits=["9/minute"],
        trusted_proxies=row["trusted_proxies"],
        trusted_header=row["trusted_header"],
    )
    call(app, address_environ(row))
    assert store.identity == identity_text(("ip", row["expect"]))


def test_c12_threads_allow_exactly_the_limit() -> None:
    app = RateLimitMiddleware(page(), default_limits=["100/hour"], clock=ManualClock())
    statuses: list[int] = []
    start = threading.Barrier(8)

    def client() -> None:
        start.wait()
        statuses.extend([ask(app).status for _ in range(40)])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=client) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert (statuses.count(200), statuses.count(429)) == (100, 220)


@pytest.mark.parametrize(
    ("policy", "statuses"),
    [("local", [200, 200, 429]), ("allow", [200, 200, 200]), ("deny", [503, 503, 503])],
)
def test_c15_without_the_store_the_policy_decides(
    policy: Any, statuses: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    app = RateLimitMiddleware(page(), store=BrokenStore(), default_limits=["2/minute"], on_store_failure=policy)
    answers = [ask(app) for _ in range(3)]
    assert [answer.status for answer in answers] == statuses
    assert len(caplog.records) == 1  # once for an outage, not for each request
    if policy == "deny":
        assert (answers[0].one("retry-after"), answers[0].one("cache-control")) == ("1", "no-store")
        assert b"temporary-reduced-capacity" in answers[0].body


def test_c16_only_an_opened_store_is_closed() -> None:
    store = Recorder()
    RateLimitMiddleware(page(), store=store).close()
    assert store.closed == 0


def test_c17_dialects() -> None:
    app = RateLimitMiddleware(page(), default_limits=["9/minute"], headers="draft-7", clock=ManualClock())
    fields = http_sf.parse((ask(app).one("ratelimit") or "").encode(), tltype="dictionary")
    assert fields == {"limit": (9, {}), "remaining": (8, {}), "reset": (60, {})}


def test_c18_two_stacked_limiters_make_one_valid_list() -> None:
    inner = RateLimitMiddleware(page(), default_limits=["2/minute"])
    outer = RateLimitMiddleware(inner, default_limits=["9/minute", "99/hour"])
    answers = [ask(outer) for _ in range(3)]
    for answer in answers:
        check_fields(answer)
    names = [name for name, _ in sf_list(answers[0], "ratelimit-policy")]
    assert names == ["default", "default-minute", "default-hour"]
    assert [answer.status for answer in answers] == [200, 200, 429]


def test_c20_a_cost_above_the_limit_has_no_retry_after() -> None:
    rule = Rule(name="bulk", quota="5/minute", cost=lambda environ: 6)
    answer = ask(RateLimitMiddleware(page(), rules=[rule]))
    assert (answer.status, answer.one("retry-after")) == (429, None)
    assert b"can never pass" in answer.body


def test_c22_the_application_can_read_the_decision() -> None:
    seen: list[int | None] = []

    def reading(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        seen.append(environ["sluicegate.state"].decision.remaining)
        return page()(environ, start_response)

    ask(RateLimitMiddleware(reading, default_limits=["9/minute"]))
    assert seen == [8]


def test_c23_the_host_decides_nothing() -> None:
    app = RateLimitMiddleware(page(), rules=[Rule(name="a", quota="1/minute", path="/open")])
    hosts = ["a/open?", "b", "[::1]:0/x"]
    assert [ask(app, headers=[("Host", host)]).status for host in hosts] == [200, 429, 429]


def test_c25_a_wall_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    app = RateLimitMiddleware(page(), default_limits=["1/minute"], clock=ManualClock())
    ask(app)
    for moment in (0.0, 4e9):
        monkeypatch.setattr("sluicegate.web.http.epoch_seconds", lambda moment=moment: moment)
        assert ask(app).one("retry-after") == "60"


def test_a_generator_that_the_client_leaves_is_closed_once() -> None:
    closed: list[str] = []

    def lazy(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield from [b"first", b"second"]

    def cleaned(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return ClosingIterator(lazy(environ, start_response), [lambda: closed.append("closed")])

    body = RateLimitMiddleware(cleaned, default_limits=["9/minute"])(make_environ(), lambda *_: print)
    chunks = iter(body)
    assert next(chunks) == b"first"
    cast("Any", body).close()
    del chunks
    assert closed == ["closed"]


def test_a_refusal_does_not_read_the_body() -> None:
    class Untouched:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"the body was asked for {name}")

    app = RateLimitMiddleware(page(), default_limits=["1/minute"])
    ask(app)
    environ = make_environ("POST")
    environ["wsgi.input"] = Untouched()
    started: list[str] = []
    app(environ, lambda status, *_: started.append(status))  # type: ignore[arg-type]
    assert started == ["429 Too Many Requests"]


def test_on_denied_makes_the_response_and_the_fields_are_added() -> None:
    def sorry(environ: dict[str, Any], decision: Any) -> WSGIApplication:
        return page("420 Calm", [("Cache-Control", "public, max-age=60"), ("X-Rule", decision.rule)])

    app = RateLimitMiddleware(page(), default_limits=["1/minute"], on_denied=sorry, clock=ManualClock())
    ask(app)
    answer = ask(app)
    assert (answer.status, answer.body, answer.one("x-rule")) == (420, b"page", "default")
    assert (answer.one("retry-after"), answer.one("cache-control")) == ("60", "no-store")
    assert answer.one("ratelimit") == '"default";r=0;t=60'


def test_on_denied_may_redirect() -> None:
    away = page("302 Found", [("Location", "/slow-down")])
    app = RateLimitMiddleware(page(), default_limits=["1/minute"], on_denied=lambda environ, decision: away)
    ask(app)
    answer = ask(app)
    assert (answer.status, answer.one("retry-after"), answer.one("cache-control")) == (302, None, "no-store")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PATH_INFO": "/caf\xc3\xa9"}, "/café"),
        ({"PATH_INFO": "/\xff"}, "/\ufffd"),
        ({"PATH_INFO": "/日本"}, "/??"),  # no server may do this; it must not raise
        ({}, ""),
    ],
)
def test_the_path_is_decoded_and_never_raises(environ: dict[str, Any], expected: str) -> None:
    assert WsgiCaller(environ).path == expected


@pytest.mark.parametrize(
    ("key", "environ", "identity"),
    [
        ("user", {"REMOTE_USER": "alice"}, ("user", "alice")),
        ("user", {"REMOTE_USER": ""}, ("ip", "198.51.100.9")),
        ("header:Content-Type", {"CONTENT_TYPE": "text/css"}, ("header:content-type", "text/css")),
        ("header:X-Key", {"HTTP_X_KEY": ""}, ("header:x-key", "")),
        (("ip", "header:X-Key"), {"HTTP_X_KEY": "k"}, (("ip", "198.51.100.9"), ("header:x-key", "k"))),
        (lambda environ: environ["PATH_INFO"], {}, "/open"),
    ],
)
def test_keys(key: Any, environ: dict[str, str], identity: Any) -> None:
    store = Recorder()
    app = RateLimitMiddleware(page(), store=store, default_limits=["9/minute"], key=key)
    call(app, {**make_environ(), **environ})
    assert store.identity == identity_text(identity)


@pytest.mark.parametrize("policy", ["local", "deny"])
def test_a_given_limiter_store_is_shared_with_the_application(policy: Any) -> None:
    store = MemoryStore(clock=ManualClock())
    app = RateLimitMiddleware(page(), store=store, default_limits=["1/minute"], on_store_failure=policy)
    assert [ask(app).status for _ in range(2)] == [200, 429]
    Limiter(store).reset("1/minute", ("ip", "198.51.100.9"), action="default")
    assert ask(app).status == 200


async def _async_key(environ: object) -> str:
    return "k"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"default_limit": ["1/minute"]}, SettingsError, 'did you mean "default_limits"?'),
        ({"default_limits": ["10/fortnight"]}, QuotaError, "fortnight"),
        ({"default_limits": ["1/s burst 5"]}, AlgorithmError, "burst"),
        ({"key": _async_key}, AsyncMismatchError, "called synchronously"),
        ({"rules": [{"name": "a", "quota": "1/s", "route": "home"}]}, RuleError, "no named routes"),
        ({"settings": Settings(), "enabled": False}, SettingsError, "beside settings="),
        ({"store": "nowhere://"}, ConfigurationError, "nowhere"),
    ],
)
def test_wrong_options_cannot_start(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        RateLimitMiddleware(page(), **({"default_limits": ["9/minute"]} | options))


@pytest.mark.parametrize("settings", [{"enabled": False}, Settings], ids=["a mapping", "the class"])
def test_other_values_for_settings_are_an_error(settings: Any) -> None:
    with pytest.raises(SettingsError, match=r"settings .*: not Settings; give Settings\("):
        RateLimitMiddleware(page(), settings=settings)


def test_a_whole_settings_object() -> None:
    client = WsgiClient(RateLimitMiddleware(page(), settings=Settings(default_limits=["1/minute"])))
    assert client.statuses("/open", "/open") == [200, 429]

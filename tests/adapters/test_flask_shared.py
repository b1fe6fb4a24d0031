"""A Flask view may return one Response object, or one Headers object, to many requests. Each answer has the fields of
its last reader once, and hears of its own end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask, Response
from werkzeug.datastructures import Headers

from sluicegate import ManualClock, Rule
from sluicegate.flask import RateLimiter, exempt
from tests.adapters.wsgi_client import WsgiClient, call, make_environ

POLICY = ("ratelimit-policy", '"default";q=9;w=60')
HELD = Rule(name="held", quota="2 at once")


def of_limiters(answer: Response | Callable[..., Any], *limiters: dict[str, Any]) -> Flask:
    app = Flask("board")
    app.add_url_rule("/open", "open", answer if not isinstance(answer, Response) else lambda: answer)
    for options in limiters:
        RateLimiter(app, **{"clock": ManualClock(), "config_prefix": None} | options)
    return app


def fields(app: Flask, path: str = "/open") -> list[tuple[str, str]]:
    found = call(app, make_environ(path=path)).headers
    return [(name, value) for name, value in found if name not in ("content-type", "content-length")]


def test_each_answer_of_one_response_has_its_own_fields() -> None:
    app = of_limiters(Response("same"), {"default_limits": ["9/minute"]})
    for left in (8, 7, 6):
        assert fields(app) == [POLICY, ("ratelimit", f'"default";r={left};t=60')]


@pytest.mark.parametrize("share", [False, True])
def test_what_the_view_has_written_itself_is_joined_once(share: bool) -> None:
    """In a response that comes again, the fields replace those of the last reader."""
    own = [("Cache-Control", "private"), ("RateLimit", '"own";r=1')]
    same = Response("same", headers=own)
    view = same if share else lambda: Response("new", headers=own)
    app = of_limiters(view, {"default_limits": ["9/minute"]})
    for left in (8, 7, 6):
        item = f'"default";r={left};t=60'
        joined = ("ratelimit", item if share and left < 8 else f'"own";r=1, {item}')
        assert sorted(fields(app)) == [("cache-control", "private"), joined, POLICY]


def test_new_responses_may_share_their_headers() -> None:
    shared = Headers([("X-Own", "1")])
    app = of_limiters(lambda: Response("new", headers=shared), {"default_limits": ["9/minute"]})
    for left in (8, 7, 6):
        assert fields(app) == [("x-own", "1"), POLICY, ("ratelimit", f'"default";r={left};t=60')]


def test_each_of_two_limiters_adds_its_fields_once() -> None:
    limits: list[dict[str, Any]] = [{"default_limits": ["9/minute"]}, {"default_limits": ["5/hour"], "prefix": "b"}]
    app = of_limiters(Response("same"), *limits)
    for left in (4, 3, 2):
        items = f'"default";r={left};t=3600, "default-2";r={left + 4};t=60'
        assert dict(fields(app))["ratelimit"] == items


def test_one_response_to_all_refusals() -> None:
    app = of_limiters(Response("open"), {"default_limits": ["1/minute"]})
    slow = Response("slow", 429)
    app.register_error_handler(429, lambda error: slow)
    assert call(app, make_environ()).status == 200
    for _ in range(3):
        policy = ("ratelimit-policy", '"default";q=1;w=60')
        refusal = [("cache-control", "no-store"), policy, ("ratelimit", '"default";r=0;t=60'), ("retry-after", "60")]
        assert sorted(fields(app)) == sorted(refusal)


def test_one_response_of_on_denied_replaces_several() -> None:
    slow = Response("slow", 429)
    origins = iter(["https://a.example", "https://b.example", "https://a.example"])
    app = Flask("board")
    app.before_request(lambda: Response("early", 401))
    RateLimiter(app, default_limits=["1/minute"], clock=ManualClock(), on_denied=lambda request, decision: slow)

    @app.after_request
    def cors(response: Response) -> Response:
        response.headers["Access-Control-Allow-Origin"] = next(origins, "https://c.example")
        return response

    assert call(app, make_environ()).status == 401
    for origin in ("https://b.example", "https://a.example", "https://c.example"):
        answer = call(app, make_environ())
        names = [name for name, _ in answer.headers]
        assert (answer.status, len(names)) == (429, len(set(names)))
        assert dict(answer.headers)["access-control-allow-origin"] == origin


class Parts:
    """A body that can be sent again and again."""

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"a", b"b"])


@pytest.mark.parametrize("body", ["text", Parts()], ids=["text", "stream"])
def test_each_answer_releases_its_own_slot(body: Any) -> None:
    app = of_limiters(Response(body), {"rules": [HELD]})

    def begin() -> tuple[str, Any]:
        started: list[str] = []
        start: Any = lambda status, headers, exc_info=None: started.append(status)  # noqa: E731
        chunks: Any = app(make_environ(), start)
        return started[0][:3], chunks

    first, second = begin(), begin()
    assert [first[0], second[0], begin()[0]] == ["200", "200", "429"]
    second[1].close()
    third = begin()
    assert (third[0], begin()[0]) == ("200", "429")  # the first one still has its slot
    list(third[1])
    third[1].close()
    first[1].close()
    assert [begin()[0], begin()[0], begin()[0]] == ["200", "200", "429"]


def test_each_answer_delivers_its_own_event() -> None:
    events: list[str] = []
    app = of_limiters(
        Response("same"), {"default_limits": ["9/minute"], "on_decision": lambda event: events.append("event")}
    )
    start: Any = lambda *_: lambda _: None  # noqa: E731
    bodies: list[Any] = [app(make_environ(), start) for _ in range(3)]
    for number, body in enumerate(bodies, 1):
        list(body)
        assert len(events) == number - 1
        body.close()
        assert len(events) == number


def test_a_response_grows_by_nothing_but_the_first_fields() -> None:
    same = Response(Parts())
    app = of_limiters(
        same,
        {"default_limits": ["99/minute"], "rules": [HELD], "on_decision": lambda event: None},
        {"rules": [HELD], "prefix": "b"},
    )
    client = WsgiClient(app)
    client.request("GET", "/open")
    first = (len(same.headers), sorted(vars(same)), same.response)
    for _ in range(5):
        assert client.request("GET", "/open").body == b"ab"
    assert (len(same.headers), sorted(vars(same)), same.response) == first


def began(app: Flask, path: str) -> tuple[int, Any]:
    """The status of a response that the server is still sending, and its body, which the server will close."""
    started: list[str] = []
    start: Any = lambda status, headers, exc_info=None: started.append(status)  # noqa: E731
    body: Any = app(make_environ(path=path), start)
    return int(started[0][:3]), body


def of_two_views(same: Response, **options: Any) -> Flask:
    """`/open` has a limit, and `/free` has none. Both return the same response."""
    app = Flask("board")
    RateLimiter(app, **{"clock": ManualClock(), "config_prefix": None} | options)
    app.add_url_rule("/open", "open", lambda: same)
    app.add_url_rule("/free", "free", exempt(lambda: same))
    return app


def test_a_request_without_a_rule_has_the_fields_of_the_last_reader() -> None:
    app = of_two_views(Response("same"), default_limits=["9/minute"])
    found = [dict(fields(app, path)).get("ratelimit") for path in ("/free", "/open", "/free", "/open", "/free")]
    assert found == [None, *[f'"default";r={left};t=60' for left in (8, 8, 7, 7)]]


def test_a_request_without_a_rule_ends_no_other() -> None:
    app = of_two_views(Response("same"), rules=[Rule(name="held", quota="1 at once")])
    status, body = began(app, "/open")
    assert (status, call(app, make_environ(path="/free")).status) == (200, 200)
    assert call(app, make_environ(path="/open")).status == 429
    body.close()
    assert call(app, make_environ(path="/open")).status == 200


def test_a_refusal_that_replaces_a_response_ends_no_other_request() -> None:
    same = Response("early", 503)
    app = Flask("board")
    app.before_request(lambda: same)
    RateLimiter(app, rules=[Rule(name="held", quota="1 at once")], clock=ManualClock())
    status, body = began(app, "/open")
    assert [status, *[call(app, make_environ()).status for _ in range(3)]] == [503, 429, 429, 429]
    body.close()
    assert call(app, make_environ()).status == 503


@pytest.mark.parametrize("limiters", [1, 2])
@pytest.mark.parametrize("name", ["Cache-Control", "RateLimit", "Retry-After", "X-Own"])
@pytest.mark.parametrize("share", ["response", "headers"])
def test_a_response_with_such_fields_of_its_own_releases_every_slot(share: str, name: str, limiters: int) -> None:
    headers = Headers([(name, "1")])
    same = Response("same", headers=headers)
    rules = [{"rules": [HELD], "prefix": f"{number}"} for number in range(limiters)]
    app = of_limiters(same if share == "response" else lambda: Response("new", headers=headers), *rules)
    assert [call(app, make_environ()).status for _ in range(5)] == [200] * 5
    assert ("1" in dict(fields(app))[name.lower()], len(headers) < 6) == (True, True)


class Pickled(Response):
    """A response that a cache pickles: without its connections and its functions."""

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.get_data()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise AssertionError


class Made(Response):
    """A response whose class is called in its own way."""

    def __new__(cls, body: str) -> Made:
        return super().__new__(cls)

    def __init__(self, body: str) -> None:
        super().__init__(body, headers={"Cache-Control": "private"})


@pytest.mark.parametrize("kind", [Pickled, Made])
@pytest.mark.parametrize("rules", [["9/minute"], ["2 at once"]])
def test_a_class_of_responses_may_have_a_pickle_format_or_a_constructor(kind: type[Response], rules: list[str]) -> None:
    closed: list[str] = []
    same = kind("same")
    same.call_on_close(lambda: closed.append("same"))
    app = of_limiters(same, {"rules": [Rule(name="a", quota=quota) for quota in rules]})
    assert [call(app, make_environ()).body for _ in range(3)] == [b"same"] * 3
    assert len(closed) == 3


def test_a_close_of_the_object_itself_stays() -> None:
    closed: list[str] = []
    same = Response("same")
    vars(same)["close"] = lambda: closed.append("own")
    app = of_limiters(same, {"rules": [HELD]})
    bodies = [began(app, "/open")[1] for _ in range(2)]
    for body in bodies:
        body.close()
    assert [call(app, make_environ()).status for _ in range(3)] == [200] * 3
    assert len(closed) == 5

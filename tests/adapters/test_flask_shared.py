"""A Flask view may return one Response object, or one Headers object, to many requests. Each answer has its own fields
once, and hears of its own end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask, Response
from werkzeug.datastructures import Headers

from sluicegate import ManualClock, Rule
from sluicegate.flask import RateLimiter
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


def test_what_the_view_has_written_itself_stays() -> None:
    same = Response("same", headers=[("Cache-Control", "private"), ("RateLimit", '"own";r=1')])
    app = of_limiters(same, {"default_limits": ["9/minute"]})
    for left in (8, 7, 6):
        joined = ("ratelimit", f'"own";r=1, "default";r={left};t=60')
        assert sorted(fields(app)) == [("cache-control", "private"), joined, POLICY]
    assert same.headers["RateLimit"] == '"own";r=1'


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
    assert [name for name, _ in slow.headers] == ["Content-Type", "Content-Length"]


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

"""The pytest plugin: its fixtures in the tests of a user's project, and its assertions on every kind of response."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from email.message import Message
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from urllib.response import addinfourl

import fakeredis
import flask
import httpx2
import pytest
from django.http import HttpResponse
from starlette.responses import PlainTextResponse

from sluicegate import AsyncLimiter, ConfigurationError, Limiter, ManualClock
from sluicegate.errors import SettingsError
from sluicegate.flask import RateLimiter
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis import RedisStore
from sluicegate.testing import (
    AsyncAdapter,
    ShutStore,
    assert_allowed,
    assert_limited,
    separate_budgets,
)
from sluicegate.web.http import DIALECTS
from tests.environments import Environments
from tests.servers import Server, ask

APP = '''
"""Applications that are made when this module is imported, on the store of the environment."""
import os
import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import path
from fastapi import Depends, FastAPI
from flask import Flask
from sluicegate import AsyncLimiter, Limiter
from sluicegate.fastapi import RateLimit, RateLimitMiddleware
from sluicegate.flask import RateLimiter

STORE = os.environ["STORE"]
PATIENT = {"deadline": 5}  # seconds: the machine may be busy
limiter = Limiter(STORE, **PATIENT)
later = AsyncLimiter(STORE, **PATIENT)

flask_app = Flask("app")
RateLimiter(flask_app, store=STORE, default_limits=["2/minute"], **PATIENT)
flask_app.get("/")(lambda: "hello")

fastapi_app = FastAPI()
fastapi_app.add_middleware(RateLimitMiddleware, store=STORE, **PATIENT)
@fastapi_app.get("/", dependencies=[Depends(RateLimit("2/minute", name="default"))])
async def home():
    return "hello"

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["sluicegate.django.RateLimitMiddleware"],
    SLUICEGATE={"STORE": STORE, "DEFAULT_LIMITS": ["2/minute"], **PATIENT},
)
django.setup()
urlpatterns = [path("", lambda request: HttpResponse("hello"))]
'''

TESTS = """
import pytest
from django.test import Client
from starlette.testclient import TestClient
from apps import fastapi_app, flask_app, later, limiter
from sluicegate.testing import assert_allowed, assert_limited

@pytest.fixture(params=["flask", "fastapi", "django"])
def get(request):
    if request.param == "flask":
        yield lambda: flask_app.test_client().get("/")
    elif request.param == "django":
        yield lambda: Client().get("/")
    else:
        with TestClient(fastapi_app) as client:
            yield lambda: client.get("/")

@pytest.mark.parametrize("again", range(2))
def test_the_clock_moves_an_application(limits_clock, get, again):
    assert_allowed(get(), rule="default", remaining=1)
    assert_allowed(get(), remaining=0)
    assert_limited(get(), rule="default", retry_after=60)
    limits_clock.advance(59)
    assert_limited(get(), retry_after=1)
    limits_clock.advance(1)
    assert_allowed(get(), remaining=1)

@pytest.mark.parametrize("again", range(3))
def test_a_test_begins_with_empty_budgets(fresh_limits, get, again):
    assert_allowed(get(), remaining=1)
    assert_allowed(get(), remaining=0)

def test_off(limits_off, get):
    for _ in range(20):
        assert_allowed(get(), remaining=2)

@pytest.fixture
def off_everywhere(limits_off):  # what a project has as autouse: it is set up first
    pass

def test_on_again(off_everywhere, limits_clock, get):
    assert_allowed(get(), remaining=1)
    assert_allowed(get(), remaining=0)
    assert_limited(get())

def test_off_again(fresh_limits, limits_off, get):
    for _ in range(20):
        assert_allowed(get(), remaining=2)

def test_a_limiter_without_a_framework(limits_clock, fresh_limits):
    assert [limiter.hit("1/day", "alice").allowed for _ in range(2)] == [True, False]
    limits_clock.advance(86400)
    assert limiter.hit("1/day", "alice").allowed

@pytest.mark.anyio
@pytest.mark.parametrize("again", range(2))
async def test_on_an_event_loop(limits_clock, again):
    assert [(await later.hit("1/day", "alice")).allowed for _ in range(2)] == [True, False]
    limits_clock.advance(86400)
    assert (await later.hit("1/day", "alice")).allowed
    await later.close()

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


@pytest.mark.parametrize("store", ["memory", "server"])
def test_a_users_project(store: str, environments: Environments, valkey: Server, tmp_path: Path) -> None:
    """With the wheel installed pytest finds the fixtures, in each process of xdist. No key of the application's own is
    touched.
    """
    valkey.flush()
    (tmp_path / "apps.py").write_text(APP, "utf-8")
    (tmp_path / "test_project.py").write_text(TESTS, "utf-8")
    also = ["pytest", "pytest-xdist", "anyio", "httpx2"]
    path = environments.path("redis", "flask", "fastapi", "django", also=also)
    url = valkey.url if store == "server" else "memory://"
    ran = environments.run([*path, tmp_path], "-c", RUN, url, cwd=tmp_path)
    assert re.search(r"\b27 passed\b", ran.stdout), ran.stdout
    keys = ask(valkey, "KEYS", "*")
    assert bool(keys) is (store == "server")
    assert all(key.startswith("sg:test-") for key in keys)


RUN = """
import os, sys
os.environ["STORE"] = sys.argv[1]
import pytest
sys.exit(pytest.main(["-q", "-n", "2", "-W", "error", "-p", "no:cacheprovider"]))
"""


def test_the_plugin_imports_nothing_optional() -> None:
    text = "import sys, sluicegate.testing.plugin; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    loaded = set(ran.stdout.split())
    assert not loaded & {"django", "fastapi", "flask", "hypothesis", "redis", "starlette", "asyncio"}
    assert not loaded & {"sluicegate.testing.budgets", "sluicegate.web.gate"}


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    clock = ManualClock()
    with separate_budgets(clock=clock):
        yield clock


def test_budgets_come_back_after_the_block() -> None:
    """A limiter that a test makes has budgets of its own afterwards, as if it had been made outside."""
    limiter = Limiter()
    assert limiter.hit("2/day", "alice").remaining == 1
    with separate_budgets():
        made = Limiter()
        assert [each.hit("2/day", "alice").remaining for each in (limiter, made, limiter)] == [1, 1, 0]
    assert [each.hit("2/day", "alice").remaining for each in (limiter, made)] == [0, 1]


def test_prepared_limits_follow_the_limiter() -> None:
    """A prepared limit may have a function of the store that was there when it was made."""
    limiter, clock = Limiter(), ManualClock()
    early = limiter.limit("1/day")
    assert [early.hit("alice").allowed for _ in range(3)] == [True, False, False]
    with separate_budgets(clock=clock):
        late = limiter.limit("1/day")
        assert [early.hit("alice").allowed for _ in range(3)] == [True, False, False]
        clock.advance(86400)
        assert [late.hit("alice").allowed for _ in range(3)] == [True, False, False]
        with separate_budgets(off=True):
            assert all(each.hit("alice").allowed for each in (early, late))
        assert not late.hit("alice").allowed
    assert [each.hit("alice").allowed for each in (early, late)] == [False, False]
    assert [each.hit("bob").allowed for each in (late, early)] == [True, False]


def test_blocks_inside_blocks() -> None:
    limiter, clock = Limiter(), ManualClock()
    with separate_budgets(clock=clock):
        limiter.hit("1/day", "alice")
        with separate_budgets():
            assert [limiter.hit("1/day", "alice").allowed for _ in range(2)] == [True, False]
            clock.advance(86400)
            assert limiter.hit("1/day", "alice").allowed
        assert limiter.hit("1/day", "alice").allowed  # a day has passed here too
        with separate_budgets(off=True), separate_budgets():  # the innermost decides
            assert [limiter.hit("1/day", "alice").allowed for _ in range(2)] == [True, False]
        assert not limiter.hit("1/day", "alice").allowed


def test_limiters_of_one_store_share_the_new_budgets(clock: ManualClock) -> None:
    store = MemoryStore()
    one, other = Limiter(store), Limiter(store)
    assert [each.hit("1/day", "alice").allowed for each in (one, other)] == [True, False]


def test_a_clock_that_was_given_stays() -> None:
    mine = ManualClock()
    limiter = Limiter(clock=mine)
    with separate_budgets(clock=ManualClock()):
        limiter.hit("1/day", "alice")
        mine.advance(86400)
        assert limiter.hit("1/day", "alice").allowed


def test_a_client_of_fakeredis(clock: ManualClock) -> None:
    server = fakeredis.FakeRedis()
    limiter = Limiter(RedisStore(server))
    assert [limiter.hit("1/day", "alice").allowed for _ in range(2)] == [True, False]
    clock.advance(86400)
    assert limiter.hit("1/day", "alice").allowed
    (key,) = cast("list[bytes]", server.keys("*"))
    assert key.startswith(b"sg:test-")


class Counting:
    """A user's store around another."""

    def __init__(self) -> None:
        inside = MemoryStore()
        self.run, self.refund, self.renew = inside.run, inside.refund, inside.renew
        self.forget, self.close = inside.forget, inside.close


@pytest.mark.slow
def test_a_store_that_cannot_be_separated_is_an_error_when_it_is_used(clock: ManualClock) -> None:
    with pytest.raises(ConfigurationError, match="it has no method `separate`"):
        Limiter(Counting(), on_store_failure="allow").hit("1/day", "alice")
    with pytest.raises(ConfigurationError, match="it has no method `separate`"):
        asyncio.run(AsyncLimiter(AsyncAdapter(Counting())).hit("1/day", "alice"))
    with pytest.raises(ConfigurationError, match="only the server's clock"):
        Limiter("redis+cell://127.0.0.1:1").hit("1/day", "alice", algorithm="gcra")
    assert not Limiter(ShutStore()).hit("1/day", "alice").allowed  # it has no budgets


FIELDS = {
    "Cache-Control": "no-store",
    "Retry-After": "30",
    "RateLimit-Policy": '"default";q=2;w=60',
    "RateLimit": '"default";r=0;t=30',
}
MEDIA = "application/problem+json"
PROBLEM = json.dumps({"title": "Quota Exceeded", "violated-policies": ["default"]}).encode()


def of_django(response: HttpResponse) -> HttpResponse:
    for name, value in FIELDS.items():
        response[name] = value
    return response


def of_urllib() -> Any:
    fields = Message()
    for name, value in FIELDS.items():
        fields[name] = value
    return addinfourl(BytesIO(), fields, "http://shop.example/", 429)


RAW = [(name.lower().encode(), value.encode()) for name, value in FIELDS.items()]
REFUSED: dict[str, Callable[[], Any]] = {
    "flask": lambda: flask.Response(PROBLEM, 429, FIELDS, mimetype=MEDIA),
    "starlette": lambda: PlainTextResponse(PROBLEM, 429, FIELDS, media_type=MEDIA),
    "django": lambda: of_django(HttpResponse(PROBLEM, status=429, content_type=MEDIA)),
    "httpx": lambda: httpx2.Response(429, headers={**FIELDS, "Content-Type": MEDIA}, content=PROBLEM),
    "urllib": of_urllib,
    "wsgi": lambda: ("429 Too Many Requests", list(FIELDS.items())),
    "wsgi with a body": lambda: ("429 Too Many Requests", [*FIELDS.items(), ("Content-Type", MEDIA)], [PROBLEM]),
    "asgi": lambda: {"type": "http.response.start", "status": 429, "headers": RAW},
    "asgi with a body": lambda: [
        {"type": "http.response.start", "status": 429, "headers": [*RAW, (b"content-type", MEDIA.encode())]},
        {"type": "http.response.body", "body": PROBLEM},
    ],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refusal_of_every_kind(kind: str) -> None:
    response = REFUSED[kind]()
    assert_limited(response, rule="default", retry_after=30)
    for wrong in ({"rule": "login"}, {"retry_after": 29}, {"status": 403}):
        with pytest.raises(AssertionError, match=r"(?i)status: 429(.|\n)*RateLimit: \"default\";r=0;t=30"):
            assert_limited(response, **wrong)
    with pytest.raises(AssertionError, match=r"^expected that the limiter allows .*(.|\n)*refused by: 'default'"):
        assert_allowed(response)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_left_in_every_dialect(dialect: Any) -> None:
    app = flask.Flask("app")
    RateLimiter(app, default_limits=["2/minute"], headers=dialect)
    app.get("/")(lambda: "hello")
    client = app.test_client()
    assert_allowed(client.get("/"), remaining=1)
    with pytest.raises(AssertionError, match=r"^expected 1 left\n(.|\n)*  left: 0"):
        assert_allowed(client.get("/"), remaining=1)
    assert_limited(client.get("/"), rule="default")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("options", "own", "status"),
    [
        ({"default_limits": ["1/minute"], "on_denied": lambda request, decision: ("no", 418)}, 200, 418),
        ({"default_limits": ["1/minute"], "on_denied": lambda request, decision: ("no", 503)}, 200, 503),
        ({"deny": ["127.0.0.1"]}, 200, 403),
        ({"default_limits": ["9/minute"]}, 429, 429),  # the application's own
    ],
)
def test_the_limiter_answered_or_the_application(dialect: Any, options: Any, own: int, status: int) -> None:
    app = flask.Flask("app")
    RateLimiter(app, headers=dialect, **options)
    app.get("/")(lambda: ("hello", own))
    response = [app.test_client().get("/") for _ in range(2)][1]
    if own == status:
        assert_allowed(response)
    else:
        assert_limited(response, status=status)
    wrong = assert_limited if own == status else assert_allowed
    with pytest.raises(AssertionError, match=r"expected (that the limiter allows|a refusal by the limiter)"):
        wrong(response)


def test_a_failure_says_how_the_response_stands() -> None:
    with pytest.raises(AssertionError) as failed:
        assert_limited(("200 OK", [("RateLimit", '"default";r=4;t=60')]))
    assert str(failed.value).splitlines() == [
        "expected a refusal with the status 429",
        "  status: 200",
        '  RateLimit: "default";r=4;t=60',
        "  left: 4 under 'default'",
    ]
    with pytest.raises(AssertionError, match="no rule applied, or the setting `headers` is None"):
        assert_limited((200, {}))
    with pytest.raises(AssertionError, match="expected that the rule 'login' applies"):
        assert_allowed((200, {}), rule="login")
    with pytest.raises(TypeError, match="a str is not a response"):
        assert_limited("429")
    with pytest.raises(TypeError, match=r"write assert decision\.allowed"):
        assert_allowed(Limiter().hit("5/minute", "alice"))
    with pytest.raises(AssertionError, match="the dialect of `headers` has none; leave out rule"):
        assert_allowed((200, {"RateLimit-Remaining": "3"}), rule="default")
    two = {"RateLimit": '"default";r=4;t=5, "plan";r=2;t=5'}
    with pytest.raises(AssertionError, match=r"^expected 2 left; give rule=\n"):
        assert_allowed((200, two), remaining=2)
    assert_allowed((200, two), rule="plan", remaining=2)
    refusal = {"RateLimit": '"default";r=0;t=5', "Cache-Control": "no-store"}
    assert_limited((418, refusal), status=418, rule="default")


def test_a_clock_beside_off_is_an_error(clock: ManualClock) -> None:
    with pytest.raises(SettingsError, match="give one of the two"), separate_budgets(clock=clock, off=True):
        pass

"""Each example on its real server, in memory and on a real store, requested over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.running import ROOT, Answer, ask, running
from tests.servers import free_port

DJANGO = ROOT / "examples" / "django_board"
ALICE = {"Authorization": "Bearer token-of-alice"}
BOB = {"Authorization": "Bearer token-of-bob"}
REPLY = '{"text": "hello"}'
JSON = {"Content-Type": "application/json"}


class Example(NamedTuple):
    """How an example is started: `{port}` and `{workers}` are filled in."""

    command: str
    cwd: Path = ROOT


UVICORN = "-m uvicorn --host 127.0.0.1 --port {port} --workers {workers}"
GUNICORN = "-m gunicorn --bind 127.0.0.1:{port} --workers {workers} --threads 4"
EXAMPLES = {
    "starlette": Example(f"{UVICORN} examples.starlette_board:app"),
    "fastapi": Example(f"{UVICORN} examples.fastapi_board:app"),
    "flask": Example(f"{GUNICORN} examples.flask_board:create_app()"),
    "django-wsgi": Example(f"{GUNICORN} board.wsgi", DJANGO),
    "login": Example(f"{GUNICORN} examples.login_flask:app"),
    "django-asgi": Example(f"{UVICORN} board.asgi:application", DJANGO),
}
REPLIES = {"fastapi": "/board/replies"}
STORES = ("memory", "valkey")


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of the Django project, with one user in it."""
    path = tmp_path_factory.mktemp("django") / "board.sqlite3"
    env = {**os.environ, "BOARD_DATABASE": str(path), "DJANGO_SUPERUSER_PASSWORD": "right"}
    for words in (["migrate"], ["createsuperuser", "--noinput", "--username", "alice", "--email", "l@example.org"]):
        subprocess.run([sys.executable, "manage.py", *words], cwd=DJANGO, env=env, check=True, capture_output=True)
    return str(path)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    server = request.getfixturevalue("valkey")
    server.flush()
    return server.url


@pytest.fixture
def start(store: str, request: pytest.FixtureRequest) -> Iterator[object]:
    """Start an example by name. Several workers only if they use one store."""
    contexts = []

    def begin(name: str) -> int:
        port = free_port()
        example = EXAMPLES[name]
        workers = 1 if store == "memory://" else 2
        env = {"SLUICEGATE_STORE": store, "SLUICEGATE_DEADLINE": "5"}  # machines may be busy
        if name.startswith("django"):
            env["BOARD_DATABASE"] = request.getfixturevalue("database")
        words = example.command.format(port=port, workers=workers).split()
        contexts.append(running(words, port, cwd=example.cwd, env=env))
        contexts[-1].__enter__()
        return port

    yield begin
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "login"])
def test_a_user_may_reply_five_times_a_minute(name: str, start) -> None:
    port = start(name)
    path = REPLIES.get(name, "/replies")
    anonymous = name.startswith(
        "django"
    )  # its users sign in with a session; these requests have none and come from one address
    answers = [ask(port, "POST", path, {**ALICE, **JSON}, REPLY) for _ in range(7)]
    assert [answer.status for answer in answers] == [201] * 5 + [429] * 2
    assert ask(port, "POST", path, {**BOB, **JSON}, REPLY).status == (429 if anonymous else 201)
    assert ask(port, "GET", path, ALICE).status == 200
    _check_refusal(answers[-1])


def _check_refusal(answer: Answer) -> None:
    assert re.fullmatch("[1-9][0-9]*", answer.headers["Retry-After"])
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert re.fullmatch(r'"[A-Za-z_.]+";r=0;t=[0-9]+', answer.headers["RateLimit"])
    assert answer.headers["Cache-Control"] == "no-store"
    problem = json.loads(answer.body)
    assert problem.get("status", 429) == 429


@pytest.mark.parametrize("name", ["starlette", "flask", "django-wsgi", "django-asgi"])
def test_two_limits_apply_at_once_and_health_has_none(name: str, start) -> None:
    port = start(name)
    path = "/admin/export" if name == "starlette" else "/export"
    assert [ask(port, "GET", path, user).status for user in (ALICE, BOB, ALICE)] == [200, 200, 429]
    assert '"export-hour";q=10;w=3600' in ask(port, "GET", path).headers["RateLimit-Policy"]
    assert {ask(port, "GET", "/health").status for _ in range(30)} == {200}
    assert ask(port, "GET", "/nowhere").headers["RateLimit"].startswith('"default-')


def test_starlette_limits_handshakes(start) -> None:
    port = start("starlette")
    for _ in range(3):
        with connect(f"ws://127.0.0.1:{port}/live") as socket:
            assert json.loads(socket.recv()) == []
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{port}/live")
    assert refused.value.response.status_code == 429
    assert int(refused.value.response.headers["Retry-After"]) >= 1


def test_fastapi_counts_malformed_bodies_and_documents_the_429(start) -> None:
    port = start("fastapi")
    answers = [ask(port, "POST", "/board/replies", {**ALICE, **JSON}, "{broken") for _ in range(6)]
    assert [answer.status for answer in answers] == [422] * 5 + [429]
    assert [ask(port, "GET", "/board/replies").status for _ in range(4)] == [200, 200, 200, 429]
    document = json.loads(ask(port, "GET", "/openapi.json").body)
    assert "Retry-After" in document["paths"]["/board/replies"]["post"]["responses"]["429"]["headers"]
    guesses = [{"Authorization": f"Bearer guess {number}", **JSON} for number in range(12)]
    tried = [ask(port, "POST", "/board/replies", guess, '{"text": "x"}').status for guess in guesses]
    assert tried == [401] * 10 + [429] * 2


def test_of_60_concurrent_wrong_passwords_5_are_tried_and_right_ones_cost_nothing(start) -> None:
    port = start("login")
    headers = {"Content-Type": "application/x-www-form-urlencoded"}

    def sign_in(form: str) -> Answer:
        return ask(port, "POST", "/login", headers, form)

    right = [sign_in("username=bob&password=battery staple") for _ in range(7)]
    assert [answer.status for answer in right] == [200] * 7
    assert '"login-account-minute";r=5' in right[-1].headers["RateLimit"]
    with ThreadPoolExecutor(60) as pool:
        names = ["alice", "ALICE", " alice ", "%EF%BD%81lice"] * 15  # four spellings of one account
        tried = list(pool.map(sign_in, [f"username={name}&password=wrong" for name in names]))
    assert sorted(answer.status for answer in tried) == [401] * 5 + [429] * 55
    assert sign_in("username=alice&password=correct horse").status == 429
    assert sign_in("username=bob&password=battery staple").status == 200  # from the same address
    assert sign_in("username=nobody&password=wrong").body == sign_in("username=bob&password=wrong").body


@pytest.mark.parametrize("name", ["django-wsgi", "django-asgi"])
def test_django_limits_wrong_passwords(name: str, start) -> None:
    port = start(name)
    page = ask(port, "GET", "/accounts/login/")
    cookie = page.headers["Set-Cookie"].partition(";")[0]
    token = re.search(rb'name="csrfmiddlewaretoken" value="([^"]+)"', page.body)
    assert token is not None
    headers = {"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}

    def sign_in(password: str) -> int:
        form = f"csrfmiddlewaretoken={token[1].decode()}&username=alice&password={password}"
        return ask(port, "POST", "/accounts/login/", headers, form).status

    assert [sign_in("wrong") for _ in range(4)] == [200] * 4
    assert sign_in("right") == 302
    assert [sign_in("right"), sign_in("wrong")] == [429, 429]
    assert ask(port, "GET", "/accounts/login/").status == 200  # only POST is limited

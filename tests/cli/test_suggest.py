"""`sluicegate suggest`: what it prints about a generated log, and rules that can be pasted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from flask import Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import tests.adapters.django_app  # noqa: F401  # configures Django
from examples.shop_log import Model, write
from sluicegate import Settings
from sluicegate.cli.commands import sluicegate
from sluicegate.flask import RateLimiter
from sluicegate.replay.log import Log
from sluicegate.replay.paste import FRAMEWORKS, as_decorators, as_toml
from sluicegate.replay.suggest import suggest
from sluicegate.rules.rule import Rule
from sluicegate.starlette import RateLimitMiddleware

ON = ("--group", "POST /login")
SMALL = Model(days=2, visitors=80, office=20, clients=1, crawlers=1, storm=False)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("logs") / "access.log"
    write(SMALL, path)
    return str(path)


def run(*words: str) -> Result:
    done = CliRunner().invoke(sluicegate, ["suggest", *words], env={"COLUMNS": "80"})
    assert done.exit_code in {0, 1, 2}, done.output
    return done


@pytest.mark.slow
def test_it_says_which_limit_stops_the_attack(log: str) -> None:
    done = run(log, *ON)
    assert "Stops 99." in done.output
    assert "185.220.101.4" in done.output, "the log has its clients in clear"
    assert "185.220.101.4" not in run(log, *ON, "--hide-identities").output
    (found,) = json.loads(run(log, *ON, "--json").stdout)["suggestions"]
    assert found["people_refused"] == 0
    assert found["stopped"] >= 0.99
    assert f'quota = "{found["quota"]}"' in done.output


@pytest.mark.slow
def test_the_toml_is_settings_in_shadow(log: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(run(log, "--toml").stdout)
    rules = [rule for rule in Settings.from_toml(path).rules if isinstance(rule, Rule)]
    assert [rule.name for rule in rules][:2] == ["everything", "login"]
    assert {rule.key for rule in rules} == {"ip"}
    assert {rule.mode for rule in rules} == {"shadow"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "written"),
    [("user", "user"), ("header:X-Team, ip", ("header:X-Team", "ip")), ("path:1", "user"), ("json:loads", json.loads)],
)
def test_the_key_is_that_of_settings(log: str, tmp_path: Path, key: str, written: object) -> None:
    """A key that only a log has is named in a comment."""
    found = suggest(Log([log]), ON[1:])._replace(key=key)
    path = tmp_path / "limits.toml"
    path.write_text(as_toml(found))
    (rule,) = list(Settings.from_toml(path).rules)
    assert isinstance(rule, Rule)
    assert rule.key == written
    assert ("give the key of your application" in path.read_text()) == (key == "path:1")


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "rules"), [(ON, 1), ((), 3)])
def test_the_page_replays_what_is_suggested(log: str, tmp_path: Path, groups: tuple[str, ...], rules: int) -> None:
    """Each rule is a candidate with its neighbours, and refuses as many people as the suggestion says."""
    path = tmp_path / "page.html"
    found = json.loads(run(log, *groups, "--html", str(path), "--json").stdout)["suggestions"]
    data = re.search(r'id="data">(.*?)</script>', path.read_text("utf-8"))
    assert data
    page = json.loads(data[1])
    for each, said in zip(found, page["words"]["said"], strict=True):
        assert f": {each['quota'] or 'no limit'} is suggested. {each['verdict']}" in said
    suggested, tried = [each for each in found if each["quota"]], page["result"]["candidates"]
    assert len(tried) == 3 * len(suggested) == 3 * rules
    for at, each in enumerate(suggested):
        own, half, twice = tried[3 * at : 3 * at + 3]
        assert own["name"] == f"{each['name']}: {each['quota']}"
        assert half["refused"] >= own["refused"] >= twice["refused"] > 0
        assert sum([kind["identities"] for kind in own["kinds"][:-1]]) == each["people_refused"]  # the last: programs


def starlette(view: Any) -> int:
    app = Starlette(routes=[Route("/login", view, methods=["POST"])])
    app.add_middleware(RateLimitMiddleware, default_limits=[])
    return TestClient(app).post("/login").status_code


def flask(view: Any) -> int:
    app = Flask("shop")
    RateLimiter(app)
    app.post("/login")(view)
    return app.test_client().post("/login").status_code


def django(view: Any) -> int:
    request: HttpRequest = RequestFactory().post("/login")
    response: HttpResponse = view(request)
    return response.status_code


BODIES = {"starlette": "return Answer('in')", "flask": "return 'in'", "django": "return Answer('in')"}
ANSWERS = {"starlette": PlainTextResponse, "flask": None, "django": HttpResponse}


@pytest.mark.slow
@pytest.mark.parametrize("ask", [starlette, flask, django])
def test_the_decorators_run(log: str, ask: Callable[[Any], int]) -> None:
    """Enforced, they refuse what is above the limit."""
    name = ask.__name__
    text = run(log, *ON, "--decorators", name).stdout
    assert 'mode="shadow"' in text
    text = text.replace(', mode="shadow"', "").replace("...", BODIES[name]).replace("/hour", "/hour; 2/day")
    names: dict[str, Any] = {"Answer": ANSWERS[name]}
    exec(text, names)
    assert ask(names["login"]) == 200


@pytest.mark.slow
def test_decorators_of_all_groups_are_code(log: str) -> None:
    found = suggest(Log([log]))
    for name in FRAMEWORKS:
        text = as_decorators(found, name)
        exec(text, {})
        assert "default_limits = [" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--share", "101%"], 2, "from 0% to 100%"),
        (["--share", "some"], 2, "from 0% to 100%"),
        (["--share", "0.1"], 2, "with the sign, such as 0.1%"),
        (["--share", "0.1%", *ON], 0, "at most 0.1 % of the people"),
        (["--by", "user", *ON], 0, "--by: "),
        (["--by", "header"], 2, "--by 'header': at character 1"),
        (["--group", "login"], 2, "--group 'login': at character 1"),
        (["--group", ""], 2, "a path begins with a slash"),
        (["--decorators", "bottle"], 2, "flask"),
        (["--html", "nowhere/page.html"], 2, "'nowhere' is no folder"),
        (["--html", "page.html", "-"], 2, "'-' can be read once only"),
    ],
)
def test_wrong_words(log: str, words: list[str], status: int, says: str) -> None:
    done = run(log, *words)
    assert done.exit_code == status
    assert says in done.output


def test_unreadable_lines_are_named_and_strict_stops(log: str, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text("".join(Path(log).read_text().splitlines(keepends=True)[:400]) + "what is this?\n")
    assert "1 line of 401 could not be read, as " in " ".join(run(str(path)).output.split())
    assert run(str(path), "--strict").exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "says"),
    [
        ("/nope", "No requests. The routes with most requests: /"),
        ("/api/*", "Only programs ask here"),
    ],
)
def test_without_a_rule_it_says_what_there_is_instead(log: str, group: str, says: str, tmp_path: Path) -> None:
    done = run(log, "--group", group)
    assert done.exit_code == 0
    assert says in " ".join(done.stdout.split())
    assert "[sluicegate]" not in done.stdout
    for form in (["--toml"], ["--decorators", "flask"], ["--html", str(tmp_path / "page.html")]):
        done = run(log, "--group", group, *form)
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"no rule for {group}: {says}" in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "whose"), [("user", "users"), ("header:X-Team, user", "header:X-Team or user")])
def test_a_log_without_users_gives_no_rule_by_user(log: str, key: str, whose: str, tmp_path: Path) -> None:
    """Its requests are counted by address, of which the figures are."""
    path = tmp_path / "anonymous.log"
    path.write_text(
        "".join(
            [re.sub(" - [^ ]* ", " - - ", line, count=1) for line in Path(log).read_text().splitlines(keepends=True)]
        )
    )
    said = f"The log names no {whose}: these figures are of addresses, and no rule by {key} follows from them."
    done = run(str(path), "--by", key, *ON)
    assert said in " ".join(done.stdout.split())
    assert "count by address with --by ip" in " ".join(done.stdout.split())
    assert "[sluicegate]" not in done.stdout
    done = run(str(path), "--by", key, *ON, "--toml")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"no rule for POST /login: {said}" in done.stderr
    assert "[sluicegate]" in run(log, "--by", "user").stdout
    assert "[sluicegate]" in run(str(path), "--by", "ip").stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", [("suggest",), ("replay", "--rule", "1/minute")])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_no_request_is_left(log: str, command: tuple[str, ...], form: tuple[str, ...], tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()
    for words in ((log, "--since", "2027-01-01"), (str(empty),)):
        done = CliRunner().invoke(sluicegate, [*command, *words, *form])
        assert (done.exit_code, done.stdout) == (1, "")
        assert "no request is left (lines read: " in done.stderr

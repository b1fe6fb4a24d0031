"""`sluicegate check`: what it prints, its exit status, and text of an application that could steer a terminal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sluicegate.cli.commands import sluicegate
from sluicegate.errors import forget_warnings

RULES = """
    from sluicegate import Ban, Rule, Tiers

    def by_team(request): ...
    def tier(request): ...

    RULES = [
        Rule(name="writes", quota="5/minute; 20/hour", key=("user", by_team), methods=["POST"], cost=2),
        Rule(name="admin", quota="3/hour", path="/admin/*", algorithm="fixed-window", on_store_failure="deny"),
        Rule(name="tiers", quota=Tiers({"free": "1/day", "pro": None}, by=tier), mode="shadow"),
        Rule(name="named", quota=lambda request: "5/day", route="/admin/{name}"),
        Rule(name="held", quota="2 at once", path="/", ban=Ban(after=3, within=60, duration=60, name="out")),
    ]
"""
STARLETTE = """
    from starlette.applications import Starlette
    from starlette.endpoints import HTTPEndpoint
    from starlette.routing import Route
    from sluicegate.starlette import RateLimitMiddleware, exempt, limit

    async def home(request): ...

    @exempt
    async def health(request): ...

    class Admin(HTTPEndpoint):
        @limit("7/minute")
        async def post(self, request): ...
        async def get(self, request): ...

    app = Starlette(routes=[Route("/", home), Route("/health", health), Route("/admin/{name}", Admin)])
    app.add_middleware(RateLimitMiddleware, rules=RULES)
"""
DJANGO = """
    import os, sys
    from django.conf import settings
    from django.http import HttpResponse
    from django.urls import path
    from django.views import View
    from sluicegate.django import limit

    class Admin(View):
        @limit("7/minute")
        def post(self, request, name): ...
        def get(self, request, name): ...

    def home(request): ...

    class Both(View):
        def get(self, request): ...
        def post(self, request): ...

    urlpatterns = [
        path("", home), path("home", home, name="home"), path("admin/<name>", Admin.as_view()),
        path("both", Both.as_view()), path("some", Both.as_view(http_method_names=["post"])),
    ]
    ROOT_URLCONF = __name__
    SECRET_KEY = "x"
    INSTALLED_APPS = ["sluicegate.django"]
    MIDDLEWARE = ["sluicegate.django.RateLimitMiddleware"]
    SLUICEGATE = {
        "DEFAULT_LIMITS": ["1000/day"], "RULES": [
            {"name": "posts", "quota": "9/day", "route": ["both", "some"], "methods": ["POST"]},
            {"name": "reads", "quota": "9/day", "route": ["/", "home"], "methods": ["GET"]},
        ],
    }
"""


def write(folder: Path, name: str, *texts: str) -> str:
    """Write a module under a name that no other test has, and return its path."""
    path = folder / f"{name}_{folder.name.replace('-', '_')}.py"
    path.write_text("".join(map(dedent, texts)), "utf-8")
    return str(path)


def check(*words: str, columns: int = 200) -> Result:
    return CliRunner().invoke(sluicegate, ["check", *words], env={"COLUMNS": str(columns)})


def rules_of(found: Any) -> dict[tuple[str, str], list[str]]:
    (limiter,) = found["limiters"]
    return {
        (" ".join(each["methods"]), each["route"]): [rule["name"] for rule in each["rules"]]
        for each in limiter["endpoints"]
    }


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_only_rules_that_may_hold_are_listed(tmp_path: Path) -> None:
    done = check(write(tmp_path, "shop", RULES, STARLETTE), "--json")
    assert done.exit_code == 0, done.output
    assert rules_of(json.loads(done.output)) == {
        ("", ""): ["writes", "admin", "tiers", "held"],
        ("GET", "/"): ["tiers", "held"],
        ("GET", "/health"): [],
        ("GET", "/admin/{name}"): ["admin", "tiers", "named"],
        ("POST", "/admin/{name}"): ["writes", "admin", "tiers", "named", "Admin.post"],
    }


def test_every_fact_of_a_rule_is_printed(tmp_path: Path) -> None:
    module = write(tmp_path, "shop", RULES, STARLETTE)
    (limiter,) = json.loads(check(module, "--json").output)["limiters"]
    facts = {rule["name"]: rule for endpoint in limiter["endpoints"] for rule in endpoint["rules"]}
    name = Path(module).stem
    assert facts["writes"]["quota"] == "5/minute; 20/hour"
    assert facts["writes"]["key"] == f"user + {name}.by_team"
    assert facts["writes"]["options"] == {"cost": "2", "methods": "POST"}
    assert (facts["admin"]["algorithm"], facts["admin"]["on_store_failure"]) == ("fixed-window", "deny")
    assert facts["tiers"]["quota"] == "free: 1/day, pro: no limit"
    assert facts["tiers"]["options"] == {"shadow": "never refuses"}
    assert facts["named"]["quota"].startswith(f"by {name}.<lambda>")
    assert facts["held"]["algorithm"] == "slots"
    assert facts["held"]["options"]["ban"] == "out, after 3 refusals in minute"
    text = check(module, "--routes", columns=400).output  # nothing is folded
    assert all(rule[fact] in text for rule in facts.values() for fact in ("name", "quota", "key", "algorithm"))


def table_of(text: str) -> list[list[str]]:
    """Return the cells of a table that folds nothing."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()[1:]]


def test_by_default_a_rule_is_a_line_with_its_routes(tmp_path: Path) -> None:
    module = write(tmp_path, "shop", RULES, STARLETTE)
    name = Path(module).stem
    assert [[row[0], row[-1]] for row in table_of(check(module, columns=400).output)] == [
        ["Rule", "Routes"],
        ["writes", "POST requests without a route, POST /admin/{name}"],
        ["admin", "/admin/*, GET /admin/{name}, POST /admin/{name}"],
        ["tiers (shadow)", "all but GET /health"],
        ["held", "/, GET /"],
        ["named", "GET /admin/{name}, POST /admin/{name}"],
        ["Admin.post", "POST /admin/{name}"],
        ["no rule", "GET /health"],
    ]
    assert f"user + {name}.by_team" in check(module, columns=400).output


def test_many_routes_are_folded(tmp_path: Path) -> None:
    views = "".join(f'*[Route("/{name}{{}}".format(at), home) for at in range({size})], ' for name, size in MANY)
    text = STARLETTE.replace('Route("/health", health),', views).replace("rules=RULES", MANY_RULES)
    assert table_of(check(write(tmp_path, "many", RULES, text), columns=400).output)[1:] == [
        ["default", "1000/day", "user", "all"],
        ["few", "5/minute", "user", "/f*, GET /f0, GET /f1 and 1 more"],
        ["most", "6/minute", "user", "all but requests without a route, GET /, GET /f0 and 4 more"],
        ["Admin.post", "7/minute", "user", "POST /admin/{name}"],
    ]


MANY = (("f", 3), ("m", 40))
MANY_RULES = """default_limits=["1000/day"], rules=[
        Rule(name="few", quota="5/minute", path="/f*"), Rule(name="most", quota="6/minute", path="/m*")]"""
LONG = """
    [sluicegate]
    default_limits = ["1000/day; 100/hour; 20/minute"]
    [[sluicegate.rules]]
    name = "a-rule-with-a-name-that-is-as-long-as-names-of-views-with-their-modules"
    quota = "5/minute; 20/hour; 100/day"
    key = ["user", "header:X-Api-Key", "path:organisation"]
    path = "/api/*/organisations/*/members/*/permissions"
    methods = ["DELETE", "PATCH", "POST", "PUT"]
"""


@pytest.mark.parametrize("words", [(), ("--routes",)])
def test_eighty_columns_are_enough_for_long_names(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text(dedent(LONG), "utf-8")
    lines = check(str(tmp_path / "limits.toml"), *words, columns=80).output.splitlines()
    assert max(map(len, lines)) <= 80
    joined = "".join("".join(lines).split())
    assert all(word in joined for word in ("a-rule", "100/day", "DELETE", "permissions"))
    assert all("…" not in line for line in lines)


def test_a_wrong_configuration_ends_with_1_and_a_wrong_command_with_2(tmp_path: Path) -> None:
    module = write(tmp_path, "wrong", RULES.replace("5/minute", "5/mniute"), STARLETTE)
    done = check(module)
    assert done.exit_code == 1
    assert "mniute" in done.output
    assert len(done.output.splitlines()) == 1
    done = check(module, "--json")
    assert (done.exit_code, json.loads(done.stdout)["error"]["code"]) == (1, "SG001")
    limits = tmp_path / "limits.toml"
    limits.write_text('[sluicegate]\nkey = "users"\ndeadline = 0\n')
    assert ["'users'" in check(str(limits)).output, "deadline 0" in check(str(limits)).output] == [True, True]
    assert len(json.loads(check(str(limits), "--json").stdout)["error"]["further"]) == 1
    assert [check(*words).exit_code for words in ((), ("no_such",), ("--nothing",))] == [2, 2, 2]
    failing = write(tmp_path, "failing", "raise OSError('no disk')")
    assert (check(failing).exit_code, "OSError: no disk" in check(failing).output) == (2, True)


def test_a_route_that_does_not_exist_is_found(tmp_path: Path) -> None:
    done = check(write(tmp_path, "lost", RULES.replace("/admin/{name}", "/amdin/{name}"), STARLETTE))
    assert done.exit_code == 1
    assert 'did you mean "/admin/{name}"' in done.output


def test_warnings_are_part_of_the_output(tmp_path: Path) -> None:
    settings = tmp_path / "limits.toml"
    settings.write_text('[sluicegate]\ndefault_limits = ["5/day"]\ntrusted_proxies = ["0.0.0.0/0"]\n', "utf-8")
    forget_warnings()
    (warning,) = json.loads(check(str(settings), "--json").output)["warnings"]
    assert "SG103" in warning
    forget_warnings()  # each is given once in a process
    assert "SG103" in check(str(settings)).output


@pytest.mark.parametrize("columns", [80, 200])
def test_hostile_text_reaches_no_terminal(columns: int, tmp_path: Path) -> None:
    """A path may have any character, and rich has a markup of its own."""
    route = "/\x1b]0;owned\x07[red]x[/nothing]\u202e"
    text = STARLETTE.replace('Route("/",', f"Route({route!r},")
    done = check(write(tmp_path, "hostile", RULES, text), "--routes", columns=columns)
    assert done.exit_code == 0, done.output
    assert all(sign.isprintable() for line in done.output.splitlines() for sign in line)
    assert max(map(len, done.output.splitlines())) <= columns
    if columns == 200:
        assert r"/\x1b]0;owned\x07[red]x[/nothing]\u202e" in done.output


def test_dependencies_of_fastapi_are_listed_with_their_budgets(tmp_path: Path) -> None:
    text = """
        from fastapi import APIRouter, Depends, FastAPI
        from sluicegate.fastapi import RateLimit, RateLimitMiddleware, exempt

        def user() -> str: ...

        router = APIRouter(prefix="/api", dependencies=[RateLimit("9/minute", scope="api")])

        twice = RateLimit("9/minute", scope="api")

        @router.get("/export", dependencies=[Depends(RateLimit("3/day", user=user)), twice])
        def export(): ...

        @router.get("/free")
        @exempt
        def free(): ...

        app = FastAPI(openapi_url=None)
        app.include_router(router)
        app.add_middleware(RateLimitMiddleware, default_limits=["1000/day"], key="ip")
    """
    found = json.loads(check(write(tmp_path, "fast", text), "--json").output)
    assert rules_of(found)["GET", "/api/export"] == ["default", "api", "export"]
    assert rules_of(found)["GET", "/api/free"] == []
    keys = {rule["name"]: rule["key"] for each in found["limiters"][0]["endpoints"] for rule in each["rules"]}
    assert keys == {"default": "ip", "api": "ip", "export": "user"}


def process(folder: Path, *words: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={"PATH": "", "COLUMNS": "100", "PYTHONIOENCODING": "utf-8", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ADMIN = {
    ("", ""): ["default", "reads"],  # the first page, which Django gives no template
    ("GET", "admin/<name>"): ["default"],
    ("POST", "admin/<name>"): ["default", "Admin.post"],
    ("", "home"): ["default", "reads"],
    ("GET POST", "both"): ["default", "posts"],
    ("POST", "some"): ["default", "posts"],
}


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "sluicegate", "check", "--json"),
        ("-m", "django", "sluicegate", "check", "--json"),
        ("-m", "django", "sluicegate", "check", "--settings={module}", "--pythonpath={folder}", "--json"),
        ("-m", "django", "sluicegate", "--pythonpath", "{folder}", "check", "--settings", "{module}", "--json"),
        ("-c", "import django; django.setup(); from django.core.management import call_command as c; c(*{words})"),
    ],
)
def test_a_django_project(words: tuple[str, ...], tmp_path: Path) -> None:
    module = Path(write(tmp_path, "project", DJANGO)).stem
    variables = {"DJANGO_SETTINGS_MODULE": module, "PYTHONPATH": str(tmp_path)}
    given = {"words": ("sluicegate", "check", "--json"), "module": module, "folder": str(tmp_path)}
    env = {} if "{folder}" in "".join(words) else variables
    out = process(tmp_path.parent, *[word.format(**given) for word in words], **env)
    assert rules_of(json.loads(out)) == ADMIN


def test_a_route_is_listed_with_the_methods_that_a_rule_limits(tmp_path: Path) -> None:
    module = Path(write(tmp_path, "project", DJANGO)).stem
    out = process(tmp_path, "-m", "sluicegate", "check", DJANGO_SETTINGS_MODULE=module)
    assert {row[0]: row[-1] for row in table_of(out)[1:]} == {
        "default": "all",
        "reads": "GET /, GET home",
        "Admin.post": "POST admin/<name>",
        "posts": "POST both, POST some",
    }


def test_flask_sluicegate(tmp_path: Path) -> None:
    text = """
        from flask import Flask
        from sluicegate.flask import RateLimiter

        app = Flask(__name__)
        RateLimiter(app, default_limits=["1000/day"])
    """
    module = Path(write(tmp_path, "flasks", text)).stem
    out = process(tmp_path, "-m", "flask", "--app", module, "sluicegate", "check", "--json")
    assert rules_of(json.loads(out)) == {("", ""): ["default"], ("GET", "/static/<path:filename>"): []}

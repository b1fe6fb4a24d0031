"""PyInstaller: the documentation lists every module that is imported by name, and a packed program works."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sluicegate import AsyncLimiter, Limiter
from sluicegate.errors import StoreURLError
from sluicegate.stores import SCHEMES
from tests.environments import ROOT, Environments
from tests.servers import Server
from tests.test_house import SOURCE, callee

# Each module that imports others by name, and the names that a program needs.
BY_NAME: dict[str, set[str]] = {
    "stores": set(SCHEMES.values()),
    "web.settings": set(),  # names in the user's settings
    "cli.commands": set(),  # a packed program has no command line
    "cli.application": set(),  # the user's application
    "testing": set(),  # the exams need pytest, so a program does not contain them
}

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


def documented() -> list[str]:
    """The options of PyInstaller that the documentation has: those of a program with every store."""
    text = (ROOT / "docs" / "faq.md").read_text("utf-8")
    return sorted(set(re.findall(r"--(?:hidden-import|collect-\w+) [\w.]+", text)))


@pytest.mark.slow
def test_every_import_by_name_is_known() -> None:
    found = {
        module.name
        for module in SOURCE
        for node in module.all(ast.Call)
        if isinstance(node, ast.Call) and callee(node) in ("import_module", "__import__", "import_string")
    }
    assert found - {"django.checks", "django.conf"} == BY_NAME.keys()  # these import the names in Django's settings


def test_the_documentation_names_what_is_imported_by_name() -> None:
    modules = {option.split()[1] for option in documented() if option.startswith("--hidden-import")}
    by_name = set().union(*BY_NAME.values()) - {"sluicegate.stores.memory"}  # which every limiter imports
    assert modules == {*by_name, "sluicegate.django", "sluicegate.django.apps"}  # Django imports its two by name


def test_the_wheel_has_what_prometheus_and_grafana_read(environments: Environments) -> None:
    with zipfile.ZipFile(environments.wheel) as wheel:
        assert {f"sluicegate/observe/{name}" for name in ("alerts.yml", "dashboard.json")} <= set(wheel.namelist())


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
    options = [word for option in documented() if "django" not in option for word in option.split()]
    packed = environments.run(path, "-m", "PyInstaller", "--log-level", "WARN", *options, "shop.py", cwd=tmp_path)
    assert packed.returncode == 0, packed.stdout
    valkey.flush()
    urls = ["memory://", valkey.url, f"embedded://{Path(valkey.socket).parent}/packed?linger=0"]
    ran = subprocess.run(
        [tmp_path / "dist" / "shop" / "shop", *urls], cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {url: [True, True, False, True] for url in urls}

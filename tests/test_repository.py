"""What stands around the code: the version, the workflows, and the files that GitHub reads."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
FALLBACK = PROJECT["tool"]["hatch"]["version"]["fallback-version"]
NEXT = FALLBACK[:-1] + str(int(FALLBACK[-1]) + 1)
GIT = ("git", "-c", "user.name=alice", "-c", "user.email=alice@example.com")


@pytest.mark.parametrize(
    ("commands", "version"),
    [
        ([], re.escape(FALLBACK)),
        (["init", "commit"], rf"{re.escape(NEXT)}\.dev1\+g\w+"),
        (["init", "commit", "tag v7.2.0"], r"7\.2\.0"),
        (["init", "commit", "tag v7.2.0", "commit"], r"7\.2\.1\.dev1\+g\w+"),
    ],
    ids=["without git", "without tags", "at a tag", "after a tag"],
)
def test_the_version_is_the_tag(commands: list[str], version: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for command in commands:
        words = ["commit", "--quiet", "--allow-empty", "--message", "x"] if command == "commit" else command.split()
        subprocess.run([*GIT, *words], cwd=tmp_path, check=True, capture_output=True)
    asked = [sys.executable, "-m", "hatchling", "version"]
    said = subprocess.run(asked, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()
    assert re.fullmatch(version, said), said


def test_the_changelog_has_the_version_of_a_copy_without_git() -> None:
    titles = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[:2] == ["Unreleased", FALLBACK]


def test_the_workflow_has_each_step_of_the_run_before_a_merge() -> None:
    steps = re.findall(r"^step scripts/([\w -]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    jobs = re.findall(r"^          - ([a-z].+)$", WORKFLOWS["checks.yml"], re.MULTILINE)
    assert jobs == steps


def test_the_workflow_has_each_python_that_the_package_names() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert re.findall(r'python: \[?"([\d.]+)"', WORKFLOWS["checks.yml"]) == named
    assert PROJECT["project"]["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_runs_our_scripts_and_pinned_actions(workflow: str) -> None:
    for command in re.findall(r"run: (.+)", WORKFLOWS[workflow]):
        script = command.removeprefix("sudo ").split()[0]
        assert script in ("gh", "go") or "${{" in script or (ROOT / script).exists(), command
    for action in re.findall(r"uses: (.+)", WORKFLOWS[workflow]):
        assert re.fullmatch(r"\./\.github/workflows/\w+\.yml|[\w/-]+@[0-9a-f]{40} # v[\d.]+", action)


def test_a_pull_request_takes_five_lines() -> None:
    assert len((ROOT / ".github" / "pull_request_template.md").read_text().splitlines()) == 5

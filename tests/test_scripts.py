"""The scripts' choice of an interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
NO_SUCH_VERSION = "#!/bin/sh\nexit 127\n"  # what pyenv's python3.13 on PATH does where no such version is chosen


def interpreter(path: Path, script: str = f'#!/bin/sh\nexec {sys.executable} "$@"\n') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


def run(*command: object, path: Path, pyenv: Path) -> str:
    environment = {"PATH": f"{path}:/usr/bin:/bin", "PYENV_ROOT": str(pyenv), "PYTHON": sys.executable}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("on_path", "in_pyenv", "expected"),
    [
        (["python3.29"], [], ["path/python3.29"]),
        (["python3.28", "python3.29"], [], ["path/python3.29", "path/python3.28"]),
        ([], ["3.29.1"], ["pyenv/versions/3.29.1/bin/python3.29"]),
        (["python3.28"], ["3.29.1"], ["pyenv/versions/3.29.1/bin/python3.29", "path/python3.28"]),
        ([], [], []),
    ],
    ids=["on PATH", "the newest first", "in pyenv", "pyenv's is newer", "none"],
)
def test_the_newer_pythons_are_those_that_run(tmp_path, on_path, in_pyenv, expected):
    for name in on_path:
        interpreter(tmp_path / "path" / name)
    for version in in_pyenv:
        name = f"python{version.rpartition('.')[0]}"
        interpreter(tmp_path / "pyenv" / "versions" / version / "bin" / name)
        interpreter(tmp_path / "path" / name, NO_SUCH_VERSION)
    interpreter(tmp_path / "path" / "python3.30", NO_SUCH_VERSION)
    found = run(SCRIPTS / "newer-pythons", path=tmp_path / "path", pyenv=tmp_path / "pyenv").splitlines()
    # The machine may have real ones: they are older than these.
    assert [line for line in found if "/python3.2" in line] == [str(tmp_path / each) for each in expected]


def test_a_python_that_does_not_run_is_refused(tmp_path):
    interpreter(tmp_path / "python3.29", NO_SUCH_VERSION)
    done = subprocess.run(
        [SCRIPTS / "test", "--python", tmp_path / "python3.29"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, f"{tmp_path / 'python3.29'} does not run here\n")

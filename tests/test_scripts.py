"""The scripts: their choice of an interpreter, and the count of lines."""

from __future__ import annotations

import runpy
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


LINES = runpy.run_path(str(SCRIPTS / "lines"))
SOURCES = {  # what is counted, and the number of lines
    "nothing": ("", 0),
    "blank lines and comments": ("\n# why\nx = 1  # a unit\n\n    # why\n", 1),
    "docstrings": (
        '"""One."""\n\nclass A:\n    """Two\n\n    lines."""\n\n    def f(self):\n        """Three."""\n',
        2,
    ),
    "an async function": ('async def f():\n    """One."""\n    await g()\n', 2),
    "text below a constant": ('MOST = 9\n"""How many."""\n', 1),
    "text of several lines": ('x = """One\n\ntwo."""\n', 3),
    "a statement of several lines": ("f(\n    1,\n\n    # why\n    2,\n)\n", 4),
    "a continued line": ("x = 1 + \\\n    2\n", 2),
    "two statements on a line": ("x = 1; y = 2\n", 1),
}


@pytest.mark.parametrize("what", SOURCES)
def test_the_lines_of_code(what):
    source, lines = SOURCES[what]
    assert LINES["count"](source) == lines


def test_the_table_of_lines(tmp_path, capsys):
    files = {
        "__init__.py": "",
        "wsgi.py": "a = 1\n",
        "web/gate.py": "a = 1\nb = 2\n",
        "cli/__init__.py": "a = 1\n",
        "x.lua": "a",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    LINES["main"](tmp_path)
    assert [line.rsplit(maxsplit=2) for line in capsys.readouterr().out.splitlines()] == [
        ["folder", "modules", "lines"],
        [".", "2", "1"],
        ["cli", "1", "1"],
        ["web", "1", "2"],
        ["the way of a request", "2", "3"],
        ["all", "4", "4"],
    ]

"""The Python of the documentation that the libraries ship: what `sluicegate migrate` makes of it.

Flask-Limiter has its documentation in the source distribution. That of fastapi-limiter and slowapi is the page that is
installed with them. The pages of django-ratelimit and REST framework have no Python about limits.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

import pytest

from sluicegate.migrate import migrate
from tests.migrate.test_migrate import FLASK, PYRATE, SLOWAPI, ended, start, written

pytestmark = pytest.mark.slow
FENCED = re.compile(r"^```py(?:thon)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"^([ \t]*)\.\. (?:code-block|code):: *python\n((?:\1[ \t]+.*\n|[ \t]*\n)+)", re.MULTILINE)
WHOLE = re.compile(r"^app = (?:Flask|FastAPI)\(.*^@app\.", re.MULTILINE | re.DOTALL)


def page(name: str, folder: Path) -> list[str]:
    """The page that is installed with a library."""
    try:
        return [str(metadata(name).json["description"])]
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")


def distribution(name: str, folder: Path) -> list[str]:
    """The pages and the examples in the source distribution of a library."""
    installed = page(name, folder)
    command = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation"]
    try:
        subprocess.run([*command, f"{name}=={version(name)}"], cwd=folder, check=True, capture_output=True, timeout=120)
    except subprocess.SubprocessError as error:
        pytest.skip(f"the package index gives no source distribution of {name}: {error}")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "distribution", filter="data")
    pages = [each.read_text() for each in sorted(folder.glob("distribution/*/doc/source/*.rst"))]
    return (
        installed
        + pages
        + [f"```py\n{each.read_text()}```" for each in sorted(folder.glob("distribution/*/examples/*.py"))]
    )


def python(text: str) -> list[str]:
    """The blocks of a page, with a colon where one has forgotten it, and with hours for seconds, because a window of a
    second may end between two requests.
    """
    found = [*FENCED.findall(text), *[block for _, block in DIRECTIVE.findall(text)]]
    blocks = [textwrap.dedent(re.sub(r"^\s+:\w+:.*\n", "", each, flags=re.MULTILINE)) for each in found]
    blocks = [re.sub(r"^(async def \w+\(.*\))$", r"\1:", each, flags=re.MULTILINE) for each in blocks]
    return [re.sub(r"(?i)second\b", lambda at: "HOUR" if at[0].isupper() else "hour", each) for each in blocks]


@pytest.mark.parametrize(
    ("read", "name", "preamble", "expected"),
    [
        (distribution, "Flask-Limiter", FLASK, (23, 15, 4, 2)),
        (page, "fastapi-limiter", PYRATE, (6, 6, 2, 1)),
        (page, "slowapi", SLOWAPI, (2, 2, 2, 0)),
    ],
)
def test_their_documentation(
    read: Callable[[str, Path], list[str]],
    name: str,
    preamble: str,
    expected: tuple[int, ...],
    tmp_path: Path,
) -> None:
    """Of the blocks: how many there are, change, have a comment, and are an application with the same answers."""
    blocks = [block for text in read(name, tmp_path) for block in python(text)]
    changed = commented = same = 0
    for number, block in enumerate(blocks):
        try:
            ast.parse(block)
        except SyntaxError:
            continue  # an ellipsis for more arguments
        text = block if re.search(r"\bimport\b", block) else f"{preamble}\n{block}"  # a part of an application
        theirs, ours = [written(tmp_path / f"{which}{number}", {"app.py": text}) for which in ("theirs", "ours")]
        for found in migrate([ours]):
            ast.parse(found.after)
            found.path.write_bytes(found.after)
            changed += found.before != found.after
            commented += bool(found.left)
        if WHOLE.search(text):
            assert ended(start(ours)) == ended(start(theirs)), text
            same += 1
    assert (len(blocks), changed, commented, same) == expected

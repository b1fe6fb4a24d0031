"""Functions of users: the error for one that cannot be called with what it gets, and asynchronous functions.

Start-up finds functions that are certainly asynchronous. A plain function that returns a coroutine is found at its
first call. Then the error has the same text, and the coroutine is closed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from types import FunctionType
from typing import Final, NamedTuple, TypeGuard, final

from sluicegate.errors import AsyncMismatchError, ConfigurationError

_READY: Final = frozenset({str, tuple, int, bytes, bool, type(None)})  # the types of nearly all results
_CALLED: Final = "an async function, but this application is called synchronously"


def waits(answer: object) -> TypeGuard[Awaitable[object]]:
    """True if the value that a user's function returned must be awaited."""
    return type(answer) not in _READY and inspect.isawaitable(answer)


def is_async(function: object) -> bool:
    """True if a function is certainly asynchronous: by its kind or by asgiref's mark.

    A plain function that wraps an asynchronous function does not count: it may run the asynchronous function itself.
    """
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function) or _is_marked(function):
        return True
    if isinstance(function, (FunctionType, type)) or inspect.ismethod(function) or not callable(function):
        return False
    if type(function).__module__ == "functools":  # a cache returns what its function returns
        return is_async(getattr(function, "__wrapped__", None))
    call = type(function).__call__
    return isinstance(call, FunctionType) and is_async(call)


def _is_marked(function: object) -> bool:
    """True if asgiref has marked the function as asynchronous. From Python 3.12 on `inspect` knows this mark."""
    return type(getattr(function, "_is_coroutine", None)) is object


def label_of(function: object) -> str:
    """Return the module and qualified name of a function or a view, also inside partials and for instances. A text is
    returned unchanged.

    >>> label_of(partial(label_of))
    'sluicegate.runtime.awaiting.label_of'
    """
    if isinstance(function, str):
        return function
    try:
        while (inner := getattr(function, "func", None)) is not None:
            function = inner
        name = getattr(function, "__qualname__", None)
    except Exception:  # noqa: BLE001  # a proxy without an object, as werkzeug's LocalProxy outside its context
        name = None
    kind = type(function)
    return f"{kind.__module__}.{kind.__qualname__}" if name is None else f"{function.__module__}.{name}"


def async_mismatch(what: str, function: object) -> AsyncMismatchError:
    """Return the error for an asynchronous function in a synchronous application."""
    return AsyncMismatchError(what, label_of(function), problem=_CALLED, expected="give a plain function")


def close_unawaited(answer: object) -> None:
    """Close an awaitable that will never be awaited, so that Python does not warn about it."""
    for name in ("close", "cancel"):
        if callable(end := getattr(answer, name, None)):
            end()
            return


def check_call(
    what: str, function: Callable[..., object], *, takes: tuple[str, ...], error: type[ConfigurationError]
) -> None:
    """Raise an error for a function that certainly cannot be called with these arguments. A signature that a decorator
    has copied from another function proves nothing.
    """
    if hasattr(function, "__signature__"):
        return
    try:
        signature = _signature(function)
    except (TypeError, ValueError):  # of a built-in function, for example
        return
    try:
        signature.bind(*takes)
    except TypeError as wrong:
        names = ", ".join(takes)
        problem = f"it is called with ({names}), and cannot be: {wrong}"
        expected = f"give a function of {' and '.join(takes)}, such as lambda {names}: …"
        raise error(what, label_of(function), problem=problem, expected=expected) from None


def check_hash(what: str, function: object, *, error: type[ConfigurationError]) -> None:
    """Raise an error for a callable object without a hash, where equal values are found again by their hash."""
    try:
        hash(function)
    except TypeError as wrong:
        expected = "give a function, or a callable object with a hash, such as one of a @dataclass(frozen=True)"
        raise error(what, label_of(function), problem=f"it has no hash: {wrong}", expected=expected) from None


def _signature(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of exactly this function. From Python 3.14 on the annotations are not evaluated."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, follow_wrapped=False, annotation_format=Format.FORWARDREF)
    return inspect.signature(function, follow_wrapped=False)


@final
class Waiting(NamedTuple):
    """An awaitable that a user's function returned, with the rule and the option that the function belongs to. Its
    result is kept under `at` with the other results of the request.
    """

    answer: Awaitable[object]
    rule: str | None
    option: str
    function: object
    at: Hashable

    def refused(self) -> AsyncMismatchError:
        """Close the awaitable, and return the error for an application that cannot await it."""
        close_unawaited(self.answer)
        return async_mismatch(self.option if self.rule is None else f"rule {self.rule!r}: {self.option}", self.function)

"""Users' functions that are asynchronous, and the error of a synchronous application that meets one.

Start-up finds functions that are certainly asynchronous. A plain function that returns a coroutine is found when it is
first called. Then the error has the same words, and the coroutine is closed.
"""

from __future__ import annotations

import ast
import collections.abc
import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from types import CoroutineType, FunctionType
from typing import Any, Final, NamedTuple, TypeGuard, get_origin

from sluicegate.errors import ColourError

_READY: Final = frozenset({str, tuple, int, bytes, bool, type(None)})  # the types of nearly every answer
_LATER: Final = ("Awaitable", "Coroutine", "CoroutineType")
_TYPES: Final = (collections.abc.Awaitable, collections.abc.Coroutine, CoroutineType)
_CALLED: Final = "an async function, but this application is called synchronously"


def waits(answer: object) -> TypeGuard[Awaitable[Any]]:
    """Whether the value that a user's function returned must be awaited."""
    return type(answer) not in _READY and inspect.isawaitable(answer)


def answers_later(function: object) -> bool:
    """Whether a function is surely asynchronous: by its kind, a mark, or the annotation of what it returns.

    A plain function that wraps an asynchronous one does not count: it may run that one to its end itself.
    """
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function) or _is_marked(function) or _says_so(function):
        return True
    if isinstance(function, (FunctionType, type)) or inspect.ismethod(function) or not callable(function):
        return False
    if type(function).__module__ == "functools":  # a cache answers what its function answers
        return answers_later(getattr(function, "__wrapped__", None))
    call = type(function).__call__
    return isinstance(call, FunctionType) and answers_later(call)


def _is_marked(function: object) -> bool:
    """Whether asgiref has marked it; from Python 3.12 on inspect knows that mark."""
    return type(getattr(function, "_is_coroutine", None)) is object


def _says_so(function: object) -> bool:
    """Whether its annotation says that it returns an awaitable, and nothing else."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return False
    found: Any = None
    with suppress(NameError, AttributeError, TypeError):  # an annotation that cannot be read says nothing
        found = function.__annotations__.get("return")
    if not isinstance(found, str):
        return (get_origin(found) or found) in _TYPES
    try:
        tree: Any = ast.parse(found, mode="eval").body
    except SyntaxError:
        return False
    name = tree.value if isinstance(tree, ast.Subscript) else tree
    return (name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")) in _LATER


def name_of(function: Any) -> str:
    """The module and qualified name of a function, through partials and objects; a text as it is."""
    if isinstance(function, str):
        return function
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def called_at_once(what: str, function: object) -> ColourError:
    """The error of an asynchronous function in a synchronous application."""
    return ColourError(what, name_of(function), problem=_CALLED, expected="give a plain function")


def give_up(answer: object) -> None:
    """Close an answer that will never be awaited."""
    for name in ("close", "cancel"):
        if callable(end := getattr(answer, name, None)):
            end()
            return


class Waiting(NamedTuple):
    """An answer that is still to be awaited, with the option that it is the answer of."""

    answer: Awaitable[Any]
    rule: str | None
    option: str
    function: object

    def refused(self) -> ColourError:
        """The error where it cannot be awaited."""
        give_up(self.answer)
        return called_at_once(self.option if self.rule is None else f"rule {self.rule!r}: {self.option}", self.function)


class Later:
    """A result that is computed from one or more answers, after they were awaited. It may be closed instead."""

    __slots__ = ("_answers", "_make", "function")

    def __init__(self, answers: Sequence[Any], make: Callable[..., Any], *, function: object) -> None:
        self._answers = answers
        self._make = make
        self.function = function  # whose answer has to be awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        found = [*self._answers]
        for at, answer in enumerate(found):
            if waits(answer):
                found[at] = yield from answer.__await__()
        return self._make(*found)

    def close(self) -> None:
        """Close the answers without awaiting them."""
        for answer in self._answers:
            if waits(answer):
                give_up(answer)

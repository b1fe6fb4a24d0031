"""The fields and the end of one request's response, although a view may return one object to many requests.

A view may return one Response again and again, in several threads, and new responses may share one Headers object. The
first request uses such an object itself. Each later request gets a copy, without what earlier requests have added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from flask import Request, Response
from werkzeug.datastructures import Headers

from sluicegate.web.http import NAMES, Field, merge
from sluicegate.wsgi import SettlingBody

_USE: Final = "_sluicegate_use"  # attribute of a request, of its response and of its headers: a _Use
_KEEPS_A_LIST: Final = vars(Headers([("A", "b")])) == {"_list": [("A", "b")]}

_AnyResponse = TypeVar("_AnyResponse", bound=Response)


class _Use:
    """What one request has done to the headers of its response."""

    __slots__ = ("added", "replaced")

    def __init__(self) -> None:
        self.added: list[Field] = []
        self.replaced: list[Field] = []  # what is now a part of an added field: the view's own, or another limiter's

    def undone(self, headers: Headers) -> Headers:
        """Return new headers without what this request has added, even while it adds it."""
        left: list[Field] = list(headers)
        for field in self.added:
            if field in left:
                left.remove(field)
        names = {name.lower() for name, _ in left}
        own = [field for field in self.replaced if field not in self.added and field[0].lower() not in names]
        return Headers([*left, *own])


def own_response(response: _AnyResponse, native: Request) -> _AnyResponse:
    """Return the response, or a copy if it was another request's, with headers that are only this request's."""
    facts = vars(native)
    use = facts.get(_USE)
    if use is None:
        use = facts[_USE] = _Use()
    if vars(response).setdefault(_USE, use) is not use:
        response = _copy(response)
        vars(response)[_USE] = use
    earlier = vars(response.headers).setdefault(_USE, use)
    if earlier is not use:
        response.headers = earlier.undone(response.headers)
        vars(response.headers)[_USE] = use
    return response


def lines_of(headers: Headers) -> Any:
    """Return the list of fields inside headers. Werkzeug's own methods make four calls for each field, to look for line
    feeds: the fields of this library have none.
    """
    return vars(headers)["_list"] if _KEEPS_A_LIST else headers


def add_fields(headers: Headers, fields: Sequence[Field]) -> None:
    """Add fields to the headers of a response that `own_response` has returned. It may have such fields already."""
    use: _Use = vars(headers)[_USE]
    own = lines_of(headers)
    for name, _ in own:
        if name.lower() in NAMES:
            break
    else:
        use.added += fields
        own.extend(fields)
        return
    merged = merge(own, fields)
    use.replaced += [field for field in own if field not in merged]
    use.added += [field for field in merged if field not in own]
    own[:] = merged


def end_with(response: Response, end: Callable[[], None]) -> None:
    """Let the `close` of a response also call `end`."""
    vars(response)["close"] = _Closing(response, end)


class _Closing:
    """The `close` of a response that calls `end` as well. Werkzeug calls no further function after one that raises."""

    def __init__(self, response: Response, end: Callable[[], None]) -> None:
        self._response = response
        self.earlier = vars(response).get("close")  # None: that of its class
        self._before = response.close
        self._end = end

    def __call__(self) -> None:
        _set_close(self._response, self.earlier)  # this object refers to the response
        try:
            self._before()
        finally:
            self._end()


def _set_close(response: Response, close: Any) -> None:
    if close is None:
        vars(response).pop("close", None)
    else:
        vars(response)["close"] = close


def _copy(response: _AnyResponse) -> _AnyResponse:
    """Return a copy of another request's response, which may still be sent. It has neither that request's end nor the
    body that settles it.

    Not by `copy`: it would ask the class, which may have a pickle format or a constructor of its own.
    """
    made = object.__new__(type(response))
    vars(made).update(vars(response))
    close = vars(made).get("close")
    while type(close) is _Closing:
        close = close.earlier
    _set_close(made, close)
    while type(made.response) is SettlingBody:
        made.response = made.response.chunks
    return made

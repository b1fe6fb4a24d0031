"""Responses in Flask: their fields and their end; for a refused request an error for Flask's handlers, the response of
`on_denied`, and a signal.

Each error is a subclass of werkzeug's own and has the decision. So `errorhandler(429)`, `errorhandler(HTTPException)`
and the handlers of a blueprint work as for any other error. The extension adds RateLimit fields to their response.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from blinker import Namespace
from flask import Flask, Request, Response
from werkzeug.datastructures import Headers
from werkzeug.exceptions import Forbidden, HTTPException, ServiceUnavailable, TooManyRequests
from werkzeug.http import HTTP_STATUS_CODES

from sluicegate.errors import RuleError
from sluicegate.plan import Decision, RateLimitExceeded
from sluicegate.runtime.awaiting import async_mismatch, close_unawaited, waits
from sluicegate.web.http import Denial, Fields, detail, merge
from sluicegate.wsgi import closing

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

log = logging.getLogger("sluicegate")

rate_limited: Final = Namespace().signal("rate-limited")
"""A request was refused. The sender is the application; `decision` is an argument. An error of a listener is logged."""


# Whether werkzeug keeps its fields in this list, so that they can be written there. Else its own methods are used: they
# make four calls for each field, to look for line feeds. The fields of this library have none.
_KEEPS_A_LIST: Final = vars(Headers([("A", "b")])) == {"_list": [("A", "b")]}
_CORS: Final = ("access-control-", "vary")  # the beginnings of the names of fields

AnyResponse = TypeVar("AnyResponse", bound=Response)
Answered = TypeVar("Answered")
OnDenied = Callable[[Request, Decision], object]


class _Headers(Headers):
    """Headers with the fields of a decision. If the response comes again, its next fields replace these."""


def add_fields(response: Response, fields: Fields) -> None:
    """Add the fields of a decision to a response. Fields that the application has set are joined with them.

    The headers are new: other responses may share the old ones, and another thread may be sending them.
    """
    if not fields:
        return
    own = [*response.headers]
    if type(response.headers) is _Headers:
        own = without(own, fields)
    if not {name.lower() for name, _ in fields}.isdisjoint(map(str.lower, dict(own))):  # rarely
        fields, own = merge(own, fields), []
    made = _Headers()
    (vars(made)["_list"] if _KEEPS_A_LIST else made).extend([*own, *fields])
    response.headers = made


def without(own: Fields, fields: Fields) -> Fields:
    """Return these fields without those that have a name of the others."""
    names = {name.lower() for name, _ in fields}
    return [field for field in own if field[0].lower() not in names]


def replace_response(refusal: Response, response: Response) -> Response:
    """Return the refusal instead of a response, which the client never sees. Closing the refusal closes that too.

    `after_request` functions have added the fields of CORS to that response only, and scripts need them.
    """
    own = [*refusal.headers]
    cors = [field for field in response.headers if field[0].lower().startswith(_CORS)]
    if type(refusal.headers) is not _Headers:  # the fields that a handler has set stay
        cors = without(cors, own)
    refusal = ending(refusal, response.close)
    refusal.headers = type(refusal.headers)([*without(own, cors), *cors])
    return refusal


def ending(response: AnyResponse, end: Callable[[], None]) -> AnyResponse:
    """Return the response for one request alone, whose `close` also calls `end`: a view may return one object to many.

    Not by the copy module: a class may have a pickle format or a constructor of its own.
    """
    own = object.__new__(type(response))
    vars(own).update(vars(response), close=closing(response.close, end))
    return own


class _Refusal(HTTPException):
    """The common parts of the errors."""

    retry_after: Any  # werkzeug's own classes allow a date; here it is a number or None
    _answer: Denial
    decision: Decision

    def __init__(self, *_: object) -> None:
        """Raise RuleError: only `of` makes such an error. An application raises RateLimitExceeded instead."""
        expected = "raise RateLimitExceeded(decision) for a refusal, or abort(…) for another error"
        raise RuleError("error", type(self).__name__, problem="made by sluicegate alone", expected=expected)

    @classmethod
    def of(cls, decision: Decision, answer: Denial) -> _Refusal:
        """Return the error for a decision. `answer` is the response if no handler returns another one."""
        error = cls.__new__(cls)
        # What its constructor sets: that calls the next parent, which takes other arguments.
        error.description, error.response = detail(decision, answer.wait), None
        error.decision, error.retry_after, error._answer = decision, answer.wait, answer
        return error

    def get_body(self, environ: object = None, scope: object = None) -> str:
        """Return problem JSON, or text for a client that prefers text."""
        return self._answer.body.decode()

    def get_headers(self, environ: object = None, scope: object = None) -> list[tuple[str, str]]:
        """Return Content-Type, Cache-Control and Retry-After. The extension adds the RateLimit fields."""
        own = [field for field in self._answer.fields if field[0] in _OWN_FIELDS]
        return [("Content-Type", self._answer.content_type), *own]


class RateLimited(_Refusal, TooManyRequests):
    """429: a rule refuses. `decision` has the rule; `retry_after` is in whole seconds, at least 1; None is never."""


class StoreUnavailable(_Refusal, ServiceUnavailable):
    """503: the store is unavailable and `on_store_failure` is "deny"."""


class Denied(_Refusal, Forbidden):
    """403: the client is on the list of denied clients."""


_OWN_FIELDS: Final = ("Cache-Control", "Retry-After")  # of an error; the extension adds the RateLimit fields
_ERRORS: Final[dict[int, type[_Refusal]]] = {429: RateLimited, 503: StoreUnavailable, 403: Denied}
STATUSES: Final = frozenset(_ERRORS)
# Raised inside a view. Handlers for HTTPException handle it, and without one the extension, as a RateLimitExceeded.
_LATE: Final[dict[int, type[_Refusal]]] = {
    status: type(kind.__name__, (kind, RateLimitExceeded), {}) for status, kind in _ERRORS.items()
}
# The methods by which Flask handles an error: an application that overrides one may handle ours.
_STEPS: Final = ("handle_user_exception", "handle_http_exception", "trap_http_exception")


class _Complete(Response):
    """A response whose headers need nothing more before they are sent.

    Werkzeug's own method copies them, checks each again and looks for missing ones: a seventh of the CPU of a refusal.
    """

    def get_wsgi_headers(self, environ: WSGIEnvironment) -> Headers:
        names = {name.lower() for name, _ in self.headers}
        is_complete = self.status_code >= 400 and "content-length" in names and names.isdisjoint(_RELATIVE)
        return self.headers if is_complete else super().get_wsgi_headers(environ)


_RELATIVE: Final = ("location", "content-location")  # Werkzeug completes these
_STATUS_LINES: Final = {status: f"{status} {HTTP_STATUS_CODES[status].upper()}" for status in _ERRORS}


def late_error(decision: Decision, answer: Denial) -> Exception:
    """Return the error of a refusal inside a view: an HTTPException, which code around the view lets pass."""
    return _LATE[answer.status].of(decision, answer)


def refusal_class(app: Flask) -> type[Response] | None:
    """Return the class of our own responses: the application's, with headers that are complete. An application that
    completes headers in its own way keeps that.

    None if the application's class is made, subclassed or constructed in a way of its own. Flask turns an error into
    a response of such a class without a call of its constructor.
    """
    given = app.response_class
    if given is Response:
        return _Complete
    has_hook = hasattr(given.__init_subclass__, "__func__")  # that of `object` is no method of Python
    if type(given) is not type or has_hook or (given.__new__, given.__init__) != (Response.__new__, Response.__init__):
        return None
    if given.get_wsgi_headers is not Response.get_wsgi_headers:
        return given
    return type(given.__name__, (_Complete, given), {})


def refuse(
    app: Flask,
    request: Request,
    decision: Decision,
    *,
    answer: Denial,
    on_denied: OnDenied | None,
    own: type[Response] | None,
) -> Response:
    """Return what `on_denied` returns. If that is None, or without `on_denied`, raise the error for Flask's handlers.

    `own` is the class of our response if Flask need not make it from the error: then return the same response without
    an error, at a third of the cost.
    """
    if rate_limited.receivers:
        _send_signal(app, decision)
    value = None
    if on_denied is not None:
        value = app.ensure_sync(on_denied)(request, decision)
        if waits(value):
            close_unawaited(value)
            raise async_mismatch("on_denied", on_denied)
    if value is None:
        if own is None:
            raise _ERRORS[answer.status].of(decision, answer)
        headers = _Headers()
        (vars(headers)["_list"] if _KEEPS_A_LIST else headers).extend(answer.body_fields)
        # A number in place of the line would be looked up.
        return own([answer.body], _STATUS_LINES[answer.status], headers)
    response = app.make_response(value)
    if not _has_status(value):
        response.status_code = answer.status
    return response


def statuses_with_handlers(app: Flask) -> frozenset[int]:
    """Return the statuses of our errors that the application may handle: by a handler, or a method it overrides."""
    if app.config["TRAP_HTTP_EXCEPTIONS"] or any([_is_own(app, step) for step in _STEPS]):
        return STATUSES
    handlers = app.error_handler_spec.values()
    return frozenset(
        [
            status
            for status, error in _ERRORS.items()
            if any([by.get(status) or any([issubclass(error, each) for each in by.get(None, ())]) for by in handlers])
        ]
    )


def with_error_handlers(app: Flask, answer: Callable[[], Answered]) -> Answered | Response:
    """Return what `answer` returns, or Flask's response to its error.

    Flask handles the error as if a `before_request` function had raised it.
    """
    try:
        return answer()
    except Exception as error:  # noqa: BLE001  # Flask raises it again if no handler handles it
        return app.make_response(app.handle_user_exception(error))


def _is_own(app: Flask, step: str) -> bool:
    """True if the application overrides this method of Flask."""
    return getattr(getattr(app, step), "__func__", None) is not getattr(Flask, step)


def _has_status(value: object) -> bool:
    """True if this response value has a status. Text, bytes, lists and dictionaries have none."""
    body, *rest = value if isinstance(value, tuple) else (value,)
    if rest and isinstance(rest[0], (int, str)):
        return True
    return not isinstance(body, (str, bytes, bytearray, dict, list, Iterator))


def _send_signal(app: Flask, decision: Decision) -> None:
    """Call the listeners of `rate_limited`. A listener that fails is logged: it must not change the response."""
    for listener in rate_limited.receivers_for(app):
        try:
            app.ensure_sync(listener)(app, decision=decision)
        except Exception:
            log.exception(
                "sluicegate: a listener of the signal rate_limited failed; the request is refused all the same"
            )

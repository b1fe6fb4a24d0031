"""What a refused request comes to: an error for Flask's handlers, the answer of `on_denied`, and a signal.

All errors are werkzeug's own, with the decision on them, so `errorhandler(429)`, `errorhandler(HTTPException)` and a
blueprint's handlers work as for any other. The RateLimit fields are not theirs: the extension adds them to whatever the
handlers answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from blinker import Namespace
from flask import Flask, Request, Response
from werkzeug.exceptions import Forbidden, HTTPException, ServiceUnavailable, TooManyRequests

from sluicegate.awaiting import called_at_once, give_up, waits
from sluicegate.errors import RuleError
from sluicegate.http import Denial, retry_after
from sluicegate.plan import Decision
from sluicegate.problem import detail

log = logging.getLogger("sluicegate")

rate_limited: Final = Namespace().signal("rate-limited")
"""A request was refused: sent by the application, with `decision`. What a listener raises is logged, no more."""


class _Refusal(HTTPException):
    """What the errors share."""

    retry_after: Any
    _answer: Denial
    decision: Decision

    def __init__(self, *_: object) -> None:
        """Only `of` makes one. An application that raises its own refusal has another error for that."""
        expected = "raise RateLimitExceeded(decision) for a refusal, or abort(…) for another error"
        raise RuleError("error", type(self).__name__, problem="made by sluicegate alone", expected=expected)

    @classmethod
    def of(cls, decision: Decision, answer: Denial) -> _Refusal:
        """The error for a decision, with our own answer for where no handler gives another."""
        wait = retry_after(decision)
        error = cls.__new__(cls)
        HTTPException.__init__(error, detail(decision, wait))
        error.decision, error.retry_after, error._answer = decision, wait, answer
        return error

    def get_body(self, environ: Any = None, scope: Any = None) -> str:
        """Problem JSON, or text for a client that would rather read that."""
        return self._answer.body.decode()

    def get_headers(self, environ: Any = None, scope: Any = None) -> list[tuple[str, str]]:
        """Content-Type, Cache-Control and Retry-After."""
        return [field for field in self._answer.fields if field[0] in _OWN_FIELDS]

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        """The answer where no handler gives another; the extension adds what every refusal carries."""
        if self.response is not None:
            return super().__call__(environ, start_response)
        start_response(f"{self.code} {self.name}", list(self._answer.fields[:2]))
        return [self._answer.body]


class RateLimited(_Refusal, TooManyRequests):
    """429: a rule refuses. `decision` says which; `retry_after` is in whole seconds, at least 1, or None for never."""


class StoreUnavailable(_Refusal, ServiceUnavailable):
    """503: the store does not answer and `on_store_failure` is "deny"."""


class Denied(_Refusal, Forbidden):
    """403: the client is on the list of those who are denied."""


Answered = TypeVar("Answered")

_OWN_FIELDS: Final = ("Content-Type", "Cache-Control", "Retry-After")
_ERRORS: Final[dict[int, type[_Refusal]]] = {429: RateLimited, 503: StoreUnavailable, 403: Denied}
OnDenied = Callable[[Request, Decision], Any]


_STEPS: Final = ("handle_user_exception", "handle_http_exception", "trap_http_exception")


def refuse(
    app: Flask, request: Request, decision: Decision, *, answer: Denial, on_denied: OnDenied | None, raises: bool
) -> Response:
    """The response of `on_denied`; without one, or if it returns None, the error for whoever handles it.

    Where nobody does, it need not be raised: there is a response as well, the same at a third of the cost.
    """
    if rate_limited.receivers:
        _tell(app, decision)
    value = None if on_denied is None else app.ensure_sync(on_denied)(request, decision)
    if waits(value):
        give_up(value)
        raise called_at_once("on_denied", on_denied)
    if value is None:
        if raises:
            raise _ERRORS[answer.status].of(decision, answer)
        return app.response_class(answer.body, answer.status, content_type=answer.fields[0][1])
    response = app.make_response(value)
    if not _says_status(value):
        response.status_code = answer.status
    return response


def handled(app: Flask) -> frozenset[int]:
    """Those of our errors that the application may have something to say of: by a handler, or by ways of its own."""
    if app.config["TRAP_HTTP_EXCEPTIONS"] or any([_is_own(app, step) for step in _STEPS]):
        return frozenset(_ERRORS)
    handlers = app.error_handler_spec.values()
    return frozenset(
        [
            status
            for status, error in _ERRORS.items()
            if any([by.get(status) or any([issubclass(error, each) for each in by.get(None, ())]) for by in handlers])
        ]
    )


def answered(app: Flask, answer: Callable[[], Answered]) -> Answered | Response:
    """What this returns, or what Flask makes of its error: as if a `before_request` function had raised it."""
    try:
        return answer()
    except Exception as error:  # noqa: BLE001  # what nobody handles is raised again
        return app.make_response(app.handle_user_exception(error))


def _is_own(app: Flask, step: str) -> bool:
    return getattr(getattr(app, step), "__func__", None) is not getattr(Flask, step)


def _says_status(value: Any) -> bool:
    """Whether this response value has a status of its own; text, bytes, lists and dictionaries have none."""
    body, *rest = value if isinstance(value, tuple) else (value,)
    if rest and isinstance(rest[0], (int, str)):
        return True
    return not isinstance(body, (str, bytes, bytearray, dict, list, Iterator))


def _tell(app: Flask, decision: Decision) -> None:
    """Tell the listeners. One that fails is logged: it must not change the answer."""
    for listener in rate_limited.receivers_for(app):
        try:
            app.ensure_sync(listener)(app, decision=decision)
        except Exception:
            log.exception("sluicegate: a listener of rate_limited failed")

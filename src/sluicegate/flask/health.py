"""A health endpoint for Flask."""

from __future__ import annotations

from collections.abc import Callable

from flask import Response

from sluicegate.flask.decorators import exempt
from sluicegate.flask.extension import RateLimiter
from sluicegate.web.health import FIELDS, OK, answer, check_code


def health(limiter: RateLimiter, /, *, unavailable: int = OK) -> Callable[[], Response]:
    """Return a view without limits that answers with the limiter's status as JSON.

    `unavailable` is the status code while the store is unavailable: 200 unless another one is given.

        app.add_url_rule("/health/limits", view_func=health(limiter))
    """
    check_code(unavailable)

    def sluicegate_health() -> Response:
        code, body = answer(limiter.status(), unavailable=unavailable)
        return Response(body, code, dict(FIELDS))

    return exempt(sluicegate_health)

"""The page of one's own usage, as a blueprint of Flask."""

from __future__ import annotations

from flask import Blueprint, Response, request

from sluicegate.flask.decorators import exempt
from sluicegate.flask.extension import RateLimiter, charge
from sluicegate.web.charge import AnyQuota
from sluicegate.web.usage import LIMIT, MAX_AGE, OPTIONS, body, fields


def usage(limiter: RateLimiter, /, *, limit: AnyQuota = LIMIT, max_age: int = MAX_AGE) -> Blueprint:
    """Return a blueprint with one page, `/usage`: the caller's budgets under all rules of the limiter as JSON. It
    charges none of them.

    It has a `limit` of its own. A browser may keep the answer for `max_age` seconds.

        app.register_blueprint(usage(limiter), url_prefix="/me")
    """
    headers = fields(limit, max_age)

    def sluicegate_usage() -> Response:
        charge(request, limit, **OPTIONS)
        return Response(body(limiter.usage()), headers=headers)

    blueprint = Blueprint("sluicegate_usage", __name__)
    blueprint.add_url_rule("/usage", "usage", exempt(sluicegate_usage))
    return blueprint

"""Flask: `gunicorn bench.apps.flask_app:app`."""

from collections.abc import Callable

import flask_limiter
from flask import Flask, Response, request

from bench.apps import LIMIT, LIMITER, STORE, empty_script, work
from sluicegate.flask import RateLimiter


def empty(app: Flask) -> None:
    """Two hooks that do nothing: the cost of any pair of hooks."""

    @app.before_request
    def before() -> None:
        return None

    @app.after_request
    def after(response: Response) -> Response:
        return response


def script(app: Flask) -> None:
    """A hook that asks the server to do nothing: the cost of any round trip."""
    ask = empty_script()

    @app.before_request
    def before() -> None:
        ask(request.headers["X-User"])


def sluicegate(app: Flask) -> None:
    RateLimiter(app, store=STORE, default_limits=[LIMIT], key="header:X-User")


def of_flask_limiter(app: Flask) -> None:
    flask_limiter.Limiter(
        lambda: request.headers["X-User"],
        app=app,
        default_limits=[LIMIT],
        storage_uri=STORE,
        headers_enabled=True,
    )


LIMITERS: dict[str, Callable[[Flask], object]] = {
    "none": lambda app: None,
    "empty": empty,
    "script": script,
    "sluicegate": sluicegate,
    "Flask-Limiter": of_flask_limiter,
}

app = Flask(__name__)
LIMITERS[LIMITER](app)


@app.get("/")
def home() -> str:
    return work()

"""Every way in which an application starts with sluicegate. `starts.py STORE NAME…` prints what came of each.

It is run in the environments of `environments.py`, where most packages are missing. So it imports only the standard
library by itself, and a start imports what it needs, sluicegate first: it reports a missing package then.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from importlib import import_module
from io import StringIO
from typing import Any


def limiter(store: str) -> None:
    from sluicegate import Limiter

    Limiter(store).close()


def async_limiter(store: str) -> None:
    from sluicegate import AsyncLimiter

    asyncio.run(AsyncLimiter(store).close())


def asgi(store: str) -> None:
    from sluicegate.asgi import RateLimitMiddleware

    live(RateLimitMiddleware(_application, store=store))


def wsgi(store: str) -> None:
    from sluicegate.wsgi import RateLimitMiddleware

    RateLimitMiddleware(lambda environ, start_response: [], store=store)


def starlette(store: str) -> None:
    ours = import_module("sluicegate.starlette")
    from starlette.applications import Starlette

    app = Starlette()
    app.add_middleware(ours.RateLimitMiddleware, store=store)
    live(app)


def starlette_route(store: str) -> None:
    ours = import_module("sluicegate.starlette")
    from starlette.middleware import Middleware
    from starlette.routing import Route

    Route("/", _application, middleware=[Middleware(ours.RateLimitMiddleware, store=store)])


def fastapi(store: str) -> None:
    ours = import_module("sluicegate.fastapi")
    from fastapi import Depends, FastAPI

    app = FastAPI(dependencies=[Depends(ours.RateLimit("5/minute"))])
    app.add_middleware(ours.RateLimitMiddleware, store=store)
    live(app)


def flask(store: str) -> None:
    ours = import_module("sluicegate.flask")
    from flask import Flask

    ours.RateLimiter(Flask("shop"), store=store)


def django_wsgi(store: str) -> None:
    _configure(store)
    from django.core.wsgi import get_wsgi_application

    get_wsgi_application()


def django_asgi(store: str) -> None:
    _configure(store)
    from django.core.asgi import get_asgi_application

    get_asgi_application()


def django_check(store: str) -> None:
    """`manage.py check`, whose errors are one of Django's own."""
    _configure(store)
    from django.core.management import call_command

    call_command("check", stdout=StringIO())


def demo(store: str) -> None:
    """`sluicegate demo`, without what its `main` makes of an error."""
    from sluicegate.cli.commands import sluicegate

    sluicegate(["demo", "--once", "--store", store], standalone_mode=False)


def door(module: str) -> Callable[[str], None]:
    """Import a module of sluicegate."""

    def start(store: str) -> None:
        import_module(f"sluicegate.{module}")

    return start


DOORS = (
    *("starlette", "fastapi", "flask", "django", "cli.demo"),
    *("stores.redis", "stores.redis_cell", "stores.embedded", "testing"),
)
OPENS = (  # these open the store
    *(limiter, async_limiter, asgi, wsgi, starlette, starlette_route, fastapi, flask),
    *(django_wsgi, django_asgi, django_check, demo),
)
STARTS: dict[str, Callable[[str], None]] = {
    **{each.__name__: each for each in OPENS},
    **{f"import {module}": door(module) for module in DOORS},
}


async def _application(scope: Any, receive: Any, send: Any) -> None:
    """An application that lives and serves nothing."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def live(app: Any) -> None:
    """Start an application as a server does, and stop it. Its error, which the server must have heard of as well."""
    told: list[Any] = []
    heard = iter(("lifespan.startup", "lifespan.shutdown"))

    async def receive() -> Any:
        return {"type": next(heard)}

    async def send(message: Any) -> None:
        told.append(message)

    try:
        asyncio.run(app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send))
    except ImportError as error:
        if not told or told[0] != {"type": "lifespan.startup.failed", "message": str(error)}:
            raise AssertionError(f"the server was told {told}") from error
        raise
    assert [each["type"] for each in told] == ["lifespan.startup.complete", "lifespan.shutdown.complete"], told


def _configure(store: str) -> None:
    """A Django project, whose settings can be made once in a process."""
    import_module("sluicegate.django")
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(
            INSTALLED_APPS=["sluicegate.django"],
            MIDDLEWARE=["sluicegate.django.RateLimitMiddleware"],
            ROOT_URLCONF=__name__,
            SLUICEGATE={"STORE": store, "DEFAULT_LIMITS": ["5/minute"], "KEY": "ip"},
        )
        django.setup()


urlpatterns: list[Any] = []  # of the Django project


def outcome(start: Callable[[str], None], store: str) -> dict[str, Any] | None:
    """None for a start that worked; else what was raised, as far as a test looks at it."""
    try:
        start(store)
    except Exception as error:  # noqa: BLE001
        cause = error.__cause__
        return {
            "type": type(error).__name__,
            "code": getattr(error, "code", ""),
            "extra": getattr(error, "extra", ""),
            "package": getattr(error, "given", ""),
            "text": str(error),
            "is_import_error": isinstance(error, ImportError),
            "cause": f"{type(cause).__name__}: {cause}",
        }
    return None


if __name__ == "__main__":
    store, *names = sys.argv[1:]
    found = {name: outcome(STARTS[name], store) for name in names}
    print("\n" + json.dumps(found))

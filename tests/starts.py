"""Every way to start an application with sluicegate. `starts.py STORE NAME…` prints the result of each start.

It runs in the environments of `environments.py`, where most packages are missing. So the module imports only the
standard library. Each start imports what it needs, sluicegate first, so that sluicegate reports a missing package.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
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
    """`manage.py check`. It reports errors as Django's SystemCheckError."""
    _configure(store)
    from django.core.management import call_command

    call_command("check", stdout=StringIO())


def demo(store: str) -> None:
    """`sluicegate demo`, with the error that it prints as one sentence."""
    from sluicegate.cli.commands import Failure, sluicegate

    try:
        sluicegate(["demo", "--once", "--store", store], standalone_mode=False)
    except Failure as error:
        raise error.__cause__ or error from None


def importing(module: str) -> Callable[[str], None]:
    """A start that only imports a module of sluicegate."""

    def start(store: str) -> None:
        import_module(f"sluicegate.{module}")

    return start


def throttles(module: str) -> Callable[[str], None]:
    """A start that imports throttle classes. Their frameworks read Django's settings when they are imported."""

    def start(store: str) -> None:
        with suppress(ImportError):
            import django
            from django.conf import settings

            if not settings.configured:
                settings.configure()
                django.setup()
        import_module(f"sluicegate.{module}")

    return start


MODULES = (
    *("starlette", "fastapi", "flask", "django", "cli.demo", "dashboard"),
    *("stores.redis", "stores.redis.cell", "stores.embedded", "testing"),
)
OPENS = (  # these open the store
    *(limiter, async_limiter, asgi, wsgi, starlette, starlette_route, fastapi, flask),
    *(django_wsgi, django_asgi, django_check, demo),
)
STARTS: dict[str, Callable[[str], None]] = {
    **{each.__name__: each for each in OPENS},
    **{f"import {module}": importing(module) for module in MODULES},
    **{f"import {module}": throttles(module) for module in ("drf", "ninja")},
}


async def _application(scope: Any, receive: Any, send: Any) -> None:
    """An application that handles the lifespan and no requests."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def live(app: Any) -> None:
    """Start an application as a server does, and stop it. Raise its error; the server must have received it too."""
    sent: list[Any] = []
    events = iter(("lifespan.startup", "lifespan.shutdown"))

    async def receive() -> Any:
        return {"type": next(events)}

    async def send(message: Any) -> None:
        sent.append(message)

    try:
        asyncio.run(app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send))
    except ImportError as error:
        if not sent or sent[0] != {"type": "lifespan.startup.failed", "message": str(error)}:
            raise AssertionError(f"the server received {sent}") from error
        raise
    assert [each["type"] for each in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"], sent


def _configure(store: str) -> None:
    """Configure a Django project. A process can do this only once."""
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
    """None for a start that worked; else the parts of its error that the tests check."""
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

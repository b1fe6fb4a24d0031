"""A Django project in one module: settings, routes and views for the adapter's tests, served by WSGI and by ASGI.

Only this module calls `settings.configure`. Each test sets SLUICEGATE and MIDDLEWARE by `serving(...)`.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings

OURS = "sluicegate.django.RateLimitMiddleware"
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
AUTH = "django.contrib.auth.middleware.AuthenticationMiddleware"
COMMON = "django.middleware.common.CommonMiddleware"

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        AUTHENTICATION_BACKENDS=["tests.adapters.django_app.Backend"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"],
        LOGGING_CONFIG=None,
        MIDDLEWARE=[OURS],
        ROOT_URLCONF="tests.adapters.django_app",
        SECRET_KEY="only for tests",
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
        USE_TZ=True,
    )
    django.setup()

from django.contrib.auth.backends import BaseBackend  # noqa: E402  # needs settings
from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.urls import path  # noqa: E402
from django.utils.asyncio import async_unsafe  # noqa: E402
from django.views.decorators.http import require_http_methods  # noqa: E402

from sluicegate.django import exempt, limit  # noqa: E402
from sluicegate.testing.charges import wrong  # noqa: E402
from sluicegate.testing.client import Answer, Headers  # noqa: E402

MOUNT = "/app"  # so that prefix bugs cannot hide
CALLS: list[str] = []


class User:
    """A user without a database, as a project's own backend may return."""

    is_authenticated = True

    def __init__(self, pk: str) -> None:
        self.pk = pk


class Backend(BaseBackend):
    """Finds users like a database does: not on an event loop."""

    @async_unsafe
    def get_user(self, user_id: Any) -> Any:
        return User(str(user_id))


def note(name: str) -> None:
    CALLS.append(name)


@require_http_methods(["GET", "HEAD", "POST"])
def opened(request: HttpRequest) -> HttpResponse:
    note("open")
    return HttpResponse("open", content_type="text/plain")


@limit("2/minute")
def limited(request: HttpRequest) -> HttpResponse:
    note("limited")
    return HttpResponse("limited")


def above(request: HttpRequest) -> HttpResponse:
    note("above")
    return HttpResponse("above")


@limit("1/minute", override_defaults=True)
def strict(request: HttpRequest) -> HttpResponse:
    note("strict")
    return HttpResponse("strict")


@limit("1/minute", methods=["POST"])
def posted(request: HttpRequest) -> HttpResponse:
    note("posted")
    return HttpResponse("posted")


@limit("2/minute", scope="shared")
def shared_a(request: HttpRequest) -> HttpResponse:
    note("a")
    return HttpResponse("a")


@limit("2/minute", scope="shared")
async def shared_b(request: HttpRequest) -> HttpResponse:
    note("b")
    return HttpResponse("b")


@exempt
def exempted(request: HttpRequest) -> HttpResponse:
    note("exempt")
    return HttpResponse("exempt")


@limit("2/minute")
def stream(request: HttpRequest) -> StreamingHttpResponse:
    note("stream")

    async def async_chunks() -> AsyncIterator[str]:
        yield "one"
        yield "two"

    def chunks() -> Iterator[str]:
        yield "one"
        yield "two"

    return StreamingHttpResponse(async_chunks() if hasattr(request, "scope") else chunks())


def slow(request: HttpRequest) -> StreamingHttpResponse:
    async def async_chunks() -> AsyncIterator[str]:
        for chunk in chunks():
            yield chunk

    def chunks() -> Iterator[str]:
        for chunk in ("one", "two", "three"):
            note(chunk)
            yield chunk

    return StreamingHttpResponse(async_chunks() if hasattr(request, "scope") else chunks())


@limit("2/minute", charge_when=wrong, scope="guess")
def guess(request: HttpRequest, word: str) -> HttpResponse:
    note(word)
    return HttpResponse(word, status=200 if word == "right" else 401)


def redirect(request: HttpRequest) -> HttpResponse:
    note("redirect")
    return HttpResponse(status=302, headers={"Location": f"{MOUNT}/open"})


def boom(request: HttpRequest) -> HttpResponse:
    note("boom")
    raise RuntimeError("boom")


@limit("2/minute", key="path:name", scope="items")
async def items(request: HttpRequest, name: str) -> HttpResponse:
    note(name)
    return HttpResponse(name)


urlpatterns = [
    path("open", opened, name="open"),
    path("limited", limited, name="limited"),
    path("above", limit("2/minute")(above), name="above"),
    path("strict", strict),
    path("posted", posted),
    path("shared/a", shared_a),
    path("shared/b", shared_b),
    path("exempt", exempted),
    path("stream", stream),
    path("slow", slow),
    path("guess/<str:word>", guess),
    path("redirect", redirect),
    path("boom", boom),
    path("items/<str:name>", items, name="item"),
    path("slash/", opened, name="slash"),
]


def by_wsgi(app: Any, request: dict[str, Any], body: bytes) -> Answer:
    """Call a WSGI application like a server, and read the whole response."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request["method"],
        "SCRIPT_NAME": MOUNT,
        "PATH_INFO": request["path"].encode().decode("latin-1"),
        "QUERY_STRING": "",
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.url_scheme": "http",
    }
    if request["peer"] is not None:
        environ["REMOTE_ADDR"] = request["peer"]
    for name, value in request["headers"]:  # a server joins repeated lines, in order
        key = "CONTENT_TYPE" if name.lower() == "content-type" else f"HTTP_{name.upper().replace('-', '_')}"
        raw = value.encode().decode("latin-1")
        environ[key] = f"{environ[key]},{raw}" if key in environ else raw
    started: list[Any] = []
    chunks = app(environ, lambda status, headers, exc_info=None: started.append((status, headers)))
    try:
        content = b"".join(chunks)
    finally:
        chunks.close()
    (status, headers), *_ = started
    return Answer(int(status.split()[0]), [(name.lower(), value) for name, value in headers], content)


def by_asgi(app: Any, request: dict[str, Any], body: bytes) -> Answer:
    """Call an ASGI application like a server, on its own event loop, and read the whole response."""
    return asyncio.run(call_asgi(app, request, body))


async def call_asgi(app: Any, request: dict[str, Any], body: bytes = b"") -> Answer:
    scope = {
        "type": "http",
        "method": request["method"],
        "root_path": MOUNT,
        "path": MOUNT + request["path"],
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in request["headers"]],
        "client": None if request["peer"] is None else (request["peer"], 40000),
        "server": ("testserver", 80),
        "scheme": "http",
    }
    sent: list[Any] = []
    done = asyncio.Event()
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if not incoming:
            await done.wait()  # the client stays connected until the end
            return {"type": "http.disconnect"}
        return incoming.pop()

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            done.set()

    await app(scope, receive, send)
    headers = [(name.decode().lower(), value.decode("latin-1")) for name, value in sent[0]["headers"]]
    return Answer(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


class Site:
    """The project, served by WSGI or by ASGI."""

    def __init__(self, *, asgi: bool) -> None:
        self.asgi = asgi
        self.app: Any = get_asgi_application() if asgi else get_wsgi_application()
        self.calls = CALLS
        self.calls.clear()

    def request(
        self, method: str, path: str, *, headers: Headers = (), peer: str | None = "198.51.100.9", body: bytes = b""
    ) -> Answer:
        asked = {"method": method, "path": path, "headers": headers, "peer": peer}
        return (by_asgi if self.asgi else by_wsgi)(self.app, asked, body)

    def statuses(self, *asked: str, **options: Any) -> list[int]:
        """The statuses of these requests, each a path or "METHOD path"."""
        pairs = [each.split(" ") if " " in each else ("GET", each) for each in asked]
        return [self.request(method, path, **options).status for method, path in pairs]


@contextmanager
def serving(
    *,
    asgi: bool,
    middleware: Sequence[str] = (OURS,),
    urls: Sequence[Any] | None = None,
    django_settings: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[Site]:
    """The project with these SLUICEGATE settings, on WSGI or ASGI, and with these routes if they are given."""
    changed: dict[str, Any] = {"MIDDLEWARE": list(middleware), "SLUICEGATE": options, **(django_settings or {})}
    if urls is not None:
        changed["ROOT_URLCONF"] = tuple(urls)  # a list of patterns instead of a module; Django needs it hashable
    with override_settings(**changed):
        yield Site(asgi=asgi)

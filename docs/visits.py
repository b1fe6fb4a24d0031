"""Sends requests to the applications that a page defines, as a client does.

An application is a value at the top of a file: Starlette, FastAPI, Flask, a middleware of ASGI or WSGI, or the
`urlpatterns` of a Django project. Each of its routes is requested more often than a small limit allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import flask
from django.test import Client, override_settings
from django.urls import get_resolver
from starlette.applications import Starlette
from starlette.testclient import TestClient
from werkzeug.local import LocalProxy
from werkzeug.test import Client as WerkzeugClient

import sluicegate.asgi
import sluicegate.wsgi
from sluicegate.web.marks import marks_of

REQUESTS: Final = 7  # to each route: more than the limits of 5 that most examples have
LIMITED: Final = 429


class Answer(NamedTuple):
    """What one request came to."""

    route: str
    status: int
    fields: frozenset[str]

    @property
    def shows_a_limit(self) -> bool:
        """Whether the client sees that there is a limit."""
        return self.status == LIMITED or self.unavailable or any("ratelimit" in name for name in self.fields)

    @property
    def unavailable(self) -> bool:
        """Whether it is a refusal by `on_store_failure`: a 503 with Retry-After."""
        return self.status == 503 and "retry-after" in self.fields

    @property
    def failed(self) -> bool:
        """Whether it is an error of the application."""
        return self.status >= 500 and not self.unavailable


class Visited(NamedTuple):
    """An application, what it answered, and the views that a request reaches."""

    name: str
    answers: tuple[Answer, ...]
    views: tuple[object, ...]


def visit(files: Mapping[str, Mapping[str, Any]]) -> Iterator[Visited]:
    """Visit every application in these files; a file is its names and their values."""
    for file, names in files.items():
        for name, value in list(names.items()):
            for kind, send in KINDS.items():
                if issubclass(type(value), kind) and not name.startswith("_"):
                    answers, views = send(value)
                    yield Visited(f"{file}:{name}", answers, views)
        if "urlpatterns" in names:
            with override_settings(**{**django_settings(files), "ROOT_URLCONF": names["__name__"]}):
                answers, views = _django()
                yield Visited(f"{file}:urlpatterns", answers, views)


def django_settings(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of a Django project in these files, without DATABASES: Django cannot change those while it runs."""
    found = {name: value for each in files.values() for name, value in each.items() if name.isupper()}
    return {name: value for name, value in found.items() if name != "DATABASES"} if "ROOT_URLCONF" in found else {}


def unreached(names: Mapping[str, Any], visited: Iterable[Visited]) -> list[str]:
    """The views with a limit of their own that no request has reached."""
    reached = {mark for each in visited for view in each.views for mark in marks_of(view)}
    views = {name: value for name, value in names.items() if type(value) is not LocalProxy and callable(value)}
    return [name for name, view in views.items() if not reached.issuperset(marks_of(view))]


Sent = tuple[tuple[Answer, ...], tuple[object, ...]]


def _request(send: Callable[[str, str], Any], routes: Iterable[tuple[str, str]]) -> tuple[Answer, ...]:
    answers = []
    for method, path in routes:
        concrete = re.sub(r"[<{].+?[>}]", "1", path)
        for _ in range(REQUESTS):
            response = send(method, concrete)
            fields = frozenset(name.lower() for name in response.headers.keys())  # noqa: SIM118  # Werkzeug's are pairs
            answers.append(Answer(f"{method} {path}", response.status_code, fields))
    return tuple(answers)


def _starlette(app: Starlette) -> Sent:
    found = list(_routes(app.routes))
    with TestClient(app, raise_server_exceptions=False) as client:
        return _request(client.request, [(method, path) for method, path, _ in found]), tuple(
            view for *_, view in found
        )


def _routes(routes: Iterable[Any], above: str = "") -> Iterator[tuple[str, str, object]]:
    for route in routes:
        if hasattr(route, "effective_route_contexts"):  # FastAPI keeps an included router in a route of its own
            yield from (
                (method, each.path, each.endpoint)
                for each in route.effective_route_contexts()
                for method in each.methods
            )
        elif getattr(route, "routes", None):
            yield from _routes(route.routes, above + getattr(route, "path", ""))
        elif hasattr(route, "endpoint"):
            for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
                yield method, above + route.path, route.endpoint
    if not above:
        yield "GET", "/nowhere", None


def _flask(app: flask.Flask) -> Sent:
    routes = [
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    ]
    views = app.view_functions.values()
    answers = _request(lambda method, path: app.test_client().open(path, method=method), [*routes, ("GET", "/nowhere")])
    return answers, tuple(getattr(view, "view_class", view) for view in views)


def _django() -> Sent:
    client = Client(raise_request_exception=False)
    patterns = [each for each in get_resolver().url_patterns if hasattr(each, "callback")]
    routes = [(method, f"/{each.pattern}") for each in patterns for method in ("GET", "POST")]
    views = [getattr(each.callback, "view_class", each.callback) for each in patterns]
    return _request(client.generic, [*routes, ("GET", "/nowhere")]), tuple(views)


def _asgi(app: sluicegate.asgi.RateLimitMiddleware) -> Sent:
    return _request(TestClient(app, raise_server_exceptions=False).request, [("GET", "/")]), ()


def _wsgi(app: sluicegate.wsgi.RateLimitMiddleware) -> Sent:
    return _request(lambda method, path: WerkzeugClient(app).open(path, method=method), [("GET", "/")]), ()


KINDS: Final[dict[type, Callable[[Any], Sent]]] = {
    Starlette: _starlette,
    flask.Flask: _flask,
    sluicegate.asgi.RateLimitMiddleware: _asgi,
    sluicegate.wsgi.RateLimitMiddleware: _wsgi,
}

"""The adapter exam for the plain WSGI middleware: rules for paths replace the decorators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from wsgiref.validate import validator

from sluicegate.testing.client import AdapterClient
from sluicegate.wsgi import RateLimitMiddleware
from tests.adapters.plain_exam import RULES, PlainExam, respond
from tests.adapters.wsgi_client import WsgiClient

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


def make_app(calls: list[str]) -> WSGIApplication:
    """The exam's application, which also checks the protocol."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        status, chunks, headers = respond(method, path, calls)
        start_response(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", "text/plain"), *headers])
        if path == "/slow":
            return noted(calls, chunks)
        return [] if method == "HEAD" else chunks

    return validator(app)


def noted(calls: list[str], chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        calls.append(chunk.decode())
        yield chunk


class TestWSGI(PlainExam):
    def client(self, **options: Any) -> AdapterClient:
        calls: list[str] = []
        rules = [*RULES, *options.pop("rules", ())]
        return WsgiClient(RateLimitMiddleware(make_app(calls), rules=rules, **options), calls)

"""The adapter exam for the plain WSGI middleware: rules for paths replace the decorators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from wsgiref.validate import validator

from sluicegate import ManualClock, Rule
from sluicegate.testing.adapter import AdapterExam
from sluicegate.testing.charges import wrong
from sluicegate.testing.client import AdapterClient
from sluicegate.wsgi import RateLimitMiddleware
from tests.adapters.wsgi_client import WsgiClient

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PAGES = {
    "/limited": "limited",
    "/above": "above",
    "/strict": "strict",
    "/posted": "posted",
    "/shared/a": "a",
    "/shared/b": "b",
    "/exempt": "exempt",
}


def _item(environ: dict[str, Any]) -> str:
    return str(environ["PATH_INFO"].rpartition("/")[2])


RULES = (
    Rule(name="limited", quota="2/minute", path="/limited"),
    Rule(name="above", quota="2/minute", path="/above"),
    Rule(name="posted", quota="1/minute", path="/posted", methods=["POST"]),
    Rule(name="shared", quota="2/minute", path="/shared/*"),
    Rule(name="stream", quota="2/minute", path="/stream"),
    Rule(name="guess", quota="2/minute", path="/guess/*", charge_when=wrong),
    Rule(name="items", quota="2/minute", path="/items/*", key=_item),
)


def make_app(calls: list[str]) -> WSGIApplication:
    """The exam's application, which also checks the protocol."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        status, chunks, headers = _respond(method, path, calls)
        start_response(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", "text/plain"), *headers])
        if path == "/slow":
            return noted(calls, ["one", "two", "three"])
        return [] if method == "HEAD" else chunks

    return validator(app)


def noted(calls: list[str], chunks: Iterable[str]) -> Iterator[bytes]:
    for chunk in chunks:
        calls.append(chunk)
        yield chunk.encode()


def _respond(method: str, path: str, calls: list[str]) -> tuple[int, list[bytes], list[tuple[str, str]]]:
    if path == "/open":
        if method not in ("GET", "HEAD", "POST", "OPTIONS"):
            return 405, [b"no"], []
        calls.append("open")
        return 200, [b"open"], []
    if path.startswith("/guess/"):
        word = path.removeprefix("/guess/")
        calls.append(word)
        return 200 if word == "right" else 401, [word.encode()], []
    if path == "/redirect":
        calls.append("redirect")
        return 302, [b""], [("Location", "/open")]
    if path == "/boom":
        calls.append("boom")
        raise RuntimeError("boom")
    if path == "/stream":
        return 200, [b"one", b"two"], []
    if path == "/slow":
        return 200, [], []
    if path.startswith("/items/"):
        return 200, [path.removeprefix("/items/").encode()], []
    return (200, [PAGES[path].encode()], []) if path in PAGES else (404, [b"nothing"], [])


class TestWSGI(AdapterExam):
    charges_preflights = True

    def client(self, **options: Any) -> AdapterClient:
        calls: list[str] = []
        rules = [*RULES, *options.pop("rules", ())]
        return WsgiClient(RateLimitMiddleware(make_app(calls), rules=rules, **options), calls)

    def test_override_scope_methods_exempt_and_path_keys(self) -> None:
        """Without decorators nothing is exempt and no default is overridden. Rules do the rest."""
        client = self.client(clock=ManualClock())
        assert [client.request("GET", f"/shared/{name}").status for name in "aba"] == [200, 200, 429]
        statuses = [client.request(method, "/posted").status for method in ("GET", "POST", "GET", "POST")]
        assert statuses == [200, 200, 200, 429]
        assert [client.request("GET", f"/items/{name}").status for name in ("x", "x", "y", "x")] == [200, 200, 200, 429]

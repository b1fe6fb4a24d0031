"""A small ASGI server that checks the protocol and mounts an application under /app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import anyio

from sluicegate.testing.client import Answer, Headers

MOUNT = "/app"  # to find bugs with prefixes
App = Callable[..., Awaitable[None]]
DENIAL: dict[str, Any] = {"websocket.http.response": {}}


def make_scope(
    method: str = "GET",
    path: str = "/open",
    *,
    headers: Headers = (),
    peer: str | None = "198.51.100.9",
    **more: Any,
) -> dict[str, Any]:
    """The scope that a server makes: each header line separate, names in lower case, no client without a peer."""
    target, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "root_path": MOUNT,
        "path": unquote(MOUNT + target),
        "raw_path": (MOUNT + target).encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"testserver"), *((name.lower().encode(), _bytes(value)) for name, value in headers)],
        "client": None if peer is None else (peer, 50000),
        "server": ("testserver", 80),
        "state": {},
        **more,
    }
    if scope["type"] == "websocket":
        del scope["method"]
    return {key: value for key, value in scope.items() if value is not ...}


def _bytes(value: str) -> bytes:
    """The bytes of a header value: ASCII text becomes latin-1 bytes, other text UTF-8."""
    return value.encode("latin-1") if value.isascii() else value.encode()


class Handshake(NamedTuple):
    """The result of a WebSocket handshake: accepted, denied by a response, or closed."""

    accepted: bool
    answer: Answer | None = None
    code: int | None = None
    sent: Sequence[str] = ()


class Server:
    """The server's side of one connection. It checks what the application sends and counts what it receives."""

    def __init__(self, scope: dict[str, Any], body: bytes = b"") -> None:
        self.scope = scope
        self.received = 0
        self.messages: list[Any] = []
        if scope["type"] == "websocket":
            self._coming = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]
        else:
            self._coming = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]

    async def receive(self) -> Any:
        self.received += 1
        return self._coming.pop(0)

    async def send(self, message: Any) -> None:
        kinds = [each["type"] for each in self.messages]
        kind = message["type"]
        if kind.endswith("response.start"):
            assert not [each for each in kinds if each.endswith("start")], f"{kind} after {kinds}"
            assert kind == "http.response.start" or self.scope["extensions"] == DENIAL, (
                "no denial without the extension"
            )
            assert all(type(part) is bytes for pair in message["headers"] for part in pair)
            assert all(name == name.lower() for name, _ in message["headers"])
        elif kind.endswith("response.body"):
            assert self.messages, f"{kind} comes first"
            assert self.messages[-1].get("more_body", True), f"{kind} after the last"
        self.messages.append(message)

    async def run(self, app: App, *, raising: bool = False) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:
            if raising:
                raise

    @property
    def answer(self) -> Answer:
        start = next((each for each in self.messages if each["type"].endswith("response.start")), None)
        if start is None:
            return Answer(500, [], b"")
        body = b"".join(each.get("body", b"") for each in self.messages if each["type"].endswith("response.body"))
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        return Answer(start["status"], headers, b"" if self.scope.get("method") == "HEAD" else body)

    @property
    def handshake(self) -> Handshake:
        first = self.messages[0]
        if first["type"] == "websocket.accept":
            sent = [each["text"] for each in self.messages if each["type"] == "websocket.send"]
            code = next((each["code"] for each in self.messages if each["type"] == "websocket.close"), None)
            return Handshake(accepted=True, code=code, sent=sent)
        if first["type"] == "websocket.close":
            return Handshake(accepted=False, code=first["code"])
        return Handshake(accepted=False, answer=self.answer)


class AsgiClient:
    """The exam's client for any ASGI application. Each request runs in its own event loop, in debug mode."""

    def __init__(self, app: App, calls: list[str] | None = None, *, backend: str = "asyncio") -> None:
        self.app = app
        self.calls: list[str] = [] if calls is None else calls
        self._backend = backend

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Headers = (),
        peer: str | None = "198.51.100.9",
        body: bytes = b"",
        **more: Any,
    ) -> Answer:
        return self.serve(make_scope(method, path, headers=headers, peer=peer, **more), body).answer

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def statuses(self, *paths: str, method: str = "GET", **options: Any) -> list[int]:
        """The statuses of several requests, one after the other."""
        return [self.request(method, path, **options).status for path in paths]

    def connect(self, path: str, *, denial: bool = True, **options: Any) -> Handshake:
        """A WebSocket handshake, by a server with or without the denial extension."""
        extensions = DENIAL if denial else {}
        scope = make_scope("GET", path, **options, type="websocket", extensions=extensions)
        return self.serve(scope).handshake

    def serve(self, scope: dict[str, Any], body: bytes = b"", *, raising: bool = False) -> Server:
        """One complete connection."""
        server = Server(scope, body)

        async def main() -> None:
            await server.run(self.app, raising=raising)

        anyio.run(main, backend=self._backend)
        return server

    def live(self, *events: str) -> list[Any]:
        """The application's answers to the lifespan messages: startup, and shutdown if given."""
        coming = [{"type": f"lifespan.{event}"} for event in events]
        sent: list[Any] = []

        async def receive() -> Any:
            return coming.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        async def main() -> None:
            scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
            await self.app(scope, receive, send)

        anyio.run(main, backend=self._backend)
        return sent


def at_once(app: App, path: str, *, number: int = 50) -> list[int]:
    """The statuses of this number of requests at a time, in one event loop."""
    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    async def one() -> None:
        await app(make_scope(path=path), anyio.sleep_forever, send)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(number):
                tasks.start_soon(one)

    anyio.run(main)
    return statuses

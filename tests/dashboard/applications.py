"""A dashboard behind either door, and a browser without a window: what it sends."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from sluicegate.dashboard import Dashboard

HOST = "limits.example"
SAME = {"Origin": f"https://{HOST}", "Sec-Fetch-Site": "same-origin"}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]  # by names in small letters
    body: str


class Visitor:
    """A browser in front of a dashboard that is mounted at /limits."""

    def __init__(self, dashboard: Dashboard, protocol: str, *, peer: str = "203.0.113.7", host: str = HOST) -> None:
        self.dashboard, self.protocol, self.peer = dashboard, protocol, peer
        self.headers = {"Host": host}
        self.user: str | None = "staff"
        self.lost = 0
        self.mount = "/limits"
        self.environ: dict[str, str] = {}  # what is otherwise in the next environs

    def get(self, path: str = "/", method: str = "GET", **more: Any) -> Reply:
        return self._ask(method, path, **more)

    def post(self, path: str, form: Mapping[str, str], **more: Any) -> Reply:
        body = urlencode(form).encode()
        return self._ask("POST", path, body=body, **more)

    def send(self, path: str, form: Mapping[str, str], **more: Any) -> Reply:
        """Send a form as the page would: with what a browser adds."""
        return self.post(path, form, headers=SAME, **more)

    def _ask(
        self, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None, lost: int = 0
    ) -> Reply:
        """`lost` is how many bytes of the body do not come: the client leaves."""
        self.lost = lost
        path, _, query = path.partition("?")
        given = {**self.headers, **(headers or {})}
        return (self._by_asgi if self.protocol == "asgi" else self._by_wsgi)(method, path, query, body, given)

    def _by_asgi(self, method: str, path: str, query: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        scope = {
            "type": "http",
            "method": method,
            "root_path": self.mount,
            "path": f"{self.mount}{path}",
            "query_string": query.encode(),
            "scheme": "https",
            "client": (self.peer, 1),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
            "visitor": self.user,
        }
        sent: list[Any] = []
        came = {"type": "http.request", "body": body[: len(body) - self.lost], "more_body": self.lost > 0}
        messages = [came, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        async def ask() -> None:
            await self.dashboard.asgi(scope, receive, send)

        asyncio.run(ask())
        found = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], found, b"".join([each["body"] for each in sent[1:]]).decode())

    def _by_wsgi(self, method: str, path: str, query: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": self.mount.encode().decode("latin-1"),
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.url_scheme": "https",
            "wsgi.input": io.BytesIO(body[: len(body) - self.lost]),
            "REMOTE_ADDR": self.peer,
            "visitor": self.user,
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()},
            **self.environ,
        }
        started: list[Any] = []
        parts = self.dashboard.wsgi(environ, lambda *given: started.append(given))  # type: ignore[arg-type]
        (status, fields), *_ = started
        return Reply(int(status[:3]), {name.lower(): value for name, value in fields}, b"".join(parts).decode())

"""A small WSGI server that checks the protocol and mounts an application under /app."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from wsgiref.validate import validator

import http_sf
import pytest

from sluicegate import Outcome
from sluicegate.plan import Plan
from sluicegate.testing import OpenStore
from sluicegate.testing.client import Answer, Headers

MOUNT = "/app"  # to find bugs with prefixes
Environ = dict[str, Any]


def make_environ(
    method: str = "GET",
    path: str = "/open",
    *,
    headers: Headers = (),
    peer: str | None = "198.51.100.9",
    body: bytes = b"",
) -> Environ:
    """The environ that a server makes: lines of a header joined by commas, no REMOTE_ADDR without a peer."""
    target, _, query = path.partition("?")
    environ: Environ = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": MOUNT,
        "PATH_INFO": unquote(target, "latin-1"),
        "QUERY_STRING": query,
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    if peer is not None:
        environ["REMOTE_ADDR"] = peer
    for name, value in [("Host", "testserver"), *headers]:
        key = "HTTP_" + name.upper().replace("-", "_")
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    return environ


def call(app: Callable[..., Iterable[bytes]], environ: Environ) -> Answer:
    """One request, checked by the validator of the standard library. An exception of the application is a 500."""
    started: list[tuple[str, list[tuple[str, str]]]] = []
    written: list[bytes] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        started.append((status, headers))
        return written.append

    try:
        chunks = validator(app)(environ, start_response)
        try:
            written.extend(chunks)
        finally:
            chunks.close()  # type: ignore[attr-defined]
    except RuntimeError:
        return Answer(500, [], b"")
    status, headers = started[-1]
    body = b"" if environ["REQUEST_METHOD"] == "HEAD" else b"".join(written)
    return Answer(int(status[:3]), [(name.lower(), value) for name, value in headers], body)


class WsgiClient:
    """The exam's client for any WSGI application."""

    def __init__(self, app: Callable[..., Iterable[bytes]], calls: list[str] | None = None) -> None:
        self.app = app
        self.calls: list[str] = [] if calls is None else calls

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Headers = (),
        peer: str | None = "198.51.100.9",
        body: bytes = b"",
    ) -> Answer:
        return call(self.app, make_environ(method, path, headers=headers, peer=peer, body=body))

    def statuses(self, *paths: str, method: str = "GET") -> list[int]:
        """The statuses of several requests, one after the other."""
        return [self.request(method, path).status for path in paths]


class Recorder(OpenStore):
    """A store that allows everything and keeps each plan."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.closed = 0

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        self.plans.append(plan)
        return super().run(plan)

    def close(self) -> None:
        self.closed += 1

    @property
    def identity(self) -> str:
        """The identity of the last request, by its first rule."""
        return self.plans[-1].checks[0].identity


def addresses() -> list[Any]:
    """The table of addresses: a peer, header lines, and the resulting address."""
    table = json.loads((Path(__file__).parent.parent / "vectors" / "addresses.json").read_text("utf-8"))
    return [pytest.param(row, id=row["name"]) for row in table]


def address_environ(row: dict[str, Any]) -> Environ:
    """The environ for one row, as a server makes it: bytes decoded as latin-1."""
    lines = [(row["trusted_header"], line.encode().decode("latin-1")) for line in row["lines"]]
    return make_environ(headers=lines, peer=row["peer"])


def check_fields(answer: Answer) -> None:
    """The fields of draft 11 as the Structured Fields oracle reads them (C2 to C4)."""
    policies = dict(sf_list(answer, "ratelimit-policy"))
    values_by_name = dict(sf_list(answer, "ratelimit"))
    assert values_by_name.keys() <= policies.keys()
    for name, values in values_by_name.items():
        assert 0 <= values["r"] <= policies[name]["q"]
        assert policies[name]["w"] >= 1
        if answer.status == 429:
            assert int(answer.one("retry-after") or 0) >= values.get("t", 0)


def sf_list(answer: Answer, field: str) -> Any:
    """A list of named items, with their parameters."""
    items: Any = http_sf.parse(", ".join(answer.all(field)).encode(), tltype="list")
    assert len({name for name, _ in items}) == len(items), f"{field} names something twice: {items}"
    for name, parameters in items:
        assert type(name) is str
        assert all(type(value) is int for value in parameters.values())
    return items

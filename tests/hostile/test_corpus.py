"""The corpus against every adapter on its real server: no request has its own budget, and none raises an exception.

One client sends all requests: the peer itself without a trusted proxy, and the last address in X-Forwarded-For if the
peer is the trusted proxy. So every request uses the client's one budget, and when the budget is empty no request
passes.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults.apps import VARIABLE
from tests.hostile.apps import GUARD
from tests.hostile.corpus import CORPUS, HOME, TRAILER, UPGRADE, Hostile
from tests.running import HOST, running
from tests.servers import free_port

UVICORN = "-m uvicorn --host {host} --port {port} --no-proxy-headers --log-level warning --http {http} --factory {app}"
GUNICORN = "-m gunicorn --bind {host}:{port} --forwarded-allow-ips 192.0.2.1 --worker-class gthread --threads 4 {app}()"
CLIENT, OTHER = b"203.0.113.7", b"203.0.113.8"
BUDGET = 2 * len(CORPUS)
RULES = [
    {"name": "login", "quota": GUARD, "path": "/login", "key": "ip"},
    {"name": "session", "quota": GUARD, "path": "/session", "methods": ["POST"], "key": "ip"},
    {"name": "board", "quota": GUARD, "path": "/api/*", "key": "ip"},
    {"name": "keyed", "quota": "1000000/day", "key": "header:X-API-Key"},
]
SERVERS_OWN = frozenset({400, 411, 413, 414, 417, 421, 431, 501, 505})
"""The statuses that a server may send by itself, before it calls an application."""


class Site(NamedTuple):
    """One adapter on one server, in one of the two configurations."""

    adapter: str
    server: str
    proxied: bool

    @property
    def command(self) -> str:
        return GUNICORN if self.server == "gunicorn" else UVICORN.replace("{http}", self.server)

    @property
    def client(self) -> bytes | None:
        return CLIENT if self.proxied else None

    @property
    def corpus(self) -> list[Hostile]:
        """The corpus without the requests that never reach the adapter as they were sent."""
        if self.adapter == "django_asgi":  # Django raises at any WebSocket, and calls no middleware
            return [row for row in CORPUS if row is not UPGRADE]
        if self.server == "httptools" and self.proxied:  # uvicorn appends trailers to the headers: docs/security.md
            return [row for row in CORPUS if row is not TRAILER]
        return list(CORPUS)


SITES = {
    f"{adapter}-{server}-{'proxied' if proxied else 'direct'}": Site(adapter, server, proxied)
    for adapter, server, proxied in [
        ("asgi", "h11", False),
        ("asgi", "httptools", True),
        ("starlette", "h11", False),
        ("starlette", "httptools", True),
        ("fastapi", "httptools", False),
        ("fastapi", "h11", True),
        ("django_asgi", "httptools", False),
        ("django_asgi", "h11", True),
        *((adapter, "gunicorn", proxied) for adapter in ("wsgi", "flask", "django_wsgi") for proxied in (False, True)),
    ]
}

SAMPLE = {  # what a run without --matrix does: each adapter once
    "asgi-h11-direct", "starlette-httptools-proxied", "fastapi-httptools-direct", "django_asgi-h11-proxied",
    "wsgi-gunicorn-direct", "flask-gunicorn-proxied", "django_wsgi-gunicorn-direct",
}  # fmt: skip


class Reply(NamedTuple):
    """The responses of one connection: the status of each, the view that ran, and what is left of the budget."""

    statuses: tuple[int, ...]
    views: tuple[str, ...]
    left: tuple[int, ...]


def send(port: int, data: bytes, *, source: str = HOST) -> Reply:
    """Send all of it, and read until the server closes or stays silent."""
    answer = bytearray()
    with socket.create_connection((HOST, port), timeout=5, source_address=(source, 0)) as connection:
        try:
            connection.sendall(data)
            while chunk := connection.recv(65536):
                answer += chunk
        except (ConnectionError, TimeoutError):
            pass
    text = answer.decode("latin-1")
    return Reply(
        statuses=tuple(map(int, re.findall(r"^HTTP/1\.[01] ([2-5][0-9]{2}) ", text, re.MULTILINE))),
        views=tuple(re.findall(r"^x-view: ?([a-z]*)\r$", text, re.MULTILINE | re.IGNORECASE)),
        left=tuple(map(int, re.findall(r'^ratelimit: .*"default";r=([0-9]+)', text, re.MULTILINE | re.IGNORECASE))),
    )


PLAIN = Hostile("plain")
BARE = ("asgi", "wsgi")  # adapters without views, so without `@limit`


def draw_on_the_budget(port: int, site: Site) -> Iterator[str]:
    """The faults while there is a budget: requests that were charged elsewhere, or not at all."""
    (left,) = send(port, PLAIN.to_bytes(site.client)).left
    for row in site.corpus:
        reply = send(port, row.to_bytes(site.client))
        line = f"{row.name}: {reply}"
        if row.wants and row.wants in reply.views:
            yield f"{line} bypassed the rule of {row.wants}"
        if any(status >= 500 for status in reply.statuses if status not in SERVERS_OWN):
            yield f"{line} raised an exception"
        for fewer in reply.left:
            if fewer >= left:
                yield f"{line} has its own budget: {left} were left"
            left = fewer
        if not reply.left and 429 not in reply.statuses:  # the response has no fields: request what is left
            (fewer,) = send(port, PLAIN.to_bytes(site.client)).left
            charged, left = left - 1 - fewer, fewer
            if charged and row.free:
                yield f"{line} was charged"
            if not charged and not row.free and not SERVERS_OWN.issuperset(reply.statuses):
                yield f"{line} was not charged"


def ask_when_it_is_empty(port: int, site: Site) -> Iterator[str]:
    """The faults when the budget is used up: requests that pass."""
    for row in site.corpus:
        reply = send(port, row.to_bytes(site.client))
        if not row.free and not {429, *SERVERS_OWN}.issuperset(reply.statuses):
            yield f"{row.name}: {reply} passed"


def use_up(port: int, site: Site) -> None:
    """Send requests until the budget is empty, on one connection after the other."""
    once = PLAIN.to_bytes(site.client).replace(b"Connection: close\r\n", b"")
    last = PLAIN.to_bytes(site.client)
    for _ in range(BUDGET):
        reply = send(port, once * 19 + last)
        if 429 in reply.statuses:
            return
    raise AssertionError(f"the budget is never empty: {reply}")


def exceptions_in(log: str) -> Iterator[str]:
    """The tracebacks outside the server's code, which raises when a client disconnects that it has given up."""
    for traceback in re.findall(r"^Traceback .*\n(?:[ \t].*\n|\n)*.*", log, re.MULTILINE):
        files = re.findall(r'File "([^"]+)"', traceback)
        if not re.search(r"/site-packages/(uvicorn|h11|httptools|gunicorn|websockets)/", files[-1]):
            yield traceback
    # SG102 warns of forwarded headers without a named proxy, and SG110 of credentials: the corpus sends them. SG117
    # warns of one address for all requests: they come from this machine.
    yield from re.findall("^.*SG(?!102|110|117)[0-9]{3}.*$", log, re.MULTILINE)


@contextmanager
def standing(site: Site, log: Path) -> Iterator[int]:
    """Start the site, and yield its port. The server writes to the log."""
    port = free_port()
    options = {
        "default_limits": [f"{BUDGET}/day"],
        "rules": RULES,
        "trusted_proxies": [HOST] if site.proxied else None,
    }
    command = site.command.format(host=HOST, port=port, app=f"tests.hostile.apps:{site.adapter}").split()
    with running(command, port, env={VARIABLE: json.dumps(options)}, log_to=log):
        yield port


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in SAMPLE else pytest.mark.matrix) for each in SITES]
)
def test_no_request_has_its_own_budget_and_none_raises(name: str, tmp_path: Path) -> None:
    site, log = SITES[name], tmp_path / "log"
    with standing(site, log) as port:
        for view, path in HOME.items():
            opened = send(port, Hostile(view, b"POST " + path + b" HTTP/1.1").to_bytes(site.client))
            assert opened.views == ("" if view == "decorated" and site.adapter in BARE else view,), opened
        faults = list(draw_on_the_budget(port, site))
        use_up(port, site)
        faults += ask_when_it_is_empty(port, site)
        other = PLAIN.to_bytes(OTHER) if site.proxied else PLAIN.to_bytes(None)
        assert send(port, other, source=HOST if site.proxied else "127.0.0.2").left == (BUDGET - 1,)
    faults += exceptions_in(log.read_text("utf-8", "replace"))
    assert not faults, "\n".join(faults)

"""The corpus against every adapter on its real server: no request has a budget of its own, and none is an exception.

Who sends it all is one client: the peer itself where nobody is trusted, and the last address in X-Forwarded-For where
the peer is the one trusted proxy. So what is left of the client's one budget goes down with every request, and once it
is empty nothing passes.
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
"""What a server may answer by itself, before any application is called."""


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
        """All of it, but for what never reaches the adapter as it was sent."""
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


class Reply(NamedTuple):
    """What one connection brought: of each answer the status, the view that ran, and what is left of the budget."""

    statuses: tuple[int, ...]
    views: tuple[str, ...]
    left: tuple[int, ...]


def send(port: int, data: bytes, *, source: str = HOST) -> Reply:
    """Send it all, and read until the server has closed, or has nothing more to say."""
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
BARE = ("asgi", "wsgi")  # adapters that know no views, so no `@limit`


def draw_on_the_budget(port: int, site: Site) -> Iterator[str]:
    """What is wrong while there is a budget: a request that something else paid for, or nobody."""
    (left,) = send(port, PLAIN.to_bytes(site.client)).left
    for row in site.corpus:
        reply = send(port, row.to_bytes(site.client))
        told = f"{row.name}: {reply}"
        if row.wants and row.wants in reply.views:
            yield f"{told} walked around the rule of {row.wants}"
        if any(status >= 500 for status in reply.statuses if status not in SERVERS_OWN):
            yield f"{told} was an exception"
        for fewer in reply.left:
            if fewer >= left:
                yield f"{told} has a budget of its own, for {left} were left"
            left = fewer
        if not reply.left and 429 not in reply.statuses:  # it says nothing: ask what it took
            (fewer,) = send(port, PLAIN.to_bytes(site.client)).left
            charged, left = left - 1 - fewer, fewer
            if charged and row.free:
                yield f"{told} was charged"
            if not charged and not row.free and not SERVERS_OWN.issuperset(reply.statuses):
                yield f"{told} cost nothing"


def ask_when_it_is_empty(port: int, site: Site) -> Iterator[str]:
    """What is wrong when the budget is used up: a request that passes."""
    for row in site.corpus:
        reply = send(port, row.to_bytes(site.client))
        if not row.free and not {429, *SERVERS_OWN}.issuperset(reply.statuses):
            yield f"{row.name}: {reply} passed"


def use_up(port: int, site: Site) -> None:
    """Ask until the budget is empty, on one connection after the other."""
    once = PLAIN.to_bytes(site.client).replace(b"Connection: close\r\n", b"")
    last = PLAIN.to_bytes(site.client)
    for _ in range(BUDGET):
        reply = send(port, once * 19 + last)
        if 429 in reply.statuses:
            return
    raise AssertionError(f"the budget has no end: {reply}")


def exceptions_in(log: str) -> Iterator[str]:
    """The tracebacks that do not end in the server's own code, which raises when a client that it gave up has gone."""
    for traceback in re.findall(r"^Traceback .*\n(?:[ \t].*\n|\n)*.*", log, re.MULTILINE):
        files = re.findall(r'File "([^"]+)"', traceback)
        if not re.search(r"/site-packages/(uvicorn|h11|httptools|gunicorn|websockets)/", files[-1]):
            yield traceback
    # SG102 says that forwarded headers come in though no proxy is named: they do.
    yield from re.findall("^.*SG(?!102)[0-9]{3}.*$", log, re.MULTILINE)


@contextmanager
def standing(site: Site, log: Path) -> Iterator[int]:
    """The site's port, and what its server says in the log."""
    port = free_port()
    options = {
        "default_limits": [f"{BUDGET}/day"],
        "rules": RULES,
        "trusted_proxies": [HOST] if site.proxied else None,
    }
    command = site.command.format(host=HOST, port=port, app=f"tests.hostile.apps:{site.adapter}").split()
    with running(command, port, env={VARIABLE: json.dumps(options)}, log_to=log):
        yield port


@pytest.mark.parametrize("name", SITES)
def test_no_request_has_a_budget_of_its_own_and_none_costs_an_exception(name: str, tmp_path: Path) -> None:
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

"""The links from a limiter to a server: plain, with a user and a database, and in TLS with both.

Each leads through a wire and a proxy.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
import trustme

from sluicegate.identity import digest, identity_text
from tests.proxies import Proxy, Wire
from tests.servers import HOST, Server

USER, PASSWORD, DATABASE = "alice", "a long secret", 3
LINKS = ("plain", "auth", "tls")


@dataclass(frozen=True)
class Link:
    """The way to one server: the client's end is the wire, then comes the proxy, then the server.

    `url` leads through both. `direct_url` leads to the same database without them.
    """

    server: Server
    proxy: Proxy
    wire: Wire
    url: str
    database: int

    @property
    def direct_url(self) -> str:
        return f"unix://{self.server.socket}?db={self.database}"

    @property
    def open(self) -> int:
        """How many connections of clients are open."""
        return self.wire.open + self.proxy.counts.open

    def heal(self) -> None:
        """Switch every fault off."""
        self.proxy.heal()
        self.wire.heal()

    def used(self, prefix: str, identity: str) -> int:
        """The units that the server has counted for an identity: in its key, all digits but the last 16, the start."""
        with redis.Redis(unix_socket_path=self.server.socket, db=self.database, decode_responses=True) as client:
            (key,) = client.keys(f"{prefix}:{{{digest(identity_text(identity))}}}:*") or [None]
            return 0 if key is None else int(client.get(key)[:-16])


class Certificates:
    """An authority, and what a server and its clients need of it."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.file = directory / "ca.pem"
        authority.cert_pem.write_to_path(str(self.file))
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(HOST).configure_cert(self.context)


@contextmanager
def linked(kind: str, server: Server, certificates: Certificates) -> Iterator[Link]:
    """A link of one of the kinds in LINKS."""
    tls = kind == "tls"
    with Proxy(server.port, tls=certificates.context if tls else None) as proxy, Wire(proxy.port) as wire:
        database = 0 if kind == "plain" else DATABASE
        user = "" if kind == "plain" else f"{USER}:{PASSWORD.replace(' ', '%20')}@"
        options = f"?ssl_ca_certs={certificates.file}" if tls else ""
        url = f"redis{'s' if tls else ''}://{user}{HOST}:{wire.port}/{database}{options}"
        yield Link(server, proxy, wire, url, database)

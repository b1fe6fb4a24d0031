"""The first words of a server that does not answer as Redis does: who listens at an address, and what to do."""

from __future__ import annotations

import socket
import ssl
from contextlib import closing
from typing import Final

PATIENCE: Final = 2.0  # seconds for each step
_PING: Final = b"PING\r\n\r\n"  # Redis answers it, and most others complain
_REPLIES: Final = b"+-$*:_,#(%~>=!|"  # the first byte of a reply in the protocol of Redis
_TLS: Final = b"\x15\x03"  # an alert
_OTHERS: Final = {b"HTTP/": "an HTTP server", b"SSH-": "an SSH server", b"E\0\0": "PostgreSQL"}
_CORRECT: Final = "correct the host and the port in the URL"
_HANGS: Final = (
    "the server accepts connections and does not answer: see whether it is stopped, swaps, or runs a long command or"
    " script (its log, SLOWLOG GET 10), and whether something else listens there"
)
_SPEAKS_TLS: Final = "the server speaks TLS: write rediss:// or valkeys:// in the URL"
_SPEAKS_PLAIN: Final = (
    "the server speaks without TLS there: write redis:// or valkey:// in the URL, or give its TLS port"
)


def advice_on(host: str, port: int, *, tls: bool) -> str:
    """Return what to do about a server that a client has failed to talk to; empty if its first words are no reason.

    `tls` says whether the client spoke TLS.
    """
    try:
        with socket.create_connection((host, port), timeout=PATIENCE) as peer:
            first = _first_words(peer)
    except OSError:  # nobody listens, or the network hides who does
        return ""
    if first is None:
        return _HANGS
    if not first or first.startswith(_TLS):
        return ("" if tls else _SPEAKS_TLS) if _speaks_tls(host, port) else f"it closes connections; {_CORRECT}"
    if first[0] in _REPLIES:
        return _SPEAKS_PLAIN if tls else ""
    name = next((name for start, name in _OTHERS.items() if first.startswith(start)), "")
    if first[3:5] == b"\0\n":
        name = "MySQL"
    shown = ascii(first.decode("latin-1").strip()[:20])
    return f"{name or f'no Redis, but what says {shown},'} listens there: {_CORRECT}"


def _first_words(peer: socket.socket) -> bytes | None:
    """Return what the server says first: nothing if it closes the connection, None if it keeps silent."""
    try:
        peer.sendall(_PING)
        return peer.recv(64)
    except TimeoutError:
        return None
    except OSError:
        return b""


def _speaks_tls(host: str, port: int) -> bool:
    """True if a handshake succeeds. No certificate is checked, and nothing is sent after it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        plain = socket.create_connection((host, port), timeout=PATIENCE)
        with closing(plain), context.wrap_socket(plain, server_hostname=host):
            return True
    except ssl.SSLError as error:
        return "ALERT" in str(error)  # it refuses this client, in TLS
    except OSError:
        return False

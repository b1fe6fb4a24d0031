"""The messages of ASGI: what they say of a response, and fields that are added to them.

This module knows fields and the shapes of messages; no gate, no request.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from functools import lru_cache
from typing import Any, Final

from sluicegate.after import Headers, Response
from sluicegate.http import Denial, Field, Fields, merge

Message = MutableMapping[str, Any]

HTTP: Final = ("http.response.start", "http.response.body")
WEBSOCKET: Final = ("websocket.http.response.start", "websocket.http.response.body")
STARTS: Final = (HTTP[0], WEBSOCKET[0])
ACCEPT: Final = "websocket.accept"
BEGINNINGS: Final = frozenset({*STARTS, ACCEPT, "websocket.close"})
"""The messages after which a request has its answer; an accepted socket can still be closed."""
_HANDSHAKES: Final = {ACCEPT: 101, "websocket.close": 403}  # answered by no response: what servers send


def response_of(message: Message) -> Response | None:
    """The response that starts with this message; None if none does. A handshake is answered by 101, or by 403."""
    kind = message["type"]
    status = message["status"] if kind in STARTS else _HANDSHAKES.get(kind)
    if status is None:
        return None
    lines = message.get("headers", ())
    return Response(status, Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in lines]))


def listed(message: Message) -> Message:
    """The message with headers that can be read more than once."""
    lines = message.get("headers", ())
    return message if isinstance(lines, (list, tuple)) else {**message, "headers": list(lines)}


def is_last(message: Message) -> bool:
    """Whether nothing of the body comes after this message."""
    return message["type"] == HTTP[1] and not message.get("more_body", False)


@lru_cache(maxsize=64)
def encoded_name(name: str) -> bytes:
    """The name of a field as messages have it."""
    return name.lower().encode("latin-1")


def _encoded(fields: Iterable[Field]) -> list[tuple[bytes, bytes]]:
    encoded = []
    for name, value in fields:
        encoded.append((encoded_name(name), value.encode("latin-1")))
    return encoded


@lru_cache(maxsize=1024)
def denied(answer: Denial) -> list[tuple[bytes, bytes]]:
    """The fields of an answer that is given again and again; to be copied."""
    return _encoded(answer.fields)


def merged(headers: Iterable[tuple[bytes, bytes]], fields: Fields) -> list[tuple[bytes, bytes]]:
    """The response's own headers, untouched where they do not speak of rate limits, with the fields added."""
    own, added = list(headers), _encoded(fields)
    names = {name for name, _ in added}
    if names.isdisjoint([name.lower() for name, _ in own]):
        return own + added
    others: list[tuple[bytes, bytes]] = []
    spoken: Fields = []
    for pair in own:
        name = pair[0].lower()
        if b"ratelimit" in name or name in names:
            spoken.append((pair[0].decode("latin-1"), pair[1].decode("latin-1")))
        else:
            others.append(pair)
    return others + _encoded(merge(spoken, fields))

"""What people type: lengths of time, and identities as user:alice, ip:203.0.113.7, header:X-API-Key=abc, path:shop=7,
text:alice, int:42.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

from sluicegate.address import IPV4_PREFIX, IPV6_PREFIX, group, is_counted, parse_address
from sluicegate.errors import IdentityError
from sluicegate.identity import Identity

_KINDS: Final = ("user:", "ip:", "header:", "path:", "text:", "int:", "bytes:", "uuid:")
NAMED: Final = re.compile("^(user:|ip:|header:[^=]*=|path:[^=]*=)")  # an identity of a key without a function
_OWN: Final[dict[str, Callable[[str], Identity]]] = {"text": str, "int": int, "bytes": bytes.fromhex, "uuid": UUID}


def typed_identity(words: Iterable[str], *, prefix: int = IPV6_PREFIX, ipv4_prefix: int = IPV4_PREFIX) -> Identity:
    """Return the identity that a person typed, as keys give it. Several words are a key of several parts; a word of
    several parts is a tuple inside of a tuple. Raises IdentityError for words that are none.

    >>> typed_identity(["header:X-API-Key=abc"]), typed_identity(["text:team int:42"])
    (('header:x-api-key', 'abc'), ('team', 42))
    """
    return _joined([_typed(word, prefix, ipv4_prefix) for word in words])


def _joined(parts: Sequence[Identity]) -> Identity:
    return parts[0] if len(parts) == 1 else tuple(parts)


def _typed(word: str, prefix: int, ipv4_prefix: int) -> Identity:
    pieces = word.split(" ")
    if len(pieces) > 1 and all([piece.startswith(_KINDS) for piece in pieces]):
        return _joined([_typed(piece, prefix, ipv4_prefix) for piece in pieces])
    kind, colon, value = word.partition(":")
    if colon and kind == "ip":
        return "ip", _counted(value, prefix, ipv4_prefix)
    if colon and kind == "user":
        return "user", value
    name, equals, part = value.partition("=")
    if kind in ("header", "path") and name and equals:
        return f"{kind}:{name.lower() if kind == 'header' else name}", part
    try:
        if colon and kind in _OWN:
            return _OWN[kind](value)
    except ValueError as error:
        raise _error(word, f"not an {kind}: {error}" if kind == "int" else str(error), f"write {kind}:…") from error
    expected = "user:, ip:, header:Name=, path:name=, text:, int:, bytes: or uuid:"
    raise _error(word, "not as a key gives it", f"write it with {expected}")


def _counted(text: str, prefix: int, ipv4_prefix: int) -> str:
    """Return the text under which a client with this address is counted."""
    before, slash, bits = text.partition("/")
    address = parse_address(before)
    if address is None and not is_counted(text):
        raise _error(f"ip:{text}", "not an address", "give one such as ip:203.0.113.7")
    if address is None:
        return text
    counted, whole = group(address, prefix, ipv4_prefix), str(address.max_prefixlen)
    length = counted.partition("/")[2] or whole
    if slash and bits not in (length, whole):
        raise _error(f"ip:{text}", f"clients count by their /{length}", "give the address of one client")
    return counted


def _error(given: str, problem: str, expected: str) -> IdentityError:
    return IdentityError("identity", given, problem=problem, expected=expected)


def with_unit(time: str) -> str | None:
    """Return how to write this length of time if it has no unit: seconds in Python, but perhaps meant as hours."""
    return f"write {time}h for hours, {time}d for days" if time.isdecimal() else None

"""Who is asking: identities as text that cannot collide, and the address behind named proxies.

Pure functions over strings. This module knows the error tree; it knows no framework, no store and no rule.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Hashable
from hashlib import blake2b
from uuid import UUID

from headgate.errors import IdentityError

Identity = Hashable
"""What a key function may return: text, bytes, an int, a UUID, or a tuple of these. None: the rule does not apply."""

_LONGEST = 128  # characters kept as they are; what is longer is replaced by its digest


def identity_text(identity: object) -> str:
    """One identity as text: different identities always give different texts, none longer than a line.

    The type is part of it ("42" and 42 are two), tuples are told by the lengths of their parts, and nothing is
    normalised, so no separator, brace, control character or lone surrogate makes two identities one.
    IdentityError for other types.

    >>> identity_text("laoqian"), identity_text(("user", 42))
    ('slaoqian', 't5:suser3:i2a')
    """
    text = _told(identity)
    if len(text) <= _LONGEST:
        return text
    return "h" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def _told(identity: object) -> str:
    match identity:
        case str():
            return f"s{identity}"
        case int():
            return f"i{identity:x}"  # hexadecimal: decimal conversion is refused above 4,300 digits
        case bytes():
            return f"b{identity.hex()}"
        case UUID():
            return f"u{identity.hex}"
        case tuple() | list():
            parts = [identity_text(part) for part in identity]
            return "t" + "".join(f"{len(part)}:{part}" for part in parts)
    raise IdentityError(
        "identity",
        type(identity).__name__,
        problem="not something that names a client",
        expected="return text, bytes, an int, a UUID, a tuple of these, or None for a rule that does not apply",
    )


def digest(text: str) -> str:
    """128 bits of an identity as 22 characters: what leaves the process instead of the identity.

    >>> len(digest("slaoqian"))
    22
    """
    raw = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return urlsafe_b64encode(raw).rstrip(b"=").decode()

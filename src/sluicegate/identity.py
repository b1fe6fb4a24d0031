"""Who is asking: identities as text that cannot collide, and the address behind named proxies.

Pure functions over strings, and the secret that may be mixed into them. This module knows the error tree; it knows no
framework, no store and no rule.
"""

from __future__ import annotations

import sys
from binascii import b2a_base64
from collections.abc import Callable, Hashable, Iterable
from functools import cache, lru_cache
from typing import Any, Final, TypeVar, cast

from sluicegate.errors import IdentityError, SettingsError
from sluicegate.hidden import Concealed, hide_secret

Identity = Hashable
"""What a key function may return: text, bytes, an int, a UUID, or a tuple of these. None: the rule does not apply."""

Value = TypeVar("Value", str, int, bytes)

_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_LONGEST = 128  # characters kept as they are; what is longer is replaced by its digest
_LONGEST_NAME: Final = 512  # characters of an account's name; an address of e-mail has 254 at most
_SHORTEST_SECRET: Final = 16  # bytes


def identity_text(identity: object) -> str:
    """One identity as text: different identities always give different texts, none longer than a line.

    The type is part of it ("42" and 42 are two, and so are True and 1), tuples are told by the lengths of their parts,
    and nothing is normalised, so no separator, brace, control character or lone surrogate makes two identities one.
    A subclass stands for its value, so a member of a StrEnum or IntEnum is its text or number. A list is a tuple.
    IdentityError for other types.

    >>> identity_text("alice"), identity_text(("user", 42))
    ('salice', 't5:suser3:i2a')
    """
    if type(identity) is str and len(identity) < _LONGEST:  # as most are
        return f"s{identity}"
    return _short(_told(identity))


def joined(texts: Iterable[str]) -> str:
    """The text of a tuple, from the texts of its parts.

    >>> joined(map(identity_text, ("user", 42))) == identity_text(("user", 42))
    True
    """
    return _short("t" + "".join([f"{len(text)}:{text}" for text in texts]))


def teller(kind: str) -> Callable[[object], str]:
    """What tells the text of `(kind, identity)`, with the part of it that is always the same made once.

    >>> teller("user")(42) == identity_text(("user", 42))
    True
    """
    start = joined([identity_text(kind)])

    def tell(identity: object) -> str:
        text = identity_text(identity)
        return _short(f"{start}{len(text)}:{text}")

    return tell


def _short(text: str) -> str:
    """The text, or its digest where it is longer than a line."""
    if len(text) <= _LONGEST:
        return text
    return "h" + _hashed(text, size=32).hex()


def _told(identity: object) -> str:
    match identity:
        case bool():  # before the int that it is too: True is not user 1
            return "o1" if identity else "o0"
        case str():
            return f"s{_value_of(identity, str)}"
        case int():
            return f"i{_value_of(identity, int):x}"  # hexadecimal: decimal conversion is refused above 4,300 digits
        case bytes():
            return f"b{_value_of(identity, bytes).hex()}"
        case tuple() | list():
            return joined([identity_text(part) for part in identity])
    uuid = sys.modules.get("uuid")  # whoever has a UUID has imported it, and nobody else need wait for that
    if uuid is not None and isinstance(identity, uuid.UUID):
        return f"u{cast(Any, identity).hex}"
    raise _no_client(identity)


def _value_of(identity: object, kind: type[Value]) -> Value:
    """The plain value of a subclass, which may show itself in another way; or of a proxy, such as a lazy object."""
    if type(identity) is kind:
        return identity
    if issubclass(type(identity), kind):
        return cast("Value", _PLAIN[kind](identity))
    try:
        return cast(Any, kind)(identity)  # type: ignore[no-any-return]
    except TypeError:
        raise _no_client(identity) from None


_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {str: str.__str__, int: int.__int__, bytes: bytes.__bytes__}


def _no_client(identity: object) -> IdentityError:
    return IdentityError(
        "identity",
        type(identity).__name__,
        problem="not something that names a client",
        expected="return text, bytes, an int, a UUID, a tuple of these, or None for a rule that does not apply",
    )


def account(text: str) -> str:
    """The name of an account in the one form that all its spellings share, for keys that read what somebody typed.

    Compatibility forms, letter case and blanks around it make no difference (NFKC and full case folding). Look-alikes
    of other scripts and invisible characters inside do. A name of more than 512 characters is replaced by its digest,
    so that a huge one costs no more than its hash. Twice is the same as once.

    >>> account("  Ａｌｉｃｅ ") == account("alice") == "alice"
    True
    >>> account("STRASSE") == account("straße")
    True
    """
    from unicodedata import normalize  # here: who counts by number has no use for its tables

    text = text.strip()
    if len(text) <= _LONGEST_NAME:  # as Unicode's definition D146 says, which needs both rounds; a blank may come of it
        folded = normalize("NFKC", normalize("NFD", text).casefold())
        text = normalize("NFKC", folded.casefold()).strip()
    return text if len(text) <= _LONGEST_NAME else f"~{_hashed(text, size=32).hex()}"


class Seal:
    """Replaces the texts of identities by digests under a secret, which nobody can check a guess against without it.

    `secret` is text or bytes, 16 bytes at least; SettingsError otherwise. It is never shown.
    """

    def __init__(self, secret: str | bytes) -> None:
        secret = hide_secret(secret)
        key = _key_of(secret)
        if isinstance(key, SettingsError):
            raise key

        @lru_cache(maxsize=4096)
        def sealed(text: str) -> str:
            raw: bytes = _blake2b()(text.encode("utf-8", "surrogatepass"), digest_size=16, key=key).digest()
            return f"k{raw.hex()}"

        self.text: Final = sealed

    def __repr__(self) -> str:
        return "Seal(…)"


def _key_of(secret: str | bytes | Concealed) -> bytes | SettingsError:
    """A key of the one length that fits. An error is returned: where it is raised, no variable holds the secret."""
    raw = secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
    expected = "give 16 bytes or more, as secrets.token_hex(32) makes them"
    if not isinstance(raw, bytes):
        problem = f"a {type(raw.value).__name__} is neither text nor bytes"
        return SettingsError("secret", "…", problem=problem, expected=expected)
    if len(raw) < _SHORTEST_SECRET:
        return SettingsError("secret", "…", problem=f"only {len(raw)} bytes long", expected=expected)
    key: bytes = _blake2b()(raw, digest_size=64, person=b"sluicegate").digest()
    return key


def digest(text: str) -> str:
    """128 bits of an identity as 22 characters: what leaves the process instead of the identity.

    >>> len(digest("salice"))
    22
    """
    return b2a_base64(_hashed(text, size=16), newline=False).translate(_URL_SAFE, b"=").decode()


def _hashed(text: str, *, size: int) -> bytes:
    """So many bytes of a hash that nobody can turn around."""
    raw: bytes = _blake2b()(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()
    return raw


@cache
def _blake2b() -> Any:
    """Imported when first called: hashlib brings OpenSSL, and budgets in memory have no use for either."""
    from hashlib import blake2b

    return blake2b

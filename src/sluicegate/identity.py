"""Identities as text: two different identities never have the same text. A secret may be mixed into the text."""

from __future__ import annotations

import sys
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Hashable, Iterable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, TypeGuard, TypeVar

from sluicegate.errors import IdentityError, SettingsError
from sluicegate.runtime.hidden import hide_secret

if TYPE_CHECKING:
    from hashlib import blake2b
    from uuid import UUID

Identity = Hashable
"""What a key function may return: text, bytes, an int, a UUID, or a tuple of these. None: the rule does not apply."""

Value = TypeVar("Value", str, int, bytes)

_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_PLAIN = bytes.maketrans(b"-_", b"+/")
_LONGEST = 128  # characters; a longer text is replaced by its digest
_LONGEST_NAME: Final = 512  # characters of an account's name; an e-mail address has at most 254
_SHORTEST_SECRET: Final = 16  # bytes


def identity_text(identity: object) -> str:
    """Encode one identity as text. Different identities always have different texts, of at most 128 characters.

    The text contains the type ("42" and 42 are two identities, and True and 1 are two identities) and the lengths of a
    tuple's parts. Nothing is normalised. So a separator, brace, control character or lone surrogate never makes two
    identities equal. An instance of a subclass counts as its value: a member of a StrEnum or IntEnum is its text or
    number. A list counts as a tuple. Raises IdentityError for other types.

    >>> identity_text("alice"), identity_text(("user", 42))
    ('salice', 't5:suser3:i2a')
    """
    if type(identity) is str and len(identity) < _LONGEST:  # most identities are text
        return f"s{identity}"
    return _short(_encoded(identity))


def joined(texts: Iterable[str]) -> str:
    """Return the text of a tuple, made from the texts of its parts.

    >>> joined(map(identity_text, ("user", 42))) == identity_text(("user", 42))
    True
    """
    return _short("t" + "".join([f"{len(text)}:{text}" for text in texts]))


def encoder(kind: str) -> Callable[[object], str]:
    """Make a function that encodes `(kind, identity)`. The constant part is encoded once.

    >>> encoder("user")(42) == identity_text(("user", 42))
    True
    """
    start = joined([identity_text(kind)])
    room = _LONGEST - len(f"{start}{_LONGEST}:s")  # characters of a text that fits, whatever its length
    starts = [f"{start}{length + 1}:s" for length in range(room + 1)]  # by the length of a text

    def encode(identity: object) -> str:
        if type(identity) is str and len(identity) <= room:  # the same as below, without two calls
            return starts[len(identity)] + identity
        text = identity_text(identity)
        return _short(f"{start}{len(text)}:{text}")

    return encode


def _short(text: str) -> str:
    """Return the text, or its digest if the text is longer than 128 characters."""
    if len(text) <= _LONGEST:
        return text
    return "h" + _hashed(text, size=32).hex()


def _encoded(identity: object) -> str:
    match identity:
        case bool():  # before int, of which bool is a subclass: True is not user 1
            return "o1" if identity else "o0"
        case str():
            return f"s{_value_of(identity, str.__str__, str)}"
        case int():
            # hexadecimal: Python refuses to write more than 4,300 decimal digits
            return f"i{_value_of(identity, int.__int__, int):x}"
        case bytes():
            return f"b{_value_of(identity, bytes.__bytes__, bytes).hex()}"
        case tuple() | list():
            try:
                return joined([identity_text(part) for part in identity])
            except RecursionError:  # a list may even contain itself
                raise _no_client(identity, "nested too deeply") from None
    if _is_uuid(identity):
        return f"u{identity.hex}"
    raise _no_client(identity)


def _is_uuid(identity: object) -> TypeGuard[UUID]:
    uuid = sys.modules.get("uuid")  # already imported if the application uses UUIDs; other applications do not need it
    return uuid is not None and isinstance(identity, uuid.UUID)


def _value_of(identity: Value, plain: Callable[[Value], Value], kind: Callable[[Value], Value]) -> Value:
    """Return the plain value of an instance of a subclass (its repr may differ) or of a proxy (a lazy object)."""
    try:
        return plain(identity)
    except TypeError:  # a proxy only says that it is of this class
        try:
            return kind(identity)
        except TypeError:
            raise _no_client(identity) from None


def _no_client(identity: object, problem: str = "not something that names a client") -> IdentityError:
    expected = "give text, bytes, an int, a UUID or a tuple of these; a key function may return None"
    return IdentityError("identity", type(identity).__name__, problem=problem, expected=expected)


def account(text: str) -> str:
    """Return an account's name in one form for all its spellings. Use it in keys that read text that a user typed.

    Compatibility forms, letter case and blanks around it make no difference (NFKC and full case folding). Look-alikes
    of other scripts and invisible characters inside the name do make a difference. A name of more than 512 characters
    is replaced by its digest, so that a huge name costs only one hash. Called on its own result, it changes nothing.

    >>> account("  Ａｌｉｃｅ ") == account("alice") == "alice"
    True
    >>> account("STRASSE") == account("straße")
    True
    """
    from unicodedata import normalize  # imported here, because applications without such names do not need its tables

    text = text.strip()
    if len(text) <= _LONGEST_NAME:  # Unicode's definition D146, which needs both rounds; a blank may appear
        folded = normalize("NFKC", normalize("NFD", text).casefold())
        text = normalize("NFKC", folded.casefold()).strip()
    return text if len(text) <= _LONGEST_NAME else f"~{_hashed(text, size=32).hex()}"


class Seal:
    """Replaces the texts of identities with keyed digests. Without the secret nobody can test a guess against them.

    `secret` is text or bytes, at least 16 bytes; else the constructor raises SettingsError. The secret is never shown.
    """

    def __init__(self, secret: str | bytes) -> None:
        secret = hide_secret(secret)
        key = _key_of(secret)
        if isinstance(key, SettingsError):
            raise key

        @lru_cache(maxsize=4096)
        def sealed(text: str) -> str:
            raw = _blake2b()(text.encode("utf-8", "surrogatepass"), digest_size=16, key=key).digest()
            return f"k{raw.hex()}"

        self.text: Final = sealed

    def __repr__(self) -> str:
        return "Seal(…)"


def _key_of(secret: object) -> bytes | SettingsError:
    """Return the key of the digests. An error is returned, to be raised where no variable has the secret."""
    raw = secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
    expected = "give 16 bytes or more, as secrets.token_hex(32) makes them"
    if not isinstance(raw, bytes):
        problem = f"a {type(raw).__name__} is neither text nor bytes"
        return SettingsError("secret", "…", problem=problem, expected=expected)
    if len(raw) < _SHORTEST_SECRET:
        return SettingsError("secret", "…", problem=f"only {len(raw)} bytes long", expected=expected)
    return _blake2b()(raw, digest_size=64, person=b"sluicegate").digest()


class Digested(str):
    """The digest of an identity whose text is not known. It stands for the text: its digest is itself.

    It is equal to no text, so that a cache by text has an entry of its own for it.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is Digested and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Digested, str.__hash__(self)))


def digest(text: str) -> str:
    """Return 128 bits of an identity's hash as 22 characters. This digest leaves the process instead of the identity.

    >>> len(digest("salice"))
    22
    >>> digest(Digested("7Gb0o9Qe_P1kzJrX2YvWmA"))
    '7Gb0o9Qe_P1kzJrX2YvWmA'
    """
    return digest_bytes(text).decode()


def digest_bytes(text: str) -> bytes:
    """Return the digest of an identity as bytes."""
    if type(text) is Digested:
        return str(text).encode()
    return b2a_base64(_hashed(text, size=16), newline=False).translate(_URL_SAFE, b"=")


@cache
def raw_digests() -> Callable[[str], bytes]:
    """Return a function that returns the same 128 bits, not as characters. For an index of many digests: it takes a
    third of the time.
    """
    empty = _blake2b()(digest_size=16).copy  # a copy costs less than another hash

    def raw_digest(text: str) -> bytes:
        if type(text) is Digested:
            return unpacked(text)
        hashing = empty()
        hashing.update(text.encode("utf-8", "surrogatepass"))
        return hashing.digest()

    return raw_digest


def unpacked(digest: str) -> bytes:
    """Return the 128 bits of a digest."""
    return a2b_base64(digest.encode().translate(_PLAIN) + b"==")


def _hashed(text: str, *, size: int) -> bytes:
    """Return the first `size` bytes of a one-way hash."""
    return _blake2b()(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


@cache
def _blake2b() -> type[blake2b]:
    """Import blake2b at the first call: hashlib imports OpenSSL, and budgets in memory need neither module."""
    from hashlib import blake2b

    return blake2b

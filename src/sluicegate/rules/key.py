"""Keys: from the key of a rule ("user", "ip", a function, …) to the identity of one request, as text.

A key is prepared once, at start-up: it becomes functions of a Caller. A Caller is an adapter's view of one request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, cycle, repeat
from types import MethodType
from typing import Any, Final, Protocol

from sluicegate.address import (
    IPV4_PREFIX,
    IPV6_PREFIX,
    LONGEST,
    MEANT,
    TOKEN,
    Trust,
    check_prefixes,
    client_address,
    client_network,
    group,
    is_counted,
    is_in,
    is_rewritten,
    network_of,
    parse_address,
)
from sluicegate.errors import ConfigurationError, IdentityError, nearest, warn
from sluicegate.identity import encoder, identity_text, joined
from sluicegate.runtime.awaiting import Waiting, check_call, label_of, waits

Native = Any
"""The framework's own request, which functions of users get: each framework has another class."""

KeyFunction = Callable[[Native], Hashable | Awaitable[Hashable | None] | None]
KeySpec = str | KeyFunction | tuple[str | KeyFunction, ...]

_FORWARDED: Final = ("X-Forwarded-For", "Forwarded")  # a request that has one has passed a proxy, or is forged
_PRIVATE: Final = [  # RFC 1918, RFC 4193, and loopback: where no client on the internet is
    network_of(each, "private", "")
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "fc00::/7", "::1/128")
]
_CACHED: Final = LONGEST + 1  # characters of a peer; with more than LONGEST it is no address
_LOOKS: Final = 1000  # the first requests are all looked at for a warning; later one in this many
_KEYS: Final = 1024  # texts whose keys are kept; an application has fewer
_DEEPEST: Final = 16  # tuples inside of each other: each one costs every request a generator
_EXPECTED: Final = 'use "user", "ip", "header:Name", "path:name", a tuple of these, or a function of the request'


class Caller(Protocol):
    """An adapter's view of one request. Each part is looked up only when a key needs it."""

    @property
    def native(self) -> Native:
        """The framework's own request. Users' functions get this object."""
        ...

    @property
    def method(self) -> str:
        """The HTTP method in capitals; "GET" for a WebSocket handshake."""
        ...

    @property
    def path(self) -> str:
        """The path inside the application. It is never derived from the Host header."""
        ...

    @property
    def peer(self) -> str | None:
        """The address of the socket's other end; None if the socket has no such address."""
        ...

    def header(self, name: str) -> Sequence[str]:
        """Return all lines of a header, in order. Each value is the value that the application would read."""
        ...

    def path_value(self, name: str) -> str | None:
        """Return the value of a path parameter of the matched route; None if the route has no such parameter."""
        ...

    def user(self) -> Hashable | Awaitable[Hashable | None] | None:
        """Return the name of the signed-in user; None if nobody is signed in."""
        ...

    def signs_in_later(self) -> bool:
        """True if the request has credentials (`Authorization`) that nothing outside the application reads."""
        ...


Known = dict[Hashable, Any]
"""What the functions of users have returned for one request, so that none is called twice."""

ReadyKey = Callable[[Caller, Known], str | Waiting | None]
"""Returns the text of a caller's identity; None if the key does not apply. Returns a Waiting if a function of the user
has returned an awaitable: the caller awaits it, keeps the result in `known`, and calls again.
"""


def validate_key(spec: object) -> None:
    """Raise IdentityError if this is not a key."""
    check_nesting(spec)
    Keys(address_key(Trust())).ready(spec)


def check_nesting(spec: object) -> None:
    """Raise IdentityError if a key has too many tuples or lists inside of each other; a list may contain itself."""
    level: Iterable[object] = (spec,)
    for _ in range(_DEEPEST + 1):
        parts = [part for each in level if isinstance(each, (tuple, list)) for part in each]
        if not parts:
            return
        level = {id(part): part for part in parts}.values()
    problem = f"nested more than {_DEEPEST} levels deep"
    raise IdentityError("key", type(spec).__name__, problem=problem, expected=_EXPECTED)


class Keys:
    """The keys of one application, each made ready at start-up.

    If a named key finds nothing (nobody is signed in, the header is missing), the address is used: a request cannot
    escape its budget by leaving something out. Each identity is tagged with its kind, so that a user called
    "203.0.113.7" is not the address 203.0.113.7. `address` is the key of addresses. `strict` makes a warning about the
    key "user" an error.
    """

    def __init__(self, address: ReadyKey, *, strict: bool = False) -> None:
        self._address = address
        self._strict = strict
        # Cached: rules with the same text have the same key, so a request reads it once, and one of a thousand requests
        # is looked at for all of them.
        self._named = lru_cache(maxsize=_KEYS)(self._of_text)

    def ready(self, spec: object) -> ReadyKey:
        """Make a key ready. Raises IdentityError if `spec` is not a key."""
        if isinstance(spec, tuple) and spec:
            return _all_of(tuple([self.ready(part) for part in spec]))
        if callable(spec):
            check_call("key", spec, takes=("request",), error=IdentityError)
            return _own(spec)
        if not isinstance(spec, str):
            raise IdentityError("key", spec, problem="not a key", expected=_EXPECTED)
        return self._named(spec)

    def _of_text(self, spec: str) -> ReadyKey:
        kind, colon, name = spec.partition(":")
        if spec == "ip":
            return self._address
        if spec == "user":
            return _user(self._address, strict=self._strict)
        if kind == "header" and TOKEN.fullmatch(name):
            return _header(name, self._address)
        if kind == "path" and name.isidentifier():
            return _path(name, self._address)
        nameless = colon and kind in ("header", "path")
        problem = "the name after the colon is missing or not one" if nameless else "not known"
        expected = nearest(kind, ("header:", "path:") if colon and not nameless else (), _EXPECTED, kind="key")
        # The text may be an identity, given where a function is expected: only its kind is shown.
        is_kind = expected != _EXPECTED or (len(kind) <= len("header") and "@" not in kind)
        shown = f"{kind if is_kind else '…'}{colon}{name and '…'}"
        raise IdentityError("key", shown, problem=problem, expected=expected)


def asked(
    function: Callable[[Any], Any], caller: Caller, known: Known, *, at: Hashable, rule: str | None, option: str
) -> Any:
    """Return what a user's function returns for the request: a Waiting if it must be awaited first."""
    if at not in known:
        try:
            answer = function(caller.native)
        except ConfigurationError as error:  # such as Quota(0, …)
            error.within("key" if rule is None else f"rule {rule!r}")
            raise
        if waits(answer):
            return Waiting(answer, rule, option, function, at)
        known[at] = answer
    return known[at]


def can_be(spec: object, identity: object, *, prefix: int, ipv4_prefix: int) -> bool:
    """True if a key could ever return this identity. Always True for a function."""
    if callable(spec):
        return True
    if isinstance(spec, tuple):
        parts: Sequence[object] = identity if isinstance(identity, (tuple, list)) else ()
        fits = partial(can_be, prefix=prefix, ipv4_prefix=ipv4_prefix)
        return len(parts) == len(spec) and all(map(fits, spec, parts))
    kind, _, name = str(spec).partition(":")
    match identity:
        case ("ip", str() as address):  # each of these keys falls back to the address
            return is_counted(address, prefix, ipv4_prefix)
        case (given, str()):
            return given == (f"{kind}:{name.lower()}" if kind == "header" else spec)
    return False


def as_keys_give(identity: object, *, prefix: int, ipv4_prefix: int) -> object:
    """Return an identity that a person wrote, as the keys give it. The name of a header has small letters. An address
    becomes the network that it counts for, and another text the peer of that name, such as that of a TestClient.

    >>> as_keys_give(("ip", "2001:db8::7"), prefix=64, ipv4_prefix=32)
    ('ip', '2001:db8::/64')
    >>> as_keys_give(("header:X-API-Key", "k1"), prefix=64, ipv4_prefix=32)
    ('header:x-api-key', 'k1')
    """
    if not isinstance(identity, (tuple, list)):
        return identity
    if len(identity) == 2 and identity[0] == "ip" and isinstance(identity[1], str):
        text = identity[1]
        wrong = MEANT.fullmatch(text) is not None and parse_address(text) is None
        if wrong or is_counted(text, prefix, ipv4_prefix):
            return identity
        return ("ip", client_address(text, (), Trust(), prefix=prefix, ipv4_prefix=ipv4_prefix))
    if len(identity) == 2 and isinstance(identity[0], str) and identity[0].startswith("header:"):
        return (identity[0].lower(), identity[1])
    return tuple([as_keys_give(part, prefix=prefix, ipv4_prefix=ipv4_prefix) for part in identity])


def address_key(
    trust: Trust, *, prefix: int = IPV6_PREFIX, ipv4_prefix: int = IPV4_PREFIX, strict: bool = False
) -> ReadyKey:
    """Make the key "ip": the address in the trusted header, or else the peer's address; `prefix` bits of an IPv6
    address, and `ipv4_prefix` bits of an IPv4 address.

    Warns if every address is trusted (SG103), and if none is trusted and a request has a header that only a proxy
    should write (SG102), or nearly all requests come from one private address (SG117). It looks at the first 1,000
    requests, and then at one request in a thousand; under `strict` at all requests.
    """
    check_prefixes(prefix, ipv4_prefix)
    for network in trust.everybody:
        warn("SG103", str(network), strict=strict)

    def of_proxies(caller: Caller, known: Known) -> str:
        lines = caller.header(trust.header)
        return _encode_address(client_address(caller.peer, lines, trust, prefix=prefix, ipv4_prefix=ipv4_prefix))

    if trust.hops or trust.networks or trust.unix:
        return of_proxies
    looks, note = _looks(strict=strict), _one_address()

    @lru_cache(maxsize=4096)  # the identity depends only on the peer
    def of_peer(peer: str | None) -> str:
        return _encode_address(client_address(peer, (), trust, prefix=prefix, ipv4_prefix=ipv4_prefix))

    def of_socket(caller: Caller, known: Known) -> str:
        if next(looks):
            _look_for_proxies(caller, strict=strict)
            note(caller.peer)
        peer = caller.peer  # some servers put any text of a header here: cache only its beginning
        return of_peer(peer and peer[:_CACHED])

    return of_socket


def _looks(*, strict: bool) -> Iterator[int]:
    """Yield 1 for each request that is looked at for a warning: the first 1,000 requests, and then one in a
    thousand; under `strict` all. Yield 0 for the others.
    """
    return repeat(1) if strict else chain(repeat(1, _LOOKS), cycle((1, *repeat(0, _LOOKS - 1))))


def _one_address() -> Callable[[str | None], None]:
    """Return what notes the peers of requests, and warns (SG117) if more than 1,000 of them have, in 99 of 100 cases,
    one private or loopback address: that of a load balancer. Some requests may be those of its health checks.
    """
    suspect: str | None = None
    same = seen = 0

    def note(peer: str | None) -> None:
        nonlocal suspect, same, seen
        seen += 1
        if suspect is None and peer is not None:
            address = parse_address(peer)
            suspect = peer if address is not None and is_in(address, _PRIVATE) else None
        same += peer is not None and peer == suspect
        if suspect is not None and seen > _LOOKS and same >= 0.99 * seen:
            warn("SG117", _wide(suspect), strict=False)  # never an error: one request shows nothing

    return note


def network_key(trust: Trust, *, prefix: int = IPV6_PREFIX, ipv4_prefix: int = IPV4_PREFIX) -> Callable[[Caller], str]:
    """Make a function that returns the network of a caller, read from the trusted header or from the peer. An IPv6
    network has at most `prefix` bits.
    """

    def network(caller: Caller) -> str:
        lines = caller.header(trust.header)
        return client_network(caller.peer, lines, trust, prefix=prefix, ipv4_prefix=ipv4_prefix)

    return network


def _wide(peer: str) -> str:
    """Return the network of an address: wide, so that no log has the address of one machine."""
    address = parse_address(peer)
    return peer if address is None else group(address, 48, 16)


_encode_address: Final = encoder("ip")


def _look_for_proxies(caller: Caller, *, strict: bool) -> None:
    """Warn about a header that a proxy writes, unless the server or a middleware has read this header already."""
    for name in _FORWARDED:
        lines = caller.header(name)
        if lines and not is_rewritten(caller.peer, lines, name):
            warn("SG102", name, strict=strict)


def _header(name: str, address: ReadyKey) -> ReadyKey:
    """Make a key that returns the first line of a header, or the address if the header is missing."""
    encode = encoder(f"header:{name.lower()}")
    return lambda caller, known: encode(lines[0]) if (lines := caller.header(name)) else address(caller, known)


def _path(name: str, address: ReadyKey) -> ReadyKey:
    """Make a key that returns a parameter of the matched path, or the address if there is no such parameter."""
    encode = encoder(f"path:{name}")

    def key(caller: Caller, known: Known) -> str | Waiting | None:
        value = caller.path_value(name)
        return address(caller, known) if value is None else encode(value)

    return key


def parts_of(key: object) -> Iterator[object]:
    """Yield the parts of a key, also those of the tuples inside it; a key that is no tuple is its only part."""
    if isinstance(key, tuple):
        for part in key:
            yield from parts_of(part)
    else:
        yield key


def reads_user(key: object) -> bool:
    """True if a key is "user", or has "user" among its parts."""
    return "user" in parts_of(key)


def reads_path(key: object) -> bool:
    """True if a part of a key is a value of the path."""
    return any([isinstance(part, str) and part.startswith("path:") for part in parts_of(key)])


def _user(address: ReadyKey, *, strict: bool) -> ReadyKey:
    """Make a key that returns the signed-in user, or the address if nobody is signed in.

    It warns (SG110) of a user who will be known only inside the application. It looks at the first 1,000 requests
    without a user, then at one in a thousand, until it warned; under `strict` at all.
    """
    encode, looks = encoder("user"), _looks(strict=strict)

    def key(caller: Caller, known: Known) -> str | Waiting | None:
        nonlocal looks
        if "user" not in known:
            known["user"] = caller.user()  # once: an application may ask its database
        user = known["user"]
        if user is None:  # first: nobody has signed in to most requests
            if next(looks) and caller.signs_in_later():
                warn("SG110", "user", strict=strict)
                looks = repeat(0)
            return address(caller, known)
        return Waiting(user, None, "key", "user", "user") if waits(user) else encode(user)

    return key


def _own(function: KeyFunction) -> ReadyKey:
    """Make a key that returns the identity that a user's function returns."""
    at = _place_of(function)

    def key(caller: Caller, known: Known) -> str | Waiting | None:
        identity = known[at] if at in known else function(caller.native)
        if waits(identity):
            return Waiting(identity, None, "key", function, at)
        known[at] = identity
        try:
            return None if identity is None else identity_text(identity)
        except IdentityError as error:
            error.within(f"key {label_of(function)}")
            raise

    return key


def _place_of(function: KeyFunction) -> Hashable:
    """Return where the result of a key function is kept. Two places are equal only if the functions are the same: equal
    functions may return different identities. A method is compared by its object's identity, so it makes the place.
    """
    return function if isinstance(function, MethodType) else MethodType(identity_text, function)


def _all_of(parts: tuple[ReadyKey, ...]) -> ReadyKey:
    """Make the key of a tuple. After a part that returns None, the remaining parts are not evaluated."""

    def key(caller: Caller, known: Known) -> str | Waiting | None:
        texts: list[str] = []
        for part in parts:
            text = part(caller, known)
            if not isinstance(text, str):
                return text
            texts.append(text)
        return joined(texts)

    return key

"""Keys: from what a rule says ("user", "ip", a function, …) to the identity of one request, as text.

A key is digested once, at start-up, into a function of a Caller: what an adapter tells about who is asking. This
module knows identities and addresses; no framework, no store, no quota.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Final, Protocol

from sluicegate.address import (
    IPV6_PREFIX,
    LONGEST,
    TOKEN,
    Trust,
    check_prefix,
    client_address,
    client_network,
    is_rewritten,
)
from sluicegate.awaiting import Later, waits
from sluicegate.cautions import caution
from sluicegate.errors import IdentityError
from sluicegate.identity import identity_text, joined, teller

KeyFunction = Callable[[Any], Hashable | Awaitable[Hashable | None] | None]
KeySpec = str | KeyFunction | tuple["str | KeyFunction", ...]

_FORWARDED: Final = ("X-Forwarded-For", "Forwarded")
_LOOKS: Final = 1000  # requests of which each is looked at for a proxy's header; afterwards one in so many
_EXPECTED: Final = 'use "user", "ip", "header:Name", "path:name", a tuple of these, or a function of the request'


class Caller(Protocol):
    """What an adapter tells about one request. Each part is looked up only when a key asks for it."""

    @property
    def native(self) -> Any:
        """The framework's own request: what users' functions are given."""
        ...

    @property
    def method(self) -> str:
        """The HTTP method in capitals; "GET" for a WebSocket handshake."""
        ...

    @property
    def path(self) -> str:
        """The path inside the application, never one derived from the Host header."""
        ...

    @property
    def peer(self) -> str | None:
        """The address of the socket's other end, if it has one."""
        ...

    def header(self, name: str) -> Sequence[str]:
        """All lines of a header, in order; of one line the value as the application would read it."""
        ...

    def path_value(self, name: str) -> str | None:
        """The value of a path parameter of the matched route."""
        ...

    def user(self) -> Hashable | Awaitable[Hashable | None] | None:
        """What names the signed-in user; None for a stranger."""
        ...


ReadyKey = Callable[[Caller], Any]


def validate_key(spec: object) -> None:
    """Refuse what is not a key."""
    ready_key(spec, address_key(Trust()))


def ready_key(spec: object, address: ReadyKey) -> ReadyKey:
    """A function of a Caller that returns the text of its identity, None, or an awaitable of either.

    IdentityError for what is no key.

    A named key that finds nothing (no one is signed in, the header is missing) falls back to the address: a request
    never escapes its budget by leaving something out. Each identity is tagged with its kind, so that a user called
    "203.0.113.7" is not that address. `address` is the key of addresses.
    """
    if callable(spec):
        return _own(spec)
    if isinstance(spec, tuple) and spec:
        return _joined(tuple(ready_key(part, address) for part in spec))
    if not isinstance(spec, str):
        raise IdentityError("key", spec, problem="not a key", expected=_EXPECTED)
    kind, colon, name = spec.partition(":")
    if spec == "ip":
        return address
    if spec == "user":
        return _user(address)
    if kind == "header" and TOKEN.fullmatch(name):
        return _header(name, address)
    if kind == "path" and name.isidentifier():
        return _path(name, address)
    problem = "the name after the colon is missing or not one" if colon and kind in ("header", "path") else "not known"
    raise IdentityError("key", spec, problem=problem, expected=_EXPECTED)


def can_be(spec: object, identity: object) -> bool:
    """Whether a key could ever give this identity. Nobody knows what a function gives."""
    if callable(spec):
        return True
    if isinstance(spec, tuple):
        parts: Sequence[object] = identity if isinstance(identity, (tuple, list)) else ()
        return len(parts) == len(spec) and all(map(can_be, spec, parts))
    kind, _, name = str(spec).partition(":")
    kinds = ("ip", f"{kind}:{name.lower()}" if kind == "header" else spec)  # the address is what each falls back to
    return isinstance(identity, (tuple, list)) and len(identity) == 2 and identity[0] in kinds


def address_key(trust: Trust, *, prefix: int = IPV6_PREFIX, strict: bool = False) -> ReadyKey:
    """The key of addresses: what the trusted header says, or else the peer; of IPv6 so many bits.

    To trust everybody is a caution (SG103); where nobody is trusted, so is a header that only a proxy should write
    (SG102). The first requests are looked at for that, and then one in a thousand; under `strict` all of them.
    """
    check_prefix(prefix)
    for network in trust.everybody:
        caution("SG103", str(network), strict=strict)

    def of_proxies(caller: Caller) -> str:
        return _tell_address(client_address(caller.peer, caller.header(trust.header), trust, prefix=prefix))

    if trust.hops or trust.networks or trust.unix:
        return of_proxies
    ticks = count()

    def of_socket(caller: Caller) -> str:
        tick = next(ticks)
        if tick < _LOOKS or strict or not tick % _LOOKS:
            _look_for_proxies(caller, strict=strict)
        peer = caller.peer  # a server that believes headers may have put anything here: not all of it is remembered
        return _of_peer(peer if peer is None else peer[: LONGEST + 1], prefix)

    return of_socket


def network_key(trust: Trust, *, prefix: int = IPV6_PREFIX) -> Callable[[Caller], str]:
    """The network that a caller comes from, as far as the trusted proxies say; at most `prefix` bits of IPv6."""
    return lambda caller: client_network(caller.peer, caller.header(trust.header), trust, prefix=prefix)


_tell_address: Final = teller("ip")


@lru_cache(maxsize=4096)
def _of_peer(peer: str | None, prefix: int) -> str:
    """The address of a peer that is believed about itself alone: always the same, so it is remembered."""
    return _tell_address(client_address(peer, (), Trust(), prefix=prefix))


def _look_for_proxies(caller: Caller, *, strict: bool) -> None:
    """Warn of a header that a proxy has written, unless the server or a middleware has read it already."""
    for name in _FORWARDED:
        lines = caller.header(name)
        if lines and not is_rewritten(caller.peer, lines, name):
            caution("SG102", name, strict=strict)


def _header(name: str, address: ReadyKey) -> ReadyKey:
    """The first line of a header, else the address."""
    tell = teller(f"header:{name.lower()}")
    return lambda caller: tell(lines[0]) if (lines := caller.header(name)) else address(caller)


def _path(name: str, address: ReadyKey) -> ReadyKey:
    """A parameter of the matched path, else the address."""
    tell = teller(f"path:{name}")
    return lambda caller: address(caller) if (value := caller.path_value(name)) is None else tell(value)


def _user(address: ReadyKey) -> ReadyKey:
    """The signed-in user, else the address."""
    tell = teller("user")

    def key(caller: Caller) -> Any:
        user = caller.user()
        if waits(user):

            def told(found: Hashable | None) -> Any:
                return address(caller) if found is None else tell(found)

            return Later((user,), told, function="user")
        return address(caller) if user is None else tell(user)

    return key


def _own(function: KeyFunction) -> ReadyKey:
    """What a user's function answers."""

    def tell(identity: Hashable | None) -> str | None:
        return None if identity is None else identity_text(identity)

    def key(caller: Caller) -> Any:
        identity: Any = function(caller.native)
        return Later((identity,), tell, function=function) if waits(identity) else tell(identity)

    return key


def _joined(parts: tuple[ReadyKey, ...]) -> ReadyKey:
    """All parts together; None if one of them is."""

    def together(*texts: str | None) -> str | None:
        found = [text for text in texts if text is not None]
        return joined(found) if len(found) == len(texts) else None

    def key(caller: Caller) -> Any:
        texts = [part(caller) for part in parts]
        for text in texts:
            if type(text) is Later:
                return Later(texts, together, function=text.function)
        return together(*texts)

    return key

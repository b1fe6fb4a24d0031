"""The client's address: the socket's peer, or, behind trusted proxies, the address in one header.

An adapter passes the peer and every line of that header. Only the proxies in `Trust` are trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from sluicegate.errors import SettingsError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

NO_PEER: Final = "no-peer"  # a unix socket: one budget for all its clients, never an invented 127.0.0.1
_NAT64: Final = IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are the client's IPv4 address
_NAT64_LOCAL: Final = IPv6Network("64:ff9b:1::/48")  # RFC 8215: each network chooses the position of the IPv4 address
IPV4_PREFIX: Final = 32  # by default an IPv4 address is one client
IPV6_PREFIX: Final = 64  # bits that one client's addresses have in common
IPV4_NETWORK: Final = 24
IPV6_NETWORK: Final = 48  # bits that the addresses of one site have in common
_WIDEST: Final = 7  # bits of the widest private network: fc00::/7
TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Each quantifier is possessive: it never backtracks, so a text is read once from left to right.
_PAIR: Final = re.compile(r'\s*+(?:([^=;\s]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^;"]*+)))?+\s*+(?:;|\Z)')
_BACKWARDS: Final = re.compile(r'(?:[^",]|"(?:"\\|[^"])*+")*+(?=,|\Z)')  # one element, matched from its end
LONGEST: Final = 64  # characters of an address with zone, brackets and port
# Text that is meant as an address, also a wrong one.
MEANT: Final = re.compile(r"(?=.*[.:])[0-9A-Fa-f.:%\[\]]+(?:/.*)?|[0-9]+/.*")
_MOST_HOPS: Final = 32  # elements of the trusted header that are read, from its end
_MOST_READ: Final = 8_192  # characters of the trusted header that are read, from its end
"""Proxies append on the right, so a client can only push its own text out of the part that is read. The cut may fall
inside an address, and the rest may look like another address. So a cut element gives no address, and the walk ends
there."""


class Trust(NamedTuple):
    """The proxies that are trusted to report the client's address: none, a number of hops, or the listed networks."""

    hops: int = 0
    networks: tuple[Network, ...] = ()
    unix: bool = False  # True: a peer without an address is a trusted proxy
    header: str = "X-Forwarded-For"

    @classmethod
    def of(cls, proxies: object, header: object = "X-Forwarded-For") -> Trust:
        """Make a Trust from the settings `trusted_proxies` (a hop count, or networks) and `trusted_header`.

        >>> Trust.of(["10.0.0.0/8", "unix"]).unix
        True
        """
        if not isinstance(header, str) or not TOKEN.fullmatch(header):
            expected = 'use "X-Forwarded-For" or "Forwarded"'
            raise SettingsError("trusted_header", header, problem="not the name of a header", expected=expected)
        if proxies is None:
            return cls(header=header)
        wrong = partial(SettingsError, "trusted_proxies", proxies)
        expected = 'give a number of hops, or networks like ["10.0.0.0/8", "unix"]'
        if isinstance(proxies, int) and not isinstance(proxies, bool):
            if not 1 <= proxies <= _MOST_HOPS:
                raise wrong(problem=f"not between 1 and {_MOST_HOPS} hops", expected=expected)
            return cls(hops=proxies, header=header)
        given = [proxies] if isinstance(proxies, str) else proxies
        if not isinstance(given, Iterable):
            raise wrong(problem="neither a number nor networks", expected=expected)
        names = list(given)
        if not names:
            raise wrong(problem="empty", expected=f"leave it out, or {expected}")
        return cls(
            networks=tuple(network_of(name, "trusted_proxies", expected) for name in names if name != "unix"),
            unix="unix" in names,
            header=header,
        )

    def trusts(self, address: Address | None) -> bool:
        """True if this hop is in one of the trusted networks."""
        return self.unix if address is None else is_in(address, self.networks)

    @property
    def everybody(self) -> tuple[Network, ...]:
        """The trusted networks that are too wide to contain only one operator's proxies."""
        return tuple([network for network in self.networks if network.prefixlen < _WIDEST])


def client_address(
    peer: str | None, lines: Sequence[str], trust: Trust, *, prefix: int = IPV6_PREFIX, ipv4_prefix: int = IPV4_PREFIX
) -> str:
    """Return the client's address for a budget: an IPv4 address, an IPv4 network of `ipv4_prefix` bits, or an IPv6
    network of `prefix` bits.

    `lines` are all lines of the trusted header, in order. They are read only if the peer is trusted. Hops are read from
    the last one; reading stops at the first hop that cannot be read.

    >>> client_address("10.0.0.1", ["6.6.6.6, 203.0.113.7"], Trust.of("10.0.0.0/8"))
    '203.0.113.7'
    >>> client_address("198.51.100.9", ["203.0.113.7"], Trust())
    '198.51.100.9'
    """
    address = exact_address(peer, lines, trust)
    return _no_address(peer) if address is None else group(address, prefix, ipv4_prefix)


def client_network(
    peer: str | None,
    lines: Sequence[str],
    trust: Trust,
    *,
    prefix: int = IPV6_NETWORK,
    ipv4_prefix: int = IPV4_PREFIX,
) -> str:
    """Return the network of a client: 24 bits or fewer of an IPv4 address, 48 bits or fewer of an IPv6 address.

    >>> client_network("10.0.0.1", ["2001:db8:1:2::3"], Trust.of("10.0.0.0/8"))
    '2001:db8:1::'
    >>> client_network("198.51.100.9", [], Trust())
    '198.51.100.0'
    """
    address = exact_address(peer, lines, trust)
    if address is None:
        return _no_address(peer)
    free = 32 - min(ipv4_prefix, IPV4_NETWORK) if isinstance(address, IPv4Address) else 128 - min(prefix, IPV6_NETWORK)
    return str(type(address)(int(address) >> free << free))


def exact_address(peer: str | None, lines: Sequence[str], trust: Trust) -> Address | None:
    """Return the client's address with all its bits, to compare it with networks. None if the client has no address.

    >>> exact_address("::ffff:198.51.100.9", [], Trust())
    IPv4Address('198.51.100.9')
    """
    hop = _believed(peer, lines, trust)
    return parse_address(peer) if hop is None else hop


def _believed(peer: str | None, lines: Sequence[str], trust: Trust) -> Address | None:
    """Return the client's address that the trusted proxies report; None if only the peer counts."""
    if not lines or not (trust.hops or trust.networks or trust.unix):
        return None
    hop = parse_address(peer)
    if peer and hop is None and not trust.hops:
        return None  # a peer that is not an address cannot be in a network
    elements = _elements(lines, trust.header)
    if trust.hops:
        if len(elements) < trust.hops:
            return None
        elements = elements[-trust.hops :]
    for element in reversed(elements):
        if not trust.hops and not trust.trusts(hop):
            break
        found = parse_address(element)
        if found is None:
            break
        hop = found
    return hop


def is_in(address: Address, networks: Iterable[Network]) -> bool:
    """True if an address is in one of the networks."""
    return any([address in network for network in networks if network.version == address.version])


def is_rewritten(peer: str | None, lines: Sequence[str], header: str) -> bool:
    """True if the server or a middleware has taken the peer from this header already."""
    address = parse_address(peer)
    return address is not None and address in [parse_address(element) for element in _elements(lines, header)]


def _no_address(peer: str | None) -> str:
    """Return the budget of a peer that is not an address."""
    return f"peer {peer[:LONGEST]}" if peer else NO_PEER


def is_counted(text: str, prefix: int = IPV6_PREFIX, ipv4_prefix: int = IPV4_PREFIX) -> bool:
    """True if this is one of the texts under which clients are counted: those of `client_address`.

    >>> [is_counted(text) for text in ("203.0.113.7", "2001:db8::/64", "no-peer", "999.1.1.1", "2001:db8::7")]
    [True, True, True, False, False]
    """
    if text == NO_PEER or text.startswith("peer "):
        return True
    address = parse_address(text.partition("/")[0])
    return address is not None and group(address, prefix, ipv4_prefix) == text


def group(address: Address, prefix: int = IPV6_PREFIX, ipv4_prefix: int = IPV4_PREFIX) -> str:
    """Return one budget for all addresses that one client can easily have: an IPv6 network, or else the address
    itself. With a shorter `ipv4_prefix`, also an IPv4 network.
    """
    if isinstance(address, IPv4Address):
        if ipv4_prefix == IPV4_PREFIX or address.is_loopback:
            return str(address)
        free = IPV4_PREFIX - ipv4_prefix
        return f"{IPv4Address(int(address) >> free << free)}/{ipv4_prefix}"
    if address.is_loopback or address in _NAT64_LOCAL:
        return str(address)
    free = 128 - prefix
    return f"{IPv6Address(int(address) >> free << free)}/{prefix}"


def check_prefixes(ipv6_prefix: object, ipv4_prefix: object) -> None:
    """Raise SettingsError for a value that is not the length of a prefix."""
    for option, prefix, bits, expected in (
        ("ipv6_prefix", ipv6_prefix, 128, "give 64, or down to 48 for clients with larger networks"),
        ("ipv4_prefix", ipv4_prefix, IPV4_PREFIX, "give 32, or 24 for one budget for all addresses of a /24"),
    ):
        if not isinstance(prefix, int) or isinstance(prefix, bool) or not 1 <= prefix <= bits:
            problem = f"not a number of bits from 1 to {bits}"
            raise SettingsError(option, prefix, problem=problem, expected=expected)


def parse_address(text: str | None) -> Address | None:
    """Parse an address from the text of a socket or a proxy; None if the text is not an address. Ports, brackets and
    zones are dropped.

    An IPv4 address inside an IPv6 address (mapped, or NAT64) becomes the IPv4 address. Bits are compared, not text.
    """
    return None if text is None or len(text) > LONGEST else _parsed(text)


@lru_cache(maxsize=4096)  # only for short texts: text that a client invents must not fill the memory
def _parsed(text: str) -> Address | None:
    text = text.strip(" \t")
    if text.startswith("["):
        text, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not _is_port(rest)):
            return None
        if ":" not in text:
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(f":{port}"):
            return None
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_port(text: str) -> bool:
    return text[0] == ":" and text[1:].isascii() and text[1:].isdecimal() and len(text) <= 6


def _elements(lines: Sequence[str], header: str) -> list[str]:
    """Return the last hops in the header's lines, oldest first. A hop that cannot be read becomes an empty text."""
    text = ",".join(lines)
    end = text[-_MOST_READ:]
    is_forwarded = header.lower() == "forwarded"
    elements = _unquoted_split(end) if is_forwarded else end.rsplit(",", _MOST_HOPS)
    if len(elements) > _MOST_HOPS:
        del elements[0]
    elif len(end) < len(text):
        elements[0] = ""
    return [_forwarded_for(element) for element in elements] if is_forwarded else elements


def _unquoted_split(text: str) -> list[str]:
    """Split at the last 32 commas outside quotes. The first element is the remaining text.

    It splits from the right: then a quote that a client left open cannot hide the element of a proxy.
    """
    elements: list[str] = []
    at, backwards = 0, text[::-1]
    while at <= len(text) and len(elements) < _MOST_HOPS and (found := _BACKWARDS.match(backwards, at)):
        elements.append(found[0][::-1])
        at = found.end() + 1
    return [text[: len(text) - at], *reversed(elements)] if at <= len(text) else elements[::-1]


def _forwarded_for(element: str) -> str:
    """Return the `for` value of one element (RFC 7239 §4); "" if it has none or two, or cannot be read to its end.

    Two `for` values are ambiguous: a proxy that copies a client's header without quotes writes text that the client
    chose. Parameters are read one by one, because a quoted value may contain the text `for=`.
    """
    found: list[str] = []
    at = 0
    while at < len(element):
        pair = _PAIR.match(element, at)
        if pair is None:
            return ""
        name, quoted, plain = pair.groups()
        if name is not None and name.lower() == "for":
            found.append(plain if quoted is None else quoted)
        at = pair.end()
    return found[0] if len(found) == 1 else ""


def network_of(name: object, option: str, expected: str) -> Network:
    """Parse a network; an address is a network of one. IPv4 inside IPv6 (mapped, or NAT64) becomes the IPv4 network."""
    try:
        network: Network = ip_network(str(name))
    except (ValueError, TypeError) as error:
        raise SettingsError(option, name, problem=str(error), expected=expected) from None
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:  # addresses are unwrapped before they are compared
        first = network.network_address
        if first.ipv4_mapped is not None or first in _NAT64:
            return IPv4Network((int(first) & 0xFFFFFFFF, network.prefixlen - 96))
    return network

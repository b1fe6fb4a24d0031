"""Scans of the keys of one ban or of one identity: every server in turn, a few keys at a time, in steps for a sync or
an async driver.

It reads the values that `algorithms/ban.lua` writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from sluicegate.clock import read_us
from sluicegate.errors import StoreError, is_foreign
from sluicegate.identity import Digested
from sluicegate.plan import Terms
from sluicegate.stores.redis.commands import Command, pack
from sluicegate.stores.redis.encoding import Encoder
from sluicegate.stores.redis.failures import store_error
from sluicegate.stores.redis.server_info import if_permitted
from sluicegate.stores.redis.steps import Address, NewDeadline, Send, Steps
from sluicegate.stores.redis.topology import Topology

OVERRIDES: Final = Digested("overrides")  # it stands in their keys where a budget has the digest of an identity
_BUDGET: Final = re.compile(r":\{([\w-]{22})\}:(.+)", re.ASCII | re.DOTALL)  # as `Encoder.key` makes it
_BAN: Final = re.compile(r"\d+:\d+:(\d+):\d+", re.ASCII)  # the value that ban.lua writes; the third number is the end
_COUNT: Final = 100  # keys that a server inspects in one SCAN, before it serves other clients

T = TypeVar("T")


class Position(NamedTuple):
    """How far a scan has come."""

    servers: tuple[Address, ...]  # the current one, and those after it
    cursor: int = 0
    seen: int = 0  # keys of the current server, about
    size: int = 0  # its keys


class KeyPage(NamedTuple):
    """The budgets among a few keys. A scan may return a budget twice, if keys are added meanwhile."""

    budgets: tuple[tuple[str, str], ...]  # the digest of the identity, and the id of the rule
    following: Position | None  # where the scan goes on; None at its end
    left: float  # the servers that are still to scan, with a part of the current one
    foreign: int = 0  # keys under the prefix that are of no budget


def scan_bans(topology: Topology, encoder: Encoder, terms: Terms) -> Steps[dict[str, int]]:
    """Return the digests of the identities that the ban blocks, each with the microseconds left."""
    pattern, found = encoder.pattern(terms.rule_id), dict[str, int]()
    yield from _scan(topology, partial(_find_bans, encoder=encoder, pattern=pattern), found.update)
    return found


def scan_budgets(topology: Topology, encoder: Encoder, identity: str) -> Steps[set[str]]:
    """Return the ids of the rules under which an identity has a budget.

    Every server is asked, as for bans: the slot of the identity may be on its way to another one.
    """
    pattern, keys = encoder.pattern_of(identity), set[str | None]()
    yield from _scan(topology, partial(_find_keys, pattern=pattern), keys.update)
    return {named[1] for named in map(_named, keys) if named is not None}


def _scan(
    topology: Topology, find: Callable[[Address, int], Steps[tuple[int, T]]], add: Callable[[T], object]
) -> Steps[None]:
    """Add what is found on every server. `find` returns the next cursor too: 0 at the end."""
    for address in (yield from topology.masters()):
        cursor = 0
        while True:
            yield NewDeadline()
            cursor, part = yield from find(address, cursor)
            add(part)
            if not cursor:
                break


def scan_page(
    topology: Topology, encoder: Encoder, position: Position | None, *, identity: str | None
) -> Steps[KeyPage]:
    """Return the budgets among a few keys of one server, of one identity or of all."""
    if position is None:
        position = Position((yield from topology.masters()))
    (address, *others), cursor, seen, size = position.servers, position.cursor, position.seen, position.size
    if not cursor:
        size = yield from _size(address)
    pattern = encoder.any_pattern if identity is None else encoder.pattern_of(identity)
    cursor, keys = yield from _find_keys(address, cursor, pattern)
    seen += _COUNT
    own = encoder.key("", OVERRIDES)
    named = [_named(key) for key in keys if key is None or not key.startswith(own)]
    budgets = [each for each in named if each is not None]
    here = max(0.0, 1 - seen / size) if size else 1.0
    left = len(others) + (here if cursor else 0.0)
    following = Position(tuple(others)) if others else None
    if cursor:
        following = Position(position.servers, cursor, seen=seen, size=size)
    return KeyPage(tuple(budgets), following, left, foreign=len(named) - len(budgets))


def _size(address: Address) -> Steps[int]:
    """Return the number of keys, for a progress bar; 0 if the user of the server may not ask for it (`DBSIZE`)."""
    size = 0
    with if_permitted():
        size = int((yield from send_to(address, ["DBSIZE"])) or 0)
    return size


def _named(key: str | None) -> tuple[str, str] | None:
    """Return the digest and the rule's id of a key; None for a key that another program wrote."""
    found = None if key is None else _BUDGET.search(key)
    return None if found is None else (found[1], found[2])


def _find_keys(address: Address, cursor: int, pattern: str) -> Steps[tuple[int, list[str | None]]]:
    """Return the matching ones among a few keys: None for a key that is not UTF-8, which is not ours."""
    following, keys = yield from send_to(address, ["SCAN", cursor, "MATCH", pattern, "COUNT", _COUNT])
    return int(following), [_text(key) for key in keys]


def _find_bans(address: Address, cursor: int, *, encoder: Encoder, pattern: str) -> Steps[tuple[int, dict[str, int]]]:
    """Return the bans among a few keys."""
    following, keys = yield from _find_keys(address, cursor, pattern)
    now = read_us(encoder.clock) if keys and encoder.clock is not None else None
    if keys and now is None:
        seconds, microseconds = yield from send_to(address, ["TIME"])
        now = int(seconds) * 1_000_000 + int(microseconds)
    found = {}
    for key in keys:
        named = _named(key)
        if key is None or named is None:
            continue
        ends = yield from _end_of_ban(address, key)
        if now is not None and ends > now:
            found[named[0]] = ends - now
    return following, found


def _end_of_ban(address: Address, key: str) -> Steps[int]:
    """Return when a ban ends; 0 if it is over, or if another program wrote the key."""
    try:
        value = yield from send_to(address, ["GET", key])
    except StoreError as error:
        if not is_foreign(error):
            raise
        return 0
    found = None if value is None else _BAN.fullmatch(_text(value) or "")
    return 0 if found is None else int(found[1])


def send_to(address: Address, words: list[str | bytes | int]) -> Steps[Any]:
    """Return the reply of this server; None if the key has moved to another server."""
    reply = yield Send(address, Command(pack(*words)))
    if not isinstance(reply, Exception):
        return reply
    if str(reply).partition(" ")[0] in {"MOVED", "ASK"}:
        return None
    raise store_error(str(address), reply)


def _text(word: bytes | str) -> str | None:
    """Return a word of a reply; None if it is not UTF-8. A client that the user made may have decoded it."""
    try:
        return word.decode() if isinstance(word, bytes) else word
    except UnicodeDecodeError:
        return None

"""A walk over all keys of one ban: every server in turn, a few keys at a time, in steps that either colour takes.

It reads what `algorithms/ban.lua` writes. This module knows topologies and the wire; it does no I/O.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

from sluicegate.clock import read_us
from sluicegate.errors import StoreError
from sluicegate.plan import Terms
from sluicegate.stores.redis.asks import Address, Ask, LinkError, Steps
from sluicegate.stores.redis.commands import Command, pack
from sluicegate.stores.redis.topology import Topology
from sluicegate.stores.redis.wire import Wire

_COUNT: Final = 100  # keys that a server looks at before it serves others

T = TypeVar("T")
Walk = Generator[Steps[Any], Any, T]
"""Yields steps, each to be taken within a deadline of its own, and is sent what they come to."""


def walk(topology: Topology, wire: Wire, terms: Terms) -> Walk[dict[str, int]]:
    """The digests of all whom the ban holds for, with the microseconds that are left of it."""
    found: dict[str, int] = {}
    for address in (yield topology.masters()):
        cursor = 0
        while True:
            cursor, part = yield _look(address, wire, terms, cursor=cursor)
            found |= part
            if not cursor:
                break
    return found


def _look(address: Address, wire: Wire, terms: Terms, *, cursor: int) -> Steps[tuple[int, dict[str, int]]]:
    """The bans among a few keys, and where to go on; 0 at the end."""
    pattern = wire.pattern(terms.rule_id)
    following, keys = yield from _ask(address, ["SCAN", cursor, "MATCH", pattern, "COUNT", _COUNT])
    now = read_us(wire.clock) if keys and wire.clock is not None else None
    if keys and now is None:
        seconds, microseconds = yield from _ask(address, ["TIME"])
        now = int(seconds) * 1_000_000 + int(microseconds)
    found = {}
    for key in keys:
        value = yield from _ask(address, ["GET", key])
        ends = 0 if value is None else int(_text(value).split(":")[2])
        if now is not None and ends > now:
            found[_text(key).partition("{")[2].partition("}")[0]] = ends - now
    return int(following), found


def _ask(address: Address, words: list[str | bytes | int]) -> Steps[Any]:
    """The reply of this very server; None where the key is another's by now."""
    try:
        reply = yield Ask(address, Command(pack(*words)))
    except LinkError as error:
        raise StoreError(str(address), error.cause) from error
    if not isinstance(reply, Exception):
        return reply
    if str(reply).startswith(("MOVED", "ASK")):
        return None
    raise StoreError(str(address), str(reply))


def _text(word: bytes | str) -> str:
    """A word of a reply; a client that was handed in may have decoded it."""
    return word.decode() if isinstance(word, bytes) else word

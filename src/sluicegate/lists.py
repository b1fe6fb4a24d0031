"""The lists of those who pass whatever they do, and of those who are denied: asked before any rule and any store.

An entry is a network, an identity as the application's key gives it, or a function of the request. This module knows
addresses, keys and identities; no rule, no framework and no store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, NamedTuple

from sluicegate.address import Network, Trust, exact_address, network_of
from sluicegate.awaiting import Waiting, waits
from sluicegate.errors import SettingsError, within
from sluicegate.identity import identity_text
from sluicegate.key import Caller, KeySpec, ReadyKey, can_be, ready_key
from sluicegate.plan import FORBIDDEN, Decision, Plan

_ADDRESS: Final = re.compile(r"(?=.*[.:])[0-9A-Fa-f.:%\[\]]+(?:/.*)?|[0-9]+/.*")  # meant for one, right or wrong
_EXPECTED: Final = 'give networks like "10.0.0.0/8", identities like ["user", "42"], or functions of the request'

PASSES: Final = Plan(())  # of somebody whom no rule is asked about,
DENIED: Final = Plan((), charge=False)  # and of somebody who is refused without asking any


class Entries(NamedTuple):
    """One list, sorted by what its entries are."""

    networks: tuple[Network, ...]
    identities: frozenset[str]
    functions: tuple[Callable[[Any], Any], ...]

    @classmethod
    def of(cls, option: str, given: Iterable[Any], key: KeySpec) -> Entries:
        """SettingsError for what looks like an address and is none, and for what the key cannot give; IdentityError for
        what nobody can be.
        """
        networks, identities, functions = [], [], []
        for entry in given:
            if callable(entry):
                functions.append(entry)
            elif isinstance(entry, str) and _ADDRESS.fullmatch(entry):
                networks.append(network_of(entry, option, _EXPECTED))
            else:
                with within(option):
                    identities.append(identity_text(entry))
                if entry == "" or not can_be(key, entry) or _is_padded_address(entry):
                    problem = "names nobody: the key never gives this identity"
                    raise SettingsError(option, entry, problem=problem, expected=_as_the_key_gives(key))
        return cls(tuple(networks), frozenset(identities), tuple(functions))


class Lists:
    """Both lists of an application. Who is on both is denied."""

    def __init__(
        self, allow: Iterable[Any], deny: Iterable[Any], *, key: KeySpec, address: ReadyKey, trust: Trust
    ) -> None:
        self._lists = ((Entries.of("deny", deny, key), False), (Entries.of("allow", allow, key), True))
        self._key = ready_key(key, address)
        self._trust = trust

    @property
    def functions(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """The users' functions among the entries, each with its option."""
        lists = [("allow" if verdict else "deny", entries) for entries, verdict in self._lists]
        return [(option, function) for option, entries in lists for function in entries.functions]

    @property
    def asks_the_key(self) -> bool:
        """Whether an entry is an identity."""
        return any(entries.identities for entries, _ in self._lists)

    def plan(self, caller: Caller) -> Generator[Any, Any, None]:
        """Yield the plan of somebody whom the lists know, after what is to be awaited; of everybody else nothing."""
        verdict = yield from self._verdict(caller)
        if verdict is not None:
            yield PASSES if verdict else DENIED

    def _verdict(self, caller: Caller) -> Generator[Any, Any, bool | None]:
        """True for who passes, False for who is denied, None for everybody else."""
        text: str | None = None
        for (networks, identities, functions), verdict in self._lists:
            if networks:
                lines = caller.header(self._trust.header)
                address = exact_address(caller.peer, lines, self._trust)
                if address is not None and any(
                    [address in each for each in networks if each.version == address.version]
                ):
                    return verdict
            if identities:
                if text is None:
                    found = self._key(caller)
                    found = (yield Waiting(found, None, "key", found.function)) if waits(found) else found  # type: ignore[attr-defined]
                    text = "" if found is None else found  # no identity has an empty text
                if text in identities:
                    return verdict
            for function in functions:
                answer = function(caller.native)
                if waits(answer):
                    answer = yield Waiting(answer, None, "allow" if verdict else "deny", function)
                if answer:
                    return verdict
        return None


def _is_padded_address(entry: object) -> bool:
    return isinstance(entry, str) and _ADDRESS.fullmatch(entry.strip()) is not None


def _as_the_key_gives(key: KeySpec) -> str:
    """How an identity is written."""
    if callable(key):
        return "give what your key returns"
    if not isinstance(key, tuple):
        return f"write it as the key gives it: {_shape(key)}"
    return f"write it as the key gives it: [{', '.join(map(_shape, key))}]"


def _shape(part: object) -> str:
    """What a part of a key gives."""
    if not isinstance(part, str):
        return '"…"'
    return f'["{part.lower() if part.startswith("header:") else part}", "…"]'


def unasked(plan: Plan) -> Decision | None:
    """What a plan without checks comes to, without a store."""
    return FORBIDDEN if plan is DENIED else None


def listed(option: str, given: object) -> tuple[Any, ...]:
    """The entries that were given: one text alone, or several; lists stand for tuples, which TOML does not have."""
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, Iterable):
        raise SettingsError(option, given, problem="not a list", expected=_EXPECTED)
    return tuple([tuple(entry) if isinstance(entry, list) else entry for entry in given])

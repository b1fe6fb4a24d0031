"""Access lists: the clients that always pass (`allow`) and the clients that are refused (`deny`). No rule and no store
is consulted for them.

An entry is a network, an identity that the application's key returns, or a function of the request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, NamedTuple

from sluicegate.address import Network, Trust, exact_address, network_of
from sluicegate.awaiting import Waiting, check_call, waits
from sluicegate.errors import SettingsError, within
from sluicegate.identity import identity_text
from sluicegate.plan import FORBIDDEN, Decision, Plan
from sluicegate.rules.key import Caller, KeySpec, ReadyKey, can_be, identity_of

_ADDRESS: Final = re.compile(r"(?=.*[.:])[0-9A-Fa-f.:%\[\]]+(?:/.*)?|[0-9]+/.*")  # meant as an address
_EXPECTED: Final = 'give networks like "10.0.0.0/8", identities like ["user", "42"], or functions of the request'

PASSES: Final = Plan(())  # the plan of a client on `allow`
DENIED: Final = Plan((), charge=False)  # the plan of a client on `deny`


class AccessList(NamedTuple):
    """One access list, with its entries grouped by kind."""

    networks: tuple[Network, ...]
    identities: frozenset[str]
    functions: tuple[Callable[[Any], Any], ...]

    @classmethod
    def of(cls, option: str, given: Iterable[Any], key: KeySpec) -> AccessList:
        """Make a list from its entries. Raises SettingsError for an entry that looks like an address and is not one.
        Raises SettingsError also for an entry that the key cannot return.

        Raises IdentityError for an entry that cannot be an identity.
        """
        networks, identities, functions = [], [], []
        for entry in given:
            if callable(entry):
                check_call(option, entry, takes=("request",), error=SettingsError)
                functions.append(entry)
            elif isinstance(entry, str) and _ADDRESS.fullmatch(entry):
                networks.append(network_of(entry, option, _EXPECTED))
            else:
                with within(option):
                    identities.append(identity_text(entry))
                if entry == "" or not can_be(key, entry) or _is_padded_address(entry):
                    problem = "the key never gives this identity"
                    raise SettingsError(option, entry, problem=problem, expected=_as_the_key_gives(key))
        return cls(tuple(networks), frozenset(identities), tuple(functions))


class AccessLists:
    """Both lists of an application. A client that is on both lists is refused."""

    def __init__(self, allow: Iterable[Any], deny: Iterable[Any], *, key: KeySpec, trust: Trust) -> None:
        self._lists = ((AccessList.of("deny", deny, key), False), (AccessList.of("allow", allow, key), True))
        self._trust = trust

    @property
    def functions(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """The functions among the entries, each with the name of its option."""
        lists = [("allow" if verdict else "deny", entries) for entries, verdict in self._lists]
        return [(option, function) for option, entries in lists for function in entries.functions]

    @property
    def networks(self) -> list[tuple[str, Network]]:
        """The networks among the entries, each with the name of its option; those that decide come first."""
        return [("allow" if verdict else "deny", each) for entries, verdict in self._lists for each in entries.networks]

    @property
    def identities(self) -> list[tuple[str, str]]:
        """The texts of the identities among the entries, each with the name of its option."""
        lists = [("allow" if verdict else "deny", entries) for entries, verdict in self._lists]
        return [(option, text) for option, entries in lists for text in sorted(entries.identities)]

    @property
    def asks_the_key(self) -> bool:
        """True if an entry is an identity: then the key must be evaluated."""
        return any(entries.identities for entries, _ in self._lists)

    def plan(
        self, caller: Caller, key: ReadyKey, found: dict[ReadyKey, str | None]
    ) -> Generator[Waiting | Plan, Any, None]:
        """Yield each awaitable that must be awaited, then the plan if the caller is on a list, else no plan.

        `key` is the application's key. `found` has the keys that the request has evaluated; `identity_of` explains it.
        """
        verdict = yield from self._verdict(caller, key, found)
        if verdict is not None:
            yield PASSES if verdict else DENIED

    def _verdict(
        self, caller: Caller, key: ReadyKey, found: dict[ReadyKey, str | None]
    ) -> Generator[Waiting, Any, bool | None]:
        """Return True for a client on `allow`, False for a client on `deny`, None for other clients."""
        for (networks, identities, functions), verdict in self._lists:
            if networks:
                lines = caller.header(self._trust.header)
                address = exact_address(caller.peer, lines, self._trust)
                if address is not None and any(
                    [address in each for each in networks if each.version == address.version]
                ):
                    return verdict
            if identities:
                text = yield from identity_of(key, caller, found)
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
    """Return the hint that shows how to write an identity of this key."""
    if callable(key):
        return "give what your key returns"
    if not isinstance(key, tuple):
        return f"write it as the key gives it: {_shape(key)}"
    return f"write it as the key gives it: [{', '.join(map(_shape, key))}]"


def _shape(part: object) -> str:
    """Return an example of a value that this part of a key returns."""
    if not isinstance(part, str):
        return '"…"'
    return f'["{part.lower() if part.startswith("header:") else part}", "…"]'


def unasked(plan: Plan) -> Decision | None:
    """Return the decision of a plan without checks."""
    return FORBIDDEN if plan is DENIED else None


def listed(option: str, given: object) -> tuple[Any, ...]:
    """Return the given entries, one text or several, as a tuple. A list is accepted: TOML has no tuples."""
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, Iterable):
        raise SettingsError(option, given, problem="not a list", expected=_EXPECTED)
    return tuple([tuple(entry) if isinstance(entry, list) else entry for entry in given])

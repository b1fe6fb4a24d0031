"""Access lists: the clients that always pass (`allow`) and the clients that are refused (`deny`). No rule and no store
is consulted for them.

An entry is a network, an identity that the application's key returns, or a function of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from sluicegate.address import MEANT, Network, Trust, exact_address, is_in, network_of
from sluicegate.errors import SettingsError, within
from sluicegate.identity import identity_text
from sluicegate.plan import FORBIDDEN, Checks, Decision
from sluicegate.rules.key import Caller, KeySpec, Known, ReadyKey, as_keys_give, asked, can_be
from sluicegate.runtime.awaiting import Waiting, check_call

Function = Callable[..., object]

_EXPECTED: Final = 'give networks like "10.0.0.0/8", identities like ["user", "42"], or functions of the request'


class AccessList(NamedTuple):
    """One access list with entries, grouped by kind."""

    option: str
    networks: tuple[Network, ...]
    identities: frozenset[str]
    functions: tuple[Function, ...]

    @classmethod
    def of(cls, option: str, given: Iterable[object], key: KeySpec, *, prefix: int, ipv4_prefix: int) -> AccessList:
        """Make a list from its entries. Raises SettingsError for an entry that looks like an address and is not one.
        Raises SettingsError also for an entry that the key cannot return.

        Raises IdentityError for an entry that cannot be an identity.
        """
        networks: list[Network] = []
        identities: list[str] = []
        functions: list[Function] = []
        for entry in given:
            if callable(entry):
                check_call(option, entry, takes=("request",), error=SettingsError)
                functions.append(entry)
            elif isinstance(entry, str) and MEANT.fullmatch(entry):
                networks.append(network_of(entry, option, _EXPECTED))
            else:
                with within(option):
                    identities.append(identity_text(entry))
                fits = can_be(key, entry, prefix=prefix, ipv4_prefix=ipv4_prefix)
                if entry == "" or not fits or _is_padded_address(entry):
                    counted = as_keys_give(entry, prefix=prefix, ipv4_prefix=ipv4_prefix)
                    expected = _as_the_key_gives(key)
                    if not fits and can_be(key, counted, prefix=prefix, ipv4_prefix=ipv4_prefix):
                        expected = f"give {counted!r}, or only the address, as text"
                    problem = "the key never gives this identity"
                    raise SettingsError(option, entry, problem=problem, expected=expected)
        return cls(option, networks=tuple(networks), identities=frozenset(identities), functions=tuple(functions))

    def has(self, caller: Caller, trust: Trust, *, key: ReadyKey, known: Known) -> bool | Waiting:
        """Return whether an entry names the caller. Return a Waiting if a function must be awaited first."""
        if self.networks:
            address = exact_address(caller.peer, caller.header(trust.header), trust)
            if address is not None and is_in(address, self.networks):
                return True
        if self.identities:
            text = key(caller, known)
            if type(text) is Waiting:
                return text
            if text in self.identities:
                return True
        for function in self.functions:
            answer = asked(function, caller, known, at=("list", id(function)), rule=None, option=self.option)
            if type(answer) is Waiting:
                return answer
            if answer:
                return True
        return False


def resolve_lists(
    lists: Iterable[AccessList], caller: Caller, key: ReadyKey, *, trust: Trust, known: Known
) -> Checks | Decision | Waiting | None:
    """Return FORBIDDEN for a caller on `deny`, no checks for a caller on `allow`, and None for a caller on neither.
    Return a Waiting if a function must be awaited first.

    `lists` has `deny` before `allow`: a client that is on both is refused. `key` is the application's key. `known` has
    what the functions of users have returned for the request.
    """
    for each in lists:
        found = each.has(caller, trust, key=key, known=known)
        if type(found) is Waiting:
            return found
        if found:
            return FORBIDDEN if each.option == "deny" else ()
    return None


def _is_padded_address(entry: object) -> bool:
    return isinstance(entry, str) and MEANT.fullmatch(entry.strip()) is not None


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


def listed(option: str, given: object) -> tuple[object, ...]:
    """Return the given entries, one text or several, as a tuple. A list is accepted: TOML has no tuples."""
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, Iterable):
        raise SettingsError(option, given, problem="not a list", expected=_EXPECTED)
    return tuple([tuple(entry) if isinstance(entry, list) else entry for entry in given])

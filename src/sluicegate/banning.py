"""What a limiter can do about bans by hand: begin one, end one, and list those that hold, in both colours.

A ban by hand is a plan of one check, as many strikes at once as begin it: so it takes the way of every plan. The list
is asked of the store itself. This module knows bans, values and the store protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sluicegate.clock import MICROSECOND
from sluicegate.errors import ConfigurationError, StoreError
from sluicegate.plan import Check, Outcome, Plan

if TYPE_CHECKING:  # a limiter without bans need not import what makes them
    from datetime import timedelta

    from sluicegate.ban import Ban
    from sluicegate.stores import AsyncStore, Store


class Banning:
    """The part of Limiter that is about bans."""

    store: Store
    _opened: Any
    _text: Callable[[object], str]

    def ban(self, identity: object, ban: Ban, duration: float | str | timedelta | None = None) -> None:
        """Ban an identity from now on, whether it is banned already or not.

        For `duration` (seconds, a timedelta, or words like "1 day"), else for as long as its next ban would last.
        It counts as one of the bans that make the next one longer. StoreError when the store does not answer.
        """
        _sure(self.store.run(_by_hand(self._text(identity), ban, duration)))

    def unban(self, identity: object, ban: Ban) -> None:
        """End a ban, and forget the strikes and the bans before. Other processes may remember it for `deny_cache`."""
        self.store.forget(ban.terms.rule_id, self._text(identity))

    def bans(self, ban: Ban) -> dict[str, float]:
        """Whom the ban holds for, and the seconds left of it.

        Identities are told by their digests, which is all that a store knows of them. Looks at every key of the store
        in small steps. ConfigurationError where a store cannot list them.
        """
        return _in_seconds(_lister(self._opened)(ban.terms))


class AsyncBanning:
    """The same for AsyncLimiter."""

    store: AsyncStore
    _opened: Any
    _text: Callable[[object], str]

    async def ban(self, identity: object, ban: Ban, duration: float | str | timedelta | None = None) -> None:
        """Ban an identity from now on, whether it is banned already or not."""
        _sure(await self.store.run(_by_hand(self._text(identity), ban, duration)))

    async def unban(self, identity: object, ban: Ban) -> None:
        """End a ban, and forget the strikes and the bans before."""
        await self.store.forget(ban.terms.rule_id, self._text(identity))

    async def bans(self, ban: Ban) -> dict[str, float]:
        """Whom the ban holds for, by digest, and the seconds left of it."""
        return _in_seconds(await _lister(self._opened)(ban.terms))


def _by_hand(text: str, ban: Ban, duration: float | str | timedelta | None) -> Plan:
    """As many strikes at once as begin a ban."""
    terms = ban.terms if duration is None else ban.lasting(duration)
    return Plan((Check(terms, text, ban.after),))


def _sure(outcomes: tuple[Outcome, ...]) -> None:
    """StoreError where only this process knows of the ban."""
    if any([outcome.source != "store" for outcome in outcomes]):
        raise StoreError("of this limiter", "it does not answer, so the ban does not hold for other processes")


def _lister(store: Any) -> Any:
    found = getattr(store, "bans", None)
    if found is None:
        problem, expected = "this store cannot list bans", "keep them in a memory:// or redis:// store"
        raise ConfigurationError("store", store, problem=problem, expected=expected)
    return found


def _in_seconds(found: dict[str, int]) -> dict[str, float]:
    return {name: left / MICROSECOND for name, left in found.items()}

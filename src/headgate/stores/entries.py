"""What a memory store keeps of identities: at most so many entries, whoever comes. No scan, and nobody is freed.

A new entry looks at a few old ones, in turn, and takes away what has expired. In a full store the one of them goes that
has the most of its limit left: a flood of newcomers drives out itself. If none may go, because each of them is refused
at present, the newcomer shares one budget with all others in that position, and stays with it.
Strikes towards a ban are not shared, for all newcomers would be banned for one: they are not counted then.
This module knows values; no algorithm, no clock and no lock.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any, Final

from headgate.plan import BAN, Check, Outcome, Terms

SHARED: Final = 1_000  # budgets of newcomers, when it is full
GUESTS: Final = 1_000  # of one shared budget, who are remembered
_LOOKS: Final = 8  # keys looked at, at most, to make room for a new one
_CHOICES: Final = 4  # of which one goes
_SWEEP: Final = 2  # and while there is room: twice as fast as keys come, so that what has expired goes
WHOLE: Final = 256  # of a limit; Python keeps the integers up to this one ready-made
_GONE: Final = -1  # the expiry of an entry that made room for another

Key = tuple[str, str]  # the rule's id, and the identity
_Kind = tuple[str, tuple[int, ...], bool, bool]  # what rules have in common whose newcomers share a budget


class Entry:
    """The state of one identity under one rule."""

    __slots__ = ("expires", "left", "refused_until", "state")

    def __init__(self, state: Any = None) -> None:
        self.expires = 0
        self.left = WHOLE  # of the limit, in so many parts of it
        self.refused_until = 0
        self.state = state

    @property
    def gone(self) -> bool:
        """Whether it has made room for another."""
        return self.expires == _GONE

    def mark(self, check: Check, outcome: Outcome, now: int) -> None:
        """Note after a charge how long this is needed, and for how long it must not make room for others."""
        self.expires = now + outcome.reset_after
        if not check.terms.shadow:  # who is only looked at makes room first
            remaining = outcome.remaining
            self.left = remaining * WHOLE // outcome.limit
            if remaining == 0:
                self.refused_until = now + outcome.next_after

    def forget(self) -> None:
        """Be as good as new. Whoever looks for room comes by and takes it away."""
        self.expires = self.refused_until = 0
        self.left = WHOLE
        self.state = None


class Shared(Entry):
    """One budget for all newcomers under rules of one algorithm, limit and period, while the store is full.

    Whoever was charged here is a guest until it is whole again, though there be room by then: a budget of one's own
    would be the forgiveness of this one.
    """

    __slots__ = ("guests",)

    def __init__(self) -> None:
        super().__init__()
        self.guests: dict[Key, None] = {}

    def welcome(self, key: Key, now: int) -> None:
        """Remember a guest; of very many, the latest."""
        if self.expires <= now:
            self.guests.clear()
        self.guests[key] = None
        if len(self.guests) > GUESTS:
            del self.guests[next(iter(self.guests))]


class Entries:
    """The entries of one store, by key, and the shared budgets of those who find no room."""

    def __init__(self, most: int) -> None:
        self.by_key: dict[Key, Entry] = {}
        self._most = most
        self._hand: deque[Key] = deque()  # every key once, in the order in which they are looked at
        self._shared: dict[_Kind, Shared] = {}

    def find(self, check: Check, now: int) -> Entry | None:
        """What a check reads; None when nothing is known and a key may still be added. Nobody has to go for that."""
        entry = self.by_key.get((check.terms.rule_id, check.identity))
        if entry is not None or check.terms.algorithm == BAN:
            return entry
        shared = self._host(check) if self._shared else None
        if shared is not None and shared.expires > now:
            return shared
        return None if self.has_room(now) else self._share(check)

    def of(self, check: Check) -> Entry | None:
        """What a check was charged to: its own, or what its identity shared with others."""
        entry = self.by_key.get((check.terms.rule_id, check.identity))
        return self._host(check) if entry is None else entry

    def admit(self, check: Check, now: int, *, state: Any = None) -> Entry:
        """The entry of a newcomer, to be charged: a new one, or the one to share."""
        if len(self.by_key) >= self._most and not self._make_room(now) and check.terms.algorithm != BAN:
            return self._share(check)
        self._sweep(now)
        key = (check.terms.rule_id, check.identity)
        entry = self.by_key.get(key)  # there already if a plan, which should not, names one budget twice
        if entry is None:
            entry = self.by_key[key] = Entry(state)
            self._hand.append(key)
        return entry

    def has_room(self, now: int) -> bool:
        """Whether a key may be added. If all of the next few are refused, others are looked at next time."""
        if len(self.by_key) < self._most:
            return True
        for key in islice(self._hand, _LOOKS):
            if self.by_key[key].refused_until <= now:
                return True
        self._hand.rotate(-_LOOKS)
        return False

    def clear(self) -> None:
        """Forget everything."""
        self.by_key.clear()
        self._hand.clear()
        self._shared.clear()

    def _host(self, check: Check) -> Shared | None:
        """The shared budget whose guest this identity is."""
        shared = self._shared.get(_kind(check.terms))
        return shared if shared is not None and (check.terms.rule_id, check.identity) in shared.guests else None

    def _share(self, check: Check) -> Shared:
        """The shared budget for rules of this kind."""
        kind = _kind(check.terms)
        found = self._shared.get(kind)
        if found is None:
            if len(self._shared) >= SHARED:  # quotas that are made for each request have no end
                del self._shared[next(iter(self._shared))]
            found = self._shared[kind] = Shared()
        return found

    def _sweep(self, now: int) -> None:
        """Take away what has expired among the next few keys."""
        for _ in range(min(_SWEEP, len(self._hand))):
            key = self._hand.popleft()
            if self.by_key[key].expires <= now:
                self.by_key.pop(key).expires = _GONE
            else:
                self._hand.append(key)

    def _make_room(self, now: int) -> bool:
        """Take away one of the next few keys; False if all of them are refused at present.

        The first that has expired goes, else of four the one with the most of its limit left, whom it changes least.
        """
        hand, by_key = self._hand, self.by_key
        most, at, seen, choices = -1, -1, 0, _CHOICES
        for seen, key in enumerate(islice(hand, _LOOKS)):
            entry = by_key[key]
            if entry.expires <= now:
                at = seen
                break
            if entry.refused_until <= now:
                if entry.left > most:
                    most, at = entry.left, seen
                choices -= 1
                if not choices:
                    break
        if at < 0:
            hand.rotate(-_LOOKS)
            return False
        by_key.pop(hand[at]).expires = _GONE
        del hand[at]
        hand.rotate(-seen)
        return True


def _kind(terms: Terms) -> _Kind:
    return terms.algorithm, terms.params, terms.held, terms.shadow

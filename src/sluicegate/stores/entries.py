"""The bounded table of a memory store. Evicts without scanning, and never evicts an identity that is refused.

Each new entry inspects a few old ones, in turn, and removes the expired ones. A full table evicts the one of them that
has the most of its limit left, so a flood of newcomers evicts its own entries. If all of them are refused at present,
the newcomer gets no entry. It uses a shared budget until that has fully reset. A hash with a secret of this store
spreads the networks of newcomers over the shared budgets. So one network can use up one budget of each kind of rule,
and cannot know which other networks share it.
Strikes towards a ban are not counted on a shared budget: one client would ban all the others.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from os import urandom
from typing import Any, Final

from sluicegate.identity import Seal
from sluicegate.plan import BAN, Check, Outcome, Terms

PLACES: Final = 1_024  # shared budgets for the newcomers under one kind of rule, when the table is full
SHARED: Final = 4_096  # shared budgets in all; when they are in use, each further kind has one for all newcomers
KINDS: Final = 1_000  # such further kinds
GUESTS: Final = 1_000  # identities that one shared budget remembers
HOSTED: Final = 20_000  # identities that all shared budgets remember
_LOOKS: Final = 8  # keys looked at, at most, to make room for a new one
_CHOICES: Final = 4  # of which one goes
_SWEEP: Final = 2  # and while there is room: twice as fast as keys come, so that what has expired goes
WHOLE: Final = 256  # of a limit; Python keeps the integers up to this one ready-made
_GONE: Final = -1  # the expiry of an entry that made room for another

Key = tuple[str, str]  # the rule's id, and the identity
Network = Callable[[], str] | None  # what says which network a request came from
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
    """One budget for newcomers from some networks, under rules of one algorithm, limit and period.

    An identity charged here keeps using this shared budget until it has fully reset. Moving it to its own entry earlier
    would erase its usage.
    """

    __slots__ = ("guests",)

    def __init__(self) -> None:
        super().__init__()
        self.guests: dict[Key, None] = {}


class Entries:
    """The entries of one store, by key, and the shared budgets of those who find no room."""

    def __init__(self, most: int) -> None:
        self.by_key: dict[Key, Entry] = {}
        self._most = most
        self._hand: deque[Key] = deque()  # every key once, in the order in which they are looked at
        self._shared: OrderedDict[tuple[_Kind, int], Shared] = OrderedDict()
        self._common: dict[_Kind, Shared] = {}  # where there is no room for more of those
        self._hosts: dict[Key, Shared] = {}  # by their guests
        self._seal: Callable[[str], str] | None = None

    def find(self, check: Check, now: int, network: Network) -> Entry | None:
        """What a check reads; None when nothing is known and a key may still be added. Nobody has to go for that."""
        entry = self.by_key.get((check.terms.rule_id, check.identity))
        if entry is not None or check.terms.algorithm == BAN:
            return entry
        host = self._hosts.get((check.terms.rule_id, check.identity)) if self._hosts else None
        if host is not None and host.expires > now:
            return host
        return None if self.has_room(now) else self._share(check, now, network)

    def of(self, check: Check) -> Entry | None:
        """What a check was charged to: its own, or what its identity shared with others."""
        key = (check.terms.rule_id, check.identity)
        entry = self.by_key.get(key)
        return self._hosts.get(key) if entry is None else entry

    def admit(self, check: Check, now: int, *, state: Any = None, network: Network = None) -> Entry:
        """The entry of a newcomer, to be charged: a new one, or the one to share."""
        if len(self.by_key) >= self._most and not self._make_room(now) and check.terms.algorithm != BAN:
            return self._share(check, now, network)
        self._sweep(now)
        if self._shared:
            self._tidy(now)
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
        self._common.clear()
        self._hosts.clear()

    def welcome(self, check: Check, host: Shared, now: int) -> None:
        """Remember a guest. Of very many guests of one budget, only the latest are remembered."""
        if host.expires <= now:
            self._part(host)
        key = (check.terms.rule_id, check.identity)
        host.guests[key] = None
        self._hosts[key] = host
        if len(host.guests) > GUESTS or len(self._hosts) > HOSTED:
            self._leave(host, next(iter(host.guests)))

    def _share(self, check: Check, now: int, network: Network) -> Shared:
        """The shared budget for rules of this kind and newcomers from this network."""
        kind = _kind(check.terms)
        place = kind, self._place(check.identity if network is None else network())
        found = self._shared.get(place)
        if found is None:
            if not self._tidy(now) and len(self._shared) >= SHARED:
                return self._share_with_all(kind)
            found = self._shared[place] = Shared()
        return found

    def _share_with_all(self, kind: _Kind) -> Shared:
        """The one budget for newcomers under a kind of rule that there are no more places for."""
        found = self._common.get(kind)
        if found is None:
            if len(self._common) >= KINDS:  # quotas that are made for each request have no end
                oldest = self._common.pop(next(iter(self._common)))
                self._part(oldest)
                oldest.expires = _GONE
            found = self._common[kind] = Shared()
        return found

    def _place(self, network: str) -> int:
        """Where newcomers from a network go. Nobody outside can know who else goes there."""
        if self._seal is None:
            self._seal = Seal(urandom(16)).text
        return int(self._seal(network)[-8:], 16) % PLACES

    def _tidy(self, now: int) -> bool:
        """Take away what has fully reset among the next few shared budgets; False if none has."""
        before = len(self._shared)
        for _ in range(min(_SWEEP, before)):
            place, shared = self._shared.popitem(last=False)
            if shared.expires <= now:
                self._part(shared)
                shared.expires = _GONE
            else:
                self._shared[place] = shared
        return len(self._shared) < before

    def _part(self, host: Shared) -> None:
        """Forget all identities that use a shared budget."""
        for key in list(host.guests):
            self._leave(host, key)

    def _leave(self, host: Shared, key: Key) -> None:
        del host.guests[key]
        if self._hosts.get(key) is host:
            del self._hosts[key]

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

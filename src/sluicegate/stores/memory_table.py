"""The bounded table of a memory store. Evicts without scanning, and never evicts an identity that is currently refused.

Each new entry inspects a few old ones, in turn, and removes the expired ones. A full table evicts the one of them that
has the most of its limit left, so a flood of new identities evicts its own entries. If all of them are refused at
present, the new identity gets no entry. It uses a shared budget until that has fully reset. A hash with a secret of
this store spreads the networks of new identities over the shared budgets. So one network can use up one budget of each
kind of rule, and cannot know which other networks share it. Strikes towards a ban are not counted on a shared budget:
one client would ban all the others.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from os import urandom
from typing import Any, Final

from sluicegate.identity import Seal
from sluicegate.plan import BAN, Check, Outcome, Terms

BUCKETS: Final = 1_024  # shared budgets for new identities under one kind of rule, when the table is full
SHARED: Final = 4_096  # shared budgets in all; when they are in use, each further kind has one for all new identities
KINDS: Final = 1_000  # how many further kinds
USERS: Final = 1_000  # identities that one shared budget remembers
SHARING: Final = 20_000  # identities that all shared budgets remember
_LOOKS: Final = 8  # keys that are inspected, at most, to evict one
_CHOICES: Final = 4  # candidates, of which one is evicted
_SWEEP: Final = 2  # keys inspected for a new one while the table has room: expired keys leave faster than new ones come
WHOLE: Final = 256  # a whole limit; Python caches the integers up to this one
_EVICTED: Final = -1  # the expiry of an evicted entry

Key = tuple[str, str]  # the rule's id, and the identity
Network = Callable[[], str] | None  # returns the network that a request came from
_Kind = tuple[str, tuple[int, ...], bool, bool]  # rules of one kind have shared budgets in common


class Entry:
    """The state of one identity under one rule."""

    __slots__ = ("expires", "left", "refused_until", "state")

    def __init__(self, state: Any = None) -> None:
        self.expires = 0
        self.left = WHOLE  # how much of the limit is left, in parts of WHOLE
        self.refused_until = 0
        self.state = state

    @property
    def evicted(self) -> bool:
        """True if it was evicted."""
        return self.expires == _EVICTED

    def mark(self, terms: Terms, outcome: Outcome, now: int) -> None:
        """Note after a charge when the entry expires, and until when it must not be evicted."""
        self.expires = now + outcome.reset_after
        if not terms.shadow:  # the entry of a shadow rule is evicted first
            remaining = outcome.remaining
            self.left = remaining * WHOLE // outcome.limit
            if remaining == 0:
                self.refused_until = now + outcome.next_after

    def forget(self) -> None:
        """Reset the entry. The next inspection removes it."""
        self.expires = self.refused_until = 0
        self.left = WHOLE
        self.state = None


class SharedBudget(Entry):
    """One budget for new identities from several networks, under rules of one algorithm, limit and period.

    An identity charged here keeps using this shared budget until it has fully reset. Moving it to its own entry earlier
    would erase its usage.
    """

    __slots__ = ("users",)

    def __init__(self) -> None:
        super().__init__()
        self.users: dict[Key, None] = {}


class MemoryTable:
    """The entries of one store, by key, and the shared budgets of identities without an entry."""

    def __init__(self, most: int) -> None:
        self.by_key: dict[Key, Entry] = {}
        self._most = most
        self.evictions = 0
        self._queue: deque[Key] = deque()  # every key once, in the order of inspection
        self._shared: OrderedDict[tuple[_Kind, int], SharedBudget] = OrderedDict()
        self._common: dict[_Kind, SharedBudget] = {}  # one for each kind, when there are too many of the others
        self._budget_of: dict[Key, SharedBudget] = {}  # the shared budget of each of its users
        self._seal: Callable[[str], str] | None = None

    def find(self, check: Check, now: int, network: Network) -> Entry | None:
        """Return the entry that a check reads; None if there is no entry and a key may be added. Evicts nothing."""
        entry = self.by_key.get((check.terms.rule_id, check.identity))
        if entry is not None or check.terms.algorithm == BAN:
            return entry
        budget = self._budget_of.get((check.terms.rule_id, check.identity)) if self._budget_of else None
        if budget is not None and budget.expires > now:
            return budget
        return None if self.has_room(now) else self._shared_budget(check, now, network)

    def of(self, check: Check) -> Entry | None:
        """Return the entry that a check was charged to: the identity's own entry, or a shared budget. None if there is
        no such entry.
        """
        key = (check.terms.rule_id, check.identity)
        entry = self.by_key.get(key)
        return self._budget_of.get(key) if entry is None else entry

    def admit(self, check: Check, now: int, *, state: Any = None, network: Network = None) -> Entry:
        """Return the entry to charge for a new identity: a new entry, or a shared budget."""
        if len(self.by_key) >= self._most and not self._make_room(now) and check.terms.algorithm != BAN:
            return self._shared_budget(check, now, network)
        self._sweep(now)
        if self._shared:
            self._tidy(now)
        key = (check.terms.rule_id, check.identity)
        entry = self.by_key.get(key)  # already there if a plan names one budget twice, which it should not
        if entry is None:
            entry = self.by_key[key] = Entry(state)
            self._queue.append(key)
        return entry

    def has_room(self, now: int) -> bool:
        """True if a key may be added. If all of the next few are refused, the next call inspects others."""
        if len(self.by_key) < self._most:
            return True
        for key in islice(self._queue, _LOOKS):
            if self.by_key[key].refused_until <= now:
                return True
        self._queue.rotate(-_LOOKS)
        return False

    def clear(self) -> None:
        """Drop all entries and shared budgets."""
        self.by_key.clear()
        self._queue.clear()
        self._shared.clear()
        self._common.clear()
        self._budget_of.clear()

    def add_user(self, check: Check, budget: SharedBudget, now: int) -> None:
        """Remember that an identity uses a shared budget. Only the latest users are remembered."""
        if budget.expires <= now:
            self._remove_users(budget)
        key = (check.terms.rule_id, check.identity)
        budget.users[key] = None
        self._budget_of[key] = budget
        if len(budget.users) > USERS or len(self._budget_of) > SHARING:
            self._remove_user(budget, next(iter(budget.users)))

    def _shared_budget(self, check: Check, now: int, network: Network) -> SharedBudget:
        """Return the shared budget that new identities from this network use under rules of this kind (same algorithm,
        limit and period).
        """
        kind = _kind(check.terms)
        bucket = kind, self._bucket_of(check.identity if network is None else network())
        found = self._shared.get(bucket)
        if found is None:
            if not self._tidy(now) and len(self._shared) >= SHARED:
                return self._common_budget(kind)
            found = self._shared[bucket] = SharedBudget()
        return found

    def _common_budget(self, kind: _Kind) -> SharedBudget:
        """Return the one shared budget for all new identities under a kind of rule, when there are too many shared
        budgets.
        """
        found = self._common.get(kind)
        if found is None:
            if len(self._common) >= KINDS:  # quotas that are made for each request would grow without bound
                oldest = self._common.pop(next(iter(self._common)))
                self._remove_users(oldest)
                oldest.expires = _EVICTED
            found = self._common[kind] = SharedBudget()
        return found

    def _bucket_of(self, network: str) -> int:
        """Return the bucket of a network. It depends on a secret, so a client cannot know which other networks are in
        it.
        """
        if self._seal is None:
            self._seal = Seal(urandom(16)).text
        return int(self._seal(network)[-8:], 16) % BUCKETS

    def _tidy(self, now: int) -> bool:
        """Remove the fully reset ones among the next few shared budgets; False if there is none."""
        before = len(self._shared)
        for _ in range(min(_SWEEP, before)):
            bucket, shared = self._shared.popitem(last=False)
            if shared.expires <= now:
                self._remove_users(shared)
                shared.expires = _EVICTED
            else:
                self._shared[bucket] = shared
        return len(self._shared) < before

    def _remove_users(self, budget: SharedBudget) -> None:
        """Remove all users of a shared budget."""
        for key in list(budget.users):
            self._remove_user(budget, key)

    def _remove_user(self, budget: SharedBudget, key: Key) -> None:
        del budget.users[key]
        if self._budget_of.get(key) is budget:
            del self._budget_of[key]

    def _sweep(self, now: int) -> None:
        """Remove the expired ones among the next few keys."""
        for _ in range(min(_SWEEP, len(self._queue))):
            key = self._queue.popleft()
            if self.by_key[key].expires <= now:
                self.by_key.pop(key).expires = _EVICTED
            else:
                self._queue.append(key)

    def _make_room(self, now: int) -> bool:
        """Evict one of the next few keys; False if all of them are currently refused.

        The first expired key is evicted. If none has expired: of four, the one with the most of its limit left, because
        eviction changes least for it.
        """
        queue, by_key = self._queue, self.by_key
        most, at, seen, choices = -1, -1, 0, _CHOICES
        for seen, key in enumerate(islice(queue, _LOOKS)):
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
            queue.rotate(-_LOOKS)
            return False
        key = queue[at]
        del queue[at]  # first: a signal handler may raise after any step, and each key in the queue must be in `by_key`
        queue.rotate(-seen)
        entry = by_key.pop(key)
        self.evictions += entry.expires > now
        entry.expires = _EVICTED
        return True


def _kind(terms: Terms) -> _Kind:
    return terms.algorithm, terms.params, terms.held, terms.shadow

"""The bounded table of a memory store. Evicts without scanning, and never evicts an identity that is currently refused.

Each new entry inspects a few old ones, in turn, and removes the expired ones. A full table evicts the one of them that
has the most of its limit left, so a flood of new identities evicts its own entries. If all of them are refused at
present, the new identity gets no entry. It uses a shared budget until that has fully reset. A hash with a secret of
this store spreads the networks of new identities over the shared budgets. So one network can use up one budget of each
kind of rule, and cannot know which other networks share it. Strikes towards a ban are not counted on a shared budget:
one client would ban all the others.

A signal handler or a finalizer may decide, or raise, after any call and in each round of a loop. So no call is between
a look into a table and the change of it, and every state that an exception leaves is cleaned up later.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from os import urandom
from typing import Any, Final, TypeVar

from sluicegate.algorithms import KEPT
from sluicegate.identity import Seal
from sluicegate.plan import BAN, Check, Network, Outcome, Terms

BUCKETS: Final = 1_024  # shared budgets for new identities under one kind of rule, when the table is full
SHARED: Final = 4_096  # shared budgets in all; when they are in use, each further kind has one for all new identities
KINDS: Final = 1_000  # how many further kinds
USERS: Final = 1_000  # identities that one shared budget remembers
SHARING: Final = 20_000  # identities that all shared budgets remember
_LOOKS: Final = 8  # keys that are inspected, at most, to evict one
_CHOICES: Final = 4  # candidates, of which one is evicted
_SWEEP: Final = 2  # keys inspected for a new one while the table has room: expired keys leave faster than new ones come
_EVICTED: Final = -1  # the expiry of an evicted entry: below any time, and not 0, which means that it is not known

Key = tuple[str, str]  # the rule's id, and the identity
_Kind = tuple[str, tuple[int, ...], bool, bool]  # rules of one kind have shared budgets in common
_K = TypeVar("_K")
_V = TypeVar("_V")


class Entry:
    """The state of one identity under one rule."""

    __slots__ = ("expires", "identity", "refused_until", "remaining", "state", "terms")

    def __init__(self, terms: Terms, identity: str = "", state: Any = None) -> None:
        self.terms, self.identity, self.state = terms, identity, state
        self.expires = 0  # not known while a charge is made: `mark` notes it
        self.refused_until = self.remaining = 0

    @property
    def evicted(self) -> bool:
        """True if it was evicted."""
        return self.expires == _EVICTED

    def mark(self, terms: Terms, outcome: Outcome, now: int) -> None:
        """Note after a charge what is left, when the entry expires, and until when it must not be evicted."""
        self.terms, self.expires = terms, now + outcome.reset_after
        left = self.remaining = outcome.remaining
        if not (left or terms.shadow):
            self.refused_until = now + outcome.next_after

    def expired(self, now: int) -> bool:
        """True if nothing of the limit is used: removing the entry changes no outcome."""
        if self.expires == 0:
            terms = self.terms
            self.expires = now + KEPT[terms.algorithm].check(self.state, now, 0, terms.params).reset_after
        return self.expires <= now

    def forget(self) -> None:
        """Reset the entry. The next inspection removes it."""
        self.expires = self.refused_until = 0
        self.state = None


class SharedBudget(Entry):
    """One budget for new identities from several networks, under rules of one algorithm, limit and period.

    An identity charged here keeps using this shared budget until it has fully reset. Moving it to its own entry earlier
    would erase its usage.
    """

    __slots__ = ("users",)

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.users: dict[Key, None] = {}


class MemoryTable:
    """The entries of one store, and the shared budgets of identities without an entry."""

    def __init__(self, most: int) -> None:
        self.by_rule: dict[str, dict[str, Entry]] = {}  # by the rule's id and the identity; no rule without an entry
        self.most = most
        self.evictions = 0
        self._queue: deque[Entry] = deque()  # every entry once, in the order of inspection
        self._shared: OrderedDict[tuple[_Kind, int], SharedBudget] = OrderedDict()
        self._common: dict[_Kind, SharedBudget] = {}  # one for each kind, when there are too many of the others
        self._budget_of: dict[Key, SharedBudget] = {}  # the shared budget of each of its users
        self._seal: Callable[[str], str] | None = None

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._queue)

    def get(self, rule_id: str, identity: str) -> Entry | None:
        """Return the identity's own entry."""
        known = self.by_rule.get(rule_id)
        return None if known is None else known.get(identity)

    def find(self, check: Check, now: int, network: Network) -> Entry | None:
        """Return the entry that a check reads; None if there is no entry and a key may be added. Evicts nothing."""
        entry = self.get(check.terms.rule_id, check.identity)
        if entry is not None or check.terms.algorithm == BAN:
            return entry
        budget = self._budget_of.get((check.terms.rule_id, check.identity)) if self._budget_of else None
        if budget is not None and not budget.expired(now):
            return budget
        return None if self.has_room(now) else self._shared_budget(check, now, network)

    def of(self, check: Check) -> Entry | None:
        """Return the entry that a check was charged to: the identity's own or a shared budget. None if it has none."""
        key = (check.terms.rule_id, check.identity)
        entry = self.get(*key)
        return self._budget_of.get(key) if entry is None else entry

    def admit(self, check: Check, now: int, *, state: Any = None, network: Network = None) -> Entry:
        """Return the entry to charge for a new identity: a new entry, or a shared budget."""
        terms, identity, _ = check
        if len(self._queue) >= self.most and not self._make_room(now) and terms.algorithm != BAN:
            return self._shared_budget(check, now, network)
        self._sweep(now)
        if self._shared:
            self._tidy(now)
        rules, rule_id, entry = self.by_rule, terms.rule_id, Entry(terms, identity, state)
        # No call until it is in: after one a signal handler may decide, and drop the rule's table with its last entry.
        if rule_id not in rules:
            rules[rule_id] = {identity: entry}
        elif identity not in rules[rule_id]:
            rules[rule_id][identity] = entry
        else:  # a plan names one budget twice, which it should not
            return rules[rule_id][identity]
        self._queue.append(entry)
        return entry

    def has_room(self, now: int) -> bool:
        """True if a key may be added. If all of the next few are refused, the next call inspects others."""
        if len(self._queue) < self.most:
            return True
        for entry in self._next():
            if entry.refused_until <= now:
                return True
        self._queue.rotate(-_LOOKS)
        return False

    def clear(self) -> None:
        """Drop all entries and shared budgets."""
        self._queue.clear()
        for known in list(self.by_rule.values()):
            known.clear()
        self.by_rule.clear()
        self._shared.clear()
        self._common.clear()
        self._budget_of.clear()

    def add_user(self, check: Check, budget: SharedBudget, now: int) -> None:
        """Remember that an identity uses a shared budget. Only the latest users are remembered."""
        if budget.expired(now):
            self._remove_users(budget)
        key = (check.terms.rule_id, check.identity)
        budget.users[key] = None
        self._budget_of[key] = budget
        if len(budget.users) > USERS or len(self._budget_of) > SHARING:
            for oldest, _ in _first(budget.users):
                self._remove_user(budget, oldest)

    def _shared_budget(self, check: Check, now: int, network: Network) -> SharedBudget:
        """Return the shared budget of new identities of this network under rules of one algorithm, limit and period."""
        terms = check.terms
        kind = terms.algorithm, terms.params, terms.held, terms.shadow
        bucket = kind, self._bucket_of(check.identity if network is None else network())
        found = self._shared.get(bucket)
        if found is None:
            if not self._tidy(now) and len(self._shared) >= SHARED:
                return self._common_budget(kind, terms)
            found = self._shared[bucket] = SharedBudget(terms)
        return found

    def _common_budget(self, kind: _Kind, terms: Terms) -> SharedBudget:
        """Return the one budget of all new identities under a kind of rule, if there are too many shared budgets."""
        found = self._common.get(kind)
        if found is None:
            if len(self._common) >= KINDS:  # quotas that are made for each request would grow without bound
                for oldest, budget in _first(self._common):
                    self._remove_users(budget)
                    self._common.pop(oldest, None)
            found = self._common[kind] = SharedBudget(terms)
        return found

    def _bucket_of(self, network: str) -> int:
        """Return the bucket of a network. It depends on a secret, so no client can know which networks share it."""
        if self._seal is None:
            self._seal = Seal(urandom(16)).text
        return int(self._seal(network)[-8:], 16) % BUCKETS

    def _tidy(self, now: int) -> bool:
        """Remove the fully reset ones among the next few shared budgets; False if there is none."""
        tidied = False
        for _ in range(_SWEEP):
            for bucket, shared in _first(self._shared):
                if shared.expired(now):
                    self._remove_users(shared)
                    self._shared.pop(bucket, None)
                    tidied = True
                elif bucket in self._shared:
                    self._shared.move_to_end(bucket)
        return tidied

    def _remove_users(self, budget: SharedBudget) -> None:
        """Remove all users of a shared budget, which has fully reset or is evicted."""
        for key in list(budget.users):
            self._remove_user(budget, key)
        budget.expires = _EVICTED

    def _remove_user(self, budget: SharedBudget, key: Key) -> None:
        known = self._budget_of
        if key in known and known[key] is budget:
            del known[key]
        budget.users.pop(key, None)

    def _sweep(self, now: int) -> None:
        """Remove the expired ones among the next few entries."""
        queue = self._queue
        for _ in range(_SWEEP):
            if not queue:
                return
            entry = queue[0]
            if entry.expired(now):
                self._remove(entry)
            else:
                queue.rotate(-1)

    def _make_room(self, now: int) -> bool:
        """Evict one of the next few entries; False if all of them are currently refused.

        Of four, it is the one with the most of its limit left, because eviction changes least for it. An expired entry
        has all of it left; an entry of a shadow rule counts as if it had.
        """
        queue, chosen = self._queue, None
        most, seen, choices = -1.0, 0, _CHOICES
        for entry in self._next():
            seen += 1
            if entry.refused_until > now:
                continue
            terms = entry.terms
            left = 1.0 if entry.expired(now) or terms.shadow else entry.remaining / terms.params[0]
            if left > most:
                most, chosen = left, entry
            choices -= 1
            if left == 1 or not choices:
                break
        if chosen is None:
            queue.rotate(-_LOOKS)
            return False
        self.evictions += chosen.expires > now
        self._remove(chosen)
        queue.rotate(1 - seen)
        return True

    def _next(self) -> tuple[Entry, ...]:
        """Return the next few entries: a copy, because a signal handler that decides may change the queue."""
        try:
            return tuple(islice(self._queue, _LOOKS))
        except RuntimeError:  # it has done so between the two calls
            return self._next()

    def _remove(self, entry: Entry) -> None:
        """Remove an entry. The only call is the last step, so no signal handler finds it half removed."""
        rules, rule_id, identity = self.by_rule, entry.terms.rule_id, entry.identity
        if rule_id in rules and identity in rules[rule_id] and rules[rule_id][identity] is entry:
            del rules[rule_id][identity]
            if not rules[rule_id]:
                del rules[rule_id]
        entry.expires = _EVICTED
        try:
            self._queue.remove(entry)
        except ValueError:  # a signal handler that decides has removed it
            return


def _first(table: dict[_K, _V]) -> tuple[tuple[_K, _V], ...]:
    """Return the first item of a table, or nothing if the table is empty."""
    for item in table.items():  # not `next(iter(…))`: between the two calls a signal handler may change the table
        return (item,)
    return ()

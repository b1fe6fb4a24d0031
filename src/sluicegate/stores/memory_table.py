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
from collections.abc import Container
from itertools import islice
from os import urandom
from typing import Any, Final, TypeVar

from sluicegate.algorithms import KEPT
from sluicegate.identity import Seal
from sluicegate.plan import BAN, Check, Network, Terms

BUCKETS: Final = 1_024  # shared budgets for new identities under one kind of rule, when the table is full
SHARED: Final = 4_096  # shared budgets in all; when they are in use, each further kind has one for all new identities
KINDS: Final = 1_000  # how many further kinds
USERS: Final = 1_000  # identities that one shared budget remembers
SHARING: Final = 20_000  # identities that all shared budgets remember
_LOOKS: Final = 8  # keys that are inspected, at most, to evict one
_CHOICES: Final = 4  # candidates, of which one is evicted
_SWEEP: Final = 2  # keys inspected for a new one while the table has room: expired keys leave faster than new ones come

Key = tuple[str, str]  # the rule's id, and the identity
_Kind = tuple[str, tuple[int, ...], bool, bool]  # rules of one kind have shared budgets in common
_K = TypeVar("_K")
_V = TypeVar("_V")


class Entry:
    """The state of one identity under one rule. `table` is the rule's dictionary that has it; None if none has."""

    __slots__ = ("expires", "identity", "left", "noted", "refused_until", "state", "table", "terms")

    def __init__(self, terms: Terms, identity: str = "") -> None:
        self.terms, self.identity, self.state = terms, identity, None
        self.table: dict[str, Entry] | None = None
        self.expires = 0  # not before this time: a charge only makes it later
        self.refused_until = 0  # it must not be evicted before this time
        self.noted: Any = None  # the state when it was inspected; a state does not change
        self.left = 1.0  # the part of the limit that was left then

    def inspect(self, now: int) -> None:
        """Note what is left and when the entry expires, unless what was noted is still true or less than true."""
        state, terms = self.state, self.terms
        if state is not self.noted or self.expires <= now:
            outcome, _ = KEPT[terms.algorithm].decide(state, now, 0, terms.params)
            self.left = 1.0 if terms.shadow else outcome.remaining / outcome.limit
            if not self.left:
                self.refused_until = max(self.refused_until, now + outcome.next_after)
            self.noted, self.expires = state, now + outcome.reset_after

    def expired(self, now: int) -> bool:
        """True if nothing of the limit is used: removing the entry changes no outcome."""
        if self.expires <= now:
            self.inspect(now)
        return self.expires <= now

    def measure(self, terms: Terms, now: int) -> None:
        """Use the terms of a charge from now on: the rules of one budget may have different limits, or be shadow rules.
        First note what the former ones refuse.
        """
        if self.terms is not terms:
            self.inspect(now)
            self.terms = terms


class SharedBudget(Entry):
    """One budget for new identities from several networks, under rules of one algorithm, limit and period.

    An identity charged here keeps using this shared budget until it has fully reset. Moving it to its own entry earlier
    would erase its usage.
    """

    __slots__ = ("dropped", "users")

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.users: dict[Key, None] = {}
        self.dropped = False


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
        self._seal = Seal(urandom(16)).text

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._queue)

    def get(self, rule_id: str, identity: str) -> Entry | None:
        """Return the identity's own entry."""
        known = self.by_rule.get(rule_id)
        return None if known is None else known.get(identity)

    def find(self, check: Check, now: int, network: Network, *, plan: list[Entry] | None) -> Entry:
        """Return the entry that a check of a `plan` reads, which the Run has not found. It is in the table already, or
        is added if there is room; otherwise it is a shared budget, or an entry outside the table. Evicts nothing.

        If `plan` is None, the check is certainly not charged, and no entry is added.
        """
        terms, identity, cost = check
        table = self.by_rule.get(terms.rule_id)
        if table is not None and identity in table:
            return table[identity]
        if terms.algorithm == BAN:
            return Entry(terms, identity)
        if not self._budget_of and len(self._queue) < self.most:
            entry = Entry(terms, identity)
            if plan is None or not cost:
                return entry
            # What is charged now does not expire before one unit would be free again.
            entry.expires = now + terms.window_us // terms.params[0]
            return self._add(entry, now, plan)
        budget = self._budget_of.get((terms.rule_id, identity))
        if budget is not None and not budget.expired(now):
            return budget
        # A record of a key that shared its budget would take the requests of others for retries.
        return Entry(terms, identity) if terms.per or self.has_room(now) else self._shared_budget(check, now, network)

    def of(self, check: Check) -> Entry | None:
        """Return the entry that a check was charged to: the identity's own or a shared budget. None if it has none."""
        key = (check.terms.rule_id, check.identity)
        entry = self.get(*key)
        return self._budget_of.get(key) if entry is None else entry

    def admit(self, check: Check, entry: Entry, now: int, *, network: Network, plan: Container[Entry]) -> Entry:
        """Return the entry to charge for a check that has this one: itself if it is in the table or a shared budget,
        else a new entry or a shared budget. Evicts no entry of the `plan`.
        """
        terms, identity, _ = check
        # It may have been added for another check of the plan, which names one budget twice.
        own = self.get(terms.rule_id, identity) if entry.table is None else entry
        if own is not None:
            return own
        if not isinstance(entry, SharedBudget) or entry.dropped:
            if self._make_room(now, plan) or terms.algorithm == BAN:
                return self._add(entry if type(entry) is Entry else Entry(terms, identity), now, plan)
            if terms.per is not None:  # without room a key is not remembered
                return entry
            entry = self._shared_budget(check, now, network)
        self._add_user(check, entry, now)
        return entry

    def has_room(self, now: int) -> bool:
        """True if a key may be added. If all of the next few are refused, the next call inspects others."""
        if len(self._queue) < self.most:
            return True
        for entry in self._next():
            entry.inspect(now)
            if entry.refused_until <= now:
                return True
        self._queue.rotate(-_LOOKS)
        return False

    def withdraw(self, added: list[Entry]) -> None:
        """Remove the entries that were added for a plan that is not charged."""
        # They are at the end of the queue, behind each of them the two that were inspected for the next one. In its
        # place, `remove` would look at all the others first.
        queue, last = self._queue, (1 + _SWEEP) * len(added)
        queue.rotate(last)
        for entry in added:
            self.remove(entry)
        queue.rotate(len(added) - last)

    def clear(self) -> None:
        """Drop all entries and shared budgets."""
        self._queue.clear()
        for known in list(self.by_rule.values()):
            known.clear()
        self.by_rule.clear()
        self._shared.clear()
        self._common.clear()
        self._budget_of.clear()

    def _add_user(self, check: Check, budget: SharedBudget, now: int) -> None:
        """Remember that an identity uses a shared budget. Only the latest users are remembered."""
        if budget.expired(now):
            self._remove_users(budget)
            budget.expires = now + 1  # else it could be removed for another check of the plan, before it is charged
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
            # Looks again: a signal handler may have added it.
            found = self._shared.setdefault(bucket, SharedBudget(terms))
        return found

    def _common_budget(self, kind: _Kind, terms: Terms) -> SharedBudget:
        """Return the one budget of all new identities under a kind of rule, if there are too many shared budgets."""
        found = self._common.get(kind)
        if found is None:
            if len(self._common) >= KINDS:  # quotas that are made for each request would grow without bound
                for oldest, budget in _first(self._common):
                    if not budget.dropped:
                        budget.dropped = True
                        self._common.pop(oldest, None)
                        self._remove_users(budget)
            found = self._common.setdefault(kind, SharedBudget(terms))
        return found

    def _bucket_of(self, network: str) -> int:
        """Return the bucket of a network. It depends on a secret, so no client can know which networks share it."""
        return int(self._seal(network)[-8:], 16) % BUCKETS

    def _tidy(self, now: int) -> bool:
        """Remove the fully reset ones among the next few shared budgets; False if there is none."""
        tidied = False
        for _ in range(_SWEEP):
            for bucket, shared in _first(self._shared):
                # Looks again, and no call is between that and `pop`: a signal handler may have charged or removed it.
                if shared.expired(now) and shared.state is shared.noted and not shared.dropped:
                    shared.dropped = True
                    self._shared.pop(bucket, None)
                    self._remove_users(shared)
                    tidied = True
                elif bucket in self._shared:
                    self._shared.move_to_end(bucket)
        return tidied

    def _remove_users(self, budget: SharedBudget) -> None:
        """Remove all users of a shared budget, which has fully reset or is evicted."""
        for key in list(budget.users):
            self._remove_user(budget, key)

    def _remove_user(self, budget: SharedBudget, key: Key) -> None:
        known = self._budget_of
        if key in known and known[key] is budget:
            del known[key]
        budget.users.pop(key, None)

    def _add(self, entry: Entry, now: int, plan: Container[Entry]) -> Entry:
        """Add the entry of a new identity. Of the next two others, remove the expired ones outside the `plan`."""
        queue, rules, rule_id, identity = self._queue, self.by_rule, entry.terms.rule_id, entry.identity
        try:
            pair = queue[0], queue[1]
        except IndexError:
            pass  # fewer than two: they stay until there are more
        else:
            for old in pair:
                if old.expires <= now and old.expired(now) and old not in plan:
                    self.remove(old)
                    queue.rotate(1)  # the two places go by, those of removed entries do not
            queue.rotate(-len(pair))
        if self._shared:
            self._tidy(now)
        table: dict[str, Entry] = {}
        # No call until it is in: after one a signal handler may decide, and drop the rule's table with its last entry.
        if rule_id in rules:
            table = rules[rule_id]
            if identity in table:  # a signal handler has added it
                return table[identity]
        else:
            rules[rule_id] = table
        table[identity], entry.table = entry, table
        queue.append(entry)
        return entry

    def _make_room(self, now: int, plan: Container[Entry]) -> bool:
        """Evict until there is room for an entry. False if all of the next few are currently refused, or of the `plan`.

        Of four, it evicts the one with the most of its limit left, because that changes least for it. An expired entry
        has all of it left; an entry of a shadow rule counts as if it had.
        """
        queue = self._queue
        while len(queue) >= self.most:  # more than once if a signal handler has taken the room of an earlier entry
            chosen = None
            most, seen, choices = -1.0, 0, _CHOICES
            for entry in self._next():
                seen += 1
                entry.inspect(now)
                if entry.refused_until > now or entry in plan:
                    continue
                left = 1.0 if entry.expires <= now else entry.left
                if left > most:
                    most, chosen = left, entry
                choices -= 1
                if left == 1 or not choices:
                    break
            if chosen is None:
                queue.rotate(-_LOOKS)
                return False
            self.evictions += chosen.expires > now
            self.remove(chosen)
            queue.rotate(1 - seen)
        return True

    def _next(self) -> tuple[Entry, ...]:
        """Return the next few entries: a copy, because a signal handler that decides may change the queue."""
        try:
            return tuple(islice(self._queue, _LOOKS))
        except RuntimeError:  # it has done so between the two calls
            return self._next()

    def remove(self, entry: Entry) -> None:
        """Remove an entry, unless a signal handler has charged it since it was inspected. The only call is the last
        step, so no handler finds it half removed.
        """
        if entry.state is not entry.noted:
            return
        rules, rule_id, identity, table = self.by_rule, entry.terms.rule_id, entry.identity, entry.table
        if table is not None and identity in table and table[identity] is entry:
            del table[identity]
            if not table and rule_id in rules and rules[rule_id] is table:
                del rules[rule_id]  # it stays empty: a Run that has it looks here for another one
        entry.table = None
        try:
            self._queue.remove(entry)
        except ValueError:  # a signal handler that decides has removed it
            return


def _first(table: dict[_K, _V]) -> tuple[tuple[_K, _V], ...]:
    """Return the first item of a table, or nothing if the table is empty."""
    for item in table.items():  # not `next(iter(…))`: between the two calls a signal handler may change the table
        return (item,)
    return ()

"""The gate: the rules of one application, and the decision about a request.

An adapter makes one gate at start-up. `bind` returns the rules of a view, and is cached; `decide` charges them for a
caller. A Gate is for synchronous adapters, an AsyncGate for asynchronous adapters. The two differ by two awaits.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from fnmatch import translate
from functools import partial
from threading import RLock
from typing import Any, cast

from sluicegate.clock import Clock, SystemClock
from sluicegate.errors import ConfigurationError, RuleError, StoreError, nearest, warn
from sluicegate.identity import Identity, Seal, identity_text
from sluicegate.limiter import OPTIONS, AsyncLimiter, Limiter
from sluicegate.observe.status import describe
from sluicegate.observe.usage import Budget, budgets_of
from sluicegate.overrides.applied import Applied, Held, keep, terms_with
from sluicegate.overrides.file import Watched, overrides_in
from sluicegate.overrides.follow import EVERY_US, Following
from sluicegate.overrides.override import EVERY_RULE
from sluicegate.plan import FORBIDDEN, Check, Checks, Decision, Network, Plan, Terms, new
from sluicegate.rules.ban import Ban, agree, with_bans
from sluicegate.rules.key import (
    Caller,
    Keys,
    KeySpec,
    Known,
    ReadyKey,
    as_keys_give,
    asked,
    can_be,
    network_key,
    parts_of,
    reads_path,
    reads_user,
)
from sluicegate.rules.once import at_no_cost, retried, with_records
from sluicegate.rules.rollout import EVERYBODY, picked, share
from sluicegate.rules.rule import Rule
from sluicegate.rules.terms import is_dated, whole_cost
from sluicegate.rules.tiers import Tiers
from sluicegate.rules.typed import typed_identity
from sluicegate.runtime import fork
from sluicegate.runtime.awaiting import Waiting, async_mismatch, is_async
from sluicegate.stores import AsyncRun, Mode, terms_of
from sluicegate.stores.completion import apart, complete, got, running_loop
from sluicegate.stores.threads import start_thread
from sluicegate.web.access import resolve_lists
from sluicegate.web.bound import NO_BOUNDS, Bound, Bounds, Chosen, anywhere, names_of, of_method, unique, warn_of_names
from sluicegate.web.charges import due, made, without
from sluicegate.web.endpoint import Endpoint, scope_of, short_name
from sluicegate.web.marks import EXEMPT, Mark
from sluicegate.web.settings import Settings, read_rules
from sluicegate.web.settlement import AsyncSettlement, Settlement

Undo = Callable[[Decision], Awaitable[object]] | None


class Undecided(Exception):  # users never see it
    """The identity of a request cannot be found out, and its rule refuses then. `decision` is the refusal."""

    def __init__(self, decision: Decision) -> None:
        super().__init__("the identity of the request is unknown")
        self.decision = decision


class _Rules:
    """The common part of both gates: everything except the awaits."""

    _sync: bool
    _awaits_answers = True  # whether an `on_denied` may be async
    limiter: Limiter | AsyncLimiter

    def __init__(self, settings: Settings, *, accept: Callable[[Terms], object]) -> None:
        self.settings = settings
        self._seal = None if settings.secret is None else Seal(settings.secret).text
        self._network = network_key(settings.trust, prefix=settings.ipv6_prefix, ipv4_prefix=settings.ipv4_prefix)
        self._accept = accept
        self._bans: dict[str, Ban] = {}  # by name
        self._adds = False  # whether checks come after those of the rules: records of keys, and bans
        self._lists = settings.lists
        self._keys = Keys(settings.address, strict=settings.strict)
        self._key = self._keys.ready(settings.key)
        self._file = Watched(settings.overrides) if isinstance(settings.overrides, str) else None
        self._rules_file = Watched(settings.rules_file) if settings.rules_file else None
        self._rules_due = 0  # when the file is looked at again
        self._check_answer("on_denied", settings.on_denied)
        for listed in settings.lists:
            for function in listed.functions:
                self._check_sync(listed.option, function)
            for part in parts_of(settings.key) if listed.identities else ():
                self._check_sync("key", part)
        clock = getattr(settings.store, "clock", None) if settings.clock is None else settings.clock
        self._now_us = (SystemClock() if clock is None else clock).now_us
        self.following = self._follows(clock)
        self.denies = bool(settings.deny)  # whether a request may be refused although no rule applies
        self.decides_all = self.denies or self.following is not None  # whether it is decided then
        self.may_owe = False  # whether any rule may refund a charge when the response is known or has ended
        self._bound: dict[Hashable, Bounds] = {}
        self._endpoints: dict[Hashable, tuple[Endpoint, frozenset[Mark]]] = {}  # to bind them to other rules
        self._counting: tuple[object, int, Bounds] = (None, 0, NO_BOUNDS)  # the table of this size, and its rules
        self._routes: Collection[str] | None = None  # the names of the application's routes
        self.lock = RLock()  # for charges of one request in several threads
        fork.renew(self)
        self.charged: dict[Hashable, Bounds] = {}  # the rules that views charge themselves, by their call
        self._homes: dict[tuple[Mark, str], str] = {}  # the first route of each view: the budget's key contains it
        default = settings.default_limits
        self._defaults = (self._ready(Rule(name="default", quota=tuple(default))),) if default else ()  # type: ignore[arg-type]
        self._set_rules([rule for rule in settings.rules if isinstance(rule, Rule)])

    def _set_rules(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(map(self._ready, rules))
        self._named = {name for bound in (*self._defaults, *self._rules) for name in names_of(bound)}
        # What is written into a file later may name a route.
        self.knows_routes = bool(self.settings.rules_file) or any(bound.routes is not None for bound in self._rules)

    def use_rules(self, rules: Iterable[Rule]) -> None:
        """Let these rules hold instead of the settings' from the next request on. Raises ConfigurationError, and
        changes nothing then. Budgets live on: their keys have the names of the rules.
        """
        other = self.try_rules(rules)
        self._bans, self._rules, self._named, self.may_owe = other._bans, other._rules, other._named, other.may_owe
        self._adds = other._adds
        self._bound = other._bound  # last: a request that comes now finds all the rest

    def try_rules(self, rules: Iterable[Rule]) -> _Rules:
        """Return a copy with these rules, bound to all endpoints that are known. Raises ConfigurationError."""
        other = copy(self)
        other._bans, other._bound, other._rules_file = {}, {}, None
        for bound in other._defaults:
            agree(other._bans, bound.rule.name, bound.rule.ban)
        other._set_rules(rules)
        if self._routes is not None:
            other.check_routes(self._routes)
        for endpoint, done in tuple(self._endpoints.values()):
            other.bind(endpoint, done)
        return other

    def _follows(self, clock: Clock | None) -> Following | None:
        """Return what follows the overrides; None if there are none to follow."""
        settings, store = self.settings, self.limiter.opened
        if self._file is not None:
            path = self._file.path
            parse = partial(overrides_in, path=path, text_of=lambda word: self.limiter.text(self.typed([word])))
            return Following(parse, clock=clock, seal=self._seal)
        follows = settings.overrides is True and hasattr(store, "read_overrides")
        return Following(clock=clock, seal=self._seal) if follows else None

    def _find(self, following: Following) -> Any:
        """Return what a look finds if it has changed, else None; perhaps an awaitable of it."""
        source = self._source()
        # Tests put a store without overrides in the place of the limiter's: see `limits_off`.
        return source.read_overrides(following.known) if hasattr(source, "read_overrides") else None

    def _source(self) -> Any:
        """Return where the overrides are: a file, or the store."""
        return self._file or self.limiter.opened

    def _is_here(self) -> bool:
        """True if a look takes no time: the overrides are in this process."""
        return getattr(self._source(), "is_here", False)

    def _introduce(self, following: Following) -> Any:
        """Tell the server who looks, if it is time. Return what may have to be awaited."""
        source = self._source()
        name = following.introduction(self.limiter.text("")) if hasattr(source, "add_counts") else None
        return source.add_counts(name) if name else None

    def typed(self, words: Iterable[str]) -> Identity:
        """Return the identity that a person typed, as this application's keys give it."""
        return typed_identity(words, prefix=self.settings.ipv6_prefix, ipv4_prefix=self.settings.ipv4_prefix)

    def _begins(self, following: Following) -> tuple[bool, bool]:
        """Return whether this request begins a look, and whether it waits for one."""
        begins, waits = following.begin()
        if begins and self._file is None and not describe(self.limiter.store).available:
            with following.look():  # the circuit is open: no request waits for a server that is known to be away
                return False, False
        return begins, waits

    def after_fork(self) -> None:
        """Renew the lock, and look at once."""
        self.lock = RLock()
        if self.following is not None:
            self.following.after_fork()

    def bind(self, endpoint: Endpoint, done: frozenset[Mark] = frozenset()) -> Bounds:
        """Return the rules of an endpoint: the default limits, the settings' rules, and the view's own. Cached.

        `done` has the marks of the endpoint that an outer limiter has enforced for this request.
        """
        if self._rules_file is not None:
            self._read_rules(self._rules_file)
        view = (endpoint.view, done) if done else endpoint.view
        table = self._bound  # now: what is bound to old rules must not go into the table of new ones
        found = table.get(view)
        if found is None:
            found = table[view] = self._bind(endpoint, done)
            self._endpoints[view] = endpoint, done
        return found

    def bind_own(self, endpoint: Endpoint, marks: Iterable[Mark]) -> Bounds:
        """Return only the rules of these marks, for a view that the adapter could not find before the call."""
        return unique(self._own(endpoint, marks))

    def bind_rule(self, rule: Rule) -> Bounds:
        """Return a rule that no view declares, ready for use. The caller caches it."""
        return (self._ready(rule),)

    def check_routes(self, names: Collection[str]) -> None:
        """Raise RuleError for a rule whose `route` is not among these names: such a rule would never apply."""
        self._routes = names
        with self.settings.blamed():
            for rule in [bound.rule for bound in self._rules]:
                for route in rule.route or ():
                    if route not in names:
                        expected = nearest(route, names, "give the name or the template of a route")
                        raise RuleError(f"rule {rule.name!r}: route", route, problem="no such route", expected=expected)

    def asks_for_users(self, endpoints: Iterable[Endpoint]) -> bool:
        """True if a rule of these endpoints has the key "user"."""
        return any([reads_user(self.key_of(bound)) for endpoint in endpoints for bound in self.bind(endpoint)])

    def counting(self) -> Bounds:
        """Return every rule that may count for a caller, on any endpoint that is known, each without its conditions.

        A rule whose key has a value of the path is not among them: for the page of one's own usage it has none.
        """
        table, size = self._bound, len(self._bound)
        known, before, bounds = self._counting
        if known is not table or before != size:
            every = [*self._defaults, *self._rules, *[bound for own in [*table.values()] for bound in own]]
            found = [anywhere(bound) for bound in dict.fromkeys(every) if not reads_path(self.key_of(bound))]
            self._counting = table, size, (bounds := unique(found))
        return bounds

    def key_of(self, bound: Bound) -> KeySpec:
        """Return the key of a rule: its own, or the one of the settings."""
        return self.settings.key if bound.rule.key is None else bound.rule.key

    def _own(self, endpoint: Endpoint, marks: Iterable[Mark]) -> list[Bound]:
        name, bounds = short_name(endpoint), []
        for mark in marks:
            if not mark.frees:
                home = self._homes.setdefault((mark, endpoint.label), endpoint.route)
                bounds.append(self._ready(mark.rule_for(name, scope_of(endpoint._replace(route=home), mark))))
        return bounds

    def _bind(self, endpoint: Endpoint, done: frozenset[Mark]) -> Bounds:
        if EXEMPT in endpoint.marks:
            return NO_BOUNDS
        if any(mark.is_misplaced for mark in endpoint.marks):
            problem = "it stands above the route decorator, so the route has the view without it"
            expected = "write @exempt below the route decorator"
            raise RuleError("@exempt on", endpoint.label, problem=problem, expected=expected)
        replaces = self.settings.limits_replace_defaults
        overridden = any(mark.drops_defaults(by_itself=replaces) for mark in endpoint.marks)
        matched = [
            bound for bound in self._rules if bound.routes is None or not bound.routes.isdisjoint(endpoint.names)
        ]
        own = self._own(endpoint, [mark for mark in endpoint.marks if mark not in done])
        bounds = [*(() if overridden else self._defaults), *matched, *own]
        warn_of_names(bounds, self._named, strict=self.settings.strict)
        return unique(bounds)

    def _ready(self, rule: Rule) -> Bound:
        if self.settings.mode == "shadow":
            rule = replace(rule, mode="shadow", enforce_percent=100)
        if rule.error_message is None and self.settings.error_message is not None:
            rule = replace(rule, error_message=self.settings.error_message)
        key = self.settings.key if rule.key is None else rule.key
        functions = [("key", part) for part in parts_of(key)]
        costs = ("cost", rule.cost), ("estimate", rule.estimate)
        for option, function in (*functions, _quota_of(rule), *costs, ("when", rule.when)):
            self._check_sync(f"rule {rule.name!r}: {option}", function)
        self._check_answer(f"rule {rule.name!r}: on_denied", rule.on_denied)
        agree(self._bans, rule.name, rule.ban)
        self._adds = self._adds or rule.ban is not None or rule.once_per is not None
        for known in rule.known:
            for each in rule.terms(self.settings.algorithm, known):
                self._accept(each)
                owes = each.lasts or each.refund_when is not None or each.once is not None
                self.may_owe = self.may_owe or owes
        self.may_owe = self.may_owe or not rule.known
        return Bound(
            rule=rule,
            key=self._key if rule.key is None else self._keys.ready(key),
            methods=cast("frozenset[str] | None", rule.methods),
            routes=cast("frozenset[str] | None", rule.route),
            path=None if rule.path is None else re.compile(translate(rule.path)),
            terms=None if callable(rule.quota) else rule.terms(self.settings.algorithm),
            share=share(rule.mode, rule.enforce_percent),
        )

    def counted(self, identity: object) -> object:
        """Return an identity that a person wrote, as this application's keys give it."""
        settings = self.settings
        return as_keys_give(identity, prefix=settings.ipv6_prefix, ipv4_prefix=settings.ipv4_prefix)

    def _plan_of(self, identity: object) -> Plan:
        """Return a plan that reads every written quota that may count for an identity, as its key gives it: of tiers
        that of each tier. A quota that is a function of the request is not among them.
        """
        given, settings, found = self.counted(identity), self.settings, dict[object, Check]()
        plain, text = identity_text(given), self.limiter.text(given)
        overrides = None if self.following is None else self.following.applied
        can = partial(can_be, identity=given, prefix=settings.ipv6_prefix, ipv4_prefix=settings.ipv4_prefix)
        for bound in [each for each in self.counting() if can(self.key_of(each))]:
            for tier, quotas in bound.written(settings.algorithm):
                held = None if overrides is None else overrides.of(bound.rule.name, plain, tier)
                terms, share = quotas, bound.share
                if held is not None:
                    terms, share = held.apply(bound.rule, terms, share=share, make=self._with_quota)
                if terms is not None and (held is None or held.action not in ("off", "allow")):
                    shown = picked(terms, text, share) if share != EVERYBODY else terms
                    shown = of_method(shown, "GET") if bound.rule.per_method else shown
                    for each in self.limiter.present(shown):
                        found.setdefault((each.rule_id, each.limit, each.tier), Check(each, text, 0))
        return Plan(with_bans([*found.values()]), charge=False)

    def _check_sync(self, what: str, function: object) -> None:
        if self._sync and is_async(function):
            raise async_mismatch(what, function)

    def _check_answer(self, what: str, function: object) -> None:
        if not self._awaits_answers:
            self._check_sync(what, function)

    def resolve(self, caller: Caller, bounds: Bounds, known: Known) -> Checks | Decision | Waiting:
        """Return the checks of a request; FORBIDDEN for a caller on the `deny` list.

        Return a Waiting if a user's function has returned an awaitable. The caller awaits it, keeps the result in
        `known`, and calls again: no function runs twice, because `known` has what each one has returned.
        """
        # First: for a listed client no rule and no store is consulted. Not if no rule applies to anybody.
        if self._lists and (bounds or self.denies):
            listed = resolve_lists(self._lists, caller, self._key, trust=self.settings.trust, known=known)
            if listed is not None:
                return listed
        overrides = None if self.following is None else self.following.applied
        if overrides is not None and overrides.lists:
            listed = self._listed(overrides, caller, bounds, known=known)
            if listed is not None:
                return listed
        checks: list[Check] = []
        key: ReadyKey | None = None
        plain: str | None = None  # the text of the identity, and what the secret makes of it
        text: str | None = None
        for bound in bounds:
            if bound.is_conditional:  # first: a user's function gets only requests of its rule
                applies = _applies(bound, caller, known)
                if type(applies) is Waiting:
                    return applies
                if not applies:
                    continue
            if bound.key is not key:  # most rules have the key of the rule before them
                key = bound.key
                found = key(caller, known)
                if type(found) is Waiting:
                    return found._replace(rule=bound.rule.name)
                plain = found
                text = found if self._seal is None or found is None else self._seal(found)
            if text is None:
                continue
            chosen = bound.fixed
            if overrides is not None and chosen is not None:  # here: so most requests cost a look-up and no call
                held = overrides.of(bound.rule.name, plain or "", None)
                chosen = chosen if held is None else held.fixed.get(bound)
            if chosen is None:
                made = self._chosen(bound, caller, known, overrides=overrides, plain=plain or "", identity=text)
                if made is None:
                    continue
                if isinstance(made, (Waiting, Decision)):
                    return made
                chosen = made
            terms, cost = chosen
            for each in terms:
                check = new(Check, (each, text, cost))
                if checks:
                    _add(checks, check)
                else:
                    checks.append(check)
        # Bans last: a store counts the refusals of the checks before them.
        return with_bans(with_records(checks, caller)) if self._adds else tuple(checks)

    def _listed(
        self, overrides: Applied, caller: Caller, bounds: Bounds, *, known: Known
    ) -> Checks | Decision | Waiting | None:
        """Return FORBIDDEN for an identity that overrides deny, and no checks for one that they allow everything.

        The identity is that of the application's key. A function of the user is called only where a rule has that key:
        it may not know the other requests. The rules decide where a narrower override makes an exception in some tier:
        from `allow` for a rule of the request, from `deny` for all of them.
        """
        counts = any([bound.key is self._key and not bound.is_conditional for bound in bounds])
        if not counts and any(map(callable, parts_of(self.settings.key))):
            return None
        text = self._key(caller, known)
        if not isinstance(text, str):
            return text
        held = overrides.of(EVERY_RULE, text, None)
        if held is None or not held.override.is_list:
            return None
        of = overrides.of
        exceptions = [bound.key is self._key and _is_exception(bound.rule, text, held, of=of) for bound in bounds]
        found = set[bool]()
        for bound, is_exception in zip(bounds, exceptions, strict=True) if any(exceptions) else ():
            applies = _applies(bound, caller, known)
            if type(applies) is Waiting:
                return applies
            found |= {is_exception} if applies else set()
        denies = held.action == "deny"
        if found == {True} or (True in found and not denies):
            return None
        return FORBIDDEN if denies else ()

    def _read_rules(self, file: Watched) -> None:
        """Take the rules of the file if it has changed. If any of it is wrong, nothing changes (SG116)."""
        now = self._now_us()
        if now < self._rules_due:
            return
        self._rules_due = now + EVERY_US
        try:
            text = file.changed()
            if text is not None:
                self.use_rules(read_rules(text, file.path, algorithm=self.settings.algorithm))
        except ConfigurationError as error:
            warn("SG116", file.path, strict=False, why=str(error))

    def _with_quota(self, rule: Rule, quota: str) -> tuple[Terms, ...]:
        """Return the terms of a rule with another quota. Raises ConfigurationError if the rule cannot have it."""
        terms = terms_with(rule, quota, algorithm=self.settings.algorithm)
        for each in terms:
            self._accept(each)
        return terms

    def _chosen(
        self, bound: Bound, caller: Caller, known: Known, *, overrides: Applied | None, plain: str, identity: str
    ) -> Chosen | Decision | Waiting | None:
        """Return the terms and the cost that a rule has for this request and identity: None if it has no limit, and
        FORBIDDEN if an override denies it. `identity` is what the secret makes of the `plain` text.
        """
        rule, terms, cost, share, tier = bound.rule, bound.terms, bound.rule.cost, bound.share, None
        if terms is None:
            option, function = _quota_of(rule)
            quota = asked(function, caller, known, at=(bound, "quota"), rule=rule.name, option=option)
            if type(quota) is Waiting:
                return quota
            if isinstance(rule.quota, Tiers):
                row = rule.quota.row(quota)
                tier, quota = str(row), rule.quota.table[row]
            terms = None if quota is None else rule.terms(self.settings.algorithm, quota, tier=tier)
        held = None if overrides is None else overrides.of(rule.name, plain, tier)
        if held is not None:
            if held.action == "deny":
                return FORBIDDEN
            if held.action in ("off", "allow"):
                return None
            terms, share = held.apply(rule, terms, share=share, make=self._with_quota)
        if terms is None:
            return None
        if share != EVERYBODY:
            terms = picked(terms, identity, share)
        if rule.per_method:
            terms = of_method(terms, caller.method)
        if not isinstance(cost, int):
            cost = asked(cost, caller, known, at=(bound, "cost"), rule=rule.name, option="cost")
            if type(cost) is Waiting:
                return cost
            cost = whole_cost(f"rule {rule.name!r}: cost", cost)
        if is_dated(terms):  # nor are they noted below: another window begins soon
            return self.limiter.present(terms), cost
        if held is not None and bound.fixed is not None and share == EVERYBODY:
            keep(held.fixed, bound, (terms, cost))
        return terms, cost

    def _noted(self, decision: Decision, caller: Caller) -> Decision:
        """Deliver a decision that needed no store. Return it."""
        events = self.limiter.events
        return decision if events is None else events.note(decision, None, caller)


class Gate(_Rules):
    """The gate of a synchronous application. Flask and Django under ASGI await an `on_denied` all the same."""

    _sync = True
    limiter: Limiter

    def __init__(self, settings: Settings, *, awaits_answers: bool = False) -> None:
        self._awaits_answers = awaits_answers
        with settings.blamed():
            self.limiter = Limiter(settings.store, **_options(settings))  # type: ignore[arg-type]
            super().__init__(settings, accept=self.limiter.accept)

    def decide(
        self,
        caller: Caller,
        bounds: Bounds,
        before: Callable[[Checks], Checks] | None = None,
        *,
        mode: Mode = "charge",
    ) -> Decision | None:
        """Charge all rules that apply, or none of them, and return the decision. Return None if no rule applies.

        `before` gets the checks and returns those to decide. A peek has no event. Raises Undecided.
        """
        following = self.following
        if following is not None and following.now_us() >= following.due:
            self._follow(following)
        try:
            checks = self.resolve(caller, bounds, {})
        except Undecided as error:
            self._noted(error.decision, caller)
            raise
        if isinstance(checks, Waiting):
            raise checks.refused()
        if isinstance(checks, Decision):
            return self._noted(checks, caller)
        if before is not None:
            checks = before(checks)
        if not checks:
            return None
        if self.may_owe and mode == "charge" and any([check.terms.per for check in checks]):
            return self._noted(self._once(checks, partial(self._network, caller)), caller)
        run = self.limiter.runs[mode][terms_of(checks)]
        return self.limiter.decide(run, checks, partial(self._network, caller), caller=caller, noted=mode != "peek")

    def _once(self, checks: Checks, network: Network) -> Decision:
        """Decide checks with records of keys: a retry is charged nothing by the rules that have counted it already."""
        run = self.limiter.runs["charge"][terms_of(checks)]
        decision = self.limiter.decide(run, checks, network, noted=False)
        free = retried(decision)
        if free and not decision.allowed:
            return self.limiter.decide(run, at_no_cost(checks, free), network, noted=False)
        if back := made([pair for pair in zip(decision.checks, decision.outcomes, strict=True) if pair[0] in free]):
            with suppress(StoreError):  # else it stays charged: too much, never too little
                self.limiter.store.refund(*due(back))
                return without(decision, back)
        return decision

    def _follow(self, following: Following) -> None:
        """Look whether the overrides have changed, in a thread. The requests after a rest wait for it: at most half of
        a deadline, so that a silent server costs a request less than two.
        """
        begins, waits = self._begins(following)
        if begins and self._is_here():
            self._look(following)
        elif begins:
            try:
                start_thread("overrides", partial(self._look, following))
            except RuntimeError:  # the process has no more threads, or ends
                self._look(following)
        if waits:
            following.looked.wait(self.settings.deadline / 2)

    def _look(self, following: Following) -> None:
        with following.look():
            found = self._find(following)
            if found is not None:
                following.take(found)
            self._introduce(following)

    def settlement(self) -> Settlement:
        """Return an object that refunds and releases the charges of one request that this gate has allowed."""
        return Settlement(self.limiter.store, self._now_us)

    def usage(self, caller: Caller) -> tuple[Budget, ...]:
        """Return what a caller has used under every rule that counts for him. Charges nothing."""
        try:
            return budgets_of(self.decide(caller, self.counting(), mode="peek"))
        except Undecided as error:
            return budgets_of(error.decision)

    def usage_of(self, identity: object) -> tuple[Budget, ...]:
        """Return what an identity has used under every rule whose quota is written and whose key may give it: of tiers
        the budget of each tier. Charges nothing.
        """
        following = self.following
        if following is not None and following.now_us() >= following.due:
            self._follow(following)
        return budgets_of(self.limiter.run(self._plan_of(identity)))

    def reset_all(self, identity: object) -> int:
        """Forget every budget, slot and ban of an identity. Return how many budgets were forgotten."""
        return self.limiter.reset_all(self.counted(identity))

    def close(self) -> None:
        """Close the store that this gate opened."""
        self.limiter.close()


class AsyncGate(_Rules):
    """The gate of an asynchronous application."""

    _sync = False
    _looking: asyncio.Task[None] | None = None  # the last look
    limiter: AsyncLimiter

    def __init__(self, settings: Settings) -> None:
        with settings.blamed():
            self.limiter = AsyncLimiter(settings.store, **_options(settings))  # type: ignore[arg-type]
            super().__init__(settings, accept=self.limiter.accept)

    async def decide(
        self,
        caller: Caller,
        bounds: Bounds,
        before: Callable[[Checks], Awaitable[Checks]] | None = None,
        *,
        mode: Mode = "charge",
    ) -> Decision | None:
        following = self.following
        if following is not None and following.now_us() >= following.due:
            await self._follow(following)
        known: Known = {}
        try:
            while type(checks := self.resolve(caller, bounds, known)) is Waiting:
                known[checks.at] = await checks.answer
        except Undecided as error:
            self._noted(error.decision, caller)
            raise
        if type(checks) is Decision:
            return self._noted(checks, caller)
        if before is not None:
            checks = await before(checks)
        if not checks:
            return None
        run, undo = self.limiter.runs[mode][terms_of(checks)], None
        network = partial(self._network, caller)
        if self.may_owe:
            if any([check.terms.held for check in checks]):
                undo = self.settlement().release_late
            if mode == "charge" and any([check.terms.per for check in checks]):
                return self._noted(await self._once(run, checks, network, undo=undo), caller)
        made = self.limiter.decide(run, checks, network, caller=caller, noted=mode != "peek", undo=undo)
        return made if type(made) is Decision else await made

    async def _once(self, run: AsyncRun, checks: Checks, network: Network, *, undo: Undo) -> Decision:
        async def decided(given: Checks) -> Decision:
            made = self.limiter.decide(run, given, network, noted=False, undo=undo)
            return made if type(made) is Decision else await made

        free = retried(decision := await decided(checks))
        if free and not decision.allowed:
            return await decided(at_no_cost(checks, free))
        if back := made([pair for pair in zip(decision.checks, decision.outcomes, strict=True) if pair[0] in free]):
            with suppress(StoreError):
                await complete(self.limiter.store.refund(*due(back)))
                return without(decision, back)
        return decision

    async def _follow(self, following: Following) -> None:
        begins, waits = self._begins(following)
        loop = running_loop()
        if begins and (loop is None or self._is_here()):  # on trio there are only files and memory
            await self._look(following)
        elif begins and loop is not None:
            self._looking = loop.create_task(self._look(following))  # kept: a loop has weak references only
        looking = self._looking
        if waits and looking is not None and looking.get_loop() is loop:
            await asyncio.wait([looking], timeout=self.settings.deadline / 2)

    async def _look(self, following: Following) -> None:
        with following.look():
            found = await got(self._find(following))
            if found is not None:
                if self._is_here():
                    following.take(found)
                else:
                    await apart(following.take, found)
            await got(self._introduce(following))

    def settlement(self) -> AsyncSettlement:
        return AsyncSettlement(self.limiter.store, self._now_us)

    async def usage(self, caller: Caller) -> tuple[Budget, ...]:
        try:
            return budgets_of(await self.decide(caller, self.counting(), mode="peek"))
        except Undecided as error:
            return budgets_of(error.decision)

    async def usage_of(self, identity: object) -> tuple[Budget, ...]:
        following = self.following
        if following is not None and following.now_us() >= following.due:
            await self._follow(following)
        return budgets_of(await self.limiter.run(self._plan_of(identity)))

    async def reset_all(self, identity: object) -> int:
        return await self.limiter.reset_all(self.counted(identity))

    async def close(self) -> None:
        await self.limiter.close()


def _options(settings: Settings) -> dict[str, Any]:
    """Return the options of a limiter. Each option is the setting with the same name."""
    return {name: getattr(settings, name) for name in OPTIONS}


def _applies(bound: Bound, caller: Caller, known: Known) -> object:
    """Return whether a rule applies to a request, as its methods, its path and its `when` say; perhaps a Waiting."""
    rule = bound.rule
    if not bound.holds(caller):
        return False
    return rule.when is None or asked(rule.when, caller, known, at=(bound, "when"), rule=rule.name, option="when")


def _is_exception(rule: Rule, identity: str, held: Held, *, of: Callable[..., Held | None]) -> bool:
    """Return whether another action than that of every rule holds for an identity under a rule, in one of its tiers."""
    tiers = map(str, rule.quota.table) if isinstance(rule.quota, Tiers) else (None,)
    found = [of(rule.name, identity, tier) for tier in tiers]
    return any([one is not None and one.action != held.action for one in found])


def _quota_of(rule: Rule) -> tuple[str, Any]:
    """Return the name of the option that chooses a rule's quota, and its value."""
    return ("Tiers.by", rule.quota.by) if isinstance(rule.quota, Tiers) else ("quota", rule.quota)


def _add(checks: list[Check], check: Check) -> None:
    """Add a check. Of two checks with the same budget only the stricter stays: a budget is charged once."""
    for at, other in enumerate(checks):
        if other.terms.rule_id == check.terms.rule_id and other.identity == check.identity:
            if check.terms.limit < other.terms.limit:
                checks[at] = check
            return
    checks.append(check)

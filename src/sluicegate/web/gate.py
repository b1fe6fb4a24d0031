"""The gate: the rules of one application, and the decision about a request.

An adapter makes one gate at start-up. `bind` returns the rules of a view, and is cached; `decide` charges them for a
caller. A Gate is for synchronous adapters, an AsyncGate for asynchronous adapters. The two differ by two awaits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Sequence
from dataclasses import replace
from fnmatch import translate
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

from sluicegate.clock import SystemClock, stopwatch
from sluicegate.errors import RuleError, nearest
from sluicegate.identity import Seal
from sluicegate.limiter import OPTIONS, AsyncLimit, AsyncLimiter, Limit, Limiter
from sluicegate.plan import Check, Decision, Plan, Terms, new
from sluicegate.rules.ban import Ban, agree, with_bans
from sluicegate.rules.key import Caller, Keys, KeySpec, ReadyKey, as_keys_give, identity_of, network_key, reads_user
from sluicegate.rules.rollout import EVERYBODY, picked, share
from sluicegate.rules.rule import Rule
from sluicegate.rules.terms import whole_cost
from sluicegate.rules.tiers import Tiers
from sluicegate.runtime import fork
from sluicegate.runtime.awaiting import Later, Waiting, async_mismatch, is_async, waits
from sluicegate.stores.completion import complete
from sluicegate.web.access import unasked
from sluicegate.web.bound import NO_BOUNDS, Begin, Bound, Bounds, names_of, of_method, unique, warn_of_names
from sluicegate.web.endpoint import Endpoint, scope_of, short_name
from sluicegate.web.marks import EXEMPT, Mark
from sluicegate.web.settings import Settings
from sluicegate.web.settlement import AsyncSettlement, Settlement

if TYPE_CHECKING:
    from sluicegate.observe.events import Delivery

PlanSteps = Generator[Waiting | Plan, Any, None]


class Undecided(Exception):  # users never see it
    """The identity of a request cannot be found out, and its rule refuses then. `decision` is the refusal."""

    def __init__(self, decision: Decision) -> None:
        super().__init__("the identity of the request is unknown")
        self.decision = decision


class _Rules:
    """The common part of both gates: everything except the awaits."""

    _sync: bool
    _awaits_answers = True  # whether an `on_denied` may be async
    _limit: Any  # Limit or AsyncLimit
    watched: type[Any]
    events: Delivery  # only with `on_decision`
    limiter: Limiter | AsyncLimiter

    def __init__(self, settings: Settings, *, accept: Callable[[Terms], object]) -> None:
        self.settings = settings
        if self.limiter.events is not None:  # first: the rules that are made ready below belong to the watched gate
            self.events = self.limiter.events
            self.events.take_part(self, self.watched)
        self._seal = None if settings.secret is None else Seal(settings.secret).text
        self._network = network_key(settings.trust, prefix=settings.ipv6_prefix, ipv4_prefix=settings.ipv4_prefix)
        self._accept = accept
        self._bans: dict[str, Ban] = {}  # by name
        self._lists = settings.lists
        self._keys = Keys(settings.address, strict=settings.strict)
        self._key = self._keys.ready(settings.key)
        self.denies = bool(settings.deny)  # whether a request may be refused although no rule applies
        self._check_answer("on_denied", settings.on_denied)
        if settings.lists is not None:
            for option, function in settings.lists.functions:
                self._check_sync(option, function)
            for part in _parts_of(settings.key) if settings.lists.asks_the_key else ():
                self._check_sync("key", part)
        clock = getattr(settings.store, "clock", None) if settings.clock is None else settings.clock
        self._now_us = (SystemClock() if clock is None else clock).now_us
        self.may_owe = False  # whether any rule may refund a charge when the response is known or has ended
        self._bound: dict[Hashable, Bounds] = {}
        self.lock = RLock()  # for charges of one request in several threads
        fork.renew(self)
        self.charged: dict[Hashable, Bounds] = {}  # the rules that views charge themselves, by their call
        self._homes: dict[tuple[Mark, str], str] = {}  # the first route of each view: the budget's key contains it
        default = settings.default_limits
        self._defaults = (self._ready(Rule(name="default", quota=tuple(default))),) if default else ()  # type: ignore[arg-type]
        self._rules = tuple(self._ready(rule) for rule in settings.rules if isinstance(rule, Rule))
        self._named = {name for bound in (*self._defaults, *self._rules) for name in names_of(bound)}
        self.knows_routes = any(bound.routes is not None for bound in self._rules)

    def after_fork(self) -> None:
        """Renew the lock."""
        self.lock = RLock()

    def bind(self, endpoint: Endpoint, done: frozenset[Mark] = frozenset()) -> Bounds:
        """Return the rules of an endpoint: the default limits, the settings' rules, and the view's own. Cached.

        `done` has the marks of the endpoint that an outer limiter has enforced for this request.
        """
        view = (endpoint.view, done) if done else endpoint.view
        found = self._bound.get(view)
        if found is None:
            found = self._bound[view] = self._bind(endpoint, done)
        return found

    def bind_own(self, endpoint: Endpoint, marks: Iterable[Mark]) -> Bounds:
        """Return only the rules of these marks, for a view that the adapter could not find before the call."""
        return unique(self._own(endpoint, marks))

    def bind_rule(self, rule: Rule) -> Bounds:
        """Return a rule that no view declares, ready for use. The caller caches it."""
        return Bounds((self._ready(rule),))

    def check_routes(self, names: Collection[str]) -> None:
        """Raise RuleError for a rule whose `route` is not among these names: such a rule would never apply."""
        with self.settings.blamed():
            for rule in [bound.rule for bound in self._rules]:
                for route in rule.route or ():
                    if route not in names:
                        expected = nearest(route, names, "give the name or the template of a route")
                        raise RuleError(f"rule {rule.name!r}: route", route, problem="no such route", expected=expected)

    def asks_for_users(self, endpoints: Iterable[Endpoint]) -> bool:
        """True if a rule of these endpoints has the key "user"."""
        return any([reads_user(self.key_of(bound)) for endpoint in endpoints for bound in self.bind(endpoint)])

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
        overridden = any(mark.override_defaults for mark in endpoint.marks)
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
        functions = [("key", part) for part in _parts_of(key)]
        for option, function in (*functions, _quota_of(rule), ("cost", rule.cost), ("when", rule.when)):
            self._check_sync(f"rule {rule.name!r}: {option}", function)
        self._check_answer(f"rule {rule.name!r}: on_denied", rule.on_denied)
        agree(self._bans, rule.name, rule.ban)
        for known in rule.known:
            for each in rule.terms(self.settings.algorithm, known):
                self._accept(each)
                self.may_owe = self.may_owe or each.held or each.refund_when is not None
        self.may_owe = self.may_owe or not rule.known
        narrow, shared = rule.methods is not None or rule.path is not None, share(rule.mode, rule.enforce_percent)
        terms = None if callable(rule.quota) else rule.terms(self.settings.algorithm)
        constant = rule.when is None and not rule.per_method and terms is not None and isinstance(rule.cost, int)
        named = type(key) is str and (self._sync or key != "user")  # Django's user may be a coroutine
        alone = self._lists is None and rule.ban is None and not narrow and shared == EVERYBODY
        ready = self._key if rule.key is None else self._keys.ready(key)
        plain = named and constant and alone
        return Bound(
            rule=rule,
            key=ready,
            methods=cast("frozenset[str] | None", rule.methods),
            routes=cast("frozenset[str] | None", rule.route),
            path=None if rule.path is None else re.compile(translate(rule.path)),
            terms=terms,
            narrow=narrow,
            share=shared,
            begin_of=self._begin_of(ready, rule.cost) if plain else None,
        )

    def _begin_of(self, key: ReadyKey, cost: Any) -> partial[Begin]:
        """Return the function that makes the `begin` of plain rules with this key and cost. It refers to the limiter
        and not to this gate, which has the rules.
        """
        limit = partial(self._limit, self.limiter)
        return partial(_begin_plain, limit=limit, key=key, cost=cost, seal=self._seal, network=self._network)

    def _counted(self, identity: object) -> object:
        """Return an identity that a person wrote, as this application's keys give it."""
        settings = self.settings
        return as_keys_give(identity, prefix=settings.ipv6_prefix, ipv4_prefix=settings.ipv4_prefix)

    def _check_sync(self, what: str, function: object) -> None:
        if self._sync and is_async(function):
            raise async_mismatch(what, function)

    def _check_answer(self, what: str, function: object) -> None:
        if not self._awaits_answers:
            self._check_sync(what, function)

    def plan(self, caller: Caller, bounds: Iterable[Bound]) -> PlanSteps:
        """Yield each awaitable that a user's function returns, and at the end the plan of the request."""
        found: dict[ReadyKey, str | None] = {}  # what each key returned: a key is evaluated once
        if self._lists is not None:
            yield from self._lists.plan(caller, self._key, found)
        checks: list[Check] = []
        seal = self._seal
        for bound in bounds:
            if bound.narrow and not bound.holds(caller):
                continue
            rule, terms = bound.rule, bound.terms
            if rule.when is not None:
                wanted: Any = rule.when(caller.native)
                if not ((yield Waiting(wanted, rule.name, "when", rule.when)) if waits(wanted) else wanted):
                    continue
            key = bound.key
            if key in found:
                text = found[key]
            elif isinstance(key, tuple):
                text = yield from identity_of(key, caller, found, rule=rule.name)
            else:  # the same as in `identity_of`, without the cost of a generator
                text = key(caller)
                if type(text) is Later:
                    text = yield Waiting(text, rule.name, "key", text.function)
                found[key] = text
            if text is None:
                continue
            text = text if seal is None else seal(text)
            if terms is None:
                quota: Any = rule.quota(caller.native)  # type: ignore[operator]
                quota = (yield Waiting(quota, rule.name, *_quota_of(rule))) if waits(quota) else quota
                if quota is None:
                    continue
                terms = rule.terms(self.settings.algorithm, quota)
            terms = terms if bound.share == EVERYBODY else picked(terms, text, bound.share)
            if rule.per_method:
                terms = of_method(terms, caller.method)
            cost: Any = rule.cost
            if not isinstance(cost, int):
                cost = cost(caller.native)
                cost = (yield Waiting(cost, rule.name, "cost", rule.cost)) if waits(cost) else cost
                cost = whole_cost(f"rule {rule.name!r}: cost", cost)
            for each in terms:
                check = new(Check, (each, text, cost))
                if checks:
                    _add(checks, check)
                else:
                    checks.append(check)
        charged = with_bans(checks) if self._bans else tuple(checks)
        yield new(Plan, (charged, True, False, partial(self._network, caller)))


class Gate(_Rules):
    """The gate of a synchronous application. Flask and Django under ASGI await an `on_denied` all the same."""

    _sync, _limit = True, Limit
    limiter: Limiter

    def __init__(self, settings: Settings, *, awaits_answers: bool = False) -> None:
        self._awaits_answers = awaits_answers
        with settings.blamed():
            self.limiter = Limiter(settings.store, **_options(settings))  # type: ignore[arg-type]
            super().__init__(settings, accept=self.limiter.accept)

    def decide(self, caller: Caller, bounds: Bounds) -> Decision | None:
        """Charge all rules that apply, or none of them, and return the decision. Return None if no rule applies."""
        begin = bounds.begin  # CPython 3.11 does not specialise the call of an attribute
        begun = begin(caller)
        if type(begun) is Decision:
            return begun
        return self.finish(begun, caller, bounds) if bounds or self.denies else None

    def finish(
        self, plan: Any, caller: Caller, bounds: Sequence[Bound], trim: Callable[[Plan], Plan] | None = None
    ) -> Decision | None:
        """Do the rest of `decide` with what the rules' `begin` returned. `trim` returns the part of a plan to run."""
        if plan is None:
            plan = next(self.plan(caller, bounds))
            if type(plan) is not Plan:
                raise plan.refused()
        if trim is not None:
            plan = trim(plan)
        return self.limiter.run(plan) if plan.checks else unasked(plan)

    def run(self, plan: Plan, caller: Caller) -> Decision:
        """Decide a plan that `finish` has left for later."""
        return self.limiter.run(plan)

    def settlement(self) -> Settlement:
        """Return an object that refunds and releases the charges of one request that this gate has allowed."""
        return Settlement(self.limiter.store, self._now_us)

    def reset_all(self, identity: object) -> int:
        """Forget every budget, slot and ban of an identity. Return how many budgets were forgotten."""
        return self.limiter.reset_all(self._counted(identity))

    def close(self) -> None:
        """Close the store that this gate opened."""
        self.limiter.close()


class AsyncGate(_Rules):
    """The gate of an asynchronous application."""

    _sync, _limit = False, AsyncLimit
    limiter: AsyncLimiter

    def __init__(self, settings: Settings) -> None:
        with settings.blamed():
            self.limiter = AsyncLimiter(settings.store, **_options(settings))  # type: ignore[arg-type]
            super().__init__(settings, accept=self.limiter.accept)

    async def decide(self, caller: Caller, bounds: Bounds) -> Decision | None:
        begun = bounds.begin(caller)
        return begun if type(begun) is Decision else await self.finish(begun, caller, bounds)

    async def finish(
        self, plan: Any, caller: Caller, bounds: Sequence[Bound], trim: Callable[[Plan], Plan] | None = None
    ) -> Decision | None:
        """Do the rest of `decide` with what the rules' `begin` returned. `trim` returns the part of a plan to run."""
        if plan is not None and type(plan) is not Plan:
            return await plan  # type: ignore[no-any-return]
        if plan is None:
            steps = self.plan(caller, bounds)
            plan = next(steps)
            while type(plan) is not Plan:
                plan = steps.send(await plan.answer)
            if trim is not None:
                plan = trim(plan)
            if not plan.checks:
                return unasked(plan)
        if self.may_owe and any([check.terms.held for check in plan.checks]):
            return await complete(self.limiter.run(plan), self.settlement().release_late)
        return await self.limiter.run(plan)

    async def run(self, plan: Plan, caller: Caller) -> Decision:
        return await self.limiter.run(plan)

    def settlement(self) -> AsyncSettlement:
        return AsyncSettlement(self.limiter.store, self._now_us)

    async def reset_all(self, identity: object) -> int:
        return await self.limiter.reset_all(self._counted(identity))

    async def close(self) -> None:
        await self.limiter.close()


class _WatchedRules(_Rules):
    """The common part of both gates of applications with `on_decision`: each decision becomes one event."""

    def _begin_of(self, key: ReadyKey, cost: Any) -> partial[Begin]:
        return partial(_begin_watched, events=self.events, **super()._begin_of(key, cost).keywords)

    def _note(
        self, decision: Decision | None, seconds: float | None, caller: Caller, *, peeking: _Peeking | None = None
    ) -> Decision | None:
        """Note a decision, unless no rule applied or the plan has charged nothing."""
        if decision is None or (peeking is not None and not peeking.charges):
            return decision
        return self.events.note(decision, seconds, caller)


class _Peeking:
    """The `trim` of a charge, which notes whether its plan charges: a plan that does not is no decision."""

    __slots__ = ("_trim", "charges")

    def __init__(self, trim: Callable[[Plan], Plan]) -> None:
        self._trim = trim
        self.charges = True

    def __call__(self, plan: Plan) -> Plan:
        plan = self._trim(plan)
        self.charges = plan.charge or not plan.checks
        return plan


class _WatchedGate(_WatchedRules, Gate):
    """A Gate with `on_decision`."""

    def finish(
        self, plan: Any, caller: Caller, bounds: Sequence[Bound], trim: Callable[[Plan], Plan] | None = None
    ) -> Decision | None:
        time, peeking = self.events.measure(), None if trim is None else _Peeking(trim)
        try:
            decision = super().finish(plan, caller, bounds, trim=peeking)
        except Undecided as error:
            self.events.note(error.decision, time.stop(), caller)
            raise
        return self._note(decision, time.stop(), caller, peeking=peeking)

    def run(self, plan: Plan, caller: Caller) -> Decision:
        time = self.events.measure()
        return self.events.note(super().run(plan, caller), time.stop(), caller)


class _WatchedAsyncGate(_WatchedRules, AsyncGate):
    """An AsyncGate with `on_decision`."""

    async def finish(
        self, plan: Any, caller: Caller, bounds: Sequence[Bound], trim: Callable[[Plan], Plan] | None = None
    ) -> Decision | None:
        if plan is not None and type(plan) is not Plan:  # a charge that leaves at the end of this turn of the loop
            began = stopwatch()
            decision: Any = await plan  # a Decision
            return self.events.note(decision, stopwatch() - began, caller)
        time, peeking = self.events.measure(), None if trim is None else _Peeking(trim)
        try:
            decision = await super().finish(plan, caller, bounds, trim=peeking)
        except Undecided as error:
            self.events.note(error.decision, time.stop(), caller)
            raise
        return self._note(decision, time.stop(), caller, peeking=peeking)

    async def run(self, plan: Plan, caller: Caller) -> Decision:
        time = self.events.measure()
        return self.events.note(await super().run(plan, caller), time.stop(), caller)


Gate.watched, AsyncGate.watched = _WatchedGate, _WatchedAsyncGate


def _begin_plain(terms: Any, *, limit: Any, key: Any, cost: int, seal: Any, network: Any) -> Begin:
    """Return the `begin` of plain rules with these terms."""
    hit = limit(terms).begin

    def begin(caller: Caller) -> Any:
        text = key(caller)
        return hit(text if seal is None else seal(text), cost, (network, caller))

    return begin


def _begin_watched(terms: Any, *, limit: Any, key: Any, cost: int, seal: Any, network: Any, events: Delivery) -> Begin:
    """Return the `begin` of plain rules in an application with `on_decision`. It measures the store and not the key,
    which may ask a database for the user.
    """
    hit = limit(terms).begin

    def begin(caller: Caller) -> Any:
        text = key(caller)
        text = text if seal is None else seal(text)
        began = stopwatch()
        decision = hit(text, cost, (network, caller))
        if type(decision) is Decision:
            events.note(decision, stopwatch() - began, caller)
        return decision

    return begin


def _options(settings: Settings) -> dict[str, Any]:
    """Return the options of a limiter. Each option is the setting with the same name."""
    return {name: getattr(settings, name) for name in OPTIONS}


def _parts_of(key: KeySpec) -> tuple[object, ...]:
    """Return the parts of a key, including the parts of a tuple inside a tuple."""
    return tuple([each for part in key for each in _parts_of(part)]) if isinstance(key, tuple) else (key,)


def _quota_of(rule: Rule) -> tuple[str, object]:
    """Return the name of the option that gives a rule's quota, and its value."""
    return ("Tiers.by", rule.quota.by) if isinstance(rule.quota, Tiers) else ("quota", rule.quota)


def _add(checks: list[Check], check: Check) -> None:
    """Add a check. Of two checks with the same budget only the stricter stays: a budget is charged once."""
    for at, other in enumerate(checks):
        if other.terms.rule_id == check.terms.rule_id and other.identity == check.identity:
            if check.terms.limit < other.terms.limit:
                checks[at] = check
            return
    checks.append(check)

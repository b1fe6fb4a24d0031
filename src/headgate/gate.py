"""The gate: the rules of one application, and how a request meets them.

An adapter makes one gate at start-up and asks it two things: which rules hold for a view (`bind`, remembered), and
whether a caller may pass (`decide`). A Gate is for synchronous adapters, an AsyncGate for asynchronous ones; they
differ by two awaits. This module knows rules, settings and the limiter; no framework, no HTTP, and no concrete store.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Collection, Generator, Hashable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import translate
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from typing import Any, NamedTuple, cast

from headgate.errors import ColourError, RuleError, StoreError
from headgate.identity import identity_text
from headgate.key import Caller, ReadyKey, ready_key
from headgate.limiter import AsyncLimiter, Limiter
from headgate.marks import EXEMPT, Mark
from headgate.passage import Place, scope_of, short_name
from headgate.plan import Check, Decision, Plan, Terms
from headgate.rule import Rule
from headgate.settings import Settings

log = logging.getLogger("headgate")

Steps = Generator[Awaitable[Any], Any, Plan]


class Bound(NamedTuple):
    """A rule made ready for one application."""

    rule: Rule
    key: ReadyKey
    methods: frozenset[str] | None
    routes: frozenset[str] | None
    path: re.Pattern[str] | None
    terms: tuple[Terms, ...] | None  # None: the quota is a function of the request

    def holds(self, caller: Caller) -> bool:
        """Whether method and path are those that the rule is for."""
        if self.methods is not None and caller.method not in self.methods:
            return False
        return self.path is None or self.path.fullmatch(caller.path) is not None


class _Rules:
    """What both gates share: everything but the awaits."""

    _sync: bool

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._bound: dict[Hashable, tuple[Bound, ...]] = {}
        self._failing = False
        self._options: dict[str, Any] = {
            "prefix": settings.prefix,
            "algorithm": settings.algorithm,
            "clock": settings.clock,
        }
        self._local = Limiter(clock=settings.clock)
        default = settings.default_limits
        self._defaults = (self._ready(Rule(name="default", quota=tuple(default))),) if default else ()  # type: ignore[arg-type]
        self._rules = tuple(self._ready(rule) for rule in settings.rules if isinstance(rule, Rule))

    def bind(self, place: Place, done: frozenset[Mark] = frozenset()) -> tuple[Bound, ...]:
        """The rules that hold at a place: defaults, those of the settings, and the view's own. Remembered.

        `done` are marks of the place that another limiter, further outside, has enforced for this request.
        """
        view = (place.view, done) if done else place.view
        found = self._bound.get(view)
        if found is None:
            found = self._bound[view] = self._bind(place, done)
        return found

    def bind_own(self, place: Place, marks: Iterable[Mark]) -> tuple[Bound, ...]:
        """Only the rules of these marks: for a view that is reached without having been found ahead."""
        return _unique(self._own(place, marks))

    def check_routes(self, names: Collection[str]) -> None:
        """Refuse a rule for a route that is not among these names of routes: it would hold nowhere."""
        for rule in [bound.rule for bound in self._rules]:
            for route in rule.route or ():
                if route not in names:
                    near = get_close_matches(route, names, n=1)
                    expected = f'did you mean "{near[0]}"?' if near else "give the name or the template of a route"
                    raise RuleError(f"rule {rule.name!r}: route", route, problem="no such route", expected=expected)

    def _own(self, place: Place, marks: Iterable[Mark]) -> list[Bound]:
        name, own = short_name(place), [mark for mark in marks if mark is not EXEMPT]
        return [self._ready(mark.rule_for(name, scope_of(place, mark))) for mark in own]

    def _bind(self, place: Place, done: frozenset[Mark]) -> tuple[Bound, ...]:
        if EXEMPT in place.marks:
            return ()
        overridden = any(mark.override_defaults for mark in place.marks)
        matched = [bound for bound in self._rules if bound.routes is None or not bound.routes.isdisjoint(place.names)]
        own = self._own(place, [mark for mark in place.marks if mark not in done])
        return _unique([*(() if overridden else self._defaults), *matched, *own])

    def _ready(self, rule: Rule) -> Bound:
        key = self.settings.key if rule.key is None else rule.key
        for option in (*(key if isinstance(key, tuple) else (key,)), rule.quota, rule.cost, rule.when):
            if self._sync and iscoroutinefunction(option):
                raise ColourError(
                    f"rule {rule.name!r}",
                    option,
                    problem="an async function, but this application is called synchronously",
                    expected="give a plain function",
                )
        return Bound(
            rule=rule,
            key=ready_key(key, self.settings.trust),
            methods=cast("frozenset[str] | None", rule.methods),
            routes=cast("frozenset[str] | None", rule.route),
            path=None if rule.path is None else re.compile(translate(rule.path)),
            terms=None if callable(rule.quota) else rule.terms(self.settings.algorithm),
        )

    def plan(self, caller: Caller, bounds: Iterable[Bound]) -> Steps:
        """Build the plan of one request, yielding whatever a user's function leaves to be awaited."""
        checks: list[Check] = []
        for bound in bounds:
            if not bound.holds(caller):
                continue
            rule = bound.rule
            if rule.when is not None and not (yield from _value(rule.when(caller.native))):
                continue
            identity = yield from _value(bound.key(caller))
            if identity is None:
                continue
            terms = bound.terms
            if terms is None:
                quota = yield from _value(rule.quota(caller.native))  # type: ignore[operator]
                if quota is None:
                    continue
                terms = rule.terms(self.settings.algorithm, quota)
            cost = (
                rule.cost if isinstance(rule.cost, int) else _cost(rule, (yield from _value(rule.cost(caller.native))))
            )
            text = identity_text(identity)
            for each in terms:
                _add(checks, Check(each, text, cost))
        return Plan(tuple(checks))

    def _without_store(self, plan: Plan, error: StoreError) -> Decision:
        """The decision that the policy makes in the store's place; said once for each outage, not for each request."""
        policy = self.settings.on_store_failure
        if not self._failing:
            self._failing = True
            log.warning("headgate: %s; on_store_failure is %r", error, policy)
        if policy == "local":
            return self._local.run(plan)._replace(degraded=True)
        return Decision(policy == "allow", (), (), degraded=True)

    def _answered(self) -> None:
        if self._failing:
            self._failing = False
            log.warning("headgate: the store answers again")


class Gate(_Rules):
    """The gate of a synchronous application."""

    _sync = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.limiter = Limiter(settings.store, **self._options)  # type: ignore[arg-type]

    def decide(self, caller: Caller, bounds: Iterable[Bound]) -> Decision | None:
        """Charge all rules that apply, or none; None when none does."""
        plan = _finish(self.plan(caller, bounds))
        if not plan.checks:
            return None
        try:
            decision = self.limiter.run(plan)
        except StoreError as error:
            return self._without_store(plan, error)
        self._answered()
        return decision

    def close(self) -> None:
        """Close what the settings made this gate open."""
        self.limiter.close()


class AsyncGate(_Rules):
    """The gate of an asynchronous application."""

    _sync = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.limiter = AsyncLimiter(settings.store, **self._options)  # type: ignore[arg-type]

    async def decide(self, caller: Caller, bounds: Iterable[Bound]) -> Decision | None:
        """Charge all rules that apply, or none; None when none does."""
        plan = await _finish_later(self.plan(caller, bounds))
        if not plan.checks:
            return None
        try:
            decision = await self.limiter.run(plan)
        except StoreError as error:
            return self._without_store(plan, error)
        self._answered()
        return decision

    async def close(self) -> None:
        """Close what the settings made this gate open."""
        await self.limiter.close()


def _value(value: Any) -> Generator[Awaitable[Any], Any, Any]:
    """A user's answer, awaited if it has to be."""
    if type(value) is not tuple and isawaitable(value):
        value = yield value
    return value


def _finish(steps: Steps) -> Plan:
    """Run the steps where nothing can be awaited."""
    try:
        awaitable = next(steps)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    if iscoroutine(awaitable):
        awaitable.close()
    raise ColourError(
        "rule", awaitable, problem="an async function in a synchronous application", expected="give a plain function"
    )


async def _finish_later(steps: Steps) -> Plan:
    """Run the steps, awaiting what they yield."""
    try:
        awaitable = next(steps)
        while True:
            awaitable = steps.send(await awaitable)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _cost(rule: Rule, cost: object) -> int:
    if not isinstance(cost, int) or cost < 0:
        raise RuleError(
            f"rule {rule.name!r}: cost", cost, problem="not a whole number of units", expected="return 0 or more"
        )
    return cost


def _add(checks: list[Check], check: Check) -> None:
    """Add a check; of two on the same budget the stricter one stays, for a budget is charged once."""
    for at, other in enumerate(checks):
        if other.terms.rule_id == check.terms.rule_id and other.identity == check.identity:
            if check.terms.params[0] < other.terms.params[0]:
                checks[at] = check
            return
    checks.append(check)


def _unique(bounds: list[Bound]) -> tuple[Bound, ...]:
    """The same rules with names that tell them apart in header fields."""
    taken: set[str] = set()
    unique = []
    for bound in bounds:
        other, number = bound, 2
        while not taken.isdisjoint(_names(other)):
            other, number = _renamed(bound, f"{bound.rule.name}-{number}"), number + 1
        taken |= _names(other)
        unique.append(other)
    return tuple(unique)


def _names(bound: Bound) -> set[str]:
    """What its checks will be called; a rule of several quotas has several names."""
    return {bound.rule.name} if bound.terms is None else {each.name for each in bound.terms}


def _renamed(bound: Bound, name: str) -> Bound:
    """The same rule, with the same budget, under another name."""
    rule = bound.rule
    scope = rule.name if rule.scope is None else rule.scope
    terms = bound.terms and tuple(each._replace(name=each.name.replace(rule.name, name, 1)) for each in bound.terms)
    return bound._replace(rule=replace(rule, name=name, scope=scope), terms=terms)

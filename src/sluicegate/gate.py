"""The gate: the rules of one application, and how a request meets them.

An adapter makes one gate at start-up and asks it two things: which rules hold for a view (`bind`, remembered), and
whether a caller may pass (`decide`). A Gate is for synchronous adapters, an AsyncGate for asynchronous ones; they
differ by two awaits. This module knows rules, settings and the limiter; no framework, no HTTP, and no concrete store.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Generator, Hashable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import translate
from functools import partial
from typing import Any, Final, cast

from sluicegate.awaiting import Waiting, answers_later, called_at_once, waits
from sluicegate.ban import Ban, agree, with_bans
from sluicegate.clock import SystemClock
from sluicegate.ending import AsyncEnding, Ending, run_apart
from sluicegate.errors import RuleError
from sluicegate.identity import Seal
from sluicegate.key import Caller, KeySpec, ReadyKey, network_key, ready_key
from sluicegate.limiter import AsyncLimiter, Limiter
from sluicegate.lists import unasked
from sluicegate.marks import EXEMPT, Mark
from sluicegate.naming import names_of, unique, warn_of_names
from sluicegate.passage import Place, scope_of, short_name
from sluicegate.plan import Check, Decision, Plan, Terms, new
from sluicegate.rule import Rule
from sluicegate.settings import Settings
from sluicegate.shadow import EVERYBODY, picked, share
from sluicegate.stores.stack import FAILURE_OPTIONS
from sluicegate.terms import whole_cost
from sluicegate.tiers import Tiers

_PASSED_ON: Final = ("prefix", "algorithm", "clock", "secret", "strict", *FAILURE_OPTIONS)

Steps = Generator[Waiting | Plan, Any, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A rule made ready for one application."""

    rule: Rule
    key: ReadyKey
    methods: frozenset[str] | None
    routes: frozenset[str] | None
    path: re.Pattern[str] | None
    terms: tuple[Terms, ...] | None  # None: the quota is a function of the request
    narrow: bool  # it holds only for some methods or paths
    share: int  # of EVERYBODY, for whom it is enforced; the others are in its shadow
    plain: bool  # nothing of it but its key depends on the request, and that needs no waiting

    def holds(self, caller: Caller) -> bool:
        """Whether method and path are those that the rule is for."""
        if self.methods is not None and caller.method not in self.methods:
            return False
        return self.path is None or self.path.fullmatch(_as_routed(caller.path)) is not None


def _as_routed(path: str) -> str:
    """A path as routers see it: Werkzeug's drops slashes in front, and Starlette's `$` a line feed at the end."""
    return "/" + path.lstrip("/").removesuffix("\n")


class _Rules:
    """What both gates share: everything but the awaits."""

    _sync: bool

    def __init__(self, settings: Settings, *, accept: Callable[[Terms], object]) -> None:
        self.settings = settings
        self._seal = None if settings.secret is None else Seal(settings.secret).text
        self._network = network_key(settings.trust, prefix=settings.ipv6_prefix)
        self._accept = accept
        self._bans: dict[str, Ban] = {}  # by name
        self._lists = settings.lists
        self.denies = bool(settings.deny)  # whether somebody is refused also where no rule holds
        if settings.lists is not None:
            for option, function in settings.lists.functions:
                self._check_colour(option, function)
            for part in _parts_of(settings.key) if settings.lists.asks_the_key else ():
                self._check_colour("key", part)
        clock = getattr(settings.store, "clock", None) if settings.clock is None else settings.clock
        self._now_us = (SystemClock() if clock is None else clock).now_us
        self.may_owe = False  # whether any charge may be given back when the response is known, or has ended
        self._bound: dict[Hashable, tuple[Bound, ...]] = {}
        self._homes: dict[tuple[Mark, str], str] = {}  # the first route of each view: its budget is kept under that one
        default = settings.default_limits
        self._defaults = (self._ready(Rule(name="default", quota=tuple(default))),) if default else ()  # type: ignore[arg-type]
        self._rules = tuple(self._ready(rule) for rule in settings.rules if isinstance(rule, Rule))
        self._named = {name for bound in (*self._defaults, *self._rules) for name in names_of(bound)}
        self.knows_routes = any(bound.routes is not None for bound in self._rules)

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
        return unique(self._own(place, marks))

    def check_routes(self, names: Collection[str]) -> None:
        """Refuse a rule for a route that is not among these names of routes: it would hold nowhere."""
        for rule in [bound.rule for bound in self._rules]:
            for route in rule.route or ():
                if route not in names:
                    near = get_close_matches(route, names, n=1)
                    expected = f'did you mean "{near[0]}"?' if near else "give the name or the template of a route"
                    raise RuleError(f"rule {rule.name!r}: route", route, problem="no such route", expected=expected)

    def _own(self, place: Place, marks: Iterable[Mark]) -> list[Bound]:
        name, bounds = short_name(place), []
        for mark in marks:
            if mark is not EXEMPT:
                home = self._homes.setdefault((mark, place.label), place.route)
                bounds.append(self._ready(mark.rule_for(name, scope_of(place._replace(route=home), mark))))
        return bounds

    def _bind(self, place: Place, done: frozenset[Mark]) -> tuple[Bound, ...]:
        if EXEMPT in place.marks:
            return ()
        overridden = any(mark.override_defaults for mark in place.marks)
        matched = [bound for bound in self._rules if bound.routes is None or not bound.routes.isdisjoint(place.names)]
        own = self._own(place, [mark for mark in place.marks if mark not in done])
        bounds = [*(() if overridden else self._defaults), *matched, *own]
        warn_of_names(bounds, self._named, strict=self.settings.strict)
        return unique(bounds)

    def _ready(self, rule: Rule) -> Bound:
        key = self.settings.key if rule.key is None else rule.key
        functions = [("key", part) for part in _parts_of(key)]
        for option, function in (*functions, _quota_of(rule), ("cost", rule.cost), ("when", rule.when)):
            self._check_colour(f"rule {rule.name!r}: {option}", function)
        agree(self._bans, rule.name, rule.ban)
        for known in rule.known:
            for each in rule.terms(self.settings.algorithm, known):
                self._accept(each)
                self.may_owe = self.may_owe or each.held or each.refund_when is not None
        self.may_owe = self.may_owe or not rule.known
        narrow, shared = rule.methods is not None or rule.path is not None, share("", rule.mode, rule.enforce_percent)
        terms = None if callable(rule.quota) else rule.terms(self.settings.algorithm)
        constant = rule.when is None and terms is not None and isinstance(rule.cost, int)
        named = isinstance(key, str) and (self._sync or key != "user")  # Django's user may be a coroutine
        return Bound(
            rule=rule,
            key=ready_key(key, self.settings.address),
            methods=cast("frozenset[str] | None", rule.methods),
            routes=cast("frozenset[str] | None", rule.route),
            path=None if rule.path is None else re.compile(translate(rule.path)),
            terms=terms,
            narrow=narrow,
            share=shared,
            plain=named and constant and not narrow and shared == EVERYBODY,
        )

    def _check_colour(self, what: str, function: object) -> None:
        if self._sync and answers_later(function):
            raise called_at_once(what, function)

    def plan_at_once(self, caller: Caller, bounds: Collection[Bound]) -> Plan | None:
        """The plan of one request under one plain rule, as most are; None for all others."""
        if len(bounds) != 1 or self._bans or self._lists is not None:
            return None
        (bound,) = bounds
        if not bound.plain or bound.terms is None:
            return None
        text = bound.key(caller) if self._seal is None else self._seal(bound.key(caller))
        checks = [new(Check, (terms, text, bound.rule.cost)) for terms in bound.terms]
        return new(Plan, (tuple(checks), True, False, partial(self._network, caller)))

    def plan(self, caller: Caller, bounds: Iterable[Bound]) -> Steps:
        """Build the plan of one request, and yield it, after whatever a user's function leaves to be awaited."""
        if self._lists is not None:
            yield from self._lists.plan(caller)
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
            text = bound.key(caller)
            if type(text) is not str and text is not None:  # nearly always it is a text
                text = yield Waiting(text, rule.name, "key", text.function)
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
        found = with_bans(checks) if self._bans else tuple(checks)
        yield new(Plan, (found, True, False, partial(self._network, caller)))


class Gate(_Rules):
    """The gate of a synchronous application."""

    _sync = True

    def __init__(self, settings: Settings) -> None:
        self.limiter = Limiter(settings.store, **_options(settings))  # type: ignore[arg-type]
        super().__init__(settings, accept=self.limiter.accept)

    def decide(self, caller: Caller, bounds: Collection[Bound]) -> Decision | None:
        """Charge all rules that apply, or none; None when none does."""
        if not bounds and not self.denies:
            return None
        plan: Any = self.plan_at_once(caller, bounds) or next(self.plan(caller, bounds))
        if type(plan) is not Plan:
            raise plan.refused()
        return self.limiter.run(plan) if plan.checks else unasked(plan)

    def ending(self) -> Ending:
        """What will end a request that this gate has let in."""
        return Ending(self.limiter.store, self._now_us)

    def close(self) -> None:
        """Close what the settings made this gate open."""
        self.limiter.close()


class AsyncGate(_Rules):
    """The gate of an asynchronous application."""

    _sync = False

    def __init__(self, settings: Settings) -> None:
        self.limiter = AsyncLimiter(settings.store, **_options(settings))  # type: ignore[arg-type]
        super().__init__(settings, accept=self.limiter.accept)

    def decide(self, caller: Caller, bounds: Collection[Bound]) -> Awaitable[Decision | None]:
        """Charge all rules that apply, or none; None when none does."""
        plan: Any = None if self.may_owe else self.plan_at_once(caller, bounds)
        if plan is None:
            steps = self.plan(caller, bounds)
            plan = next(steps)
            if self.may_owe or type(plan) is not Plan or not plan.checks:  # which is rare
                return self._decide_later(steps, plan)
        return self.limiter.run(plan)

    async def _decide_later(self, steps: Steps, plan: Waiting | Plan) -> Decision | None:
        while isinstance(plan, Waiting):
            plan = steps.send(await plan.answer)
        if any([check.terms.held for check in plan.checks]):
            return await run_apart(self.limiter.run, plan, self.ending())
        return await self.limiter.run(plan) if plan.checks else unasked(plan)

    def ending(self) -> AsyncEnding:
        """What will end a request that this gate has let in."""
        return AsyncEnding(self.limiter.store, self._now_us)

    async def close(self) -> None:
        """Close what the settings made this gate open."""
        await self.limiter.close()


def _options(settings: Settings) -> dict[str, Any]:
    """What the settings say to a limiter."""
    return {name: getattr(settings, name) for name in _PASSED_ON}


def _parts_of(key: KeySpec) -> tuple[object, ...]:
    """What a key is made of."""
    return key if isinstance(key, tuple) else (key,)


def _quota_of(rule: Rule) -> tuple[str, object]:
    """The option that says a rule's quota, and what it is."""
    return ("Tiers.by", rule.quota.by) if isinstance(rule.quota, Tiers) else ("quota", rule.quota)


def _add(checks: list[Check], check: Check) -> None:
    """Add a check; of two on the same budget the stricter one stays, for a budget is charged once."""
    for at, other in enumerate(checks):
        if other.terms.rule_id == check.terms.rule_id and other.identity == check.identity:
            if check.terms.params[0] < other.terms.params[0]:
                checks[at] = check
            return
    checks.append(check)

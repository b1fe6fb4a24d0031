"""What a gate asks the store for, against an oracle that reads the rules as the documentation has them.

Hypothesis draws an application (default limits, rules, decorators, access lists) and some requests. The oracle says
which checks each request must get, in which order, and how often each function of the user is called. Both gates are
driven by `bind` and `decide` alone, over a store that records the checks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Ban, Decision, ManualClock, Quota, Rule, Tiers
from sluicegate.identity import Seal, identity_text
from sluicegate.plan import BAN, Outcome, Outcomes, Plan
from sluicegate.rules.rollout import position
from sluicegate.rules.terms import make_terms, read
from sluicegate.testing.scenarios import examples
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.marks import Mark, make_mark
from sluicegate.web.settings import Settings

PEERS = ["203.0.113.7", "198.51.100.9"]
NETWORK = "198.51.100.0/24"  # of the second peer
SECRET = "a secret of 24 letters.."
HALF = 2**47  # of the positions of identities
PATHS = {  # which of the requests' paths a pattern matches
    "/api/*": {"/api/a", "//api/a", "/api/a/b"},
    "/api/a": {"/api/a", "//api/a"},
    "/": {"/"},
    "/*": {"/", "/api/a", "//api/a", "/api/a/b"},
}
BANS = [
    Ban(after=3, within="1 minute", duration="1 hour"),
    Ban(name="other", after=9, within="1 hour", duration="1 day"),
]
TIERS = {"free": "7/minute", "pro": "70/minute; 700/hour", "staff": None}
QUOTAS = ["9/minute", "5/minute; 9/hour", "9/day", "3 at once"]


class Failure(Exception):
    """What a user's function raises."""


class Visitor:
    """A request. Functions of the user find their results in it."""

    def __init__(self, method: str, path: str, peer: str, *, user: Hashable, header: str | None, later: bool) -> None:
        self.method, self.path, self.peer = method, path, peer
        self.name, self._header, self._later = user, header, later
        self.answers: dict[str, Any] = {}
        self.calls: Counter[str] = Counter()

    @property
    def native(self) -> Any:
        return self

    def header(self, name: str) -> Sequence[str]:
        return [self._header] if name == "x-key" and self._header is not None else ()

    def path_value(self, name: str) -> str | None:
        return None

    def user(self) -> Any:
        return _later(self.name) if self._later else self.name

    def signs_in_later(self) -> bool:
        return False

    @property
    def line(self) -> str | None:
        return self._header


async def _later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


class Asked:
    """A function of the user: it looks its result up in the request, and counts its calls there."""

    def __init__(self, name: str, *, later: bool = False) -> None:
        self.name, self._later = name, later

    def __repr__(self) -> str:
        return self.name

    def __call__(self, request: Visitor) -> Any:
        request.calls[self.name] += 1
        return self._awaited(request) if self._later else self._found(request)

    async def _awaited(self, request: Visitor) -> Any:
        await asyncio.sleep(0)
        return self._found(request)

    def _found(self, request: Visitor) -> Any:
        found = request.answers[self.name]
        if isinstance(found, Failure):
            raise found
        return found


class Wanted(NamedTuple):
    """One check, as far as the oracle knows it."""

    rule_id: str
    identity: str
    cost: int
    limit: int
    shadow: bool = False
    counted: bool = False


@dataclass
class Spec:
    """One drawn rule. `scope` is what its budgets are named after."""

    name: str
    scope: str
    quota: Any
    key: Any = None
    cost: Any = 1
    when: Any = None
    methods: tuple[str, ...] | None = None
    path: str | None = None
    route: str | None = None
    per_method: bool = False
    percent: int = 100
    counted: bool = False
    ban: Ban | None = None

    def options(self) -> dict[str, Any]:
        """The options that a rule and a decorator have."""
        return {
            "quota": self.quota, "key": self.key, "cost": self.cost, "when": self.when, "methods": self.methods,
            "per_method": self.per_method, "enforce_percent": self.percent, "count_denied": self.counted,
            "ban": self.ban,
        }  # fmt: skip


@dataclass
class Application:
    """One drawn application."""

    key: Any
    defaults: list[str]
    rules: list[Spec]
    marks: list[Spec]
    override: bool  # the first decorator drops the default limits
    done: int  # so many of the decorators an outer limiter has enforced
    allow: list[Any]
    deny: list[Any]
    sealed: bool
    shadow: bool

    @property
    def specs(self) -> list[Spec]:
        """The rules that hold at the endpoint, in order."""
        defaults = [Spec("default", "default", "; ".join(self.defaults))] if self.defaults else []
        if self.override and self.marks:
            defaults = []
        return [*defaults, *[each for each in self.rules if each.route != "elsewhere"], *self.marks[self.done :]]

    def settings(self, store: Any) -> Settings:
        made: dict[str, Any] = {
            "store": store, "key": self.key, "default_limits": self.defaults, "allow": self.allow, "deny": self.deny,
            "rules": [
                Rule(name=each.name, scope=each.scope, path=each.path, route=each.route, **each.options())
                for each in self.rules
            ],
        }  # fmt: skip
        return Settings(**made, secret=SECRET if self.sealed else None, mode="shadow" if self.shadow else "enforce")

    def endpoint(self) -> tuple[Endpoint, frozenset[Mark]]:
        marks = tuple(
            [
                make_mark(options.pop("quota"), name=each.name, override_defaults=self.override and at == 0, **options)
                for at, each in enumerate(self.marks)
                for options in [each.options()]
            ]
        )
        return Endpoint("view", marks, names=("home", "/"), label="shop.reply"), frozenset(marks[: self.done])


class Oracle:
    """What one request must get: the checks, or "denied", or None if no rule applies; and the calls of functions."""

    def __init__(self, application: Application, visitor: Visitor) -> None:
        self.application, self.visitor = application, visitor
        self.calls: Counter[str] = Counter()
        self._keys: dict[int, Any] = {}
        self.result = self._listed() or self._checks()

    def ask(self, function: Asked) -> Any:
        self.calls[function.name] += 1
        found = self.visitor.answers[function.name]
        if isinstance(found, Failure):
            raise found
        return found

    def value(self, given: Any) -> Any:
        return self.ask(given) if isinstance(given, Asked) else given

    def key(self, spec: Any) -> Any:
        """The identity under a key. A function of several keys is called once."""
        visitor, address = self.visitor, ("ip", self.visitor.peer)
        if isinstance(spec, tuple):
            parts = []
            for part in spec:
                parts.append(self.key(part))
                if parts[-1] is None:  # those after it are not asked
                    return None
            return tuple(parts)
        if isinstance(spec, Asked):
            if id(spec) not in self._keys:
                self._keys[id(spec)] = self.ask(spec)
            return self._keys[id(spec)]
        if spec == "user":
            return address if visitor.name is None else ("user", visitor.name)
        if spec == "header:x-key":
            return address if visitor.line is None else (spec, visitor.line)
        return address

    def _listed(self) -> str | None:
        """The lists come first, and `deny` before `allow`. The first entry that fits decides."""
        for name, entries in (("denied", self.application.deny), ("passes", self.application.allow)):
            functions = [each for each in entries if isinstance(each, Asked)]
            identities = [each for each in entries if isinstance(each, tuple)]
            if NETWORK in entries and self.visitor.peer == PEERS[1]:
                return name
            if identities and self.key(self.application.key) in identities:
                return name
            if any(self.ask(each) for each in functions):
                return name
        return None

    def _checks(self) -> list[Wanted] | None:
        application, method = self.application, self.visitor.method
        budgets: dict[tuple[str, str], tuple[Wanted, Ban | None]] = {}
        for spec in application.specs:
            if spec.methods is not None and ("GET" if method == "HEAD" else method) not in spec.methods:
                continue
            if spec.path is not None and self.visitor.path not in PATHS[spec.path]:
                continue
            if spec.when is not None and not self.value(spec.when):
                continue
            identity = self.key(application.key if spec.key is None else spec.key)
            if identity is None:
                continue
            quota = spec.quota
            if isinstance(quota, Tiers):
                row: Any = TIERS.get(self.ask(quota.by))  # type: ignore[arg-type]
                quota = row
            else:
                quota = self.value(quota)
            if quota is None:
                continue
            text = identity_text(identity)
            text = Seal(SECRET).text(text) if application.sealed else text
            percent = 0 if application.shadow else spec.percent
            shadow = percent == 0 or (percent == 50 and position(text) >= HALF)
            cost = self.value(spec.cost)
            for each in make_terms("x", read(quota), algorithm="sliding-window", scope=spec.scope):
                rule_id = f"{each.rule_id}{':shadow' if shadow else ''}"
                if spec.per_method:
                    named = {"HEAD": "GET", "BREW": "other"}.get(method, method)
                    rule_id = f"{rule_id}:{named}"
                wanted = Wanted(rule_id, text, cost, each.limit, shadow, spec.counted)
                known = budgets.get((rule_id, text))
                if known is None or each.limit < known[0].limit:  # of two with one budget, the stricter is charged
                    budgets[rule_id, text] = wanted, None if shadow else spec.ban
        bans = [(ban, wanted.identity) for wanted, ban in budgets.values() if ban is not None]
        checks = [wanted for wanted, _ in budgets.values()]
        checks += [Wanted(ban.terms.rule_id, text, 0, ban.after) for ban, text in dict.fromkeys(bans)]
        return checks or None


@dataclass
class Recorder:
    """A store that allows all and records what it is asked."""

    plans: list[Plan] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)

    def run(self, plan: Plan) -> Outcomes:
        self.plans.append(plan)
        return tuple([Outcome(True, check.terms.limit, check.terms.limit, 0, 0, 0) for check in plan.checks])

    def refund(self, plan: Plan, outcomes: Outcomes) -> None:
        raise AssertionError

    def renew(self, plan: Plan, outcomes: Outcomes) -> Outcomes:
        raise AssertionError

    def forget(self, rule_id: str, identity: str) -> None:
        raise AssertionError

    def close(self) -> None: ...


class AsyncRecorder(Recorder):
    """A Recorder for asynchronous code."""

    async def run(self, plan: Plan) -> Outcomes:  # type: ignore[override]
        return Recorder.run(self, plan)

    async def refund(self, plan: Plan, outcomes: Outcomes) -> None:  # type: ignore[override]
        raise AssertionError

    async def renew(self, plan: Plan, outcomes: Outcomes) -> Outcomes:  # type: ignore[override]
        raise AssertionError

    async def forget(self, rule_id: str, identity: str) -> None:  # type: ignore[override]
        raise AssertionError

    async def close(self) -> None: ...  # type: ignore[override]


# Drawing


def seldom(given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """None in most cases."""
    return st.one_of(st.none(), st.none(), st.none(), given)


@st.composite
def applications(draw: st.DrawFn, *, is_async: bool) -> Application:
    def asked(name: str) -> Asked:
        return Asked(name, later=is_async and draw(st.booleans()))

    team, plan = asked("key team"), asked("key plan")
    keys: list[Any] = [
        "ip", "user", "header:x-key", ("ip", "user"), team, plan, (team, "ip"), ("user", (plan, team)), (team, team),
    ]  # fmt: skip

    def oddities(name: str, *, is_rule: bool) -> list[tuple[str, Any]]:
        """The options that take a rule off the way of plain rules: one of them is enough."""
        found: list[tuple[str, Any]] = [
            ("when", asked(f"when of {name}")), ("per_method", True), ("percent", 50), ("percent", 0),
            ("methods", ("GET",)), ("ban", BANS[0]), ("cost", 2), ("cost", asked(f"cost of {name}")),
            ("key", "ip"), ("key", team), ("key", ("ip", "user")), ("quota", asked(f"quota of {name}")),
        ]  # fmt: skip
        return [*found, ("path", "/api/*"), ("route", "elsewhere")] if is_rule else found

    # In most applications only the keys of the rules depend on the request, or nearly so.
    is_plain = draw(st.booleans())

    def spec(name: str, scopes: Sequence[str], *, is_rule: bool) -> Spec:
        if is_plain:
            odd = dict([draw(st.sampled_from(oddities(name, is_rule=is_rule)))] if draw(st.booleans()) else [])
            options: dict[str, Any] = {"quota": draw(st.sampled_from(QUOTAS[:3])), **odd}
            return Spec(name, draw(st.sampled_from(scopes)), **options)
        kind = draw(st.sampled_from(["text", "text", "text", "tiers", "function"]))
        quota: Any = draw(st.sampled_from(QUOTAS))
        if kind == "tiers":
            quota = Tiers(TIERS, by=asked(f"tier of {name}"))
        elif kind == "function":
            quota = asked(f"quota of {name}")
        at_once = kind != "tiers" and (kind == "function" or quota == "3 at once")
        cost: Any = draw(st.sampled_from([1, 1, 1, 2, 0, asked(f"cost of {name}")]))
        counted = cost != 0 and not at_once and draw(st.sampled_from([False, False, True]))
        return Spec(
            name,
            draw(st.sampled_from(scopes)),
            quota,
            key=draw(st.one_of(st.none(), st.sampled_from(keys))),
            cost=cost,
            when=draw(seldom(st.just(asked(f"when of {name}")))),
            methods=draw(seldom(st.sampled_from([("GET",), ("POST", "PUT"), ("GET", "POST")]))),
            path=draw(seldom(st.sampled_from(list(PATHS)))) if is_rule else None,
            route=draw(seldom(st.sampled_from(["home", "elsewhere"]))) if is_rule else None,
            per_method=draw(st.sampled_from([False, False, True])),
            percent=draw(st.sampled_from([100, 100, 100, 50, 0])),
            counted=counted,
            ban=draw(seldom(st.sampled_from(BANS))) if cost != 0 else None,
        )

    key = draw(st.sampled_from(["user", *keys]))
    listed: list[Any] = [NETWORK]
    if key in ("ip", "user"):
        listed.append(("ip", PEERS[0]))
    elif isinstance(key, Asked):
        listed.append(("red", 1))
    allow, deny = (
        draw(st.lists(st.sampled_from([*listed, asked(name), asked(f"{name} too")]), max_size=2, unique_by=id))
        if draw(st.sampled_from([False, False, False, True] if is_plain else [False, True]))
        else []
        for name in ("allow", "deny")
    )
    marks = [
        spec(f"m{at}", [("shop.reply", "shop.reply#2")[at]], is_rule=False) for at in range(draw(st.integers(0, 2)))
    ]
    return Application(
        key=key,
        defaults=draw(st.sampled_from([[], ["8/minute"], ["8/minute", "80/hour"]])),
        rules=[spec(f"r{at}", ["own", "own", "default"], is_rule=True) for at in range(draw(st.integers(0, 3)))],
        marks=marks,
        override=draw(st.booleans()),
        done=draw(st.integers(0, len(marks))) if draw(seldom(st.just(True))) else 0,
        allow=allow,
        deny=deny,
        sealed=draw(st.booleans()),
        shadow=draw(st.sampled_from([False, False, False, False, True])),
    )


@st.composite
def visitors(draw: st.DrawFn, *, is_async: bool) -> Visitor:
    visitor = Visitor(
        draw(st.sampled_from(["GET", "HEAD", "POST", "PUT", "BREW"])),
        draw(st.sampled_from(["/", "/api/a", "//api/a", "/api/a/b"])),
        draw(st.sampled_from(PEERS)),
        user=draw(st.sampled_from([None, "alice", "bob", 7])),
        header=draw(st.sampled_from([None, "k1", "k2"])),
        later=is_async and draw(st.booleans()),
    )
    answers: dict[str, st.SearchStrategy[Any]] = {
        "key team": st.sampled_from(["red", "blue", 5, ("red", 1), None]),
        "key plan": st.sampled_from(["gold", b"raw", None]),
        **dict.fromkeys(["allow", "allow too", "deny", "deny too"], st.sampled_from([False, False, True])),
    }
    for name in ("r0", "r1", "r2", "m0", "m1"):
        answers[f"tier of {name}"] = st.sampled_from(list(TIERS))
        answers[f"quota of {name}"] = st.sampled_from(["6/minute", "6/minute; 60/day", Quota(4, 60), None])
        answers[f"cost of {name}"] = st.integers(0, 3)
        answers[f"when of {name}"] = st.sampled_from([True, False, 1, 0, "yes", ""])
    visitor.answers = {name: draw(answer) for name, answer in answers.items()}
    if draw(st.sampled_from([False] * 9 + [True])):
        visitor.answers[draw(st.sampled_from(list(answers)))] = Failure()
    return visitor


def judge(application: Application, visitor: Visitor, plans: list[Plan], got: object) -> None:
    """Compare what a gate did with what it must do."""
    oracle, failed = None, None
    try:
        oracle = Oracle(application, visitor)
    except Failure as failure:
        failed = failure
    if oracle is None:
        assert got is failed or not (application.specs or application.deny)
        assert not plans, "a function has raised, and something was charged"
        assert all(times == 1 for times in visitor.calls.values())
        return
    assert not isinstance(got, BaseException), got
    if application.specs or application.deny:  # else nothing is refused, whether `allow` is asked or not
        assert visitor.calls == oracle.calls
    assert max(visitor.calls.values(), default=1) == 1, "each function is called once"
    if not isinstance(oracle.result, list):
        assert not plans, "no rule applies, and the store was called"
        assert got is None or isinstance(got, Decision)
        assert (got is not None and got.forbidden) is (oracle.result == "denied")
        return
    [plan] = plans
    assert plan.charge
    assert not plan.forced
    assert isinstance(got, Decision)
    assert got.checks == plan.checks
    names = [check.terms.name for check in got.checks if check.terms.algorithm != BAN]
    assert len({*names}) == len(names), "each check has a name of its own, but for a ban that rules of two keys share"
    assert [
        Wanted(terms.rule_id, identity, cost, terms.limit, terms.shadow, terms.count_denied)
        for terms, identity, cost in plan.checks
    ] == oracle.result


def visits(*, is_async: bool) -> st.SearchStrategy[list[Visitor]]:
    return st.lists(visitors(is_async=is_async), min_size=1, max_size=3)


@pytest.mark.filterwarnings("ignore:.*SG1")
@examples(250)
@given(application=applications(is_async=False), visits=visits(is_async=False))
def test_a_gate_asks_for_what_the_rules_say(application: Application, visits: list[Visitor]) -> None:
    store = Recorder()
    gate = Gate(application.settings(store))
    bounds = gate.bind(*application.endpoint())
    for visitor in visits:
        store.plans.clear()
        got: object
        try:
            got = gate.decide(visitor, bounds)
        except Failure as failure:
            got = failure
        judge(application, visitor, store.plans, got)


@pytest.mark.filterwarnings("ignore:.*SG1")
@examples(250)
@given(application=applications(is_async=True), visits=visits(is_async=True))
def test_an_async_gate_asks_for_what_the_rules_say(application: Application, visits: list[Visitor]) -> None:
    async def decide() -> None:
        store = AsyncRecorder()
        gate = AsyncGate(application.settings(store))
        bounds = gate.bind(*application.endpoint())
        for visitor in visits:
            store.plans.clear()
            got: object
            try:
                got = await gate.decide(visitor, bounds)
            except Failure as failure:
                got = failure
            judge(application, visitor, store.plans, got)

    asyncio.run(decide())


ODDITIES: list[dict[str, Any]] = [
    {}, {"per_method": True}, {"ban": BANS[0]}, {"methods": ("GET",)}, {"path": "/api/*"}, {"percent": 0},
    {"percent": 50}, {"cost": 2}, {"key": "ip"}, {"quota": "5/minute"}, {"counted": True},
    {"when": Asked("when of r1")},
]  # fmt: skip


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("odd", ODDITIES, ids=str)
@pytest.mark.parametrize("alone", [False, True])
def test_each_option_beside_a_plain_rule_and_alone(odd: dict[str, Any], alone: bool, sealed: bool) -> None:
    """Each option takes a rule off the way of plain rules. Here each is met for certain."""
    options: dict[str, Any] = {"quota": "9/day", **odd}
    rules = [Spec("r0", "own", "9/minute"), Spec("r1", "own", **options)]
    application = Application("user", [], rules[alone:], [], False, 0, [], [], sealed, False)
    store = Recorder()
    gate = Gate(application.settings(store))
    bounds = gate.bind(*application.endpoint())
    for method, path, user in [("GET", "/", "alice"), ("HEAD", "/api/a", "bob"), ("POST", "/api/a", None)]:
        visitor = Visitor(method, path, PEERS[0], user=user, header=None, later=False)
        visitor.answers = {"when of r1": method == "GET"}
        store.plans.clear()
        judge(application, visitor, store.plans, gate.decide(visitor, bounds))

"""The gate, sync and async: which rules apply where, the plan of a request, and the store unavailable."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import pytest

from sluicegate import Decision, ManualClock, Quota, Rule
from sluicegate.errors import AlgorithmError, AsyncMismatchError, RuleError
from sluicegate.identity import identity_text
from sluicegate.stores import StoreChange
from sluicegate.testing import AsyncAdapter, BrokenStore
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.marks import EXEMPT, EXEMPT_FROM_DEFAULTS, Mark, make_mark
from sluicegate.web.settings import Settings


class Visitor:
    """A caller from nowhere in particular."""

    def __init__(self, method: str = "GET", path: str = "/", *, user: Any = None, **headers: str) -> None:
        self.method, self.path, self.peer = method, path, "203.0.113.7"
        self._user, self._headers = user, headers

    @property
    def native(self) -> Any:
        return self

    def header(self, name: str) -> Sequence[str]:
        return [self._headers[name]] if name in self._headers else ()

    def path_value(self, name: str) -> str | None:
        return None

    def user(self) -> Hashable | None:
        return self._user

    def signs_in_later(self) -> bool:
        return False


class Ask(Protocol):
    def __call__(self, settings: Settings, place: Endpoint, *visitors: Visitor) -> list[Decision | None]: ...


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Return the decisions of one gate about several visitors to one endpoint."""

    def sync(settings: Settings, place: Endpoint, *visitors: Visitor) -> list[Decision | None]:
        gate = Gate(settings)
        return [gate.decide(visitor, gate.bind(place)) for visitor in visitors]

    def asynchronous(settings: Settings, place: Endpoint, *visitors: Visitor) -> list[Decision | None]:
        async def run() -> list[Decision | None]:
            gate = AsyncGate(settings)
            return [await gate.decide(visitor, gate.bind(place)) for visitor in visitors]

        return asyncio.run(run())

    return sync if request.param == "sync" else asynchronous


def settings(**options: Any) -> Settings:
    return Settings(**{"clock": ManualClock()} | options)


def names(decision: Decision | None) -> list[str]:
    return [] if decision is None else list(decision.by_rule)


def place(*marks: Mark, names: tuple[str, ...] = ("home", "/"), label: str = "shop.reply") -> Endpoint:
    return Endpoint("view", marks, names=names, label=label)


LIMIT = make_mark("5/minute")
STRICT = make_mark("5/minute", override_defaults=True)
BESIDE = make_mark("5/minute", override_defaults=False)
RULES = [
    Rule(name="all", quota="9/minute"),
    Rule(name="route", quota="9/minute", route=["home", "other"]),
    Rule(name="template", quota="9/minute", route="/"),
    Rule(name="elsewhere", quota="9/minute", route="elsewhere"),
]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (Endpoint(), ["default", "all"]),
        (place(), ["default", "all", "route", "template"]),
        (place(LIMIT), ["default", "all", "route", "template", "reply"]),
        (place(STRICT), ["all", "route", "template", "reply"]),
        (place(LIMIT, STRICT), ["all", "route", "template", "reply", "reply-2"]),
        (place(EXEMPT), []),
        (place(LIMIT, names=()), ["default", "all", "reply"]),
    ],
)
def test_which_rules_apply_at_an_endpoint(ask: Ask, at: Endpoint, expected: list[str]) -> None:
    [decision] = ask(settings(default_limits=["9/minute"], rules=RULES), at, Visitor())
    assert names(decision) == expected


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ((), ["default"]),
        ((LIMIT,), ["reply"]),
        ((STRICT,), ["reply"]),
        ((BESIDE,), ["default", "reply"]),
        ((BESIDE, LIMIT), ["reply", "reply-2"]),
        ((EXEMPT_FROM_DEFAULTS,), []),
    ],
)
def test_a_limit_replaces_the_defaults_where_the_setting_says_so(
    ask: Ask, marks: tuple[Mark, ...], expected: list[str]
) -> None:
    [decision] = ask(settings(default_limits=["9/minute"], limits_replace_defaults=True), place(*marks), Visitor())
    assert names(decision) == expected


def test_rules_are_bound_once_for_an_endpoint() -> None:
    gate = Gate(settings(rules=RULES))
    assert gate.bind(place()) is gate.bind(place())
    assert gate.bind(place()) is not gate.bind(Endpoint())


def test_a_mark_is_bound_the_same_with_and_without_its_route() -> None:
    gate, at = Gate(settings(default_limits=["9/minute"])), place(LIMIT, STRICT)
    both = {tuple(each) for bound in gate.bind(place(LIMIT, make_mark("5/minute"))) for each in bound.terms or ()}
    assert {tuple(each) for bound in gate.bind_own(at, [LIMIT]) for each in bound.terms or ()} <= both
    assert gate.bind_own(at, [EXEMPT]) == ()


@pytest.mark.parametrize(
    ("rule", "visitor", "holds"),
    [
        ({"methods": ["GET"]}, Visitor("GET"), True),
        ({"methods": ["GET"]}, Visitor("HEAD"), True),
        ({"methods": ["get"]}, Visitor("POST"), False),
        ({"methods": ["POST"]}, Visitor("HEAD"), False),
        ({"path": "/api/*"}, Visitor(path="/api/a/b"), True),
        ({"path": "/api/*"}, Visitor(path="/api"), False),
        ({"path": "/api"}, Visitor(path="/api/"), False),
        ({"path": "/a.b"}, Visitor(path="/aXb"), False),
        ({"path": "/*"}, Visitor(path="/a\nb"), True),
        ({"path": "/API"}, Visitor(path="/api"), False),
        ({"when": lambda visitor: visitor.method == "GET"}, Visitor(), True),
        ({"when": lambda visitor: visitor.method == "GET"}, Visitor("POST"), False),
        ({"when": lambda visitor: 0}, Visitor(), False),
        ({"key": lambda visitor: None}, Visitor(), False),
        ({"key": ("ip", lambda visitor: None)}, Visitor(), False),
        ({"key": lambda visitor: ""}, Visitor(), True),
        ({"quota": lambda visitor: None}, Visitor(), False),
        ({"quota": lambda visitor: "2/minute"}, Visitor(), True),
        ({"quota": lambda visitor: Quota(2, 60)}, Visitor(), True),
    ],
)
def test_when_a_rule_applies(ask: Ask, rule: dict[str, Any], visitor: Visitor, holds: bool) -> None:
    [decision] = ask(settings(rules=[Rule(**{"name": "r", "quota": "5/minute"} | rule)]), Endpoint(), visitor)
    assert names(decision) == (["r"] if holds else [])


@pytest.mark.parametrize(
    ("key", "identity"),
    [
        (None, ("user", 5)),
        ("ip", ("ip", "203.0.113.7")),
        ("header:key", ("header:key", "k")),
        (("ip", "user"), (("ip", "203.0.113.7"), ("user", 5))),
        (lambda visitor: visitor.path, "/"),
    ],
)
def test_the_key_of_a_rule_or_else_of_the_settings(ask: Ask, key: Any, identity: Any) -> None:
    [decision] = ask(settings(rules=[Rule(name="r", quota="5/minute", key=key)]), Endpoint(), Visitor(user=5, key="k"))
    assert decision is not None
    assert [check.identity for check in decision.checks] == [identity_text(identity)]


class Team:
    """A key function that counts its calls. Its objects have no hash, as those of many classes."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, answer: Any, *, asynchronous: bool) -> None:
        self.calls = 0
        self._answer, self._is_async = answer, asynchronous

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, visitor: Visitor) -> Any:
        self.calls += 1
        return self._awaited() if self._is_async else self._answer

    async def _awaited(self) -> Any:
        return self._answer


def rules_by(*keys: Any) -> dict[str, Any]:
    return {"rules": [Rule(name=f"rule {at}", quota="9/minute", key=key) for at, key in enumerate(keys)]}


KEY_USES: dict[str, Callable[[Any], dict[str, Any]]] = {  # settings by a key function, and what they make of "red"
    "one rule": rules_by,
    "three rules": lambda key: rules_by(key, key, key),
    "defaults and rules": lambda key: rules_by(None, key) | {"key": key, "default_limits": ["9/minute", "99/day"]},
    "lists": lambda key: rules_by(key) | {"key": key, "allow": ["blue"], "deny": ["green"]},
    "parts of tuples": lambda key: rules_by(key, (key,), ("ip", key), (key, key), ((key, "ip"), "ip")),
    "a list of tuples": lambda key: rules_by(key) | {"key": (key, "ip"), "deny": [("blue", ("ip", "192.0.2.1"))]},
}


@pytest.mark.parametrize("answer", ["red", 7, None])
@pytest.mark.parametrize("options", KEY_USES.values(), ids=KEY_USES)
def test_a_key_function_is_called_once_per_request(
    ask: Ask, options: Callable[[Any], dict[str, Any]], answer: Any, request: pytest.FixtureRequest
) -> None:
    asynchronous = request.node.callspec.params["ask"] == "async"
    for kind in (False, True) if asynchronous else (False,):
        key = Team(answer, asynchronous=kind)
        decisions = ask(settings(**options(key)), Endpoint(), Visitor(), Visitor())
        assert key.calls == 2, "once for each of two requests"
        assert [decision is None for decision in decisions] == [answer is None] * 2


def test_equal_keys_are_one_key(ask: Ask) -> None:
    calls: list[str] = []

    class Teams:
        def team(self, visitor: Visitor) -> str:
            calls.append("team")
            return "red"

    teams = Teams()
    ask(settings(**rules_by(teams.team, teams.team)), Endpoint(), Visitor())
    assert calls == ["team"], "two accesses of a method make two equal objects"


@pytest.mark.parametrize("broken", [0, 1])
def test_a_key_that_raises_raises_and_charges_nothing(ask: Ask, broken: int) -> None:
    calls: list[int] = []

    def key(visitor: Visitor) -> str:
        calls.append(1)
        if len(calls) == 1:
            raise LookupError("no team")
        return "red"

    keys: list[Any] = ["ip", "ip"]
    keys[broken] = key
    given = settings(**rules_by(*keys))
    gate = Gate(given)
    with pytest.raises(LookupError):
        gate.decide(Visitor(), gate.bind(Endpoint()))
    assert len(calls) == 1
    decision = gate.decide(Visitor(), gate.bind(Endpoint()))
    assert decision is not None
    assert [outcome.remaining for outcome in decision.outcomes] == [8, 8]


def test_an_async_part_that_fails_leaves_no_coroutine_behind() -> None:
    made: list[Any] = []

    async def fails(visitor: Visitor) -> str:
        raise LookupError("no team")

    def second(visitor: Visitor) -> Any:
        made.append(_coroutine(visitor))
        return made[-1]

    async def run() -> None:
        gate = AsyncGate(settings(**rules_by((fails, second))))
        await gate.decide(Visitor(), gate.bind(Endpoint()))

    with pytest.raises(LookupError):
        asyncio.run(run())
    assert made == [], "the second part is called after the first was awaited"


@pytest.mark.parametrize(
    ("cost", "remaining"), [(1, 4), (3, 2), (0, 5), (lambda visitor: 5, 0), (lambda visitor: 0, 5)]
)
def test_cost(ask: Ask, cost: Any, remaining: int) -> None:
    [decision] = ask(settings(rules=[Rule(name="r", quota="5/minute", cost=cost)]), Endpoint(), Visitor())
    assert decision is not None
    assert decision.remaining == remaining


@pytest.mark.parametrize("cost", [-1, 1.5, None, "1"])
def test_a_wrong_cost_is_an_error(ask: Ask, cost: Any) -> None:
    with pytest.raises(RuleError, match="not a whole number"):
        ask(settings(rules=[Rule(name="r", quota="5/minute", cost=lambda visitor: cost)]), Endpoint(), Visitor())


def test_awaited_functions_in_an_asynchronous_application() -> None:
    async def asynchronous(value: Any) -> Any:
        return value

    rule = Rule(
        name="r",
        quota=lambda visitor: asynchronous("5/minute"),
        key=("ip", lambda visitor: asynchronous("k")),
        cost=lambda visitor: asynchronous(2),
        when=lambda visitor: asynchronous(True),
    )

    async def run() -> Decision | None:
        gate = AsyncGate(settings(rules=[rule]))
        return await gate.decide(Visitor(), gate.bind(Endpoint()))

    decision = asyncio.run(run())
    assert decision is not None
    assert decision.remaining == 3


async def _coroutine(visitor: object) -> str:
    return "5/minute"


@pytest.mark.parametrize("option", ["key", "quota", "cost", "when"])
def test_an_async_function_cannot_start_in_a_synchronous_application(option: str) -> None:
    rule: dict[str, Any] = {"name": "r", "quota": "5/minute", option: _coroutine}
    with pytest.raises(AsyncMismatchError):
        Gate(settings(rules=[Rule(**rule)]))
    AsyncGate(settings(rules=[Rule(**rule)]))


@pytest.mark.parametrize("key", [_coroutine, ("ip", _coroutine), ("ip", ("ip", _coroutine))])
def test_an_async_key_of_the_settings_cannot_start_in_a_synchronous_application(key: Any) -> None:
    with pytest.raises(AsyncMismatchError):
        Gate(settings(default_limits=["5/minute"], key=key))


def test_a_plain_function_that_returns_a_coroutine_is_an_error_and_the_coroutine_is_closed() -> None:
    made: list[Any] = []

    def key(visitor: object) -> Any:
        made.append(_coroutine(visitor))
        return made[-1]

    gate = Gate(settings(rules=[Rule(name="r", quota="5/minute", key=key)]))
    with pytest.raises(AsyncMismatchError):
        gate.decide(Visitor(), gate.bind(Endpoint()))
    assert [inspect.getcoroutinestate(each) for each in made] == [inspect.CORO_CLOSED]


@pytest.mark.parametrize(
    ("options", "marks", "error"),
    [
        ({"default_limits": ["1/s burst 5"]}, (), AlgorithmError),
        ({"rules": [Rule(name="r", quota="1/s burst 5")]}, (), AlgorithmError),
        ({}, (make_mark("1/s burst 5"),), AlgorithmError),
    ],
)
def test_what_the_applications_algorithm_cannot_carry_is_an_error_before_any_request(
    options: dict[str, Any], marks: tuple[Mark, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Gate(settings(**options)).bind(place(*marks))
    Gate(settings(**options, algorithm="gcra")).bind(place(*marks))


# One decision about all rules


def test_all_or_nothing_over_defaults_rules_and_marks(ask: Ask) -> None:
    given = settings(default_limits=["3/minute"], rules=[Rule(name="r", quota="9/minute")])
    decisions = ask(given, place(make_mark("2/minute")), *[Visitor()] * 4)
    last = decisions[-1]
    assert last is not None
    assert [bool(decision) for decision in decisions] == [True, True, False, False]
    assert [outcome.remaining for outcome in last.outcomes] == [1, 7, 0]  # the refused ones took nothing


@pytest.mark.filterwarnings("ignore:.*SG108")
def test_names_are_unique_and_budgets_stay(ask: Ask) -> None:
    rules = [Rule(name="reply", quota="9/minute"), Rule(name="default-day", quota="9/hour")]
    marks = (make_mark("5/minute"), make_mark("5/hour"))
    [decision] = ask(settings(default_limits=["9/second", "9/day"], rules=rules), place(*marks), Visitor())
    assert decision is not None
    assert names(decision) == ["default-second", "default-day", "reply", "default-day-2", "reply-2", "reply-3"]
    assert len(decision.outcomes) == 6
    ids = [check.terms.rule_id.partition(":")[0] for check in decision.checks]
    assert ids == ["default", "default", "reply", "default-day", "shop.reply", ids[-1]]


def test_two_marks_of_one_view_do_not_spend_each_others_budget(ask: Ask) -> None:
    marks = (make_mark("9/minute"), make_mark("1/minute", methods=["POST"]))
    decisions = ask(settings(), place(*marks), *[Visitor("GET")] * 3, Visitor("POST"), Visitor("POST"))
    assert [bool(decision) for decision in decisions] == [True, True, True, True, False]


def test_a_shared_scope_is_charged_once_by_the_stricter_rule(ask: Ask) -> None:
    marks = (make_mark("9/minute", scope="s"), make_mark("2/minute", scope="s"))
    decisions = ask(settings(), place(*marks), *[Visitor()] * 3)
    assert [len(decision.outcomes) for decision in decisions if decision is not None] == [1, 1, 1]
    assert [bool(decision) for decision in decisions] == [True, True, False]


# Without the store


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [("local", [True, True, False]), ("allow", [True] * 3), ("deny", [False] * 3)],
)
def test_without_the_store(ask: Ask, policy: Any, allowed: list[bool], request: pytest.FixtureRequest) -> None:
    asynchronous = request.node.callspec.params["ask"] == "async"
    given = Settings(
        store=AsyncAdapter(BrokenStore()) if asynchronous else BrokenStore(),
        default_limits=["2/minute"],
        on_store_failure=policy,
    )
    decisions = ask(given, Endpoint(), *[Visitor()] * 3)
    assert [bool(decision) for decision in decisions] == allowed
    assert all(decision is not None and decision.degraded for decision in decisions)


def test_each_rule_may_have_its_own_policy(ask: Ask, request: pytest.FixtureRequest) -> None:
    asynchronous = request.node.callspec.params["ask"] == "async"
    given = Settings(
        store=AsyncAdapter(BrokenStore()) if asynchronous else BrokenStore(),
        default_limits=["9/minute"],
        rules=[
            Rule(name="login", quota="5/minute", on_store_failure="deny", methods=["POST"]),
            Rule(name="search", quota="1/minute", on_store_failure="allow"),
        ],
    )
    decisions = ask(given, Endpoint(), Visitor(), Visitor(), Visitor("POST"))
    _, second, post = [decision for decision in decisions if decision is not None]
    assert [(outcome.source, outcome.remaining) for outcome in second.outcomes] == [("local", 7), ("policy", 1)]
    assert (post.allowed, post.unavailable) == (False, True)
    assert post.by_rule["default"].remaining == 7, "what is refused costs nothing"


def test_the_settings_reach_the_limiter(ask: Ask, request: pytest.FixtureRequest) -> None:
    asynchronous = request.node.callspec.params["ask"] == "async"
    changes: list[StoreChange] = []
    given = Settings(
        store=AsyncAdapter(BrokenStore()) if asynchronous else BrokenStore(),
        default_limits=["8/minute"],
        replicas=4,
        on_store_change=changes.append,
    )
    decisions = ask(given, Endpoint(), Visitor(), Visitor(), Visitor())
    assert [bool(decision) for decision in decisions] == [True, True, False]
    assert [(change.store, change.available) for change in changes] == [("broken", False)]


def test_without_a_rule_the_store_is_not_called(ask: Ask, request: pytest.FixtureRequest) -> None:
    asynchronous = request.node.callspec.params["ask"] == "async"
    given = Settings(store=AsyncAdapter(BrokenStore()) if asynchronous else BrokenStore())
    assert ask(given, place(), Visitor()) == [None]


PATH_RULE = Rule(name="all", quota="10/hour", path="/*")
INVENTED = {
    "API keys": {"key": "header:X-API-Key"},
    "sealed API keys": {"key": "header:X-API-Key", "secret": "0123456789abcdef"},
    "behind a proxy": {"key": "header:X-API-Key", "trusted_proxies": ["192.0.2.0/24"]},
    "under a rule for a path": {"key": "header:X-API-Key", "default_limits": (), "rules": [PATH_RULE]},
}


@pytest.mark.parametrize("options", INVENTED.values(), ids=INVENTED.keys())
def test_one_client_drains_a_full_store_for_few_others(ask: Ask, options: dict[str, Any]) -> None:
    """The store is full of keys that are refused. One client invents 1,000 more keys, and 200 other clients send one
    each.

    A client uses up one of 1,024 shared budgets: more than 6 of the others meet it in one of twenty million runs.
    """
    behind = "trusted_proxies" in options
    given = settings(store="memory://?max_keys=10", **{"default_limits": ["10/hour"], **options})

    def visitor(address: str, key: str) -> Visitor:
        found = Visitor(**{"X-API-Key": key, "X-Forwarded-For": f"6.6.6.6, {address}"})
        found.peer = "192.0.2.1" if behind else address
        return found

    blocked = [visitor("203.0.113.1", f"blocked {number % 10}") for number in range(110)]
    invented = [visitor(f"198.51.100.{number % 256}", f"invented {number}") for number in range(1_000)]
    others = [visitor(f"10.{number}.{number}.7", f"{number}") for number in range(200)]
    passed = [bool(decision) for decision in ask(given, place(), *blocked, *invented, *others, *blocked[:10])]
    assert sum(passed[:110]) == 100
    assert sum(passed[110:1_110]) == 10
    assert sum(passed[1_110:1_310]) >= 194
    assert not any(passed[1_310:]), "a refused identity was evicted"

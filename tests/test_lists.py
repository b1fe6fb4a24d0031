"""lists.py: who passes and who is denied, before any rule and any store; in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import pytest

from sluicegate import Ban, Decision, ManualClock, Rule
from sluicegate.errors import ColourError, ConfigurationError, RuleError
from sluicegate.gate import AsyncGate, Gate
from sluicegate.passage import Place
from sluicegate.plan import FORBIDDEN
from sluicegate.settings import Settings
from sluicegate.testing import Awaited, BrokenStore


class Visitor:
    """A caller with an address, perhaps behind a proxy, perhaps signed in."""

    method, path = "GET", "/"

    def __init__(self, peer: str | None = "198.51.100.9", *, forwarded: str = "", user: Any = None) -> None:
        self.peer, self._forwarded, self._user = peer, forwarded, user

    @property
    def native(self) -> Any:
        return self

    def header(self, name: str) -> Sequence[str]:
        return [self._forwarded] if name == "X-Forwarded-For" and self._forwarded else ()

    def path_value(self, name: str) -> str | None:
        return None

    def user(self) -> Any:
        return self._user


class Ask(Protocol):
    def __call__(self, settings: Settings, *visitors: Visitor) -> list[Decision | None]: ...


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    def sync(settings: Settings, *visitors: Visitor) -> list[Decision | None]:
        gate = Gate(settings)
        return [gate.decide(visitor, gate.bind(Place())) for visitor in visitors]

    def later(settings: Settings, *visitors: Visitor) -> list[Decision | None]:
        async def run() -> list[Decision | None]:
            gate = AsyncGate(settings)
            return [await gate.decide(visitor, gate.bind(Place())) for visitor in visitors]

        return asyncio.run(run())

    return sync if request.param == "sync" else later


def settings(**options: Any) -> Settings:
    defaults: dict[str, Any] = {"clock": ManualClock(), "default_limits": ["1/minute"]}
    return Settings(**(defaults | options))


def verdict(decision: Decision | None) -> str:
    """ "pass", "denied", or "ask" for who meets the rules."""
    if decision is None:
        return "pass"
    return "denied" if decision is FORBIDDEN else "ask"


ADDRESSES = [  # an entry, an address, whether it is meant
    ("192.0.2.7", "192.0.2.7", True),
    ("192.0.2.7", "192.0.2.8", False),
    ("192.0.2.0/24", "192.0.2.8", True),
    ("192.0.2.0/24", "::ffff:192.0.2.8", True),  # mapped
    ("192.0.2.0/24", "::FFFF:c000:208", True),  # the same bits in another spelling
    ("192.0.2.0/24", "64:ff9b::192.0.2.8", True),  # NAT64
    ("192.0.2.0/24", "192.0.2.8:4711", True),
    ("::ffff:192.0.2.0/120", "192.0.2.8", True),
    ("64:ff9b::192.0.2.0/120", "192.0.2.8", True),
    ("0.0.0.0/0", "192.0.2.8", True),
    ("0.0.0.0/0", "2001:db8::1", False),
    ("2001:db8::/32", "2001:db8:ffff::1", True),
    ("2001:db8::1", "2001:db8::1", True),
    ("2001:db8::1", "2001:db8::2", False),  # a budget's /64 is not what a list compares
    ("fe80::/10", "fe80::1%eth0", True),
    ("::/0", "2001:db8::1", True),
    ("192.0.2.0/24", "", False),
    ("0.0.0.0/0", "not an address", False),
]


@pytest.mark.parametrize(("entry", "address", "meant"), ADDRESSES)
@pytest.mark.parametrize(("option", "told"), [("allow", "pass"), ("deny", "denied")])
def test_networks_are_compared_on_the_bits(
    ask: Ask, entry: str, address: str, meant: bool, option: str, told: str
) -> None:
    [decision] = ask(settings(**{option: [entry]}), Visitor(address))
    assert verdict(decision) == (told if meant else "ask")


@pytest.mark.filterwarnings("ignore:.*SG102")
def test_the_address_is_that_of_the_trusted_proxies(ask: Ask) -> None:
    spoofed = Visitor("198.51.100.9", forwarded="192.0.2.7")
    behind = Visitor("10.0.0.1", forwarded="203.0.113.7, 192.0.2.7")
    for option in ("allow", "deny"):
        told = {"allow": "pass", "deny": "denied"}[option]
        lists = {option: ["192.0.2.7"]}
        assert [verdict(each) for each in ask(settings(**lists), spoofed, behind)] == ["ask", "ask"]
        trusting = settings(trusted_proxies=["10.0.0.0/8"], **lists)
        assert [verdict(each) for each in ask(trusting, spoofed, behind)] == ["ask", told]


def test_who_is_on_both_is_denied_and_nobody_else_is_touched(ask: Ask) -> None:
    both = settings(allow=["192.0.2.0/24"], deny=["192.0.2.7"])
    told = ask(both, Visitor("192.0.2.7"), Visitor("192.0.2.8"), Visitor("192.0.2.8"), Visitor(), Visitor())
    assert [verdict(each) for each in told] == ["denied", "pass", "pass", "ask", "ask"]
    assert [each is not None and each.allowed for each in told] == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("key", "entry", "user", "meant"),
    [
        ("user", ("user", "42"), "42", True),
        ("user", ["user", "42"], "42", True),
        ("user", ("user", "42"), "43", False),
        (lambda request: "team 7", "team 7", None, True),
        (lambda request: "team 7", "team 8", None, False),
        (lambda request: None, "None", None, False),
    ],
)
def test_identities_are_those_of_the_key(ask: Ask, key: Any, entry: Any, user: Any, meant: bool) -> None:
    [decision] = ask(settings(key=key, deny=[entry]), Visitor(user=user))
    assert (decision is FORBIDDEN) is meant


def test_functions_of_the_request(ask: Ask) -> None:
    lists = {"allow": [lambda request: request.peer == "192.0.2.7"], "deny": [lambda request: request.peer is None]}
    told = ask(settings(**lists), Visitor("192.0.2.7"), Visitor(None), Visitor())
    assert [verdict(each) for each in told] == ["pass", "denied", "ask"]


def test_asynchronous_functions() -> None:
    async def is_denied(request: Visitor) -> bool:
        await asyncio.sleep(0)
        return request.peer == "192.0.2.7"

    async def key(request: Visitor) -> str:
        return "team 7"

    async def run(visitor: Visitor, **options: Any) -> Decision | None:
        gate = AsyncGate(settings(**options))
        return await gate.decide(visitor, gate.bind(Place()))

    assert asyncio.run(run(Visitor("192.0.2.7"), deny=[is_denied])) is FORBIDDEN
    assert verdict(asyncio.run(run(Visitor(), deny=[is_denied]))) == "ask"
    assert asyncio.run(run(Visitor(), key=key, allow=["team 7"])) is None
    with pytest.raises(ColourError, match="deny"):
        Gate(settings(deny=[is_denied]))
    with pytest.raises(ColourError):  # one that cannot be seen to be asynchronous
        Gate(settings(deny=[partial(is_denied)])).decide(Visitor(), ())


@pytest.mark.parametrize(
    "entry",
    ["10.0.0.0/33", "10.0.0.5/8", "300.1.1.1", "10.0.0", "2001:db8::/129", "2001:db8:::1", "10/8", "10.0.0.1:80"],
)
@pytest.mark.parametrize("option", ["allow", "deny"])
def test_what_is_meant_for_a_network_and_is_none_cannot_start(option: str, entry: str) -> None:
    with pytest.raises(ConfigurationError, match=option):
        settings(**{option: [entry]})


@pytest.mark.parametrize("given", [7, [7.5], [None], ["no.such.module.of.mine"]])
def test_what_is_no_entry_cannot_start(given: Any) -> None:
    with pytest.raises(ConfigurationError):
        settings(deny=given)


def test_no_store_is_asked(ask: Ask, request: pytest.FixtureRequest) -> None:
    later = request.node.callspec.params["ask"] == "async"
    store: Any = Awaited(BrokenStore()) if later else BrokenStore()
    lists = settings(store=store, clock=None, allow=["192.0.2.7"], deny=["192.0.2.8"], on_store_failure="deny")
    told = ask(lists, Visitor("192.0.2.7"), Visitor("192.0.2.8"), Visitor())
    assert [verdict(each) for each in told] == ["pass", "denied", "ask"]
    assert told[2] is not None
    assert told[2].unavailable


def test_who_is_denied_is_denied_where_no_rule_holds(ask: Ask) -> None:
    told = ask(settings(default_limits=[], deny=["192.0.2.7"]), Visitor("192.0.2.7"), Visitor())
    assert told == [FORBIDDEN, None]


# Bans at the gate.


BAN = Ban(after=2, within=60, duration=600)


def test_a_ban_at_the_gate(ask: Ask) -> None:
    rules = [Rule(name="login", quota="1/minute", ban=BAN), Rule(name="all", quota="9/minute", ban=BAN, key="ip")]
    told = ask(settings(default_limits=[], rules=rules), *[Visitor(user="42")] * 4)
    assert [each is not None and (each.allowed, each.banned, each.rule) for each in told] == [
        (True, False, "login"),
        (False, False, "login"),
        (False, True, "ban"),
        (False, True, "ban"),
    ]
    assert told[3] is not None
    assert (told[3].retry_after, told[3].limit, told[3].remaining) == (600, 2, 0)


def test_a_rule_that_is_called_as_its_ban_is_told_apart(ask: Ask) -> None:
    [decision] = ask(settings(default_limits=[], rules=[Rule(name="ban", quota="1/minute", ban=BAN)]), Visitor())
    assert decision is not None
    assert list(decision.outcomes) == ["ban-2", "ban"]
    assert decision.rule == "ban-2"


def test_two_bans_of_one_name_cannot_start(ask: Ask) -> None:
    rules = [
        Rule(name=f"rule {after}", quota="1/minute", ban=Ban(after=after, within=60, duration=600)) for after in (2, 3)
    ]
    with pytest.raises(RuleError, match="otherwise of a ban of this name"):
        ask(settings(rules=rules), Visitor())

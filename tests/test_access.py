"""Access lists, sync and async: which clients pass and which are denied, before any rule and any store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import pytest

from sluicegate import Ban, Decision, ManualClock, Rule
from sluicegate.errors import AsyncMismatchError, ConfigurationError, RuleError, SettingsError
from sluicegate.plan import FORBIDDEN
from sluicegate.testing import AsyncAdapter, BrokenStore
from sluicegate.web.bound import NO_BOUNDS
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.settings import Settings


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

    def signs_in_later(self) -> bool:
        return False


class Ask(Protocol):
    def __call__(self, settings: Settings, *visitors: Visitor) -> list[Decision | None]: ...


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    def sync(settings: Settings, *visitors: Visitor) -> list[Decision | None]:
        gate = Gate(settings)
        return [gate.decide(visitor, gate.bind(Endpoint())) for visitor in visitors]

    def asynchronous(settings: Settings, *visitors: Visitor) -> list[Decision | None]:
        async def run() -> list[Decision | None]:
            gate = AsyncGate(settings)
            return [await gate.decide(visitor, gate.bind(Endpoint())) for visitor in visitors]

        return asyncio.run(run())

    return sync if request.param == "sync" else asynchronous


def settings(**options: Any) -> Settings:
    defaults: dict[str, Any] = {"clock": ManualClock(), "default_limits": ["1/minute"]}
    return Settings(**(defaults | options))


def verdict(decision: Decision | None) -> str:
    """Return "pass", "denied", or "ask" if the rules decide."""
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
@pytest.mark.parametrize(("option", "expected"), [("allow", "pass"), ("deny", "denied")])
def test_networks_are_compared_on_the_bits(
    ask: Ask, entry: str, address: str, meant: bool, option: str, expected: str
) -> None:
    [decision] = ask(settings(**{option: [entry]}), Visitor(address))
    assert verdict(decision) == (expected if meant else "ask")


@pytest.mark.filterwarnings("ignore:.*SG102")
def test_the_address_is_that_of_the_trusted_proxies(ask: Ask) -> None:
    spoofed = Visitor("198.51.100.9", forwarded="192.0.2.7")
    behind = Visitor("10.0.0.1", forwarded="203.0.113.7, 192.0.2.7")
    for option in ("allow", "deny"):
        expected = {"allow": "pass", "deny": "denied"}[option]
        lists = {option: ["192.0.2.7"]}
        assert [verdict(each) for each in ask(settings(**lists), spoofed, behind)] == ["ask", "ask"]
        trusting = settings(trusted_proxies=["10.0.0.0/8"], **lists)
        assert [verdict(each) for each in ask(trusting, spoofed, behind)] == ["ask", expected]


def test_a_client_on_both_lists_is_denied_and_no_other_is_affected(ask: Ask) -> None:
    both = settings(allow=["192.0.2.0/24"], deny=["192.0.2.7"])
    decisions = ask(both, Visitor("192.0.2.7"), Visitor("192.0.2.8"), Visitor("192.0.2.8"), Visitor(), Visitor())
    assert [verdict(each) for each in decisions] == ["denied", "pass", "pass", "ask", "ask"]
    assert [each is not None and each.allowed for each in decisions] == [False, False, False, True, False]


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
    decisions = ask(settings(**lists), Visitor("192.0.2.7"), Visitor(None), Visitor())
    assert [verdict(each) for each in decisions] == ["pass", "denied", "ask"]


def test_asynchronous_functions() -> None:
    async def is_denied(request: Visitor) -> bool:
        await asyncio.sleep(0)
        return request.peer == "192.0.2.7"

    async def key(request: Visitor) -> str:
        return "team 7"

    async def run(visitor: Visitor, **options: Any) -> Decision | None:
        gate = AsyncGate(settings(**options))
        return await gate.decide(visitor, gate.bind(Endpoint()))

    assert asyncio.run(run(Visitor("192.0.2.7"), deny=[is_denied])) is FORBIDDEN
    assert verdict(asyncio.run(run(Visitor(), deny=[is_denied]))) == "ask"
    assert asyncio.run(run(Visitor(), key=key, allow=["team 7"])) is None
    with pytest.raises(AsyncMismatchError, match="deny"):
        Gate(settings(deny=[is_denied]))
    with pytest.raises(AsyncMismatchError):  # one that cannot be seen to be asynchronous
        Gate(settings(deny=[partial(is_denied)])).decide(Visitor(), NO_BOUNDS)


@pytest.mark.parametrize(
    "entry",
    ["10.0.0.0/33", "10.0.0.5/8", "300.1.1.1", "10.0.0", "2001:db8::/129", "2001:db8:::1", "10/8", "10.0.0.1:80"],
)
@pytest.mark.parametrize("option", ["allow", "deny"])
def test_a_wrong_network_cannot_start(option: str, entry: str) -> None:
    with pytest.raises(ConfigurationError, match=option):
        settings(**{option: [entry]})


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        ("ip", ("ip", "2001:db8::7")),
        ("user", ("ip", "2001:db8::/48")),
        ("ip", ("ip", "192.0.2.7")),
        ("ip", ("ip", "::ffff:192.0.2.7")),
        ("ip", ("ip", "bob")),
        ("ip", ("ip", 3221225991)),
        ("user", ("user", 42)),
        ("user", ("user", b"42")),
        ("header:X-A", ("header:x-a", 42)),
        (("user", "ip"), [["user", "42"], ["ip", "192.0.2.7"]]),
    ],
)
def test_an_identity_that_the_key_never_gives_cannot_start(key: Any, entry: Any) -> None:
    with pytest.raises(SettingsError, match=r"deny .*: the key never gives this identity; .*SG003"):
        settings(key=key, ipv4_prefix=24, deny=[entry])


@pytest.mark.parametrize(
    ("entry", "peer"),
    [
        (("ip", "192.0.2.0/24"), "192.0.2.7"),
        (("ip", "127.0.0.1"), "127.0.0.1"),
        (("ip", "2001:db8::/64"), "2001:db8::7"),
        (("ip", "::1"), "::1"),
        (("ip", "no-peer"), None),
        (("ip", "peer testclient"), "testclient"),
    ],
)
def test_an_address_is_denied_as_the_key_gives_it(ask: Ask, entry: Any, peer: str | None) -> None:
    [decision] = ask(settings(key="user", ipv4_prefix=24, deny=[entry]), Visitor(peer))
    assert decision is FORBIDDEN


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("2001:db8::7", r"give \('ip', '2001:db8::/64'\), or only the address, as text"),
        ("testclient", r"give \('ip', 'peer testclient'\)"),
        ("300.1.1.1", r"write it as the key gives it"),
    ],
)
def test_the_error_shows_what_the_key_gives(entry: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=hint):
        settings(key="ip", deny=[("ip", entry)])


@pytest.mark.parametrize("given", [7, [7.5], [None], ["no.such.module.of.mine"]])
def test_a_wrong_entry_cannot_start(given: Any) -> None:
    with pytest.raises(ConfigurationError):
        settings(deny=given)


def test_no_store_is_called(ask: Ask, request: pytest.FixtureRequest) -> None:
    is_async = request.node.callspec.params["ask"] == "async"
    store: Any = AsyncAdapter(BrokenStore()) if is_async else BrokenStore()
    lists = settings(store=store, clock=None, allow=["192.0.2.7"], deny=["192.0.2.8"], on_store_failure="deny")
    decisions = ask(lists, Visitor("192.0.2.7"), Visitor("192.0.2.8"), Visitor())
    assert [verdict(each) for each in decisions] == ["pass", "denied", "ask"]
    assert decisions[2] is not None
    assert decisions[2].unavailable


def test_a_denied_client_is_denied_where_no_rule_applies(ask: Ask) -> None:
    decisions = ask(settings(default_limits=[], deny=["192.0.2.7"]), Visitor("192.0.2.7"), Visitor())
    assert decisions == [FORBIDDEN, None]


# Bans at the gate.


BAN = Ban(after=2, within=60, duration=600)


def test_a_ban_at_the_gate(ask: Ask) -> None:
    rules = [Rule(name="login", quota="1/minute", ban=BAN), Rule(name="all", quota="9/minute", ban=BAN, key="ip")]
    decisions = ask(settings(default_limits=[], rules=rules), *[Visitor(user="42")] * 4)
    assert [each is not None and (each.allowed, each.banned, each.rule) for each in decisions] == [
        (True, False, "login"),
        (False, False, "login"),
        (False, True, "ban"),
        (False, True, "ban"),
    ]
    assert decisions[3] is not None
    assert (decisions[3].retry_after, decisions[3].limit, decisions[3].remaining) == (600, 2, 0)


def test_a_rule_with_the_name_of_its_ban_gets_another_name(ask: Ask) -> None:
    [decision] = ask(settings(default_limits=[], rules=[Rule(name="ban", quota="1/minute", ban=BAN)]), Visitor())
    assert decision is not None
    assert list(decision.by_rule) == ["ban-2", "ban"]
    assert decision.rule == "ban-2"


def test_two_bans_of_one_name_cannot_start(ask: Ask) -> None:
    rules = [
        Rule(name=f"rule {after}", quota="1/minute", ban=Ban(after=after, within=60, duration=600)) for after in (2, 3)
    ]
    with pytest.raises(RuleError, match="has a different ban of this name"):
        ask(settings(rules=rules), Visitor())

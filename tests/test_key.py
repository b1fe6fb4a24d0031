"""Keys: every form, what it falls back to, and wrong keys."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pytest

from sluicegate.address import Trust
from sluicegate.errors import IdentityError
from sluicegate.identity import identity_text
from sluicegate.rules.key import Keys, Known, address_key, validate_key
from sluicegate.rules.rule import Rule
from sluicegate.runtime.awaiting import Waiting
from sluicegate.web.settings import Settings


@dataclass
class FakeCaller:
    """One request as an adapter shows it; `headers_read` has the headers that the key read."""

    peer: str | None = "198.51.100.9"
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    signed_in: Any = None
    native: Any = "the framework's request"
    method: str = "GET"
    path: str = "/"
    headers_read: list[str] = field(default_factory=list)

    def header(self, name: str) -> Sequence[str]:
        self.headers_read.append(name)
        return self.headers.get(name.lower(), ())

    def path_value(self, name: str) -> str | None:
        return self.parameters.get(name)

    def user(self) -> Hashable | Awaitable[Hashable | None] | None:
        return self.signed_in

    def signs_in_later(self) -> bool:
        return False


async def awaited(value: Any) -> Any:
    return value


def answer(spec: object, caller: FakeCaller, trust: Trust | None = None) -> str | None:
    """The identity's text, awaited where it has to be."""
    key = Keys(address_key(Trust() if trust is None else trust)).ready(spec)

    async def run() -> str | None:
        known: Known = {}
        while isinstance(found := key(caller, known), Waiting):
            known[found.at] = await found.answer
        return found

    return asyncio.run(run())


ADDRESS: Final = ("ip", "198.51.100.9")
PROXY: Final = Trust.of("198.51.100.0/24")
BEHIND: Final = {"x-forwarded-for": ["203.0.113.7"]}

KEYS: dict[str, tuple[Any, FakeCaller, Any]] = {
    "ip": ("ip", FakeCaller(), ADDRESS),
    "ip, no peer": ("ip", FakeCaller(peer=None), ("ip", "no-peer")),
    "ip, the header is not believed": ("ip", FakeCaller(headers=BEHIND), ADDRESS),
    "user": ("user", FakeCaller(signed_in="alice"), ("user", "alice")),
    "user, a number": ("user", FakeCaller(signed_in=42), ("user", 42)),
    "user, a falsy one is one": ("user", FakeCaller(signed_in=0), ("user", 0)),
    "user, an empty name is one": ("user", FakeCaller(signed_in=""), ("user", "")),
    "user, a long name": ("user", FakeCaller(signed_in="l" * 129), ("user", "l" * 129)),
    "user, a name that is long with its kind": ("user", FakeCaller(signed_in="l" * 120), ("user", "l" * 120)),
    "user, nobody signed in": ("user", FakeCaller(), ADDRESS),
    "header": ("header:X-API-Key", FakeCaller(headers={"x-api-key": ["k"]}), ("header:x-api-key", "k")),
    "header, in any case": ("header:x-api-KEY", FakeCaller(headers={"x-api-key": ["k"]}), ("header:x-api-key", "k")),
    "header, the first of two lines": (
        "header:X-API-Key",
        FakeCaller(headers={"x-api-key": ["k", "l"]}),
        ("header:x-api-key", "k"),
    ),
    "header, an empty one": ("header:X-API-Key", FakeCaller(headers={"x-api-key": [""]}), ("header:x-api-key", "")),
    "header, a long name": (
        f"header:X-{'k' * 128}",
        FakeCaller(headers={f"x-{'k' * 128}": ["k"]}),
        (f"header:x-{'k' * 128}", "k"),
    ),
    "header, none": ("header:X-API-Key", FakeCaller(), ADDRESS),
    "path": ("path:team", FakeCaller(parameters={"team": "red"}), ("path:team", "red")),
    "path, an empty one": ("path:team", FakeCaller(parameters={"team": ""}), ("path:team", "")),
    "path, none": ("path:team", FakeCaller(parameters={"club": "red"}), ADDRESS),
    "function": (lambda request: ("own", request), FakeCaller(), ("own", "the framework's request")),
    "function, None": (lambda request: None, FakeCaller(), None),
    "function, async": (lambda request: awaited("own"), FakeCaller(), "own"),
    "function, async None": (lambda request: awaited(None), FakeCaller(), None),
    "user, async": ("user", FakeCaller(signed_in=awaited("alice")), ("user", "alice")),
    "user, async, nobody signed in": ("user", FakeCaller(signed_in=awaited(None)), ADDRESS),
    "tuple": (
        ("user", "path:team"),
        FakeCaller(signed_in=42, parameters={"team": "red"}),
        (("user", 42), ("path:team", "red")),
    ),
    "tuple of one": (("ip",), FakeCaller(), (ADDRESS,)),
    "tuple in a tuple": ((("ip",), "ip"), FakeCaller(), ((ADDRESS,), ADDRESS)),
    "tuple, a part falls back": (("ip", "user"), FakeCaller(), (ADDRESS, ADDRESS)),
    "tuple, a function says None": (("ip", lambda request: None), FakeCaller(), None),
    "tuple, async parts": (("user", lambda request: awaited(7)), FakeCaller(signed_in=awaited(1)), (("user", 1), 7)),
    "tuple, an async part says None": (("ip", lambda request: awaited(None)), FakeCaller(), None),
}


@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize(("spec", "caller", "identity"), KEYS.values(), ids=KEYS)
def test_keys(spec: Any, caller: FakeCaller, identity: Any) -> None:
    validate_key(spec)
    assert answer(spec, caller) == (None if identity is None else identity_text(identity))


@pytest.mark.parametrize("spec", ["ip", "user", "header:X-API-Key", "path:team"])
def test_a_key_that_finds_nothing_falls_back_to_the_address_behind_the_proxies(spec: str) -> None:
    assert answer(spec, FakeCaller(headers=BEHIND), PROXY) == identity_text(("ip", "203.0.113.7"))


def test_only_the_trusted_header_is_looked_up() -> None:
    for trust, headers_read in [(PROXY, ["X-Forwarded-For"]), (Trust.of(1, "X-Real-IP"), ["X-Real-IP"])]:
        caller = FakeCaller()
        answer("ip", caller, trust)
        assert caller.headers_read == headers_read


@pytest.mark.parametrize(("strict", "looks"), [(False, 1000 + 4), (True, 5000)])
def test_without_trusted_proxies_the_first_requests_are_checked_and_then_few(strict: bool, looks: int) -> None:
    caller = FakeCaller()
    key = address_key(Trust(), strict=strict)
    for _ in range(5000):
        key(caller, {})
    assert caller.headers_read == ["X-Forwarded-For", "Forwarded"] * looks


def test_kinds_never_meet() -> None:
    name = "198.51.100.9"
    caller = FakeCaller(name, {"x-api-key": [name], "ip": [name]}, {"ip": name, "user": name}, name, native=name)
    specs: list[Any] = ["ip", "user", "header:X-API-Key", "header:ip", "path:ip", "path:user", lambda request: request]
    specs += [("ip", "user"), ("user", "ip"), ("ip",), (("ip",),)]
    assert len({answer(spec, caller) for spec in specs}) == len(specs)


class Greedy:
    """A key function that equals every other object of its class, with the same hash."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Greedy)

    def __hash__(self) -> int:
        return 1

    def __call__(self, request: object) -> str:
        self.calls += 1
        return self.name

    def method(self, request: object) -> str:
        return self(request)

    def other(self, request: object) -> str:
        self.calls += 1
        return f"other of {self.name}"


class Unhashable(Greedy):
    """The same without a hash."""

    __hash__ = None  # type: ignore[assignment]


class Word(str):
    """A callable text, which equals the text."""

    __slots__ = ()

    def __call__(self, request: object) -> str:
        return f"called {self}"


def answers(*specs: object) -> list[str | None]:
    """The identities of one caller under keys of one application."""
    keys, caller, found = Keys(address_key(Trust())), FakeCaller(signed_in=7), dict[Any, str | None]()
    texts = [keys.ready(spec)(caller, found) for spec in specs]
    return [text for text in texts if not isinstance(text, Waiting)]


APART: Final[dict[str, tuple[object, object]]] = {  # two keys of one application that must not become one
    "equal objects": (Greedy("a"), Greedy("b")),
    "equal objects without a hash": (Unhashable("a"), Unhashable("b")),
    "methods of equal objects": (Greedy("a").method, Greedy("b").method),
    "two methods of one object": ((one := Greedy("a")).method, one.other),
    "an object and its method": ((two := Greedy("a")), two.other),
    "a callable text and a text": (Word("user"), "user"),
    "a text and a callable text": ("user", Word("user")),
    "two callable texts": (Word("user"), Word("users")),
    "parts of tuples": ((Greedy("a"), "ip"), (Greedy("b"), "ip")),
}


@pytest.mark.parametrize(("first", "second"), APART.values(), ids=APART)
def test_keys_that_are_equal_but_not_the_same_stay_apart(first: object, second: object) -> None:
    pair = answers(first, second)
    assert pair == [*answers(first), *answers(second)]
    assert pair[0] != pair[1]


@pytest.mark.parametrize("kind", [Greedy, Unhashable])
@pytest.mark.parametrize("spec", [lambda key: key, lambda key: key.method], ids=["object", "method"])
def test_one_function_is_called_once(kind: type[Greedy], spec: Callable[[Greedy], object]) -> None:
    key = kind("a")
    assert len(set(answers(spec(key), spec(key), (spec(key), "ip")))) == 2
    assert key.calls == 1


def test_a_key_that_is_freed_leaves_no_other_its_identity() -> None:
    keys, caller, found = Keys(address_key(Trust())), FakeCaller(), dict[Any, str | None]()
    texts = [keys.ready(Greedy(str(at)).method)(caller, found) for at in range(100)]
    assert len(set(texts)) == 100


UNKNOWN: Final = "not known"
NAMELESS: Final = "the name after the colon is missing or not one"


@pytest.mark.parametrize(
    ("spec", "given", "problem"),
    [
        ("addr", "addr", UNKNOWN),
        ("IP", "IP", UNKNOWN),
        ("", "", UNKNOWN),
        ("ip:", "ip:", UNKNOWN),
        ("user:name", "user:…", UNKNOWN),
        ("cookie:session", "cookie:…", UNKNOWN),
        ("header", "header", UNKNOWN),
        ("path", "path", UNKNOWN),
        ("header:", "header:", NAMELESS),
        ("header:X API", "header:…", NAMELESS),
        ("header:X:Y", "header:…", NAMELESS),
        ("header:schlüssel", "header:…", NAMELESS),
        ("path:", "path:", NAMELESS),
        ("path:team-id", "path:…", NAMELESS),
        ("path:1", "path:…", NAMELESS),
        (None, None, "not a key"),
        (5, 5, "not a key"),
        (["ip", "user"], ["ip", "user"], "not a key"),
        ((), (), "not a key"),
        (("ip", None), None, "not a key"),
        (("ip", ("user", "adress")), "adress", UNKNOWN),
    ],
)
def test_wrong_keys(spec: object, given: object, problem: str) -> None:
    with pytest.raises(IdentityError, match='use "user", "ip", "header:Name", "path:name", a tuple of these') as caught:
        validate_key(spec)
    assert (caught.value.what, caught.value.given, caught.value.problem) == ("key", given, problem)


def no_client(request: Any) -> Any:
    return 1.5


async def no_client_async(request: Any) -> Any:
    return 1.5


@pytest.mark.parametrize("key", [no_client, no_client_async, (partial(no_client), "ip")])
def test_an_identity_of_a_wrong_type_names_its_function(key: Any) -> None:
    with pytest.raises(IdentityError, match=rf"^key {__name__}.no_client(_async)?: identity 'float': not something"):
        answer(key, FakeCaller())


def nested(depth: int, kind: Callable[[Any], Any]) -> Any:
    key: Any = "ip"
    for _ in range(depth):
        key = kind((key, "user"))
    return key


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize("depth", [17, 5000])
@pytest.mark.parametrize(
    "make",
    [
        validate_key,
        lambda key: Rule(name="login", quota="5/minute", key=key),
        lambda key: Settings(key=key),
        lambda key: Settings.from_mapping({"key": key}),
        lambda key: Settings.from_mapping({"rules": [{"name": "login", "quota": "5/minute", "key": key}]}),
    ],
)
def test_a_key_of_too_many_levels(make: Callable[[Any], object], depth: int, kind: Callable[[Any], Any]) -> None:
    with pytest.raises(IdentityError, match=f"key '{kind.__name__}': nested more than 16 levels deep"):
        make(nested(depth, kind))


def test_a_key_that_contains_itself() -> None:
    key: list[Any] = ["ip", "user"]
    key += [key] * 10
    with pytest.raises(IdentityError, match="key 'list': nested more than 16 levels deep"):
        Settings.from_mapping({"key": key})


def test_a_key_of_as_many_levels_as_it_may_have() -> None:
    key = nested(16, tuple)
    validate_key(key)
    assert answer(key, FakeCaller()) is not None


@pytest.mark.parametrize("identity", ["bob@secret.example", "b@b", "user:bob", "+4915112345678", "ip:203.0.113.9"])
def test_an_identity_given_as_a_key_is_not_shown(identity: str) -> None:
    with pytest.raises(IdentityError, match=r"key '((user|ip):)?…': not known") as caught:
        validate_key(("ip", identity))
    assert identity not in f"{caught.value!r}{vars(caught.value)}"
    with pytest.raises(IdentityError, match="key 'remote_address': not known; here it is \"ip\""):
        validate_key("remote_address")


@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize("trust", [Trust(), PROXY, Trust.of(1)])
def test_no_long_text_of_a_client_is_cached(trust: Trust) -> None:
    texts = [letter * (60_000 + trust.hops + 2 * len(trust.networks)) for letter in "6["]
    before = [sys.getrefcount(text) for text in texts]
    for peer in (*texts, "198.51.100.9"):
        answer("ip", FakeCaller(peer=peer, headers={"x-forwarded-for": texts[:1]}), trust)
        answer("user", FakeCaller(peer=peer, headers={"x-forwarded-for": texts[1:]}), trust)
    assert [sys.getrefcount(text) for text in texts] == before


PEERS_OF_A_DAY: dict[
    str, tuple[Callable[[int], str | None], str | None]
] = {  # the peer of each request, and the network
    "a load balancer": (lambda number: "10.3.7.9", "10.3.0.0/16"),
    "a balancer and health checks": (lambda number: "10.3.7.9" if number % 101 else "127.0.0.1", "10.3.0.0/16"),
    "a local proxy": (lambda number: "::1", "::1"),
    "two balancers": (lambda number: f"10.3.7.{number % 2}", None),
    "clients of an office": (lambda number: f"192.168.1.{number % 100}", None),
    "one public client": (lambda number: "8.8.8.8", None),
    "a unix socket": (lambda number: None, None),
}


@pytest.mark.parametrize("case", PEERS_OF_A_DAY)
def test_one_private_address_for_nearly_all_requests_is_warned_of_once(case: str) -> None:
    peer, network = PEERS_OF_A_DAY[case]
    key = address_key(Trust())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(1, 1001):
            key(FakeCaller(peer=peer(number)), {})
        assert not caught, "1,000 requests are too few"
        for number in range(1, 3001):
            key(FakeCaller(peer=peer(number)), {})
    assert [str(each.message).split("'")[1] for each in caught] == ([network] if network else [])

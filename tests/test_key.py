"""Keys: every form, what it falls back to, and what is no key."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, Final

import pytest

from sluicegate.address import Trust
from sluicegate.errors import IdentityError
from sluicegate.identity import identity_text
from sluicegate.key import address_key, ready_key, validate_key


@dataclass
class FakeCaller:
    """One request as an adapter would tell it; `asked` is what the key looked at."""

    peer: str | None = "198.51.100.9"
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    signed_in: Any = None
    native: Any = "the framework's request"
    method: str = "GET"
    path: str = "/"
    asked: list[str] = field(default_factory=list)

    def header(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        return self.headers.get(name.lower(), ())

    def path_value(self, name: str) -> str | None:
        return self.parameters.get(name)

    def user(self) -> Hashable | Awaitable[Hashable | None] | None:
        return self.signed_in


async def later(value: Any) -> Any:
    return value


def answer(spec: object, caller: FakeCaller, trust: Trust | None = None) -> str | None:
    """The identity's text, awaited where it has to be."""
    found = ready_key(spec, address_key(Trust() if trust is None else trust))(caller)
    return asyncio.run(later_answer(found)) if isawaitable(found) else found


async def later_answer(found: Awaitable[Any]) -> Any:
    return await found


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
    "user, a stranger": ("user", FakeCaller(), ADDRESS),
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
    "function, async": (lambda request: later("own"), FakeCaller(), "own"),
    "function, async None": (lambda request: later(None), FakeCaller(), None),
    "user, async": ("user", FakeCaller(signed_in=later("alice")), ("user", "alice")),
    "user, an async stranger": ("user", FakeCaller(signed_in=later(None)), ADDRESS),
    "tuple": (
        ("user", "path:team"),
        FakeCaller(signed_in=42, parameters={"team": "red"}),
        (("user", 42), ("path:team", "red")),
    ),
    "tuple of one": (("ip",), FakeCaller(), (ADDRESS,)),
    "tuple in a tuple": ((("ip",), "ip"), FakeCaller(), ((ADDRESS,), ADDRESS)),
    "tuple, a part falls back": (("ip", "user"), FakeCaller(), (ADDRESS, ADDRESS)),
    "tuple, a function says None": (("ip", lambda request: None), FakeCaller(), None),
    "tuple, async parts": (("user", lambda request: later(7)), FakeCaller(signed_in=later(1)), (("user", 1), 7)),
    "tuple, an async part says None": (("ip", lambda request: later(None)), FakeCaller(), None),
}


@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize(("spec", "caller", "identity"), KEYS.values(), ids=KEYS)
def test_keys(spec: Any, caller: FakeCaller, identity: Any) -> None:
    validate_key(spec)
    assert answer(spec, caller) == (None if identity is None else identity_text(identity))


@pytest.mark.parametrize("spec", ["ip", "user", "header:X-API-Key", "path:team"])
def test_whatever_is_missing_the_address_behind_the_proxies_stands_in(spec: str) -> None:
    assert answer(spec, FakeCaller(headers=BEHIND), PROXY) == identity_text(("ip", "203.0.113.7"))


def test_only_the_trusted_header_is_looked_up() -> None:
    for trust, asked in [(PROXY, ["X-Forwarded-For"]), (Trust.of(1, "X-Real-IP"), ["X-Real-IP"])]:
        caller = FakeCaller()
        answer("ip", caller, trust)
        assert caller.asked == asked


@pytest.mark.parametrize(("strict", "looks"), [(False, 1000 + 4), (True, 5000)])
def test_where_nobody_is_trusted_the_first_requests_are_looked_at_and_then_few(strict: bool, looks: int) -> None:
    caller = FakeCaller()
    key = address_key(Trust(), strict=strict)
    for _ in range(5000):
        key(caller)
    assert caller.asked == ["X-Forwarded-For", "Forwarded"] * looks


def test_kinds_never_meet() -> None:
    name = "198.51.100.9"
    caller = FakeCaller(name, {"x-api-key": [name], "ip": [name]}, {"ip": name, "user": name}, name, native=name)
    specs: list[Any] = ["ip", "user", "header:X-API-Key", "header:ip", "path:ip", "path:user", lambda request: request]
    specs += [("ip", "user"), ("user", "ip"), ("ip",), (("ip",),)]
    assert len({answer(spec, caller) for spec in specs}) == len(specs)


UNKNOWN: Final = "not known"
NAMELESS: Final = "the name after the colon is missing or not one"


@pytest.mark.parametrize(
    ("spec", "given", "problem"),
    [
        ("addr", "addr", UNKNOWN),
        ("IP", "IP", UNKNOWN),
        ("", "", UNKNOWN),
        ("ip:", "ip:", UNKNOWN),
        ("user:name", "user:name", UNKNOWN),
        ("cookie:session", "cookie:session", UNKNOWN),
        ("header", "header", UNKNOWN),
        ("path", "path", UNKNOWN),
        ("header:", "header:", NAMELESS),
        ("header:X API", "header:X API", NAMELESS),
        ("header:X:Y", "header:X:Y", NAMELESS),
        ("header:schlüssel", "header:schlüssel", NAMELESS),
        ("path:", "path:", NAMELESS),
        ("path:team-id", "path:team-id", NAMELESS),
        ("path:1", "path:1", NAMELESS),
        (None, None, "not a key"),
        (5, 5, "not a key"),
        (["ip", "user"], ["ip", "user"], "not a key"),
        ((), (), "not a key"),
        (("ip", None), None, "not a key"),
        (("ip", ("user", "adress")), "adress", UNKNOWN),
    ],
)
def test_what_is_no_key(spec: object, given: object, problem: str) -> None:
    with pytest.raises(IdentityError, match='use "user", "ip", "header:Name", "path:name", a tuple of these') as caught:
        validate_key(spec)
    assert (caught.value.what, caught.value.given, caught.value.problem) == ("key", given, problem)


@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize("trust", [Trust(), PROXY, Trust.of(1)])
def test_nothing_long_that_a_stranger_sends_is_remembered(trust: Trust) -> None:
    texts = [letter * (60_000 + trust.hops + 2 * len(trust.networks)) for letter in "6["]
    before = [sys.getrefcount(text) for text in texts]
    for peer in (*texts, "198.51.100.9"):
        answer("ip", FakeCaller(peer=peer, headers={"x-forwarded-for": texts[:1]}), trust)
        answer("user", FakeCaller(peer=peer, headers={"x-forwarded-for": texts[1:]}), trust)
    assert [sys.getrefcount(text) for text in texts] == before

"""The pure functions that read a client's text: any input gives a short result, quickly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Hashable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.address import Trust, client_address
from sluicegate.identity import digest, identity_text
from sluicegate.rules.key import Keys, Known, ReadyKey, address_key
from sluicegate.runtime.awaiting import Waiting
from sluicegate.web.bound import Bound
from sluicegate.web.endpoint import NOWHERE
from sluicegate.web.gate import Gate
from sluicegate.web.http import is_preflight, merge, wants_text
from sluicegate.web.settings import Settings

WORDS: Final = (
    *'[]:%.,;="\\ \t\r\n\0/{}*', "for=", "10.0.0.1", "203.0.113.7", "::1", "::ffff:", "fe80::1%eth0", "unknown",
    "65536", "\u0661", "\uff16", "\ud800", "q=", "text/html", "*/*", "application/json", "\u2215", "..", "login",
    "limit=", "remaining=", "no-store", "9" * 20,
)  # fmt: skip
TEXTS = st.one_of(
    st.text(st.characters(codec=None), max_size=60),
    st.lists(st.sampled_from(WORDS), max_size=12).map("".join),
    st.builds(lambda word, times: word * times, st.sampled_from(WORDS), st.integers(0, 3_000)),
)
LINES = st.lists(TEXTS, max_size=4)
TRUSTS: Final = [
    Trust(),
    Trust.of("10.0.0.0/8"),
    Trust.of(2),
    Trust.of(["unix", "::/0", "0.0.0.0/0"]),
    Trust.of(1, "Forwarded"),
    Trust.of("10.0.0.0/8", "Forwarded"),
]


@dataclass
class FuzzCaller:
    """A caller with invented values."""

    peer: str | None = None
    lines: Sequence[str] = ()
    value: str | None = None
    signed_in: Any = None
    path: str = "/"
    method: str = "GET"
    native: Any = field(default=None)

    def header(self, name: str) -> Sequence[str]:
        return self.lines

    def path_value(self, name: str) -> str | None:
        return self.value

    def user(self) -> Hashable | Awaitable[Hashable | None] | None:
        return self.signed_in

    def signs_in_later(self) -> bool:
        return False


CALLERS = st.builds(
    FuzzCaller,
    peer=st.none() | TEXTS,
    lines=LINES,
    value=st.none() | TEXTS,
    signed_in=st.none() | TEXTS | st.integers() | st.binary(max_size=40) | st.uuids(),
    path=TEXTS,
    method=TEXTS | st.sampled_from(["GET", "POST", "OPTIONS", "post"]),
    native=TEXTS,
)
KEYS: Final = {
    "ip": "ip",
    "user": "user",
    "header": "header:X-API-Key",
    "path": "path:team",
    "function": lambda native: native,
    "async": None,
    "tuple": ("user", "header:X-API-Key", "path:team", lambda native: native),
    "nested": (("ip", ("user",)), "path:team"),
}


async def _async_key(native: Any) -> Any:
    return native


async def _answer(key: ReadyKey, caller: FuzzCaller) -> str:
    known: Known = {}
    while isinstance(found := key(caller, known), Waiting):
        known[found.at] = await found.answer
    return str(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*SG10[23]")
@pytest.mark.parametrize("kind", KEYS)
@given(CALLERS, st.sampled_from(TRUSTS))
@example(FuzzCaller(peer="x" * 1_000_000, lines=["," * 100_000] * 3, value="\ud800" * 9_999, native="\0"), TRUSTS[2])
def test_a_key_of_every_kind_gives_any_client_a_short_identity(kind: str, caller: FuzzCaller, trust: Trust) -> None:
    key = Keys(address_key(trust)).ready(_async_key if kind == "async" else KEYS[kind])
    text = asyncio.run(_answer(key, caller))
    assert 0 < len(text) <= 128
    assert len(digest(text)) == 22


@given(st.none() | TEXTS, LINES, TEXTS, st.sampled_from(TRUSTS))
def test_text_before_the_proxies_lines_changes_nothing(
    peer: str | None, lines: list[str], more: str, trust: Trust
) -> None:
    """A client's text above the proxies' lines does not change the address that those lines name."""
    proxies = ["203.0.113.7, 10.0.0.2"] if trust.header == "X-Forwarded-For" else ["for=203.0.113.7, for=10.0.0.2"]
    for those in (proxies, [f"{more},{proxies[0]}"], [more, *proxies]):
        if len(trust.networks) == 1 or trust.hops == 2:
            assert client_address("10.0.0.1", [*lines, *those], trust) == "203.0.113.7"
        assert len(client_address(peer, [*lines, *those], trust)) <= 70


def bound(**options: Any) -> Bound:
    """The only rule of these settings, bound."""
    gate = Gate(Settings(rules=[{"name": "rule", "quota": "1/day", **options}]))
    (ready,) = gate.bind(NOWHERE.endpoint)
    return ready


LOGIN: Final = bound(path="/login", methods=["POST"])
PATTERNS: Final = [
    bound(path=pattern) for pattern in ("/*", "/api/*", "/*/*/*/*/*a", "/[a-z]*", "/[", "/a?b*", "/[!x]")
]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda ready: str(ready.rule.path))
@given(TEXTS)
@example("/" + "a/" * 40_000)
@example("/" * 80_000)
@example("\n" * 80_000)
def test_a_pattern_accepts_any_path(pattern: Bound, path: str) -> None:
    assert pattern.holds(FuzzCaller(path=path)) in (True, False)


@given(st.integers(0, 3).map(lambda slashes: "/" * slashes), st.sampled_from(["", "\n"]))
def test_what_a_router_takes_for_the_path_is_in_the_pattern(slashes: str, end: str) -> None:
    assert LOGIN.holds(FuzzCaller(path=f"/{slashes}login{end}", method="POST"))
    assert not LOGIN.holds(FuzzCaller(path=f"/{slashes}login{end}", method="GET"))
    assert not LOGIN.holds(FuzzCaller(path=f"/{slashes}login{end}x", method="POST"))


@given(TEXTS | st.just("OPTIONS"), st.dictionaries(st.sampled_from(["origin", "cookie", "content-length"]), LINES))
def test_is_preflight_for_any_headers(method: str, headers: dict[str, list[str]]) -> None:
    assert not is_preflight(method, lambda name: headers.get(name, ()))
    fields = {"access-control-request-method": ["POST"], **headers}
    clean = not any(headers.get("cookie", ())) and {"", "0"}.issuperset(headers.get("content-length", ()))
    is_one = method == "OPTIONS" and any(headers.get("origin", ())) and clean
    assert is_preflight(method, lambda name: fields.get(name, ())) is is_one


@given(TEXTS)
@example("text/html;q=" * 8_000)
@example("," * 60_000)
@example(";q=1" * 20_000)
def test_any_accept_is_read(accept: str) -> None:
    assert wants_text(accept) in (True, False)
    assert wants_text(f"{accept},text/html;q=0") == wants_text(accept)


FIELDS = st.lists(
    st.tuples(
        st.sampled_from(["RateLimit", "ratelimit-policy", "Retry-After", "Cache-Control", "X-RateLimit-Limit", "X"]),
        TEXTS,
    ),
    max_size=5,
)
OURS: Final = [
    ("Cache-Control", "no-store"), ("Retry-After", "7"),
    ("RateLimit-Policy", '"a";q=1;w=9'), ("RateLimit", '"a";r=0;t=7'),
]  # fmt: skip


@given(FIELDS)
@example([("RateLimit", '"' * 60_000)])
@example([("RateLimit", '"a", ' * 10_000), ("Retry-After", "9" * 5_000)])
def test_fields_of_an_application_never_undo_ours(existing: list[tuple[str, str]]) -> None:
    merged = merge(existing, OURS)
    assert sum(len(value) for _, value in merged) <= sum(len(value) for _, value in existing) + 200 + 2 * len(existing)
    values = {name.lower(): value for name, value in merged}
    assert "no-store" in values["cache-control"].lower()
    assert int(values["retry-after"]) >= 7
    assert '";r=0;t=7' in values["ratelimit"]


HEAVY: Final = {
    "commas": ("," * 500_000, ","), "quotes": ('"' * 500_000, '"'), "escapes": ("\\" * 500_000, "\\"),
    "pairs": ("for=1;" * 80_000, ";"), "brackets": ("[" * 500_000, "["), "proxies": ("10.0.0.1," * 50_000, "1"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "piece"), HEAVY.values(), ids=HEAVY)
def test_time_grows_with_the_length_and_no_faster(text: str, piece: str) -> None:
    """Half a megabyte, more than any server accepts. A second would be a thousand times too long."""
    begun = perf_counter()
    for trust in TRUSTS:
        client_address("10.0.0.1", [text, piece], trust)
    wants_text(text)
    merge([("RateLimit", text)], OURS)
    identity_text((text, piece))
    assert perf_counter() - begun < 10

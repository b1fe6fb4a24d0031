"""Identities: different ones never collide, none is sent in clear text, all are short."""

from __future__ import annotations

import asyncio
import sys
import unicodedata
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from time import perf_counter
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
import redis
from django.utils.functional import SimpleLazyObject
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.local import LocalProxy

from sluicegate import AsyncLimiter, ConfigurationError, Limiter, Rule
from sluicegate.errors import IdentityError, SettingsError
from sluicegate.identity import Seal, account, digest, identity_text
from sluicegate.rules.ban import Ban
from sluicegate.stores.memory import MemoryStore
from sluicegate.web.settings import Settings
from sluicegate.wsgi import RateLimitMiddleware
from tests.adapters.wsgi_client import WsgiClient
from tests.servers import Server

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=())),  # lone surrogates too
    st.text("sibut0123:h{}\0\n\\'\"", max_size=8),
    st.sampled_from(["", "\ud800", "\udfff", "é", "e\u0301", "ß", "SS", "x" * 1_000_000, "x" * 127, "x" * 128]),
)
LEAVES = st.one_of(TEXTS, st.integers(), st.booleans(), st.binary(max_size=200), st.uuids())
IDENTITIES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


def kind(identity: Any) -> Any:
    """An identity with its type beside each part: what must not be confused."""
    if isinstance(identity, tuple):
        return tuple(map(kind, identity)), "tuple"
    return identity, type(identity).__name__


@pytest.mark.slow
@given(IDENTITIES, IDENTITIES)
def test_different_identities_have_different_texts(one: Any, two: Any) -> None:
    assert (identity_text(one) == identity_text(two)) is (kind(one) == kind(two))


@given(IDENTITIES)
def test_a_text_is_short_and_its_digest_shorter(identity: Any) -> None:
    text = identity_text(identity)
    assert len(text) <= 128
    name = digest(text)
    assert len(name) == 22
    assert name.isascii()
    assert not set(name) & set("{}:*? \0\n")


@given(st.lists(TEXTS, min_size=1, max_size=4), st.integers(0, 4))
def test_splitting_a_text_makes_another_identity(parts: list[str], at: int) -> None:
    joined, split = tuple(parts), (*parts[:at], "".join(parts[at:]))
    assert (identity_text(joined) == identity_text(split)) is (joined == split)


PAIRS = [
    ("42", 42), (42, b"42"), ("42", ("42",)), (("a", "b"), ("a:b",)), (("a", ("b",)), ("a", "b")),
    ("", ()), ((), ((),)),
    ("a\0", "a"), ("é", "e\u0301"), ("ß", "ss"), ("A", "a"), (" a", "a"), ("\ud800", "\udfff"), ("\ud800", "?"),
    (UUID(int=1), UUID(int=1).hex), (UUID(int=1), 1), (-1, 1), (0, ""),
    (True, 1), (False, 0), (True, False), (True, "True"), (("a", True), ("a", 1)), (((False,),), ((0,),)),
    (("ip", "203.0.113.7"), ("user", "203.0.113.7")),
    ("x" * 1_000_000, "x" * 999_999), (10**5000, 10**5000 + 1), (b"\xff", "\xff"),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=range(len(PAIRS)))
def test_pairs_that_others_confuse(pair: tuple[Any, Any]) -> None:
    one, two = map(identity_text, pair)
    assert one != two


def test_a_long_text_is_not_its_own_digest_s_text() -> None:
    long = "x" * 500
    assert identity_text(long) != identity_text(identity_text(long)) != identity_text(identity_text(long)[1:])


class Name(str):
    """Text that likes to be shown in another way."""

    __slots__ = ()

    def __str__(self) -> str:
        return "somebody"

    def __format__(self, spec: str) -> str:
        return "somebody"


class Number(int):
    def __format__(self, spec: str) -> str:
        return "0"


class Token(bytes):
    def hex(self, *arguments: Any) -> str:
        return "00"


class Pair(NamedTuple):
    kind: str
    number: int


class Plan(StrEnum):
    FREE = "free"


class OldPlan(str, Enum):  # noqa: UP042 - as many still have it
    FREE = "free"


class Level(IntEnum):
    ONE = 1


class OldLevel(int, Enum):
    ONE = 1


ONE = [  # two spellings of one identity: a subclass counts as its value, and a list as a tuple
    (Name("a"), "a"), (Number(7), 7), (Token(b"a"), b"a"), (Pair("user", 7), ("user", 7)), (["a", 1], ("a", 1)),
    (Plan.FREE, "free"), (OldPlan.FREE, "free"), (Level.ONE, 1), (OldLevel.ONE, 1),
    (SimpleLazyObject(lambda: "a"), "a"), (LocalProxy(lambda: 7), 7),
]  # fmt: skip


@pytest.mark.parametrize(("one", "same"), ONE, ids=range(len(ONE)))
def test_an_instance_of_a_subclass_counts_as_its_value_whatever_its_repr(one: Any, same: Any) -> None:
    assert identity_text(one) == identity_text(same)
    assert identity_text((one, "x")) == identity_text((same, "x"))


class Mode(Enum):
    RED = 1


@dataclass(frozen=True)
class Client:
    name: str


OTHERS = [
    None, 1.5, 1.0, Decimal(1), Fraction(1), 1j, object(), {"a": 1}, {1, 2}, frozenset({1}), ("a", None), ("a", 1.5),
    [["a", {}]], type, Mode.RED, Client("a"), bytearray(b"a"), memoryview(b"a"), range(3), date.min,
    SimpleLazyObject(lambda: 7),  # which has no way to its number
]  # fmt: skip


@pytest.mark.parametrize("given", OTHERS, ids=range(len(OTHERS)))
def test_other_types_are_an_error_that_does_not_show_the_value(given: Any) -> None:
    with pytest.raises(IdentityError, match="SG006") as caught:
        identity_text(given)
    assert isinstance(caught.value, ConfigurationError)
    with pytest.raises(IdentityError):
        Limiter().hit("1/minute", given)


def test_true_and_one_have_budgets_of_their_own() -> None:
    limiter = Limiter()
    assert [limiter.hit("1/minute", value).allowed for value in (True, 1, False, 0, ("a", True), ("a", 1))] == [
        True
    ] * 6


def test_the_deepest_tuple_is_an_error_of_ours_or_an_identity() -> None:
    nested: Any = "a"
    for depth in range(5_000):
        if depth == 50:
            assert len(identity_text(nested)) <= 128
        nested = (nested,)
    itself: list[Any] = []
    itself.append(itself)
    for identity in (nested, itself):
        with pytest.raises(IdentityError, match="nested too deeply"):
            Limiter().hit("1/minute", identity)


# ---- accounts ----------------------------------------------------------------------------------------------------

SPELLINGS = [  # one account each
    [
        "alice",
        " alice ",
        "AliCe",
        "ＡＬＩＣＥ",
        "\talice\n",
        "\u3000alice\xa0",
        "alice\u2028",
    ],
    ["straße", "STRASSE", "strasse", "STRAẞE"],
    ["josé", "jose\u0301", "JOSÉ", "JOSE\u0301"],
    ["ﬁnn", "finn", "FINN", "ﬁNN"],
    ["σίσυφος", "ΣΊΣΥΦΟΣ", "σίσυφοσ"],
    ["ᾳ", "αι", "ΑΙ", "ᾼ"],
    ["①", "1", "¹"],
    ["", "  ", "\u2003"],
]
APART = [  # looks alike, and is another
    ("paypal", "раураl"),  # Cyrillic
    ("lao\u200bqian", "alice"),  # a space of no width
    ("lao qian", "alice"),
    ("I", "ı"),  # the dotless i of Turkish
    ("jose", "josé"),
    ("x" * 513, "x" * 514),
    ("o0", "oo"),
]


@pytest.mark.parametrize("names", SPELLINGS, ids=range(len(SPELLINGS)))
def test_an_account_has_one_name(names: list[str]) -> None:
    assert len({account(name) for name in names}) == 1


@pytest.mark.parametrize(("one", "two"), APART, ids=range(len(APART)))
def test_what_looks_alike_is_another_account(one: str, two: str) -> None:
    assert account(one) != account(two)


@given(st.text(st.characters(exclude_categories=())))
def test_twice_is_once(text: str) -> None:
    once = account(text)
    assert account(once) == once
    assert account(text.strip()) == once
    assert account(unicodedata.normalize("NFD", text)) == once
    assert account(unicodedata.normalize("NFKC", text)) == once
    assert len(once) <= 512


@pytest.mark.slow
def test_twice_is_once_for_every_character_there_is() -> None:
    touched = [
        each
        for each in map(chr, range(sys.maxunicode + 1))
        if unicodedata.normalize("NFKC", each) != each or each.casefold() != each or unicodedata.combining(each)
    ]
    assert len(touched) > 5_000
    for each in touched:
        for text in (each, f"a{each}\u0345b"):
            once = account(text)
            assert account(once) == once == account(unicodedata.normalize("NFKD", text)), ascii(text)


@pytest.mark.parametrize("text", ["x" * 513, "\ufdfa" * 40, "\ufdfa" * 512, " " * 99 + "X" * 513, "e\u0301" * 400])
def test_a_long_name_is_a_digest(text: str) -> None:
    once = account(text)
    assert account(once) == account(f"  {text} ") == once
    assert len(once) <= 512


def test_a_huge_name_costs_its_hash() -> None:
    huge, least = "\ufdfa" * 1_000_000, 9.0
    for _ in range(5):
        begun = perf_counter()
        assert len(account(huge)) == 65
        least = min(least, perf_counter() - begun)
    assert least < 0.1  # to normalise it takes a second


# ---- a secret ----------------------------------------------------------------------------------------------------

SECRET, OTHER = "correct horse battery staple", b"another secret, as good"
VALUES = ["alice", 42, ("ip", "203.0.113.7"), "x" * 1000]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_sealed_text_shows_nothing_and_is_always_the_same(value: Any) -> None:
    text = identity_text(value)
    sealed = Seal(SECRET).text(text)
    assert sealed == Seal(SECRET.encode()).text(text) != Seal(OTHER).text(text)
    assert len(sealed) == 33
    assert sealed not in (text, f"k{digest(text)}")


@given(TEXTS, TEXTS)
def test_sealed_texts_are_as_different_as_what_they_hide(one: str, two: str) -> None:
    seal = Seal(OTHER)
    assert (seal.text(identity_text(one)) == seal.text(identity_text(two))) is (one == two)


def page(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"page"]


def make_settings(**options: Any) -> object:
    return Settings(**options)


@pytest.mark.parametrize("make", [Limiter, AsyncLimiter, make_settings])
@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        ("fifteen bytes..", "only 15 bytes long"),
        (b"fifteen bytes..", "only 15 bytes long"),
        ("", "only 0 bytes long"),
        (1234567890123456, "a int is neither text nor bytes"),
        (["correct horse battery staple"], "a list is neither text nor bytes"),
    ],
)
def test_a_wrong_secret_is_refused_and_not_shown(make: Any, secret: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as caught:
        make(secret=secret)
    assert caught.value.what == "secret"
    shown = f"{caught.value} {caught.value.given} {caught.value.args}"
    assert "fifteen" not in shown
    assert "1234" not in shown
    assert "horse" not in shown


def test_a_secret_is_never_shown() -> None:
    settings = Settings(secret=SECRET)
    for thing in (settings, Seal(SECRET), Limiter(secret=SECRET), RateLimitMiddleware(page, settings=settings)):
        assert "horse" not in repr(thing)
    with pytest.raises(SettingsError) as caught:
        Settings.from_environ({"SLUICEGATE_SECRET": SECRET, "SLUICEGATE_STRICT": "perhaps"})
    assert "horse" not in str(caught.value)


def test_with_a_secret_no_key_is_the_digest_of_an_identity(valkey: Server) -> None:
    prefix, value = f"secret-{uuid4().hex}", "203.0.113.7"
    text = identity_text(("ip", value))
    options: Any = {"store": valkey.url, "prefix": prefix, "secret": SECRET}
    with redis.Redis.from_url(valkey.url, decode_responses=True) as connection, Limiter(**options) as limiter:
        limiter.hit("5/minute", ("ip", value))
        limiter.hit("5/minute; 9/hour", value, action="reply")
        web = RateLimitMiddleware(page, default_limits=["5/day"], **options)
        assert WsgiClient(web).request("GET", "/", peer=value).status == 200
        web.close()
        keys = list(connection.scan_iter(f"{prefix}:*"))
        named = {key.partition("{")[2].partition("}")[0] for key in keys} - {"overrides"}  # of the processes' names
        assert len(keys) == 5
        for plain in (text, identity_text(value), value):
            assert digest(plain) not in named
        assert named == {digest(Seal(SECRET).text(each)) for each in (text, identity_text(value))}


@pytest.mark.parametrize("url", ["memory", "redis"])
def test_limiters_of_one_secret_share_budgets_and_another_secret_has_new_ones(url: str, valkey: Server) -> None:
    store: Any = MemoryStore() if url == "memory" else valkey.url
    value = uuid4()
    options: Any = {"deny_cache": 0}
    with Limiter(store, secret=SECRET, **options) as one, Limiter(store, secret=SECRET.encode(), **options) as same:
        assert [one.hit("2/minute", value).allowed, same.hit("2/minute", value).allowed] == [True, True]
        assert not one.hit("2/minute", value)
        assert same.peek("2/minute", value).remaining == 0
        for another in (None, OTHER):
            with Limiter(store, secret=another) as anew:
                assert anew.hit("2/minute", value).remaining == 1
        same.reset("2/minute", value)
        assert one.hit("2/minute", value).remaining == 1


def test_the_asynchronous_limiter_has_the_same_keys(valkey: Server) -> None:
    value = uuid4()

    async def main() -> int | None:
        async with AsyncLimiter(valkey.url, secret=SECRET) as limiter:
            return (await limiter.hit("5/minute", value)).remaining

    with Limiter(valkey.url, secret=SECRET) as limiter:
        limiter.hit("5/minute", value)
        assert asyncio.run(main()) == 3


@pytest.mark.parametrize("url", ["memory", "redis"])
def test_bans_by_hand_know_the_secret(url: str, valkey: Server) -> None:
    where: Any = {"store": MemoryStore()} if url == "memory" else {"store": valkey.url, "prefix": f"ban-{uuid4()}"}
    value, ban = f"{uuid4()}", Ban(after=1, within=60, duration=60)
    rule = Rule(name="login", quota="1/minute", key=lambda environ: value, ban=ban)
    with Limiter(secret=SECRET, deny_cache=0, **where) as limiter:
        web = RateLimitMiddleware(page, rules=[rule], secret=SECRET, deny_cache=0, **where)
        assert WsgiClient(web).statuses("/") == [200]
        limiter.ban(value, ban)
        assert digest(Seal(SECRET).text(identity_text(value))) in limiter.bans(ban)
        assert digest(identity_text(value)) not in limiter.bans(ban)
        assert WsgiClient(web).request("GET", "/").status == 429
        limiter.unban(value, ban)
        assert limiter.bans(ban) == {}
        web.close()

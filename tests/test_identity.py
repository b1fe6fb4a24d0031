"""Identities: different ones never meet, none leaves in clear, none is endless."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ConfigurationError, Limiter
from headgate.errors import IdentityError
from headgate.identity import digest, identity_text

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=())),  # lone surrogates too
    st.text("sibut0123:h{}\0\n\\'\"", max_size=8),
    st.sampled_from(["", "\ud800", "\udfff", "é", "e\u0301", "ß", "SS", "x" * 1_000_000, "x" * 127, "x" * 128]),
)
LEAVES = st.one_of(TEXTS, st.integers(), st.binary(max_size=200), st.uuids())
IDENTITIES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


def kind(identity: Any) -> Any:
    """An identity with its type beside each part: what must not be confused."""
    if isinstance(identity, tuple):
        return tuple(map(kind, identity)), "tuple"
    return identity, type(identity).__name__


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


def test_equal_values_are_one() -> None:
    class Name(str):
        __slots__ = ()

    assert identity_text(Name("a")) == identity_text("a")
    assert identity_text(["a", 1]) == identity_text(("a", 1))


@pytest.mark.parametrize("given", [None, 1.5, object(), {"a": 1}, {1, 2}, ("a", None), ("a", 1.5), [["a", {}]], type])
def test_other_types_are_an_error_that_does_not_show_the_value(given: Any) -> None:
    with pytest.raises(IdentityError, match="HG006") as caught:
        identity_text(given)
    assert isinstance(caught.value, ConfigurationError)
    with pytest.raises(IdentityError):
        Limiter().hit("1/minute", given)


def test_the_deepest_tuple_is_an_error_of_ours_or_an_identity() -> None:
    nested: Any = "a"
    for _ in range(50):
        nested = (nested,)
    assert len(identity_text(nested)) <= 128

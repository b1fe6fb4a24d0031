"""One override, and the document of all: what can hold, what cannot, and what is refused of a document."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import OverrideError, QuotaError
from sluicegate.identity import digest, encoder, identity_text
from sluicegate.overrides.override import ACTIONS, HEAD, MOST, MOST_PATTERNS, Document, Entry, Override, pattern_of

ALICE, BOB = digest("salice"), digest("sbob")
WRONG_LISTS: tuple[Any, ...] = (None, False, 0, [], {}, "")


def made(number: int = 0, **options: Any) -> Override:
    facts: dict[str, Any] = {"rule": "export", "action": "off", "id": f"{number}", "at": 1} | options
    return Override(**facts)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rule": ""}, "rule"),
        ({"rule": 7}, "not text"),
        ({"action": "stop"}, "use one of quota, shadow"),
        ({"action": "quota"}, "give both or neither"),
        ({"quota": "5/minute"}, "give both or neither"),
        ({"digests": ("alice",)}, "not a digest"),
        ({"digests": ALICE}, "not a list"),
        ({"pattern": "alice"}, "not a pattern"),
        ({"pattern": "user:*a*"}, "not a pattern"),
        ({"pattern": "user:a*", "tier": "free"}, "told in two ways"),
        ({"digests": (ALICE,), "tier": "free"}, "told in two ways"),
        ({"pattern": 7, "tier": "free"}, "not a pattern"),
        ({"pattern": "user:a*", "tier": 7}, "not a tier"),
        ({"digests": (ALICE,), "pattern": ["user:a*"]}, "not a pattern"),
        ({"rule": "*", "tier": "free"}, "the rule that has this tier"),
        ({"rule": "*", "action": "deny"}, "every request of everybody"),
        ({"until": "soon"}, "not a moment"),
        ({"until": True}, "not a moment"),
        ({"until": 10**18}, "not a moment"),
        ({"why": "x" * 201}, "too long"),
        ({"why": "one\ntwo"}, "more than a line"),
        ({"by": "\x1b[2Jann"}, "control character"),
        ({"why": "one\u2028two"}, "more than a line"),
        ({"by": None}, "not text"),
        ({"rule": "one\x1b[2J"}, "more than a line"),
        ({"id": "one\ntwo"}, "more than a line"),
        *[({"digests": wrong}, "not a list of digests") for wrong in WRONG_LISTS],
        ({"at": None}, "not a moment"),
    ],
)
def test_what_cannot_hold(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OverrideError, match="SG015") as caught:
        made(**options)
    assert says in str(caught.value)


def test_a_quota_is_read_when_an_override_is_made() -> None:
    with pytest.raises(QuotaError):
        made(action="quota", quota="5/never")


@pytest.mark.parametrize(
    ("pattern", "identity", "fits"),
    [
        ("user:test-*", ("user", "test-7"), True),
        ("user:test-*", ("user", "test-"), True),
        ("user:test-*", ("user", "test-" + "x" * 100), True),
        ("user:test-*", ("user", "test-" + "x" * 200), False),  # known by its digest only
        ("user:test-*", ("user", "a-test-7"), False),
        ("user:test-*", ("ip", "test-7"), False),
        ("user:*", ("user", ""), True),
        ("user:*", ("user", 7), False),
        ("text:*@example.com", "alice@example.com", True),
        ("text:*@example.com", "alice@example.com.org", False),
        ("text:a*\nb", "a\n\nb", True),
        ("header:X-API-Key=ab*", ("header:x-api-key", "abc"), True),
        ("path:shop=1*", ("path:shop", "12"), True),
        ("ip:10.0.*", ("ip", "10.0.7.1"), True),
        ("ip:10.0.*", ("ip", "10x0.7.1"), False),
    ],
)
def test_what_a_pattern_matches(pattern: str, identity: Any, fits: bool) -> None:
    assert (pattern_of(pattern).fullmatch(identity_text(identity)) is not None) is fits


@given(st.text(max_size=60), st.text(max_size=20), st.text(max_size=20))
def test_a_pattern_matches_what_begins_and_ends_so(text: str, start: str, end: str) -> None:
    start, end = start.replace("*", ""), end.replace("*", "")
    fits = len(text) >= len(start) + len(end) and text.startswith(start) and text.endswith(end)
    assert (pattern_of(f"user:{start}*{end}").fullmatch(encoder("user")(text)) is not None) is fits


def test_the_name_of_a_header_has_no_case_in_a_pattern() -> None:
    assert made(pattern="header:X-API-Key=Ab*").pattern == "header:x-api-key=Ab*"
    assert made(pattern="path:Shop=1*").pattern == "path:Shop=1*"


TIES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "everybody twice": ({}, {}, True),
    "two rules": ({}, {"rule": "login"}, False),
    "a rule and all rules": ({}, {"rule": "*"}, False),
    "everybody and one": ({}, {"digests": (ALICE,)}, False),
    "one in two lists": ({"digests": (ALICE, BOB)}, {"digests": (ALICE,)}, True),
    "two identities": ({"digests": (ALICE,)}, {"digests": (BOB,)}, False),
    "two tiers": ({"tier": "free"}, {"tier": "pro"}, False),
    "one tier twice": ({"tier": "free"}, {"tier": "free"}, True),
    "the longer pattern": ({"pattern": "user:a*"}, {"pattern": "user:ab*"}, False),
    "patterns that may meet": ({"pattern": "user:a*"}, {"pattern": "user:*b"}, True),
    "patterns that never meet": ({"pattern": "user:a*"}, {"pattern": "user:b*"}, False),
    "headers of one name": ({"pattern": "header:X-Key=a*"}, {"pattern": "header:x-key=a*"}, True),
    "one id twice": ({"id": "7"}, {"id": "7", "rule": "login"}, True),
}


@pytest.mark.parametrize("case", TIES)
def test_two_overrides_for_the_same_identities_are_a_tie(case: str) -> None:
    one, other, tie = TIES[case]
    document = Document(1, (made(1, **one), made(2, **other)))
    for held in (document.held, document.held[::-1]):
        if tie:
            with pytest.raises(OverrideError, match="same identities"):
                Document.of(Document(1, held).text())
        else:
            assert Document.of(Document(1, held).text()).held == held


@pytest.mark.slow
def test_a_document_is_bounded_and_read_in_linear_time() -> None:
    many = tuple([made(number, digests=(digest(f"s{number}"),)) for number in range(MOST)])
    assert Document.of(Document(1, many).text()).held == many
    patterns = tuple([made(number, pattern=f"user:{number:04}*") for number in range(MOST_PATTERNS + 1)])
    for held in ((*many, made(MOST)), patterns):
        with pytest.raises(OverrideError, match="more than"):
            Document.of(Document(1, held).text())


SETS = st.lists(
    st.builds(
        Override,
        rule=st.sampled_from(["export", "login", "*"]),
        action=st.sampled_from([each for each in ACTIONS if each not in ("quota", "deny")]),
        digests=st.lists(st.sampled_from([ALICE, BOB]), max_size=2).map(tuple),
        until=st.none() | st.integers(0, 10**15),
        by=st.text(max_size=20).filter(lambda text: text.isprintable()),
        why=st.text(max_size=20).filter(lambda text: text.isprintable()),
        at=st.integers(1, 10**15),
        id=st.uuids().map(str),
    ),
    unique_by=lambda each: (each.rule, not each.digests),
    max_size=4,
)


@pytest.mark.slow
@given(SETS, st.integers(0, 10**9))
def test_a_document_and_an_entry_are_read_as_they_were_written(held: list[Override], version: int) -> None:
    document = Document(version, tuple(held))
    assert Document.of(document.text()) == document
    entry = Entry(7, "ann", "off", added=tuple(held), why="?")
    assert Entry.of(entry.text()) == entry


@pytest.mark.slow
@given(SETS, SETS)
def test_different_sets_begin_differently(one: list[Override], other: list[Override]) -> None:
    first, second = (Document(1, tuple(held)).text() for held in (one, other))
    assert (first[:HEAD] == second[:HEAD]) is (one == other)


WRONG: dict[str, Any] = {
    "not ours": (b"hello", "not a set of overrides"),
    "a newer format": (b"sluicegate 2 1 x\n[]", "a newer sluicegate; this one reads 1"),
    "no number": (b"sluicegate 1 \xb2 x\n[]", "not a set of overrides"),
    "no digest": (b"sluicegate 1 1\n[]", "its digest is wrong"),
    "changed": (Document(1, (made(),)).text().replace(b"export", b"import"), "its digest is wrong"),
    "cut": (Document(1, (made(),)).text()[:-1], "its digest is wrong"),
    "bytes": (bytes(range(256)), "not a set of overrides"),
}
BODIES: dict[str, tuple[str, str]] = {
    "no list": ("{}", "its digest is wrong"),
    "deep": ("[" * 50_000, "its digest is wrong"),
    "no override": ("[7]", "not what an override has"),
    "unknown facts": ('[{"rule":"a","action":"off","x":1}]', "not what an override has"),
    "a wrong action": ('[{"rule":"a","action":"stop"}]', "use one of"),
    "a wrong quota": ('[{"rule":"a","action":"quota","quota":"x"}]', "SG015"),
    "a list as a quota": ('[{"rule":"a","action":"quota","quota":["x"]}]', "SG015"),
    "no digests": ('[{"rule":"a","action":"off","digests":null}]', "not a list of digests"),
    "an empty list of digests": ('[{"rule":"a","action":"off","digests":[]}]', "not a list of digests"),
    "a wrong digest": ('[{"rule":"a","action":"off","digests":[7]}]', "not a digest"),
}


@pytest.mark.parametrize("case", [*WRONG, *BODIES])
def test_a_document_that_is_not_whole_is_refused(case: str) -> None:
    if case in WRONG:
        text, says = WRONG[case]
    else:
        body, says = BODIES[case]
        text = f"sluicegate 1 1 {digest(body)}\n{body}".encode()
    with pytest.raises(OverrideError, match="SG015") as caught:
        Document.of(text)
    assert says in str(caught.value)
    assert Document.of(b"") == Document()


ENTRY: dict[str, Any] = {"at": 1, "by": "ann", "what": "off", "why": "", "added": [], "removed": []}


@pytest.mark.parametrize(
    "wrong",
    [
        *[{"at": at} for at in (float("inf"), float("nan"), 9e30, 10**30, -1, None, True, "1")],
        *[{name: value} for name in ("by", "what", "why") for value in (None, 7, "one\ntwo", "x" * 201)],
        *[{name: value} for name in ("added", "removed") for value in (None, 7, [7], [{"rule": "a"}], {"a": 1})],
    ],
)
def test_an_entry_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    assert Entry.of(json.dumps(ENTRY)) == Entry(1, "ann", "off")
    with pytest.raises(OverrideError, match="SG015"):
        Entry.of(json.dumps(ENTRY | wrong))


@pytest.mark.parametrize("text", [b"\xff\xfe", b"", b"null", b"[]", b"[" * 99_999, b"9" * 9_999])
def test_text_that_is_no_entry_is_refused(text: bytes) -> None:
    with pytest.raises(OverrideError, match="SG015"):
        Entry.of(text)

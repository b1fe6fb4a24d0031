"""What holds for one identity under one rule: a list, else the narrowest, against an oracle that looks at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import OverrideError
from sluicegate.identity import Digested, Seal, digest, encoder
from sluicegate.overrides.applied import Applied
from sluicegate.overrides.override import Action, Document, Override, pattern_of

NAMES = ["test-1", "test-22", "alice", "bob"]
PATTERNS = ["user:test-*", "user:test-2*", "user:*e", "user:*"]
RULES = ["export", "login", "*"]
user = encoder("user")
seal = Seal("a secret of 24 letters..").text

TARGETS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"names": st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)}),
    st.fixed_dictionaries({"pattern": st.sampled_from(PATTERNS)}),
    st.fixed_dictionaries({"tier": st.sampled_from(["free", "pro"])}),
    st.just({}),
)


def place(override: Override) -> tuple[bool, int, int, bool]:
    """What decides which of two overrides comes first."""
    width = 3 if override.digests else 2 if override.pattern else 1 if override.tier else 0
    return override.action in ("deny", "allow"), width, len(override.pattern or ""), override.rule != "*"


@pytest.mark.slow
@given(st.data(), st.booleans())
def test_lists_come_first_and_then_the_narrowest(data: st.DataObject, sealed: bool) -> None:
    text = seal if sealed else str
    held: list[Override] = []
    for number in range(data.draw(st.integers(0, 8))):
        target = dict(data.draw(TARGETS))
        rule = data.draw(st.sampled_from(RULES[:2] if "tier" in target else RULES))
        digests = tuple([digest(text(user(name))) for name in target.pop("names", ())])
        action: Action = data.draw(st.sampled_from(("off", "shadow", "deny", "allow")))
        try:
            one = Override(rule=rule, action=action, digests=digests, id=f"{number}", at=1, **target)
            Document.of(Document(1, (*held, one)).text())
        except OverrideError:  # a tie, or everybody denied
            continue
        held.append(one)
    applied = Applied(held, seal=seal if sealed else None)
    for name in NAMES:
        for rule in RULES[:2]:
            for tier in (None, "free", "pro"):
                fits = [
                    one
                    for one in held
                    if one.rule in (rule, "*")
                    and (not one.digests or digest(text(user(name))) in one.digests)
                    and (one.pattern is None or pattern_of(one.pattern).fullmatch(user(name)))
                    and one.tier in (None, tier)
                ]
                found = applied.of(rule, user(name), tier)
                assert (None if found is None else found.override) == max(fits, key=place, default=None)


def test_no_pattern_matches_a_digest() -> None:
    """One of `text:*` would match each digest that begins with the letter of a text."""
    one = Override(rule="*", action="off", pattern="text:*", id="one")
    assert Applied([one]).of("export", Digested("s" * 22), None) is None
    assert Applied([one]).of("export", "s" * 22, None) is not None

"""Rollout: rules in shadow. A rule in shadow counts, and never refuses: for all identities or a share of them.

The digest of an identity decides whether a rule is enforced for it. So the choice is the same in every process, after
every restart and for every rule. A rule that is enforced for an identity at some percentage is enforced for it at every
higher percentage too. Shadow charges have budgets of their own, because several rules may have one budget.
"""

from __future__ import annotations

from binascii import a2b_base64
from functools import lru_cache, partial
from typing import Final, Literal, get_args

from sluicegate.errors import RuleError
from sluicegate.identity import digest
from sluicegate.plan import Terms

Mode = Literal["enforce", "shadow"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
EVERYBODY: Final = 2**48  # the number of positions: the values of _CHARACTERS of a digest
_CHARACTERS: Final = 8  # of the digest: 48 bits
_PLAIN: Final = str.maketrans("-_", "+/")


def share(mode: object, percent: object) -> int:
    """Return the share of identities that a rule is enforced for, up to EVERYBODY. Raises RuleError for wrong
    arguments.

    >>> share("enforce", 100) == EVERYBODY, share("shadow", 100), share("enforce", 0)
    (True, 0, 0)
    """
    if mode not in MODES:
        raise RuleError("mode", mode, problem="not known", expected=f"use one of {', '.join(MODES)}")
    wrong = partial(RuleError, "enforce_percent", percent)
    if not isinstance(percent, (int, float)) or isinstance(percent, bool) or not 0 <= percent <= 100:
        raise wrong(problem="not a percentage", expected="give a number from 0 to 100")
    if mode == "shadow" and percent not in (0, 100):
        raise wrong(problem='given beside mode="shadow", which enforces for nobody', expected="leave out the mode")
    enforced = 0 if mode == "shadow" else round(percent * EVERYBODY / 100)
    if percent > 0 and mode != "shadow" and enforced == 0:
        raise wrong(problem="so small that it enforces for nobody", expected="give more, or 0")
    return enforced


@lru_cache(maxsize=4096)
def position(identity: str) -> int:
    """Return an identity's position, from 0 to EVERYBODY. A rule is enforced for positions below its share."""
    return int.from_bytes(a2b_base64(digest(identity)[:_CHARACTERS].translate(_PLAIN)), "big")


@lru_cache(maxsize=4096)  # always the same objects: a Run and the deny cache know terms by identity
def shadows(terms: tuple[Terms, ...]) -> tuple[Terms, ...]:
    """Return the same terms of one rule in shadow: one group, with a separate budget, and without a ban."""
    group = terms[0].name
    return tuple(
        [each._replace(rule_id=f"{each.rule_id}:shadow", shadow=True, group=group, ban=None) for each in terms]
    )


def picked(terms: tuple[Terms, ...], identity: str, share: int) -> tuple[Terms, ...]:
    """Return the terms of a rule for one identity: in shadow if the rule is not enforced for this identity."""
    return terms if position(identity) < share else shadows(terms)

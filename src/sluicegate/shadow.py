"""Shadow: rules that are counted and told, and refuse nobody, or only a share of all identities.

Which identities a rule is enforced for is a matter of their digest, so it is the same in every process, after every
restart, and of every rule; who is enforced at some percentage is so at any higher one. What is counted in shadow is
kept apart from what is enforced, for several rules may share a budget. This module knows values and the digest.
"""

from __future__ import annotations

from binascii import a2b_base64
from functools import lru_cache
from typing import Final

from sluicegate.errors import RuleError
from sluicegate.identity import digest
from sluicegate.plan import Decision, Terms

MODES: Final = ("enforce", "shadow")
EVERYBODY: Final = 2**48
_CHARACTERS: Final = 8  # of the digest: 48 bits
_PLAIN: Final = str.maketrans("-_", "+/")


def share(what: str, mode: object, percent: object) -> int:
    """How many of EVERYBODY a rule is enforced for. RuleError for what is no mode and no percentage.

    >>> share("rule", "enforce", 100) == EVERYBODY, share("rule", "shadow", 100), share("rule", "enforce", 0)
    (True, 0, 0)
    """
    if mode not in MODES:
        raise RuleError(f"{what}mode", mode, problem="not known", expected=f"use one of {', '.join(MODES)}")
    if not isinstance(percent, (int, float)) or isinstance(percent, bool) or not 0 <= percent <= 100:
        raise RuleError(
            f"{what}enforce_percent", percent, problem="not a percentage", expected="give a number from 0 to 100"
        )
    if mode == "shadow" and percent not in (0, 100):
        raise RuleError(
            f"{what}enforce_percent",
            percent,
            problem='given beside mode="shadow", which enforces for nobody',
            expected="leave out the mode",
        )
    enforced = 0 if mode == "shadow" else round(percent * EVERYBODY / 100)
    if percent > 0 and mode != "shadow" and enforced == 0:
        raise RuleError(
            f"{what}enforce_percent",
            percent,
            problem="so small that it enforces for nobody",
            expected="give more, or 0",
        )
    return enforced


@lru_cache(maxsize=4096)
def place(identity: str) -> int:
    """Where an identity stands among EVERYBODY: those below a rule's share are the ones that it is enforced for."""
    return int.from_bytes(a2b_base64(digest(identity)[:_CHARACTERS].translate(_PLAIN)), "big")


@lru_cache(maxsize=4096)
def shadows(terms: tuple[Terms, ...]) -> tuple[Terms, ...]:
    """The same terms in shadow: under a budget of their own, and with no effect beyond it."""
    return tuple([each._replace(rule_id=f"{each.rule_id}:shadow", shadow=True, ban=None) for each in terms])


def picked(terms: tuple[Terms, ...], identity: str, share: int) -> tuple[Terms, ...]:
    """The terms of a rule for one identity: in shadow for those that it is not enforced for."""
    return terms if place(identity) < share else shadows(terms)


def report(decision: Decision) -> None:
    """Log the shadow rules that would have refused a request that passed: their names, and nothing of who it was."""
    from logging import getLogger  # a tenth of the time to import sluicegate, and seldom needed

    for name in decision.would_refuse:
        getLogger("sluicegate.shadow").info("rule %r would have refused a request that passed", name)

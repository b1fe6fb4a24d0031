"""What the parameters of every algorithm must pass: integers that a double carries exactly; and how a key tells them.

Known to algorithms only; knows values.
"""

from __future__ import annotations

from typing import Final

from sluicegate.clock import MICROSECOND
from sluicegate.errors import AlgorithmError
from sluicegate.quota import Quota

MAX: Final = 2**53 - 1  # Lua 5.1 has only doubles; above this, integers skip


def exact(quota: Quota, algorithm: str, *, largest: int) -> None:
    """Refuse a quota whose largest intermediate number would not be exact in a double."""
    if largest > MAX:
        raise AlgorithmError(
            f"algorithm {algorithm!r} with quota",
            str(quota),
            problem=f"needs numbers up to {largest}, above 2^53",
            expected="use a shorter period, a rounder limit, or algorithm 'sliding-window'",
        )


def no_burst(quota: Quota, algorithm: str) -> None:
    """Refuse a burst where the algorithm has none."""
    if quota.burst is not None:
        raise AlgorithmError(
            f"algorithm {algorithm!r} with quota",
            str(quota),
            problem="this algorithm has no burst",
            expected="leave the burst out, or use gcra, token-bucket or leaky-bucket",
        )


def told(microseconds: int) -> str:
    """A length of time in few characters: every key of every identity carries it.

    >>> told(60_000_000), told(600_000), told(1_500)
    ('60', '600m', '1500u')
    """
    if microseconds % 1000:
        return f"{microseconds}u"
    return f"{microseconds // 1000}m" if microseconds % MICROSECOND else str(microseconds // MICROSECOND)

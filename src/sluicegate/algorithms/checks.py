"""The checks of every algorithm's parameters, which a double must hold exactly, and their short form in keys."""

from __future__ import annotations

from typing import Final

from sluicegate.clock import MICROSECOND
from sluicegate.errors import AlgorithmError
from sluicegate.quota import Quota

MAX: Final = 2**53 - 1  # Lua 5.1 has only doubles; above this, integers skip


def exact(quota: Quota, algorithm: str, *, largest: int) -> None:
    """Raise AlgorithmError for a quota whose largest intermediate number would not be exact in a double."""
    if largest > MAX:
        raise AlgorithmError(
            f"algorithm {algorithm!r} with quota",
            str(quota),
            problem=f"needs numbers up to {largest}, above 2^53",
            expected="use a shorter period, a rounder limit, or algorithm 'sliding-window'",
        )


def no_burst(quota: Quota, algorithm: str) -> None:
    """Raise AlgorithmError for a burst if the algorithm has no burst."""
    if quota.burst is not None:
        raise AlgorithmError(
            f"algorithm {algorithm!r} with quota",
            str(quota),
            problem="this algorithm has no burst",
            expected="leave the burst out, or use gcra, token-bucket or leaky-bucket",
        )


def short(microseconds: int) -> str:
    """Return a length of time in few characters, because every key has it.

    >>> short(60_000_000), short(600_000), short(1_500)
    ('60', '600m', '1500u')
    """
    if microseconds % 1000:
        return f"{microseconds}u"
    return f"{microseconds // 1000}m" if microseconds % MICROSECOND else str(microseconds // MICROSECOND)

"""The closed loop: what clients that honour Retry-After would have met. Each client asks one request after the other:
it waits as long as a refusal says, asks again, and goes on with its next request, at the earliest when that was logged.
Only plain rules have a closed loop: the gate would be asked again for each refusal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sluicegate.errors import needs
from sluicegate.replay.decide import Ready, by_identity, one_identity
from sluicegate.replay.plain import Met

with needs("replay"):
    import polars as pl


@dataclass
class Waits:
    """What clients met: their delays in milliseconds with three digits, and how often."""

    delays: Counter[int] = field(default_factory=Counter)
    never: int = 0  # requests that no wait lets through
    retries: int = 0
    longest: int = 0  # microseconds

    def __add__(self, other: Waits) -> Waits:
        return Waits(
            self.delays + other.delays,
            self.never + other.never,
            retries=self.retries + other.retries,
            longest=max(self.longest, other.longest),
        )

    def add(self, met: Met) -> None:
        if met.delays:
            self.longest = max([self.longest, *met.delays])
            self.delays.update(dict(_shortened(pl.Series("delay", met.delays)).value_counts().iter_rows()))
        self.retries += met.retries
        self.never += met.never


def _shortened(delays: pl.Series) -> pl.Series:
    """Return delays in milliseconds with three digits, rounded up, so that the number of different ones is small."""
    value = -(-delays // 1000)
    scale = pl.lit(10, pl.Int64()).pow((pl.col("delay").cast(pl.String()).str.len_bytes().cast(pl.Int64()) - 3).clip(0))
    return value.to_frame().select(-(-pl.col("delay") // scale) * scale).to_series()


def waits_of(ready: Ready, found: pl.DataFrame) -> Waits:
    """Return what those who might be refused would have met. The others would not have waited."""
    waits, met = Waits(), Met()
    for _, _, asked in by_identity(ready, found):
        one_identity(ready).wait(asked, met)
    waits.add(met)
    return waits

"""The sane rate, which no innocent identity passes: given, or found in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from typing import Final, NamedTuple

from sluicegate.clock import MICROSECOND
from sluicegate.errors import QuotaError
from sluicegate.extras import needs
from sluicegate.quota import Quota
from sluicegate.replay.partitions import Part, Single
from sluicegate.replay.peaks import PEAK, peaks
from sluicegate.replay.tally import quantile

with needs("replay"):
    import polars as pl

_SHARE: Final = 99  # percent of the identities, which never pass the rate that is found
_FEWEST: Final = 100  # identities: among fewer, one program would decide it
_IDENTITIES: Final = 10_000  # a sample of so many is enough
_ROWS: Final = 1_000_000  # and so is one of so many requests
_DEFAULT: Final = 60  # a minute
_LEAST: Final = 10  # a minute: most identities of some logs ask only once, and each person may ask ten times
_MINUTE: Final = 60 * MICROSECOND
_SMALL: Final = (1, 2, 3, 4, 5, 6, 8)
_NICE: Final = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)


class Sane(NamedTuple):
    """The rate, its text, and where it comes from."""

    rate: Quota
    text: str
    source: str

    @classmethod
    def given(cls, text: str) -> Sane:
        """Read a rate that the user gave."""
        quota = Quota.parse(text)
        if quota.burst is not None:
            raise QuotaError("sane", text, problem="it has a burst", expected='write it like "60/minute"')
        return cls(quota, text, "as given")

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Sane:
        """Return the smallest rate that a person would write and nearly all identities never pass.

        A part has all requests of its identities, and a hash chose them: the first parts are a fair sample. The few
        identities with a large share of the log are left out.
        """
        highest: Counter[int] = Counter()
        rows = 0
        for part in parts:
            if isinstance(part, Single):
                continue
            known = part.load().frame.select("identity", "time").filter(pl.col("identity").is_not_null())
            most = peaks(known, ["identity"], [_MINUTE])[f"{PEAK}{_MINUTE}"]
            highest.update(dict(most.value_counts().iter_rows()))
            rows += known.height
            if highest.total() >= _IDENTITIES or (rows >= _ROWS and highest.total() >= _FEWEST):
                break
        identities = highest.total()
        if identities < _FEWEST:
            number, source = _DEFAULT, f"the default, for fewer than {_FEWEST} identities"
        else:
            number = nice(max(_LEAST, quantile(highest, _SHARE / 100)))
            source = f"found in the log: {_SHARE} % of {identities:,} identities never pass it"
        return cls(Quota(number, 60), f"{number}/minute", source)


def nice(limit: int, steps: int = 0) -> int:
    """Return the next limit that a person would write, and so many steps more.

    >>> [nice(limit) for limit in (1, 7, 9, 11, 13, 61, 101, 1999)], nice(5, 1), nice(80, 2)
    ([1, 8, 10, 12, 15, 80, 120, 2000], 6, 120)
    """
    written = chain(_SMALL, (number * 10**power for power in count() for number in _NICE))
    higher: Iterator[int] = islice((each for each in written if each >= limit), steps, None)
    return next(higher)

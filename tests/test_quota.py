"""Quotas: valid and wrong texts, and the round trip through the printer."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ConfigurationError, Limiter, Quota
from sluicegate.algorithms import ALGORITHMS
from sluicegate.errors import AlgorithmError, QuotaError
from sluicegate.quota import MAX_LIMIT, MAX_PERIOD_US

SECOND, MINUTE, HOUR, DAY, WEEK = 1, 60, 3600, 86_400, 604_800

ONE = [  # text → limit, period in seconds, burst
    ("10/minute", 10, MINUTE, None),
    ("10 per 5 minutes", 10, 5 * MINUTE, None),
    ("10/5m", 10, 5 * MINUTE, None),
    ("10/5 minutes", 10, 5 * MINUTE, None),
    ("10 / 5m", 10, 5 * MINUTE, None),
    ("10 per minute", 10, MINUTE, None),
    ("1/s burst 20", 1, SECOND, 20),
    ("1 per 2 seconds burst 15", 1, 2, 15),
    ("  10/minute\t", 10, MINUTE, None),
    ("10 PER Minute", 10, MINUTE, None),
    ("007/minute", 7, MINUTE, None),
    ("1000000/day", 10**6, DAY, None),
    ("1 per millisecond", 1, 0.001, None),
    ("5 per 250 milliseconds", 5, 0.25, None),
    ("1/microsecond", 1, 1e-6, None),
]
UNITS = {
    SECOND: ["s", "sec", "secs", "second", "seconds"],
    MINUTE: ["m", "min", "mins", "minute", "minutes"],
    HOUR: ["h", "hour", "hours"],
    DAY: ["d", "day", "days"],
    WEEK: ["w", "week", "weeks"],
    30 * DAY: ["month", "months"],
    365 * DAY: ["year", "years"],
}
SEVERAL = ["10/minute; 1000/day", "10/minute;1000/day", "10/minute, 1000/day", "10/minute|1000/day", " 10/m | 1000/d "]
REFUSED = [  # text, and what the error must say
    ("10/fortnight", 'unknown unit "fortnight"'),
    ("5/ms", 'unknown unit "ms"'),
    ("10/M i n", "cannot be read"),
    ("5/minuit", 'unknown unit "minuit"; did you mean "minute"'),
    ("1,000/day", "a comma separates two quotas; write a number without it, like 1000/day"),
    ("10 at onc", 'cannot be read; write "10 at once" for requests at the same time'),
    ("10 concurrent", 'write "10 at once"'),
    ("0/minute", "limit is zero"),
    ("10/0 minutes", "times is zero|period is zero"),
    ("10/minute burst 0", "burst is zero"),
    ("-1/minute", "negative"),
    ("10/-5 minutes", "negative"),
    ("10/minute burst -2", "negative"),
    ("1.5/minute", "not a whole number"),
    ("10/1.5 minutes", "not a whole number"),
    ("1_00/minute", "not a whole number"),
    ("1000_000/minute", "not a whole number"),
    ("_1_000/minute", "cannot be read"),
    ("1__000/minute", "not a whole number"),
    ("1_000_/minute", "not a whole number"),
    ("+5/minute", "not a whole number"),
    ("1e3/minute", "cannot be read"),
    ("", "the text is empty"),
    ("   ", "the text is empty"),
    ("10/minute;", "empty part"),
    (";10/minute", "empty part"),
    ("10/minute;;5/hour", "empty part"),
    ("10/minute,", "empty part"),
    ("|", "empty part"),
    ("10", "cannot be read"),
    ("10/", "cannot be read"),
    ("/minute", "cannot be read"),
    ("minute", "cannot be read"),
    ("ten/minute", "cannot be read"),
    ("10 minute", "cannot be read"),
    ("10per minute", "cannot be read"),
    ("10/minute burst", "cannot be read"),
    ("10/minuteburst 5", "cannot be read"),
    ("10/minute extra", "cannot be read"),
    ("10//minute", "cannot be read"),
    ("10/minute\0", "cannot be read"),
    ("١٠/minute", "cannot be read"),  # digits, but not ours
    ("limit=100, remaining=50", "cannot be read"),
    (f"{10**15}/minute", "too large to be exact"),  # not an Integer of a Structured Field
    (f"{'9' * 500}/minute", "too large|500 digits"),
    ("1 per 300 years", "too long to be exact"),
    (f"1/minute burst {10**15}", "too large to be exact"),
]


@pytest.mark.parametrize(("text", "limit", "seconds", "burst"), ONE)
def test_accepted(text: str, limit: int, seconds: float, burst: int | None) -> None:
    assert Quota.parse(text) == Quota(limit, seconds, burst=burst)


@pytest.mark.parametrize(("seconds", "names"), UNITS.items())
def test_units(seconds: int, names: list[str]) -> None:
    for name in [*names, *map(str.upper, names), *map(str.title, names)]:
        assert (
            Quota.parse(f"3/{name}") == Quota.parse(f"3 per {name}") == Quota.parse(f"3/1 {name}") == Quota(3, seconds)
        )


@pytest.mark.parametrize("text", SEVERAL)
def test_several(text: str) -> None:
    assert Quota.parse_all(text) == (Quota(10, MINUTE), Quota(1000, DAY))
    with pytest.raises(QuotaError, match="2 quotas, but only one is allowed here"):
        Quota.parse(text)


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_refused(text: str, problem: str) -> None:
    with pytest.raises(QuotaError, match=problem) as caught:
        Quota.parse_all(text)
    assert str(caught.value).endswith("[SG001]")
    assert isinstance(caught.value, ConfigurationError)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("given", [None, 10, 1.5, b"10/minute", ["10/minute"]])
def test_refused_when_not_text(given: Any) -> None:
    with pytest.raises(QuotaError, match="is not text"):
        Quota.parse(given)


LIMITS = [0, -1, 1.5, 1.0, "10", None, True, 10**15, 2**53]
PERIODS = [0, -1, "minute", None, True, float("nan"), float("inf"), -float("inf"), 1e-7, 1e300, MAX_PERIOD_US,
           timedelta(0), timedelta(seconds=-1), timedelta(days=999_999_999), 10**400]  # fmt: skip


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_is_a_whole_number_from_1_to_10_15(limit: Any) -> None:
    with pytest.raises(QuotaError, match="limit"):
        Quota(limit, 60)
    if limit is not None:
        with pytest.raises(QuotaError, match="burst"):
            Quota(1, 60, burst=limit)


@pytest.mark.parametrize("period", PERIODS)
def test_a_period_is_from_a_microsecond_to_100_years(period: Any) -> None:
    with pytest.raises(QuotaError, match="period"):
        Quota(1, period)


def test_the_edges_are_accepted() -> None:
    assert Quota(MAX_LIMIT, Fraction(MAX_PERIOD_US, 10**6), burst=MAX_LIMIT).period_us == MAX_PERIOD_US
    assert Quota(1, 1e-6).period_us == 1
    assert Quota(1, timedelta(microseconds=1)).period_us == 1
    assert Quota(1, timedelta(days=1)) == Quota(1, 86_400) == Quota(1, 86_400.0)
    assert Quota(1, 0.1).period_us == 100_000
    assert Quota(1, 60).period == 60
    assert Quota(1, 0.5).period == 0.5


QUOTAS = st.builds(
    lambda limit, us, burst: Quota(limit, Fraction(us, 10**6), burst=burst),
    st.integers(1, MAX_LIMIT),
    st.one_of(st.integers(1, MAX_PERIOD_US), st.sampled_from([10**6, 60 * 10**6, 604_800 * 10**6, 86_400 * 10**9])),
    st.none() | st.integers(1, MAX_LIMIT),
)


@given(QUOTAS)
def test_text_comes_back_the_same(quota: Quota) -> None:
    assert Quota.parse(str(quota)) == quota
    assert repr(quota) == f"Quota({str(quota)!r})"


@given(st.lists(QUOTAS, min_size=1, max_size=4), st.sampled_from(["; ", ",", " | "]))
def test_several_come_back_the_same(quotas: list[Quota], separator: str) -> None:
    assert Quota.parse_all(separator.join(map(str, quotas))) == tuple(quotas)


@given(st.text(max_size=40) | st.text("0123456789/; |,perminutshourdayw.-+ burst", max_size=30))
def test_any_text_is_a_quota_or_a_quota_error(text: str) -> None:
    try:
        quotas = Quota.parse_all(text)
    except QuotaError:
        return
    assert Quota.parse_all("; ".join(map(str, quotas))) == quotas


SPANS = [
    (1, "second"),
    (60, "minute"),
    (300, "5 minutes"),
    (90, "90 seconds"),
    (604_800, "week"),
    (0.001, "millisecond"),
]


@pytest.mark.parametrize(("seconds", "span"), SPANS)
def test_span(seconds: float, span: str) -> None:
    assert Quota(1, seconds).span == span


def test_a_quota_is_a_value() -> None:
    quota = Quota(10, 60)
    assert {quota: 1}[Quota.parse("10/minute")] == 1
    assert quota != Quota(10, 60, burst=10)
    with pytest.raises(AttributeError):
        quota.limit = 11


FUNNELS = [
    ((15, 0.5), "1 per 2 seconds burst 15"),
    ((15, 2), "2/second burst 15"),
    ((1, Fraction(1, 3)), "1 per 3 seconds burst 1"),
    ((100, 0.1), "1 per 10 seconds burst 100"),
    ((3, 0.3), "3 per 10 seconds burst 3"),
]


@pytest.mark.parametrize(("arguments", "text"), FUNNELS)
def test_funnel(arguments: tuple[int, float], text: str) -> None:
    capacity, rate = arguments
    assert str(Quota.funnel(capacity=capacity, leaking_rate=rate)) == text


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), None, "fast", "1/0", 1 / 3, 1e-300])
def test_funnel_wants_a_positive_rate(rate: Any) -> None:
    with pytest.raises(QuotaError, match=r"leaking_rate|period|limit"):
        Quota.funnel(capacity=15, leaking_rate=rate)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_burst_only_where_there_are_bursts(name: Any) -> None:
    if name in ("gcra", "token-bucket", "leaky-bucket"):
        assert Limiter().hit("1/second burst 3", "a", cost=3, algorithm=name)
    else:
        with pytest.raises(AlgorithmError, match="no burst"):
            Limiter().hit("1/second burst 3", "a", algorithm=name)


PAST_53_BITS = [
    ("gcra", f"{10**14 + 1} per 86399 seconds"),
    ("sliding-counter", f"{MAX_LIMIT}/year"),
    ("sliding-log", "10001/day"),
]


@pytest.mark.parametrize(("algorithm", "text"), PAST_53_BITS)
def test_numbers_that_would_pass_2_53_are_refused(algorithm: Any, text: str) -> None:
    with pytest.raises(AlgorithmError, match="SG005"):
        Limiter().hit(text, "a", algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ["sliding-window", "fixed-window"])
def test_the_largest_quota_works_where_it_is_exact(algorithm: Any) -> None:
    assert Limiter().hit(f"{MAX_LIMIT}/year", "a", algorithm=algorithm).remaining == MAX_LIMIT - 1

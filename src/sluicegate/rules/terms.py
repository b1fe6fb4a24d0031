"""The reader of quotas, and the maker of terms: the constant part of the checks of a rule or a limiter's call."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from sluicegate.algorithms import DEFAULT, KEPT, calendar, find
from sluicegate.concurrency import Concurrency
from sluicegate.errors import QuotaError, RuleError
from sluicegate.identity import digest
from sluicegate.plan import Terms
from sluicegate.quota import MAX_LIMIT, Quota

QuotaSpec = Quota | Concurrency | str | Sequence[Quota]
Quotas = tuple[Quota, ...] | Concurrency

REQUESTS: Final = 100  # with one key that are charged once; the next one is charged again
_AT_ONCE: Final = "at"  # in keys it replaces the code of the algorithm
_PLAIN: Final = r"[A-Za-z0-9_.\-]{0,64}"
_MOST: Final = 4096  # terms whose present window is known


@lru_cache(maxsize=4096)  # equal arguments return the same terms object, because caches have terms as keys
def make_terms(
    name: str,
    quotas: Quotas,
    *,
    algorithm: str,
    scope: str | None = None,
    counted: bool = False,
    on_store_failure: str | None = None,
    refund_when: Callable[..., bool] | None = None,
    ban: Terms | None = None,
    once_per: str | None = None,
    tier: str | None = None,
    message: str | None = None,
    on_denied: Callable[..., Any] | None = None,
    cost_after: Callable[..., object] | None = None,
    unit: str | None = None,
) -> tuple[Terms, ...]:
    """Make terms for each quota of one name. If there are several quotas, their periods differ.

    The default algorithm counts a Concurrency, whatever the rule's algorithm is. The lease is the window. A quota with
    a Calendar has an algorithm of its own; `present` makes the terms of a request.
    """
    held = isinstance(quotas, Concurrency)
    if isinstance(quotas, Concurrency):
        quotas, algorithm = (quotas.quota,), DEFAULT
    chosen = find(algorithm)
    _check_apart(quotas)
    terms: list[Terms] = []
    for quota in quotas:
        module = chosen if quota.calendar is None else KEPT[calendar.NAMES[0]]
        params = module.params(quota)
        code = _AT_ONCE if held else module.CODE
        terms.append(
            Terms(
                name=name if len(quotas) == 1 else f"{name}-{quota.span.replace(' ', '-')}",
                rule_id=f"{scope_text(name if scope is None else scope)}:{code}{module.shape(params)}",
                algorithm=module.NAMES[0],
                params=params,
                window_us=module.window_us(params),
                quota=quota,
                count_denied=counted,
                on_store_failure=on_store_failure,
                refund_when=refund_when,
                held=held,
                ban=ban,
                tier=tier,
                message=message,
                on_denied=on_denied,
                cost_after=cost_after,
                unit=unit,
            )
        )
    if once_per is None:
        return tuple(terms)
    # In few bytes, and aligned to the first request: a fixed window.
    longest = max(quotas, key=lambda quota: quota.period_us)
    [record] = make_terms(
        f"{name}-once",
        (Quota(REQUESTS, longest.period),),
        algorithm="fixed-window",
        scope=f"{name if scope is None else scope}-once",
        on_store_failure=on_store_failure,
    )
    record = record._replace(shadow=True, group=record.name, per=once_per)
    return tuple([each._replace(once=record) for each in terms])


_present: Final[dict[Terms, Terms]] = {}


@lru_cache(maxsize=_MOST)  # asked for each limit that is used once
def is_dated(terms: tuple[Terms, ...]) -> bool:
    """True if some of these terms have windows that end with the calendar: then `present` makes those of a request."""
    return any([each.quota.calendar is not None for each in terms])


def present(terms: tuple[Terms, ...], now: int, ahead: int) -> tuple[Terms, ...]:
    """Return the same terms, and for those with a Calendar the terms of the window at this time of the calendar, which
    is `ahead` of the store's clock. They are the same objects until the window ends.
    """
    found = []
    for each in terms:
        dated = each if each.quota.calendar is None else calendar.present(_present.get(each, each), now, ahead)
        if dated is not each:
            if len(_present) >= _MOST:
                _present.clear()
            _present[each] = dated
        found.append(dated)
    return tuple(found)


def read(given: object) -> Quotas:
    """Return the quotas, or the Concurrency, of a rule, from a Quota, several Quotas, a Concurrency or a text.

    Every quota that a user writes is read here. Raises QuotaError for any other value.
    """
    if isinstance(given, str):
        return _parsed(given)
    if isinstance(given, Quota):
        return (given,)
    if isinstance(given, Concurrency):
        return given
    if isinstance(given, (tuple, list)) and given and all(isinstance(quota, Quota) for quota in given):
        return tuple(given)
    if isinstance(given, (tuple, list)) and given and all(isinstance(quota, str) for quota in given):
        expected = f'write one text: "{"; ".join(given)}"'
        raise QuotaError("quota", given, problem="several texts", expected=expected)
    expected = 'give a Quota or text like "10/minute"'
    if isinstance(given, Mapping):
        expected = "give Tiers(…) for a table of quotas; in a file write its dotted name, as shop.limits.tiers"
    raise QuotaError("quota", given, problem="not a quota", expected=expected)


@lru_cache(maxsize=4096)  # cached, because a function of the request returns the same few texts again and again
def _parsed(text: str) -> Quotas:
    return Concurrency.parse(text) if Concurrency.is_meant(text) else Quota.parse_all(text)


def _check_apart(quotas: tuple[Quota, ...]) -> None:
    if len(quotas) == 1:
        return
    wrong = partial(QuotaError, "quota", "; ".join(map(str, quotas)))
    if len(set(quotas)) < len(quotas):
        raise wrong(problem="the same quota twice", expected="leave out one of the two")
    if len({quota.span for quota in quotas}) < len(quotas):
        raise wrong(problem="two quotas over the same period", expected="keep the smaller quota")


def whole_cost(what: str, cost: object) -> int:
    """Return the cost. Raises RuleError unless the cost is a whole number of units, 0 or more."""
    if not isinstance(cost, int) or isinstance(cost, bool) or cost < 0:
        raise RuleError(what, cost, problem="not a whole number of units", expected="give an int, 0 or more")
    if cost > MAX_LIMIT:
        raise RuleError(what, cost, problem="above any limit", expected=f"give at most {MAX_LIMIT}")
    return int(cost)


def scope_text(scope: str) -> str:
    """Return the text of a scope in a key: the scope if it is short and plain, or else its digest."""
    return scope if re.fullmatch(_PLAIN, scope) else f"~{digest(scope)}"

"""From quotas to terms: what is the same in every check of a rule, or of a limiter's call, under one name.

This module knows values and the names of the algorithms; nothing of rules, stores or HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from sluicegate.algorithms import DEFAULT, find
from sluicegate.concurrency import Concurrency, concurrency
from sluicegate.errors import QuotaError, RuleError
from sluicegate.identity import digest
from sluicegate.plan import Terms
from sluicegate.quota import MAX_LIMIT, Quota

QuotaSpec = Quota | Concurrency | str | Sequence[Quota]
Quotas = tuple[Quota, ...] | Concurrency

_AT_ONCE: Final = "at"  # in keys, where others have the code of their algorithm
_PLAIN: Final = r"[A-Za-z0-9_.\-]{0,64}"


@lru_cache(maxsize=4096)  # what is remembered under terms is found again, though a quota be made for each request
def make_terms(
    name: str,
    quotas: Quotas,
    *,
    algorithm: str,
    scope: str | None = None,
    counted: bool = False,
    on_store_failure: str | None = None,
    lease: int = 1,
    refund_when: Callable[..., bool] | None = None,
    ban: Terms | None = None,
) -> tuple[Terms, ...]:
    """Terms for each quota of one name. Several quotas tell themselves apart by their periods.

    A Concurrency is a strict log of what is held, in which the lease is the window, whatever the algorithm.
    """
    held = isinstance(quotas, Concurrency)
    if isinstance(quotas, Concurrency):
        quotas, algorithm = (quotas.quota,), DEFAULT
    module = find(algorithm)
    _check_apart(quotas)
    terms = []
    for quota in quotas:
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
                lease=min(lease, params[0]),
                refund_when=refund_when,
                held=held,
                ban=ban,
            )
        )
    return tuple(terms)


def read(given: Any) -> Quotas:
    """One or several quotas, or a Concurrency, from whatever says so."""
    held = concurrency(given)
    return quotas(given) if held is None else held


def quotas(given: Any) -> tuple[Quota, ...]:
    """One or several quotas from whatever says so: a Quota, text, or a sequence of Quota."""
    if isinstance(given, Quota):
        return (given,)
    if concurrency(given) is not None:
        problem = "so many at once, where so many per time are meant"
        raise QuotaError("quota", given, problem=problem, expected="give it to a rule, to @limit or to hold")
    if isinstance(given, str):
        return _read(given)
    if isinstance(given, (tuple, list)) and given and all(isinstance(quota, Quota) for quota in given):
        return tuple(given)
    raise QuotaError("quota", given, problem="not a quota", expected='give a Quota or text like "10/minute"')


_read: Final = lru_cache(maxsize=4096)(Quota.parse_all)  # a function of the request tells the same again and again


def _check_apart(quotas: tuple[Quota, ...]) -> None:
    if len({quota.span for quota in quotas}) < len(quotas):
        raise QuotaError(
            "quota", "; ".join(map(str, quotas)), problem="two quotas over the same period", expected="keep the smaller"
        )


def whole_cost(what: str, cost: object) -> int:
    """The cost itself; RuleError unless it is a whole number of units, 0 or more."""
    if not isinstance(cost, int) or isinstance(cost, bool) or cost < 0:
        raise RuleError(what, cost, problem="not a whole number of units", expected="give an int, 0 or more")
    if cost > MAX_LIMIT:
        raise RuleError(what, cost, problem="above any limit", expected=f"give at most {MAX_LIMIT}")
    return int(cost)


def scope_text(scope: str) -> str:
    """A scope as it stands in a key: plain words as they are, everything else by its digest."""
    return scope if re.fullmatch(_PLAIN, scope) else f"~{digest(scope)}"

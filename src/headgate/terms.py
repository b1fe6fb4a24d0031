"""From quotas to terms: what is the same in every check of a rule, or of a limiter's call, under one name.

This module knows values and the names of the algorithms; nothing of rules, stores or HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from headgate.algorithms import find
from headgate.errors import QuotaError
from headgate.identity import digest
from headgate.plan import Terms
from headgate.quota import Quota

QuotaSpec = Quota | str | Sequence[Quota]

_PLAIN: Final = r"[A-Za-z0-9_.\-]{0,64}"


@lru_cache(maxsize=4096)  # what is remembered under terms is found again, though a quota be made for each request
def make_terms(
    name: str,
    quotas: tuple[Quota, ...],
    *,
    algorithm: str,
    scope: str | None = None,
    counted: bool = False,
    on_store_failure: str | None = None,
    lease: int = 1,
    shadow: bool = False,
    refund_when: Callable[..., bool] | None = None,
    held: bool = False,
    ban: Terms | None = None,
) -> tuple[Terms, ...]:
    """Terms for each quota of one name. Several quotas tell themselves apart by their periods."""
    module = find(algorithm)
    if len({quota.span for quota in quotas}) < len(quotas):
        raise QuotaError(
            "quota", "; ".join(map(str, quotas)), problem="two quotas over the same period", expected="keep the smaller"
        )
    terms = []
    for quota in quotas:
        params = module.params(quota)
        terms.append(
            Terms(
                name=name if len(quotas) == 1 else f"{name}-{quota.span.replace(' ', '-')}",
                rule_id=f"{scope_text(name if scope is None else scope)}:{module.CODE}{module.shape(params)}",
                algorithm=module.NAMES[0],
                params=params,
                window_us=module.window_us(params),
                quota=quota,
                count_denied=counted,
                on_store_failure=on_store_failure,
                lease=min(lease, params[0]),
                shadow=shadow,
                refund_when=refund_when,
                held=held,
                ban=ban,
            )
        )
    return tuple(terms)


def quotas(given: Any) -> tuple[Quota, ...]:
    """One or several quotas from whatever says so: a Quota, text, or a sequence of Quota."""
    if isinstance(given, Quota):
        return (given,)
    if isinstance(given, str):
        return Quota.parse_all(given)
    if isinstance(given, (tuple, list)) and given and all(isinstance(quota, Quota) for quota in given):
        return tuple(given)
    raise QuotaError("quota", given, problem="not a quota", expected='give a Quota or text like "10/minute"')


def scope_text(scope: str) -> str:
    """A scope as it stands in a key: plain words as they are, everything else by its digest."""
    return scope if re.fullmatch(_PLAIN, scope) else f"~{digest(scope)}"

"""Throttle classes for Django REST framework, on the engine and the settings of `sluicegate.django`.

    REST_FRAMEWORK = {
        "DEFAULT_THROTTLE_CLASSES": ["sluicegate.drf.AnonRateThrottle", "sluicegate.drf.UserRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "100/day", "user": "10/min; 1000/day"},
    }

They have the names, attributes and methods of REST framework's own classes. REST framework asks them after it has
authenticated the request, so they know the users of tokens. All throttles of a view are charged in one plan.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, cast

from sluicegate.errors import needs
from sluicegate.plan import Decision
from sluicegate.web.bound import Bound

with needs("drf"):
    from rest_framework import throttling
    from rest_framework.exceptions import APIException
    from rest_framework.settings import api_settings

    from sluicegate.django.request import native_request
    from sluicegate.django.throttles import RateThrottle, Theirs, decide, refusal, state_for, wait_after

__all__ = ["AnonRateThrottle", "Refused", "ScopedRateThrottle", "SimpleRateThrottle", "UserRateThrottle"]

_DECIDED: Final = "_sluicegate_decided"


class Refused(APIException):  # type: ignore[misc]  # REST framework has no types
    """A refusal that is no 429: 503 if the store is down and a rule says "deny", 403 for a client on the deny list."""

    def __init__(self, decision: Decision) -> None:
        self.status_code, self.wait, text = refusal(decision)  # REST framework makes `Retry-After` of the wait
        super().__init__(text, "refused")


class SimpleRateThrottle(RateThrottle, throttling.SimpleRateThrottle):  # type: ignore[misc]
    """The base of the throttle classes, and of your own: `get_cache_key` returns who is counted, or None for no limit.

    `sluicegate.django.throttles.RateThrottle` has the attributes. `decision` is what was decided about the request.
    """

    framework = throttling.SimpleRateThrottle
    decision: Decision | None = None

    def proxies(self) -> int | None:
        """Return REST framework's setting NUM_PROXIES."""
        return cast("int | None", api_settings.NUM_PROXIES)

    def prepare(self, view: object) -> bool:
        """Find the rate for this view. Return False if there is none."""
        return self.rate is not None

    def allow_request(self, request: object, view: object) -> bool:
        """Charge the request, together with the other throttles of the view. True if it may pass."""
        asked = self._rule(request, view)
        state = state_for(request) if asked else None
        if state is None:
            return True
        decided: dict[Hashable, Decision] = vars(request).setdefault(_DECIDED, {})
        (budget,) = asked
        if budget not in decided:
            for other in _others(view):
                asked |= other._rule(request, view)
            decisions = decide(native_request(request, "throttle"), state, [*asked.values()])
            decided.update(zip(asked, decisions, strict=True))
        found = self.decision = decided.pop(budget)
        if found.allowed:
            return self.throttle_success()
        if refusal(found)[0] != 429:
            raise Refused(found)
        return bool(self.throttle_failure())

    def wait(self) -> float | None:
        """Return the seconds until the next request passes; None if none ever does."""
        return None if self.decision is None else wait_after(self.decision)

    def _rule(self, request: object, view: object) -> dict[Hashable, tuple[Bound, ...]]:
        """Return the rule for this request by its budget; nothing if there is no limit.

        REST framework asks other instances than those of `_others`. Equal budgets show that two of them are the same
        throttle: a view may have several of one class.
        """
        if not self.prepare(view):
            return {}
        self.key = self.get_cache_key(request, view)
        if self.key is None:
            return {}
        bounds = self.bounds(request, self.key)
        terms = tuple([bound.terms for bound in bounds])
        return {(type(self), terms, repr(self.key)): bounds}  # its text, because a cache key may be any object


class AnonRateThrottle(throttling.AnonRateThrottle, SimpleRateThrottle):  # type: ignore[misc]
    """Limits clients that are not signed in, by address. The scope is "anon"."""

    standard = "ip", throttling.AnonRateThrottle.get_cache_key


class UserRateThrottle(throttling.UserRateThrottle, SimpleRateThrottle):  # type: ignore[misc]
    """Limits signed-in users, and other clients by address. The scope is "user"."""

    standard = "user", throttling.UserRateThrottle.get_cache_key


class ScopedRateThrottle(SimpleRateThrottle):
    """Limits the views that have a `throttle_scope`, each scope by its rate in `DEFAULT_THROTTLE_RATES`."""

    scope_attr = throttling.ScopedRateThrottle.scope_attr
    get_cache_key = throttling.ScopedRateThrottle.get_cache_key
    standard = "user", get_cache_key

    def __init__(self) -> None:
        """Do nothing: the view has the scope, and the scope has the rate."""

    def prepare(self, view: object) -> bool:
        """Find the rate of the view's scope. Return False if the view has none."""
        self.scope = getattr(view, self.scope_attr, None)
        if not self.scope:
            return False
        self.rate = self.get_rate()
        self.num_requests, self.duration = self.parse_rate(self.rate)
        return super().prepare(view)


def _others(view: Theirs) -> list[SimpleRateThrottle]:
    """Return the throttles of a view that can be charged with the first: those whose `allow_request` is unchanged."""
    found = view.get_throttles() if hasattr(view, "get_throttles") else ()
    return [each for each in found if getattr(type(each), "allow_request", None) is SimpleRateThrottle.allow_request]

"""Throttle classes for Django Ninja, on the engine and the settings of `sluicegate.django`.

    from sluicegate.ninja import AuthRateThrottle

    @api.get("/reports", auth=tokens, throttle=[AuthRateThrottle("10/min; 1000/day")])
    def reports(request): ...

They have the names, attributes and methods of Ninja's own classes. Ninja asks them after it has authenticated the
request, so they know the users of tokens. Ninja asks one after the other: if one refuses, the charges of those before
it are given back, and those after it are not charged.
"""

from __future__ import annotations

from threading import local
from typing import Final

from sluicegate.errors import needs
from sluicegate.plan import Decision, RateLimitExceeded

with needs("ninja"):
    from django.http import HttpRequest
    from ninja import throttling
    from ninja.conf import settings as ninja_settings

    from sluicegate.django.throttles import RateThrottle, decide, refusal, state_for, wait_after

__all__ = ["AnonRateThrottle", "AuthRateThrottle", "SimpleRateThrottle", "UserRateThrottle"]

_last: Final = local()
"""The throttle that this thread has asked last, and its decision. Ninja has one throttle for all requests, and calls
`wait` right after `allow_request`."""


class SimpleRateThrottle(RateThrottle, throttling.SimpleRateThrottle):
    """The base of the throttle classes, and of your own: `get_cache_key` returns who is counted, or None for no limit.

    `sluicegate.django.throttles.RateThrottle` has the attributes.
    """

    framework = throttling.SimpleRateThrottle

    def proxies(self) -> int | None:
        """Return Ninja's setting NINJA_NUM_PROXIES."""
        return ninja_settings.NUM_PROXIES

    def allow_request(self, request: HttpRequest) -> bool:
        """Charge the request. True if it may pass.

        In an async operation Ninja calls this on the event loop. Then a server's reply blocks the loop.
        """
        if self.rate is None:
            return True
        key = self.get_cache_key(request)
        state = None if key is None else state_for(request)
        if key is None or state is None:
            return True
        (decision,) = decide(request, state, [self.bounds(request, key)])
        _last.asked = self, decision
        if decision.allowed:
            return self.throttle_success()
        if refusal(decision)[0] != 429 and state.can_refuse and not state.alone:
            raise RateLimitExceeded(decision)  # Ninja has no other answer than 429; the middleware has
        return self.throttle_failure()

    def wait(self) -> float | None:
        """Return the seconds until the next request passes; None if none ever does."""
        asked: tuple[object, Decision | None] = getattr(_last, "asked", (None, None))
        return None if asked[0] is not self or asked[1] is None else wait_after(asked[1])


class AnonRateThrottle(throttling.AnonRateThrottle, SimpleRateThrottle):
    """Limits clients that are not signed in, by address. The scope is "anon"."""

    standard = "ip", throttling.AnonRateThrottle.get_cache_key


class AuthRateThrottle(throttling.AuthRateThrottle, SimpleRateThrottle):
    """Limits by the text of `request.auth`, and other clients by address. The scope is "auth"."""


class UserRateThrottle(throttling.UserRateThrottle, SimpleRateThrottle):
    """Limits by `request.user`, and other clients by address. The scope is "user"."""

    standard = "user", throttling.UserRateThrottle.get_cache_key

"""The system checks of `settings.SLUICEGATE`, which `manage.py check` runs. They connect to no server.

Importing `sluicegate.django` registers them (the registry is a set, so only once). An id never changes and is never
used again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Final

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.urls import get_resolver
from django.utils.module_loading import import_string

from sluicegate.django import conf
from sluicegate.django.overview import MAKES_THROTTLE, endpoint_rules, has_own_code
from sluicegate.django.throttles import RateThrottle
from sluicegate.errors import AsyncMismatchError, ConfigurationError, SettingsError, name_here
from sluicegate.rules.key import reads_user
from sluicegate.rules.rule import Rule
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.settings import Settings

Finding = tuple[str, str, str]
"""The id of a check (an error if it has an E, else a warning), the message and the hint."""

_AUTH: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
_OTHERS: Final = {"django_ratelimit", "django_smart_ratelimit"}  # they read settings that begin with RATELIMIT_
_CACHE: Final = "django.middleware.cache.UpdateCacheMiddleware"


@register("sluicegate")
def check(app_configs: Sequence[object] | None = None, **options: object) -> list[CheckMessage]:
    """Return what is wrong or doubtful in the project, in the order of the ids."""
    settings: Settings | None = None
    unreadable = ""
    try:
        settings = conf.read_settings()
    except ConfigurationError as error:
        unreadable = str(error)
    bad_throttle, idle_throttles = _throttles()
    found = [
        *_errors(settings, unreadable, bad_throttle),
        *_warnings(settings, conf.raw_settings(), conf.ancestors(django_settings.MIDDLEWARE)),
        *_of_others(idle_throttles),
    ]
    return [(Error if ".E" in name else CheckWarning)(text, hint=hint, id=name) for name, text, hint in found]


def _errors(settings: Settings | None, unreadable: str, bad_throttle: str) -> Iterator[Finding]:
    """Yield what would be an error at the start, or at requests. `settings` is None if they cannot be read."""
    unusable, bad_view = ("", "") if settings is None else _gate_errors(settings)
    if unreadable:
        hint = "Use the options of sluicegate.Settings; upper and lower case are both accepted."
        yield "sluicegate.E001", f"settings.SLUICEGATE is wrong: {unreadable}", hint
    if unusable:
        hint = "A rule does not suit its algorithm or names an unknown route, or STORE cannot be opened."
        yield conf.UNUSABLE, f"settings.SLUICEGATE cannot be used: {unusable}", hint
    if bad_throttle:
        text = f"A class in DEFAULT_THROTTLE_CLASSES of REST framework cannot be used: {bad_throttle}"
        hint = "Each request would be an error. Correct DEFAULT_THROTTLE_RATES, or the rate or scope of the class."
        yield "sluicegate.E003", text, hint
    elif bad_view:  # most views have the default throttles: their error is reported once
        hint = "Each request to it would be an error. sluicegate check prints the rules of every route."
        yield "sluicegate.E004", f"The limits of a view cannot be used: {bad_view}", hint


def _warnings(settings: Settings | None, raw: object, middleware: Sequence[str]) -> Iterator[Finding]:
    """Yield what is doubtful in the settings and in MIDDLEWARE."""
    installed = middleware.count(conf.OURS)
    if installed and not raw:
        hint = 'Set SLUICEGATE = {"DEFAULT_LIMITS": ["1000/day"]}, or silence this check.'
        text = "RateLimitMiddleware is installed, but settings.SLUICEGATE is empty: only decorators limit."
        yield "sluicegate.W001", text, hint
    if settings is not None and _AUTH not in middleware and _names_user(settings, raw):
        text = 'A key in settings.SLUICEGATE is "user", but AuthenticationMiddleware is missing: the address is used.'
        hint = 'Install it, use the key "ip", or silence this check if something else sets request.user.'
        yield "sluicegate.W002", text, hint
    if installed > 1:
        text = f"RateLimitMiddleware is {installed} times in MIDDLEWARE; only the first one limits."
        yield "sluicegate.W003", text, "Keep one."
    proxied = django_settings.USE_X_FORWARDED_HOST or django_settings.SECURE_PROXY_SSL_HEADER is not None
    if installed and proxied and settings is not None and settings.trusted_proxies is None:
        text = "The project is behind a proxy that SLUICEGATE does not name: all anonymous users share one budget."
        hint = 'Set SLUICEGATE["TRUSTED_PROXIES"] to its network or to the number of proxies.'
        yield "sluicegate.W004", text, hint
    if installed and _CACHE in middleware[: middleware.index(conf.OURS)]:
        text = (
            "UpdateCacheMiddleware comes before RateLimitMiddleware: the cache stores each page after the limiter, and "
            "a page that the cache answers before the limiter is not counted."
        )
        hint = "Put RateLimitMiddleware before it, or silence this check if pages from the cache need no limit."
        yield "sluicegate.W005", text, hint
    if not installed and settings is not None and (settings.default_limits or settings.rules):
        text = "DEFAULT_LIMITS or RULES are in settings.SLUICEGATE, but RateLimitMiddleware is missing"
        hint = f'Add "{conf.ADVISED}" to MIDDLEWARE, or silence this check if something else enforces them.'
        yield "sluicegate.W006", f"{text}: they limit nothing.", hint


def _of_others(idle_throttles: str) -> Iterator[Finding]:
    """Yield what has no effect here: throttles without a rate, and the settings of another limiter."""
    if idle_throttles:
        text = "Classes in DEFAULT_THROTTLE_CLASSES of REST framework have no rate, so they limit nothing"
        hint = "Give each a rate in DEFAULT_THROTTLE_RATES, or silence this check."
        yield "sluicegate.W007", f"{text}: {idle_throttles}.", hint
    if left_over := _left_over():
        text = f"Settings of a rate limiter that the project does not import have no effect here: {left_over}."
        hint = "Write them into SLUICEGATE by the name that the message gives, and delete them; or silence this check."
        yield "sluicegate.W008", text, hint


def _names_user(settings: Settings, raw: object) -> bool:
    """True if the settings name the key "user". It is the default key too, but a project that gives no key gets no
    warning.
    """
    if not isinstance(raw, Mapping):
        return False
    written = settings.key if any(str(option).lower() == "key" for option in raw) else None
    keys = [written, *(rule.key for rule in settings.rules if isinstance(rule, Rule))]
    return any(key is not None and reads_user(key) for key in keys)


def _left_over() -> str:
    """Return the settings of django-ratelimit or django-smart-ratelimit, with their names here; "" if it is in use."""
    names = {name: name_here(name) for name in dir(django_settings) if name.startswith("RATELIMIT_")}
    found = [f"{name} is {here[0].upper() or 'gone'} ({here[1]})" for name, here in names.items() if here is not None]
    if found and getattr(django_settings, "ROOT_URLCONF", None):
        _ = get_resolver().url_patterns  # imports the views, and with them a limiter that they use
    return "" if _OTHERS & sys.modules.keys() else ", ".join(found)


def _throttles() -> tuple[str, str]:
    """Return the error of the first default throttle that cannot be used, and the names of those without a rate."""
    bad, idle = "", []
    for kind in _default_throttles():
        try:
            if not _is_limiting(kind):
                idle.append(kind.__name__)
        except (ConfigurationError, ImproperlyConfigured) as error:
            if not has_own_code(kind, MAKES_THROTTLE):  # else it may differ when the application runs
                bad = bad or str(error)
    return bad, ", ".join(idle)


def _default_throttles() -> Iterator[type[RateThrottle]]:
    """Return the classes of ours, and subclasses of them, that every view of REST framework has."""
    given = (getattr(django_settings, "REST_FRAMEWORK", None) or {}).get("DEFAULT_THROTTLE_CLASSES") or ()
    for path in (given,) if isinstance(given, str) else given:
        with suppress(ImportError):  # REST framework reports it
            found = import_string(path)
            if isinstance(found, type) and issubclass(found, RateThrottle):
                yield found


def _is_limiting(kind: type[RateThrottle]) -> bool:
    """True if a throttle class has a rate. Raises ConfigurationError or ImproperlyConfigured for a wrong one."""
    if kind is RateThrottle:
        problem, expected = "the common part of all throttle classes", "name one of sluicegate.drf"
        raise SettingsError("DEFAULT_THROTTLE_CLASSES", kind, problem=problem, expected=expected)
    throttle = kind()
    if hasattr(throttle, "rate"):
        return throttle.rate is not None
    # Each view has its own scope. The rates of the settings may be of other classes: E004 reads those that views use.
    if throttle.THROTTLE_RATES is not throttle.framework.THROTTLE_RATES:
        for rate in throttle.THROTTLE_RATES.values():
            throttle.parse_rate(rate)
    return True


def _gate_errors(settings: Settings) -> tuple[str, str]:
    """Return the error of making a gate from these settings, and that of a view's rules; "" for none. It opens no
    connection.

    Whether WSGI or ASGI will serve is not known here: functions that need ASGI are tried with an async gate.
    """
    try:
        try:
            with closing(conf.make_sync(settings)) as gate:
                return "", _view_error(gate)
        except AsyncMismatchError:
            return "", _view_error(conf.make_async(settings))
    except ConfigurationError as error:
        return str(error), ""


def _view_error(gate: Gate | AsyncGate) -> str:
    """Return the first error of the limits and throttles of the views; "" if none. Raises AsyncMismatchError."""
    try:
        if getattr(django_settings, "ROOT_URLCONF", None):
            endpoint_rules(gate)
    except AsyncMismatchError:
        raise
    except (ConfigurationError, ImproperlyConfigured) as error:
        return "; ".join([str(error), *getattr(error, "__notes__", ())])
    return ""

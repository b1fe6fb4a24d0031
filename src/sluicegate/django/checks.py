"""The system checks of `settings.SLUICEGATE`, which `manage.py check` runs. They connect to no server.

Importing `sluicegate.django` registers them (the registry is a set, so only once). An id never changes and is never
used again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from operator import attrgetter
from typing import Any, Final, NamedTuple

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


class Facts(NamedTuple):
    """The facts that the checks examine."""

    raw_settings: Any  # settings.SLUICEGATE, unchanged
    read: Settings | None  # None if it cannot be read
    unreadable: str  # the error, if the settings cannot be read
    unusable: str  # the error, if the settings can be read but no gate can be made from them
    middleware: tuple[str, ...]  # "module.Class" of all middleware and of their base classes
    bad_view: str  # the error, if the limits or the throttles of a view cannot be used
    bad_throttle: str  # the error, if a default throttle of REST framework cannot be used
    idle_throttles: str  # the default throttles of REST framework that have no rate
    left_over: str  # the settings of another rate limiter, and their names here

    @property
    def installed(self) -> int:
        """How many times RateLimitMiddleware is installed."""
        return self.middleware.count(conf.OURS)


class Row(NamedTuple):
    """One check: an error if its id has an E, else a warning. `message` is a format string; its fields are facts."""

    id: str
    applies: Callable[[Facts], object]
    message: str
    hint: str


_AUTH: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
_OTHERS: Final = {"django_ratelimit", "django_smart_ratelimit"}
_CACHE: Final = "django.middleware.cache.UpdateCacheMiddleware"


def _is_empty(facts: Facts) -> bool:
    return facts.installed > 0 and not facts.raw_settings


def _is_installed_twice(facts: Facts) -> bool:
    return facts.installed > 1


def _has_no_users(facts: Facts) -> bool:
    """True if the settings name the key "user" although AuthenticationMiddleware is missing.

    The default key is "user" too, but a project that gives no key gets no warning.
    """
    if _AUTH in facts.middleware or not isinstance(facts.raw_settings, Mapping) or facts.read is None:
        return False
    written = facts.read.key if any(str(option).lower() == "key" for option in facts.raw_settings) else None
    rules = [rule for rule in facts.read.rules if isinstance(rule, Rule)]
    return any(key is not None and reads_user(key) for key in (written, *(rule.key for rule in rules)))


def _trusts_no_proxy(facts: Facts) -> bool:
    """True if other settings of the project trust a proxy, but SLUICEGATE names none."""
    trusting = django_settings.USE_X_FORWARDED_HOST or django_settings.SECURE_PROXY_SSL_HEADER is not None
    return facts.installed > 0 and bool(trusting) and facts.read is not None and facts.read.trusted_proxies is None


def _is_inside_cache(facts: Facts) -> bool:
    """True if Django's per-site cache, or a subclass of it, stores responses after the limiter has added its fields."""
    outside = facts.middleware[: facts.middleware.index(conf.OURS)] if facts.installed else ()
    return _CACHE in outside


def _is_missing(facts: Facts) -> bool:
    """True if the settings have limits that only the middleware enforces, and it is missing."""
    return facts.installed == 0 and facts.read is not None and bool(facts.read.default_limits or facts.read.rules)


def _has_bad_view(facts: Facts) -> bool:
    """True if there is an error that is not that of a default throttle, which most views have."""
    return bool(facts.bad_view) and not facts.bad_throttle


CHECKS: Final = (
    Row(
        id="sluicegate.E001",
        applies=attrgetter("unreadable"),
        message="settings.SLUICEGATE is wrong: {unreadable}",
        hint="Use the options of sluicegate.Settings; upper and lower case are both accepted.",
    ),
    Row(
        id=conf.UNUSABLE,
        applies=attrgetter("unusable"),
        message="settings.SLUICEGATE cannot be used: {unusable}",
        hint="A rule does not suit its algorithm or names an unknown route, or STORE cannot be opened.",
    ),
    Row(
        id="sluicegate.E003",
        applies=attrgetter("bad_throttle"),
        message="A class in DEFAULT_THROTTLE_CLASSES of REST framework cannot be used: {bad_throttle}",
        hint="Each request would be an error. Correct DEFAULT_THROTTLE_RATES, or the rate or scope of the class.",
    ),
    Row(
        id="sluicegate.E004",
        applies=_has_bad_view,
        message="The limits of a view cannot be used: {bad_view}",
        hint="Each request to it would be an error. sluicegate check prints the rules of every route.",
    ),
    Row(
        id="sluicegate.W001",
        applies=_is_empty,
        message="RateLimitMiddleware is installed, but settings.SLUICEGATE is empty: only decorators limit.",
        hint='Set SLUICEGATE = {"DEFAULT_LIMITS": ["1000/day"]}, or silence this check.',
    ),
    Row(
        id="sluicegate.W002",
        applies=_has_no_users,
        message='A key in settings.SLUICEGATE is "user", but AuthenticationMiddleware is missing: the address is used.',
        hint='Install it, use the key "ip", or silence this check if something else sets request.user.',
    ),
    Row(
        id="sluicegate.W003",
        applies=_is_installed_twice,
        message="RateLimitMiddleware is {installed} times in MIDDLEWARE; only the first one limits.",
        hint="Keep one.",
    ),
    Row(
        id="sluicegate.W004",
        applies=_trusts_no_proxy,
        message="The project is behind a proxy that SLUICEGATE does not name: all anonymous users share one budget.",
        hint='Set SLUICEGATE["TRUSTED_PROXIES"] to its network or to the number of proxies.',
    ),
    Row(
        id="sluicegate.W005",
        applies=_is_inside_cache,
        message="UpdateCacheMiddleware comes before RateLimitMiddleware: the cache stores each page after the "
        "limiter, and a page that the cache answers before the limiter is not counted.",
        hint="Put RateLimitMiddleware before it, or silence this check if pages from the cache need no limit.",
    ),
    Row(
        id="sluicegate.W006",
        applies=_is_missing,
        message="DEFAULT_LIMITS or RULES are in settings.SLUICEGATE, but RateLimitMiddleware is missing: they limit "
        "nothing.",
        hint=f'Add "{conf.ADVISED}" to MIDDLEWARE, or silence this check if something else enforces them.',
    ),
    Row(
        id="sluicegate.W007",
        applies=attrgetter("idle_throttles"),
        message="Classes in DEFAULT_THROTTLE_CLASSES of REST framework have no rate, so they limit nothing: "
        "{idle_throttles}.",
        hint="Give each a rate in DEFAULT_THROTTLE_RATES, or silence this check.",
    ),
    Row(
        id="sluicegate.W008",
        applies=attrgetter("left_over"),
        message="Settings of a rate limiter that the project does not import have no effect here: {left_over}.",
        hint="Write them into SLUICEGATE by the name that the message gives, and delete them; or silence this check.",
    ),
)


@register("sluicegate")
def check(app_configs: Sequence[Any] | None = None, **options: Any) -> list[CheckMessage]:
    facts = _facts()
    fields = {**facts._asdict(), "installed": facts.installed}
    return [
        (Error if ".E" in row.id else CheckWarning)(row.message.format_map(fields), hint=row.hint, id=row.id)
        for row in CHECKS
        if row.applies(facts)
    ]


def _facts() -> Facts:
    read, unreadable, unusable, bad_view = None, "", "", ""
    try:
        read = conf.read_settings()
    except ConfigurationError as error:
        unreadable = str(error)
    if read is not None:
        unusable, bad_view = _gate_errors(read)
    bad_throttle, idle_throttles = _throttles()
    return Facts(
        conf.raw_settings(),
        read,
        unreadable,
        unusable=unusable,
        middleware=tuple(conf.ancestors(django_settings.MIDDLEWARE)),
        bad_view=bad_view,
        bad_throttle=bad_throttle,
        idle_throttles=idle_throttles,
        left_over=_left_over(),
    )


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


def _default_throttles() -> Iterator[Any]:
    """Return the classes of ours, and subclasses of them, that every view of REST framework has."""
    given = (getattr(django_settings, "REST_FRAMEWORK", None) or {}).get("DEFAULT_THROTTLE_CLASSES") or ()
    for path in (given,) if isinstance(given, str) else given:
        with suppress(ImportError):  # REST framework reports it
            found = import_string(path)
            if isinstance(found, type) and issubclass(found, RateThrottle):
                yield found


def _is_limiting(kind: Any) -> bool:
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

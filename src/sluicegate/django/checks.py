"""System checks: what `manage.py check` says of `settings.SLUICEGATE`. One table; no server is asked.

Registered when `sluicegate.django` is imported (the registry is a set, so once). Ids are stable and never used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as Caution

from sluicegate.django import gates
from sluicegate.django.places import names_of_routes
from sluicegate.django.users import asks_for_user
from sluicegate.errors import ColourError, ConfigurationError
from sluicegate.gate import AsyncGate, Gate
from sluicegate.rule import Rule
from sluicegate.settings import Settings


class Facts(NamedTuple):
    """What the checks look at."""

    given: Any  # settings.SLUICEGATE as it stands
    read: Settings | None  # None if it cannot be read
    unreadable: str  # why not
    unusable: str  # why it can be read but no gate be made of it
    middleware: tuple[str, ...]  # "module.Class" of all middleware and their ancestors, one entry for each of ours

    @property
    def installed(self) -> int:
        """How many times our middleware is."""
        return self.middleware.count(gates.OURS)


class Row(NamedTuple):
    """One check. In `message` stand the names of facts."""

    id: str
    kind: type[Error] | type[Caution]
    applies: Callable[[Facts], bool]
    message: str
    hint: str


_AUTH: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
_CACHE: Final = "django.middleware.cache.UpdateCacheMiddleware"


def _is_unreadable(facts: Facts) -> bool:
    return facts.unreadable != ""


def _is_unusable(facts: Facts) -> bool:
    return facts.unusable != ""


def _says_nothing(facts: Facts) -> bool:
    return facts.installed > 0 and not facts.given


def _has_no_users(facts: Facts) -> bool:
    """Whether somebody has written "user" (which is also what no key at all means) where nobody can sign in."""
    if _AUTH in facts.middleware or not isinstance(facts.given, Mapping) or facts.read is None:
        return False
    written = facts.read.key if any(str(option).lower() == "key" for option in facts.given) else None
    rules = [rule for rule in facts.read.rules if isinstance(rule, Rule)]
    return any(key is not None and asks_for_user(key) for key in (written, *(rule.key for rule in rules)))


def _stands_twice(facts: Facts) -> bool:
    return facts.installed > 1


def _trusts_no_proxy(facts: Facts) -> bool:
    """Whether the project trusts a proxy in other matters, but not about addresses."""
    trusting = django_settings.USE_X_FORWARDED_HOST or django_settings.SECURE_PROXY_SSL_HEADER is not None
    return facts.installed > 0 and bool(trusting) and facts.read is not None and facts.read.trusted_proxies is None


def _stands_inside_a_cache(facts: Facts) -> bool:
    """Whether Django's per-site cache, or one made of it, gets the responses that the limiter has worked on."""
    outside = facts.middleware[: facts.middleware.index(gates.OURS)] if facts.installed else ()
    return _CACHE in outside


CHECKS: Final = (
    Row(
        id="sluicegate.E001",
        kind=Error,
        applies=_is_unreadable,
        message="settings.SLUICEGATE is wrong: {unreadable}",
        hint="Names and values are those of sluicegate.settings.Settings, in capitals or not.",
    ),
    Row(
        id=gates.UNUSABLE,
        kind=Error,
        applies=_is_unusable,
        message="settings.SLUICEGATE cannot be used: {unusable}",
        hint="A rule does not suit the algorithm or names no route, or no store can be opened from what STORE says.",
    ),
    Row(
        id="sluicegate.W001",
        kind=Caution,
        applies=_says_nothing,
        message="RateLimitMiddleware is installed, but settings.SLUICEGATE says nothing: only decorators limit.",
        hint='Set SLUICEGATE = {"DEFAULT_LIMITS": ["1000/day"]}, or silence this check.',
    ),
    Row(
        id="sluicegate.W002",
        kind=Caution,
        applies=_has_no_users,
        message='A key in settings.SLUICEGATE is "user", but there is no AuthenticationMiddleware: it means addresses.',
        hint='Install it, use the key "ip", or silence this check if something else sets request.user.',
    ),
    Row(
        id="sluicegate.W003",
        kind=Caution,
        applies=_stands_twice,
        message="RateLimitMiddleware stands {installed} times in MIDDLEWARE; only the first limits.",
        hint="Leave one.",
    ),
    Row(
        id="sluicegate.W004",
        kind=Caution,
        applies=_trusts_no_proxy,
        message="The project is behind a proxy that settings.SLUICEGATE does not name: all strangers share one budget.",
        hint='Set SLUICEGATE["TRUSTED_PROXIES"] to its network or to the number of proxies.',
    ),
    Row(
        id="sluicegate.W005",
        kind=Caution,
        applies=_stands_inside_a_cache,
        message="UpdateCacheMiddleware stands before RateLimitMiddleware: the cache gets each page after the limiter, "
        "and a page that is answered before the limiter is not counted.",
        hint="Put RateLimitMiddleware before it, or silence this check if pages from the cache may be free.",
    ),
)


@register("sluicegate")
def check(app_configs: Sequence[Any] | None = None, **options: Any) -> list[CheckMessage]:
    """Compare the project's settings with the table."""
    facts = _facts()
    told = {**facts._asdict(), "installed": facts.installed}
    return [row.kind(row.message.format_map(told), hint=row.hint, id=row.id) for row in CHECKS if row.applies(facts)]


def _facts() -> Facts:
    read, unreadable, unusable = None, "", ""
    try:
        read = gates.read_settings()
    except ConfigurationError as error:
        unreadable = str(error)
    if read is not None:
        unusable = _why_unusable(read)
    return Facts(
        gates.given(),
        read,
        unreadable,
        unusable=unusable,
        middleware=tuple(gates.ancestors(django_settings.MIDDLEWARE)),
    )


def _why_unusable(settings: Settings) -> str:
    """What a gate says of these settings. Making one opens no connection; which colour will serve is not known here."""
    routed = any(isinstance(rule, Rule) and rule.route is not None for rule in settings.rules)
    try:
        gate = Gate(settings)
        gate.close()
        if routed:
            gate.check_routes(names_of_routes())
    except ColourError:
        pass
    except ConfigurationError as error:
        return str(error)
    else:
        return ""
    try:
        later = AsyncGate(settings)
        if routed:
            later.check_routes(names_of_routes())
    except ConfigurationError as error:
        return str(error)
    return ""

"""The gates of this process: one sync and one async, made from `settings.SLUICEGATE` when first needed.

Middleware and decorators share them, so they share budgets. When the setting changes (`override_settings`) they are
closed, and the next request makes new ones. This module knows Django's settings, signals and routes; no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import lru_cache
from threading import RLock
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from sluicegate.awaiting import answers_later, called_at_once
from sluicegate.django.places import names_of_routes
from sluicegate.errors import SettingsError
from sluicegate.gate import AsyncGate, Gate
from sluicegate.settings import Settings, hide

SETTING: Final = "SLUICEGATE"
UNUSABLE: Final = "sluicegate.E002"
"""The system check that reports such routes too."""

OURS: Final = "sluicegate.django.middleware.RateLimitMiddleware"

_lock: Final = RLock()  # the settings may import modules that ask for a gate themselves
_closing: Final[set[asyncio.Task[None]]] = set()  # a loop keeps only weak references to its tasks


class _Opened:
    """What this process has opened."""

    sync: Gate | None = None
    later: AsyncGate | None = None


def given() -> Any:
    """What the project's settings say; None if they say nothing."""
    found = getattr(django_settings, SETTING, None)
    return hide(found) if isinstance(found, Mapping) else found


def read_settings() -> Settings:
    """The project's settings, read now. A project without SLUICEGATE has no rules but those of its decorators."""
    found = given()
    if isinstance(found, Settings):
        return found
    if found is not None and not isinstance(found, Mapping):
        expected = 'give a dict like {"STORE": "redis://…", "DEFAULT_LIMITS": ["1000/day"]}'
        raise SettingsError(SETTING, found, problem="not a dict", expected=expected)
    return Settings.from_mapping({} if found is None else found, source=f"settings.{SETTING}")


def sync_gate() -> Gate:
    """The gate of requests that are answered synchronously."""
    gate = _Opened.sync
    if gate is None:
        with _lock:
            gate = _Opened.sync = _Opened.sync or make_sync(read_settings())
    return gate


def async_gate() -> AsyncGate:
    """The gate of requests that are answered on an event loop."""
    gate = _Opened.later
    if gate is None:
        with _lock:
            gate = _Opened.later = _Opened.later or make_async(read_settings())
    return gate


def make_sync(settings: Settings) -> Gate:
    """A gate for WSGI, where nobody could await what `on_denied` leaves."""
    if answers_later(settings.on_denied):
        raise called_at_once("on_denied", settings.on_denied)
    gate = Gate(settings)
    _check_routes(gate)
    return gate


def make_async(settings: Settings) -> AsyncGate:
    """A gate for ASGI."""
    gate = AsyncGate(settings)
    _check_routes(gate)
    return gate


def _check_routes(gate: Gate | AsyncGate) -> None:
    """Refuse a rule whose route is not in the URLconf. A project with the route in another URLconf silences the
    check."""
    if gate.knows_routes and UNUSABLE not in django_settings.SILENCED_SYSTEM_CHECKS:
        gate.check_routes(names_of_routes())


@lru_cache(maxsize=16)
def has_middleware(paths: tuple[str, ...]) -> bool:
    """Whether our middleware, or one that is made of it, is among these."""
    return OURS in ancestors(paths)


def ancestors(paths: Iterable[str]) -> list[str]:
    """The names of middleware and their ancestors, "module.Class" each."""
    names = []
    for path in paths:
        try:
            found = import_string(path)
        except ImportError:  # Django says so itself, when the server starts
            continue
        names += [f"{cls.__module__}.{cls.__qualname__}" for cls in getattr(found, "__mro__", ())]
    return names


def reload(*, setting: str, **_: Any) -> None:
    """Close what was made from settings that no longer hold."""
    if setting != SETTING:
        return
    with _lock:
        sync, later = _Opened.sync, _Opened.later
        _Opened.sync = _Opened.later = None
    if sync is not None:
        sync.close()
    if later is not None:
        _close(later)


def _close(gate: AsyncGate) -> None:
    """Close an async gate from wherever the setting was changed."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        async_to_sync(gate.close)()
        return
    task = loop.create_task(gate.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


setting_changed.connect(reload, dispatch_uid="sluicegate.django.gates.reload")

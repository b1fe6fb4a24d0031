"""The two gates of a process, sync and async, made from `settings.SLUICEGATE` at first use.

The middleware and the decorators share them, so they share budgets. When the setting changes (`override_settings`),
the gates are closed, and the next request makes new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from threading import RLock
from typing import Final, TypeVar

from asgiref.sync import async_to_sync
from django.conf import settings as django_settings
from django.core.handlers.asgi import ASGIRequest
from django.core.signals import setting_changed
from django.http import HttpRequest
from django.utils.module_loading import import_string

from sluicegate.django.routes import names_of_routes
from sluicegate.errors import AsyncMismatchError, SettingsError
from sluicegate.runtime import fork
from sluicegate.stores.completion import running_loop, start
from sluicegate.stores.memory import AsyncMemoryStore
from sluicegate.stores.wrappers import PREFIX
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.settings import Settings, hide

SETTING: Final = "SLUICEGATE"  # the name in the settings of the project
UNUSABLE: Final = "sluicegate.E002"
"""The id of the system check that reports unknown routes too."""

OURS: Final = "sluicegate.django.middleware.RateLimitMiddleware"
ADVISED: Final = "sluicegate.django.RateLimitMiddleware"
"""The name of OURS in the documentation and in errors."""

AnyGate = TypeVar("AnyGate", Gate, AsyncGate)


class Gates:
    """The open gates of this process."""

    sync: Gate | None = None
    async_: AsyncGate | None = None
    loop: Gate | None = None
    lock = RLock()  # re-entrant: reading the settings may import modules that need a gate

    @classmethod
    def after_fork(cls) -> None:
        """Renew the lock. A gate is set in one step."""
        cls.lock = RLock()


fork.renew(Gates)


def raw_settings() -> object:
    """Return the value of `settings.SLUICEGATE`, with its secrets hidden; None if it is not set."""
    found = getattr(django_settings, SETTING, None)
    return hide(found) if isinstance(found, Mapping) else found


def read_settings() -> Settings:
    """Return the project's settings, read now. A project without SLUICEGATE has only the rules of its decorators."""
    found = raw_settings()
    if isinstance(found, Settings):
        return found
    if found is not None and not isinstance(found, Mapping):
        expected = 'give a dict like {"STORE": "redis://…", "DEFAULT_LIMITS": ["1000/day"]}'
        raise SettingsError(SETTING, found, problem="not a dict", expected=expected)
    return Settings.from_mapping(found or {}, source=f"settings.{SETTING}")


def sync_gate() -> Gate:
    """Return the gate for requests under WSGI."""
    return Gates.sync or _made("sync", lambda: make_sync(read_settings()))


def async_gate() -> AsyncGate:
    """Return the gate for requests under ASGI."""
    return Gates.async_ or _made("async_", lambda: make_async(read_settings()))


def gate_for(request: HttpRequest) -> Gate | AsyncGate:
    """Return the gate for a request."""
    return async_gate() if isinstance(request, ASGIRequest) else sync_gate()


def loop_gate() -> Gate:
    """Return the gate for synchronous code that runs on the event loop. It counts in the store of `async_gate`, and a
    server's reply blocks the loop.

    It is only for rules of its own: those of the settings may have async functions.
    """
    return Gates.loop or _made("loop", lambda: _make_loop(async_gate()))


def _made(name: str, make: Callable[[], AnyGate]) -> AnyGate:
    """Make a gate, unless another thread has made it by now."""
    with Gates.lock:
        gate: AnyGate = getattr(Gates, name) or make()
        setattr(Gates, name, gate)
    return gate


def check_can_wait(name: str, given: object, *, instead: str) -> None:
    """Raise AsyncMismatchError on an event loop, where synchronous code cannot wait."""
    if running_loop() is not None:
        problem, expected = "called on the event loop, where it cannot wait", f"write await {instead}"
        raise AsyncMismatchError(name, given, problem=problem, expected=expected)


def check_is_async(name: str, given: object, *, instead: str) -> None:
    """Raise AsyncMismatchError without an event loop: nothing can await what is called."""
    if running_loop() is None:
        problem, expected = "called in a plain function, where nothing can await it", f"write {instead}"
        raise AsyncMismatchError(name, given, problem=problem, expected=expected)


def _make_loop(gate: AsyncGate) -> Gate:
    settings = replace(gate.settings, rules=(), default_limits=(), on_denied=None)
    memory = gate.limiter.store
    if isinstance(memory, AsyncMemoryStore):
        settings = replace(settings, store=memory.memory, clock=None, prefix=PREFIX)
    return Gate(settings, awaits_answers=True)


def make_sync(settings: Settings) -> Gate:
    """Return a gate for WSGI. An async `on_denied` raises an error, because WSGI cannot await it."""
    return _with_known_routes(Gate(settings))


def make_async(settings: Settings) -> AsyncGate:
    """Return a gate for ASGI."""
    return _with_known_routes(AsyncGate(settings))


def _with_known_routes(gate: AnyGate) -> AnyGate:
    """Return the gate. Raise an error for a rule whose route is not in the URLconf.

    A project that has the route in another URLconf silences the system check, and then this one is skipped too.
    """
    if gate.knows_routes and UNUSABLE not in django_settings.SILENCED_SYSTEM_CHECKS:
        gate.check_routes(names_of_routes())
    return gate


@lru_cache(maxsize=16)
def has_middleware(paths: tuple[str, ...]) -> bool:
    """True if RateLimitMiddleware or a subclass of it is among these."""
    return OURS in ancestors(paths)


def ancestors(paths: Iterable[str]) -> list[str]:
    """Return the names of middleware classes and their base classes, each as "module.Class"."""
    names = []
    for path in paths:
        try:
            found = import_string(path)
        except ImportError:  # Django reports it when the server starts
            continue
        names += [f"{cls.__module__}.{cls.__qualname__}" for cls in getattr(found, "__mro__", ())]
    return names


def reload(*, setting: str, **_: object) -> None:
    """Close the gates when `settings.SLUICEGATE` changes."""
    if setting != SETTING:
        return
    with Gates.lock:
        opened, under_asgi = (Gates.sync, Gates.loop), Gates.async_
        Gates.sync = Gates.async_ = Gates.loop = None
    for gate in opened:
        if gate is not None:
            gate.close()
    if under_asgi is None:
        return
    if running_loop() is None:
        async_to_sync(under_asgi.close)()
    else:
        start(under_asgi.close())


setting_changed.connect(reload, dispatch_uid="sluicegate.django.conf.reload")

"""The gate and the endpoints of a Django project, for commands that show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import django
from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from sluicegate.django import conf
from sluicegate.django.routes import endpoints
from sluicegate.django.throttles import RateThrottle
from sluicegate.errors import AsyncMismatchError
from sluicegate.web.bound import Bound, EndpointRules, unique
from sluicegate.web.gate import AsyncGate, Gate

_DRF: Final = "rest_framework.views"  # where its own get_throttles is


def project_gate() -> Gate | AsyncGate:
    """Return the gate of the project: that for ASGI if its settings have async functions."""
    if not apps.ready:
        django.setup()
    try:
        return conf.sync_gate()
    except AsyncMismatchError:
        return conf.async_gate()


def endpoint_rules(gate: Gate | AsyncGate) -> list[EndpointRules]:
    """Return the rules of every route and of its throttles. Without the middleware, decorators enforce themselves."""
    whole = conf.has_middleware(tuple(django_settings.MIDDLEWARE))
    rules, known = [], dict[object, tuple[Bound, ...]]()  # a throttle has one rule in all views
    for each in endpoints():
        bounds = gate.bind(each) if whole else gate.bind_own(each, each.marks)
        throttled: list[Bound] = []
        is_known = True
        seen: Any = each.view
        func = seen and seen[0]
        try:
            for throttle in _throttles(func):
                same = type(throttle), throttle.scope, repr(throttle.rate)
                known[same] = known.get(same) or throttle.declared(gate)
                throttled += known[same]
        except ImproperlyConfigured as error:  # of REST framework, which names no view
            error.add_note(f"in the throttles of {each.label}")
            raise
        except Exception:  # noqa: BLE001  # of a view or a throttle that needs a request
            is_known = False
        named, own = unique([*bounds, *throttled]), len(bounds)
        chooses = getattr(getattr(func, "cls", None), "get_throttles", None)
        is_known = is_known and getattr(chooses, "__module__", _DRF) == _DRF
        rules.append(EndpointRules(each, named) if is_known else EndpointRules(each, named[:own], named[own:]))
    return rules


def _throttles(func: Any) -> Iterator[Any]:
    """Yield the throttles of sluicegate in the `throttle_classes` of a view of REST framework, in order."""
    if hasattr(getattr(func, "cls", None), "throttle_classes"):
        view = func.cls(**func.initkwargs)  # an action of a viewset may have its own
        for kind in view.throttle_classes:
            if isinstance(kind, type) and issubclass(kind, RateThrottle):
                throttle: Any = kind()
                if throttle.prepare(view):
                    yield throttle


def project_name() -> str:
    """Return the name of the module with the project's settings."""
    return str(getattr(django_settings, "SETTINGS_MODULE", None) or "settings")

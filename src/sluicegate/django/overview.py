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
from sluicegate.errors import AsyncMismatchError, ConfigurationError, within
from sluicegate.web.bound import Bound, EndpointRules, unique
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import AsyncGate, Gate

_DRF: Final = "rest_framework.views"  # where its own get_throttles is


def project_rules() -> tuple[Gate | AsyncGate, list[EndpointRules]]:
    """Return the gate of the project and the rules of its endpoints: for ASGI if the project has async functions."""
    if not apps.ready:
        django.setup()
    try:
        return conf.sync_gate(), endpoint_rules(conf.sync_gate())
    except AsyncMismatchError:
        return conf.async_gate(), endpoint_rules(conf.async_gate())


def endpoint_rules(gate: Gate | AsyncGate) -> list[EndpointRules]:
    """Return the rules of every route and of its throttles. Without the middleware, decorators enforce themselves."""
    whole = conf.has_middleware(tuple(django_settings.MIDDLEWARE))
    rules, known = [], dict[object, tuple[Bound, ...]]()
    for each in endpoints():
        bounds = gate.bind(each) if whole else gate.bind_own(each, each.marks)
        throttled, are_all = _throttled(each, gate, known)
        named, own = unique([*bounds, *throttled]), len(bounds)
        rules.append(EndpointRules(each, named) if are_all else EndpointRules(each, named[:own], named[own:]))
    return rules


def _throttled(
    endpoint: Endpoint, gate: Gate | AsyncGate, known: dict[object, tuple[Bound, ...]]
) -> tuple[list[Bound], bool]:
    """Return the rules of a view's throttles, and False if the view or a throttle chooses them for each request.

    A throttle has one rule in all views, which `known` keeps. `get_throttles` is not called: it may read the request.
    """
    view: Any = endpoint.view
    func = view and view[0]
    place = f"the throttles of {endpoint.label}"
    found: list[Bound] = []
    try:
        with within(place):
            for throttle in _throttles(func):
                same = type(throttle), throttle.scope, repr(throttle.rate)
                known[same] = known.get(same) or throttle.declared(gate)
                found += known[same]
    except ConfigurationError:
        raise
    except ImproperlyConfigured as error:  # of REST framework, which names no view
        error.add_note(f"in {place}")
        raise
    except Exception:  # noqa: BLE001  # of a view or a throttle that needs a request
        return found, False
    chooses = getattr(getattr(func, "cls", None), "get_throttles", None)
    return found, getattr(chooses, "__module__", _DRF) == _DRF


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

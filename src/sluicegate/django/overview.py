"""The gate and the endpoints of a Django project, for commands that show them."""

from __future__ import annotations

import django
from django.apps import apps
from django.conf import settings as django_settings

from sluicegate.django import conf
from sluicegate.django.routes import endpoints
from sluicegate.errors import AsyncMismatchError
from sluicegate.web.bound import EndpointRules
from sluicegate.web.gate import AsyncGate, Gate


def project_gate() -> Gate | AsyncGate:
    """Return the gate of the project: that for ASGI if its settings have async functions."""
    if not apps.ready:
        django.setup()
    try:
        return conf.sync_gate()
    except AsyncMismatchError:
        return conf.async_gate()


def endpoint_rules(gate: Gate | AsyncGate) -> list[EndpointRules]:
    """Return the rules of every route. Without the middleware, decorators enforce only themselves."""
    whole = conf.has_middleware(tuple(django_settings.MIDDLEWARE))
    return [EndpointRules(each, gate.bind(each) if whole else gate.bind_own(each, each.marks)) for each in endpoints()]


def project_name() -> str:
    """Return the name of the module with the project's settings."""
    return str(getattr(django_settings, "SETTINGS_MODULE", None) or "settings")

"""The gate and the endpoints of a Django project, for commands that show them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

import django
from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from sluicegate.django import conf
from sluicegate.django.routes import endpoints, view_of
from sluicegate.django.throttles import RateThrottle, Theirs
from sluicegate.errors import AsyncMismatchError, ConfigurationError, within
from sluicegate.web.bound import Bound, EndpointRules, unique
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import AsyncGate, Gate

_FRAMEWORKS: Final = frozenset(("django", "rest_framework", "sluicegate", "builtins"))  # what is not the project's own

# What decides about throttles, in the order of REST framework's `dispatch`, `initial` and `check_throttles`.
_CHOICE: Final = frozenset(("get_throttles",))
_BEFORE_THROTTLES: Final = _CHOICE | {
    *("__getattribute__", "__init__", "setup", "dispatch", "default_response_headers", "allowed_methods"),
    *("_allowed_methods", "initialize_request", "get_parser_context", "get_parsers", "get_authenticators"),
    *("get_content_negotiator", "initial", "get_format_suffix", "perform_content_negotiation", "get_renderers"),
    *("determine_version", "perform_authentication", "check_permissions", "get_permissions", "check_throttles"),
    "throttle_classes",
}
MAKES_THROTTLE: Final = frozenset(
    ("__getattribute__", "__new__", "__init__", "get_rate", "parse_rate", "rate", "scope", "THROTTLE_RATES")
)
_ASKS_THROTTLE: Final = frozenset(("allow_request", "prepare", "get_cache_key", "bounds"))


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
    An error is raised only if it is sure to be one of a request too: what the project's own code may change is chosen.
    """
    func = view_of(endpoint)
    cls: Theirs = getattr(func, "cls", None)
    found: list[Bound] = []
    if not hasattr(cls, "throttle_classes"):
        return found, True
    place = f"the throttles of {endpoint.label}"
    view: Theirs = cls
    kinds: list[object] = []
    asked = False
    try:
        view = cls(**vars(func)["initkwargs"])  # an action of a viewset may have its own
        kinds += view.throttle_classes
        with within(place):
            # As REST framework does: it makes all throttles, and then asks one after the other.
            ours = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, RateThrottle)]
            throttles: list[Theirs] = [kind() for kind in ours]
            asked = True
            for throttle in throttles:
                if throttle.prepare(view):
                    same = type(throttle), throttle.scope, repr(throttle.rate)
                    known[same] = known.get(same) or throttle.declared(gate)
                    found += known[same]
    except AsyncMismatchError:
        raise
    except (ConfigurationError, ImproperlyConfigured) as error:
        if _may_change(cls, view, kinds, asked=asked):
            return found, False
        if not isinstance(error, ConfigurationError):  # of REST framework, which names no view
            error.add_note(f"in {place}")
        raise
    except Exception:  # noqa: BLE001  # of a view or a throttle that needs a request
        return found, False
    return found, not has_own_code(cls, _CHOICE)


def _may_change(cls: type, view: object, kinds: list[object], *, asked: bool) -> bool:
    """True if the project's own code runs before REST framework meets the error in one of these throttles.

    Permissions are asked before throttles, and get the view.
    """
    scopes = {scope for kind in kinds if isinstance(scope := getattr(kind, "scope_attr", None), str)}
    if has_own_code(cls, _BEFORE_THROTTLES | scopes):
        return True
    if any([not isinstance(kind, type) or _is_own(kind) for kind in getattr(view, "permission_classes", ())]):
        return True
    names = MAKES_THROTTLE | _ASKS_THROTTLE if asked else MAKES_THROTTLE
    return any([not isinstance(kind, type) or has_own_code(kind, names) for kind in kinds])


def has_own_code(cls: type, names: AbstractSet[str]) -> bool:
    """True if the project's own code, or a package's, stands behind one of these names of a class.

    A value, such as a text or a list, is the same for each request; a function or a property need not be.
    """
    for base in cls.__mro__:
        for name in names & vars(base).keys():
            value = vars(base)[name]
            if hasattr(type(value), "__get__") and (_is_own(base) or _is_own(value)):
                return True
    return False


def _is_own(thing: object) -> bool:
    """True if a class or a function is neither of Django, nor of REST framework, nor of this library."""
    module = getattr(thing, "__module__", None) or "builtins"  # those of C have none
    return str(module).partition(".")[0] not in _FRAMEWORKS


def project_name() -> str:
    """Return the name of the module with the project's settings."""
    return str(getattr(django_settings, "SETTINGS_MODULE", None) or "settings")

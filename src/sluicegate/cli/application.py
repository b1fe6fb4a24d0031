"""The application that a command is about: its limiters, each with its settings, its gate and its endpoints.

An application is found by its name, as servers find it: `module:app`, `module:factory()`, a file, or Django's settings.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final, NamedTuple

import click

from sluicegate.asgi import RateLimitMiddleware as AsgiMiddleware
from sluicegate.asgi import chain
from sluicegate.errors import ConfigurationError, SluicegateError
from sluicegate.web.bound import EndpointRules, unique
from sluicegate.web.charge import bounds_of
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.marks import EXEMPT
from sluicegate.web.settings import Settings
from sluicegate.wsgi import RateLimitMiddleware as WsgiMiddleware

DJANGO: Final = "DJANGO_SETTINGS_MODULE"
_FACTORIES: Final = ("create_app", "make_app")
_NAMES: Final = ("app", "application", *_FACTORIES)  # what servers look for in a module
_HINT: Final = "give module:app, module:factory(), a Python file or a TOML file with settings"


class LoadError(click.UsageError):
    """The named application cannot be found or imported."""

    def __init__(self, name: str, problem: str, expected: str = _HINT) -> None:
        super().__init__(f"application {name!r}: {problem}; {expected}")


class Limiting(NamedTuple):
    """One limiter of an application. Most applications have one."""

    settings: Settings
    gate: Gate | AsyncGate
    endpoints: tuple[EndpointRules, ...]


class Application(NamedTuple):
    """An application, for a command."""

    name: str  # as it was given
    limiters: tuple[Limiting, ...]


def load(name: str) -> Application:
    """Return the application of this name. Raises LoadError, or the ConfigurationError that its start would raise."""
    if name.endswith(".toml"):
        return Application(name, (_of_settings(Settings.from_toml(name)),))
    return application_of(_imported(name), name)


def load_django() -> Application:
    """Return the Django project that the variable DJANGO_SETTINGS_MODULE names."""
    name = os.environ.get(DJANGO, "")
    try:
        from sluicegate.django import overview

        gate, endpoints = overview.project_rules()
    except ConfigurationError:
        raise
    except Exception as error:  # its row in tests/test_house.py says why
        raise LoadError(name, _cause(error), f"repair the project, or correct {DJANGO}") from error
    return Application(overview.project_name(), (Limiting(gate.settings, gate, tuple(endpoints)),))


def application_of(app: object, name: str) -> Application:
    """Return the limiters of an application object of any framework."""
    if isinstance(app, Settings):
        return Application(name, (_of_settings(app),))
    if type(app).__module__.startswith("django.core.handlers"):
        return load_django()._replace(name=name)
    found = tuple(_limiters(app, {"type": "http", "app": app}, seen=set()))
    if not found:
        problem = f"this {type(app).__name__} has no limiter"
        raise LoadError(name, problem, "add RateLimitMiddleware, or for Flask call RateLimiter(app)")
    return Application(name, found)


def _limiters(app: object, scope: dict[str, object], *, seen: set[int]) -> Iterator[Limiting]:
    """Yield the limiters of an application, of what it wraps, and of what it mounts, from the outside in."""
    for each in _layers(app):
        if id(each) in seen:
            return
        seen.add(id(each))
        if isinstance(each, AsgiMiddleware):
            rules = each.endpoint_rules(scope)  # first: it raises the error of a wrong start
            yield Limiting(each.settings, each.gate, tuple([_with_charges(one, each.gate) for one in rules]))
        elif isinstance(each, WsgiMiddleware):
            yield Limiting(each.settings, each.gate, tuple(each.endpoint_rules()))
        for installed in getattr(each, "extensions", {}).get("sluicegate", ()):  # of Flask
            yield Limiting(installed.settings, installed.gate, tuple(installed.endpoint_rules()))
        routes = getattr(each, "routes", None)
        for route in routes if isinstance(routes, list) else ():
            endpoint = getattr(route, "endpoint", None)
            below = {**scope, "endpoint": getattr(route, "app", None) if endpoint is None else endpoint}
            yield from _limiters(getattr(route, "app", None), below, seen=seen)


def _with_charges(rules: EndpointRules, gate: AsyncGate) -> EndpointRules:
    """Add the rules that dependencies of FastAPI charge, after those of the middleware."""
    endpoint = rules.endpoint
    if not endpoint.charges or EXEMPT in endpoint.marks:
        return rules
    view = Endpoint(label=endpoint.label, route=endpoint.route)
    charged = [bound for rule in endpoint.charges for bound in bounds_of(gate, rule, view)]
    return EndpointRules(endpoint, unique([*rules.bounds, *charged]))


def _layers(app: Any) -> Iterator[Any]:
    """Yield an application and what it wraps. Starlette builds its middleware at the first request: it is built now."""
    if hasattr(app, "build_middleware_stack") and getattr(app, "middleware_stack", None) is None:
        app.middleware_stack = app.build_middleware_stack()
    for each in chain(app):
        yield each
        wrapped = vars(each).get("wsgi_app") if hasattr(each, "__dict__") else None  # what wraps a Flask application
        if wrapped is not None:
            yield from _layers(wrapped)


def _of_settings(settings: Settings) -> Limiting:
    """Return settings without an application: every rule, wherever it would hold."""
    try:
        gate: Gate | AsyncGate = Gate(settings)
    except ConfigurationError:
        gate = AsyncGate(settings)  # its functions may be async
    names = {name for rule in settings.rules for name in getattr(rule, "route", None) or ()}
    anywhere = Endpoint("settings", names=tuple(names))
    return Limiting(settings, gate, (EndpointRules(anywhere, gate.bind(anywhere)),))


def _imported(name: str) -> object:
    """Import an application object by its name."""
    module, _, attribute = name.rpartition(":") if ":" in name[2:] else (name, "", "")  # C:\ is no module
    path = Path(module)
    if path.suffix == ".py" or os.sep in module:
        if not path.exists():
            raise LoadError(name, "no such file")
        module = _searched(path.resolve())
    try:
        found = importlib.import_module(module)
        return _attribute(found, attribute, name)
    except (SluicegateError, click.ClickException):
        raise
    except Exception as error:  # its row in tests/test_house.py says why
        is_unknown = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        raise LoadError(name, _cause(error), _HINT if is_unknown else "repair the application") from error


def _searched(path: Path) -> str:
    """Let a file be imported, and return the name of its module: in a package with the package's name, as servers name
    it. The ids of budgets contain the name.
    """
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists():
        names.insert(0, folder.name)
        folder = folder.parent
    if len(names) > 1:
        sys.path.append(str(path.parent))  # for a package that imports its modules without its own name
    sys.path.insert(0, str(folder))
    return ".".join(names).removesuffix(".__init__")


def _attribute(module: object, attribute: str, name: str) -> object:
    """Return a module's application. A name with parentheses, or of a function without parameters, is a factory."""
    if not attribute:
        attribute = next((each for each in _NAMES if hasattr(module, each)), "")
        if not attribute:
            raise LoadError(name, f"the module has none of {', '.join(_NAMES)}")
    found: Any = module
    for part in attribute.removesuffix("()").split("."):
        if not hasattr(found, part):
            raise LoadError(name, f"there is no {part!r} in it")
        found = getattr(found, part)
    parameters = signature(found).parameters if hasattr(found, "__code__") else None
    if attribute in _FACTORIES and parameters and any(each.default is each.empty for each in parameters.values()):
        problem = f"{attribute} needs arguments ({', '.join(parameters)})"
        raise LoadError(name, problem, "give module:app of a module that calls it, or a factory without arguments")
    is_factory = parameters is not None and not parameters
    return found() if attribute.endswith("()") or is_factory else found


def _cause(error: Exception) -> str:
    """Return the text of an error, and the last line of code in a file that it came through."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    frames = [frame for frame in frames if frame.filename not in (__file__, importlib.__file__)]
    line = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    said = "; ".join([str(error), *getattr(error, "__notes__", ())])
    return f"{type(error).__name__}: {said}{line}"

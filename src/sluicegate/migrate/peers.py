"""The tables: each name of the other libraries that can be written here, and what becomes of its arguments.

The pages under "From another library" in the documentation have what stays by hand, and what differs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import libcst as cst

from sluicegate.errors import QuotaError, name_here
from sluicegate.migrate.convert import chosen, conversions, function, is_function, options
from sluicegate.migrate.rewrite import FIRST, Arguments, Construct, Expression, Left, Site, code, constant, last, source
from sluicegate.quota import Quota

_NO_SCOPE: Final = "give it a scope: there its routes share a budget, without a scope each has its own"
_BY_PATH: Final = 'there each value of a path parameter has a budget; for that write key=("ip", "path:name")'
_BY_VIEW: Final = "there all values of a path parameter share a budget; with this key each has its own"

# Flask-Limiter and slowapi: one came from the other

_OF_LIMITER: Final = (
    "key_func=key default_limits application_limits=application headers_enabled=headers strategy=algorithm "
    "storage_uri=store swallow_errors=on_store_failure key_prefix=prefix enabled in_memory_fallback_enabled= app=first "
    "key_style"
)
_OF_LIMIT: Final = "per_method methods error_message exempt_when=when cost override_defaults deduct_when=charge_when"
_OF_SHARED: Final = f"limit_value=first scope key_func=key error_message exempt_when=when cost {_OF_LIMIT}"


def _quotas(given: Expression) -> Expression:
    """Write a list of texts as one text."""
    texts = [constant(each.value) for each in getattr(given, "elements", ())]
    return code('"' + "; ".join(map(str, texts)) + '"') if texts and ... not in texts else given


def _like_flask(limiter: str, web: str, *, needs: int, view: str, beside: bool) -> dict[str, Construct]:
    """Return a table. With defaults for each view, the key of a limiter has the view in it, and a limit replaces them.

    `view` reads the view of a request; `beside` says whether the application limits hold beside a limit, and the
    defaults for the methods that a limit does not have.
    """

    def limiters(arguments: Arguments, site: Site) -> None:
        by_view = constant(arguments.pop("key_style", code('"url"'))) == "endpoint"
        if not beside and site.project.has_paths and by_view is site.project.has_defaults:
            site.notes.append(_BY_VIEW if by_view else _BY_PATH)
        site.keys[:] = [key := arguments.get("key", code('"user"'))]
        application = arguments.pop("application", None)
        if site.project.has_defaults:
            arguments["key"] = code(f"({{key}}, lambda request: {view})", key=key)
            if application is not None:
                rule = f'[{site.use("sluicegate.Rule")}(name="application", quota={{quota}}, key={{key}})]'
                arguments["rules"] = code(rule, quota=_quotas(application), key=key)
        elif application is not None:
            arguments["default_limits"] = application
        if site.project.has_defaults or (application is not None and not beside):
            arguments["limits_replace_defaults"] = code("True")

    def limits(arguments: Arguments, site: Site) -> None:
        replaces = source(arguments.get("override_defaults", code("True"))) != "False"
        if beside and site.project.has_defaults and "methods" in arguments and replaces:
            site.notes.append("there the other methods keep the default limits: give them one more @limit")

    def shared(arguments: Arguments, site: Site) -> None:
        limits(arguments, site)
        if site.project.has_defaults and "key" not in arguments:
            if not site.keys and site.project.key is None:
                raise Left("give it the key of the limiter, without the view: views of one scope share a budget")
            arguments["key"] = site.keys[0] if site.keys else code(site.project.key or "")

    def exempts(arguments: Arguments, site: Site) -> None:
        if beside and site.project.has_blueprint:
            site.notes.append("in a blueprint with a limit, which holds there: give exempt defaults_only=True")

    to_here = conversions(needs)
    no_flags = {"": chosen({}, "exempt(…, defaults_only=True) frees from the default limits alone")}
    return {
        "Limiter": Construct(limiter, options(_OF_LIMITER, to_here), limiters),
        "Limiter.limit": Construct(
            f"{web}.limit", options(f"limit_value=first key_func=key {_OF_LIMIT} scope=name", to_here), limits
        ),
        "Limiter.shared_limit": Construct(f"{web}.limit", options(_OF_SHARED, to_here), shared),
        "Limiter.exempt": Construct(f"{web}.exempt", options("obj=first flags=", no_flags), exempts),
    }


_FLASK: Final = {
    **_like_flask("flask.RateLimiter", "flask", needs=0, view="request.endpoint", beside=True),
    "Limiter.init_app": Construct(),
    "RateLimitExceeded": Construct("flask.RateLimited"),
}
_REMOVED: Final = ("SlowAPIMiddleware", "SlowAPIASGIMiddleware", "_rate_limit_exceeded_handler")
_SLOWAPI: Final = {
    **_like_flask("Settings", "{web}", needs=1, view="request.url.path", beside=False),
    "RateLimitExceeded": Construct("RateLimitExceeded"),
    **dict.fromkeys(_REMOVED, Construct(removed=True)),
}

# fastapi-limiter


def _written(call: cst.Call, site: Site) -> Expression:
    """Write a limiter of pyrate-limiter as the text of its quotas."""
    given = [each.value for each in call.args]
    if given and isinstance(given[0], (cst.List, cst.Tuple)):
        given[:1] = [each.value for each in given[0].elements]
    return code('"' + "; ".join(map(_rate, given)) + '"')


_PER: Final = re.compile(r"(?:\w+\.)*Rate\((\d+), (?:(\d+)|(?:\w+\.)*(SECOND|MINUTE|HOUR|DAY|WEEK)(?: \* (\d+))?)\)")


def _rate(given: Expression) -> str:
    found = _PER.fullmatch(source(given))
    if found is None:
        raise Left('write the rates as a quota: "2/minute; 100/day"')
    limit, milliseconds, unit, times = found.groups()
    if unit is None:
        return f"{limit} per {milliseconds} milliseconds"
    return f"{limit}/{unit.lower()}" if times is None else f"{limit} per {times} {unit.lower()}s"


def _by_address(arguments: Arguments, site: Site) -> None:
    """Give the key that is the default there. A limiter outside a route counts all of its routes together."""
    arguments.setdefault("key", code('"ip"'))
    name = last(arguments[FIRST]) if isinstance(arguments.get(FIRST), cst.Name) else ""
    if site.scopes and not name:
        name, site.scopes[0] = site.scopes[0], ""
        site.notes.extend([] if name else [_NO_SCOPE])
    if name:
        arguments["scope"] = code(f'"{name}"')


_FASTAPI_OPTIONS: Final = options("limiter=first identifier=key", {"key": function(1, is_key=True)})
_FASTAPI: Final = {
    "RateLimiter": Construct("fastapi.RateLimit", _FASTAPI_OPTIONS, _by_address),
    "skip_limiter": Construct("fastapi.exempt"),
}
_RATES: Final = ("Rate", "Duration", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK")
_PYRATE: Final = {"Limiter": Construct(quoted=_written), **dict.fromkeys(_RATES, Construct())}

# django-ratelimit

_RATE: Final = re.compile(r"(\d+)/(\d*)([smhd])?")  # as django-ratelimit reads it: the first letter of the unit
_KEYS: Final = {
    "ip": '"ip"',
    "user_or_ip": '"user"',
    "user": "lambda request: str(request.user.pk)",
    "get": 'lambda request: request.GET.get("{name}", "")',
    "post": 'lambda request: request.POST.get("{name}", "")',
    # Not "header:…": there all requests without the header share one budget.
    "header": 'lambda request: request.headers.get("{name}", "")',
}


def _rate_of_django(given: Expression, site: Site) -> Expression | None:
    """Write a rate. A text stays as it is if it means the same here: there "10/month" is 10 in a minute."""
    if is_function(given, site):
        return function(2, extra=1)(given, site)
    text = constant(given)
    if text is ... and isinstance(given, (cst.Name, cst.Attribute)):
        site.notes.append('see that its text means the same here: there "10/month" is 10 in a minute')
        return given
    found = _RATE.match(text) if isinstance(text, str) else None
    if found is None:
        raise Left('write the rate as a quota, "10/minute", or as a function of the request')
    meant = f"{found[1]}/{found[2]}{found[3] or 's'}"
    try:
        return given if Quota.parse(str(text)) == Quota.parse(meant) else code(f'"{meant}"')
    except QuotaError:
        raise Left("this rate is no quota; the setting deny refuses clients always") from None


def _key_of_django(given: Expression, site: Site) -> Expression | None:
    if is_function(given, site):
        return function(2, extra=1)(given, site)
    found = constant(given)
    kind, _, name = str(found).partition(":")
    if kind not in _KEYS:
        raise Left("give the function itself as key; it gets the request alone")
    return code(_KEYS[kind].replace("{name}", name))


def _methods(given: Expression, site: Site) -> Expression | None:
    name = last(given)
    if name in ("ALL", "None"):
        return None
    if name == "UNSAFE":
        return code('["DELETE", "PATCH", "POST", "PUT"]')
    return given if constant(given) is ... else code("[{given}]", given=given)


def _of_group(arguments: Arguments, site: Site) -> None:
    """Say that a group has a budget for each of its rates there."""
    if FIRST not in arguments:
        raise Left("without a rate it limits nothing; here each limit has a quota")
    group, rate = (source(arguments.get(name, code("None"))) for name in ("scope", FIRST))
    if group != "None" and site.project.groups.setdefault(group, rate) != rate:
        site.notes.append("there each rate of a group has its own budget: give this one another scope")


_TO_DJANGO: Final = {
    "key": _key_of_django, FIRST: _rate_of_django, "methods": _methods, "mode": chosen({True: None, False: "shadow"})
}  # fmt: skip
_DJANGO_OPTIONS: Final = options("group=scope key rate=first method=methods block=mode", _TO_DJANGO)
_DJANGO: Final = {
    "ratelimit": Construct("django.limit", _DJANGO_OPTIONS, _of_group),
    "RatelimitMiddleware": Construct("django.RateLimitMiddleware"),
    **dict.fromkeys(("ALL", "UNSAFE"), Construct()),
}

# REST framework

_THROTTLES: Final = ("AnonRateThrottle", "ScopedRateThrottle", "SimpleRateThrottle", "UserRateThrottle")

_TABLES: Final = {
    "flask_limiter": _FLASK, "slowapi": _SLOWAPI, "fastapi_limiter": _FASTAPI, "pyrate_limiter": _PYRATE,
    "django_ratelimit": _DJANGO, "rest_framework": {name: Construct(f"drf.{name}") for name in _THROTTLES},
}  # fmt: skip
CONSTRUCTS: Final[Mapping[str, Construct]] = {"django_ratelimit": Construct("sluicegate.django")} | {
    f"{root}.{name}": replace(construct, to=construct.to and f"sluicegate.{construct.to}")
    for root, constructs in _TABLES.items()
    for name, construct in constructs.items()
}
"""By the package and the name: what a name of another library becomes."""

MIDDLEWARES: Final = ("sluicegate.django.RateLimitMiddleware", "django_ratelimit.middleware.RatelimitMiddleware")

SETTINGS: Final = options(
    "RATELIMIT_ENABLE=ENABLED RATELIMIT_FAIL_OPEN=ON_STORE_FAILURE"
    " RATELIMIT_IPV4_MASK=IPV4_PREFIX RATELIMIT_IPV6_MASK=IPV6_PREFIX",
    {"ON_STORE_FAILURE": chosen({True: "allow", False: "deny"})},
)
"""By each setting of django-ratelimit: what it is in the dictionary SLUICEGATE."""

_KEYS_OF_CONFIG: Final = (
    "key_func=key default=default_limits enabled headers_enabled=headers strategy=algorithm "
    "storage_uri=store swallow_errors=on_store_failure key_prefix=prefix"
)
CONFIG: Final = {
    f"RATELIMIT_{name.upper()}": replace(option, to=f"SLUICEGATE_{option.to.upper()}")
    for name, option in options(_KEYS_OF_CONFIG, conversions(0)).items()
}
"""By each key of Flask-Limiter in Flask's configuration: the key here."""


INSIDE: Final = "write charge(request, …) for a limit inside a view"
DECISION: Final = "decision() and error.decision have rule, limit, remaining and retry_after"
_NOTES: Final = {  # other names → what to do
    "Ratelimited": "a refusal is answered with 429, and no exception comes here; on_denied makes another answer",
    "reset": "in tests use the fixture fresh_limits; for one client reset_all",
    "enabled": "the setting enabled; in tests use the fixture limits_off",
    "_rate_limit_exceeded_handler": "the middleware answers a refusal by itself",
    "_inject_headers": "leave it out: the middleware adds the header fields",
    "WebSocketRateLimiter": 'for each message write await charge(websocket, "10/second")',
    "get_remote_address": "request.remote_addr in Flask, request.client.host in Starlette and FastAPI",
    **dict.fromkeys(("RequestLimit", "current_limit", "current_limits", "view_rate_limit"), DECISION),
    **dict.fromkeys(("check", "is_ratelimited", "get_usage"), INSIDE),
}


def note_of(name: str) -> str:
    """Return what to do with a name that is not rewritten."""
    other = name_here(name) or ("", f'see {name} under "From another library" in the documentation')
    here, how = ("", _NOTES[name]) if name in _NOTES else other
    return f"here it is {here}: {how}" if here else how

"""How the value of an argument is written here: as it is, as another text, or as a function of the request."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import libcst as cst

from sluicegate.migrate.project import Function
from sluicegate.migrate.rewrite import FIRST, Convert, Expression, Left, Option, Site, code, constant, last, source


def options(names: str, conversions: Mapping[str, Convert]) -> dict[str, Option]:
    """Return the options of this text, in the order in which they may be given without a name: a name that is the same
    here, "there=here", or "there=" for what is not needed here. `conversions` are by the name here.
    """
    pairs = [each.partition("=") for each in names.split()]
    return {name: Option(to := here if other else name, conversions.get(to, same)) for name, other, here in pairs}


def same(given: Expression, site: Site) -> Expression | None:
    """Return the argument as it is."""
    return given


def chosen(values: Mapping[object, str | None], otherwise: str = "its value is no literal that is known") -> Convert:
    """Return a conversion of literals to texts, where None needs nothing. `otherwise` says why others stay."""

    def convert(given: Expression, site: Site) -> Expression | None:
        found = constant(given)
        if found not in values:
            raise Left(otherwise)
        text = values[found]
        return None if text is None else code(f'"{text}"')

    return convert


def function(needs: int, *, negated: bool = False, is_key: bool = False, extra: int = 0) -> Convert:
    """Return a conversion of a function to a function of the request.

    `needs` is the number of arguments of a function whose definition is not seen. The first `extra` of them are None
    here.
    """

    def convert(given: Expression, site: Site) -> Expression | None:
        if constant(given) is None:
            return None
        if is_key and site.names.get(given, "").endswith((".get_remote_address", ".get_ipaddr", ".default_identifier")):
            if site.names[given].endswith(".get_ipaddr"):
                site.notes.append("set trusted_proxies: get_ipaddr reads X-Forwarded-For, which any client can write")
            return code('"ip"')
        found = _function(given, site)
        if extra and found is not None and found.reads_first:
            raise Left("the function reads the group, which none gets here; write it as a function of the request")
        prefix = "not " if negated else ""
        if isinstance(given, cst.Lambda):
            names = [each.strip() for each in source(given.params).split(",")]
            if not set("=*/").isdisjoint(source(given.params)) or len([*filter(None, names)]) not in {extra, extra + 1}:
                raise Left("write it as a function of the request")
            name = (names[extra:] or ["request"])[0] or "request"
            body = given.body  # itself, not a copy in a template: a note may stand at a part of it
            if negated:
                body = cst.UnaryOperation(cst.Not(), body.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]))
            return cst.ensure_type(code(f"lambda {name}: x"), cst.Lambda).with_changes(body=body)
        # django-ratelimit gives both by position; slowapi gives a request to what names it.
        takes = needs if found is None or extra or "request" in found.names else min(needs, found.needs)
        if takes == 1 and not negated and not extra:
            return given
        call = f"{{given}}({', '.join([*(['None'] * extra), 'request'][-takes:] if takes else [])})"
        return code(f"lambda request: {prefix}{call}", given=given)

    return convert


def called(needs: int) -> Convert:
    """Return a conversion of a value that may be a function, as a quota or a cost: a value stays as it is."""
    of_request = function(needs)

    def convert(given: Expression, site: Site) -> Expression | None:
        found = _function(given, site)
        if found is not None and "key" in found.names:
            raise Left("there the function gets the key of the client; write a function of the request")
        return given if found is None else of_request(given, site)

    return convert


def no_function(reason: str) -> Convert:
    """Return a conversion of a value or a list that stays as it is. It refuses a function."""

    def convert(given: Expression, site: Site) -> Expression | None:
        if any(is_function(each, site) for each in (given, *[item.value for item in getattr(given, "elements", ())])):
            raise Left(reason)
        return given

    return convert


def is_function(given: Expression, site: Site) -> bool:
    """True for a lambda, and for a name that a function of the application has."""
    return _function(given, site) is not None


def _function(given: Expression, site: Site) -> Function | None:
    if not isinstance(given, cst.Lambda):
        return None if source(given) in site.values else site.project.functions.get(last(given))
    made = ast.parse(f"({source(given)})", mode="eval").body
    return Function.of(made) if isinstance(made, ast.Lambda) else None


def conversions(needs: int) -> dict[str, Convert]:
    """Return what Flask-Limiter and slowapi write in another way, by the name here. `needs` says how many arguments a
    function takes there.
    """
    no_scope = no_function('a scope is a name here: make the function a part of the key, key=("ip", f)')
    return {
        FIRST: called(needs),
        "cost": called(needs),
        "key": function(needs, is_key=True),
        "when": function(needs, negated=True),
        "scope": no_scope,
        "name": no_scope,
        "error_message": no_function("error_message is a text; on_denied is a function"),
        "default_limits": no_function("a function can be the quota of a Rule, in rules=[…]"),
        "headers": chosen({True: "x-ratelimit", False: None, None: None}),
        "on_store_failure": chosen({True: "allow", False: None, None: None}),
        "algorithm": chosen(
            {
                "fixed-window": "fixed-window",
                "moving-window": "sliding-log",
                "sliding-window-counter": "sliding-counter",
            }
        ),
    }

"""The values that the tables are made of: what a construct becomes, and what becomes of each of its arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import libcst as cst
from libcst.helpers import parse_template_expression

from sluicegate.migrate.project import Function, Project

Expression = cst.BaseExpression
Arguments = dict[str, Expression]

FIRST: Final = "first"
"""The name of an argument that is given first, without a name."""


@dataclass(frozen=True, slots=True)
class Site:
    """The file that a construct stands in."""

    project: Project
    imports: Mapping[str, str]  # a dotted name → the name that it has in this file
    taken: Collection[str]  # the names that a new import must not take
    values: Collection[str]  # the names that this file assigns, and binds in no other way
    names: dict[cst.CSTNode, str] = field(default_factory=dict)  # a node → what the tables call it
    wanted: dict[str, tuple[str, str]] = field(default_factory=dict)  # a name in this file → its module, its name there
    scopes: list[str] = field(default_factory=list)  # outside a route: the variable that the next limit names, or ""
    notes: list[str] = field(default_factory=list)  # what is said about the call that is converted now

    def constant(self, given: Expression) -> object:
        """Return the value of a literal, or of a constant at the top of a module; `...` for any other expression."""
        found = constant(given)
        return self.project.constants.get(last(given), ...) if found is ... else found

    def use(self, dotted: str) -> str:
        """Return the name that this file has for something of sluicegate. It is imported if it is used at the end."""
        module, _, name = dotted.format(web=self.project.web).rpartition(".")
        local = self.imports.get(f"{module}.{name}") or (f"sluicegate_{name}" if name in self.taken else name)
        self.wanted[local] = module, name
        return local


class Left(Exception):
    """A construct stays as it is. The text says why."""


Convert = Callable[[Expression, Site], Expression | None]
"""From an argument there to the argument here; None if nothing is needed. Raises Left."""


def same(given: Expression, site: Site) -> Expression | None:
    """Return the argument as it is."""
    return given


@dataclass(frozen=True, slots=True)
class Option:
    """An argument: its name here, empty if it is not needed, and how its value is written here."""

    to: str
    convert: Convert = same


@dataclass(frozen=True, slots=True)
class Construct:
    """A name of another library. With `to` it becomes that name; with `removed` the statement that gives it to a
    function goes; without both it stays.

    `options` has the arguments of a call, in the order in which they may be given without a name. `finish` may change
    all of them together. `quoted` makes the whole call an expression.
    """

    to: str = ""
    options: Mapping[str, Option] = field(default_factory=dict[str, Option])
    finish: Callable[[Arguments, Site], None] | None = None
    quoted: Callable[[cst.Call, Site], Expression] | None = None
    removed: bool = False


def code(text: str, **parts: Expression) -> Expression:
    """Return the expression that this text is, with parts in its places."""
    made: Expression = parse_template_expression(text, cst.PartialParserConfig(), **parts)
    return made


def source(node: cst.CSTNode) -> str:
    """Return the text of a node."""
    return cst.Module([]).code_for_node(node)


def constant(given: Expression) -> object:
    """Return the value of a literal; `...` for any other expression."""
    if isinstance(given, cst.Name):
        return {"True": True, "False": False, "None": None}.get(given.value, ...)
    return getattr(given, "evaluated_value", ...)


def chosen(values: Mapping[object, str | None], otherwise: str = "its value is no literal that is known") -> Convert:
    """Return a conversion of literals to texts, where None needs nothing. `otherwise` says why others stay."""

    def convert(given: Expression, site: Site) -> Expression | None:
        found = site.constant(given)
        if found not in values:
            raise Left(otherwise)
        text = values[found]
        return None if text is None else code(f'"{text}"')

    return convert


def function(needs: int, *, negated: bool = False, is_key: bool = False, extra: int = 0) -> Convert:
    """Return a conversion of a function to a function of the request.

    `needs` says how many arguments one takes whose definition is not seen. Of these the first `extra` are None here.
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
            made = cst.ensure_type(code(f"lambda {name}: {prefix}x"), cst.Lambda)
            if not negated:
                return made.with_changes(body=given.body)
            whole = given.body.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            return made.with_changes(body=made.body.with_changes(expression=whole))
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


def last(given: Expression) -> str:
    """Return the last part of a dotted name."""
    return source(given).rpartition(".")[2]

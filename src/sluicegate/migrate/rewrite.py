"""The values that the tables are made of: what a construct becomes, and what becomes of each of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import libcst as cst
from libcst.helpers import parse_template_expression

from sluicegate.migrate.project import Project

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
    keys: list[Expression] = field(default_factory=list)  # the key of the limiter in this file
    notes: list[str] = field(default_factory=list)  # what is said about the call that is converted now

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


@dataclass(frozen=True, slots=True)
class Option:
    """An argument: its name here, empty if it is not needed, and how its value is written here."""

    to: str
    convert: Convert


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


def last(given: Expression) -> str:
    """Return the last part of a dotted name."""
    return source(given).rpartition(".")[2]

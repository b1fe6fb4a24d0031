"""What one file has to know of the others: the names of limiters, what functions take, and the libraries."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from symtable import SymbolTable
from typing import Final

ROOTS: Final = ("flask_limiter", "slowapi", "fastapi_limiter", "pyrate_limiter", "django_ratelimit", "rest_framework")
"""The packages that the tables know."""

_ONLY: Final = {"rest_framework": "rest_framework.throttling"}  # of a package, where not all of it matters
_MADE: Final = ("flask_limiter.Limiter", "slowapi.Limiter")  # whose members the tables know
_ADDRESS: Final = ("get_remote_address", "get_ipaddr")
_DEFAULTS: Final = ("default_limits", "RATELIMIT_DEFAULT")


@dataclass(slots=True)
class Project:
    """What the files of one run say together. `read` fills it before the first file is rewritten."""

    roots: set[str] = field(default_factory=set)
    limiters: dict[str, str] = field(default_factory=dict)  # the name of a limiter → what made it
    functions: dict[str, int] = field(default_factory=dict)  # the name of a function → how many arguments it needs
    keyed: set[str] = field(default_factory=set)  # the functions that slowapi gives the key of a client
    limited: set[str] = field(default_factory=set)  # what a limit is given to by a call, such as a blueprint
    has_paths: bool = False  # whether a path has parameters, as Starlette writes them
    has_defaults: bool = False  # whether a limiter has limits that each view has for itself
    key: str | None = None  # the key of these limits, where it can be written in any file
    web: str = "starlette"

    def read(self, tree: ast.Module) -> None:
        """Add what a file says."""
        names = imports(tree)
        texts = [str(each.value) for each in ast.walk(tree) if isinstance(each, ast.Constant)]
        for name in (*names.values(), *texts):
            self.roots |= roots_of(name)
        self.has_paths |= any(text.startswith("/") and "{" in text for text in texts)
        if any(name.partition(".")[0] == "fastapi" for name in names.values()):
            self.web = "fastapi"
        for node in ast.walk(tree):
            match node:
                case ast.Assign(value=ast.Call() as call) | ast.AnnAssign(value=ast.Call() as call):
                    self._read_limiter(node.targets[0] if isinstance(node, ast.Assign) else node.target, call, names)
                case ast.FunctionDef(name=name, args=given) | ast.AsyncFunctionDef(name=name, args=given):
                    self.functions[name] = len(given.posonlyargs + given.args) - len(given.defaults)
                    if "key" in [each.arg for each in given.posonlyargs + given.args + given.kwonlyargs]:
                        self.keyed.add(name)
                case ast.Call(func=ast.Call(func=ast.Attribute(attr="limit" | "shared_limit")), args=[target]):
                    self.limited.add(_last(target))
                case ast.Name(id=name) | ast.Constant(value=str(name)) | ast.keyword(arg=str(name)):
                    self.has_defaults |= name in _DEFAULTS

    def _read_limiter(self, target: ast.expr, call: ast.Call, names: Mapping[str, str]) -> None:
        made = canonical(_dotted(call.func, names))
        if made in _MADE:
            self.limiters[_last(target)] = made
            given = [each.value for each in call.keywords if each.arg == "key_func"] or call.args
            self.key = '"ip"' if given and _last(given[0]) in _ADDRESS else None


def roots_of(name: str) -> set[str]:
    """Return the package of the tables that a dotted name is in."""
    return {root for root in ROOTS if f"{name}.".startswith(f"{_ONLY.get(root, root)}.")}


def imports(tree: ast.Module) -> dict[str, str]:
    """Return the dotted name of each name that a file imports."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                found |= {each.asname or each.name.partition(".")[0]: each.name for each in aliases}
            case ast.ImportFrom(module=module, names=aliases):
                found |= {each.asname or each.name: f"{module}.{each.name}" for each in aliases}
    return found


def bound(table: SymbolTable, about: Collection[str]) -> set[str]:
    """Return each name that a new import must not take: the names that are bound at the top of a file, in its classes,
    and in the functions that use one of the names `about`.
    """
    symbols = table.get_symbols()
    counts = table.get_type() != "function" or any(each.get_name() in about for each in symbols)
    names = {each.get_name() for each in symbols if counts and each.is_local()}
    return names.union(*[bound(child, about) for child in table.get_children()])


def canonical(name: str, limiters: Mapping[str, str] | None = None) -> str | None:
    """Return the name that the tables have for a dotted name: the package and the last part, or a member of a limiter.

    >>> canonical("slowapi.util.get_remote_address"), canonical("app.limiter.limit", {"limiter": "slowapi.Limiter"})
    ('slowapi.get_remote_address', 'slowapi.Limiter.limit')
    """
    *front, last = name.split(".")
    if limiters and last in limiters:  # the limiter itself, as in `from app.limiter import limiter`
        return None
    if front and front[0] in ROOTS:
        return f"{front[0]}.{last}"
    if front and limiters and front[-1] in limiters:
        return f"{limiters[front[-1]]}.{last}"
    return None


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    match node:
        case ast.Name(id=name):
            return names.get(name, name)
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value, names)}.{name}"
    return ""


def _last(node: ast.expr) -> str:
    return _dotted(node, {}).rpartition(".")[2]


def words(text: str) -> set[str]:
    """Return each name that a file uses, and each text that may be one, as those of `__all__`."""
    nodes = [*ast.walk(ast.parse(text))]
    texts = {str(each.value) for each in nodes if isinstance(each, ast.Constant)}
    return texts | {each.id for each in nodes if isinstance(each, ast.Name)}

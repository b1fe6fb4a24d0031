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
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_ADDRESS: Final = ("get_remote_address", "get_ipaddr")
REFUSALS: Final = ("RateLimitExceeded", "TooManyRequests", "RateLimited", "Refused")
"""The errors whose handlers get a refusal; after a run, too."""
_LIMITS: Final = ("limit", "shared_limit", "sluicegate_limit")  # after a run, too
_DEFAULTS: Final = ("default_limits", "RATELIMIT_DEFAULT", "SLUICEGATE_DEFAULT_LIMITS")  # after a run, too


@dataclass(frozen=True, slots=True)
class Function:
    """What a function of the application takes."""

    names: tuple[str, ...]
    needs: int  # how many arguments it must get
    reads_first: bool  # whether it uses the first one

    @classmethod
    def of(cls, node: _Function) -> Function:
        """Return what this function takes."""
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        return cls(tuple(names), len(names) - len(node.args.defaults), names[:1] != [] and names[0] in used)


@dataclass(slots=True)
class Project:
    """What the files of one run say together. `read` fills it before the first file is rewritten."""

    roots: set[str] = field(default_factory=set)
    limiters: dict[str, str] = field(default_factory=dict)  # a name, and one with its owner → what made it
    functions: dict[str, Function] = field(default_factory=dict)
    limited: set[str] = field(default_factory=set)  # what a limit is given to by a call, such as a blueprint
    inside: set[str] = field(default_factory=set)  # the blueprints inside of these
    handlers: set[str] = field(default_factory=set)  # the functions that get the error of a refusal
    groups: dict[str, str] = field(default_factory=dict)  # a group of django-ratelimit → its first rate
    has_paths: bool = False  # whether a path has parameters, as Starlette writes them
    has_defaults: bool = False  # whether a limiter has limits that each view has for itself
    has_middleware: bool = True  # whether an application has the middleware here, or gets it
    key: str | None = None  # the key of these limits, where it can be written in any file
    web: str = "starlette"

    def read(self, modules: Mapping[str, Collection[ast.Module]]) -> None:
        """Add what the files of each module name say, again as long as one of them makes another one say more."""
        known = ""
        while known != (known := repr(self)):
            for module, trees in modules.items():
                for tree in trees:
                    self._read(module, tree)

    def named(self, name: str) -> str | None:
        """Return the name that the tables have for a dotted name: the package and the last part, or a member of a
        limiter.
        """
        owner, _, last = name.rpartition(".")
        if self.limiter(name) is not None:  # the limiter itself, as in `from app.limiter import limiter`
            return None
        made = self.limiter(owner)
        return canonical(name) if made is None else f"{made}.{last}"

    @property
    def has_blueprint(self) -> bool:
        """True if a limit is given to what is no function of the application."""
        return not self.limited <= self.functions.keys()

    def limiter(self, name: str) -> str | None:
        """Return what made the limiter of a dotted name. An attribute of something else is no limiter."""
        return self.limiters.get(".".join(name.split(".")[-2:]).lstrip("."))

    def _read(self, module: str, tree: ast.Module) -> None:
        names = imports(tree)
        texts = [str(each.value) for each in ast.walk(tree) if isinstance(each, ast.Constant)]
        for name in (*names.values(), *texts):
            self.roots |= roots_of(name)
        self.limiters |= {f"{module}.{local}": made for local, name in names.items() if (made := self.limiter(name))}
        self.has_paths |= any(text.startswith("/") and "{" in text for text in texts)
        if any(name.partition(".")[0] == "fastapi" for name in names.values()):
            self.web = "fastapi"
        for node in ast.walk(tree):
            match node:
                case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) | ast.NamedExpr(value=value):
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        self._read_value(target, value, module=module, names=names)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.functions[name] = Function.of(node)
                    errors = [error for each in node.decorator_list for error in getattr(each, "args", ())]
                    self.handlers |= {name} if any(map(_is_refusal, errors)) else set()
                case ast.Dict(keys=keys, values=found):
                    self.handlers |= {
                        _last(each) for error, each in zip(keys, found, strict=True) if _is_refusal(error)
                    }
                case ast.Call(args=[error, handler]) if _is_refusal(error):
                    self.handlers.add(_last(handler))
                case ast.Call(func=ast.Call(func=limit), args=[target]) if _last(limit) in _LIMITS:
                    self.limited |= {_last(target)} if isinstance(target, ast.Name | ast.Attribute) else set()
                case ast.Call(func=ast.Attribute(value=outer, attr="register_blueprint"), args=[inner, *_]):
                    self.inside |= {_last(inner)} if _last(outer) in self.limited | self.inside else set()
                case ast.Name(id=name) | ast.Constant(value=str(name)) | ast.keyword(arg=str(name)):
                    self.has_defaults |= name in _DEFAULTS

    def _read_value(self, target: ast.expr, value: ast.expr, *, module: str, names: Mapping[str, str]) -> None:
        name = _last(target)
        if isinstance(value, ast.Lambda):
            self.functions[name] = Function.of(value)
        if (made := self._made(value, names)) is None:
            return
        owner = _last(target.value) if isinstance(target, ast.Attribute) else module
        self.limiters |= {f"{owner}.{name}": made, **({name: made} if isinstance(target, ast.Name) else {})}
        if isinstance(value, ast.Call) and made == canonical(_dotted(value.func, names)):
            given = [each.value for each in value.keywords if each.arg == "key_func"] or value.args
            self.key = '"ip"' if given and _dotted(given[0], names).endswith(_ADDRESS) else None

    def _made(self, value: ast.expr, names: Mapping[str, str]) -> str | None:
        """Return what a limiter is made by, of a call or of a limiter."""
        if not isinstance(value, ast.Call):
            return self.limiter(_dotted(value, names))
        return made if (made := canonical(_dotted(value.func, names))) in _MADE else None


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
                found |= {each.asname or each.name: f"{module or ''}.{each.name}" for each in aliases}
    return found


def bound(table: SymbolTable, about: Collection[str]) -> set[str]:
    """Return each name that a new import must not take: the names that are bound at the top of a file, in its classes,
    and in the functions that use one of the names `about`.
    """
    symbols = table.get_symbols()
    counts = table.get_type() != "function" or any(each.get_name() in about for each in symbols)
    names = {each.get_name() for each in symbols if counts and each.is_local()}
    return names.union(*[bound(child, about) for child in table.get_children()])


def values(tree: ast.Module) -> set[str]:
    """Return each name that a file assigns, where it is no function or lambda anywhere in the file."""
    nodes = [*ast.walk(tree)]
    made = {each.name for each in nodes if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
    made |= {
        _last(each.targets[0]) for each in nodes if isinstance(each, ast.Assign) and isinstance(each.value, ast.Lambda)
    }
    return {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)} - made


def canonical(name: str) -> str | None:
    """Return the name that the tables have for a dotted name: the package and the last part.

    >>> canonical("slowapi.util.get_remote_address")
    'slowapi.get_remote_address'
    """
    root, _, rest = name.partition(".")
    return f"{root}.{rest.rpartition('.')[2]}" if rest and root in ROOTS else None


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    first = names.get(node.id, node.id) if isinstance(node, ast.Name) else ""
    return ".".join([first, *reversed(parts)])


def _last(node: ast.expr) -> str:
    return _dotted(node, {}).rpartition(".")[2]


def _is_refusal(error: ast.expr | None) -> bool:
    """True for what a handler of refusals is registered for."""
    return getattr(error, "value", 0) == 429 or (error is not None and _last(error) in REFUSALS)


def words(text: str) -> set[str]:
    """Return each name that a file uses, and each text that may be one, as those of `__all__`."""
    nodes = [*ast.walk(ast.parse(text))]
    texts = {str(each.value) for each in nodes if isinstance(each, ast.Constant)}
    return texts | {each.id for each in nodes if isinstance(each, ast.Name)}

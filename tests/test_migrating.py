"""The pages about migrating: every public name of the library is listed, or `sluicegate migrate` or an error says what
it is here. Each snippet behaves as theirs does.
The page that compares: all applications on it do the same, and ours need few lines.

The libraries are the dependency group `peers`. Where one is not installed, its tests are skipped.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core.cache import cache

import tests.adapters.django_app  # noqa: F401  # Django's modules cannot be imported before settings are configured
from docs.pages import DOCS, Block, blocks, written
from docs.visits import visit
from sluicegate.errors import name_here
from sluicegate.migrate.peers import CONSTRUCTS, note_of
from tests.servers import Server

FOLDER = DOCS / "migrating"
PAGES = sorted(FOLDER.glob("*.md"))
STORE = "redis://localhost"  # of the page that compares
COMPARED = DOCS / "compared.md"
REFUSED = {403: 429}  # django-ratelimit refuses with 403


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", "args", "kwargs", "_", "__"}


def own(module: str) -> set[str]:
    """The public names that a module defines itself."""
    loaded = import_module(module)
    return {name for name, value in vars(loaded).items() if name[0] != "_" and _module_of(value) == module}


def _module_of(value: object) -> object:
    return getattr(value, "__module__", None)


def members(kind: type) -> set[str]:
    return {name for name in vars(kind) if name[0] != "_"}


def constants(kind: type) -> set[str]:
    return {value for name, value in vars(kind).items() if name.isupper()}


def flask_limiter() -> dict[str, set[str]]:
    limiter = import_module("flask_limiter").Limiter
    decorators = {"limit", "shared_limit", "exempt"}
    taken = parameters(limiter.limit) | parameters(limiter.shared_limit) | parameters(limiter.exempt)
    public = set(import_module("flask_limiter").__all__) | members(limiter) - decorators
    functions = {"get_remote_address", "get_remote_address_cloudflare"}
    return {
        "Options": parameters(limiter),
        "Decorators": decorators | taken,
        "Other names": public | functions,
    }


def slowapi() -> dict[str, set[str]]:
    extension, errors = import_module("slowapi.extension"), import_module("slowapi.errors")
    limiter = extension.Limiter
    decorators = {"limit", "shared_limit", "exempt"}
    taken = parameters(limiter.limit) | parameters(limiter.shared_limit) | parameters(limiter.exempt)
    middleware = {name for name in own("slowapi.middleware") if name.startswith("SlowAPI")}
    return {
        "Options": parameters(limiter),
        "Decorators": decorators | taken,
        "Other names": {"Limiter", "_rate_limit_exceeded_handler", errors.RateLimitExceeded.__name__}
        | (members(limiter) - decorators)
        | middleware
        | own("slowapi.util"),
    }


def fastapi_limiter() -> dict[str, set[str]]:
    modules = [f"fastapi_limiter.{name}" for name in ("callback", "decorators", "depends", "identifier")]
    return {"Names": {name for module in modules for name in own(module)}
            | parameters(import_module("fastapi_limiter.depends").RateLimiter)}  # fmt: skip


def django_ratelimit() -> dict[str, set[str]]:
    core, decorators = import_module("django_ratelimit.core"), import_module("django_ratelimit.decorators")
    source = "".join(inspect.getsource(import_module(f"django_ratelimit.{name}")) for name in MODULES)
    keys = {
        f"{name}:" if name in {"get", "post", "header"} else name for name in core._ACCESSOR_KEYS | core._SIMPLE_KEYS
    }
    return {
        "The decorator": {"ratelimit", "ALL", "UNSAFE"} | parameters(decorators.ratelimit),
        "Keys": keys,
        "Settings": set(re.findall(r"RATELIMIT_\w+", source)),
        "Other names": {*core.__all__, "Ratelimited", "RatelimitMiddleware", "request.limited"}
        | (parameters(core.get_usage) - parameters(decorators.ratelimit)),
    }


MODULES = ("core", "decorators", "middleware", "checks")


def rest_framework() -> dict[str, set[str]]:
    throttling, views = import_module("rest_framework.throttling"), import_module("rest_framework.views")
    defaults = import_module("rest_framework.settings").DEFAULTS
    kinds = own("rest_framework.throttling")
    return {
        "Names": {*kinds, "rate"}.union(*[members(getattr(throttling, kind)) for kind in kinds])
        | {name for name in defaults if "THROTTLE" in name or name == "NUM_PROXIES"}
        | {name for name in dir(views.APIView) if "throttle" in name}
        | {"throttle_scope", "throttled"},
    }


def limits() -> dict[str, set[str]]:
    strategies, storage = import_module("limits.strategies"), import_module("limits.storage")
    item = import_module("limits.limits").RateLimitItem
    return {
        "Quotas": set(import_module("limits").__all__) - {"aio", "storage", "strategies", "WindowStats"}
        | members(item),
        "Strategies": own("limits.strategies")
        | parameters(strategies.RateLimiter.hit)
        | members(strategies.RateLimiter),
        "Storage": {*storage.__all__, *own("limits.errors"), "WindowStats", "aio", "storage", "strategies"},
    }


PEERS: dict[str, Callable[[], dict[str, set[str]]]] = {
    "flask-limiter": flask_limiter,
    "slowapi": slowapi,
    "fastapi-limiter": fastapi_limiter,
    "django-ratelimit": django_ratelimit,
    "rest-framework": rest_framework,
    "limits": limits,
}


WRITTEN = {name.rpartition(".")[2] for name in CONSTRUCTS}.union(*[each.options for each in CONSTRUCTS.values()])
ELSEWHERE = "documentation"  # the note of a name that only a page knows


def listed(page: str, heading: str) -> set[str]:
    """The names at the beginning of the bullets under a heading: those of the library, before theirs here."""
    (section,) = re.findall(
        rf"^## {heading}$(.*?)(?=^## |\Z)", written(FOLDER / f"{page}.md"), re.MULTILINE | re.DOTALL
    )
    names = re.findall(r"^- ((?:`[^`]+`,?\s+)*`[^`]+`):\s", section, re.MULTILINE)
    assert len(names) == len(re.findall(r"^- ", section, re.MULTILINE))
    return {word for each in names for word in re.findall(r"`([^`]+)`", each)}


@pytest.mark.parametrize("page", PEERS)
def test_every_public_name_is_listed_or_told(page: str) -> None:
    pytest.importorskip(PEERS[page].__name__)
    for heading, names in PEERS[page]().items():
        assert listed(page, heading) <= names, heading
        assert not {name for name in names - listed(page, heading) - WRITTEN if ELSEWHERE in note_of(name)}, heading


def test_every_page_has_a_test() -> None:
    assert [page.stem for page in PAGES] == sorted(PEERS)


def pairs(pages: Iterable[Path]) -> Iterator[Any]:
    for page in pages:
        found = [block for block in blocks(page) if block.language in {"py", "python"}]
        assert [block.language for block in found] == ["py", "python"] * (len(found) // 2), page.name
        for theirs, ours in zip(found[::2], found[1::2], strict=True):
            yield pytest.param(theirs, ours, id=theirs.place)


@pytest.mark.slow
@pytest.mark.parametrize(("theirs", "ours"), list(pairs(PAGES)))
def test_both_snippets_give_the_same_answers(theirs: Block, ours: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(PEERS[theirs.page.stem].__name__)
    cache.clear()
    expected, found = (answers(block, monkeypatch) for block in (theirs, ours))
    assert found == expected
    assert 429 in [status for _, status in found]


def answers(block: Block, patch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The status of each answer to the same requests: some to every route. Or what the snippet calls `allowed`."""
    names = run(block, patch)
    if "allowed" in names:
        return [("", 200 if each else 429) for each in names["allowed"]]
    (visited,) = visit({names["__name__"]: names})
    return [(each.route, REFUSED.get(each.status, each.status)) for each in visited.answers]


def run(block: Block, patch: pytest.MonkeyPatch, store: str = STORE) -> dict[str, Any]:
    """The names that a snippet defines, on this store."""
    module = ModuleType(f"snippet_{block.line}")
    patch.setitem(sys.modules, module.__name__, module)
    exec(compile("\n" * block.line + block.text.replace(STORE, store), block.page, "exec"), vars(module))
    return vars(module)


KEYS: dict[str, Callable[[], set[str]]] = {
    "flask-limiter": lambda: constants(import_module("flask_limiter.constants").ConfigVars),
    "django-ratelimit": lambda: django_ratelimit()["Settings"],
}


@pytest.mark.parametrize("library", KEYS)
def test_a_warning_of_a_setting_that_is_left_over_says_its_name_here(library: str) -> None:
    pytest.importorskip(PEERS[library].__name__)
    names = KEYS[library]()
    assert {name for name in names if name_here(name) is None} == names & {"RATELIMIT_HASH_ALGORITHM"}


SENT = [
    *[("GET", "/api", "alice")] * 12,
    *[("GET", "/api", "bob")] * 12,
    *[("POST", "/login", "carol")] * 7,
    *[("GET", "/health", "bob")] * 12,
]


@pytest.mark.parametrize(("theirs", "ours"), list(pairs([COMPARED])))
def test_one_job(theirs: Block, ours: Block, valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flask_limiter")
    found = []
    for block in (theirs, ours):
        valkey.flush()
        names = run(block, monkeypatch, valkey.url)
        found.append([send(names, *request) for request in SENT])
    assert [body for status, body in found[1] if status == 429] == [{"error": "slow down"}] * 4
    assert found[1] == found[0]


def send(names: dict[str, Any], method: str, path: str, user: str) -> tuple[int, Any]:
    """The status of an answer, and the body of a refusal."""
    response = names["app"].test_client().open(path, method=method, headers={"X-User": user})
    return response.status_code, response.json if response.status_code == 429 else None


def test_one_job_takes_few_lines() -> None:
    """The page has the numbers."""
    (pair,) = pairs([COMPARED])
    assert [lines(each) for each in pair.values] == [24, 20]
    assert "24 lines with Flask-Limiter and 20 with sluicegate" in written(COMPARED)


def lines(block: Block) -> int:
    return sum(bool(line.strip()) for line in block.text.splitlines())

"""The documentation is true: its code runs, its links lead somewhere, and nothing that a user can name is missing.

What stands in a fence is tested by its language. `python` blocks of a page run in order, in one namespace; `pycon`
blocks are doctests in that same namespace; `toml` and `json` are read; in `bash` every command must exist. A block with
a title is a file: it runs by itself, then its tests, and it sees the files above it by importing them. A block with
`<!-- compile only: why -->` on the line above is compiled and not run. Other languages are for people.
"""

from __future__ import annotations

import doctest
import json
import pkgutil
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import redis

import sluicegate
import sluicegate.testing
import tests.adapters.django_app  # noqa: F401  # Django's modules cannot be looked at before settings are configured
from docs import pictures
from sluicegate import Limiter, ManualClock, SluicegateError
from sluicegate.algorithms import ALGORITHMS
from sluicegate.cli.commands import sluicegate as command_line
from sluicegate.http import DIALECTS
from sluicegate.marks import make_mark
from sluicegate.plan import FAILURE_POLICIES
from sluicegate.quota import _UNITS
from sluicegate.rule import Rule
from sluicegate.settings import Settings
from sluicegate.stores import SCHEMES
from tests.servers import Server

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "sluicegate"
README = ROOT / "README.md"
PAGES = (README, *sorted(DOCS.glob("*.md")))
LINES = 250
LANGUAGES = {"python", "pycon", "bash", "toml", "json", "http", "text"}
COMMANDS = {"curl", "gunicorn", "pip", "python", "uvicorn"}  # what a reader has, or gets from the extras
ADAPTERS = ("starlette", "fastapi", "flask", "django")

FENCE = re.compile(
    r'^(?P<above>[^\n]*)\n```(?P<language>\w+)(?: title="(?P<title>\w+)\.py")?[^\n]*\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
COMPILE_ONLY = "<!-- compile only: "


class Block(NamedTuple):
    """A fence of a page."""

    page: Path
    line: int  # of its first line of text, counted from 0
    language: str
    text: str
    runs: bool
    title: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line + 1}"


@cache
def written(page: Path) -> str:
    return page.read_text("utf-8")


def blocks(page: Path) -> Iterator[Block]:
    """Every fence of a page."""
    text = written(page)
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("text"))
        yield Block(page, line, match["language"], match["text"], COMPILE_ONLY not in match["above"], match["title"])


def every(*languages: str) -> list[Any]:
    """The fences of these languages, as parameters of a test."""
    found = [block for page in PAGES for block in blocks(page) if block.language in languages]
    return [pytest.param(block, id=block.place) for block in found]


def run(block: Block, namespace: dict[str, Any]) -> None:
    """Run one block; a traceback names the page and its line."""
    if block.language == "pycon":
        test = doctest.DocTestParser().get_doctest(block.text, {}, block.place, str(block.page), block.line)
        test.globs = namespace
        check(test)
        return
    code = compile("\n" * block.line + block.text, block.page, "exec")
    if block.runs:
        exec(code, namespace)


def check(test: doctest.DocTest) -> None:
    """Run a doctest; what it defines stays in its namespace."""
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=told.append, clear_globs=False)
    assert not runner.failures, "".join(told)


def named(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_code_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.place}: {block.language} is not tested"
        if block.title is not None:
            file = ModuleType(block.title)
            monkeypatch.setitem(sys.modules, file.__name__, file)
            run(block, vars(file))
            for name in [each for each in vars(file) if each.startswith("test_")]:
                vars(file)[name]()
            vars(module).update(vars(file))
        elif block.language in ("python", "pycon"):
            run(block, vars(module))


@pytest.mark.parametrize("block", every("toml"))
def test_toml_blocks_are_settings(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(block.text, "utf-8")
    assert Settings.from_toml(path).rules


@pytest.mark.parametrize("block", every("json"))
def test_json_blocks_can_be_read(block: Block) -> None:
    assert json.loads(block.text)


def exists(words: list[str]) -> bool:
    """Whether a command is a script of this repository, a verb of ours, or one that a reader has."""
    if words[0] == "sluicegate":
        return words[1] in command_line.commands
    script = ROOT / words[0]
    return words[0] in COMMANDS or (script.is_file() and bool(script.stat().st_mode & 0o100))


@pytest.mark.parametrize("block", every("bash"))
def test_commands_in_bash_blocks_exist(block: Block) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for line in block.text.splitlines():
        words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)]
        assert not words or exists(words), f"{block.place}: {line}"
        for wanted in re.findall(r"sluicegate\[([\w,]+)\]", line):
            assert set(wanted.split(",")) <= set(extras), f"{block.place}: {line}"


def test_the_readme_opens_with_the_two_commands() -> None:
    commands = re.findall(r"^    (\S+)", written(README), re.MULTILINE)
    assert commands[:2] == ["scripts/demo", "scripts/test"]
    assert all(exists([command]) for command in commands[:2])
    assert written(README).split("scripts/demo")[0].count("\n") < 8


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_page_is_long(page: Path) -> None:
    assert written(page).count("\n") <= LINES


def without_code(page: Path) -> str:
    return FENCE.sub(r"\g<above>", written(page))


def anchors(page: Path) -> set[str]:
    """Where a link into the page may lead."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.finditer(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", without_code(page)):
        target = (page.parent / link[1]).resolve() if link[1] else page
        assert target.is_file(), f"{page.name}: {link[0]}"
        assert not link[2] or link[2] in anchors(target), f"{page.name}: {link[0]}"


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == [page.name for page in PAGES[1:]]


def table(page: str, heading: str) -> list[str]:
    """What is code in the first column of the tables under a heading, as often as it stands there."""
    sections = re.split(r"^##+ ", written(DOCS / page), flags=re.MULTILINE)
    (section,) = (section for section in sections if section.split("\n", 1)[0] == heading)
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    rows = [row.split("|")[1] for each in tables for row in each.splitlines()[2:]]  # less the heading and the rule
    return [word.strip('"').partition("(")[0] for row in rows for word in re.findall(r"`([^`]+)`", row)]


def codes(pattern: str) -> set[str]:
    """Every stable code of this form in the source."""
    return {code for path in PACKAGE.rglob("*.py") for code in re.findall(pattern, path.read_text("utf-8"))}


def modules() -> set[str]:
    """What stands in the house, as architecture.md writes it."""
    files = {path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py"}
    return files | {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}


INNER = {"checks", "results", "binding"}  # of a decision: what adapters read
TABLES = {  # where → what must stand there, no less and no more
    ("choosing.md", "The guarantee"): set(ALGORITHMS),
    ("settings.md", "Settings"): {option.name for option in fields(Settings) if option.init},
    ("settings.md", "Rules"): {option.name for option in fields(Rule)},
    ("settings.md", "The decorator"): {"override_defaults"},
    ("answers.md", "Dialects"): set(DIALECTS),
    ("answers.md", "What a decision says"): {name for name in vars(sluicegate.Decision) if name[0] != "_"} - INNER,
    ("failure.md", "Policies"): set(FAILURE_POLICIES),
    ("testing.md", "Exams"): {name for name in sluicegate.testing.__all__ if name.endswith("Exam")},
    ("testing.md", "Tests that are not about limits"): {
        name for name in sluicegate.testing.__all__ if not name.endswith("Exam")
    },
    ("django.md", "System checks"): codes(r'"(sluicegate\.[EW]\d{3})"'),
    ("architecture.md", "The house"): modules(),
}


@pytest.mark.parametrize(("page", "heading"), TABLES)
def test_tables_are_complete(page: str, heading: str) -> None:
    assert sorted(table(page, heading)) == sorted(TABLES[page, heading])


def parameters(function: Callable[..., Any]) -> list[str]:
    """What a function takes by name only."""
    return [each.name for each in signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]


MENTIONED = {  # page → what must be in its text
    "reference.md": {f"::: sluicegate.{name}\n" for name in sluicegate.__all__ if name not in vars(sluicegate.errors)},
    "index.md": {
        text
        for name, command in command_line.commands.items()
        for text in (f"`sluicegate {name}`", *(f"`{option.opts[0]}" for option in command.params))
    },
    "redis.md": {f"`{scheme}://" for scheme in SCHEMES},
    "quotas.md": {f"`{unit}`" for unit in _UNITS},
    "settings.md": {f"`{option}`" for option in parameters(make_mark)},
    "errors.md": {f"\n## {code}\n" for code in codes(r"\bSG0\d\d\b")}
    | {f"\n### {code}\n" for code in codes(r"\bSG1\d\d\b")},
}


@pytest.mark.parametrize("page", MENTIONED)
def test_nothing_public_is_missing(page: str) -> None:
    missing = {text for text in MENTIONED[page] if text not in written(DOCS / page)}
    assert not missing


@pytest.mark.parametrize("framework", ADAPTERS)
def test_the_page_of_an_adapter_has_all_its_names(framework: str) -> None:
    public = import_module(f"sluicegate.{framework}").__all__
    missing = {name for name in public if not re.search(rf"\b{name}\b", written(DOCS / f"{framework}.md"))}
    assert not missing


def test_every_error_is_public_or_in_the_tree() -> None:
    """Codes are unique: nobody can look up one that means two things."""

    def tree(error: type[SluicegateError]) -> Iterator[type[SluicegateError]]:
        yield error
        for child in error.__subclasses__():
            yield from tree(child)

    own = [error for error in tree(SluicegateError) if error.__module__ == "sluicegate.errors"]
    assert len({error.code for error in own}) == len(own)
    assert {error.code for error in own} == codes(r"\bSG0\d\d\b")


def all_modules() -> list[str]:
    """Every module of sluicegate; the exams by way of their package, which has pytest rewrite their asserts."""
    for name in sluicegate.testing.__all__:
        getattr(sluicegate.testing, name)
    return [found.name for found in pkgutil.walk_packages(sluicegate.__path__, "sluicegate.")]


@pytest.mark.parametrize("name", all_modules())
def test_examples_in_docstrings_run(name: str) -> None:
    for test in doctest.DocTestFinder(exclude_empty=True).find(import_module(name)):
        check(test)


def test_the_picture_is_what_the_algorithms_do() -> None:
    """`python docs/pictures.py` draws it again."""
    most = {(run.algorithm, str(run.quota)): run.most for run in (pictures.play(*case) for case in pictures.CASES)}
    drawn = re.findall(r'data-algorithm="(.+?)" data-quota="(.+?)" data-most="(\d+)"', written(pictures.PICTURE))
    assert {(algorithm, quota): int(number) for algorithm, quota, number in drawn} == most
    assert written(pictures.PICTURE) == pictures.draw()
    assert {name for name, _ in most} == {module.NAMES[0] for module in ALGORITHMS.values()}


def test_the_permissions_that_redis_md_grants_are_enough_and_no_more(server: Server) -> None:
    (command,) = re.findall(r"^ACL SETUSER .+$", written(DOCS / "redis.md"), re.MULTILINE)
    lua = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.lua"))
    called = {name.lower() for name in re.findall(r"redis\.call\('(\w+)'", lua)}
    assert set(re.findall(r" \+(\w+)", command)) == called | {"eval", "evalsha"}
    with redis.Redis(port=server.port) as admin:
        admin.execute_command(*shlex.split(command))
        try:
            use_every_algorithm(server.url.replace("://", "://sluicegate:secret@"))
        finally:
            admin.execute_command("ACL", "DELUSER", "sluicegate")


def use_every_algorithm(url: str) -> None:
    """Every path through every script: filling, refusing, sliding on, peeking, forgetting; on either clock."""
    for clock in (ManualClock(), None):
        with Limiter(url, clock=clock, prefix="sg:docs") as limiter:
            for algorithm in ALGORITHMS:
                for _ in range(8):
                    limiter.hit("3/minute", "alice", action="acl", algorithm=algorithm)
                    if clock is not None:
                        clock.advance(17)
                assert limiter.peek("3/minute", "alice", action="acl", algorithm=algorithm, cost=0)
                limiter.reset("3/minute", "alice", action="acl", algorithm=algorithm)


def test_the_key_that_redis_md_shows_is_a_real_one(server: Server) -> None:
    (shown,) = re.findall(r"^sg:\{.+$", written(DOCS / "redis.md"), re.MULTILINE)
    with Limiter(server.url) as limiter, redis.Redis(port=server.port, decode_responses=True) as admin:
        limiter.hit("10/minute", "alice", action="reply")
        assert shown in admin.keys("sg:*")
        limiter.reset("10/minute", "alice", action="reply")
        assert shown not in admin.keys("sg:*")

"""The documentation is true: its code runs, its links lead somewhere, and nothing that a user can name is missing.

A fence is tested by its language. `docs/pages.py` says which files and programs a reader makes of the Python blocks of
a page. Here they run, and their own tests too. `docs/visits.py` sends requests to every application in them. `pycon`
blocks are doctests. `docs/folders.py` runs the same in empty folders, with the commands of the page. `toml` and `json`
are read; in `bash` every command must exist. Other languages are for people.
"""

from __future__ import annotations

import doctest
import json
import pkgutil
import re
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import click
import pytest
import redis
from django.test import override_settings

import hatch_build
import sluicegate
import sluicegate.testing
import tests.adapters.django_app  # noqa: F401  # Django's modules cannot be looked at before settings are configured
from docs import header, pictures
from docs.folders import attempt
from docs.pages import DOCS, FENCE, PAGES, README, ROOT, Block, Folder, blocks, every_folder, written
from docs.pages import folders as page_folders
from docs.visits import django_settings, unreached, visit
from sluicegate import Limiter, ManualClock, SluicegateError
from sluicegate.algorithms import ALGORITHMS, AlgorithmName
from sluicegate.cli.commands import COMMANDS as OURS
from sluicegate.cli.commands import sluicegate as command_line
from sluicegate.dashboard import Dashboard
from sluicegate.django.users import MISSES
from sluicegate.identity import digest, identity_text
from sluicegate.overrides.file import overrides_in
from sluicegate.overrides.follow import Following, processes
from sluicegate.plan import FAILURE_POLICIES
from sluicegate.quota import _UNITS
from sluicegate.rules.rule import Rule
from sluicegate.rules.typed import typed_identity
from sluicegate.stores import SCHEMES
from sluicegate.testing import plugin
from sluicegate.web.http import DIALECTS
from sluicegate.web.marks import make_mark
from sluicegate.web.settings import Settings
from tests.adapters.wsgi_client import WsgiClient
from tests.servers import Server

PACKAGE = ROOT / "src" / "sluicegate"
LINES = 250
LOOKED_UP = {"commands.md": 300, "errors.md": 300}  # by the name of a command or a code: nobody reads them from the top
SHOWN = 80
BENCH = DOCS / "performance.md"
SHORT = 30
MISTAKES = """
from flask import Flask
from sluicegate.flask import RateLimiter, limit

app = Flask("app")
RateLimiter(app)

@app.post("/silent")
def silent(): ...

@limit("5/minute")
def forgotten():
    return "never routed"
"""
FIXTURES = {
    name: contextmanager(getattr(plugin, name).__wrapped__) for name in ("fresh_limits", "limits_clock", "limits_off")
}
LANGUAGES = {"python", "py", "pycon", "bash", "toml", "json", "http", "text"}
COMMANDS = {"curl", "flask", "gunicorn", "pip", "python", "uvicorn"}  # what a reader has, or gets from the extras
ADAPTERS = ("starlette", "fastapi", "flask", "django")


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
    else:
        exec(compile("\n" * block.line + block.text, block.page, "exec"), namespace)


def check(test: doctest.DocTest) -> None:
    """Run a doctest; what it defines stays in its namespace."""
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append, clear_globs=False)
    assert not runner.failures, "".join(report)


def named(page: Path) -> str:
    return page.name


def copied(folder: Folder, patch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Run every block of a folder: each file and each program in a namespace of its own, sessions in one for all."""
    modules: dict[str, ModuleType] = {}
    session = ModuleType("session")
    patch.setitem(sys.modules, session.__name__, session)
    for block in folder.of("python", "pycon"):
        if block.language == "pycon":
            run(block, vars(session))
            continue
        name = block.place if block.title is None else block.title.removesuffix(".py").replace("/", ".")
        module = modules.setdefault(name, ModuleType(name))
        patch.setitem(sys.modules, name, module)
        run(block, vars(module))
        vars(session).update({key: value for key, value in vars(module).items() if key[:2] != "__"})
    return {name: vars(module) for name, module in modules.items()}


@pytest.mark.parametrize(
    "folder", [pytest.param(each, id=each.name) for each in every_folder() if each.of("python", "pycon")]
)
def test_the_code_of_a_page_runs(folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every block runs, every test passes, and every view with a limit responds to a request and shows its limit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    for name, text in folder.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    files = copied(folder, monkeypatch)
    with override_settings(**django_settings(files)):
        for name, test in [pair for each in files.values() for pair in each.items() if pair[0].startswith("test_")]:
            assert callable(test), name
            with ExitStack() as fixtures:
                test(**{each: fixtures.enter_context(FIXTURES[each]()) for each in signature(test).parameters})
    visited = list(visit(files))
    for each in visited:
        assert [answer for answer in each.answers if answer.failed] == [], each.name
        assert any(answer.shows_a_limit for answer in each.answers), each.name
    assert [name for names in files.values() for name in unreached(names, visited)] == []


def own_answers() -> Iterator[Any]:
    """The applications of the pages that answer a refusal themselves."""
    for folder in every_folder():
        programs = {block.place: block.text for block in folder.programs}
        for name, text in (folder.files | programs).items():
            if re.search(r"def on_denied|exception_handlers?\b|@app.errorhandler", text):
                yield pytest.param(text, id=name if name in programs else f"{folder.name}-{name}")


@pytest.mark.parametrize(
    ("status", "options"),
    [
        pytest.param(403, {"deny": [lambda request: True]}, id="deny"),
        pytest.param(503, {"store": "redis://127.0.0.1:1", "on_store_failure": "deny"}, id="store failure"),
    ],
)
@pytest.mark.parametrize("text", list(own_answers()))
def test_an_own_answer_keeps_the_status_of_the_refusal(
    text: str, status: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Settings.__init__
    monkeypatch.setattr(Settings, "__init__", lambda self, **given: make(self, **(given | options)))
    names = vars(ModuleType("app"))
    exec(text, names)
    for each in visit({"app": names}):
        found = {answer.status for answer in each.answers}
        assert status in found, each.name
        assert 429 not in found, each.name


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_language_is_tested(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES


def test_the_package_index_gets_no_relative_link() -> None:
    """It shows the README without the files beside it, so `hatch_build.py` changes the links. README.md itself has
    relative links and pictures: a clone, a repository's host and the site (`docs/header.py`) can follow them.
    """
    relative = re.compile(r"\]\((?!https?:|#)")
    assert relative.search(written(README))
    for base in ("", "https://example.org/"):
        assert not relative.search(hatch_build.description(written(README), base))
    assert "example.org/docs/assets/" in hatch_build.description(written(README), "https://example.org/")


def test_the_home_page_is_the_readme_with_tabs() -> None:
    home = header.home(written(README))
    assert re.findall(r'^=== "(.+)"$', home, re.MULTILINE) == [
        "Starlette",
        "FastAPI",
        "Flask",
        "Django",
        "No framework",
    ]
    assert "](docs/" not in home
    for module in (header, hatch_build):
        for test in doctest.DocTestFinder(exclude_empty=True).find(module):
            check(test)


def test_the_badges_are_true() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pythons = [each.split()[-1] for each in project["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]
    assert f"Python {pythons[0]} to {pythons[-1]} " in written(README)
    assert (PACKAGE / "py.typed").exists()
    assert not project["dependencies"]
    assert "typed: `mypy --strict`" in written(README)
    assert "no dependency" in written(README)
    assert f"· {project['license']}\n" in written(README)


def test_the_figures_of_the_readme_are_those_of_the_benchmark() -> None:
    (row,) = re.findall(r"^\| \[CPU added.+$", written(README), re.MULTILINE)
    cell = r" \| ([\d.–]+)"
    measured = re.findall(rf"^\| ([\w-]+) memory{cell} \| [^|]+{cell}{cell} \|$", written(BENCH), re.MULTILINE)
    expected = {
        framework if name == "sluicegate" else name: round(float(figure))
        for name, *figures in measured
        for framework, figure in zip(("Starlette", "Flask", "Django"), figures, strict=True)
        if figure != "–"
    }
    assert {name: int(figure) for name, figure in re.findall(r"([A-Z]?[\w-]+) (\d+)", row)} == expected


def test_a_mistake_on_a_page_is_found() -> None:
    """Examples of each: an application that fails, one without a limit, and a view that no request reaches."""
    names: dict[str, Any] = {}
    exec(MISTAKES, names)
    (visited,) = visit({"app": names})
    assert {answer.route for answer in visited.answers if answer.failed} == {"POST /silent"}
    assert not any(answer.shows_a_limit for answer in visited.answers)
    assert unreached(names, [visited]) == ["forgotten"]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("```python\nprint(1)\n```\n```python\nprint(2)\n```", "2 run"),
        ('```python title="a.py"\nx = 1\n```\n```python\nfrom a import x\n```', "2 run"),
        ('```python title="a.py"\nx = 1\n```\n```python title="a.py, continued"\nassert x\n```', "1 run"),
        ('```python title="a.py"\nx = 1\n```\n```python\nx\n```', "NameError"),
        ('```python title="test_a.py"\ndef test_a(): assert 0\n```\n```bash\npython -m pytest\n```', "assert 0"),
    ],
)
def test_a_page_is_copied_literally(text: str, result: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}\n", "utf-8")
    (folder,) = page_folders(page)
    _, count, _, error = attempt(folder)
    assert result in (error or f"{count} run")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_first_block_is_not_cut_off(page: Path) -> None:
    """The site shows this many characters of a line without scrolling."""
    first = next(blocks(page), None)
    assert first is None or max(map(len, first.text.splitlines())) <= SHOWN


def test_the_site_names_the_version_and_no_address() -> None:
    """There is no public address yet, so no page links to one."""
    config = SimpleNamespace(site_name="sluicegate")
    assert header.on_config(config).site_name == f"sluicegate {version('sluicegate')}"
    assert not re.search(r"^(site_url|repo_url|edit_uri)", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert "urls" not in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.mark.parametrize("picture", sorted((DOCS / "assets").glob("*.svg")), ids=named)
def test_pictures_suit_dark_pages(picture: Path) -> None:
    assert "@media (prefers-color-scheme: dark)" in written(picture)
    assert "color-scheme: dark" in written(DOCS / "assets" / "site.css")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_row_and_no_sentence_is_there_twice(page: Path) -> None:
    """What a merge leaves behind. Figures may be equal, and so may the short titles of a table."""
    text = re.sub(r"<!-- bench.*?<!-- end -->", "", without_code(page), flags=re.DOTALL)
    rows = [row for row in re.findall(r"^\|.+\|$", text, re.MULTILINE) if len(row) > SHORT and set(row) - set("|-: ")]
    prose = " ".join(re.sub(r"^\|.*$", "", text, flags=re.MULTILINE).split())
    sentences = [sentence for sentence in re.split(r"(?<=[.:;])\s+", prose) if len(sentence) > SHORT]
    assert [each for each, times in Counter(rows + sentences).items() if times > 1] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_code_in_a_table_is_broken(page: Path) -> None:
    """A bar ends a cell, also inside code."""
    rows = re.findall(r"^\|.*\|$", without_code(page), re.MULTILINE)
    assert [row for row in rows if row.count("`") % 2 or any(cell.count("`") % 2 for cell in row.split("|"))] == []


@pytest.mark.parametrize("block", every("toml"))
def test_toml_blocks_are_settings(block: Block, tmp_path: Path) -> None:
    """Or a file of overrides or of rules, which an application follows."""
    path = tmp_path / "shop.toml"
    path.write_text(block.text, "utf-8")
    found = tomllib.loads(block.text)
    if "overrides" in found:
        assert overrides_in(block.text, str(path), lambda word: Limiter().text(typed_identity([word])))
    else:
        assert (Settings(rules=str(path)) if "rules" in found else Settings.from_toml(path)).rules


@pytest.mark.parametrize("block", every("json"))
def test_json_blocks_can_be_read(block: Block) -> None:
    assert json.loads(block.text)


def exists(words: list[str]) -> bool:
    """Whether a command is a script of this repository, a verb of ours, or one that a reader has."""
    if words[0] == "sluicegate":
        return words[1] in OURS
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
    assert without_code(page).count("\n") <= LOOKED_UP.get(page.name, LINES)


def without_code(page: Path) -> str:
    return FENCE.sub("", written(page))


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
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES[1:])


def table(page: str, heading: str) -> list[str]:
    """Return the code in the first column of the tables under a heading, repeated if the tables repeat it."""
    sections = re.split(r"^##+ ", written(DOCS / page), flags=re.MULTILINE)
    (section,) = (section for section in sections if section.split("\n", 1)[0] == heading)
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    rows = [row.split("|")[1] for each in tables for row in each.splitlines()[2:]]  # less the heading and the rule
    return [word.strip('"').partition("(")[0] for row in rows for word in re.findall(r"`([^`]+)`", row)]


def codes(pattern: str) -> set[str]:
    """Every stable code of this form in the source."""
    return {code for path in PACKAGE.rglob("*.py") for code in re.findall(pattern, path.read_text("utf-8"))}


def modules() -> set[str]:
    """The modules and folders of the package, as architecture.md writes them."""
    files = {path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py"}
    return files | {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}


INNER = {"checks", "binding"}  # of a decision: what adapters read
TABLES = {  # where → what must stand there, no less and no more
    ("algorithms.md", "The guarantee"): set(ALGORITHMS),
    ("settings.md", "Settings"): {
        option.name for option in fields(Settings) if option.init and option.name not in ("source", "rules_file")
    },
    ("settings.md", "Rules"): {option.name for option in fields(Rule)},
    ("settings.md", "The decorator"): {"override_defaults"},
    ("response-429.md", "Dialects"): set(DIALECTS),
    ("response-429.md", "What a decision says"): {name for name in vars(sluicegate.Decision) if name[0] != "_"} - INNER,
    ("outages.md", "Policies"): set(FAILURE_POLICIES),
    ("testing.md", "Exams"): {name for name in sluicegate.testing.__all__ if name.endswith("Exam")},
    ("testing.md", "Tests that are not about limits"): {
        name for name in sluicegate.testing.__all__ if name.endswith(("Store", "Adapter"))
    },
    ("testing.md", "Fixtures for pytest"): set(FIXTURES),
    ("testing.md", "Assertions"): {name for name in sluicegate.testing.__all__ if name.startswith("assert_")},
    ("architecture.md", "Modules"): modules(),
}


@pytest.mark.parametrize(("page", "heading"), TABLES)
def test_tables_are_complete(page: str, heading: str) -> None:
    assert sorted(table(page, heading)) == sorted(TABLES[page, heading])


def test_every_file_that_architecture_md_names_exists() -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|lua))`", written(DOCS / "architecture.md")))
    files = [
        path.relative_to(ROOT).as_posix()
        for path in (*PACKAGE.rglob("*.*"), *ROOT.glob("docs/*.py"), *ROOT.glob("tests/*.py"))
    ]
    assert not {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)}


def parameters(function: Callable[..., Any]) -> list[str]:
    """What a function takes by name only."""
    return [each.name for each in signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]


MENTIONED = {  # pages → what must be in their text
    "api.md": {f"::: sluicegate.{name}\n" for name in sluicegate.__all__ if name not in vars(sluicegate.errors)}
    | {  # a function of the name of its module: the reference of the package has the module in its place, and drops it
        f"::: sluicegate.{adapter}.{name}.{name}\n"
        for adapter in ("starlette", "flask", "django")
        for name in import_module(f"sluicegate.{adapter}").__all__
        if (PACKAGE / adapter / f"{name}.py").exists()
    },
    "commands.md run-time-changes.md dashboard.md": {
        text
        for name in OURS
        for command in [command_line.get_command(click.Context(command_line), name)]
        for option in ([] if command is None else command.params)
        for text in (f"`sluicegate {name}", *(f"`{each}" for each in option.opts if each.startswith("-")))
    },
    "redis.md": {f"`{scheme}://" for scheme in SCHEMES},
    "django.md": {f"After {MISSES.replace('/', ' of them in a ')},"},  # look-ups of made-up sessions
    "quotas.md": {f"`{unit}`" for unit in _UNITS},
    "settings.md": {f"`{option}`" for option in parameters(make_mark)},
    "errors.md": {f"\n## {code}\n" for code in codes(r"\bSG0\d\d\b")}
    | {f"\n### {code}\n" for code in codes(r"\bSG1\d\d\b")},
}


@pytest.mark.parametrize("pages", MENTIONED)
def test_nothing_public_is_missing(pages: str) -> None:
    found = "".join(written(DOCS / page) for page in pages.split())
    assert not {text for text in MENTIONED[pages] if text not in found}


@pytest.mark.parametrize("framework", ADAPTERS)
def test_the_page_of_an_adapter_has_all_its_names(framework: str) -> None:
    public = import_module(f"sluicegate.{framework}").__all__
    missing = {name for name in public if not re.search(rf"\b{name}\b", written(DOCS / f"{framework}.md"))}
    assert not missing


def test_every_error_is_public_or_in_the_tree() -> None:
    """Codes are unique: a code with two meanings cannot be looked up."""

    def tree(error: type[SluicegateError]) -> Iterator[type[SluicegateError]]:
        yield error
        for child in error.__subclasses__():
            yield from tree(child)

    own = [error for error in tree(SluicegateError) if error.__module__ in ("sluicegate.errors", "sluicegate.plan")]
    assert len({error.code for error in own}) == len(own)
    assert {error.code for error in own} == codes(r"\bSG0\d\d\b")


def all_modules() -> list[str]:
    """Every module of sluicegate; the exams by way of their package, which has pytest rewrite their asserts."""
    for name in sluicegate.testing.__all__:
        getattr(sluicegate.testing, name)
    found = [each.name for each in pkgutil.walk_packages(sluicegate.__path__, "sluicegate.")]
    # Django imports these only if they are installed, and they have no examples.
    return [name for name in found if not name.startswith("sluicegate.django.admin.")]


@pytest.mark.parametrize("name", all_modules())
def test_examples_in_docstrings_run(name: str) -> None:
    for test in doctest.DocTestFinder(exclude_empty=True).find(import_module(name)):
        check(test)


@pytest.mark.slow
def test_the_picture_is_what_the_algorithms_do() -> None:
    """`python docs/pictures.py` draws it again."""
    most = {(run.algorithm, str(run.quota)): run.most for run in (pictures.play(*case) for case in pictures.CASES)}
    drawn = re.findall(r'data-algorithm="(.+?)" data-quota="(.+?)" data-most="(\d+)"', written(pictures.PICTURE))
    assert {(algorithm, quota): int(number) for algorithm, quota, number in drawn} == most
    assert written(pictures.PICTURE) == pictures.draw()
    assert {name for name, _ in most} == {module.NAMES[0] for module in ALGORITHMS.values()}


def test_the_permissions_that_redis_md_grants_are_enough_and_no_more(server: Server) -> None:
    (command,) = re.findall(r"^ACL SETUSER .+$", written(DOCS / "redis.md"), re.MULTILINE)
    scripts = [*PACKAGE.rglob("*.lua"), PACKAGE / "stores" / "redis" / "operations.py"]  # here those of overrides
    lua = "".join(path.read_text("utf-8") for path in scripts)
    called = {name.lower() for name in re.findall(r"\bcall\('(\w+)'", lua)}
    assert set(re.findall(r" \+(\w+)", command)) == called | {"eval", "evalsha", "unlink", "getrange"}
    with redis.Redis(port=server.port) as admin:
        admin.execute_command(*shlex.split(command))
        try:
            use_every_algorithm(url := server.url.replace("://", "://sluicegate:secret@"))
            use_the_overrides(url)
            use_the_dashboard(url)
        finally:
            admin.execute_command("ACL", "DELUSER", "sluicegate")


def use_every_algorithm(url: str) -> None:
    """Every path through every script: filling, refusing, sliding on, peeking, forgetting; on either clock."""
    for clock in (ManualClock(), None):
        with Limiter(url, clock=clock, prefix="sg:docs") as limiter:
            for algorithm in get_args(AlgorithmName):
                for _ in range(8):
                    limiter.hit("3/minute", "alice", action="acl", algorithm=algorithm)
                    if clock is not None:
                        clock.advance(17)
                assert limiter.peek("3/minute", "alice", action="acl", algorithm=algorithm, cost=0)
                limiter.reset("3/minute", "alice", action="acl", algorithm=algorithm)


def use_the_overrides(url: str) -> None:
    with Limiter(url, prefix="sg:docs") as limiter:
        made = limiter.overrides.set("acl", "5/minute", by="docs")
        assert limiter.overrides.list() == (made,)
        assert limiter.opened.read_overrides(limiter.opened.read_overrides(b"")[:64]) is None
        limiter.overrides.undo()
        assert len(limiter.overrides.history()) == 2
        limiter.opened.add_counts(Following().introduction(""))
        assert len(processes(limiter.opened)) == 1


def use_the_dashboard(url: str) -> None:
    """All that it asks, but for the list of bans."""
    dashboard = Dashboard(url, prefix="sg:docs", authorize=lambda environ: True)
    with Limiter(url, prefix="sg:docs", on_decision=dashboard.note) as limiter:
        limiter.hit("3/minute", "alice", action="acl")
        dashboard.note.send()
    for page in ("/", "/events", f"/identity?who={digest(identity_text('alice'))}"):
        assert WsgiClient(dashboard.wsgi).request("GET", page).status == 200
    dashboard.close()


def test_the_key_that_redis_md_shows_is_a_real_one(server: Server) -> None:
    (shown,) = re.findall(r"^sg:\{.+$", written(DOCS / "redis.md"), re.MULTILINE)
    with Limiter(server.url, deadline=5) as limiter, redis.Redis(port=server.port, decode_responses=True) as admin:
        limiter.hit("10/minute", "alice", action="reply")
        assert shown in admin.keys("sg:*")
        limiter.reset("10/minute", "alice", action="reply")
        assert shown not in admin.keys("sg:*")

"""The number of workers, as far as a process can know it, and the warning of a memory store in several."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from multiprocessing import process
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sluicegate import AsyncLimiter, Limiter, SluicegateWarning
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from sluicegate.stores.worker_count import count_workers
from sluicegate.testing import OpenStore

GUNICORN = "/usr/local/bin/gunicorn"


def module(name: str, **names: object) -> dict[str, ModuleType]:
    made = ModuleType(name)
    vars(made).update(names)
    return {name: made}


def child(**config: object) -> dict[str, ModuleType]:
    """The modules of a process that uvicorn has started with this configuration."""
    current = SimpleNamespace(_kwargs={"config": SimpleNamespace(**config)})
    return module("multiprocessing.process", current_process=lambda: current) | module("uvicorn")


CONF = module("__config__", workers=3)
MANY = {"WEB_CONCURRENCY": "5"}


@pytest.mark.parametrize(
    ("line", "environ", "modules", "count"),
    [
        (f"{GUNICORN} app:app", {}, {}, 1),
        (f"{GUNICORN} -w 4 app:app", {}, {}, 4),
        (f"{GUNICORN} -w4 app:app", {}, {}, 4),
        (f"{GUNICORN} --workers 4 app:app", {}, {}, 4),
        (f"{GUNICORN} --workers=4 app:app", {}, {}, 4),
        (f"{GUNICORN} -w 2 --workers=4 app:app", {}, {}, 4),
        (f"{GUNICORN} --worker-class gthread app:app", {}, {}, 1),
        (f"{GUNICORN} app:app -w", {}, {}, 1),
        (f"{GUNICORN} -w many app:app", {}, {}, 1),
        ("/lib/gunicorn/__main__.py -w 4 app:app", {}, {}, 4),
        (f"{GUNICORN} app:app", MANY, {}, 5),
        (f"{GUNICORN} app:app", {"WEB_CONCURRENCY": "lots"}, {}, 1),
        (f"{GUNICORN} app:app", MANY, CONF, 3),
        (f"{GUNICORN} app:app", MANY | {"GUNICORN_CMD_ARGS": "--threads 2 --workers=2"}, CONF, 2),
        (f"{GUNICORN} app:app", MANY | {"GUNICORN_CMD_ARGS": "--name 'unclosed"}, CONF, 3),
        (f"{GUNICORN} -w 1 app:app", MANY | {"GUNICORN_CMD_ARGS": "--workers=2"}, CONF, 1),
        ("hypercorn --workers 4 app:app", {}, {}, 4),
        ("hypercorn app:app", MANY, CONF, 1),
        ("granian --workers 2 app:app", {}, {}, 2),
        ("uvicorn --workers 4 app:app", {}, child(workers=4, should_reload=False), 4),
        ("serve.py", MANY, child(workers=5, should_reload=False), 5),
        ("uvicorn --reload app:app", MANY, child(workers=5, should_reload=True), 1),
        ("uvicorn app:app", {}, child(workers=1, should_reload=False), 1),
        (f"{GUNICORN} -w 4 -k uvicorn_worker.UvicornWorker app:app", {}, child(), 4),
        ("uvicorn app:app", MANY, module("uvicorn"), 1),
        ("job.py", {}, module("multiprocessing.process", current_process=process.current_process), 1),
        ("uwsgi", {}, module("uwsgi", numproc=4), 4),
        ("uwsgi", MANY, module("uwsgi", numproc=1), 1),
        ("manage.py runserver", MANY, {}, 1),
        ("pytest -w 4 --workers=4", MANY, {}, 1),
        ("", MANY, {}, 1),
    ],
)
def test_the_number_of_workers(line: str, environ: dict[str, str], modules: dict[str, ModuleType], count: int) -> None:
    assert count_workers(line.split(), environ, modules) == count


def test_a_test_runner_is_one_process() -> None:
    assert count_workers(sys.argv, {}, sys.modules) == 1


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is one of four workers."""
    monkeypatch.setattr(sys, "argv", [GUNICORN, "-w", "4"])


@pytest.mark.parametrize(
    "make",
    [
        Limiter,
        lambda: Limiter("MEMORY://?max_keys=10"),
        lambda: Limiter(MemoryStore()),
        lambda: AsyncLimiter("memory://"),
        lambda: AsyncLimiter(AsyncMemoryStore(MemoryStore())),
    ],
    ids=range(5),
)
def test_memory_in_several_workers_warns_once(four: None, make: Callable[[], object]) -> None:
    with pytest.warns(SluicegateWarning, match=r"one of 4 workers.+embedded://.+redis://.+\[SG101\]") as caught:
        assert make() is not make()
    assert [(warning.filename, len(caught)) for warning in caught] == [(__file__, 1)]


@pytest.mark.parametrize("store", ["redis://localhost", OpenStore()])
def test_a_store_that_is_shared_does_not(four: None, store: Any) -> None:
    Limiter(store)


def test_the_warning_can_be_silenced(four: None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("ignore", message=r".*\[SG101\]")
        Limiter()
    assert not caught


APP = """
import os
from sluicegate.wsgi import RateLimitMiddleware

app = RateLimitMiddleware(lambda environ, start_response: [], store="memory://", default_limits=["1/day"])
"""


@pytest.mark.parametrize(("options", "warned"), [(["-w", "2"], True), (["-w", "1"], False), ([], False)])
def test_gunicorn_shows_it(options: list[str], warned: bool, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    words: list[Any] = [sys.executable, "-m", "gunicorn", "--check-config", *options, "app:app"]
    shown = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    assert ("[SG101]" in shown.stderr) is warned

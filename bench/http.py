"""Whole applications on real servers under load: the cost that a limiter adds to a request, and a flood of refusals.

All servers run at the same time and are idle when it is not their turn. The worker, the load and the store are on one
CPU: on two, most of what a limiter seems to add is how often one of them has to wake the other CPU. "cpu" is the CPU
of the worker process for each answered request, and "capacity" how many requests one second of it answers: neither
depends on who sends the load, nor on how long the worker waits for its turn. "added" is the difference to the same
application without a limiter in the same round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.budgets import NONE, NOTHING
from bench.clocks import cpu, on_one_cpu
from bench.figures import Figure, Role, added
from bench.load import load
from bench.race import Contender, Course, Turn
from tests.running import ask, running
from tests.servers import Server, free_port, valkey_server

IDENTITIES = 1_000
PLENTY, FEW = "1000000", "10"
WORK = "1"  # milliseconds of CPU that the view of a flood takes, which no refused request reaches


class App(NamedTuple):
    """One application: its name in the benchmark, its `BENCH_LIMITER`, and whether it uses Redis."""

    name: str
    limiter: str
    redis: bool
    role: Role


def _both(name: str, role: Role = "peer", limiter: str | None = None) -> tuple[App, App]:
    inner = name if limiter is None else limiter
    return App(f"{name} memory", inner, redis=False, role=role), App(f"{name} Redis", inner, redis=True, role=role)


def _floor(name: str, limiter: str, *, redis: bool = False) -> App:
    return App(name, limiter, redis=redis, role="floor")


_ROUND_TRIP = _floor(NOTHING, "script", redis=True)


class Framework(NamedTuple):
    name: str
    module: str
    server: str
    apps: tuple[App, ...]


FRAMEWORKS = (
    Framework(
        "Starlette",
        "bench.apps.starlette_app:app",
        "uvicorn",
        (
            _floor(NONE, "none"),
            _floor("an empty middleware", "empty"),
            _ROUND_TRIP,
            _floor("an empty BaseHTTPMiddleware", "base"),
            *_both("sluicegate", "sluicegate"),
            *_both("sluicegate, decorator", "sluicegate"),
            *_both("slowapi"),
            *_both("limits by hand"),
        ),
    ),
    Framework(
        "FastAPI",
        "bench.apps.fastapi_app:app",
        "uvicorn",
        (_floor(NONE, "none"), *_both("sluicegate", "sluicegate"), *_both("fastapi-limiter")),
    ),
    Framework(
        "Flask",
        "bench.apps.flask_app:app",
        "gunicorn",
        (
            _floor(NONE, "none"),
            _floor("empty hooks", "empty"),
            _ROUND_TRIP,
            *_both("sluicegate", "sluicegate"),
            *_both("Flask-Limiter"),
        ),
    ),
    Framework(
        "Django",
        "bench.apps.django_app:app",
        "gunicorn",
        (
            _floor(NONE, "none"),
            _floor("an empty middleware", "empty"),
            _ROUND_TRIP,
            *_both("sluicegate", "sluicegate"),
            *_both("django-ratelimit"),
        ),
    ),
)


def measure(course: Course) -> list[Figure]:
    """Measure requests of a thousand identities; all pass."""
    figures = []
    for framework in FRAMEWORKS:
        with valkey_server() as redis, ExitStack() as stack:
            contenders, workers = [], []
            for app in framework.apps:
                worker = stack.enter_context(_serving(framework, app, redis=redis, limit=PLENTY))
                workers.append(worker.pid)
                contenders.append(
                    Contender(framework.name, app.name, app.role, worker.turn(course, identities=IDENTITIES))
                )
            with on_one_cpu(redis, *workers):
                found = course.race(contenders)
        figures += [*found, *_added(found)]
    return figures


def measure_flood(course: Course) -> list[Figure]:
    """Measure requests of one client far above its limit, over Redis, against a view that works."""
    figures = []
    for framework in FRAMEWORKS:
        with valkey_server() as redis, ExitStack() as stack:
            contenders, workers = [], []
            for app in framework.apps:
                if app.name != NONE and (app.role == "floor" or not app.redis):
                    continue
                worker = stack.enter_context(_serving(framework, app, redis=redis, limit=FEW, work=WORK))
                workers.append(worker.pid)
                turn = worker.turn(course, identities=1, refusing=app.name != NONE)
                contenders.append(
                    Contender(f"flood, {framework.name}", app.name.removesuffix(" Redis"), app.role, turn)
                )
            with on_one_cpu(redis, *workers):
                figures += course.race(contenders)
    return figures


def _added(figures: Sequence[Figure]) -> list[Figure]:
    cpu = [each for each in figures if each.measure == "cpu"]
    base = next((each for each in cpu if each.contender == NONE), None)
    return [] if base is None else [added(each, base) for each in cpu if each is not base]


class Worker(NamedTuple):
    """The only worker process on this port."""

    port: int
    pid: int

    def turn(self, course: Course, *, identities: int, refusing: bool = False) -> Turn:
        def turn(number: int) -> dict[str, float]:
            before = cpu(self.pid)
            found = load(self.port, course.effort.turn if number else 1, identities=identities)
            used = cpu(self.pid) - before
            refused = found.refused / found.requests
            if number and abs(refused - refusing) > 0.01:  # in round 0 the flood uses up its limit
                raise RuntimeError(f"{refused:.1%} of the requests were refused")
            return {
                "requests": found.requests / found.seconds,
                "p50": found.p50,
                "p99": found.p99,
                "cpu": used / found.requests * 1e6,
                "capacity": found.requests / used,
            }

        return turn


@contextmanager
def _serving(framework: Framework, app: App, *, redis: Server, limit: str, work: str = "0") -> Iterator[Worker]:
    """Run the application with one worker on a free port."""
    port = free_port()
    environ = {
        "BENCH_LIMITER": app.limiter,
        "BENCH_STORE": redis.url if app.redis else "memory://",
        "BENCH_LIMIT": limit,
        "BENCH_WORK": work,
        "WEB_CONCURRENCY": "1",
    }
    with running(_command(framework, port), port, env=environ) as process:
        answer = ask(port, "GET", "/", {"X-User": "first"})
        if answer.status != 200:
            raise RuntimeError(f"{framework.name} with {app.name} answers {answer.status}: {answer.body[:200]!r}")
        yield Worker(port, _child(process.pid) if framework.server == "gunicorn" else process.pid)


def _command(framework: Framework, port: int) -> list[str]:
    if framework.server == "uvicorn":
        options = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
        return ["-m", "uvicorn", framework.module, "--host", "127.0.0.1", "--port", str(port), *options]
    options = ["--workers", "1", "--worker-class", "gthread", "--threads", "1", "--log-level", "warning"]
    return ["-m", "gunicorn", framework.module, "--bind", f"127.0.0.1:{port}", *options]


def _child(pid: int) -> int:
    """The only child of a process: gunicorn's worker."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)

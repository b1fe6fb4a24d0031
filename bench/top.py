"""What `sluicegate top` and `show` cost on a server with a million keys: time, memory, and the application's p99.

    python -m bench.top [KEYS]

One process hits a limiter, request by request. By turns it is alone, beside `top`, and beside a process that computes
as much as `top` and asks the server nothing: what `top` adds to that is what it costs the server.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from sluicegate import Limiter
from sluicegate.identity import digest, identity_text
from tests.servers import Server, valkey_server

KEYS = 1_000_000
TURN = 1.0  # seconds
PAUSE = 0.002  # seconds between two requests of the application
BUSY = """
import time
while True:
    until = time.process_time() + 0.0005
    while time.process_time() < until:
        pass
    time.sleep(0.0005)
"""
SETTINGS = '[sluicegate]\nstore = "{url}"\ndefault_limits = ["1000/day"]\n'


def fill(server: Server, keys: int) -> None:
    """Give each of many clients the same budget with a few hits in it."""
    with Limiter(server.url, deadline=5) as limiter:
        for _ in range(3):
            limiter.hit("1000/day", "alice", action="default")
    with redis.Redis.from_url(server.url) as client:
        (key,) = client.keys("*")
        state, left = client.dump(key), client.pttl(key)
        _, _, rule = key.decode().partition("}:")
        pipeline = client.pipeline(transaction=False)
        for number in range(keys):
            pipeline.restore(f"sg:{{{digest(identity_text(number))}}}:{rule}", left, state)
            if number % 2000 == 1999:
                pipeline.execute()
        pipeline.execute()


def hits(limiter: Limiter, seconds: float) -> list[float]:
    """Return the time of each hit during these seconds."""
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        limiter.hit("1000000/day", "bob", action="application")
        found.append(time.perf_counter() - started)
        time.sleep(PAUSE)
    return found


def command(folder: str, *words: str) -> subprocess.Popen[bytes]:
    script = (
        "import resource, sys; from sluicegate.cli.commands import sluicegate; "
        "sluicegate(sys.argv[1:], standalone_mode=False); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    run = [sys.executable, "-c", script, *words, "--app", "limits.toml", "--json"]
    # As on another machine: it takes no CPU from the application and from the server.
    return subprocess.Popen(["nice", "-n", "19", *run], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98] * 1e3


def main(keys: int) -> None:
    found: dict[str, Any] = {"keys": keys}
    with valkey_server() as server, tempfile.TemporaryDirectory() as folder:
        fill(server, keys)
        Path(folder, "limits.toml").write_text(SETTINGS.format(url=server.url), "utf-8")
        with Limiter(server.url, deadline=2) as limiter, redis.Redis.from_url(server.url) as client:
            hits(limiter, 1)
            client.config_resetstat()
            top, running = command(folder, "top"), 0.0
            busy = subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", BUSY])
            beside = {"alone": None, "beside top": top, "beside a busy process": busy}
            turns: dict[str, list[float]] = {name: [] for name in beside}
            while top.poll() is None:
                for name, process in beside.items():
                    for other in (top, busy):
                        other.send_signal(signal.SIGCONT if other is process else signal.SIGSTOP)
                    running += TURN * (process is top)
                    turns[name] += [p99(hits(limiter, TURN))]
            busy.kill()
            busy.wait()
            stats = client.info("commandstats")
            out, errors = top.communicate()
            found["top"] = {
                "scanned": json.loads(out)["scanned"],
                "seconds": round(running),
                "MB": int(errors.split()[-1]) // 1024,
                "p99 ms": {name: round(statistics.median(each), 3) for name, each in turns.items()},
                "server µs a step": stats["cmdstat_evalsha"]["usec_per_call"],
                "server µs a SCAN": stats["cmdstat_scan"]["usec_per_call"],
            }
            started = time.perf_counter()
            out, errors = command(folder, "show", "text:alice").communicate()
            found["show"] = {
                "used": json.loads(out)["limiters"][0]["budgets"][0]["used"],
                "seconds": round(time.perf_counter() - started, 1),
                "MB": int(errors.split()[-1]) // 1024,
            }
    print(json.dumps(found, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else KEYS)

"""One small application for each framework. Environment variables select its limiter.

`BENCH_LIMITER` is a key of the module's LIMITERS, `BENCH_STORE` a URL, `BENCH_LIMIT` the requests an hour of each
identity, `BENCH_WORK` the milliseconds of CPU that the view takes. The identity is the header X-User. Limiters that
have response fields send them.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import redis

LIMITER = os.environ.get("BENCH_LIMITER", "none")
STORE = os.environ.get("BENCH_STORE", "memory://")
LIMIT = f"{os.environ.get('BENCH_LIMIT', '10')}/hour"
WORK = float(os.environ.get("BENCH_WORK", "0")) / 1e3


def empty_script(client: Any = redis.Redis) -> Callable[[str], Any]:
    """An EVALSHA of a script that does nothing, with one key, by redis-py or its async client."""
    sha = redis.Redis.from_url(STORE).script_load("return 1")
    connected = client.from_url(STORE)
    return lambda identity: connected.evalsha(sha, 1, identity)


def work() -> str:
    """What a view does: it works, and returns its body."""
    if WORK:
        until = time.thread_time() + WORK
        while time.thread_time() < until:
            pass
    return "ok"

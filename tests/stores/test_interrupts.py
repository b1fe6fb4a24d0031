"""An exception in a thread that waits for a reply: its connection is closed, and no later request gets that reply."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluicegate.plan import Check, Plan
from sluicegate.stores import Store, open_store
from sluicegate.stores.redis import RedisStore
from sluicegate.testing.store import terms
from tests.proxies import Proxy
from tests.servers import Server, wait_until
from tests.stores.modes import PATIENCE

ALICE = Plan((Check(terms("fixed-window", "1000000/day", scope="alice"), "alice", 1),))
BOB = Plan((Check(terms("fixed-window", "5000/day", scope="bob"), "bob", 1),))
OPENERS = ["own connections", "a client of redis-py"]


class InterruptError(Exception):
    """What a signal handler raises, such as the timeout of a worker."""


@contextmanager
def opened(how: str, port: int) -> Iterator[Store]:
    """A store that has one connection at most."""
    if how == "own connections":
        with closing(open_store(f"redis://127.0.0.1:{port}?max_connections=1", prefix="t", deadline=PATIENCE)) as own:
            yield own
        return
    retry = Retry(NoBackoff(), 0)
    with redis.Redis(port=port, max_connections=1, socket_timeout=PATIENCE, retry=retry) as client:
        yield RedisStore(client, prefix="t")


@pytest.mark.parametrize("how", OPENERS)
def test_a_signal_handler_that_raises_leaves_the_reply_to_nobody(server: Server, how: str) -> None:
    """The reply arrives after the next request was sent."""
    server.flush()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise InterruptError

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with Proxy(server.port) as proxy, opened(how, proxy.port) as store:
            assert store.run(BOB)[0].remaining == 4999
            proxy.delay(0.1)
            for number in range(1, 6):
                under_way = proxy.counts.requests["EVALSHA"] + 1
                sending = threading.Thread(target=_signal_when, args=(lambda n=under_way: _sent(proxy, n),))
                sending.start()
                with pytest.raises(InterruptError):
                    store.run(ALICE)
                sending.join()
                assert store.run(BOB)[0].remaining == 4999 - number, "the reply of another request"
                assert proxy.counts.connections == 1 + number, "the connection was used again"
            wait_until("the others to be closed", lambda: proxy.counts.open == 1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def _sent(proxy: Proxy, number: int) -> bool:
    return proxy.counts.requests["EVALSHA"] >= number


def _signal_when(ready: Callable[[], bool]) -> None:
    wait_until("the command to be sent", ready)
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.slow
def test_an_exception_at_any_line_leaves_the_reply_to_nobody(valkey: Server) -> None:
    """Of this package and of redis-py: before the command is written, while its reply is awaited, and after it."""
    valkey.flush()
    with Proxy(valkey.port) as proxy, opened("own connections", proxy.port) as store:
        store.run(ALICE)  # makes and loads the script
        assert store.run(BOB)[0].remaining == 4999
        proxy.delay(0.02)
        for number in range(1, 1000):
            interrupted = _run_until_line(number, lambda: store.run(ALICE))
            assert store.run(BOB)[0].remaining == 4999 - number, f"after line {number}"
            if not interrupted:
                break
        assert 20 < number < 1000


def _run_until_line(number: int, call: Callable[[], object]) -> bool:
    """Call, and raise InterruptError before the given line. False if the call has fewer lines."""
    left = number

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if not any([name in frame.f_code.co_filename for name in ("/sluicegate/", "/redis/")]):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise InterruptError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except InterruptError:
        return True
    finally:
        sys.settrace(before)
    return False

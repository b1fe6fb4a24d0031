"""A request is freed at its end by reference counts alone: no cycle and no timer of the event loop keeps it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate import Concurrency, Decision, Limiter, ManualClock, RateLimitExceeded, Rule
from sluicegate.asgi import RateLimitMiddleware

View = Callable[[Any, Any, Any], Awaitable[None]]
CLOCK = ManualClock()
REFUSED: Decision = Limiter(clock=ManualClock()).hit("1/hour", "alice", cost=2)


class Scope(dict[str, Any]):
    """A scope that allows weak references."""


@pytest.fixture(autouse=True)
def _no_collector() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x", "more_body": True})
    await send({"type": "http.response.body", "body": b"x"})


async def streams(scope: Any, receive: Any, send: Any) -> None:
    """A stream whose slot is renewed between two parts."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    CLOCK.advance(30)
    await send({"type": "http.response.body", "body": b"x", "more_body": True})
    await send({"type": "http.response.body", "body": b"x"})


async def fails(scope: Any, receive: Any, send: Any) -> None:
    raise LookupError


async def refuses(scope: Any, receive: Any, send: Any) -> None:
    raise RateLimitExceeded(REFUSED)


async def waits(scope: Any, receive: Any, send: Any) -> None:
    await receive()


async def talks(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close"})


async def spin() -> None:
    """Let the event loop run until a lease of 3 ms was renewed."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 0.003
    while loop.time() < end:  # noqa: ASYNC110  # no reference to the timer to wait for
        await asyncio.sleep(0)


RULES: dict[str, dict[str, Any]] = {
    "plain": {"default_limits": "100/minute"},
    "refused": {"default_limits": "100/minute", "deny": ["192.0.2.0/24"]},
    "by outcome": {"rules": [Rule(name="right", quota="100/minute", refund_when=lambda response: True)]},
    "held": {"rules": [Rule(name="held", quota=Concurrency(5))]},
    "held, and renewed": {"rules": [Rule(name="held", quota=Concurrency(5, lease=0.003))]},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", RULES.values(), ids=RULES)
@pytest.mark.parametrize("view", [answers, streams, fails, refuses, waits, talks])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
def test_a_request_is_freed_at_its_end(view: View, options: dict[str, Any], beside: bool) -> None:
    """Also beside another held request, whose timer is first in the loop: the loop keeps cancelled timers after it."""
    kind = "websocket" if view is talks else "http"

    async def begin(app: Any, silent: asyncio.Event) -> tuple[asyncio.Task[None], weakref.ref[Scope]]:
        async def receive() -> Any:
            await silent.wait()

        async def send(message: Any) -> None:
            await asyncio.sleep(0)

        scope = Scope(type=kind, method="GET", path="/", headers=[], client=("192.0.2.7", 1))
        return asyncio.create_task(app(scope, receive, send)), weakref.ref(scope)

    async def main() -> bool:
        silent = asyncio.Event()
        app = RateLimitMiddleware(view, clock=CLOCK, **options)
        other = (await begin(RateLimitMiddleware(waits, **options), silent))[0] if beside else None
        task, scope = await begin(app, silent)
        await spin()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del task
        await spin()
        freed = scope() is None
        silent.set()
        if other is not None:
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
        return freed

    assert asyncio.run(main())

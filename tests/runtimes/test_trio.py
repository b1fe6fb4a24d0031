"""trio: a store in memory works there. A store on Redis needs asyncio, and says so at once."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from sluicegate import AsyncLimiter, Concurrency, Rule
from sluicegate.asgi import RateLimitMiddleware
from sluicegate.errors import AsyncMismatchError
from sluicegate.rules.ban import Ban
from tests.servers import Server

DOES = "run the application on asyncio"


def on_trio(main: Any) -> Any:
    return anyio.run(main, backend="trio")


def test_memory_admits_exactly_the_limit_on_trio() -> None:
    async def main() -> list[bool]:
        limiter = AsyncLimiter()
        found: list[bool] = []

        async def hit() -> None:
            found.append((await limiter.hit("5/minute", "alice")).allowed)
            await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(hit)
        await limiter.close()
        return found

    assert sorted(on_trio(main)) == [False] * 15 + [True] * 5


def test_slots_and_reservations_in_memory_on_trio() -> None:
    async def main() -> None:
        async with AsyncLimiter() as limiter:
            one = Concurrency(1)
            with anyio.CancelScope() as scope:
                async with limiter.hold(one, "alice") as slot:
                    assert slot
                    assert (await limiter.peek(one, "alice", cost=0)).remaining == 0
                    await slot.renew()
                    scope.cancel()
                    await anyio.sleep_forever()
            assert (await limiter.peek(one, "alice", cost=0)).remaining == 1
            reservation = await limiter.reserve("100/minute", "alice", cost=60)
            await reservation.settle(10)
            assert (await limiter.peek("100/minute", "alice", cost=0)).remaining == 90
            await limiter.reset("100/minute", "alice")
            assert (await limiter.peek("100/minute", "alice", cost=0)).remaining == 100

    on_trio(main)


BAN = Ban(after=3, within=60, duration=60)
CALLS: dict[str, Any] = {
    "hit": lambda limiter: limiter.hit("5/minute", "alice"),
    "peek": lambda limiter: limiter.peek("5/minute", "alice"),
    "reset": lambda limiter: limiter.reset("5/minute", "alice"),
    "reset_all": lambda limiter: limiter.reset_all("alice"),
    "reserve": lambda limiter: limiter.reserve("5/minute", "alice", cost=2),
    "hold": lambda limiter: limiter.hold("5 at once", "alice").__aenter__(),
    "ban": lambda limiter: limiter.ban("alice", BAN),
    "unban": lambda limiter: limiter.unban("alice", BAN),
    "bans": lambda limiter: limiter.bans(BAN),
}


@pytest.mark.parametrize("policy", ["local", "raise"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_a_redis_store_on_trio_says_what_to_do(name: str, policy: Any, valkey: Server) -> None:
    limiter = AsyncLimiter(valkey.url, on_store_failure=policy)
    for _ in range(2):
        with pytest.raises(AsyncMismatchError, match=DOES) as raised:
            on_trio(lambda: CALLS[name](limiter))
        assert raised.value.code == "SG009"


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})


@pytest.mark.parametrize(
    "options", [{"default_limits": ["5/minute"]}, {"rules": [Rule(name="held", quota="1 at once")]}]
)
def test_an_application_with_a_redis_store_does_not_start_on_trio(options: Any, valkey: Server) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        await RateLimitMiddleware(app, store=valkey.url, **options)({"type": "lifespan"}, receive, send)

    with pytest.raises(AsyncMismatchError, match=DOES):
        on_trio(main)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert DOES in sent[0]["message"]
    sent.clear()
    anyio.run(main)
    assert sent == [{"type": "lifespan.startup.complete"}]

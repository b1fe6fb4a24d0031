"""Cancellation: what was sent is finished or undone, and what was not charged stays uncharged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from sluicegate import AsyncLimiter, Concurrency, Limiter, ManualClock, Rule, StoreError
from sluicegate.plan import Check, Outcome, Plan
from sluicegate.rules.response import Response
from sluicegate.stores import completion
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import AsyncAdapter
from sluicegate.testing.charges import wrong
from sluicegate.web.charges import owed
from sluicegate.web.settlement import AsyncSettlement
from tests.servers import Server

PATIENCE = 20.0
QUOTA = "100/minute"
TWO = Concurrency(2, lease=30)


class Late(AsyncAdapter):
    """A store that does at once what it is asked, and replies when the test says so, as a server far away."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.go = asyncio.Event()
        self.asked = asyncio.Event()
        self.calls: list[str] = []

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        return await self._reply("run", await super().run(plan))

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None:
        await self._reply("refund", None)
        await super().refund(plan, outcomes)  # a cancellation that is not handled loses it

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        return await self._reply("renew", await super().renew(plan, outcomes))

    async def _reply(self, name: str, reply: Any) -> Any:
        self.calls.append(name)
        self.asked.set()
        await self.go.wait()
        return reply


async def until(true: Callable[[], bool]) -> None:
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0)


def play(story: Callable[[AsyncLimiter, Late, MemoryStore], Awaitable[None]], **options: Any) -> MemoryStore:
    """Run a story over a late store. Returns the store behind it, as it is when the loop has ended."""
    memory = MemoryStore(clock=ManualClock())

    async def main() -> None:
        late = Late(memory)
        await story(AsyncLimiter(late, on_store_failure="raise", **options), late, memory)

    asyncio.run(main())
    assert not completion._UNDER_WAY
    return memory


def left(memory: MemoryStore, quota: Any, identity: str = "alice") -> int:
    """What is left in the store itself."""
    plan = Plan(Limiter().limit(quota)._checks(identity, 0), charge=False)
    return memory.run(plan)[0].remaining


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task. It must end at once, although the store has not replied."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PATIENCE)


async def hold(limiter: AsyncLimiter) -> None:
    async with limiter.hold(TWO, "alice"):
        raise AssertionError("the task was cancelled before")


def test_a_hold_that_is_cancelled_while_it_acquires_gives_its_slot_back() -> None:
    async def story(limiter: AsyncLimiter, late: Late, memory: MemoryStore) -> None:
        task = asyncio.create_task(hold(limiter))
        await late.asked.wait()
        assert left(memory, TWO) == 1
        await cancelled(task)
        late.go.set()
        await until(lambda: left(memory, TWO) == 2)

    play(story)


def test_a_reserve_that_is_cancelled_keeps_nothing() -> None:
    async def story(limiter: AsyncLimiter, late: Late, memory: MemoryStore) -> None:
        task = asyncio.create_task(limiter.reserve(QUOTA, "alice", cost=60))
        await late.asked.wait()
        assert left(memory, QUOTA) == 40
        await cancelled(task)
        late.go.set()
        await until(lambda: left(memory, QUOTA) == 100)

    play(story)


def test_a_hit_that_is_cancelled_keeps_its_charge() -> None:
    """A client that disconnects early keeps its charge: else it could ask for free."""

    async def story(limiter: AsyncLimiter, late: Late, memory: MemoryStore) -> None:
        task = asyncio.create_task(limiter.hit(QUOTA, "alice"))
        await late.asked.wait()
        await cancelled(task)
        late.go.set()

    assert left(play(story), QUOTA) == 99


@pytest.mark.parametrize("kind", ["hold", "reserve"])
def test_a_caller_that_is_cancelled_between_the_reply_and_its_own_turn_keeps_nothing(kind: str) -> None:
    async def story(limiter: AsyncLimiter, late: Late, memory: MemoryStore) -> None:
        work: Any = hold(limiter) if kind == "hold" else limiter.reserve(QUOTA, "alice", cost=60)
        task = asyncio.create_task(work)
        await late.asked.wait()
        late.go.set()
        await until(lambda: all(each.done() for each in completion._UNDER_WAY))
        assert not task.done()
        await cancelled(task)
        await until(lambda: (left(memory, TWO), left(memory, QUOTA)) == (2, 100))

    play(story)


def test_a_renewal_that_is_cancelled_keeps_its_stamp() -> None:
    """The server has renewed the slot: the release must name the new charge."""

    async def story(limiter: AsyncLimiter, late: Late, memory: MemoryStore) -> None:
        late.go.set()
        async with limiter.hold(TWO, "alice") as slot:
            clock.advance(10)
            late.go.clear()
            late.asked.clear()
            task = asyncio.create_task(slot.renew())
            await late.asked.wait()
            await cancelled(task)
            release = asyncio.create_task(slot.release())
            await asyncio.sleep(0)
            assert late.calls == ["run", "renew"], "the release waits for the renewal's reply"
            late.go.set()
            await release
            assert late.calls == ["run", "renew", "refund"]
        assert left(memory, TWO) == 2

    clock = ManualClock()
    memory = MemoryStore(clock=clock)

    async def main() -> None:
        late = Late(memory)
        await story(AsyncLimiter(late), late, memory)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["hold", "reserve"])
def test_at_the_end_of_the_loop_what_is_under_way_is_undone_first(kind: str) -> None:
    """`asyncio.run` ends while the caller's reply, or the undo of a cancelled caller, is under way."""
    for cancel_first in (False, True):

        async def story(
            limiter: AsyncLimiter, late: Late, memory: MemoryStore, cancel_first: bool = cancel_first
        ) -> None:
            work: Any = hold(limiter) if kind == "hold" else limiter.reserve(QUOTA, "alice", cost=60)
            task = asyncio.create_task(work)
            await late.asked.wait()
            if cancel_first:
                await cancelled(task)
            asyncio.get_running_loop().call_later(0.02, late.go.set)

        memory = play(story)
        assert (left(memory, TWO), left(memory, QUOTA)) == (2, 100)


def test_who_cancels_all_tasks_cancels_no_undo() -> None:
    """As a shutdown function of an application may do."""

    async def story(limiter: AsyncLimiter, late: Late, memory: MemoryStore) -> None:
        asyncio.create_task(hold(limiter))  # noqa: RUF006 - its cancellation is the test
        await late.asked.wait()
        for _ in range(3):
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)
        late.go.set()
        await until(lambda: left(memory, TWO) == 2)

    play(story)


def test_close_waits_for_what_cancelled_callers_have_left_under_way(valkey: Server) -> None:
    valkey.flush()

    async def main() -> int | None:
        limiter = AsyncLimiter(valkey.url, deadline=PATIENCE)
        await limiter.hit(QUOTA, "bob")  # connected
        for _ in range(50):
            task = asyncio.create_task(limiter.reserve(QUOTA, "alice", cost=1))
            await asyncio.sleep(0)
            task.cancel()
        await limiter.close()
        async with AsyncLimiter(valkey.url, deadline=PATIENCE) as other:
            return (await other.peek(QUOTA, "alice", cost=0)).remaining

    assert asyncio.run(main()) == 100


def test_close_waits_for_a_store_that_never_replies_only_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "CLOSING", 0.05)

    async def story(limiter: AsyncLimiter, late: Late, memory: MemoryStore) -> None:
        task = asyncio.create_task(limiter.reserve(QUOTA, "alice", cost=1))
        await late.asked.wait()
        await cancelled(task)
        async with asyncio.timeout(PATIENCE):
            await limiter.close()
        late.go.set()

    assert left(play(story), QUOTA) == 100


@pytest.mark.parametrize("where", ["memory", "valkey"])
def test_a_storm_of_cancellations_leaves_no_slot_taken(where: str, valkey: Server) -> None:
    valkey.flush()
    chance = random.Random(12)
    fifty = Concurrency(50)

    async def work(limiter: AsyncLimiter) -> None:
        async with limiter.hold(fifty, "alice") as slot:
            await slot.renew()
            await asyncio.sleep(0)

    async def main() -> None:
        async with AsyncLimiter("memory://" if where == "memory" else valkey.url, deadline=PATIENCE) as limiter:
            for _ in range(20):
                tasks = [asyncio.create_task(work(limiter)) for _ in range(50)]
                while tasks:
                    for _ in range(chance.randrange(4)):
                        await asyncio.sleep(0)
                    tasks.pop().cancel()
            await until(lambda: len(asyncio.all_tasks()) == 1)
            assert (await limiter.peek(fifty, "alice", cost=0)).remaining == 50

    asyncio.run(main())


def test_a_reservation_is_the_caller_s_when_it_has_returned() -> None:
    async def story(limiter: AsyncLimiter, late: Late, memory: MemoryStore) -> None:
        late.go.set()
        reservation = await limiter.reserve(QUOTA, "alice", cost=60)
        assert left(memory, QUOTA) == 40
        await reservation.settle(10)

    assert left(play(story), QUOTA) == 90


def test_work_that_fails_for_a_cancelled_caller_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def story(limiter: AsyncLimiter, late: Late, memory: MemoryStore) -> None:
        async def broken(plan: Plan) -> tuple[Outcome, ...]:
            late.asked.set()
            await late.go.wait()
            raise StoreError("late", "it is down")

        late.run = broken  # type: ignore[method-assign]
        for work in (hold(limiter), limiter.reserve(QUOTA, "alice", cost=60)):
            task: asyncio.Task[Any] = asyncio.create_task(work)
            await late.asked.wait()
            await asyncio.sleep(0)
            await cancelled(task)
        late.go.set()
        await until(lambda: not completion._UNDER_WAY)

    play(story)
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_time_limit_inside_the_work_still_holds() -> None:
    """The store's own deadline is a cancellation by a timer of the loop, and is not refused."""

    async def story(limiter: AsyncLimiter, late: Late, memory: MemoryStore) -> None:
        async def run(plan: Plan) -> tuple[Outcome, ...]:
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            except TimeoutError as error:
                raise StoreError("late", error) from error
            raise AssertionError

        late.run = run  # type: ignore[method-assign]
        with pytest.raises(StoreError):
            await limiter.reserve(QUOTA, "alice", cost=60)

    play(story)


def test_a_refund_that_a_response_has_earned_survives_the_cancellation() -> None:
    [login] = Rule(name="login", quota="5/minute", charge_when=wrong).terms("sliding-window")
    plan = Plan((Check(login, "alice", 1),))

    async def story(limiter: AsyncLimiter, late: Late, memory: MemoryStore) -> None:
        late.go.set()
        settlement = AsyncSettlement(late, ManualClock().now_us)
        settlement.add(owed(await limiter.run(plan)))
        late.go.clear()
        late.asked.clear()
        task = asyncio.create_task(settlement.answered(Response(200)))
        await late.asked.wait()
        await cancelled(task)
        late.go.set()

    memory = play(story)
    assert memory.run(plan._replace(charge=False))[0].remaining == 5


def test_an_anyio_scope_gives_back(valkey: Server) -> None:
    valkey.flush()

    async def main() -> None:
        async with AsyncLimiter(valkey.url, deadline=PATIENCE) as limiter:
            for turn in range(30):
                with anyio.move_on_after(PATIENCE) as scope:
                    asyncio.get_running_loop().call_later(turn / 20_000, scope.cancel)
                    with suppress(TimeoutError):
                        async with limiter.hold("1 at once", "alice"):
                            await anyio.sleep_forever()
                async with asyncio.timeout(PATIENCE):
                    while (await limiter.peek("1 at once", "alice", cost=0)).remaining == 0:
                        pass

    asyncio.run(main())


class Stopped(BaseException):
    """What a greenlet is killed with, or a signal handler raises."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Stopped, ValueError])
@pytest.mark.parametrize("kind", ["hold", "reserve"])
def test_what_an_interrupt_finds_charged_before_the_block_begins_is_given_back(
    kind: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryStore(clock=ManualClock())
    limiter = Limiter(memory)

    def interrupted(*_: object) -> None:
        assert (left(memory, TWO), left(memory, QUOTA)) != (2, 100)
        raise error

    def begin() -> None:
        if kind == "reserve":
            limiter.reserve(QUOTA, "alice", cost=60)
        else:
            limiter.hold(TWO, "alice").__enter__()

    monkeypatch.setattr("sluicegate.limiter.all", interrupted, raising=False)  # the first step after the charge
    with pytest.raises(error):
        begin()
    assert (left(memory, TWO), left(memory, QUOTA)) == (2, 100)


def test_an_interrupt_in_the_block_releases_the_slot() -> None:
    limiter = Limiter()
    for error in (KeyboardInterrupt, SystemExit, Stopped):
        with pytest.raises(error), limiter.hold(TWO, "alice"):
            raise error
        assert limiter.peek(TWO, "alice", cost=0).remaining == 2

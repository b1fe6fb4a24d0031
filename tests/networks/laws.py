"""The laws that hold for both limiters in every network, whatever it does to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import active_count
from time import monotonic
from typing import Any, Final
from uuid import uuid4

from sluicegate import Limiter
from sluicegate.stores.redis.patience import LONGEST
from tests.networks.links import Link
from tests.networks.traffic import Answer, Asker, AsyncTraffic, Traffic, judge, traffic
from tests.servers import PATIENCE, ask, wait_until

BACK = 2.0  # seconds: what a disturbance may cost after its end
SLACK = 0.1  # seconds of a request that are neither the store's nor stolen by the machine
TIGHT = 40  # the limit of the last asker, which is reached
_BAND = 100_000  # units: how far apart the numbers of two askers are
_ALGORITHM: Final = "fixed-window"


def askers(count: int) -> list[Asker]:
    """Askers whose numbers cannot be taken for each other's. Every other one costs one unit, so these fit a batch.

    The last of several has the limit TIGHT.
    """
    loose = [
        Asker(f"asker {at}", "10000000/day", cost=at + 1 if at % 2 else 1, used=_BAND * (at + 1))
        for at in range(max(1, count - 1))
    ]
    return loose if count == 1 else [*loose, Asker("tight", f"{TIGHT}/day", cost=1, used=0)]


@contextmanager
def examined(mode: str, link: Link, *, deadline: float, count: int = 7, exact: bool = False) -> Iterator[Any]:
    """Traffic over a link in a `with` block. At its end the limiter is closed, and the laws are checked.

    `exact`: nothing was lost, so the server counted what it told and nothing else.
    """
    prefix, asking = uuid4().hex, askers(count)
    with Limiter(link.direct_url, prefix=prefix, algorithm=_ALGORITHM, deadline=PATIENCE) as direct:
        for each in asking:
            if each.used:
                assert direct.hit(each.quota, each.identity, cost=each.used)
    before = _open(link)
    options = {"prefix": prefix, "algorithm": _ALGORITHM, "deadline": deadline}
    with traffic(mode, link.url, asking, **options) as running:
        yield running
    assert running.answers
    no_exception_reaches_the_application(running)
    no_request_waits_longer_than(deadline, running)
    for each in asking:
        answers = [answer for answer in running.answers if answer.asker == each]
        charged = link.used(prefix, each.identity) - each.used
        counts_hold(each, answers, charged)
        if exact:
            nothing_is_lost(running, each, answers, charged=charged)
        answers_are_its_own(each, answers, charged)
    nothing_is_left(link, running, before)


def no_exception_reaches_the_application(running: Traffic) -> None:
    """The policy "local" decides whatever happens to the store."""
    errors = [answer.error for answer in running.answers if answer.error is not None]
    assert not errors, errors[:3]


def no_request_waits_longer_than(deadline: float, running: Traffic) -> None:
    """A request takes the deadline at most, and the time that the machine stole from it. If a connection opens for it,
    it waits on while that makes progress: until the answer, or for one more deadline of silence.
    """
    for answer in running.answers:
        stolen = running.stolen.between(answer.began, answer.ended)
        took = answer.ended - answer.began
        opening = LONGEST if answer.by_store else deadline
        if took > opening + deadline + SLACK + stolen:
            judge(f"{took:.3f} s: {answer}", stolen=stolen, excused=deadline / 4)


def counts_hold(asker: Asker, answers: list[Answer], charged: int) -> None:
    """The server counted every charge that it told, none twice, and never more than the limit."""
    told = _told(asker, answers)
    assert told <= charged <= asker.cost * len(answers), f"{asker}: told {told}, charged {charged}"
    if asker.identity == "tight":
        assert charged <= TIGHT
        if len(answers) > TIGHT and all([answer.by_store for answer in answers]):
            assert told == TIGHT


def nothing_is_lost(running: Traffic, asker: Asker, answers: list[Answer], *, charged: int) -> None:
    """The server counted what it told and nothing else: no asker was told something else after it was charged."""
    if (told := _told(asker, answers)) != charged:
        local = [answer for answer in answers if not answer.by_store]
        stolen = max([running.stolen.between(answer.began, answer.ended) for answer in local], default=0.0)
        judge(f"{asker}: told {told}, charged {charged}", stolen=stolen, excused=SLACK)


def answers_are_its_own(asker: Asker, answers: list[Answer], charged: int) -> None:
    """No asker gets the answer to another request: its numbers are its own, and each comes once."""
    used = [
        outcome.limit - outcome.remaining - asker.used
        for answer in answers
        if answer.by_store and answer.decision
        for outcome in answer.decision.outcomes
    ]
    assert len(set(used)) == len(used), f"{asker}: {used}"
    strange = [units for units in used if not 0 < units <= charged or units % asker.cost]
    assert not strange, f"{asker}: {strange} of {charged}"


def nothing_is_left(link: Link, running: Traffic, before: dict[str, int]) -> None:
    """After `close` no descriptor, thread or task is left, here and on the server."""
    if isinstance(running, AsyncTraffic):
        assert not running.left, running.left
    try:
        wait_until("nothing to be left", lambda: all([_open(link)[what] <= before[what] for what in before]))
    except TimeoutError as error:
        raise AssertionError(f"before {before}, now {_open(link)}") from error


def all_by_store(running: Traffic, deadline: float, *, since: float) -> None:
    """The store decided each request that began later. A degraded one is excused if the machine stole its time."""
    for answer in running.answers:
        if answer.began > since and answer.decision is not None and not answer.by_store:
            stolen = running.stolen.between(answer.began - deadline, answer.ended)  # also from those sent before
            judge(f"degraded {answer.began - since:.3f} s later: {answer}", stolen=stolen, excused=deadline / 4)


def back_soon(running: Traffic, *, healed: float) -> None:
    """The store decides again, soon after the disturbance has ended."""
    running.run_until_whole(patience=PATIENCE, times=10)
    last = max([answer.began for answer in running.answers if not answer.by_store], default=healed)
    stolen = running.stolen.between(healed, last)
    print(f"back after {last - healed:.3f} s, {stolen:.3f} s may be stolen")  # `pytest -rA` shows it
    if last - healed > BACK + stolen:
        judge(f"back after {last - healed:.3f} s", stolen=stolen, excused=BACK / 4)


def since_open(mode: str, running: Traffic, *, patience: float) -> float:
    """The moment from which on no request may be degraded for the opening of a connection.

    On asyncio it is the first answer of the store. Threads that ask at the same time need a connection each.
    """
    running.run_until_whole(patience=patience)
    if mode == "sync":
        return monotonic()
    return min([answer.ended for answer in running.answers if answer.by_store])


def _told(asker: Asker, answers: list[Answer]) -> int:
    return sum([asker.cost for answer in answers if answer.by_store and answer.decision])


def _open(link: Link) -> dict[str, int]:
    """How much is open at present."""
    return {
        "connections": link.open,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": active_count(),
        "clients": len(ask(link.server, "CLIENT", "LIST").splitlines()),
    }

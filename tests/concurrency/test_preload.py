"""Workers forked from a process that has used the store already: gunicorn --preload."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from tests.running import ask, running
from tests.servers import Server, free_port


def test_workers_never_share_an_answer(valkey: Server) -> None:
    """Forty people ask forty times each, all at once: each hears of every one of their own hits, and of no other."""
    port = free_port()
    command = ["-m", "gunicorn", "--preload", "-w", "4", "--threads", "4", "-b", f"127.0.0.1:{port}"]
    people = [uuid4().hex for _ in range(40)]

    def hit(number: int) -> tuple[str, list[str]]:
        who = people[number % len(people)]
        return who, ask(port, "GET", f"/?{who}").body.decode().split()

    application = running([*command, "tests.concurrency.preloaded:app"], port, env={"STORE": valkey.url})
    with application, ThreadPoolExecutor(16) as threads:
        told = list(threads.map(hit, range(40 * 40)))
    assert len({pid for _, (_, _, pid) in told}) == 4
    assert {degraded for _, (_, degraded, _) in told} == {"False"}
    for who in people:
        assert sorted([int(left) for person, (left, _, _) in told if person == who]) == list(range(960, 1000))

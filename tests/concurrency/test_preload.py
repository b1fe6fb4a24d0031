"""Workers that are forked after the process has used the store: gunicorn --preload."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from tests.running import ask, running
from tests.servers import Server, free_port


def test_no_worker_gets_the_reply_of_another(valkey: Server) -> None:
    """Forty identities hit forty times each, concurrently. Each sees every one of its own hits, and no other."""
    port = free_port()
    command = ["-m", "gunicorn", "--preload", "-w", "4", "--threads", "4", "-b", f"127.0.0.1:{port}"]
    identities = [uuid4().hex for _ in range(40)]

    def hit(number: int) -> tuple[str, list[str]]:
        identity = identities[number % len(identities)]
        return identity, ask(port, "GET", f"/?{identity}").body.decode().split()

    application = running([*command, "tests.concurrency.preloaded:app"], port, env={"STORE": valkey.url})
    with application, ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(hit, range(40 * 40)))
    assert len({pid for _, (_, _, pid) in answers}) == 4
    assert {degraded for _, (_, degraded, _) in answers} == {"False"}
    for identity in identities:
        assert sorted([int(left) for each, (left, _, _) in answers if each == identity]) == list(range(960, 1000))

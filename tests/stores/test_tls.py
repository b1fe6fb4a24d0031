"""TLS: the same outcomes through an encrypted connection to a real server, and the same errors in time.

No wheel brings a server that speaks TLS, so a proxy speaks it in front of one.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from sluicegate import StoreError
from sluicegate.plan import Check, Plan
from sluicegate.stores import open_async_store, open_store
from sluicegate.stores.redis.connections import BUSY
from sluicegate.testing.store import terms
from tests.proxies import Proxy
from tests.servers import HOST, Server, wait_until
from tests.stores.modes import MODES, PATIENCE

USERS = 20
TIMES = 25
RULE = terms("fixed-window", "1000000/day", scope="tls")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def proxy(server: Server, authority: trustme.CA) -> Iterator[Proxy]:
    server.flush()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(HOST).configure_cert(context)
    with Proxy(server.port, tls=context) as proxy:
        yield proxy


@pytest.fixture
def url(proxy: Proxy, authority: trustme.CA, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return f"{proxy.url}?ssl_ca_certs={tmp_path / 'ca.pem'}"


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Any:
    return MODES[request.param]


def hit(limiter: Any) -> tuple[bool, int]:
    decision = limiter.hit("3/day", "somebody")
    return decision.allowed, decision.remaining


def is_answered(limiter: Any) -> bool:
    """A handshake may take longer than the deadline on a busy machine."""
    with suppress(StoreError):
        return bool(limiter.peek("3/day", "somebody"))
    return False


def test_the_limit_holds(url: str, mode: Any) -> None:
    with mode(url) as limiter:
        assert [hit(limiter) for _ in range(4)] == [(True, 2), (True, 1), (True, 0), (False, 0)]


def test_a_connection_that_the_server_closed_is_opened_again(url: str, proxy: Proxy, mode: Any) -> None:
    with mode(url) as limiter:
        assert hit(limiter) == (True, 2)
        proxy.cut()
        long_ago = time.monotonic() + 3 * BUSY
        while time.monotonic() < long_ago:
            pass
        assert hit(limiter) == (True, 1)


def test_a_lost_reply_is_not_taken_for_the_next_one(url: str, proxy: Proxy, mode: Any) -> None:
    with mode(url) as limiter:
        assert hit(limiter) == (True, 2)
        proxy.truncate(to="EVALSHA")
        with pytest.raises(StoreError):
            hit(limiter)
        assert hit(limiter) == (True, 0)  # it was charged, and is not charged again


def test_a_missing_reply_costs_the_deadline(url: str, proxy: Proxy, mode: Any) -> None:
    with mode(url, deadline=1.0) as limiter:
        wait_until("the connection is open", is_answered, limiter)
        assert hit(limiter) == (True, 2)
        proxy.black_hole()
        began = time.monotonic()
        with pytest.raises(StoreError):
            hit(limiter)
        assert 0.9 < time.monotonic() - began < PATIENCE
        proxy.heal()
        wait_until("a connection is open", is_answered, limiter)
        assert hit(limiter) == (True, 1)


def test_an_unknown_certificate_is_refused(proxy: Proxy, mode: Any) -> None:
    with mode(proxy.url) as limiter, pytest.raises(StoreError, match=r"(?i)certificate|error 1 connecting"):
        hit(limiter)


def test_a_server_without_tls_is_an_error(server: Server, mode: Any) -> None:
    with mode(f"rediss://{HOST}:{server.port}/0", deadline=2.0) as limiter, pytest.raises(StoreError):
        hit(limiter)


def plan_of(user: int, *, cost: int = 1) -> Plan:
    return Plan((Check(RULE, f"{user}", cost),))


def test_threads_get_their_own_replies(url: str) -> None:
    with closing(open_store(url, prefix="tls", deadline=PATIENCE)) as store:

        def ask(user: int) -> list[int]:
            return [store.run(plan_of(user, cost=user + 1))[0].remaining for _ in range(TIMES)]

        with ThreadPoolExecutor(USERS) as threads:
            results = list(threads.map(ask, range(USERS)))
    assert results == [[1_000_000 - (user + 1) * time for time in range(1, TIMES + 1)] for user in range(USERS)]


def test_tasks_get_their_own_replies(url: str) -> None:
    async def main() -> list[list[int]]:
        store = open_async_store(url, prefix="tls", deadline=PATIENCE)

        async def ask(user: int) -> list[int]:
            return [(await store.run(plan_of(user)))[0].remaining for _ in range(TIMES)]

        results = await asyncio.gather(*map(ask, range(USERS)))
        await store.close()
        return results

    assert asyncio.run(main()) == [[1_000_000 - time for time in range(1, TIMES + 1)]] * USERS

"""TLS: the same answers through an encrypted connection to a real server, and the same errors in time.

No wheel brings a server that speaks TLS, so a proxy speaks it in front of one.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trustme

from sluicegate import StoreError
from sluicegate.plan import Check, Plan
from sluicegate.stores import open_async_store, open_store
from sluicegate.stores.redis.links import BUSY
from sluicegate.testing.store import terms
from tests.proxies import Proxy
from tests.servers import HOST, Server
from tests.stores.colours import COLOURS, PATIENCE

WHO = 20
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


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> Any:
    return COLOURS[request.param]


def hit(limiter: Any) -> tuple[bool, int]:
    decision = limiter.hit("3/day", "somebody")
    return decision.allowed, decision.remaining


def test_the_limit_holds(url: str, colour: Any) -> None:
    with colour(url) as limiter:
        assert [hit(limiter) for _ in range(4)] == [(True, 2), (True, 1), (True, 0), (False, 0)]


def test_a_connection_that_was_closed_meanwhile_is_opened_again(url: str, proxy: Proxy, colour: Any) -> None:
    with colour(url) as limiter:
        assert hit(limiter) == (True, 2)
        proxy.cut()
        long_ago = time.monotonic() + 3 * BUSY
        while time.monotonic() < long_ago:
            pass
        assert hit(limiter) == (True, 1)


def test_what_was_left_unsaid_is_no_reply_to_the_next(url: str, proxy: Proxy, colour: Any) -> None:
    with colour(url) as limiter:
        assert hit(limiter) == (True, 2)
        proxy.truncate(to="EVALSHA")
        with pytest.raises(StoreError):
            hit(limiter)
        assert hit(limiter) == (True, 0)  # it was charged, and is not charged again


def test_no_answer_costs_the_deadline(url: str, proxy: Proxy, colour: Any) -> None:
    with colour(url, deadline=0.5) as limiter:
        assert hit(limiter) == (True, 2)
        proxy.black_hole()
        began = time.monotonic()
        with pytest.raises(StoreError):
            hit(limiter)
        assert 0.4 < time.monotonic() - began < 5
        proxy.heal()
        assert hit(limiter) == (True, 1)


def test_a_certificate_that_nobody_vouches_for_is_refused(proxy: Proxy, colour: Any) -> None:
    with colour(proxy.url) as limiter, pytest.raises(StoreError, match=r"(?i)certificate|error 1 connecting"):
        hit(limiter)


def test_a_server_without_tls_is_an_error(server: Server, colour: Any) -> None:
    with colour(f"rediss://{HOST}:{server.port}/0", deadline=2.0) as limiter, pytest.raises(StoreError):
        hit(limiter)


def plan_of(who: int, *, cost: int = 1) -> Plan:
    return Plan((Check(RULE, f"{who}", cost),))


def test_threads_get_their_own_answers(url: str) -> None:
    with closing(open_store(url, prefix="tls", deadline=PATIENCE)) as store:

        def ask(who: int) -> list[int]:
            return [store.run(plan_of(who, cost=who + 1))[0].remaining for _ in range(TIMES)]

        with ThreadPoolExecutor(WHO) as threads:
            told = list(threads.map(ask, range(WHO)))
    assert told == [[1_000_000 - (who + 1) * time for time in range(1, TIMES + 1)] for who in range(WHO)]


def test_tasks_get_their_own_answers(url: str) -> None:
    async def main() -> list[list[int]]:
        store = open_async_store(url, prefix="tls", deadline=PATIENCE)

        async def ask(who: int) -> list[int]:
            return [(await store.run(plan_of(who)))[0].remaining for _ in range(TIMES)]

        told = await asyncio.gather(*map(ask, range(WHO)))
        await store.close()
        return told

    assert asyncio.run(main()) == [[1_000_000 - time for time in range(1, TIMES + 1)]] * WHO

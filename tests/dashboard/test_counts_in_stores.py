"""Tables of counts: the same in memory, on a real server and on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from sluicegate import Limiter
from sluicegate.identity import Digested, digest
from sluicegate.stores import COUNTED, Counted, open_store
from tests.servers import ask


@pytest.fixture(params=["memory", "valkey", "redis6"])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    url = "memory://"
    if request.param != "memory":
        server = request.getfixturevalue(request.param)
        ask(server, "FLUSHALL")
        url = server.url
    with closing(open_store(url, prefix="counted", deadline=2)) as opened:
        yield opened


def test_processes_add_up(store: Any) -> None:
    store.add_counts([Counted("a", 10, {"login refused": 2, "ünï": 1}), Counted("b", 10, {"x": 5})])
    store.add_counts([Counted("a", 10, {"login refused": 3})])
    assert store.read_counts(["b", "none", "a"]) == [{"x": 5}, {}, {"login refused": 5, "ünï": 1}]


def test_a_table_keeps_the_largest(store: Any) -> None:
    store.add_counts([Counted("a", 10, {f"{each}": each for each in range(1, 3 * COUNTED)})])
    (found,) = store.read_counts(["a"])
    assert found == {f"{each}": each for each in range(2 * COUNTED, 3 * COUNTED)}


def test_tables_end(valkey: Any) -> None:
    ask(valkey, "FLUSHALL")
    with closing(open_store(valkey.url, prefix="counted", deadline=2)) as store:
        store.add_counts([Counted("a", 10, {"x": 1}), Counted("b", 1000, {"x": 1})])  # type: ignore[attr-defined]
    times = {ask(valkey, "TTL", f"counted:{{overrides}}:counts:{name}") for name in "ab"}
    assert times <= {9, 10, 999, 1000}
    assert len(times) == 2


def test_memory_keeps_few_tables() -> None:
    store: Any = open_store("memory://", prefix="x")
    for each in range(200):
        store.add_counts([Counted("kept", 10, {"x": 1}), Counted(f"{each}", 10, {"x": 1})])
    kept, first, last = store.read_counts(["kept", "0", "199"])
    assert (kept, first, last) == ({"x": 200}, {}, {"x": 1})


def test_counts_are_no_budgets(valkey: Any) -> None:
    ask(valkey, "FLUSHALL")
    with Limiter(valkey.url, prefix="counted", deadline=2) as limiter:
        store: Any = limiter.opened
        store.add_counts([Counted("a", 10, {"x": 1})])
        limiter.hit("5/minute", "alice", action="reply")
        page = store.page(None)
        assert page.foreign == 0
        assert [who for who, _ in page.budgets] == [digest("salice")]


def test_memory_finds_an_identity_by_its_digest() -> None:
    with Limiter() as limiter:
        store: Any = limiter.opened
        limiter.hit("5/minute", "alice")
        assert store.named(digest("salice")) == "salice"
        assert store.named(Digested(digest("sbob"))) is None

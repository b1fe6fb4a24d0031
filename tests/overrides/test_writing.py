"""Writing overrides, with both limiters, in memory and on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from inspect import iscoroutine
from typing import Any

import pytest

from sluicegate import AsyncLimiter, Limiter
from sluicegate.clock import MICROSECOND, epoch_seconds
from sluicegate.errors import ConfigurationError, OverrideError, QuotaError
from sluicegate.overrides import write
from sluicegate.overrides.write import ending
from sluicegate.stores import HISTORY
from tests.servers import Server, ask


class Office:
    """The overrides of a limiter, sync or async: each method returns what it returns when it is awaited."""

    def __init__(self, limiter: Any, runner: asyncio.Runner, *, other: Limiter) -> None:
        self._overrides, self._runner = limiter.overrides, runner
        self.other = other.overrides  # that of another person

    def before(self, asked: str, change: Callable[[], object]) -> None:
        """Make a change right before the store is asked this for the first time."""
        store, changes = self._overrides._store, [change]

        class Store:
            def __getattr__(self, name: str) -> Any:
                if name == asked and changes:
                    changes.pop()()
                return getattr(store, name)

        self._overrides._store = Store()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._overrides, name)

        def call(*given: Any, **options: Any) -> Any:
            found = method(*given, **options)
            return self._runner.run(found) if iscoroutine(found) else found

        return call


@pytest.fixture(
    params=[f"{kind.__name__} {store}" for kind in (Limiter, AsyncLimiter) for store in ("memory", "valkey")]
)
def office(request: pytest.FixtureRequest) -> Iterator[Office]:
    kind, store = request.param.split()
    url = "memory://"
    if store == "valkey":
        server: Server = request.getfixturevalue("valkey")
        ask(server, "FLUSHALL")
        url = server.url
    with asyncio.Runner() as runner:
        limiter: Any = Limiter(url, deadline=5) if kind == "Limiter" else AsyncLimiter(url, deadline=5)
        other = Limiter(url, deadline=5)
        if store == "memory":
            other.use(getattr(limiter.opened, "memory", limiter.opened))
        yield Office(limiter, runner, other=other)
        other.close()
        closing = limiter.close()
        if closing is not None:
            runner.run(closing)


def test_set_list_remove_undo_and_the_history(office: Office) -> None:
    assert (office.list(), office.history()) == ((), [])
    one = office.set("export", "5/minute", identities=["alice"], why="why", by="ann")
    two = office.set("export", action="shadow")
    assert office.list() == (one, two)
    three = office.set("export", "6/minute", identities=["alice"])
    assert office.list() == (two, three), "the same target: it is replaced"
    assert office.undo().removed == (three,)
    assert office.list() == (two, one)
    assert office.remove(two.id).removed == (two,)
    assert office.list() == (one,)
    assert [each.what for each in office.history()] == ["remove", "undo", "quota", "shadow", "quota"]
    assert (office.history()[4].by, office.history()[4].why) == ("ann", "why")
    office.undo()
    office.undo()
    assert office.list() == (one,), "the second undo brings the last change back"


@pytest.mark.parametrize("moment", ["read_overrides", "override_entries", "write_overrides"])
def test_undo_takes_back_what_another_has_just_changed(office: Office, moment: str) -> None:
    office.set("export", action="off")
    office.before(moment, lambda: office.other.set("login", action="off"))
    assert [each.rule for each in office.undo().removed] == ["login"]
    assert [each.rule for each in office.list()] == ["export"]


def test_undo_brings_nothing_back_that_has_ended(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    old = office.set("export", action="off", until=60)
    new = office.set("export", action="shadow")
    assert office.history(1)[0].removed == (old,)
    monkeypatch.setattr(write, "epoch_seconds", lambda: epoch_seconds() + 61)
    undone = office.undo()
    assert (undone.added, undone.removed, office.list()) == ((), (new,), ())
    office.set("login", action="off", until=60)
    monkeypatch.setattr(write, "epoch_seconds", lambda: epoch_seconds() + 122)
    undone = office.undo()
    assert (undone.added, undone.removed) == ((), ()), "it has ended by itself"
    assert [each.what for each in office.history()] == ["off", "undo", "shadow", "off"], "nothing was changed"


def test_a_change_of_nothing_is_no_entry(office: Office) -> None:
    """Only a document that cannot be read is replaced."""
    assert office.remove("*").removed == ()
    office.set("export", action="off")
    assert len(office.remove("*").removed) == 1
    assert office.remove("*").removed == ()
    assert [each.what for each in office.history()] == ["remove", "off"]
    store = office.other._store
    store.write_overrides(store.read_overrides(b""), b"by hand", office.history()[0].text())
    office.remove("*")
    assert (office.list(), len(office.history())) == ((), 4)


def test_the_last_thousand_changes_are_kept(office: Office) -> None:
    office.set("export", action="off")
    (entry,), store = office.history(), office.other._store
    for _ in range(HISTORY):
        text = store.read_overrides(b"")
        assert store.write_overrides(text, text, entry.text())
    assert len(office.history(HISTORY + 5)) == HISTORY


@pytest.mark.slow
def test_the_history_has_a_size(office: Office) -> None:
    """The last change is kept whatever its size, so that it can be undone."""
    many = [f"{number}" for number in range(5_000)]  # 125 KB
    for number in range(40):
        office.set("export", f"{number + 1}/minute", identities=many)  # an entry has the new and the old one
    assert 10 < len(office.history(1_000)) < 20
    office.set("*", action="off", identities=[f"{number}" for number in range(10_000)], why="x" * 200)
    assert office.history()[0].why == "x" * 200
    assert office.undo().what == "undo"


def test_an_override_that_has_ended_is_dropped_at_the_next_change(office: Office) -> None:
    office.set("export", action="off", until=0.000001)
    later = office.set("login", action="off")
    assert office.list() == (later,)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"identities": [object()]}, ConfigurationError),
        ({"until": "soon"}, OverrideError),
        ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, OverrideError),
        ({"until": datetime(2120, 1, 1)}, OverrideError),  # noqa: DTZ001
        ({"until": -1}, OverrideError),
        ({"identity": ["alice"]}, OverrideError),
        ({"identities": []}, OverrideError),  # not everybody
        ({"identities": "user:42"}, OverrideError),  # not its characters
        ({"identities": 42}, OverrideError),
        ({"action": "stop"}, OverrideError),
        ({"action": "quota", "quota": "fast"}, QuotaError),
    ],
)
def test_wrong_arguments_change_nothing(office: Office, given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="SG0"):
        office.set(**{"rule": "export", "action": "off"} | given)
    with pytest.raises(OverrideError, match="no such override"):
        office.remove("nothing")
    with pytest.raises(OverrideError, match="nothing was changed"):
        office.undo()
    assert (office.list(), office.history()) == ((), [])


def test_a_tie_is_an_error_at_writing(office: Office) -> None:
    one = office.set("export", action="off", identities=["alice", "bob"])
    with pytest.raises(OverrideError, match=f"{one.id} holds for .* neither is the narrower"):
        office.set("export", action="shadow", identities=["alice"])
    assert office.list() == (one,)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("2h", 7200), ("7 days", 604_800), ("90", 90), (1.5, 1.5), (timedelta(minutes=1), 60), (None, None)],
)
def test_when_an_override_ends(given: Any, seconds: float | None) -> None:
    assert ending(given, 5) == (None if seconds is None else 5 + round(seconds * MICROSECOND))


def test_nobody_overwrites_what_another_has_written(valkey: Server) -> None:
    ask(valkey, "FLUSHALL")
    with Limiter(valkey.url, deadline=1) as limiter, ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda name: limiter.overrides.set(f"rule {name}", action="off"), range(12)))
        assert {each.id for each in limiter.overrides.list()} == {each.id for each in made}
        assert len(limiter.overrides.history(100)) == 12


def test_the_keys_of_overrides_are_no_budgets(valkey: Server) -> None:
    ask(valkey, "FLUSHALL")
    with Limiter(valkey.url) as limiter:
        limiter.overrides.set("export", action="off")
        limiter.hit("5/minute", "alice")
        store: Any = limiter.opened
        page = store.page(None)
        assert (len(page.budgets), page.foreign) == (1, 0)
        assert limiter.reset_all("alice") == 1
        assert len(limiter.overrides.list()) == 1

"""What processes count, send and read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from sluicegate import Limiter
from sluicegate.dashboard import Dashboard
from sluicegate.dashboard.counts import BUCKET, BUCKETS, TOP, Counts, _terms_tables, known_terms, report
from sluicegate.identity import digest
from sluicegate.observe.events import DecisionEvent
from sluicegate.plan import FORBIDDEN
from sluicegate.rules.ban import Ban
from sluicegate.stores import COUNTED, Counted, open_store
from tests.servers import ask, wait_until


class Time:
    """The clock of the wall, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000.0
        monkeypatch.setattr("sluicegate.dashboard.counts.epoch_seconds", lambda: self.now)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    monkeypatch.setattr(threading.Timer, "start", lambda timer: None)  # tests send by hand
    return Time(monkeypatch)


@pytest.fixture(params=["memory", "valkey"])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    url = "memory://"
    if request.param == "valkey":
        server = request.getfixturevalue("valkey")
        ask(server, "FLUSHALL")
        url = server.url
    with closing(open_store(url, prefix="counts", deadline=2)) as opened:
        yield opened


def counting(store: Any) -> tuple[Counts, Limiter]:
    """A process."""
    counts = Counts(store, show_identities=False)
    return counts, Limiter(on_decision=counts)


def test_processes_add_up_and_a_minute_later_it_is_over(store: Any, time: Time) -> None:
    for _ in range(3):
        counts, limiter = counting(store)
        for _ in range(5):
            limiter.hit("2/minute", "alice", action="reply")
        counts.send()
    (rule,), top = report(store)
    assert rule.rule == "reply"
    assert sum(rule.refusals) == rule.refusals[-1] == 9
    assert rule.rates == {"allowed": 6 / BUCKET, "refused": 9 / BUCKET, "shadow": 0, "banned": 0}
    assert top == [([digest("salice"), "", "reply"], 9)]
    time.now += BUCKET * 1.5
    assert report(store)[0][0].rates["refused"] == pytest.approx(9 / (BUCKET * 1.5))
    time.now += BUCKET
    assert report(store)[0][0].rates["refused"] == 0
    time.now += BUCKET * BUCKETS
    assert report(store) == ([], [])
    assert [each.name for each in known_terms(store)] == ["reply"]


def test_one_timer_a_second_sends_all(valkey: Any) -> None:
    ask(valkey, "FLUSHALL")
    with closing(open_store(valkey.url, prefix="counts", deadline=2)) as store:
        counts, limiter = counting(store)
        for _ in range(1000):
            limiter.hit("10/minute", "alice", action="reply")
        timers = [each for each in threading.enumerate() if getattr(each, "function", None) == counts.send]
        assert len(timers) == 1
        ask(valkey, "CONFIG", "RESETSTAT")
        wait_until("the counts were sent", lambda: report(store)[0])
        assert sum(report(store)[0][0].refusals) == 990
        assert ask(valkey, "INFO", "commandstats")["cmdstat_zincrby"]["calls"] == 4  # two results, one identity, terms


def test_terms_come_back(store: Any, time: Time) -> None:
    counts, limiter = counting(store)
    ban = Ban(name="strikes", after=3, within=60, duration=600)
    made = [*limiter.limit("5/minute; 100/day", action="a")._terms, *limiter.limit("7/second", action="b")._terms]
    made += [limiter.limit("5/hour", action="c", algorithm="gcra")._terms[0], ban.terms]
    for action, quota, algorithm in (
        ("a", "5/minute; 100/day", None),
        ("b", "7/second", None),
        ("c", "5/hour", "gcra"),
    ):
        limiter.hit(quota, "alice", action=action, algorithm=algorithm)  # type: ignore[arg-type]
    counts.send()
    known = {each.rule_id: each[:5] for each in known_terms(store)}
    assert known == {each.rule_id: each[:5] for each in made if each is not ban.terms}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "[1,2,3,4]", "[" * 5000, '["a","b","sliding-window","x",1]', '["a","b","boom",1,1]'),
        *('["a",7,"gcra",1000000,1]', '["a","b","gcra",1000000,"1"]', '["a","b","gcra",1000000,null]', '{"a":1}'),
        *('["a","b","fixed-window",60000000,5,1]', '["a","b","fixed-window",true,1,1]', '["a","b","gcra",1.5,1,3,2]'),
        *('["a","b","fixed-window",60000000]', '["a","b","token-bucket",1,1,1,1]', '["a","b","ban",1,1,1]'),
        *('["a","b","gcra",1000000,1]', '["a","b","gcra",1000000,1,0,0,0]', f'["a","b","gcra",1{"0" * 400},1,1,1]'),
    ],
)
def test_terms_that_cannot_be_read_are_left_out(store: Any, text: str) -> None:
    store.add_counts([Counted(_terms_tables()[0], 60, {text: 1})])
    assert known_terms(store) == []


def test_terms_of_long_ago_leave_room(store: Any, time: Time) -> None:
    """A table keeps the largest counts, so those of a rule that was removed must end."""
    counts, limiter = counting(store)
    old = {json.dumps(["a", f"a{each}", "fixed-window", 10**6, 5, 10**6]): 10**6 for each in range(COUNTED)}
    store.add_counts([Counted(_terms_tables()[0], 10**6, old)])
    for day, knows in enumerate((False, False, True)):
        limiter.hit("5/minute", "alice", action="new")
        counts.send()
        assert ("new" in {each.name for each in known_terms(store)}) is knows, day
        time.now += 86_400


def test_memory_knows_the_terms_of_yesterday(time: Time) -> None:
    with closing(open_store("memory://", prefix="x")) as store:
        counts, limiter = counting(store)
        for action in ("old", *["new"] * 60):  # more tables than memory keeps
            limiter.hit("1000/minute", "alice", action=action)
            counts.send()
            time.now += 86_400 if action == "old" else BUCKET
        assert {each.name for each in known_terms(store)} == {"old", "new"}


def test_what_a_client_invents_is_bounded(store: Any, time: Time) -> None:
    counts, limiter = counting(store)
    for number in range(3000):
        limiter.hit("1/minute", f"{number}", action="reply")
        limiter.hit("1/minute", f"{number}", action="reply")
    assert len(counts._refused) == 1000
    counts.send()
    _, top = report(store)
    assert len(top) == TOP
    tables = store.read_counts([f"refused:{int(time.now) // BUCKET}"])
    assert len(tables[0]) == COUNTED


def test_threads_lose_no_count(time: Time) -> None:
    with Limiter() as place:
        store: Any = place.opened
        counts, limiter = counting(store)

        def decide() -> None:
            for _ in range(500):
                limiter.hit("100/second", "alice", action="reply")

        threads = [threading.Thread(target=decide) for _ in range(4)]
        for each in threads:
            each.start()
        while any([each.is_alive() for each in threads]):
            counts.send()
        counts.send()
        (rule,), _ = report(store)
        assert sum(store.read_counts(_terms_tables())[0].values()) == 2000
        assert rule.rule == "reply"


def test_the_deny_list_is_a_row(store: Any, time: Time) -> None:
    counts, _ = counting(store)
    counts(DecisionEvent(FORBIDDEN))
    counts.send()
    (rule,), top = report(store)
    assert (rule.rule, sum(rule.refusals), top) == ("deny list", 1, [])


def test_a_store_that_is_away_costs_only_the_counts(time: Time) -> None:
    with closing(open_store("redis://127.0.0.1:1", prefix="x")) as store:
        counts, limiter = counting(store)
        assert limiter.hit("1/minute", "alice").allowed
        counts.send()
        assert not counts._results


def test_identities_are_no_part_of_what_is_sent(time: Time) -> None:
    sent: list[Any] = []
    with Limiter() as place:
        store: Any = place.opened
        store.add_counts = sent.extend
        counts, limiter = counting(store)
        for _ in range(3):
            limiter.hit("1/minute", "alice@example.com", action="reply")
        counts.send()
    assert "alice" not in json.dumps([each.counts for each in sent])


def test_a_fork_begins_anew(time: Time) -> None:
    counts, limiter = counting(None)
    limiter.hit("1/minute", "alice")
    assert counts._results
    counts.after_fork()
    assert not counts._results


def test_a_process_that_can_start_no_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Timer, "start", fails)
        dashboard = Dashboard(insecure=True)
        limiter = Limiter(on_decision=dashboard.note)
        assert limiter.hit("1/minute", "alice").allowed
        assert not dashboard.note._waits
    dashboard.close()

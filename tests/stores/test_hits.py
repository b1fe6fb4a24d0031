"""A plan of one check has a script of its own. It answers exactly as run.lua does, and leaves the same state.

Four budgets live through the same story: one by hit.lua, one by run.lua, one by many.lua, and one by hit.lua and
run.lua in turn, as when processes of two versions share it.
"""

from __future__ import annotations

from contextlib import closing
from fractions import Fraction
from typing import Any, Final
from uuid import uuid4

import hiredis
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms import ALGORITHMS
from sluicegate.clock import MICROSECOND
from sluicegate.plan import Check, Outcome, Plan, Terms
from sluicegate.quota import Quota
from sluicegate.stores import open_store
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis.commands import PARAMS, pack, split_reply
from sluicegate.stores.redis.encoding import MOST, Encoder, decode, reader_of, script
from sluicegate.testing.scenarios import COSTS, LATEST, LONGEST, MOMENTS, WAITS, examples, quotas, takes
from sluicegate.testing.store import NAMES, terms
from tests.servers import Server
from tests.stores.modes import PATIENCE
from tests.stores.places import client
from tests.stores.test_clock_back import Skewed

STRINGS: Final = ["", "x", "1:2", "1:2:3", "1:2:3:4", "-1:5", "9" * 400, b"\x00" * 10, b"\x00" * 14, b"\xff" * 11]
OTHER_TYPES: Final = [("SADD", "a"), ("HSET", "a", "b"), ("ZADD", "1", "a"), ("RPUSH", "7"), ("RPUSH", "a", "b")]
KINDS: Final = st.sampled_from(["hit"] * 12 + ["back", "back", "lower", "string", "other", "forget", "long"])


class Budgets:
    """The four budgets of one story on one server."""

    def __init__(self, connection: Any, clock: Skewed) -> None:
        self.connection, self.clock = connection, clock
        self.encoder = Encoder(prefix="hits", clock=clock, split=False)
        self.by_run = Encoder(prefix="hits", clock=clock, split=False, decoded=True)  # it uses run.lua
        self.names = {way: f"{way} {uuid4().hex}" for way in ("hit", "run", "many", "both")}
        self.turn = 0

    def keys(self, rule: Terms) -> list[str]:
        return [self.encoder.key(rule.rule_id, name) for name in self.names.values()]

    def hit(self, rule: Terms, cost: int) -> list[Outcome | str]:
        """The outcome of each budget, or the first word of its error."""
        self.turn += 1
        return [self._ask(way, Check(rule, name, cost)) for way, name in self.names.items()]

    def _ask(self, way: str, check: Check) -> Outcome | str:
        plan = Plan((check,))
        by_run = way == "run" or (way == "both" and self.turn % 2)
        command = (self.by_run if by_run else self.encoder).run(plan).with_text()
        frame = self._of_many(check) if way == "many" and check.cost == 1 else command.frame
        try:
            reply = self.connection.execute_command(*unpacked(frame))
            if frame is not command.frame:
                (reply,) = split_reply(reply, 1, reader_of(check.terms))
                if isinstance(reply, Exception):
                    raise reply
                if isinstance(reply, Outcome):
                    return reply
        except redis.ResponseError as error:
            return str(error).split(" ")[0]
        assert isinstance(reply, list if by_run else bytes)
        return decode(plan.checks, reply)[0]

    def _of_many(self, check: Check) -> bytes:
        rule = check.terms
        params: list[str | int] = [*rule.params, *[""] * (PARAMS - len(rule.params))]
        text = script("many", frozenset([rule.algorithm]))
        return pack("EVAL", text, 1, self.encoder.key(rule.rule_id, check.identity), 123456, *params, self.clock.moment)

    def states(self, rule: Terms) -> list[tuple[Any, bool]]:
        """Of each budget what is stored, and whether it expires."""
        return [(self._read(key), self.connection.pttl(key) != -1) for key in self.keys(rule)]

    def _read(self, key: str) -> Any:
        kind = self.connection.type(key).decode()
        if kind == "string":
            return self.connection.get(key)
        ranges = {"list": self.connection.lrange, "zset": self.connection.zrange}
        return ranges[kind](key, 0, -1) if kind in ranges else kind

    def write(self, rule: Terms, *words: Any) -> None:
        """Write the same value to all keys, as another program would, with an expiry."""
        name, *values = words
        for key in self.keys(rule):
            self.connection.delete(key)
            self.connection.execute_command(name, key, *values)
            self.connection.pexpire(key, 600_000)


def lowered(data: st.DataObject, rule: Terms) -> Terms:
    """A rule with a lower limit, or burst, and the same key."""
    quota, most = rule.quota, data.draw(st.integers(1, rule.limit))
    if rule.algorithm == "gcra":
        lower = Quota(quota.limit, Fraction(quota.period_us, MICROSECOND), burst=most)
    else:
        lower = Quota(most, Fraction(quota.period_us, MICROSECOND))
    return terms(rule.algorithm, lower, scope=rule.name) if takes(ALGORITHMS[rule.algorithm], lower) else rule


def unpacked(frame: bytes) -> list[Any]:
    reader = hiredis.Reader()
    reader.feed(frame)
    name, *words = reader.gets()
    return [name.decode(), *words]


@pytest.mark.parametrize("name", NAMES)
def test_every_script_gives_the_same_outcomes(server: Server, name: str) -> None:
    algorithm = ALGORITHMS[name]
    with client(server) as connection:

        @examples(60)
        @given(st.data(), quotas(algorithm), MOMENTS)
        def examine(data: st.DataObject, quota: Quota, start: int) -> None:
            clock = Skewed(start)
            budgets, last = Budgets(connection, clock), None
            rule = high = terms(name, quota)
            low = lowered(data, rule)
            broken = False
            for _ in range(data.draw(st.integers(1, LONGEST))):
                kind, wait, cost = data.draw(KINDS), data.draw(WAITS), data.draw(COSTS)
                moved = wait.us_after(rule.window_us, last) * (-1 if kind == "back" else 1)
                clock.moment = min(max(0, clock.moment + moved), LATEST)
                if kind == "lower":
                    rule = low if rule is high else high
                elif kind == "string":
                    budgets.write(rule, "SET", data.draw(st.sampled_from(STRINGS)))
                elif kind == "other":
                    budgets.write(rule, *data.draw(st.sampled_from(OTHER_TYPES)))
                elif kind == "forget":
                    connection.delete(*budgets.keys(rule))
                elif kind == "long":
                    for units in range(1, data.draw(st.integers(2, 16))):
                        clock.moment = min(clock.moment + rule.window_us // 40 + units, LATEST)
                        budgets.hit(rule, data.draw(st.integers(0, 2)))
                broken = kind in {"string", "other"}
                outcomes = budgets.hit(rule, cost.number(rule.limit, last))
                if broken and isinstance(outcomes[0], str):
                    assert all(isinstance(outcome, str) for outcome in outcomes), outcomes
                    connection.delete(*budgets.keys(rule))
                    continue
                assert outcomes == [outcomes[1]] * 4
                states = budgets.states(rule)
                assert states == [states[1]] * 4
                assert all(expires for _, expires in states) or states[0][0] == "none"
                last = outcomes[0] if isinstance(outcomes[0], Outcome) else None

        examine()


@pytest.mark.parametrize("name", NAMES)
def test_several_checks_are_answered_as_by_run(server: Server, name: str) -> None:
    with client(server) as connection:

        @examples(60)
        @given(st.data(), st.lists(st.sampled_from(NAMES), min_size=1, max_size=2), MOMENTS)
        def examine(data: st.DataObject, others: list[str], start: int) -> None:
            names = data.draw(st.permutations([name, *others]))
            pairs = []
            for number, each in enumerate(names):
                rule = terms(each, data.draw(quotas(ALGORITHMS[each])), scope=f"rule{number}")
                pairs.append((rule, lowered(data, rule)))
            clock = Skewed(start)
            budgets = Budgets(connection, clock)
            rules, last = [rule for rule, _ in pairs], None
            for turn in range(data.draw(st.integers(1, LONGEST))):
                chosen = turn % len(rules)
                moved = data.draw(WAITS).us_after(rules[chosen].window_us, last) * data.draw(
                    st.sampled_from([1, 1, -1])
                )
                clock.moment = min(max(0, clock.moment + moved), LATEST)
                if data.draw(st.integers(0, 5)) == 0:
                    rules[chosen] = pairs[chosen][data.draw(st.integers(0, 1))]
                costs = [
                    data.draw(COSTS).number(rule.limit, last if i == chosen else None) for i, rule in enumerate(rules)
                ]
                answers = []
                for way, encoder, kind in (("run", budgets.by_run, list), ("hit", budgets.encoder, bytes)):
                    checks = [Check(rule, budgets.names[way], cost) for rule, cost in zip(rules, costs, strict=True)]
                    plan = Plan(tuple(checks))
                    reply = connection.execute_command(*unpacked(encoder.run(plan).with_text().frame))
                    assert isinstance(reply, kind)
                    answers.append(decode(plan.checks, reply))
                assert answers[0] == answers[1]
                for rule in rules:
                    hit, run, *_ = budgets.states(rule)
                    assert hit == run
                last = answers[0][chosen]

        examine()


@pytest.mark.parametrize("name", NAMES)
def test_as_many_checks_as_hit_holds_and_one_more(server: Server, name: str) -> None:
    """A function in Lua has at most 200 local names."""
    encoder = Encoder(prefix="hits", clock=Skewed(1_700_000_000_000_000), split=False)
    for count, kind in ((MOST, bytes), (MOST + 1, list)):
        rules = [terms(name, "5/minute", scope=f"rule{number}") for number in range(count)]
        plan = Plan(tuple([Check(rule, uuid4().hex, 2) for rule in rules]))
        with client(server) as connection:
            for remaining in (3, 1):
                reply = connection.execute_command(*unpacked(encoder.run(plan).with_text().frame))
                assert isinstance(reply, kind)
                assert [outcome.remaining for outcome in decode(plan.checks, reply)] == [remaining] * count


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_key_expires_and_not_before_its_state(server: Server, name: str, shadow: bool) -> None:
    rule, identity = terms(name, "3/hour", shadow=shadow), uuid4().hex
    key = Encoder(prefix="hits", clock=None, split=False).key(rule.rule_id, identity)
    with closing(open_store(server.url, prefix="hits", deadline=PATIENCE)) as store, client(server) as connection:
        for cost in (0, 4, 1, 1, 0, 1, 1, 3):
            (outcome,) = store.run(Plan((Check(rule, identity, cost),)))
            left = connection.pttl(key) * 1000 if connection.exists(key) else 0
            longest = outcome.reset_after + rule.window_us // 8  # not every hit sets the expiry again
            assert outcome.reset_after - 5_000_000 <= left <= longest + 5_000


@pytest.mark.parametrize("name", ["fixed-window", "sliding-window", "sliding-counter"])
def test_a_limit_of_15_digits_is_counted_exactly(server: Server, name: str) -> None:
    limit, identity, clock = 10**15 - 1, uuid4().hex, Skewed(10**15)
    rule = terms(name, Quota(limit, 1 if name != "sliding-counter" else 0.000001))
    with closing(open_store(server.url, prefix="hits", clock=clock, deadline=PATIENCE)) as store:
        for cost, remaining in ((limit - 3, 3), (1, 2), (1, 1), (2, 1), (1, 0)):
            assert store.run(Plan((Check(rule, identity, cost),)))[0].remaining == remaining


@pytest.mark.parametrize("stamp", ["1.7e+15", "17e14", "1700000000000000"])
def test_numbers_that_a_server_has_written_with_an_exponent(server: Server, stamp: str) -> None:
    """Redis 7.2.0 to 7.2.4 do."""
    rule, identity, clock = terms("sliding-window", "5/minute"), uuid4().hex, Skewed(1_700_000_010_000_000)
    encoder = Encoder(prefix="hits", clock=clock, split=False)
    with closing(open_store(server.url, prefix="hits", clock=clock, deadline=PATIENCE)) as store:
        with client(server) as connection:
            connection.rpush(encoder.key(rule.rule_id, identity), stamp, stamp)
        (outcome,) = store.run(Plan((Check(rule, identity, 1),)))
    assert (outcome.remaining, outcome.next_after, outcome.reset_after) == (2, 50_000_000, 60_000_000)


def test_a_hit_has_few_words() -> None:
    encoder = Encoder(prefix="p", clock=None, split=False)
    for name in NAMES:
        rule = terms(name, "10/day")
        usual, dearer = (unpacked(encoder.run(Plan((Check(rule, "a", cost),))).frame) for cost in (1, 2))
        peeked = unpacked(encoder.run(Plan((Check(rule, "a", 1),), charge=False)).frame)
        assert usual[0] == "EVALSHA"
        assert usual[1:4] == [*dearer[1:3], encoder.key(rule.rule_id, "a").encode()]
        words = [b"%d" % number for number in rule.params]
        assert usual[5:] == (words[:2] if name == "sliding-window" else words)  # its script computes the third
        assert dearer[5:] == [*usual[5:], b"2"]
        assert peeked[1] != usual[1]


def test_a_key_with_a_percent_sign_is_sent_as_it_is() -> None:
    encoder = Encoder(prefix="50%", clock=None, split=False)
    rules = [terms("gcra", "10/day", scope=scope) for scope in ("%s", "100%%d")]
    for checks in ([rules[0]], rules):
        plan = Plan(tuple([Check(rule, "a", 1) for rule in checks]))
        frames = [unpacked(encoder.run(plan).frame) for _ in range(2)]
        for frame in frames:
            assert frame[3 : 3 + len(checks)] == [encoder.key(rule.rule_id, "a").encode() for rule in checks]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [9, 60, 150])
def test_any_number_of_moments_may_have_passed(server: Server, name: str, limit: int) -> None:
    """A script reads only the first items of a list."""
    rule, step = terms(name, Quota(limit, 3600)), 3600 * MICROSECOND // 20
    with client(server) as connection:
        for passed in range(9):
            clock = Skewed(1_700_000_000_000_000)
            budgets, memory = Budgets(connection, clock), MemoryStore(clock=clock)
            for _ in range(8):
                budgets.hit(rule, 1)
                memory.run(Plan((Check(rule, "one", 1),)))
                clock.moment += step
            clock.moment += rule.window_us + (passed - 8) * step
            for cost in (0, 1, 1):
                (expected,) = memory.run(Plan((Check(rule, "one", cost),)))
                assert budgets.hit(rule, cost) == [expected] * 4

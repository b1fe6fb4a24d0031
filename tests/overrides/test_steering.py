"""Rules steered while an application runs: by both gates, over memory, a real server and a file."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Thread, current_thread
from time import monotonic
from typing import Any, cast

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from sluicegate import AsyncLimiter, Ban, Limiter, ManualClock, Rule, Tiers
from sluicegate.errors import OverrideError, SluicegateWarning
from sluicegate.identity import digest, identity_text
from sluicegate.overrides.applied import terms_with
from sluicegate.overrides.follow import Following
from sluicegate.overrides.override import Document, Override
from sluicegate.plan import FORBIDDEN, Decision
from sluicegate.stores.redis import AsyncRedisStore, RedisStore
from sluicegate.web.bound import Bound
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.marks import make_mark
from sluicegate.web.settings import Settings
from tests.servers import Server, ask, wait_until
from tests.test_gate import Visitor

ALICE = [("user", "alice")]
EXPORT = {"name": "export", "quota": "2/minute", "key": "user"}
PLACE = Endpoint("view")


class Application:
    """A gate, and what its requests get. Its clock is a ManualClock: `pass_by` lets it look again."""

    def __init__(self, store: Any, colour: str, **options: Any) -> None:
        self.clock, self.place = ManualClock(), PLACE
        # A request waits half a deadline for a look: on a busy machine half of the default is too short.
        given = {"rules": [EXPORT], "store": store, "clock": self.clock, "deny_cache": 0, "deadline": 10, **options}
        self.settings = Settings(**given)
        self.runner = asyncio.Runner()
        self.gate: Any = Gate(self.settings) if colour == "sync" else AsyncGate(self.settings)
        self._is_async = colour == "async"

    def ask(self, user: str | None = "alice", **given: Any) -> Decision | None:
        visitor = Visitor(user=user, **given)
        found = self.gate.decide(visitor, self.gate.bind(self.place))
        decision: Decision | None = self.runner.run(found) if self._is_async else found
        return decision

    def passes(self, times: int, user: str = "alice") -> int:
        """Return how many of so many requests pass."""
        return sum([decision is None or decision.allowed for decision in [self.ask(user) for _ in range(times)]])

    def pass_by(self, seconds: float = 3) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        if self._is_async:
            self.runner.run(self.gate.close())
        else:
            self.gate.close()
        self.runner.close()


Make = Callable[..., tuple[Application, Limiter]]


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["memory", "valkey"])
def make(request: pytest.FixtureRequest, colour: str) -> Iterator[Make]:
    """An application, and the limiter of its back office."""
    made: list[Any] = []

    def build(**options: Any) -> tuple[Application, Limiter]:
        store: Any = "memory://"
        if request.param == "valkey":
            server: Server = request.getfixturevalue("valkey")
            ask(server, "FLUSHALL")
            store = server.url
        application = Application(store, colour, **options)
        office = Limiter(store)
        if request.param == "memory":
            opened = application.gate.limiter.opened
            office.use(getattr(opened, "memory", opened))
        made.extend((application, office))
        return application, office

    yield build
    for each in made:
        each.close()


def test_another_quota_for_one_identity_until_it_ends(make: Make) -> None:
    application, office = make()
    assert (application.passes(3), application.passes(3, "bob")) == (2, 2)
    office.overrides.set("export", "5/minute", identities=ALICE)
    application.pass_by()
    assert (application.passes(4), application.passes(1, "bob")) == (3, 0), "what was used stays used"
    office.overrides.undo()
    application.pass_by()
    assert application.passes(1) == 0


STEERED: dict[str, tuple[dict[str, Any], int]] = {  # what is set for alice, and how many of 4 requests pass then
    "nothing": ({"rule": "other", "action": "off"}, 2),
    "off": ({"action": "off"}, 4),
    "allow": ({"action": "allow"}, 4),
    "deny": ({"action": "deny"}, 0),
    "shadow": ({"action": "shadow"}, 4),
    "enforce": ({"action": "enforce"}, 2),
    "every rule off": ({"rule": "*", "action": "off"}, 4),
    "all allowed": ({"rule": "*", "action": "allow"}, 4),
    "all denied": ({"rule": "*", "action": "deny"}, 0),
    "a quota": ({"quota": "3/minute"}, 3),
    "several quotas": ({"quota": "3/minute; 1/hour"}, 1),
}


@pytest.mark.parametrize("whom", ["everybody", "an identity", "a pattern"])
@pytest.mark.parametrize("case", STEERED)
def test_what_each_action_does(make: Make, case: str, whom: str) -> None:
    given, expected = STEERED[case]
    target: dict[str, dict[str, Any]] = {
        "everybody": {},
        "an identity": {"identities": ALICE},
        "a pattern": {"pattern": "user:al*"},
    }
    application, office = make()
    if (case, whom) == ("all denied", "everybody"):
        with pytest.raises(OverrideError, match="every request of everybody"):
            office.overrides.set(**given)
        return
    office.overrides.set(**{"rule": "export", **target[whom], **given})
    assert application.passes(4) == expected
    assert application.passes(4, "bob") == (expected if whom == "everybody" else 2)


def test_a_denied_identity_gets_403_also_where_no_rule_applies(make: Make) -> None:
    application, office = make(rules=[{**EXPORT, "methods": ["POST"]}])
    office.overrides.set("*", action="deny", identities=ALICE)
    assert application.ask() is FORBIDDEN
    assert application.ask("bob") is None


@pytest.mark.parametrize("option", ["path", "methods", "when"])
def test_a_denied_identity_stays_out_where_the_rule_of_a_narrower_override_does_not_apply(
    make: Make, colour: str, option: str
) -> None:
    async def later(visitor: Visitor) -> bool:
        return visitor.method == "POST"

    when = later if colour == "async" else lambda visitor: visitor.method == "POST"
    only = {"path": "/m", "methods": ["POST"], "when": when}[option]
    application, office = make(key="user", rules=[{"name": "m", "quota": "3/hour", option: only}])
    office.overrides.set("*", action="deny", identities=ALICE)
    office.overrides.set("m", "9/hour", identities=ALICE)
    assert application.ask() is FORBIDDEN
    assert application.passes(1, "bob") == 1


def test_a_rule_in_shadow_is_enforced(make: Make) -> None:
    application, office = make(mode="shadow")
    assert application.passes(4) == 4
    office.overrides.set("export", action="enforce")
    application.pass_by()
    assert application.passes(4) == 2


def test_a_tier_gets_another_quota(make: Make) -> None:
    tiers = Tiers(
        {"free": "1/minute", "pro": "2/minute", "staff": None}, by=lambda visitor: visitor.path, default="free"
    )
    application, office = make(rules=[Rule(name="export", quota=tiers, key="user")])
    office.overrides.set("export", "3/minute", tier="free")
    office.overrides.set("export", "4/minute", tier="staff")

    def passes(tier: str, user: str) -> int:
        return sum([(found := application.ask(user, path=tier)) is None or found.allowed for _ in range(6)])

    assert [passes(*each) for each in (("free", "a"), ("pro", "b"), ("staff", "c"), ("else", "d"))] == [3, 2, 4, 3]


def test_an_identity_is_found_under_a_secret(make: Make) -> None:
    secret = "a secret of 24 letters.."
    application, _ = make(secret=secret)
    with closing(Limiter(cast("str", application.settings.store), secret=secret)) as office:
        opened = application.gate.limiter.opened
        if application.settings.store == "memory://":
            office.use(getattr(opened, "memory", opened))
        made = office.overrides.set("export", action="off", identities=ALICE)
        assert made.digests != (digest(identity_text(ALICE[0])),), "who knows no secret cannot test a guess"
        assert (application.passes(4), application.passes(4, "bob")) == (4, 2)


def test_a_quota_that_the_rule_cannot_have_changes_nothing(make: Make) -> None:
    application, office = make(rules=[{**EXPORT, "cost": 2, "quota": "4/minute"}])
    for quota in ("1/minute", "2 at once"):
        office.overrides.set("export", quota)
        application.pass_by()
        with pytest.warns(SluicegateWarning, match="SG114"):
            assert application.passes(1) == 1


def test_it_ends_by_itself_while_the_server_is_away(colour: str, valkey: Server) -> None:
    with closing(Application(valkey.url, colour)) as application, Limiter(valkey.url) as office:
        ask(valkey, "FLUSHALL")
        office.overrides.set("export", action="off", identities=ALICE)
        assert application.passes(4) == 4
        # Its end is by the clock of the application, which is not that of the office: so it is written by hand.
        held = application.gate.following.held
        ending = tuple([each.__class__(**_facts(each, application)) for each in held])
        application.gate.following.take(Document(2, ending).text())
        assert application.passes(4) == 4
        application.pass_by(0.5)
        application.gate.limiter.opened.read_overrides = None  # nothing is asked: it ends without a look
        assert application.passes(4) == 2


def _facts(override: Any, application: Application) -> dict[str, Any]:
    until = application.clock.now_us() + 400_000
    return {name: getattr(override, name) for name in override.__slots__} | {"until": until}


BROKEN: dict[str, Callable[[Server, str], object]] = {
    "other text": lambda server, key: ask(server, "SET", key, "hello"),
    "a newer format": lambda server, key: ask(server, "SET", key, "sluicegate 9 1 x\n[]"),
    "another type": lambda server, key: (ask(server, "DEL", key), ask(server, "LPUSH", key, "x")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_value_changes_nothing_and_is_reported_once(
    colour: str, valkey: Server, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Application(valkey.url, colour)) as application, Limiter(valkey.url) as office:
        ask(valkey, "FLUSHALL")
        office.overrides.set("export", "3/minute")
        assert application.passes(4) == 3
        BROKEN[case](valkey, "sg:{overrides}:document")
        application.pass_by(61)
        with pytest.warns(SluicegateWarning, match="SG115"), caplog.at_level("WARNING", "sluicegate"):
            assert application.passes(4) == 3
        assert [getattr(each, "sluicegate_event", None) for each in caplog.records] == ["overrides_refused"]
        with warnings.catch_warnings(action="error"):
            application.pass_by(61)
            assert application.passes(4) == 3
        office.overrides.remove("*") if case == "other text" else ask(valkey, "DEL", "sg:{overrides}:document")
        application.pass_by(61)
        assert application.passes(4) == 2


@pytest.mark.parametrize("decodes", [True, False])
def test_a_document_that_is_no_text_is_reported_and_can_be_removed(colour: str, valkey: Server, decodes: bool) -> None:
    """Also with a client of the user that decodes replies."""
    ask(valkey, "FLUSHALL")
    options: Any = {"decode_responses": decodes, "socket_timeout": 5, "retry": None}
    client: Any = (Redis if colour == "sync" else AsyncRedis).from_url(valkey.url, **options)
    clock = ManualClock()
    store = RedisStore(client, clock=clock) if colour == "sync" else AsyncRedisStore(client, clock=clock)
    with (
        closing(Application(store, colour, clock=None)) as application,
        Limiter(RedisStore(Redis.from_url(valkey.url, **options))) as office,
    ):
        application.clock = clock
        ask(valkey, "SET", "sg:{overrides}:document", b"\xff\xfe hello")
        with pytest.warns(SluicegateWarning, match="SG115"):
            assert application.passes(4) == 2
        office.overrides.remove("*")
        ask(valkey, "LPUSH", "sg:{overrides}:history", b"\xff\xfe hello")
        with pytest.raises(OverrideError, match="history"):
            office.overrides.history()
        office.overrides.set("export", action="off")
        application.pass_by(61)
        assert application.passes(4) == 4
        if colour == "async":
            application.runner.run(client.aclose())


def test_a_user_without_the_permission_is_told_once(colour: str, valkey: Server) -> None:
    ask(valkey, "FLUSHALL")
    ask(valkey, "ACL", "SETUSER", "narrow", "on", ">secret", "~*", "+@all", "-getrange", "-get")
    url = valkey.url.replace("://", "://narrow:secret@")
    try:
        with closing(Application(url, colour, rules=[{**EXPORT, "algorithm": "sliding-log"}])) as application:
            with pytest.warns(SluicegateWarning, match="SG115.*Permissions|Permissions.*SG115"):
                assert application.passes(4) == 2
            with warnings.catch_warnings(action="error"):
                application.pass_by()
                assert application.passes(1) == 0
    finally:
        ask(valkey, "ACL", "DELUSER", "narrow")


def test_a_busy_process_looks_once_a_second_beside_its_requests(colour: str, valkey: Server) -> None:
    """By the commands that the server has counted. The looks of a process in traffic are in no request's way."""
    with closing(Application(valkey.url, colour)) as application, Limiter(valkey.url) as office:
        office.overrides.set("other", action="off")
        application.passes(1)
        before = _calls(valkey)
        for _ in range(100):  # ten seconds of traffic
            application.passes(1)
            application.pass_by(0.1)
        wait_until("the last look has ended", lambda: _calls(valkey) - before >= 8)
        assert 8 <= _calls(valkey) - before <= 10


def _calls(server: Server) -> int:
    stats = ask(server, "INFO", "commandstats")
    return sum([int(stats[name]["calls"]) for name in _LOOKS if name in stats])


_LOOKS = ("cmdstat_getrange", "cmdstat_get", "cmdstat_zincrby")


def test_a_process_without_traffic_follows_at_its_first_request(make: Make) -> None:
    application, office = make()
    application.passes(1)
    office.overrides.set("export", action="deny")
    application.pass_by(3600)
    assert application.passes(1) == 0


def test_a_silent_server_holds_no_request_up(colour: str, valkey: Server) -> None:
    """The last good set holds. A request after a rest waits for one deadline at most."""
    ask(valkey, "FLUSHALL")
    with closing(Application(valkey.url, colour, on_store_failure="allow", deadline=0.2)) as application:
        application.passes(1)
        valkey.pause()
        try:
            application.pass_by(10)
            began = monotonic()
            assert application.passes(3) == 3
            assert monotonic() - began < 2
        finally:
            valkey.resume()


FILE = """
[[overrides]]
rule = "export"
quota = "3/minute"

[[overrides]]
rule = "export"
action = "off"
identities = ["user:alice", "ip:203.0.113.7"]
why = "a test"
"""


def test_a_file_is_followed(colour: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(FILE, "utf-8")
    with closing(Application("memory://", colour, overrides=str(path))) as application:
        assert (application.passes(5), application.passes(5, "bob")) == (5, 3)
        path.write_text("[[overrides]]\nrule = 'export'\n\n[[overrides]]\nrule = 'export'\naction='stop'\n", "utf-8")
        application.pass_by()
        with pytest.warns(SluicegateWarning, match="line 1.*line 4"):
            assert application.passes(5) == 5
        path.write_text("", "utf-8")
        application.pass_by()
        assert application.passes(5) == 2
        path.unlink()
        application.pass_by(61)
        with pytest.warns(SluicegateWarning, match="No such file"):
            assert application.passes(5) == 2


@pytest.mark.parametrize("source", ["valkey", "file"])
def test_a_set_is_read_beside_the_requests(
    colour: str, source: str, valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a thread: a set of 10,000 overrides is read for a tenth of a second, and an event loop must go on."""
    ask(valkey, "FLUSHALL")
    path, threads, taken = tmp_path / "limits.toml", list[Thread](), Following.take

    def take(following: Following, found: Any) -> None:
        threads.append(current_thread())
        taken(following, found)

    monkeypatch.setattr(Following, "take", take)
    path.write_text(FILE, "utf-8")
    kept: Any = valkey.url if source == "valkey" else "memory://"
    follows: Any = True if source == "valkey" else str(path)
    with (
        closing(Application(kept, colour, deadline=5, overrides=follows)) as application,
        Limiter(valkey.url) as office,
    ):
        office.overrides.set("export", action="off", identities=ALICE)
        assert application.passes(5) == 5
        assert threads
        assert current_thread() not in threads


def test_a_set_is_written_beside_the_loop(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(valkey, "FLUSHALL")
    threads, text = list[Thread](), Document.text

    def noted(document: Document) -> bytes:
        threads.append(current_thread())
        return text(document)

    monkeypatch.setattr(Document, "text", noted)

    async def write() -> None:
        limiter = AsyncLimiter(valkey.url, deadline=5)
        await limiter.overrides.set("export", action="off")
        await limiter.close()

    asyncio.run(write())
    assert threads
    assert current_thread() not in threads


def _bounds() -> int:
    """Return how many rules are kept ready in this process."""
    gc.collect()
    return sum([type(each) is Bound for each in gc.get_objects()])


@pytest.mark.slow
def test_a_rule_that_is_made_ready_for_each_request_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a throttle of REST framework."""
    made: list[str] = []

    def counted(rule: Rule, quota: str, *, algorithm: str) -> Any:
        made.append(rule.name)
        return terms_with(rule, quota, algorithm=algorithm)

    monkeypatch.setattr("sluicegate.web.gate.terms_with", counted)
    with closing(Application("memory://", "sync")) as application:
        before = _bounds()
        application.gate.limiter.overrides.set("*", "2000/minute")
        (bound,) = application.gate.bind_rule(Rule(name="throttle", quota="1/minute"))
        for number in range(1000):
            own = replace(bound, key=lambda _caller, _known, text=f"{number % 2}": text)
            assert application.gate.decide(Visitor(), (own,)).allowed
        assert made == ["throttle"]
        assert _bounds() - before < 500


def test_nothing_is_followed_without_the_setting(colour: str, valkey: Server) -> None:
    with closing(Application(valkey.url, colour, overrides=False)) as application, Limiter(valkey.url) as office:
        ask(valkey, "FLUSHALL")
        office.overrides.set("export", action="deny")
        assert application.passes(3) == 2


RULES = """
[[rules]]
name = "export"
quota = "2/minute"
key = "user"
"""
MORE = """
[[rules]]
name = "all"
quota = "1/hour"
key = "ip"
"""


def test_rules_are_added_changed_and_removed_while_it_runs(colour: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(RULES, "utf-8")
    with closing(Application("memory://", colour, rules=str(path), overrides=False)) as application:
        assert application.passes(3) == 2
        more, less = RULES.replace("2/m", "4/m"), RULES.replace("2/m", "1/m")
        for text, passes in ((more, 2), (RULES + MORE, 0), ("rules = []", 3), (less, 0)):
            path.write_text(text, "utf-8")
            application.pass_by(2)
            assert application.passes(3) == passes, text


WRONG_RULES = {
    "two errors": (RULES.replace("2/minute", "2/never") + MORE.replace('"ip"', '"port"'), "line 2.*line 7"),
    "no TOML": (RULES + "[[", "limits.toml"),
    "a name twice": (RULES + RULES, "line 7.*two rules"),
    "a misspelt array": (RULES.replace("rules", "rule"), r"'rule'.*\[\[rules\]\] or \[\[overrides\]\]"),
    "a table of the settings": (RULES.replace("rules", "sluicegate.rules"), "'sluicegate'"),
    "empty": ("", r"rules = \[\]"),
    "cut off": (RULES[:1], r"rules = \[\]"),
    "too deep": ("rules = " + "[" * 9999, "limits.toml"),
    "a huge number": ("rules = " + "9" * 9999, "limits.toml"),
    "no array": ("rules = 7", "no array of tables"),
    "an unknown option": (RULES + "colour = 7", "line 2.*no such option"),
    "another ban of that name": (RULES + 'ban = {after=1, within="1 minute", duration="1 hour"}', "different ban"),
}


@pytest.mark.parametrize("case", WRONG_RULES)
def test_a_wrong_file_of_rules_changes_nothing(colour: str, tmp_path: Path, case: str) -> None:
    text, says = WRONG_RULES[case]
    path = tmp_path / "limits.toml"
    path.write_text(RULES, "utf-8")
    mark = make_mark("9/minute", ban=Ban(after=2, within="1 minute", duration="1 hour"), name="mark")
    with closing(Application("memory://", colour, rules=str(path))) as application:
        application.place = Endpoint("view", (mark,), label="shop.view")
        assert application.passes(1) == 1
        path.write_text(text, "utf-8")
        application.pass_by(2)
        with pytest.warns(SluicegateWarning, match=f"(?s)SG116|{says}") as warned:
            assert application.passes(2) == 1
        assert re.search(says, str(warned[0].message), re.DOTALL)
        path.write_text(RULES.replace("2/m", "3/m"), "utf-8")
        application.pass_by(2)
        assert application.passes(2) == 1


def test_an_application_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    with pytest.raises(OverrideError, match="No such file"):
        Settings(rules=str(path))
    for case in ("two errors", "a misspelt array", "empty"):
        text, says = WRONG_RULES[case]
        path.write_text(text, "utf-8")
        with pytest.raises(OverrideError, match=says):
            Settings(rules=str(path))
    with pytest.raises(OverrideError, match="null"):
        Settings(rules="limits\0.toml")


def test_all_requests_of_a_burst_after_a_rest_wait_for_the_one_look(valkey: Server) -> None:
    ask(valkey, "FLUSHALL")
    with closing(Application(valkey.url, "sync", deadline=5)) as application, Limiter(valkey.url) as office:
        application.passes(1)
        office.overrides.set("export", action="deny")
        application.pass_by(10)
        with ThreadPoolExecutor(8) as pool:
            assert not any(pool.map(lambda _: application.passes(1), range(8)))


def test_all_tasks_of_a_burst_after_a_rest_wait_for_the_one_look(valkey: Server) -> None:
    ask(valkey, "FLUSHALL")
    with closing(Application(valkey.url, "async", deadline=5)) as application, Limiter(valkey.url) as office:
        office.overrides.set("export", action="deny")

        async def burst() -> list[Decision | None]:
            gate, bounds = application.gate, application.gate.bind(PLACE)
            return list(await asyncio.gather(*[gate.decide(Visitor(user="alice"), bounds) for _ in range(50)]))

        assert application.runner.run(burst()) == [FORBIDDEN] * 50


def test_an_open_circuit_is_not_waited_for(colour: str, valkey: Server) -> None:
    ask(valkey, "FLUSHALL")
    with closing(Application(valkey.url, colour, deadline=0.2, on_store_failure="allow")) as application:
        application.passes(1)
        valkey.pause()
        try:
            application.pass_by(10)
            began = monotonic()
            application.passes(1)
            assert monotonic() - began < 0.2 + 0.1 + 0.25, "half a deadline for the look, and one for the charge"
            for _ in range(3):
                application.clock.advance(0.1)
                application.gate.following.after_fork()  # as after a rest, before the circuit is tried again
                began = monotonic()
                application.passes(1)
                assert monotonic() - began < 0.1
        finally:
            valkey.resume()


@pytest.mark.parametrize(("everywhere", "here", "passes"), [("deny", "allow", 3), ("allow", "deny", 0)])
def test_a_narrower_override_holds_also_against_one_of_every_rule(
    make: Make, everywhere: Any, here: Any, passes: int
) -> None:
    application, office = make()
    office.overrides.set("*", action=everywhere, pattern="user:*")
    office.overrides.set("export", action=here, identities=ALICE)
    assert application.passes(3) == passes
    assert application.passes(3, "bob") == (0 if everywhere == "deny" else 3)


@pytest.mark.parametrize(
    ("every", "here", "whom", "passes"),
    [
        ("deny", {"quota": "3/minute"}, {"identities": ALICE}, 0),  # a list comes before another quota
        ("deny", {"action": "allow"}, {"identities": ALICE}, 5),  # of the same width: that of the rule itself
        ("allow", {"action": "deny"}, {"tier": "free"}, 0),
        ("allow", {"action": "deny"}, {"tier": "pro"}, 5),
    ],
)
def test_the_tier_and_the_rule_itself_come_before_every_rule(
    make: Make, every: Any, here: dict[str, Any], whom: dict[str, Any], passes: int
) -> None:
    tiers = Tiers({"free": "2/minute", "pro": "4/minute"}, by=lambda visitor: "free")
    application, office = make(rules=[{**EXPORT, "quota": tiers}])
    office.overrides.set("*", action=every, **{"identities": whom["identities"]} if "identities" in whom else {})
    office.overrides.set("export", **here, **whom)
    assert application.passes(5) == passes


@pytest.mark.parametrize(
    ("every", "here", "path", "passes"),
    [
        ("deny", {}, "/both", 0),
        ("deny", {"mine": "deny"}, "/other", 0),  # a second deny opens nothing
        ("deny", {"mine": "allow"}, "/mine", 5),
        ("deny", {"mine": "allow"}, "/both", 0),  # the other rule makes no exception
        ("deny", {"mine": "allow"}, "/none", 0),
        ("allow", {}, "/both", 5),
        ("allow", {"mine": "allow"}, "/both", 5),
        ("allow", {"mine": "deny"}, "/other", 5),
        ("allow", {"mine": "deny"}, "/both", 0),
    ],
)
def test_an_exception_is_of_its_rule(make: Make, every: Any, here: dict[str, Any], path: str, passes: int) -> None:
    """Beside it `other` counts by another key, under which the identity is not known."""
    mine = {
        "name": "mine",
        "quota": "3/hour",
        "key": "user",
        "when": lambda visitor: visitor.path in ("/mine", "/both"),
    }
    other = {**mine, "name": "other", "key": "ip", "when": lambda visitor: visitor.path in ("/other", "/both")}
    application, office = make(rules=[mine, other], key="user")
    office.overrides.set("*", action=every, identities=ALICE)
    for rule, action in here.items():
        office.overrides.set(rule, action=action, identities=ALICE)
    found = [application.ask("alice", path=path) for _ in range(5)]
    assert sum([each is None or each.allowed for each in found]) == passes


def test_what_the_lists_of_the_settings_say_comes_first(make: Make) -> None:
    application, office = make(allow=["203.0.113.7"])
    office.overrides.set("*", action="deny", identities=ALICE)
    assert application.passes(3) == 3


def test_allow_passes_a_ban_too(make: Make) -> None:
    application, office = make(rules=[{**EXPORT, "ban": Ban(after=1, within="1 hour", duration="1 hour")}])
    assert application.passes(4) == 2
    application.pass_by(600)
    assert application.passes(1) == 0, "banned"
    office.overrides.set("*", action="allow", identities=ALICE)
    application.pass_by()
    assert application.passes(3) == 3


def test_a_limiter_follows_no_override(make: Make) -> None:
    application, office = make()
    office.overrides.set("*", action="deny", identities=ALICE)
    assert office.hit("1/minute", "alice").allowed
    assert application.passes(1) == 0


def test_a_process_that_starts_while_the_server_is_away_knows_none(colour: str, valkey: Server) -> None:
    ask(valkey, "FLUSHALL")
    with Limiter(valkey.url) as office:
        office.overrides.set("export", action="deny")
    valkey.pause()
    try:
        with closing(Application(valkey.url, colour, on_store_failure="allow", deadline=0.2)) as application:
            assert application.passes(1) == 1
    finally:
        valkey.resume()


def test_a_key_function_is_called_only_where_a_rule_has_it(make: Make) -> None:
    def of_team(visitor: Visitor) -> str:
        raise KeyError("no team")

    application, office = make(key=of_team, rules=[EXPORT, {"name": "b", "quota": "1/minute", "path": "/b"}])
    office.overrides.set("*", action="deny", identities=ALICE)
    assert application.passes(1, "bob") == 1
    assert application.passes(1) == 0, "the rule has a key of its own"


def test_a_forked_process_looks_and_tells_its_name(valkey: Server) -> None:
    with closing(Application(valkey.url, "sync")) as application:
        application.passes(1)
        following = application.gate.following
        assert not following.introduction("")
        application.gate.after_fork()
        assert following.begin() == (True, True)
        assert following.introduction("")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("source", ["valkey", "file"])
def test_a_process_that_is_forked_during_a_look_learns_the_set(valkey: Server, tmp_path: Path, source: str) -> None:
    ask(valkey, "FLUSHALL")
    path = tmp_path / "limits.toml"
    path.write_text("overrides = []", "utf-8")
    follows: Any = True if source == "valkey" else str(path)
    with closing(Application(valkey.url, "sync", overrides=follows)) as application, Limiter(valkey.url) as office:
        assert application.passes(1) == 1
        office.overrides.set("export", action="deny")
        path.write_text("[[overrides]]\nrule = 'export'\naction = 'deny'", "utf-8")
        following, codes = application.gate.following, list[int]()

        def forked(_: Any) -> tuple[Any, ...]:  # where the thread of a look reads the new set
            if not codes and (child := os.fork()):
                codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            elif not codes:
                following._parse = parse
                os._exit(application.passes(1))
            return ()

        parse, following._parse = following._parse, forked
        application.pass_by()
        application.passes(1)
        wait_until("the child has asked", lambda: codes)
        assert codes == [0]


def test_an_end_and_a_newer_set_at_one_time() -> None:
    """A thread that applies an end must not undo what another one has taken since."""
    clock = ManualClock()
    newer, threads = (Override(rule="b", action="deny", id="new"),), list[Thread]()

    class Slow(Following):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "_next_end" and value is None and not threads and getattr(self, "applied", None):
                threads.append(Thread(target=self.take, args=(newer,)))  # the other thread is switched to here
                threads[0].start()
                threads[0].join(0.3)
            super().__setattr__(name, value)

    following = Slow(lambda found: found, clock=clock)
    ends = Override(rule="a", action="off", until=clock.now_us() + 5, id="1")
    following.take((ends, Override(rule="c", action="off", id="2")))
    clock.advance(1)
    following.begin()
    threads[0].join()
    assert following.applied is not None
    assert following.applied.overrides == newer


def test_a_view_that_is_new_during_a_reload_gets_the_new_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(RULES, "utf-8")
    with closing(Application("memory://", "sync", rules=str(path), overrides=False)) as application:
        gate, bind = application.gate, application.gate._bind

        def slow(*given: Any) -> Any:  # between the two steps of its thread another one reads the file
            found = bind(*given)
            monkeypatch.undo()
            path.write_text(RULES.replace("2/m", "3/m"), "utf-8")
            application.pass_by(2)
            gate.bind(Endpoint("old"))
            return found

        monkeypatch.setattr(gate, "_bind", slow)
        gate.bind(PLACE)
        assert application.passes(4) == 3


WRONG_OVERRIDES = {
    "a misspelt array": ("[[override]]\nrule = '*'\naction = 'deny'", "'override'"),
    "identities without any": ("[[overrides]]\nrule = '*'\naction = 'deny'\nidentities = []", "empty one"),
    "identities as text": ("[[overrides]]\nrule = '*'\naction = 'deny'\nidentities = 'user:bob'", "not a list"),
    "a pattern that is no text": ("[[overrides]]\nrule = 'a'\naction = 'off'\npattern = 7\ntier = 'a'", "pattern"),
    "a tier that is no text": ("[[overrides]]\nrule = 'a'\naction = 'off'\npattern = 'user:*'\ntier = 7", "tier"),
    "too deep": ("overrides = " + "[" * 9999, "limits.toml"),
}


@pytest.mark.parametrize("case", WRONG_OVERRIDES)
def test_a_wrong_file_of_overrides_changes_nothing(colour: str, tmp_path: Path, case: str) -> None:
    text, says = WRONG_OVERRIDES[case]
    path = tmp_path / "limits.toml"
    path.write_text(FILE, "utf-8")
    with closing(Application("memory://", colour, overrides=str(path))) as application:
        assert application.passes(3) == 3
        path.write_text(text, "utf-8")
        application.pass_by()
        with pytest.warns(SluicegateWarning, match=says):
            assert (application.passes(4), application.passes(4, "bob")) == (4, 3)

"""A replay decides as the engine does: event by event as a Limiter, and as applications that get the same requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

import polars as pl
import pytest
from flask import Flask, Response
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sluicegate import Limiter, ManualClock, Rule, Settings
from sluicegate.algorithms import ALGORITHMS
from sluicegate.flask import RateLimiter
from sluicegate.replay import plain
from sluicegate.replay.caller import StatusIn
from sluicegate.replay.candidates import Candidate, from_rules
from sluicegate.replay.closed_loop import waits_of
from sluicegate.replay.decide import ALLOWED, Decider, Ready, decided, one_identity
from sluicegate.replay.plain import Asked, Met
from sluicegate.replay.traffic import COLUMNS
from sluicegate.rules.ban import Ban
from sluicegate.starlette import RateLimitMiddleware
from sluicegate.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.replay.decided import decisions

START = 1_700_000_000_000_000
SECOND = 1_000_000
KEPT = ("time", "address", "forwarded", "user", "method", "path", "status", "bytes", "duration")

# Times with ties and with gaps around the periods of the rules, and a microsecond beside them.
steps = st.one_of(
    st.sampled_from([0, 1, SECOND, 10 * SECOND, 10 * SECOND - 1, 60 * SECOND]), st.integers(0, 8 * SECOND)
)
rows = st.tuples(
    steps,
    st.sampled_from(["203.0.113.1", "203.0.113.2", "2001:db8::1", "2001:db8::2"]),
    st.sampled_from([None, "198.51.100.1", "198.51.100.2, 203.0.113.9"]),
    st.sampled_from([None, None, "alice", "bob"]),
    st.sampled_from(["GET", "POST", "HEAD"]),
    st.sampled_from(["/", "/login", "/api/a", "/api/b/c"]),
    st.sampled_from([200, 200, 401, 404, 500]),
    st.integers(0, 3),
    st.sampled_from([0, 0, 1, SECOND, 7 * SECOND, 100 * SECOND]),
)


def frame(drawn: Iterable[tuple[Any, ...]]) -> pl.DataFrame:
    """A frame of traffic. The first number of a row is the time since the row before."""
    now, found = START, []
    for step, *others in drawn:
        now += step
        found.append((now, *others))
    return pl.DataFrame(found, schema={name: COLUMNS[name] for name in KEPT}, orient="row")


traffic = st.lists(rows, min_size=1, max_size=60).map(frame)
quotas = st.builds("{} per {} seconds".format, st.integers(1, 6), st.sampled_from([1, 10, 60]))


octets = st.one_of(st.integers(0, 300), st.sampled_from(["", "01", "1a", "٣"])).map(str)
address_texts = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.ip_addresses(v=6).map(lambda address: address.exploded.upper()),
    st.lists(octets, min_size=3, max_size=5).map(".".join),
    st.ip_addresses(v=4).map("::ffff:{}".format),
    st.ip_addresses(v=4).map("{}:443".format),
    st.ip_addresses(v=6).map("[{}]:80".format),
    st.sampled_from(
        [None, "", "unix:", "1.2.3.4\n", " 1.2.3.4", "127.0.0.1", "::1", "64:ff9b::1.2.3.4", "fe80::1%eth0"]
    ),
    st.text(max_size=80),
)
ways = st.fixed_dictionaries(
    {"ipv4_prefix": st.sampled_from([32, 32, 24]), "ipv6_prefix": st.sampled_from([64, 128, 48])},
    optional={"trusted_proxies": st.sampled_from([1, 2, ["10.0.0.0/8", "203.0.113.0/24", "unix"]])},
)
hops = st.one_of(st.none(), address_texts, st.tuples(address_texts, address_texts).map("{0[0]}, {0[1]}".format))


@pytest.mark.slow
@given(st.lists(st.tuples(address_texts, hops), min_size=1, max_size=30), ways, st.sampled_from(["ip", "user ip"]))
def test_an_identity_is_that_of_the_gate(pairs: list[Any], options: dict[str, Any], keys: str) -> None:
    """Whether its text is made of a column or by the key's own function."""
    ready = Ready(from_rules([f"{at + 1}/minute by {key}" for at, key in enumerate(keys.split())], **options))
    names = ("address", "forwarded")
    at = {name: place for place, name in enumerate(names) if name in (ready.reads or ())}
    whole = pl.DataFrame(pairs, schema=dict.fromkeys(names, pl.String()), orient="row")
    for frame in (whole, whole[:0], whole.drop("forwarded")):
        seen = {name: place for name, place in at.items() if name in frame.columns}
        assert ready.identify(frame).to_list() == [ready.text_of(ready.request(row, seen)) for row in frame.rows()]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(traffic, st.one_of(quotas, st.just("201 per 7 seconds")), st.sampled_from([1, 1, 2, 67, 100, "cost"]))
def test_a_plain_rule_decides_as_a_limiter(algorithm: Any, traffic: pl.DataFrame, quota: str, cost: Any) -> None:
    limit = int(quota.split(maxsplit=1)[0])
    cost = min(cost, limit) if isinstance(cost, int) else cost
    text = f"{quota} with {algorithm} cost {'bytes' if cost == 'cost' else cost}"
    candidate = from_rules([text], ipv6_prefix=128)
    clock = ManualClock(START / SECOND)
    limiter = Limiter(clock=clock)
    expected = []
    for now, address, units in traffic.select("time", "address", "bytes").iter_rows():
        clock.advance_us(now - clock.now_us())
        made = limiter.hit(quota, address, cost=units if cost == "cost" else cost, algorithm=algorithm)
        expected.append((made.allowed, None if made.allowed else made.outcomes[0].retry_after))
    assert Ready(candidate).plain
    assert decisions(traffic, candidate).select("allowed", "retry_after").rows() == expected


rules: Any = st.lists(
    st.builds(
        dict,
        quota=st.one_of(quotas, st.just("3 per 10 seconds; 5/minute"), st.just("2 at once for 400 seconds")),
        key=st.sampled_from([None, "ip", "user", ("ip", "user"), "header:User-Agent"]),
        algorithm=st.sampled_from([None, "fixed-window", "gcra", "sliding-log", "sliding-counter"]),
        methods=st.sampled_from([None, None, ["GET"], ["POST"]]),
        path=st.sampled_from([None, None, "/login", "/api/*"]),
        count_denied=st.booleans(),
        mode=st.sampled_from(["enforce", "enforce", "shadow"]),
        enforce_percent=st.sampled_from([100, 100, 50]),
        per_method=st.booleans(),
        charge_when=st.sampled_from([None, None, StatusIn(frozenset([401]), frozenset([5]))]),
        ban=st.sampled_from([None, None, Ban(after=2, within=10, duration=30, factor=2, longest=90)]),
        when=st.sampled_from([None, None, None, bool]),
    ),
    min_size=1,
    max_size=3,
)
others = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["ip", "user"]),
        "trusted_proxies": st.sampled_from([None, 1, ["203.0.113.0/24"]]),
        "ipv6_prefix": st.sampled_from([64, 128]),
        "allow": st.sampled_from([(), (), ["203.0.113.2"]]),
        "deny": st.sampled_from([(), (), ["2001:db8::2"]]),
        "mode": st.sampled_from(["enforce", "enforce", "enforce", "shadow"]),
    }
)


def made(drawn: list[dict[str, Any]], **options: Any) -> Settings:
    """Settings with these rules. A Concurrency takes none of the options that have no meaning for it."""
    found = []
    for number, rule in enumerate(drawn):
        less: dict[str, Any] = {"enforce_percent": 100} if rule["mode"] == "shadow" else {}
        if "at once" in rule["quota"]:
            less |= {"algorithm": None, "count_denied": False, "charge_when": None}
        found.append(Rule(name=f"rule{number}", **(rule | less)))
    return Settings(rules=found, **options)


class Served:
    """A WSGI application behind the middleware, with requests that overlap as in the traffic."""

    def __init__(self, given: Settings) -> None:
        self.clock = ManualClock(START / SECOND)
        options = {
            name: getattr(given, name) for name in ("key", "trusted_proxies", "ipv6_prefix", "allow", "deny", "mode")
        }
        self.middleware = WsgiMiddleware(self.application, rules=given.rules, clock=self.clock, **options)
        self._open: list[tuple[int, int, Any]] = []
        self._numbers = count()

    @staticmethod
    def application(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response(f"{environ['test.status']} .", [])  # when the body is read: at the end of the request
        yield b""

    def move(self, now: int) -> None:
        """Move the clock, and end the requests that end until then."""
        while self._open and self._open[0][0] <= now:
            at, _, chunks = heappop(self._open)
            self.clock.advance_us(max(0, at - self.clock.now_us()))
            list(chunks)
            chunks.close()
        self.clock.advance_us(now - self.clock.now_us())

    def ask(self, row: dict[str, Any]) -> tuple[bool, int | None]:
        """Send one request. Return whether it was allowed, and how many microseconds to wait."""
        self.move(row["time"])
        environ = {"REQUEST_METHOD": row["method"], "PATH_INFO": row["path"], "REMOTE_ADDR": row["address"]}
        environ |= {"HTTP_X_FORWARDED_FOR": row["forwarded"]} if row["forwarded"] else {}
        environ |= {"REMOTE_USER": row["user"]} if row["user"] else {}
        started: list[str] = []
        environ["test.status"] = row["status"]

        def start(line: str, *_: object) -> Any:
            started.append(line)

        chunks = self.middleware(environ, start)
        if started:
            decision = environ["sluicegate.state"].decision
            wait = None if decision.forbidden else decision.retry_after
            return False, None if wait is None else round(wait * SECOND)
        heappush(self._open, (row["time"] + row["duration"], next(self._numbers), chunks))
        return True, None


@pytest.mark.slow
@settings(max_examples=150)
@given(traffic, rules, others)
@pytest.mark.filterwarnings("ignore::sluicegate.SluicegateWarning")
def test_any_rules_decide_as_a_wsgi_application(
    traffic: pl.DataFrame, rules: list[dict[str, Any]], others: dict[str, Any]
) -> None:
    given = made(rules, **others)
    served = Served(given)
    expected = [served.ask(row) for row in traffic.iter_rows(named=True)]
    assert decisions(traffic, Candidate("drawn", given)).select("allowed", "retry_after").rows() == expected


PLAIN: dict[str, Any] = {
    "when": None,
    "key": "ip",
    "mode": "enforce",
    "enforce_percent": 100,
    "count_denied": False,
    "per_method": False,
    "charge_when": None,
    "ban": None,
}


@pytest.mark.slow
@settings(max_examples=150)
@given(traffic, rules)
@pytest.mark.filterwarnings("ignore::sluicegate.SluicegateWarning")
def test_a_whole_identity_is_decided_as_one_request_after_the_other(
    traffic: pl.DataFrame, rules: list[dict[str, Any]]
) -> None:
    candidate = Candidate("drawn", made([rule | PLAIN for rule in rules]))
    ready, numbered = Ready(candidate), traffic.with_row_index("row")
    refusals = Decider(ready).feed(numbered).filter(pl.col("rule") != ALLOWED)
    found = decisions(traffic, candidate).with_row_index("row").filter(~pl.col("allowed"))
    assert found["row"].to_list() == refusals["row"].to_list()
    waits = [
        None if until is None else until - time
        for until, time in zip(refusals["until"], traffic["time"].gather(refusals["row"]), strict=True)
    ]
    assert found["retry_after"].to_list() == waits


@pytest.mark.parametrize("limits", [(1, 3), (5, 40), (70, 300), (101, 1000), (130, 400)])
@pytest.mark.parametrize("algorithm", ["sliding-log", "sliding-window", "fixed-window", "gcra"])
def test_quick_budgets_of_many_requests_are_those_of_their_algorithm(
    algorithm: str, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bursts, so that each quota refuses at some time: what is refused, and who waits how long."""
    ready = Ready(from_rules([f"{limits[0]}/minute; {limits[1]}/hour with {algorithm} cost {min(2, limits[0])}"]))
    ready.sets.append((0, 1))
    random, times, now = Random(1), list[int](), START
    for burst in range(60):
        for _ in range(random.randrange(200)):
            times.append(now := now + random.randrange(1, 3 * SECOND // (1 + burst % 4)))
        now += random.randrange(1200) * SECOND
    asked, found = Asked(times, [1] * len(times)), []
    for quick in (plain.QUICK, {}):
        monkeypatch.setattr(plain, "QUICK", quick)
        met = Met()
        one_identity(ready).wait(asked, met)
        found.append((one_identity(ready).refused(asked), met))
    assert found[0] == found[1]
    assert found[0][0]


def test_more_rules_than_a_number_has_bits() -> None:
    """All requests of an identity at once, and of a client that waits. No rule applies to the last path."""
    candidate = from_rules([f"r{at}: {at % 3 + 1}/minute by ip on /p{at}" for at in range(70)])
    asked = [(START + at, "203.0.113.1", f"/p{at % 71}", 0) for at in range(284)]
    traffic = pl.DataFrame(asked, schema=["time", "address", "path", "identity"], orient="row").with_row_index("row")
    refused = [at for at in range(284) if at % 71 < 70 and at // 71 > at % 71 % 3]
    ready = Ready(candidate)
    rest, _, refusals = decided(ready, traffic)
    assert refusals["row"].to_list() == refused
    waits = waits_of(ready, rest)
    assert (waits.delays.total(), waits.retries, waits.never) == (210, 72, 0)


RULES: list[dict[str, Any]] = [
    {
        "name": "login",
        "quota": "3 per 10 seconds",
        "path": "/login",
        "methods": ["POST"],
        "ban": Ban(after=2, within=30, duration=60),
    },
    {"name": "all", "quota": "5 per 10 seconds; 20/minute", "algorithm": "gcra"},
    {"name": "failed", "quota": "2/minute", "charge_when": StatusIn(frozenset([401])), "count_denied": False},
]


def ask_starlette(given: dict[str, Any], clock: ManualClock) -> Any:
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("", int(request.headers["test-status"]))

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    app.add_middleware(RateLimitMiddleware, clock=clock, **given)
    clients: dict[str, TestClient] = {}

    def seen_from(address: str) -> Any:  # an old TestClient cannot say its address
        async def serve(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "client": (address, 1)}, receive, send)

        return serve

    def ask(row: dict[str, Any]) -> int:
        client = clients.setdefault(row["address"], TestClient(seen_from(row["address"])))
        return client.request(row["method"], row["path"], headers={"test-status": str(row["status"])}).status_code

    return ask


def ask_flask(given: dict[str, Any], clock: ManualClock) -> Any:
    app = Flask("replayed")

    def answer(path: str, status: int = 200) -> Response:
        from flask import request

        return Response("", int(request.headers["test-status"]))

    app.add_url_rule("/", view_func=answer, defaults={"path": ""}, methods=["GET", "POST"])
    app.add_url_rule("/<path:path>", view_func=answer, methods=["GET", "POST"], endpoint="below")
    RateLimiter(app, clock=clock, **given)
    client = app.test_client()

    def ask(row: dict[str, Any]) -> int:
        headers = {"test-status": str(row["status"])}
        base = {"REMOTE_ADDR": row["address"]}
        return client.open(row["path"], method=row["method"], headers=headers, environ_base=base).status_code

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("make", [ask_starlette, ask_flask])
@settings(max_examples=25)
@given(st.lists(rows.map(lambda row: (*row[:2], None, None, *row[4:8], 0)), min_size=10, max_size=80).map(frame))
def test_an_application_gives_the_same_answers_over_http(make: Any, traffic: pl.DataFrame) -> None:
    given: dict[str, Any] = {"key": "ip", "rules": [Rule(**rule) for rule in RULES]}
    clock = ManualClock(START / SECOND)
    ask, expected = make(given, clock), []
    for row in traffic.iter_rows(named=True):
        clock.advance_us(row["time"] - clock.now_us())
        expected.append(ask(row) != 429)
    assert decisions(traffic, Candidate("app", Settings(**given)))["allowed"].to_list() == expected

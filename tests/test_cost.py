"""Costs that the response tells: the options, the debt, exactness under load, the readers of usage, the fields."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
from pathlib import Path
from time import process_time
from typing import Any, cast
from uuid import uuid4

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Limiter, ManualClock, Rule
from sluicegate.algorithms import KEPT
from sluicegate.asgi import RateLimitMiddleware, charge, settle
from sluicegate.errors import AsyncMismatchError, RuleError
from sluicegate.identity import identity_text
from sluicegate.plan import Check, Plan
from sluicegate.quota import Calendar, Quota
from sluicegate.rules.cost import HEAD, TAIL, Body, Ended
from sluicegate.rules.response import Response
from sluicegate.testing.store import EXAMINED
from sluicegate.usage import anthropic_tokens, openai_tokens
from tests.adapters.asgi_client import AsgiClient, make_scope
from tests.stores.places import PATIENCE

# ---- the options ----------------------------------------------------------------------------------------------------


def used(response: Ended) -> int:
    return 7


async def used_async(response: Ended) -> int:
    return 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "problem", "expected"),
    [
        ({"cost_after": 7}, "not a function", "give a plain function of the response"),
        ({"cost_after": lambda: 7}, "cannot be", "lambda response"),
        ({"cost_after": used, "estimate": -1}, "not a whole number", "give an int"),
        ({"cost_after": used, "estimate": 0}, "never refuses", "give a cost"),
        ({"cost_after": used, "estimate": 101}, "could never pass", "lower the estimate"),
        ({"cost_after": used, "estimate": lambda: 7}, "cannot be", "lambda request"),
        ({"cost_after": used, "cost": 5}, "given beside", "give it as estimate"),
        ({"cost_after": used, "charge_when": bool}, "given beside", "return 0"),
        ({"cost_after": used, "quota": "2 at once"}, "no meaning for a Concurrency", "leave it out"),
        ({"unit": "tök"}, "printable ASCII", "letters"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], problem: str, expected: str) -> None:
    with pytest.raises(RuleError) as caught:
        Rule(**{"name": "tokens", "quota": "100/minute", **options})
    assert problem in str(caught.value)
    assert expected in str(caught.value)


def test_an_async_cost_is_an_error_and_an_async_estimate_is_not() -> None:
    with pytest.raises(AsyncMismatchError, match="cost_after"):
        Rule(name="tokens", quota="100/minute", cost_after=used_async)  # type: ignore[arg-type]
    assert asyncio.run(statuses(Rule(name="a", quota="9/day", estimate=used_async, cost_after=used), 2)) == [200, 429]


# ---- the debt -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", EXAMINED)
@given(data=st.data())
def test_a_debt_is_paid_before_anything_passes(algorithm: str, data: st.DataObject) -> None:
    kept = KEPT[algorithm]
    is_dated = algorithm == "calendar"
    period = data.draw(st.sampled_from([Calendar("day"), Calendar("month")] if is_dated else [1, 60, 3600]))
    quota = Quota(data.draw(st.integers(1, 200)), cast(Any, period))
    params = kept.params(quota)
    most, limit = kept.owing(params), params[0]
    now, first = 1_760_000_000_000_000, data.draw(st.integers(0, limit))
    state = kept.decide(None, now, first, params)[1]
    debt = data.draw(st.integers(1, min(most[0] - limit, 9 * limit)))
    now += data.draw(st.integers(0, quota.period_us // 2))
    state = kept.decide(state, now, debt, most, forced=True)[1]
    outcome, same = kept.decide(state, now, 1, params)
    if debt >= limit:
        assert not outcome.allowed
    if not outcome.allowed:
        wait = outcome.retry_after or 0
        assert not kept.decide(same, now + wait - 1, 1, params)[0].allowed
        assert kept.decide(same, now + wait, 1, params)[0].allowed
    if algorithm in ("gcra", "token-bucket", "leaky-bucket"):
        leaked = now + quota.period_us * (first + debt - limit + 1) // limit
        assert not kept.decide(same, leaked - quota.period_us, 1, params)[0].allowed or first + debt < 2 * limit


@pytest.mark.parametrize("limit", [50, 100, 1_000])
@pytest.mark.parametrize("algorithm", EXAMINED)
def test_a_refund_after_a_debt_is_exact(algorithm: Any, limit: int, valkey: Any) -> None:
    valkey.flush()
    period, options = ("calendar day", {}) if algorithm == "calendar" else ("day", {"algorithm": algorithm})
    clock = ManualClock(1_760_000_000)
    clock.advance_us(1)  # no moment that an algorithm rounds to
    for url in ("memory://", valkey.url):
        with Limiter(url, clock=clock, deadline=PATIENCE) as limiter:
            for actual in (21, 0, 0, 0):
                limiter.reserve(f"{limit}/{period}", "a", cost=20, **options).settle(actual)
            assert limiter.peek(f"{limit}/{period}", "a", **options).remaining == limit - 21


@pytest.mark.parametrize("algorithm", EXAMINED)
def test_memory_and_the_server_agree_about_debts(algorithm: Any, valkey: Any) -> None:
    period, options = ("calendar hour", {}) if algorithm == "calendar" else ("minute", {"algorithm": algorithm})
    valkey.flush()
    clock, chance = ManualClock(1_760_000_000), random.Random(7)
    with Limiter(valkey.url, clock=clock, deadline=PATIENCE) as server:
        both = Limiter(clock=clock), server
        for limit in (3, 100, 5_000):
            for _ in range(30):
                estimate, actual = chance.randint(1, limit), chance.choice([0, 1, limit, 3 * limit])
                held = [each.reserve(f"{limit}/{period}", "a", cost=estimate, **options) for each in both]
                assert held[0].decision.outcomes[0][:6] == held[1].decision.outcomes[0][:6]
                clock.advance(chance.choice([0, 1, 30, 70]))
                for each in held:
                    each.settle(actual)
                seen = [each.peek(f"{limit}/{period}", "a", **options).outcomes[0][:6] for each in both]
                assert seen[0] == seen[1]
                clock.advance(chance.choice([0, 5]))


# ---- many clients at once -------------------------------------------------------------------------------------------


async def ask(app: Any, estimate: int = 1, cost: int = 1) -> int:
    found: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    await app(make_scope(headers=[("estimate", str(estimate)), ("cost", str(cost))]), receive, send)
    return found[0]


async def view(scope: Any, receive: Any, send: Any) -> None:
    for _ in range(random.randrange(9)):  # other requests are decided meanwhile
        await asyncio.sleep(0)
    (cost,) = [value for name, value in scope["headers"] if name == b"cost"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"cost", cost)]})
    await send({"type": "http.response.body", "body": b"x", "more_body": False})


async def statuses(rule: Rule, count: int) -> list[int]:
    app = RateLimitMiddleware(view, rules=[rule], clock=ManualClock())
    return [await ask(app) for _ in range(count)]


def estimated(scope: Any) -> int:
    (given,) = [value for name, value in scope["headers"] if name == b"estimate"]
    return int(given)


@pytest.mark.parametrize("where", ["memory", "valkey", "redis6", "cluster"])
def test_64_clients_never_exceed_the_limit_plus_the_error_of_the_estimates(
    where: str, request: pytest.FixtureRequest
) -> None:
    store = "memory://" if where == "memory" else request.getfixturevalue(where).url
    limit, chance, scope = 20_000, random.Random(29), uuid4().hex

    async def main() -> None:
        rule = Rule(
            name=scope,
            quota=f"{limit}/day",
            key=lambda _: "alice",
            estimate=estimated,
            cost_after=lambda response: int(response.headers["cost"]),
        )
        app = RateLimitMiddleware(view, rules=[rule], store=store, deadline=PATIENCE)
        total, errors = 0, []

        async def client() -> None:
            nonlocal total
            for _ in range(10):
                estimate = chance.randint(1, 100)
                cost = chance.choice([0, estimate, chance.randint(0, 200)])
                if await ask(app, estimate, cost) == 200:
                    total += cost
                    errors.append(max(0, cost - estimate))

        await asyncio.gather(*[client() for _ in range(64)])
        assert limit - 100 < total <= limit + sum(errors), "the formula of the page"
        (terms,) = rule.terms("sliding-window")
        more = terms._replace(params=(10**9, *terms.params[1:]))  # the same budget under a higher limit
        outcomes = await app.gate.limiter.opened.run(peek(Check(more, identity_text("alice"), 0)))
        assert 10**9 - outcomes[0].remaining == total, "nothing is lost, and nothing counts twice"
        await app.gate.close()

    asyncio.run(main())


def peek(*checks: Check) -> Plan:
    return Plan(checks, charge=False)


def test_a_cost_on_a_server_takes_two_commands(valkey: Any) -> None:
    cost = 0
    rule = Rule(name=uuid4().hex, quota="100000/day; 1000000/week", estimate=10, cost_after=lambda _: cost)
    calls = []

    async def main() -> None:
        nonlocal cost
        app = RateLimitMiddleware(view, rules=[rule], store=valkey.url, deadline=PATIENCE, overrides=False)
        for cost in (3, 30, 10, 3, 30):  # noqa: B007  # read by the rule
            before = scripts(valkey)
            assert await ask(app) == 200
            calls.append(scripts(valkey) - before)
        await app.gate.close()

    asyncio.run(main())
    assert calls[2:] == [1, 2, 2], "the first times a script is loaded; a cost as estimated needs no second command"


def scripts(server: Any) -> int:
    with redis.Redis.from_url(server.url) as client:
        found: Any = client.info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


def test_a_message_of_a_websocket_has_no_response_to_settle_by() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        with pytest.raises(RuleError) as caught:
            await charge(scope, "9/day", estimate=3)
        found.append(str(caught.value))

    found: list[str] = []
    AsgiClient(RateLimitMiddleware(app, clock=ManualClock())).connect("/ws")
    assert "use limiter.reserve(…) [SG002]" in found[0]


# ---- bad input ------------------------------------------------------------------------------------------------------


def fails(_: object) -> Any:
    raise LookupError("alice")


async def late() -> int:
    return 3


def awaited(_: object) -> Any:
    return late()  # left unawaited, Python would warn, and a warning fails the test


@pytest.mark.parametrize("wrong", [None, -1, 1.5, float("nan"), "3", True, fails])
def test_a_wrong_cost_is_logged_once_a_minute(
    wrong: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("sluicegate.rules.cost.monotonic", lambda: now[0])
    monkeypatch.setattr("sluicegate.rules.cost._quiet_until", {})
    rule = Rule(
        name="tokens",
        quota="100/day",
        estimate=lambda request: wrong(request) if callable(wrong) else wrong,
        cost_after=lambda response: wrong(response) if callable(wrong) else wrong,
    )
    with caplog.at_level(logging.WARNING, "sluicegate"):
        for _ in range(3):
            assert asyncio.run(statuses(rule, 2)) == [200, 200]
        lines = [record.getMessage() for record in caplog.records]
        assert lines == [
            f"sluicegate: rule 'tokens': {option} failed, and the estimate stands [SG118]"
            for option in ("estimate", *["cost_after"] * (wrong is not None))  # None: the estimate stands
        ]
        now[0] += 60
        asyncio.run(statuses(rule, 2))
        assert len(caplog.records) == 2 * len(lines)


@pytest.mark.slow
def test_a_cost_that_must_be_awaited_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio.run(statuses(Rule(name=uuid4().hex, quota="9/day", cost_after=awaited), 2)) == [200, 200]
    assert "cost_after failed" in caplog.records[-1].getMessage()
    gc.collect()


# ---- the response in ASGI ---


async def body_of(*given: Any, disconnects: bool = False) -> Ended:
    """Return the response that `cost_after` gets, if the application sends these messages."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if disconnects:
            await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for each in given:
            await send(each)
        await receive()  # as a layer that waits for the end of the client

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    def noted(response: Ended) -> int:
        seen.append(response)
        return 1

    seen: list[Ended] = []
    rule = Rule(name="rows", quota="9/day", cost_after=noted)
    await RateLimitMiddleware(app, rules=[rule])(make_scope(), receive, send)
    return seen[0]


@pytest.mark.parametrize(("disconnects", "complete"), [(False, True), (True, False)])
def test_a_client_that_has_gone_is_noted_though_a_layer_ends_the_body(disconnects: bool, complete: bool) -> None:
    last = {"type": "http.response.body", "body": b"", "more_body": False}
    assert asyncio.run(body_of(last, disconnects=disconnects)).complete is complete


def test_a_file_that_the_server_sends_has_its_size() -> None:
    found = asyncio.run(body_of({"type": "http.response.pathsend", "path": __file__}))
    assert (found.size, found.complete) == (Path(__file__).stat().st_size, True)
    assert asyncio.run(body_of({"type": "http.response.pathsend", "path": f"{__file__}.none"})).size == 0


# ---- the view tells -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "left"),
    [([(5, None)], 95), ([(5, None), (9, None)], 91), ([(9, "tokens")], 91), ([(9, "rows")], 80), ([(-1, None)], 80)],
)
def test_the_last_number_that_the_view_tells_counts(told: list[Any], left: int) -> None:
    async def main() -> Any:
        clock = ManualClock()

        async def telling(scope: Any, receive: Any, send: Any) -> None:
            for number, unit in told:
                settle(scope, number, unit=unit)
            await view(scope, receive, send)

        rule = Rule(name="tokens", quota="100/day", estimate=20, unit="tokens", key=lambda _: "alice")
        app = RateLimitMiddleware(telling, rules=[rule], clock=clock)
        assert await ask(app) == 200
        (terms,) = rule.terms("sliding-window")
        return (await app.gate.limiter.opened.run(peek(Check(terms, identity_text("alice"), 0))))[0].remaining

    assert asyncio.run(main()) == left


@pytest.mark.parametrize(
    ("estimate", "unit", "expected"),
    [
        (20, "token", "no rule of the request has an estimate in this unit; these have one: tokens (tokens)"),
        (None, None, "no rule of the request has an estimate; give the rule an estimate"),
        (20, "tokens", None),
    ],
)
def test_settling_what_no_rule_counts_is_logged(
    estimate: Any, unit: Any, expected: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def telling(scope: Any, receive: Any, send: Any) -> None:
        settle(scope, 9, unit=unit)
        await view(scope, receive, send)
        settle(scope, 9, unit=unit)

    monkeypatch.setattr("sluicegate.rules.cost._quiet_until", {})
    rule = Rule(name="tokens", quota="100/day", estimate=estimate, unit="tokens", key=lambda _: "alice")
    assert asyncio.run(ask(RateLimitMiddleware(telling, rules=[rule]))) == 200
    lines = [(record.getMessage(), str(record.exc_info and record.exc_info[1])) for record in caplog.records]
    assert [line for line, _ in lines] == (
        ["sluicegate: rule 'tokens': settle failed, and the estimate stands [SG118]"] if expected else []
    )
    assert all([(expected or "") in error for _, error in lines])


# ---- the readers of usage -------------------------------------------------------------------------------------------

CHAT = {
    "id": "chatcmpl-1",
    "choices": [{"message": {"content": 'say "total_tokens": 1, and "usage": {"total_tokens": 2}'}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21},
}
USAGE: dict[str, Any] = {
    "input_tokens": 9, "cache_creation_input_tokens": 4, "cache_read_input_tokens": 500, "output_tokens": 12
}  # fmt: skip
MESSAGE = {
    "type": "message",
    "content": [{"type": "tool_use", "input": {"output_tokens": 1, "input_tokens": 0}}],
    "usage": USAGE,
}


def events(*given: object) -> bytes:
    return b"".join(
        b"data: %s\n\n" % (each if isinstance(each, bytes) else json.dumps(each).encode()) for each in given
    )


ITERATIONS = [{"type": "message", "input_tokens": 1, "output_tokens": 2}] * 2
SUMMED = {"output_tokens": 12, "iterations": ITERATIONS}
CHUNK = {"choices": [{"delta": {"content": '"total_tokens": 5'}}], "usage": None}
CHAT_STREAM = events(*[CHUNK] * 3_000, {"choices": [], "usage": CHAT["usage"]}, b"[DONE]")
START = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}
DELTA = {"type": "content_block_delta", "delta": {"text": '"output_tokens": 7}'}}
MESSAGE_STREAM = events(START, *[DELTA] * 3_000, {"type": "message_delta", "usage": {"output_tokens": 12}})


def ended(body: bytes, *, part: int = 1_000, complete: bool = True) -> Ended:
    seen = Body()
    for start in range(0, len(body), part):
        seen.add(body[start : start + part])
    return seen.of(Response(200), complete=complete)


@pytest.mark.parametrize(
    ("read", "body", "tokens"),
    [
        (openai_tokens, json.dumps(CHAT).encode(), 21),
        (openai_tokens, json.dumps(CHAT, indent=2).encode(), 21),
        (openai_tokens, CHAT_STREAM, 21),
        (openai_tokens, CHAT_STREAM[:9_000], None),  # cut off before the usage
        (openai_tokens, b'{"usage": {"total_tokens": -3}}', None),
        (openai_tokens, b'{"usage": {"total_tokens": 12345678901234567890}}', None),
        (openai_tokens, b'{"usage": {"total_tokens": 12', None),
        (openai_tokens, b"", None),
        (openai_tokens, b'{"tools": [{"default": {"total_tokens": 0}}]}', None),  # JSON of the client
        (openai_tokens, b'{"usage": {"details": {"total_tokens": 1}, "total_tokens": 7}}', 7),
        (anthropic_tokens, json.dumps(MESSAGE).encode(), 25),
        (anthropic_tokens, MESSAGE_STREAM, 21),
        (anthropic_tokens, events({"usage": {"output_tokens": 12}}), None),
        (anthropic_tokens, events(START, DELTA), None),  # a gateway ends it politely after its upstream has died
        (anthropic_tokens, json.dumps(MESSAGE | {"usage": USAGE | {"iterations": ITERATIONS}}).encode(), 25),
        (anthropic_tokens, events(START, DELTA, {"type": "message_delta", "usage": SUMMED}), 21),
        (anthropic_tokens, b"{}", None),
    ],
)
@pytest.mark.parametrize("part", [1, 7, 4_000, 10**6])
def test_readers_of_usage(read: Any, body: bytes, tokens: int | None, part: int) -> None:
    assert read(ended(body, part=part)) == tokens


def test_a_stream_of_anthropic_that_is_cut_off_has_no_cost() -> None:
    assert anthropic_tokens(ended(MESSAGE_STREAM, complete=False)) is None


def test_a_stream_of_openai_that_is_cut_off_has_no_cost() -> None:
    """Its start may repeat the tools of the client, with any JSON in them."""
    created = events(
        {"type": "response.created", "response": {"tools": [{"usage": {"total_tokens": 0}}], "usage": None}}
    )
    assert openai_tokens(ended(created, complete=False)) is None


@given(st.lists(st.binary(max_size=50_000), max_size=12))
def test_a_body_keeps_its_two_ends(parts: list[bytes]) -> None:
    body, whole = Body(), b"".join(parts)
    for part in parts:
        body.add(part)
    found = body.of(Response(200), complete=True)
    assert (found.head, found.tail, found.size) == (whole[:HEAD], whole[-TAIL:], len(whole))
    assert len(body.tail) <= 2 * TAIL


def test_a_long_stream_takes_little_memory_and_linear_time() -> None:
    def seconds(count: int) -> float:
        body, start = Body(), process_time()
        for _ in range(count):
            body.add(b"x" * 64)
        assert len(body.tail) <= 2 * TAIL
        return process_time() - start

    assert min(seconds(80_000) for _ in range(3)) < 30 * min(seconds(8_000) for _ in range(3))
    hostile = b'"total_tokens"' + b" " * TAIL
    assert openai_tokens(Ended(200, tail=(hostile * 9)[-TAIL:])) is None


@pytest.mark.parametrize(
    "part", [b'"usage":{', b'"usage":{}', b'"usage":{{}', b'"iterations":[', b'"usage":{{"usage":{}']
)
@pytest.mark.parametrize("read", [openai_tokens, anthropic_tokens])
def test_readers_take_linear_time(read: Any, part: bytes) -> None:
    def seconds(size: int) -> float:
        start = process_time()
        assert read(Ended(200, head=b"{", tail=(part * size)[:size])) is None
        return process_time() - start

    assert min(seconds(200_000) for _ in range(3)) < 40 * min(seconds(20_000) for _ in range(3)) + 0.01

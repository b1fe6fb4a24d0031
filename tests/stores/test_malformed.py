"""A server, or a proxy before it, whose replies have the right tag and make no sense: a failure of the store, for its
policy. The limiter goes on when the replies make sense again.
"""

from __future__ import annotations

import asyncio
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hiredis
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluicegate import AsyncLimiter, Limiter, StoreError
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.redis.commands import bulk
from sluicegate.stores.redis.steps import Address
from sluicegate.stores.redis.topology import topology
from sluicegate.stores.redis.url import servers
from sluicegate.testing.scenarios import examples
from tests.stores.modes import PATIENCE, Blocking

Reply = Callable[[bytes], bytes]


class Forger(socketserver.ThreadingTCPServer):
    """A server that answers each script with what `reply` makes of its tag."""

    daemon_threads = True
    reply: Reply

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked = 0  # scripts
        self.greeting = b"+PONG\r\n"  # the reply to any other command
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server_address[1]}"


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        reader, forger = hiredis.Reader(), self.server
        assert isinstance(forger, Forger)
        while data := self.request.recv(65536):
            reader.feed(data)
            while (words := reader.gets()) is not False:
                name, tag = words[0], next((word for word in words if len(word) == 6 and word.isdigit()), b"")
                if name in {b"EVALSHA", b"EVAL"}:
                    forger.asked += 1
                self.request.sendall(forger.reply(tag) if tag else bulk("") if name == b"INFO" else forger.greeting)


@pytest.fixture(scope="module")
def forger() -> Iterator[Forger]:
    with Forger() as forger:
        yield forger
        forger.shutdown()


@contextmanager
def limiter(how: str, url: str) -> Iterator[Any]:
    """A new limiter: what one reply has done to its circuit is gone with it."""
    if how == "sync":
        with Limiter(url, on_store_failure="allow", deadline=PATIENCE) as made:
            yield made
        return
    if how == "client":
        with redis.Redis.from_url(url, socket_timeout=PATIENCE, retry=Retry(NoBackoff(), 0)) as client:
            yield Limiter(RedisStore(client), on_store_failure="allow")
        return
    with asyncio.Runner() as runner:
        limited = AsyncLimiter(url, on_store_failure="allow", deadline=PATIENCE)
        yield Blocking(limited, runner)
        runner.run(limited.close())


def array(*items: bytes) -> bytes:
    return b"*%d\r\n%s" % (len(items), b"".join(items))


def number(value: bytes | int) -> bytes:
    return b":%d\r\n" % int(value)


def text(end: bytes) -> Reply:
    return lambda tag: bulk(tag + end)


UNREADABLE = b"%1\r\n*0\r\n+x\r\n"  # a list cannot be a key: hiredis raises TypeError
HUGE = b"9" * 5000  # more digits than Python turns into an integer
LONG = b"9" * 400  # more than a float has
MALFORMED: dict[str, Reply] = {
    "only the tag": text(b""),
    "a time in one word": text(b" 5 "),
    "a time that is none": text(b" a b 1"),
    "a time of 400 digits": text(b" " + LONG + b" 0 "),
    "a time of 5,000 digits": text(b" " + HUGE + b" 0 "),
    "a state that is none": text(b" 5 5 spam"),
    "one number": text(b" 5 5 7"),
    "outcomes without numbers": text(b" 5 5 =1 2"),
    "outcomes with words": text(b" 5 5 =1 2 x y z"),
    "bytes": text(b" 5 5 \xff\x00\xfe\x80"),
    "infinity": text(b" 5 5 inf inf inf"),
    "not a number": text(b" 5 5 nannannannannannan 1"),
    "long numbers": text(b" 5 5 -" + LONG + b" -" + LONG),
    "an integer": number,
    "an empty list": lambda _: array(),
    "nothing": lambda _: b"$-1\r\n",
    "nothing, as a list": lambda _: b"*-1\r\n",
    "a list with the tag only": lambda tag: array(number(tag)),
    "a list with a time only": lambda tag: array(number(tag), number(5)),
    "a list that is too short": lambda tag: array(number(tag), number(5), number(1)),
    "a list that is too long": lambda tag: array(number(tag), *[number(1)] * 40),
    "a list of words": lambda tag: array(number(tag), number(5), *[bulk("x")] * 5),
    "a list of lists": lambda tag: array(number(tag), *[array()] * 6),
    "a list of nothing": lambda tag: array(number(tag), *[b"$-1\r\n"] * 6),
    "a batch that is too short": lambda tag: array(bulk(tag + b" 5 5 ")),
    "a batch that is too long": lambda tag: array(bulk(tag + b" 5 5 "), *[bulk("1 5")] * 9),
    "a batch of integers": lambda tag: array(number(tag), *[bulk("1 5")] * 3),
}
MALFORMED |= {
    "a redirection without a target": lambda _: b"-MOVED\r\n",
    "a redirection to no port": lambda _: b"-MOVED 1 host:port\r\n",
    "a redirection to a port that does not exist": lambda _: b"-ASK 1 127.0.0.1:65536\r\n",
    "a redirection to nothing": lambda _: b"-ASK 3 \r\n",
    "a map with a list as key": lambda _: UNREADABLE,
}
ALWAYS = (
    *("a redirection to no port", "a redirection to nothing", "only the tag", "a time in one word"),
    *("a time that is none", "a time of 5,000 digits", "a list of words"),
)
RULES: list[dict[str, Any]] = [
    {"quota": "5/minute"},
    {"quota": "5000/minute"},
    {"quota": "5/minute; 100/day"},
    *[{"quota": "5/minute", "algorithm": name} for name in ("fixed-window", "gcra", "sliding-counter", "sliding-log")],
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_malformed_reply_is_a_failure_of_the_store(how: str, forger: Forger, rule: dict[str, Any]) -> None:
    for name, forger.reply in MALFORMED.items():
        with limiter(how, forger.url) as limited:
            hit = decide(limited, rule)
            if name in ALWAYS:
                assert (hit.allowed, hit.degraded) == (True, True), name
                assert [circuit.state for circuit in limited.status().circuits] == ["closed"], name


def decide(limited: Any, rule: dict[str, Any]) -> Any:
    """Decide in every way, and read what headers and events read. Return the hit."""
    hit, *others = [limited.hit(**rule, identity="alice"), limited.peek(**rule, identity="alice")]
    limited.refund(hit)
    for decision in (hit, *others):
        for value in (decision.limit, decision.remaining, decision.retry_after, decision.reset_after):
            assert str(value)
    return hit


def test_a_malformed_reply_to_a_batch_is_a_failure_of_each_caller(forger: Forger) -> None:
    async def main() -> None:
        for forger.reply in MALFORMED.values():
            async with AsyncLimiter(forger.url, on_store_failure="allow", deadline=PATIENCE) as limited:
                hits = [await limited.hit("5/minute", "alice")]
                hits += await asyncio.gather(*[limited.hit("5/minute", f"bob {number}") for number in range(20)])
                assert all([type(hit.allowed) is bool for hit in hits])

    asyncio.run(main())


@pytest.mark.parametrize("greeting", [UNREADABLE, b":5\r\n", b"*1\r\n*0\r\n"], ids=repr)
@pytest.mark.parametrize("how", ["sync", "async", "client"])
def test_a_malformed_reply_to_the_opening_is_a_failure_of_the_store(how: str, greeting: bytes) -> None:
    with Forger() as forger:
        forger.greeting, forger.reply = greeting, lambda _: UNREADABLE
        for suffix in ("", "/3", "?protocol=3"):
            with limiter(how, f"{forger.url}{suffix}") as limited:
                hit = limited.hit("5/minute", "alice")
                assert (hit.allowed, hit.degraded) == (True, True), suffix
        forger.shutdown()


ADDRESSES: list[Any] = [  # no addresses, in the words of a Sentinel
    [5, 6], [b"h", b"p"], [None, None], [b"\xff", b"5"], [b"h", b"-5"], [b"h", b"0"], [b"h", b"65536"], [b"h"], [],
]  # fmt: skip
HERE = [b"127.0.0.1", 7001]
MASTERS: list[Any] = [[], [[]], [[b"h", b"x"]], [[b"h", None]], [[b"\xff", 1]]]
MAPS: list[Any] = [
    [hiredis.ReplyError("ERR x")], [0, 16383, HERE], [[0, 16384, HERE]], [[-5, 3, HERE]], [[9, 5, HERE]],
    [[b"0", b"9", HERE]],
    *[[[0, 16383, *master]] for master in MASTERS],
]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "reply", "good"),
    [
        *[("redis+sentinel://one:1,two:2/main", reply, [b"127.0.0.1", b"7001"]) for reply in ADDRESSES],
        *[("redis+cluster://one:1,two:2", reply, [[0, 16383, HERE]]) for reply in MAPS],
    ],
    ids=repr,
)
def test_a_sentinel_or_node_that_answers_nonsense_is_passed_over(url: str, reply: Any, good: Any) -> None:
    look_up = topology(servers(url)).find(0)
    assert next(look_up).address.host == "one"  # type: ignore[union-attr]
    assert look_up.send(reply).address.host == "two"  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as found:
        look_up.send(good)
    assert found.value.value == Address("127.0.0.1", 7001)

    none = topology(servers(url)).find(0)
    next(none)
    none.send(reply)
    with pytest.raises(StoreError, match=r"one:1: .*; two:2: "):
        none.send(reply)


FRAMES = st.recursive(
    st.one_of(
        st.binary(max_size=30).map(bulk),
        st.integers(-(2**63), 2**63 - 1).map(number),
        st.sampled_from([b"$-1\r\n", b"+OK\r\n", b",1.5\r\n", b"#t\r\n", b"_\r\n", b"(%s\r\n" % LONG]),
    ),
    lambda inner: st.lists(inner, max_size=14).map(lambda items: array(*items)),
    max_leaves=14,
)


@pytest.mark.parametrize("how", ["sync", "async"])
@given(st.data())
@examples(60)
def test_any_reply(how: str, data: st.DataObject) -> None:
    words = st.sampled_from([b" ", b"=", b"-", b"1", b"5", LONG, b"1e9", b"inf", b"\xff", b"\x00"])
    texts = st.lists(words, max_size=14).map(lambda parts: text(b" 1 1 " + b"".join(parts)))
    lists = st.lists(FRAMES, max_size=14).map(lambda items: lambda tag: array(number(tag), *items))
    with Forger() as forger, limiter(how, forger.url) as limited:
        forger.reply = data.draw(st.one_of(texts, lists))
        decide(limited, data.draw(st.sampled_from(RULES)))
        forger.shutdown()

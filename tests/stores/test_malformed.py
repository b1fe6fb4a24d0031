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
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import AsyncLimiter, Limiter
from sluicegate.stores.redis.commands import bulk
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
                self.request.sendall(forger.reply(tag) if tag else bulk("") if name == b"INFO" else b"+PONG\r\n")


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
ALWAYS = ("only the tag", "a time in one word", "a time that is none", "a time of 5,000 digits", "a list of words")
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

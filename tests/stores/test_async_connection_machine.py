"""The asyncio connection under every order of events: Hypothesis asks, cancels, replies, stalls, breaks and closes.

The laws: every answer reaches its own asker or nobody; nobody waits past the deadline; nothing is sent twice; an asker
that is told "not sent" was not charged; a command that was cancelled before the write is not written; a loop's end
leaves nothing open. `SLUICEGATE_EXAMPLES=2000` draws 2,000 stories, each time others.
"""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass, field
from typing import Any, cast

import hiredis
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sluicegate.stores.redis.commands import SingleCheck, bulk
from sluicegate.stores.redis.steps import NoReplyError
from sluicegate.testing.scenarios import examples
from tests.stores.scripted import ADDRESS, DEADLINE, ENCODER, TERMS, Ask, ManualLoop, Peer, Scripted, check, command

COUNTS = [1, 1, 2, 7, 8, 9, 33]  # of askers in one turn
MOSTLY = [True, True, True, False]
SLACK = 0.02  # seconds: the steps of the test's clock, and the last two looks


@dataclass(eq=False)
class Asked:
    """One asker, and what the server knows of the command."""

    number: int
    ask: Ask
    waited: float = 0.0  # since the last progress, while the loop was not busy
    cancelled: bool = False
    received: int = 0
    returned: int = 0  # how often the server did not know its script
    ran: int = 0
    failed: bool = False  # it ran to an error reply
    answered: bool = False  # the whole reply lies in the client's socket, and nothing was closed since
    written_at: float = 0.0
    done_at: float = 0.0
    forbidden: bool = False  # it may not be written any more


@dataclass(eq=False)
class Wire:
    """One connection's bytes: the replies that the server has made and not sent yet."""

    peer: Peer
    asked: list[list[bytes]] = field(default_factory=list)  # commands that the server has read and not run
    outbox: bytearray = field(default_factory=bytearray)
    ends: list[tuple[int, list[Asked]]] = field(default_factory=list)  # where the reply to these ends
    made: int = 0  # bytes of replies made
    sent: int = 0
    broken: bool = False


class Machine(RuleBasedStateMachine):
    """One driver, its loops one after the other, and the scripted server."""

    def __init__(self) -> None:
        super().__init__()
        self.servers = Scripted()
        self.driver = self.servers.driver()
        self.loop = ManualLoop()
        self.asked: list[Asked] = []
        self.numbers: dict[bytes, int] = {}  # of identities, by the key
        self.wires: dict[int, Wire] = {}
        self.forgotten = False  # whether the server has lost its scripts
        self.abrupt = False  # whether a loop ended without a word
        self.disturbed = False  # whether this story closed something: then an error need not concern the server
        self.lost = False  # whether a connection broke that had answered: the server has others

    @initialize(opened=st.sampled_from([True, True, True, False]))
    def begin(self, opened: bool) -> None:
        if opened:
            self.ask_some(1, batch=False, turns=3)
            self.servers.opening[0].opened.set_result(None)
            self.loop.settle()

    # what the user does

    @rule(count=st.sampled_from(COUNTS), batch=st.booleans(), turns=st.integers(0, 2), opens=st.sampled_from(MOSTLY))
    def ask(self, count: int, batch: bool, turns: int, opens: bool) -> None:
        self.ask_some(count, batch=batch, turns=turns)
        if opens:
            self.open_all()

    @rule(
        data=st.data(), count=st.sampled_from(COUNTS), lost=st.booleans(), error=st.sampled_from([False, False, True])
    )
    def converse(self, data: st.DataObject, count: int, lost: bool, error: bool) -> None:
        """A batch is asked, opened for, written, run and answered, and the test cancels between any two of these."""
        self.ask_some(count, batch=True, turns=0)
        steps = [
            lambda: self.loop.turn(2),
            self.open_all,
            lambda: self.run_all(error=error),
            self.send_all,
            lambda: self.loop.turn(2),
            lambda: self.run_all(error=error),
            self.send_all,
        ]
        self.forgotten |= lost
        cancels = data.draw(st.integers(0, 2 * len(steps)))
        for at, step in enumerate(steps):
            if at == cancels and self.pending:
                self.cancel_some(data)
            step()
            self.each_answer_is_its_askers()

    def ask_some(self, count: int, *, batch: bool, turns: int) -> None:
        for _ in range(count):
            number = len(self.asked)
            made = check(number) if batch else command(number)
            if isinstance(made, SingleCheck):
                self.numbers[ENCODER.key(TERMS.rule_id, str(number)).encode()] = number
            self.asked.append(Asked(number, Ask(self.loop, self.driver, made)))
        self.loop.turn(turns)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.cancel_some(data)

    def cancel_some(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.sampled_from(range(len(self.pending))), min_size=1, max_size=4))
        self.read()
        for asked in [self.pending[at] for at in sorted(some)]:
            asked.ask.task.cancel()
            asked.cancelled = True
            asked.forbidden = asked.received == 0

    @precondition(lambda self: self.eventful)
    @rule()
    def close(self) -> None:
        self.disturbed = True
        self.nobody_is_answered()
        self.loop.create_task(self.driver.close())
        self.loop.settle()

    @precondition(lambda self: self.eventful)
    @rule()
    def reconnect(self) -> None:
        self.loop.do(lambda: self.driver.retire(ADDRESS))

    @precondition(lambda self: self.eventful)
    @rule(orderly=st.booleans())
    def another_loop(self, orderly: bool) -> None:
        self.nobody_is_answered()
        self.read()
        for asked in self.pending:
            asked.ask.task.cancel()
            asked.cancelled = True
            asked.forbidden = asked.received == 0
        if orderly:
            self.loop.end()
        else:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.turn(4)
            self.loop.close()
            self.abrupt = True
        self.loop = ManualLoop()
        if orderly:
            self.all_closed()

    # what the loop does

    @rule(turns=st.integers(1, 4))
    def turn(self, turns: int) -> None:
        self.loop.turn(turns)

    @rule(seconds=st.sampled_from([0.01, 0.03, 0.06, 0.11, 1.1]))
    def pass_time(self, seconds: float) -> None:
        before = [(asked, self.loop.now) for asked in self.pending]
        for _ in range(round(seconds / 0.005)):
            self.loop.now += 0.005
            self.loop.turn(2)
            self.read()
            for asked, began in before:
                if not asked.ask.done:
                    assert asked.waited + self.loop.now - began <= DEADLINE + SLACK, "it waits past its deadline"
        for asked, began in before:
            asked.waited += self.loop.now - began
        self.loop.settle()

    @rule(seconds=st.sampled_from([0.02, 0.09, 0.15, 0.5]), blind=st.booleans())
    def stall(self, seconds: float, blind: bool) -> None:
        self.loop.now += seconds
        self.loop.eyes.blind = blind
        self.loop.turn()
        self.loop.eyes.blind = False
        self.loop.turn()  # every loop reads its sockets once between two rounds of its timers

    # what the server does

    @precondition(lambda self: self.servers.opening)
    @rule(data=st.data(), refused=st.sampled_from([False, False, False, True]))
    def open(self, data: st.DataObject, refused: bool) -> None:
        opening = data.draw(st.sampled_from(self.servers.opening))
        if opening.opened.get_loop() is not self.loop:
            return
        self.progress()
        if refused:
            opening.opened.set_exception(ConnectionRefusedError("refused"))
        else:
            opening.opened.set_result(None)
        self.loop.turn(data.draw(st.integers(0, 5)))

    @rule()
    def lose_scripts(self) -> None:
        self.forgotten = True

    @precondition(lambda self: self.open_wires)
    @rule(data=st.data(), error=st.sampled_from([False, False, True]), upto=st.integers(1, 40))
    def run(self, data: st.DataObject, error: bool, upto: int) -> None:
        """Run some of the commands that have come, and make their replies."""
        self.read()
        wire = data.draw(st.sampled_from(self.open_wires))
        for words in wire.asked[:upto]:
            self.run_one(wire, words, error=error)
        del wire.asked[:upto]

    @precondition(lambda self: self.open_wires)
    @rule(data=st.data(), part=st.sampled_from([1, 1, 1, 0.5, 0.1]), turns=st.integers(0, 3))
    def deliver(self, data: st.DataObject, part: float, turns: int) -> None:
        wire = data.draw(st.sampled_from(self.open_wires))
        self.send_replies(wire, round(len(wire.outbox) * part))
        self.loop.turn(turns)

    def progress(self) -> None:
        """A step of an opening, or a reply to another caller: the callers go on waiting."""
        for asked in self.pending:
            asked.waited = 0.0

    def send_replies(self, wire: Wire, size: int) -> None:
        self.progress()
        wire.peer.write(bytes(wire.outbox[:size]))
        del wire.outbox[:size]
        wire.sent += size
        while wire.ends and wire.ends[0][0] <= wire.sent:
            for asked in wire.ends.pop(0)[1]:
                asked.answered = not wire.peer.closed and asked in self.pending

    @rule()
    def serve(self) -> None:
        """Run all commands and deliver all replies: the usual case."""
        self.loop.settle()
        self.run_all(error=False)
        self.send_all()
        self.loop.turn(3)

    @precondition(lambda self: self.eventful and self.open_wires)
    @rule(data=st.data())
    def break_off(self, data: st.DataObject) -> None:
        self.nobody_is_answered()
        wire = data.draw(st.sampled_from(self.open_wires))
        self.read()
        wire.broken = True
        self.lost |= wire.sent > 0
        wire.peer.close()
        self.loop.turn(data.draw(st.integers(0, 3)))

    # the laws

    @invariant()
    def each_answer_is_its_askers(self) -> None:
        self.read()
        for asked in self.asked:
            assert asked.ran <= 1, "it ran twice"
            assert not (asked.forbidden and asked.received), "it was written behind its cancellation"
            if not asked.ask.done or asked.ask.task.cancelled():
                continue
            reply = asked.ask.reply
            if isinstance(reply, NoReplyError):
                assert not asked.answered, "its reply came, and it got another"
                may_have_run = asked.received > asked.returned
                assert reply.sent or not may_have_run, "it was sent, and its asker was told that it was not"
                if "no answer within" in str(reply):
                    assert asked.done_at - asked.written_at > DEADLINE / 2 - SLACK, "its time began before the write"
                if not self.disturbed:
                    assert reply.concerns == "server" or (self.lost and reply.concerns == "connection")
            elif isinstance(reply, hiredis.ReplyError):
                assert asked.failed or (not asked.ran and str(reply).startswith("NOSCRIPT"))
            else:
                assert asked.ran == 1
                assert (int(reply.split()[-1]) if isinstance(reply, bytes) else reply) == asked.number

    @rule()
    def settle(self) -> None:
        """After the loop has read its sockets, every caller whose reply has come has it."""
        self.loop.settle()
        for asked in self.asked:
            assert asked.ask.done or not asked.answered, "its reply came, and it still waits"

    def teardown(self) -> None:
        self.read()
        self.loop.settle()
        self.loop.end()
        self.each_answer_is_its_askers()
        self.all_closed()
        asyncio.set_event_loop(None)

    def all_closed(self) -> None:
        self.read()
        left = [wire for wire in self.wires.values() if not (wire.broken or wire.peer.closed)]
        assert self.abrupt or not left, "the loop's end left a connection open"
        loop = ManualLoop()  # it closes what a loop left that ended without a word
        try:
            loop.do(self.driver._of_this_loop)
        finally:
            loop.end()
        for wire in left:
            wire.peer.read()
            assert wire.peer.closed, "a connection was left open"
        for wire in self.wires.values():
            wire.peer.close()
        self.abrupt = False
        self.wires.clear()
        self.servers.connections.clear()

    # how the server works

    def open_all(self) -> None:
        self.progress()
        for opening in self.servers.opening:
            if opening.opened.get_loop() is self.loop:
                opening.opened.set_result(None)
        self.loop.turn(5)

    def run_all(self, *, error: bool) -> None:
        for wire in self.open_wires:
            for words in wire.asked:
                self.run_one(wire, words, error=error)
            wire.asked.clear()

    def send_all(self) -> None:
        for wire in self.open_wires:
            self.send_replies(wire, len(wire.outbox))

    @property
    def eventful(self) -> bool:
        """Whether something may break now. Most stories go on for a while without."""
        return len(self.asked) % 3 == 2

    def nobody_is_answered(self) -> None:
        for asked in self.asked:
            asked.answered = False

    @property
    def pending(self) -> list[Asked]:
        return [asked for asked in self.asked if not asked.ask.done and not asked.cancelled]

    @property
    def open_wires(self) -> list[Wire]:
        self.read()
        return [wire for wire in self.wires.values() if not wire.broken and not wire.peer.closed]

    def read(self) -> None:
        """Read all that was written."""
        for peer in self.servers.peers:
            wire = self.wires.setdefault(id(peer), Wire(peer))
            if wire.broken or peer.closed:
                continue
            new = peer.read()
            wire.asked += new
            for words in new:
                for number in self.numbers_of(words):
                    if not self.asked[number].received:
                        self.asked[number].written_at = self.loop.now
                    self.asked[number].received += 1
        for asked in self.asked:
            if asked.ask.done and not asked.done_at:
                asked.done_at = self.loop.now

    def numbers_of(self, words: list[bytes]) -> list[int]:
        if words[0] == b"ASK":
            return [int(words[1])]
        if words[0] == b"SCRIPT":
            return []
        return [self.numbers[key] for key in words[3 : 3 + int(words[2])]]

    def run_one(self, wire: Wire, words: list[bytes], *, error: bool) -> None:
        asked = [self.asked[number] for number in self.numbers_of(words)]
        ran = True
        if words[0] == b"SCRIPT":
            reply, self.forgotten = b"$3\r\nsha\r\n", False
        elif words[0] == b"EVALSHA" and self.forgotten:
            reply, ran = b"-NOSCRIPT No matching script\r\n", False
        elif error:
            reply = b"-OOM no memory\r\n"
        elif words[0] == b"ASK":
            reply = b":%s\r\n" % words[1]
        else:
            start = b"%s 0 0 " % words[3 + len(asked)]
            ends = [b"%d" % asker.number for asker in asked]
            reply = bulk(start + ends[0])
            if len(ends) > 1:
                reply = b"*%d\r\n" % (1 + len(ends)) + b"".join(map(bulk, [start, *ends]))
        for asker in asked:
            asker.ran += ran
            asker.returned += not ran
            asker.failed |= ran and error
        wire.outbox += reply
        wire.made += len(reply)
        batch_again = not ran and len(asked) > 1
        wire.ends.append((wire.made, [] if batch_again else asked))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # asyncio warns of a loop that ends without a word
def test_every_order_of_events_keeps_the_laws() -> None:
    run_state_machine_as_test(cast(Any, Machine), settings=settings(examples(200), stateful_step_count=40))
    gc.collect()

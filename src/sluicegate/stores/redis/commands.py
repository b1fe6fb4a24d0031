"""Packed commands, and batches of several commands in one. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

PARAMS: Final = 3  # the integers that the scripts expect for every algorithm
FIELDS: Final = 5  # the integers that they return for every check


class Command(NamedTuple):
    """One packed command. The reply of a script begins with the `tag`, so that replies cannot be mixed up."""

    frame: bytes
    tag: int | None = None
    shape: Shape | None = None  # of a script: the start of the frame, with the script's digest or its text
    replies: int = 1  # how many replies come; only the last one counts

    def with_text(self) -> Command:
        """Return the same command with the script, for a server that does not know the script yet."""
        if self.shape is None:
            return self
        return self._replace(frame=self.shape.whole + self.frame[self.shape.size :])

    def asking(self) -> Command:
        """Return the same command for a node that the slot is moving to."""
        return self._replace(frame=_ASKING + self.frame, replies=2)


class SingleCheck(NamedTuple):
    """The command of a plan of one check at cost 1. PackedRule when it leaves: alone, or together with others."""

    shape: Shape
    digest: bytes
    tag: int
    replies: int = 1

    @property
    def frame(self) -> bytes:
        """The command, packed."""
        shape = self.shape
        return b"%s%s%s%d%s" % (shape.before, self.digest, shape.between, self.tag, shape.after)

    def with_text(self) -> Command:
        """Return the same command with the script, for a server that does not know the script yet."""
        return Command(self.frame, self.tag, self.shape).with_text()

    def asking(self) -> Command:
        """Return the same command for a node that the slot is moving to."""
        return Command(self.frame, self.tag, self.shape).asking()


class Batch(NamedTuple):
    """Several commands of one shape in one script run. `split_reply` splits the reply."""

    frame: bytes
    tag: int
    script: BatchScript
    replies: int = 1

    def with_text(self) -> Batch:
        """Return the same command with the script, for a server that does not know the script yet."""
        return self._replace(frame=self.frame.replace(self.script.start, self.script.whole, 1))


def pack(*words: str | bytes | int) -> bytes:
    """Return a packed command that is no script."""
    return b"*%d\r\n" % len(words) + b"".join([bulk(word) for word in words])


def bulk(word: str | bytes | int) -> bytes:
    """Return a word as a bulk string of the protocol."""
    data = word if isinstance(word, bytes) else str(word).encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


_ASKING: Final = pack("ASKING")
SERVER_TIME: Final = bulk("")  # the argument for the time that makes a script use the server's clock


class BatchScript(NamedTuple):
    """The start of the script that runs many plans of one check, all of one algorithm."""

    start: bytes  # with the script's digest
    whole: bytes  # with the script's text


class PackedRule(NamedTuple):
    """The constant words of the checks of one rule."""

    before: bytes  # the key up to the digest
    after: bytes  # the key after the digest
    algorithm: bytes
    counted: bytes  # empty for a ban, where it depends on the other checks
    params: bytes
    once: bytes  # all arguments of a check at cost 1


class Shape(NamedTuple):
    """The constant words of the plans of the same rules."""

    head: bytes
    whole: bytes
    size: int  # the length of the head
    rules: tuple[PackedRule, ...]
    # For a plan of one check at cost 1 without a clock: the bytes before the digest, between digest and tag, and after.
    before: bytes
    between: bytes
    after: bytes
    many: BatchScript | None  # None if such plans cannot be in a batch


AnyCommand = Command | SingleCheck


def batch(single: Sequence[SingleCheck]) -> Batch:
    """Return a batch of commands of one shape. The shape has a script for many plans."""
    shape, tag = single[0].shape, single[0].tag
    rule, many = shape.rules[0], cast(BatchScript, shape.many)
    keys = (rule.after + rule.before).join([each.digest for each in single])
    head = b"*%d\r\n%s%s" % (3 + len(single) + 2 + PARAMS, many.start, bulk(len(single)))
    tail = b"%s$6\r\n%d\r\n%s" % (SERVER_TIME, tag, rule.params)
    return Batch(b"".join((head, rule.before, keys, rule.after, tail)), tag, many)


def split_reply(reply: list[Any]) -> list[Any]:
    """Return the reply to a batch, as the reply to each command: a list, or an error reply."""
    start = reply[:2]
    return [
        start + reply[at : at + FIELDS] if type(reply[at]) is int else reply[at] for at in range(2, len(reply), FIELDS)
    ]

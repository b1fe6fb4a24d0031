"""Commands as they go over the wire, and what several of them are made of that go together. Values only.

This module knows nothing of plans, nor of what the words of a command mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

PARAMS: Final = 3  # how many integers the scripts expect of every algorithm
FIELDS: Final = 5  # and how many they answer for every check


class Command(NamedTuple):
    """One command for a server, packed. What a script answers begins with the `tag`: replies cannot be mixed up."""

    frame: bytes
    tag: int | None = None
    shape: Shape | None = None  # of a script: what the frame begins with, also when it brings the script's text
    replies: int = 1  # the last of so many is the answer

    def with_text(self) -> Command:
        """The same for a server that does not know the script, and will."""
        if self.shape is None:
            return self
        return self._replace(frame=self.shape.whole + self.frame[self.shape.size :])

    def asking(self) -> Command:
        """The same for a node that the slot is moving to."""
        return self._replace(frame=_ASKING + self.frame, replies=2)


class Lone(NamedTuple):
    """The command of a plan of one check at cost 1. Packed when it leaves: alone, or together with others."""

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
        """The same for a server that does not know the script, and will."""
        return Command(self.frame, self.tag, self.shape).with_text()

    def asking(self) -> Command:
        """The same for a node that the slot is moving to."""
        return Command(self.frame, self.tag, self.shape).asking()


class Together(NamedTuple):
    """Several lone commands of one shape in one run. The answer is cut up again by `parts`."""

    frame: bytes
    tag: int
    load: bytes  # a command that brings the script
    replies: int = 1

    def with_text(self) -> Together:
        """The same for a server that does not know the script, and will."""
        return self._replace(frame=self.load + self.frame, replies=2)


def pack(*words: str | bytes | int) -> bytes:
    """A command that is no script."""
    return b"*%d\r\n" % len(words) + b"".join([bulk(word) for word in words])


def bulk(word: str | bytes | int) -> bytes:
    data = word if isinstance(word, bytes) else str(word).encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


_ASKING: Final = pack("ASKING")
SERVER_S: Final = bulk("")  # the time, where it is the server's own


class Many(NamedTuple):
    """The script that runs many plans of one check, all of one algorithm."""

    start: bytes
    load: bytes


class Packed(NamedTuple):
    """The constant words of one rule's checks."""

    before: bytes  # of the key, to the digest
    after: bytes  # of the key, from the digest
    algorithm: bytes
    counted: bytes  # nothing for a ban: that depends on the other checks
    params: bytes
    once: bytes  # all arguments of a check at cost 1


class Shape(NamedTuple):
    """The constant words of the plans of certain rules."""

    head: bytes
    whole: bytes
    size: int  # of the head
    rules: tuple[Packed, ...]
    # Of a plan of one check at cost 1 without a clock: what comes before, between and after its digest and its tag.
    before: bytes
    between: bytes
    after: bytes
    many: Many | None  # None where such plans cannot go together


AnyCommand = Command | Lone


def together(lone: Sequence[Lone]) -> Together:
    """Commands of one shape, which has a script for many, as one."""
    shape, tag = lone[0].shape, lone[0].tag
    rule, many = shape.rules[0], cast(Many, shape.many)
    keys = (rule.after + rule.before).join([each.digest for each in lone])
    head = b"*%d\r\n%s%s" % (3 + len(lone) + 2 + PARAMS, many.start, bulk(len(lone)))
    tail = b"%s$6\r\n%d\r\n%s" % (SERVER_S, tag, rule.params)
    return Together(b"".join((head, rule.before, keys, rule.after, tail)), tag, many.load)


def parts(reply: list[int]) -> list[list[int]]:
    """The answer to commands that went together, as each alone would have got it."""
    start = reply[:2]
    return [start + reply[at : at + FIELDS] for at in range(2, len(reply), FIELDS)]

"""Packed commands, and batches of several commands in one. Values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast, final

from sluicegate.clock import MICROSECOND
from sluicegate.plan import Outcome

PARAMS: Final = 3  # the integers that the scripts expect for every algorithm
LONG: Final = 60  # bytes: the numbers of a check whose text is longer may be too long for Python's own arithmetic
FIELDS: Final = 5  # the integers that they return for every check


Reader = Callable[[bytes, int, int], Outcome | None]
"""Makes the outcome of a check that passed, from what a script says of it, the time and the cost. None for another."""


class Script(NamedTuple):
    """The first words of a command that runs a script."""

    start: bytes  # with the script's digest
    whole: bytes  # with the script's text


class Command(NamedTuple):
    """One packed command. The reply of a script begins with the `tag`, so that replies cannot be mixed up."""

    frame: bytes
    tag: int | None = None
    script: Script | None = None
    replies: int = 1  # how many replies come; only the last one counts

    @property
    def whole(self) -> Command:
        """The command, packed."""
        return self

    def with_text(self) -> Command:
        """Return the same command with the script, for a server that does not know the script yet."""
        if self.script is None:
            return self
        return self._replace(frame=self.frame.replace(*self.script, 1))

    def asking(self) -> Command:
        """Return the same command for a node that the slot is moving to."""
        return self._replace(frame=_ASKING + self.frame, replies=2)


@final
class SingleCheck(NamedTuple):
    """The command of a plan of one check at cost 1. Packed when it leaves: alone, or together with others."""

    shape: HitShape
    digest: bytes
    tag: int
    replies: int = 1

    @property
    def whole(self) -> Command:
        """The command, packed."""
        return batch(self.shape, [self.digest], self.tag)


def pack(*words: str | bytes | int) -> bytes:
    """Return a packed command that is no script."""
    return b"*%d\r\n" % len(words) + b"".join([bulk(word) for word in words])


def bulk(word: str | bytes | int) -> bytes:
    """Return a word as a bulk string of the protocol."""
    data = word if isinstance(word, bytes) else str(word).encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


_ASKING: Final = pack("ASKING")  # before a command: the node then serves a slot that is on its way to it
SERVER_TIME: Final = bulk("")  # the argument for the time that makes a script use the server's clock


class PackedRule(NamedTuple):
    """The constant words of the checks of one rule."""

    before: bytes  # the key up to the digest
    after: bytes  # the key after the digest
    algorithm: bytes
    counted: bytes  # empty for a ban, where it depends on the other checks
    params: bytes
    once: bytes  # all arguments of a check at cost 1


class Shape(NamedTuple):
    """The constant words of the plans of the same rules, with their number."""

    head: bytes
    script: Script
    rules: tuple[PackedRule, ...]


class HitShape(NamedTuple):
    """The constant words of the plans of ordinary checks of the same rules, which are all charged or none."""

    head: bytes
    script: Script
    rules: tuple[PackedRule, ...]
    params: bytes  # of all checks
    usual: bytes  # at cost 1 and without a clock: the whole command, to format with the digests and the tag
    many: Script | None  # of a single check that can be in a batch
    read: Reader  # of the first check


AnyCommand = Command | SingleCheck
Fields = tuple[Any, Any, Any, int]
"""The fields of a command. A plain tuple costs a fifth of a named one."""


def batch(shape: HitShape, digests: Sequence[bytes], tag: int) -> Command:
    """Return the command for single checks of one shape: several are one run of a script, whose reply `split_reply`
    splits.
    """
    if len(digests) == 1:
        return Command(shape.usual % (digests[0], tag), tag, shape.script)
    (rule,), many, count = shape.rules, cast(Script, shape.many), len(digests)
    keys = (rule.after + rule.before).join(digests)
    head = b"*%d\r\n%s%s" % (3 + count + 1 + shape.params.count(b"$"), many.start, bulk(count))
    tail = b"$6\r\n%d\r\n%s" % (tag, shape.params)
    return Command(b"".join((head, rule.before, keys, rule.after, tail)), tag, many)


def split_reply(reply: list[object], count: int, read: Reader) -> list[object]:
    """Return the reply to a batch, as the reply to each of its `count` commands: the outcome if the check passed, or
    text, or an error reply. Raises ConnectionError if it makes no sense.
    """
    start, *ends = reply
    if type(start) is not bytes or len(ends) != count:
        raise ConnectionError("the reply makes no sense")
    try:
        _, seconds, microseconds, _ = start.split(b" ")
        now = int(seconds) * MICROSECOND + int(microseconds)
    except ValueError:
        raise ConnectionError("the reply makes no sense") from None
    return [((len(end) < LONG and read(end, now, 1)) or start + end) if type(end) is bytes else end for end in ends]

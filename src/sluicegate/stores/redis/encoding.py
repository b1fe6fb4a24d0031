"""The encoding of plans as commands, and the decoding of replies: pure functions with caches.

A plan is one EVALSHA. The constant words of a rule are packed once. A request adds the digest, the tag and the cost.
Plans of one check that differ only in their identity can be in one batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from itertools import chain, repeat
from typing import Final

from sluicegate.clock import Clock, read_us
from sluicegate.identity import digest
from sluicegate.plan import BAN, NEVER, Check, Outcome, Plan, Terms, new, strikers
from sluicegate.stores import valid_prefix
from sluicegate.stores.redis.commands import (
    FIELDS,
    PARAMS,
    SERVER_TIME,
    AnyCommand,
    BatchScript,
    Command,
    PackedRule,
    Shape,
    SingleCheck,
    bulk,
    pack,
)

PEEK: Final = b"0"  # the ways to run a plan: charge nothing,
CHARGE: Final = b"1"  # charge everything or nothing,
REFUSED: Final = b"2"  # charge only the checks that count refusals, because another server has refused another part,
FORCED: Final = b"3"  # charge everything
REFUND: Final = b"0"  # the ways to undo a plan: refund it,
RENEW: Final = b"1"  # or refund it and charge it again as of now

_COUNTED: Final = {(False, False): "0", (False, True): "1", (True, False): "s", (True, True): "S"}
_FUNCTIONS: Final = {  # the functions of an algorithm that a script calls, if it has several algorithms
    "run": "open, check, charge",
    "refund": "open, charge, refund",
}
_MAX_SHAPES: Final = (
    4096  # combinations of rules before the cache is cleared: rules made per request would grow without bound
)
_TAGS: Final = range(100_000, 1_000_000)  # all have six digits
_LITERAL: Final = str.maketrans({sign: f"\\{sign}" for sign in "*?[]^-\\"})
_ONE: Final = bulk(1)
_PLAIN: Final = bulk(0)  # neither a shadow rule nor one that counts refusals


@lru_cache(maxsize=4096)
def packed_digest(identity: str) -> bytes:
    """Return the digest of an identity as bytes. Cached, because most identities come again."""
    return digest(identity).encode()


class Encoder:
    """The encoder of one store, with its prefix and, in tests, its clock. `split`: its keys are on several servers."""

    def __init__(self, *, prefix: str, clock: Clock | None, split: bool) -> None:
        self._prefix = valid_prefix(prefix)
        self.clock = clock  # of tests; None for the server's clock
        if clock is not None:
            read_us(clock)  # raises for a clock that cannot work
        self._split = split
        self._shapes: dict[Hashable, Shape] = {}
        self._refunds: dict[Hashable, Shape] = {}
        self._tags = chain.from_iterable(repeat(_TAGS))

    def run(self, plan: Plan, mode: bytes | None = None) -> AnyCommand:
        """Return the command that runs a plan."""
        checks, charging, forced, _ = plan
        if len(checks) == 1:
            terms, identity, cost = checks[0]
            shape = self._shapes.get(terms)
            usual = charging and not forced and mode is None and self.clock is None
            if shape is not None and cost == 1 and usual:
                return new(SingleCheck, (shape, packed_digest(identity), next(self._tags), 1))
        shape = self._shape("run", checks, self._shapes)
        if mode is None:
            mode = PEEK if not charging else FORCED if forced else CHARGE
        tag, parts = next(self._tags), _start_of_frame(shape, checks)
        parts.append(self._first_arguments(mode, tag))
        for check, rule in zip(checks, shape.rules, strict=True):
            cost = check.cost
            if cost == 1:
                parts.append(rule.once)
            else:
                counted = rule.counted if rule.counted else _packed_strikers(checks, check)
                parts += (rule.algorithm, counted, bulk(cost), rule.params)
        return Command(b"".join(parts), tag, shape)

    def refund(self, plan: Plan, outcomes: Sequence[Outcome], mode: bytes = REFUND) -> Command:
        """Return the command that refunds these checks, or renews them."""
        shape = self._shape("refund", plan.checks, self._refunds)
        tag, parts = next(self._tags), _start_of_frame(shape, plan.checks)
        parts.append(self._first_arguments(mode, tag))
        for check, outcome, rule in zip(plan.checks, outcomes, shape.rules, strict=True):
            parts += (rule.algorithm, bulk(outcome.at), bulk(check.cost), rule.params)
        return Command(b"".join(parts), tag, shape)

    def forget(self, rule_id: str, identity: str) -> Command:
        """Return the command that drops one budget."""
        return Command(pack("DEL", self.key(rule_id, identity)))

    def key(self, rule_id: str, identity: str) -> str:
        """Return the name of the Redis key that holds one identity's budget under one rule."""
        return f"{self._prefix}:{{{digest(identity)}}}:{rule_id}"

    def pattern(self, rule_id: str) -> str:
        """Return the pattern for SCAN that matches all keys of one rule."""
        before, after = self.key(rule_id, "").split(digest(""))
        return f"{before.translate(_LITERAL)}*{after.translate(_LITERAL)}"

    def _first_arguments(self, mode: bytes, tag: int) -> bytes:
        """Return the first arguments of every script: the time, the way to run it, the tag."""
        now = SERVER_TIME if self.clock is None else bulk(read_us(self.clock))
        return b"%s$1\r\n%s\r\n$6\r\n%d\r\n" % (now, mode, tag)

    def _shape(self, script: str, checks: tuple[Check, ...], known: dict[Hashable, Shape]) -> Shape:
        rules = checks[0].terms if len(checks) == 1 else tuple([check.terms for check in checks])
        shape = known.get(rules)
        if shape is None:
            if len(known) >= _MAX_SHAPES:
                known.clear()
            shape = known[rules] = self._pack(script, checks)
        return shape

    def _pack(self, name: str, checks: tuple[Check, ...]) -> Shape:
        text = script(name, frozenset([check.terms.algorithm for check in checks]))
        checksum = sha1(text.encode(), usedforsecurity=False).hexdigest()
        size = b"*%d\r\n" % (
            6 + 7 * len(checks)
        )  # three words of the command, three for all checks, and a key and six words for each check
        number = bulk(len(checks))
        rules = tuple([self._rule(check.terms) for check in checks])
        first = checks[0].terms
        head = size + bulk("EVALSHA") + bulk(checksum) + number
        return Shape(
            head=head,
            whole=size + bulk("EVAL") + bulk(text) + number,
            size=len(head),
            rules=rules,
            before=head + rules[0].before,
            between=rules[0].after + SERVER_TIME + bulk(CHARGE) + b"$6\r\n",
            after=b"\r\n" + rules[0].once,
            many=None if self._split or rules[0].counted != _PLAIN else _batch_script(first.algorithm),
        )

    def _rule(self, terms: Terms) -> PackedRule:
        before, after = self.key(terms.rule_id, "").split(digest(""))
        length = len(before) + len(digest("")) + len(after.encode())
        algorithm, counted = bulk(terms.algorithm), bulk(_COUNTED[terms.shadow, terms.count_denied])
        words: list[str | int] = [*terms.params, *[0] * (PARAMS - len(terms.params))]
        if terms.algorithm == BAN:
            counted, words[2:] = b"", [" ".join(map(str, words[2:]))]
        params = b"".join(map(bulk, words))
        return PackedRule(
            before=b"$%d\r\n%s" % (length, before.encode()),
            after=after.encode() + b"\r\n",
            algorithm=algorithm,
            counted=counted,
            params=params,
            once=algorithm + (counted if counted else bulk("")) + _ONE + params,
        )


@cache
def _batch_script(algorithm: str) -> BatchScript:
    text = script("many", frozenset([algorithm]))
    checksum = sha1(text.encode(), usedforsecurity=False).hexdigest()
    return BatchScript(bulk("EVALSHA") + bulk(checksum), bulk("EVAL") + bulk(text))


def _packed_strikers(checks: tuple[Check, ...], ban: Check) -> bytes:
    """Return the checks whose refusals are strikes towards a ban: '1' or '0' for each check."""
    return bulk("".join(["01"[strikes] for strikes in strikers(checks, ban)]))


def _start_of_frame(shape: Shape, checks: tuple[Check, ...]) -> list[bytes]:
    """Return the start of a frame: the script and the keys."""
    parts = [shape.head]
    for check, rule in zip(checks, shape.rules, strict=True):
        parts += (rule.before, packed_digest(check.identity), rule.after)
    return parts


def decode(plan: Plan, reply: Sequence[int]) -> tuple[Outcome, ...]:
    """Return one outcome for each check, from a script's reply.

    The reply is the tag, the time, then five integers for each check.
    """
    at = reply[1]
    if len(reply) == 2 + FIELDS:
        _, _, allowed, remaining, retry, reset, following = reply
        limit = plan.checks[0].terms.params[0]  # the limit, read without a call
        wait = NEVER if retry < 0 else retry
        return (new(Outcome, (allowed == 1, limit, remaining, wait, reset, following, at, "store")),)
    return tuple(
        [
            Outcome(
                reply[i] == 1,
                check.terms.limit,
                reply[i + 1],
                NEVER if reply[i + 2] < 0 else reply[i + 2],
                reply[i + 3],
                reply[i + 4],
                at,
            )
            for i, check in zip(range(2, len(reply), FIELDS), plan.checks, strict=True)
        ]
    )


def script(name: str, algorithms: frozenset[str]) -> str:
    """Return the text of a script with these algorithms and no others.

    The functions of a single algorithm keep their names. Each of several algorithms is a block, and the lines marked
    --@SEVERAL pick the functions for a check. Bans are a separate block. A plan with a ban has at least two checks, so
    its script leaves out the part for one check.
    """
    text = _lua("sluicegate.stores", name).replace("--@PROLOGUE", _lua("sluicegate.stores", "prologue"))
    if BAN in algorithms:
        head, _, rest = text.partition("--@ALONE")
        bans = f"local strike_bans\ndo\n{_lua('sluicegate.algorithms', BAN)}\n{_lua('sluicegate.stores', 'bans')}\nend"
        text = (head + rest.partition("--@ALONE")[2]).replace("--@BANS", bans).replace("--@BANNED ", "")
    chunks = {algorithm: _lua("sluicegate.algorithms", algorithm) for algorithm in sorted(algorithms - {BAN})}
    if name != "refund":
        chunks = {algorithm: chunk.partition("--@REFUND")[0] for algorithm, chunk in chunks.items()}
    if len(chunks) == 1:
        (chunk,) = chunks.values()
        return text.replace("--@ALGORITHMS", chunk)
    picked = f"function() return {_FUNCTIONS[name]} end"
    blocks = [f"do\n{chunk}\nalgorithms['{each}'] = {picked}\nend\n" for each, chunk in chunks.items()]
    return text.replace("--@ALGORITHMS", "local algorithms = {}\n" + "".join(blocks)).replace("--@SEVERAL ", "")


# Found now, because `files` imports modules: a fork in the middle of an import would leave it locked in the child.
_FOLDERS: Final = {package: files(package) for package in ("sluicegate.stores", "sluicegate.algorithms")}


def _lua(package: str, name: str) -> str:
    return _FOLDERS[package].joinpath(f"{name.replace('-', '_')}.lua").read_text("utf-8")

"""How a plan is told to a server, and how its reply is read: pure, but for the look-ups that it remembers.

A plan is one EVALSHA. What is the same in every request of a rule is packed for the wire once; a request adds the
digest, the tag and the cost. Plans of one check that differ in nothing but who asks can go together in one run.
This module knows plans, the scripts and the digest; no socket, no client and no loop.
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
    SERVER_S,
    AnyCommand,
    Command,
    Lone,
    Many,
    Packed,
    Shape,
    bulk,
    pack,
)

LOOK: Final = b"0"  # the ways to run a plan: charge nothing,
CHARGE: Final = b"1"  # charge everything or nothing,
REFUSED: Final = b"2"  # charge only what counts refusals, for another server has refused a part of the plan,
FORCED: Final = b"3"  # charge everything
GIVE_BACK: Final = b"0"  # the ways to undo it: for good,
RENEW: Final = b"1"  # or to charge it again as of now

_COUNTED: Final = {(False, False): "0", (False, True): "1", (True, False): "s", (True, True): "S"}
_FUNCTIONS: Final = {  # what they use of several algorithms
    "run": "open, check, charge",
    "refund": "open, charge, refund",
}
_REMEMBERED: Final = 4096  # combinations of rules, before all are forgotten: rules made per request have no end
_TAGS: Final = range(100_000, 1_000_000)  # all of six digits


_LITERAL: Final = str.maketrans({sign: f"\\{sign}" for sign in "*?[]^-\\"})
_ONE: Final = bulk(1)
_PLAIN: Final = bulk(0)  # refusals are not counted, and are refusals


@lru_cache(maxsize=4096)
def packed_digest(identity: str) -> bytes:
    """The digest of an identity as it goes over the wire; remembered, for who comes once mostly comes again."""
    return digest(identity).encode()


class Wire:
    """The words of one store: its prefix and, in tests, its clock. `split`: its keys are spread over servers."""

    def __init__(self, *, prefix: str, clock: Clock | None, split: bool) -> None:
        self._prefix = valid_prefix(prefix)
        self.clock = clock  # of tests; None where the server's is the one
        if clock is not None:
            read_us(clock)  # says what cannot work
        self._split = split
        self._shapes: dict[Hashable, Shape] = {}
        self._refunds: dict[Hashable, Shape] = {}
        self._tags = chain.from_iterable(repeat(_TAGS))

    def run(self, plan: Plan, mode: bytes | None = None) -> AnyCommand:
        """A plan as a command."""
        checks, charging, forced, _ = plan
        if len(checks) == 1:
            terms, identity, cost = checks[0]
            shape = self._shapes.get(terms)
            usual = charging and not forced and mode is None and self.clock is None
            if shape is not None and cost == 1 and usual:
                return new(Lone, (shape, packed_digest(identity), next(self._tags), 1))
        shape = self._shape("run", checks, self._shapes)
        if mode is None:
            mode = LOOK if not charging else FORCED if forced else CHARGE
        tag, parts = next(self._tags), _addressed(shape, checks)
        parts.append(self._how(mode, tag))
        for check, rule in zip(checks, shape.rules, strict=True):
            cost = check.cost
            if cost == 1:
                parts.append(rule.once)
            else:
                counted = rule.counted if rule.counted else _strikers(checks, check)
                parts += (rule.algorithm, counted, bulk(cost), rule.params)
        return Command(b"".join(parts), tag, shape)

    def refund(self, plan: Plan, outcomes: Sequence[Outcome], mode: bytes = GIVE_BACK) -> Command:
        """A command that gives back what these checks were charged."""
        shape = self._shape("refund", plan.checks, self._refunds)
        tag, parts = next(self._tags), _addressed(shape, plan.checks)
        parts.append(self._how(mode, tag))
        for check, outcome, rule in zip(plan.checks, outcomes, shape.rules, strict=True):
            parts += (rule.algorithm, bulk(outcome.at), bulk(check.cost), rule.params)
        return Command(b"".join(parts), tag, shape)

    def forget(self, rule_id: str, identity: str) -> Command:
        """A command that drops one budget."""
        return Command(pack("DEL", self.key(rule_id, identity)))

    def key(self, rule_id: str, identity: str) -> str:
        """Where the budget of one identity under one rule is kept."""
        return f"{self._prefix}:{{{digest(identity)}}}:{rule_id}"

    def pattern(self, rule_id: str) -> str:
        """What SCAN finds all keys of one rule by."""
        before, after = self.key(rule_id, "").split(digest(""))
        return f"{before.translate(_LITERAL)}*{after.translate(_LITERAL)}"

    def _how(self, mode: bytes, tag: int) -> bytes:
        """The arguments that every script begins with."""
        now = SERVER_S if self.clock is None else bulk(read_us(self.clock))
        return b"%s$1\r\n%s\r\n$6\r\n%d\r\n" % (now, mode, tag)

    def _shape(self, script: str, checks: tuple[Check, ...], known: dict[Hashable, Shape]) -> Shape:
        rules = checks[0].terms if len(checks) == 1 else tuple([check.terms for check in checks])
        shape = known.get(rules)
        if shape is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            shape = known[rules] = self._pack(script, checks)
        return shape

    def _pack(self, name: str, checks: tuple[Check, ...]) -> Shape:
        text = script(name, frozenset([check.terms.algorithm for check in checks]))
        known = sha1(text.encode(), usedforsecurity=False).hexdigest()
        size = b"*%d\r\n" % (6 + 7 * len(checks))  # three of the command and three of all checks; a key and six of each
        number = bulk(len(checks))
        rules = tuple([self._rule(check.terms) for check in checks])
        first = checks[0].terms
        head = size + bulk("EVALSHA") + bulk(known) + number
        return Shape(
            head=head,
            whole=size + bulk("EVAL") + bulk(text) + number,
            size=len(head),
            rules=rules,
            before=head + rules[0].before,
            between=rules[0].after + SERVER_S + bulk(CHARGE) + b"$6\r\n",
            after=b"\r\n" + rules[0].once,
            many=None if self._split or rules[0].counted != _PLAIN else _many(first.algorithm),
        )

    def _rule(self, terms: Terms) -> Packed:
        before, after = self.key(terms.rule_id, "").split(digest(""))
        length = len(before) + len(digest("")) + len(after.encode())
        algorithm, counted = bulk(terms.algorithm), bulk(_COUNTED[terms.shadow, terms.count_denied])
        words: list[str | int] = [*terms.params, *[0] * (PARAMS - len(terms.params))]
        if terms.algorithm == BAN:
            counted, words[2:] = b"", [" ".join(map(str, words[2:]))]
        params = b"".join(map(bulk, words))
        return Packed(
            before=b"$%d\r\n%s" % (length, before.encode()),
            after=after.encode() + b"\r\n",
            algorithm=algorithm,
            counted=counted,
            params=params,
            once=algorithm + (counted if counted else bulk("")) + _ONE + params,
        )


@cache
def _many(algorithm: str) -> Many:
    text = script("many", frozenset([algorithm]))
    known = sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Many(bulk("EVALSHA") + bulk(known), pack("SCRIPT", "LOAD", text))


def _strikers(checks: tuple[Check, ...], ban: Check) -> bytes:
    """Which refusals are strikes towards a ban: '1' or '0' for each check."""
    return bulk("".join(["01"[strikes] for strikes in strikers(checks, ban)]))


def _addressed(shape: Shape, checks: tuple[Check, ...]) -> list[bytes]:
    """What a frame begins with: which script, and which keys."""
    parts = [shape.head]
    for check, rule in zip(checks, shape.rules, strict=True):
        parts += (rule.before, packed_digest(check.identity), rule.after)
    return parts


def outcomes(plan: Plan, reply: Sequence[int]) -> tuple[Outcome, ...]:
    """One outcome for each check, from the flat list of integers that the script answers: tag, time, five for each."""
    at = reply[1]
    if len(reply) == 2 + FIELDS:
        _, _, allowed, remaining, retry, reset, following = reply
        limit = plan.checks[0].terms.params[0]
        wait = NEVER if retry < 0 else retry
        return (new(Outcome, (allowed == 1, limit, remaining, wait, reset, following, at, "store")),)
    return tuple(
        [
            Outcome(
                reply[i] == 1,
                check.terms.params[0],
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
    """The text of a script that runs certain algorithms, and holds no other.

    The functions of a lone algorithm go by their own names. Several are a block each, and the lines marked --@SEVERAL
    pick those of a check. Bans are a block by themselves; a plan with one has no use for what is for one check.
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


def _lua(package: str, name: str) -> str:
    return files(package).joinpath(f"{name.replace('-', '_')}.lua").read_text("utf-8")

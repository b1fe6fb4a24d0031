"""The encoding of plans as commands, and the decoding of replies: pure functions with caches.

A plan is one EVALSHA. The constant words of a rule are packed once. A request adds the digest, the tag and the cost.
Plans of one check that differ only in their identity can be in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache, partial
from hashlib import sha1
from importlib.resources import files
from itertools import chain, pairwise, repeat
from typing import Any, Final, NamedTuple

from sluicegate.algorithms import fixed_window, gcra, sliding_counter, sliding_window
from sluicegate.algorithms.checks import MAX
from sluicegate.clock import MICROSECOND, Clock, read_us
from sluicegate.identity import digest, digest_bytes
from sluicegate.plan import BAN, NEVER, Check, Checks, Outcome, Outcomes, Plan, Terms, in_shadow, new, strikers
from sluicegate.stores import Mode, mode_of, terms_of, valid_prefix
from sluicegate.stores.redis.commands import (
    FIELDS,
    PARAMS,
    SERVER_TIME,
    AnyCommand,
    Command,
    HitShape,
    PackedRule,
    Reader,
    Script,
    Shape,
    SingleCheck,
    bulk,
    pack,
)
from sluicegate.stores.redis.steps import MALFORMED

_MODES: Final[dict[Mode, bytes]] = {"peek": b"0", "charge": b"1", "forced": b"3"}  # as run.lua reads them
_REFUSED: Final = b"2"  # charge only the checks that count refusals, because another server has refused another part
REFUND: Final = b"0"  # the ways to undo a plan: refund it,
RENEW: Final = b"1"  # or refund it and charge it again as of now

_FUNCTIONS: Final = {  # the functions of an algorithm that a script calls, if it has several algorithms
    "run": "open, check, charge",
    "refund": "open, charge, refund",
}
_MAX_SHAPES: Final = 4096  # combinations of rules: those of rules that are made per request would grow without bound
MOST: Final = 6  # checks of a plan for which hit.lua may be used: a function in Lua has at most 200 local names
_TAGS: Final = range(100_000, 1_000_000)  # all have six digits: their length is a constant part of the frame
_TWO: Final = {"fixed-window", "sliding-window", "sliding-log"}  # whose blocks read two parameters
_LITERAL: Final = str.maketrans({sign: f"\\{sign}" for sign in "*?[]^-\\"})
_SHORT: Final = 99  # bytes: the numbers of a reply that is longer may be too long for Python's own arithmetic
_ONE: Final = bulk(1)


Decode = Callable[[Checks, Any], Outcomes]
"""Makes one outcome for each check from a script's reply."""

packed_digest: Final = lru_cache(maxsize=4096)(digest_bytes)
"""The digest of an identity as bytes. Cached, because most identities come again."""


class Encoder:
    """The encoder of one store, with its prefix and, in tests, its clock.

    `split`: its keys are on several servers. `decoded`: the replies are decoded as text, so scripts whose replies are
    bytes are not used. `batches`: a command of one check may become a part of a batch.
    """

    def __init__(
        self, *, prefix: str, clock: Clock | None, split: bool, decoded: bool = False, batches: bool = False
    ) -> None:
        self._prefix = valid_prefix(prefix)
        self.clock = clock  # of tests; None for the server's clock
        if clock is not None:
            read_us(clock)  # raises for a clock that cannot work
        self._hitting = not decoded
        self._batches = batches and clock is None and not split
        self._shape = lru_cache(maxsize=_MAX_SHAPES)(self._pack)
        self.compile = lru_cache(maxsize=_MAX_SHAPES)(self._compile)
        """Returns what makes the command that decides checks of these terms in this mode."""
        self._tags = chain.from_iterable(repeat(_TAGS))

    def _compile(self, terms: tuple[Terms, ...], mode: Mode) -> Callable[[Checks], AnyCommand]:
        """Choose the script for checks of these terms."""
        if mode == "charge" and self._hitting and _are_ordinary(terms):
            shape = self._pack_hit(terms)
            way = self._hit_at_cost if self.clock is not None else self._hit if shape.many is None else self._single
            return partial(way, shape)
        return partial(self._general, self._shape("run", terms), _MODES[mode])

    def run(self, plan: Plan, *, refused: bool = False) -> Command:
        """Return the command that runs a plan. `refused`: another server has refused another part of it, so it charges
        only what counts refusals.
        """
        terms = terms_of(plan.checks)
        if refused:
            return self._general(self._shape("run", terms), _REFUSED, plan.checks)
        return self.compile(terms, mode_of(plan))(plan.checks).whole

    def _general(self, shape: Shape, mode: bytes, checks: Checks) -> Command:
        """Return the command for any checks, in any mode."""
        tag, parts = next(self._tags), _start_of_frame(shape, checks)
        parts.append(self._first_arguments(mode, tag))
        for check, rule in zip(checks, shape.rules, strict=True):
            cost = check.cost
            if cost == 1:
                parts.append(rule.once)
            else:
                counted = rule.counted if rule.counted else _packed_strikers(checks, check)
                parts += (rule.algorithm, counted, bulk(cost), rule.params)
        return Command(b"".join(parts), tag, shape.script)

    def _hit(self, shape: HitShape, checks: Checks) -> Command:
        """Return the command that charges ordinary checks if all are allowed: nearly always each at cost 1."""
        digests: tuple[bytes, ...] = ()
        for _, identity, cost in checks:
            if cost != 1:
                return self._hit_at_cost(shape, checks)
            digests += (packed_digest(identity),)
        tag = next(self._tags)
        return new(Command, (shape.usual % (*digests, tag), tag, shape.script, 1))

    def _single(self, shape: HitShape, checks: Checks) -> AnyCommand:
        """Return the command of one check that can be in a batch."""
        _, identity, cost = checks[0]
        if cost != 1:
            return self._hit_at_cost(shape, checks)
        return new(SingleCheck, (shape, packed_digest(identity), next(self._tags), 1))

    def _hit_at_cost(self, shape: HitShape, checks: Checks) -> Command:
        """Return the same command with the cost of each check and, in tests, the time."""
        tag, parts = next(self._tags), _start_of_frame(shape, checks)
        parts += (bulk(tag), shape.params, *[bulk(check.cost) for check in checks])
        if self.clock is not None:
            parts.append(bulk(read_us(self.clock)))
        return Command(b"".join(parts), tag, shape.script)

    def refund(self, plan: Plan, outcomes: Sequence[Outcome], mode: bytes = REFUND) -> Command:
        """Return the command that refunds these checks, or renews them."""
        shape = self._shape("refund", terms_of(plan.checks))
        tag, parts = next(self._tags), _start_of_frame(shape, plan.checks)
        parts.append(self._first_arguments(mode, tag))
        for check, outcome, rule in zip(plan.checks, outcomes, shape.rules, strict=True):
            parts += (rule.algorithm, bulk(outcome.at), bulk(check.cost), rule.params)
        return Command(b"".join(parts), tag, shape.script)

    def forget(self, rule_id: str, identity: str) -> Command:
        """Return the command that drops one budget, without holding the server up for a large one."""
        return Command(pack("UNLINK", self.key(rule_id, identity)))

    def key(self, rule_id: str, identity: str) -> str:
        """Return the name of the Redis key that holds one identity's budget under one rule."""
        return f"{self._prefix}:{{{digest(identity)}}}:{rule_id}"

    def pattern(self, rule_id: str) -> str:
        """Return the pattern for SCAN that matches all keys of one rule."""
        before, after = self.key(rule_id, "").split(digest(""))
        return f"{before.translate(_LITERAL)}*{after.translate(_LITERAL)}"

    @property
    def any_pattern(self) -> str:
        """The pattern for SCAN that matches all keys of this prefix."""
        return f"{self._prefix.translate(_LITERAL)}:{{*"

    def pattern_of(self, identity: str) -> str:
        """Return the pattern for SCAN that matches all keys of one identity."""
        return f"{self.key('', identity).translate(_LITERAL)}*"

    def _first_arguments(self, mode: bytes, tag: int) -> bytes:
        """Return the first arguments of every script: the time, the way to run it, the tag."""
        now = SERVER_TIME if self.clock is None else bulk(read_us(self.clock))
        return b"%s$1\r\n%s\r\n$6\r\n%d\r\n" % (now, mode, tag)

    def _pack(self, name: str, terms: tuple[Terms, ...]) -> Shape:
        algorithms = [each.algorithm for each in terms]
        packed, count, number = _script(name, frozenset(algorithms)), len(terms), bulk(len(terms))
        # A plan may have one rule for several identities. Their checks are separate groups.
        groups = [(each.group, terms[:at].count(each)) for at, each in enumerate(terms)]
        rules = tuple([self._rule(each, groups.index(group)) for each, group in zip(terms, groups, strict=True)])
        # Three words of the command, three for all checks, and a key and six words for each check.
        return Shape(b"*%d\r\n%s%s" % (6 + 7 * count, packed.start, number), packed, rules)

    def _pack_hit(self, terms: tuple[Terms, ...]) -> HitShape:
        algorithms, count = tuple([each.algorithm for each in terms]), len(terms)
        packed, rules = _script("hit", algorithms), tuple([self._rule(each) for each in terms])
        params = b"".join([_packed(each.params, _params_read(each.algorithm)) for each in terms])
        # Three words of the command, the keys, a tag, and the parameters of each check.
        words, number = 4 + count + params.count(b"$"), packed.start + bulk(count)
        keys = [rule.before.replace(b"%", b"%%") + b"%s" + rule.after.replace(b"%", b"%%") for rule in rules]
        return HitShape(
            # At any cost there is a cost for each check, too, and perhaps a time.
            head=b"*%d\r\n%s" % (words + count + (self.clock is not None), number),
            script=packed,
            rules=rules,
            params=params,
            usual=b"*%d\r\n%s%s$6\r\n%%d\r\n%s" % (words, number, b"".join(keys), params),
            many=_script("many", algorithms) if self._batches and count == 1 else None,
            read=reader_of(terms[0]),
        )

    def _rule(self, terms: Terms, group: int = 0) -> PackedRule:
        before, after = self.key(terms.rule_id, "").split(digest(""))
        length = len(before) + len(digest("")) + len(after.encode())
        algorithm, counted = bulk(terms.algorithm), bulk(f"{terms.count_denied:d}{group if terms.shadow else ''}")
        words: tuple[str | int, ...] = terms.params
        if terms.algorithm == BAN:
            counted, words = b"", (*words[:2], " ".join(map(str, words[2:])))
        params = _packed(words, PARAMS)
        return PackedRule(
            before=b"$%d\r\n%s" % (length, before.encode()),
            after=after.encode() + b"\r\n",
            algorithm=algorithm,
            counted=counted,
            params=params,
            once=algorithm + (counted if counted else bulk("")) + _ONE + params,
        )


@cache
def _script(name: str, algorithms: frozenset[str] | tuple[str, ...]) -> Script:
    text = script(name, algorithms)
    checksum = sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(bulk("EVALSHA") + bulk(checksum), bulk("EVAL") + bulk(text))


def _are_ordinary(terms: tuple[Terms, ...]) -> bool:
    """True if hit.lua can decide these checks: all are charged or none, each has its own budget, and they are few."""
    alone = len(terms) == 1  # in shadow it is charged if it is allowed, as another one
    plain = [not each.count_denied and each.algorithm != BAN and (alone or not each.shadow) for each in terms]
    # A plan should not name one budget twice. If it does, run.lua charges it twice.
    return all(plain) and 0 < len({each.rule_id for each in terms}) == len(terms) <= MOST


def _params_read(algorithm: str) -> int:
    """Return how many parameters the block of this algorithm reads."""
    return 2 if algorithm in _TWO else PARAMS


def _packed(params: tuple[str | int, ...], count: int) -> bytes:
    """Return the first parameters of an algorithm as words of a command; a third that is missing is 0."""
    return b"".join(map(bulk, (*params, 0)[:count]))


def _packed_strikers(checks: Checks, ban: Check) -> bytes:
    """Return the checks whose refusals are strikes towards a ban: '1' or '0' for each check."""
    return bulk("".join(["01"[strikes] for strikes in strikers(checks, ban)]))


def _start_of_frame(shape: Shape | HitShape, checks: Checks) -> list[bytes]:
    """Return the start of a frame: the script and the keys."""
    parts = [shape.head]
    for check, rule in zip(checks, shape.rules, strict=True):
        parts += (rule.before, packed_digest(check.identity), rule.after)
    return parts


def decode(checks: Checks, reply: Sequence[int] | bytes) -> Outcomes:
    """Return one outcome for each check, from a script's reply. Raises one of MALFORMED if it is none.

    The reply is the tag, the time, then five integers for each check. The reply of hit.lua is text: the tag, the time
    in two words, and the answers of the algorithms.
    """
    if isinstance(reply, bytes):
        now, kept = _timed(reply)
        found = (_decode_hit(checks[0], now, kept),) if len(checks) == 1 else _decode_several(checks, now, kept)
        if len(reply) > _SHORT:
            _require_integers([number for outcome in found for number in outcome[1:7] if number is not NEVER])
        return found
    _require_integers(reply)
    at = reply[1]
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
            for i, check in zip(range(2, len(reply), FIELDS), checks, strict=True)
        ]
    )


def decode_time(reply: Any) -> int:
    """Return the time in the reply to a refund: the tag, the time. Raises one of MALFORMED if it is none."""
    _, now = reply
    _require_integers((now,))
    return int(now)


def decoder(terms: tuple[Terms, ...], mode: Mode, decode: Decode) -> Decode:
    """Return a function that does the same as `decode` for checks of these terms. If all of them were charged, which is
    nearly always, it takes a third of the time.
    """
    if mode != "charge":
        return decode
    count, readers = len(terms), [reader_of(each) for each in terms]
    most = _SHORT * min(count, 3)  # three times as many digits are still a float

    def decode_charged(checks: Checks, reply: Any) -> Outcomes:
        outcomes: Outcomes = ()
        try:
            _, seconds, microseconds, kept = reply.split(b" ", 3)
            now = int(seconds) * MICROSECOND + int(microseconds)
            texts = (kept,) if count == 1 else _texts(kept, count)
            for read, text, (_, _, cost) in zip(readers, texts, checks):  # noqa: B905  # half the time
                outcome = read(text, now, cost) if cost else None
                if outcome is None:
                    return decode(checks, reply)
                outcomes += (outcome,)
        except MALFORMED:  # also for a reply that is no text; `decode` raises it
            return decode(checks, reply)
        return outcomes if len(reply) <= most else decode(checks, reply)

    return decode_charged


def reader_of(terms: Terms) -> Reader:
    """Return what makes the outcome of a check of these terms that passed."""
    known = _HITS.get(terms.algorithm)
    return _unknown if known is None else known[2](terms.params)


def _require_integers(numbers: Sequence[object]) -> None:
    """Raise ValueError for what is no integer of a script: Lua has none of more than 64 bits."""
    for number in numbers:
        if type(number) is not int or not -(1 << 63) <= number < 1 << 63:
            raise ValueError(f"not an integer of a script: {type(number).__name__}")


def _timed(reply: bytes) -> tuple[int, bytes]:
    """Split the text that a script returns: the time in microseconds, and the answers."""
    _, seconds, microseconds, kept = reply.split(b" ", 3)
    return int(seconds) * MICROSECOND + int(microseconds), kept


def _decode_hit(checked: Check, now: int, kept: bytes) -> Outcome:
    """Return the outcome of a check that was charged if it was allowed.

    `kept` is what the algorithm's `hit` in Lua returns: the state, or the part of it on which the algorithm's `decide`
    has the same outcome; nothing for no state; or "=" and the outcome's integers.
    """
    terms, _, cost = checked
    known, params = _HITS.get(terms[2]), terms[3]  # the algorithm and its parameters
    if known is None or (kept[:1] == b"=" and known is not _GCRA):
        allowed, remaining, retry, reset, following = map(int, kept[1:].split())
        wait = NEVER if retry < 0 else retry
        outcome = Outcome(allowed == 1, terms.limit, remaining, wait, reset, following, now)
    else:
        decide, state_of, _ = known
        outcome, _ = decide(state_of(kept) if kept else None, now, cost, params)
    return in_shadow(outcome, passed=outcome.allowed) if terms.shadow else outcome


def _decode_several(checks: Checks, now: int, kept: bytes) -> Outcomes:
    """Return the outcomes of several checks. If one refused, nothing was charged, and those that passed show that."""
    pairs = tuple(zip(checks, _texts(kept, len(checks)), strict=True))
    outcomes = [_decode_hit(check, now, text) for check, text in pairs]
    if all([outcome.allowed for outcome in outcomes]):
        return tuple(outcomes)
    return tuple(
        [
            _decode_hit(check._replace(cost=0), now, text) if outcome.allowed else outcome
            for (check, text), outcome in zip(pairs, outcomes, strict=True)
        ]
    )


def _texts(kept: bytes, count: int) -> Sequence[bytes]:
    """Return what a script says of each check. Of several checks, the first bytes are the lengths of their texts."""
    if count == 1:
        return (kept,)
    at, texts, lengths = count, [], kept[:count]
    if len(lengths) < count:
        raise ValueError("the reply is too short")
    for length in lengths:
        texts.append(kept[at : at + length])
        at += length
    return texts


def _counts(kept: bytes) -> tuple[int, ...]:
    """Return the state of a sliding counter: numbers with colons between them."""
    return tuple([_integer(word) for word in kept.split(b":")])


def _window(kept: bytes) -> tuple[int, int]:
    """Return the state of a fixed window: see fixed_window.lua."""
    return _integer(kept[-16:]), _integer(kept[:-16])


def _level(kept: bytes) -> tuple[int, int] | None:
    """Return the state of a GCRA: see gcra.lua."""
    level = kept[7:14] if len(kept) >= 14 else kept[7:11]
    return (int.from_bytes(level, "little"), int.from_bytes(kept[:7], "little")) if len(kept) >= 11 else None


def _log(kept: bytes) -> sliding_window.State:
    """Return a sliding window's log with two stamps: see sliding_window.lua. All units count for the first, which is
    the next to expire. If the reply has one stamp, the hit passed, and its own stamp is the newest.
    """
    if kept[0] >= _FEW:
        used, words = kept[0] - _FEW, kept[1:].split()
    else:
        head, count, *words = kept.split()
        used = -1 - _integer(head) - _integer(count)
    oldest, *newest = [_integer(word) for word in words]
    return used, oldest, newest[0] if newest else oldest, 0, (oldest, used)


def _integer(word: bytes) -> int:
    """Return a stored number. Redis 7.2.0 to 7.2.4 write some as 1e+8, and another program may write very long ones."""
    return int(word) if len(word) < 17 and word.isdigit() else int(min(float(word), MAX))


# A reader makes the outcome of a hit that passed, which is nearly every one, in a third of the time of `decide`. It
# returns None for any other. Each function returns the reader for an algorithm with these parameters.


def _passed_window(params: tuple[int, ...]) -> Reader:
    limit, window, grain = params

    def few(kept: bytes, now: int, cost: int) -> Outcome | None:
        left, following = limit - cost, window
        if kept:
            try:
                left, following = left + _FEW - kept[0], int(kept[1:]) + window - now
            except ValueError:
                return None
        return new(Outcome, (True, limit, left, 0, window, following, now, "store")) if 0 <= left < limit else None

    def many(kept: bytes, now: int, cost: int) -> Outcome | None:
        left, reset = limit - cost, window + -now % grain
        following = reset
        if kept:
            try:
                head, count, oldest = kept.split()
                left, following = left + int(head) + int(count) + 1, int(oldest) + window - now
            except ValueError:
                return None
        return new(Outcome, (True, limit, left, 0, reset, following, now, "store")) if 0 <= left < limit else None

    return few if limit <= sliding_window.RESOLUTION else many


def _passed_fixed(params: tuple[int, ...]) -> Reader:
    limit, window = params

    def passed(kept: bytes, now: int, cost: int) -> Outcome | None:
        if not kept:
            left, wait = limit - cost, window
        else:
            try:
                left, wait = limit - cost - int(kept[:-16]), int(kept[-16:]) + window - now
            except ValueError:
                return None
        return new(Outcome, (True, limit, left, 0, wait, wait, now, "store")) if left >= 0 else None

    return passed


def _passed_gcra(params: tuple[int, ...]) -> Reader:
    burst, unit, leak = params
    full = burst * unit

    def passed(kept: bytes, now: int, cost: int) -> Outcome | None:
        ahead = _from_bytes(kept[:7], "little") - now
        level = _from_bytes(kept[7:], "little") + ahead * leak
        level = (level if level > 0 else 0) + cost * unit
        if ahead > 0 or len(kept) != _LEVEL or level > full:
            return None
        free = (full - level) // unit
        following = -((full - level - (free + 1) * unit) // leak)
        return new(Outcome, (True, burst, free, 0, -(-level // leak), following, now, "store"))

    return passed


def _unknown(kept: bytes, now: int, cost: int) -> Outcome | None:
    """Return None: `decide` makes the outcome."""
    return None


_from_bytes: Final = int.from_bytes
_FEW: Final = 128  # added to the used units of a sliding window in one byte, so that it is no character of ASCII
_LEVEL: Final = 11  # the bytes of a GCRA's state, unless its level is 2^32 or more
_Reader = tuple[
    Callable[..., tuple[Outcome, object]],
    Callable[[bytes], Any],
    Callable[[tuple[int, ...]], Reader],
]
# Its state is bytes, which may begin with "=" too. Its block never returns the integers of an outcome.
_GCRA: Final[_Reader] = (gcra.decide, _level, _passed_gcra)
_HITS: Final[dict[str, _Reader]] = {  # the texts of other algorithms are the numbers of the outcome
    "sliding-window": (sliding_window.decide, _log, _passed_window),
    "sliding-counter": (sliding_counter.decide, _counts, lambda _: _unknown),
    "fixed-window": (fixed_window.decide, _window, _passed_fixed),
    "gcra": _GCRA,
}


class _Algorithm(NamedTuple):
    """The parts of an algorithm's file: see prologue.lua. All but the head have their name before them, in capitals."""

    head: str
    hit: str
    write: str
    text: str
    plan: str
    refund: str

    def block(self, code: str, *, result: str) -> str:
        """Return the code of a check with this algorithm's block. `result` takes the text of the reply."""
        code = code.replace("--@HIT", self.hit).replace("--@WRITE", self.write)
        return code.replace("--@TEXT", self.text.replace("text = ", result))


def script(name: str, algorithms: Collection[str]) -> str:
    """Return the text of a script with these algorithms and no others: for "hit" those of its checks, in their order.

    The functions of a single algorithm keep their names. Each of several algorithms is a block, and the lines marked
    --@SEVERAL pick the functions for a check. Bans are a separate block.
    """
    known = {each: _algorithm(each) for each in sorted(set(algorithms) - {BAN})}
    prologue, _, plans = _lua("sluicegate.stores", "prologue").partition("--@PLAN\n")
    text = _lua("sluicegate.stores", name)
    if name in {"hit", "many"}:
        heads = "".join([each.head for each in known.values()])
        text = _hits(text, algorithms, known) if name == "hit" else known.popitem()[1].block(text, result="return ")
        return text.replace("--@PROLOGUE", prologue).replace("--@HEADS", heads).replace("HEAD", _HEAD)
    text = text.replace("--@PROLOGUE", prologue + plans)
    if BAN in algorithms:
        bans = f"local strike_bans\ndo\n{_lua('sluicegate.algorithms', BAN)}\n{_lua('sluicegate.stores', 'bans')}\nend"
        text = text.replace("--@BANS", bans).replace("--@BANNED ", "")
    code = [each.head + each.plan + (each.refund if name == "refund" else "") for each in known.values()]
    if len(code) != 1:
        picked = f"function() return {_FUNCTIONS[name]} end"
        blocks = [f"do\n{part}\nalgorithms['{each}'] = {picked}\nend\n" for each, part in zip(known, code, strict=True)]
        text, code = text.replace("--@SEVERAL ", ""), ["local algorithms = {}\n", *blocks]
    return text.replace("--@ALGORITHMS", "".join(code))


_HEAD: Final = "tag .. ' ' .. time[1] .. ' ' .. time[2] .. ' '"  # the beginning of a reply, in Lua: see `_timed`


def _hits(text: str, algorithms: Collection[str], known: Mapping[str, _Algorithm]) -> str:
    """Return the text of hit.lua for checks of these algorithms. A check's code has that of the next check in it."""
    text, _, check = text.partition("--@CHECK\n")
    alone, code = len(algorithms) == 1, ""
    numbered = list(enumerate(algorithms, 1))
    texts, words = [f"text{number}" for number, _ in numbered], [f"cost{number}" for number, _ in numbered]
    for number, name in reversed(numbered):
        a, b, *c = [f"{word}{number}" for word in "abc"[: _params_read(name)]]
        each = check.replace("NUMBER", str(number)).replace("PARAMETERS", ", ".join([f"{a} + 0", f"{b} + 0", *c]))
        each = known[name].block(each, result="return HEAD .. " if alone else f"text{number} = ")
        code, words = each.replace("--@NEXT", code), [a, b, *c, *words]
    if not alone:
        lengths = ", ".join([f"#{each}" for each in texts])
        code = f"local {', '.join(texts)}\n{code}return HEAD .. string.char({lengths}) .. {' .. '.join(texts)}"
    return text.replace("WORDS", ", ".join(words)) + code


def _algorithm(name: str) -> _Algorithm:
    parts, rest = {}, _lua("sluicegate.algorithms", name)
    for part, following in pairwise((*_Algorithm._fields, "")):
        parts[part], _, rest = rest.partition(f"--@{following.upper()}\n")
    found = _Algorithm(**parts)
    plans = _lua("sluicegate.stores", "prologue").partition("--@PLAN\n")[2]
    return found._replace(hit=found.hit.replace("--@FUNCTIONS", plans + found.plan))


# Found now, because `files` imports modules: a fork in the middle of an import would leave it locked in the child.
_FOLDERS: Final = {package: files(package) for package in ("sluicegate.stores", "sluicegate.algorithms")}


def _lua(package: str, name: str) -> str:
    return _FOLDERS[package].joinpath(f"{name.replace('-', '_')}.lua").read_text("utf-8")

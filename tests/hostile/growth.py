"""How the work on a text grows with its length: hostile texts of every length, and a measure of what they cost.

The rule of the house is to measure in a benchmark and never in a test. This is the one exception, with
`test_worst_request`, so it has to be right on a busy machine. It reads the CPU time of its own thread. It compares a
text with the same text at a sixteenth of the length, where linear and quadratic work lie far apart. A reading that is
too steep counts if it stays too steep in ten rounds, between the least times that were seen.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import permutations
from time import thread_time
from typing import Any, Final, NamedTuple

LENGTHS: Final = (64, 256, 1_024, 4_096, 16_384)  # each four times the one before
FLOOR: Final = 0.004  # seconds: below it a reading says nothing; 16,384 quadratic steps take ten times as long or more
STEEPEST: Final = 110
"""Times the work for 16 times the text: linear is 16, quadratic is 256, cubic is 4,096.

Linear work was seen at 68: a long text takes fresh memory from the system, which a short one need not.
"""
ROUNDS: Final = 10

Act = Callable[[str], object]

SIGNS: Final = (
    *" \t\r\n\v\0\x7f\"'\\,;:=./-_+*?&%#@<>|[]{}()aA0fx",
    "\xa0",
    "\u3000",
    "é",
    "\u0301",
    "\u0660",
    "\ufdfa",
    "\u200b",
    "\ud800",
)
"""What formats are made of, blanks and controls, and Unicode that folds, grows or cannot be encoded."""


class Family(NamedTuple):
    """Texts of one form and of every length: the start, the middle again and again, the end."""

    start: str
    middle: str
    end: str = ""

    def text(self, length: int) -> str:
        """The one of about this length."""
        return self.start + self.middle * (length // len(self.middle)) + self.end


def families(middles: Iterable[str], ends: Iterable[str], starts: Iterable[str] = ()) -> Iterator[Family]:
    """Every sign repeated, before every end; and every two signs in turn."""
    middles, ends = tuple(dict.fromkeys(middles)), tuple(dict.fromkeys(ends))
    for start in dict.fromkeys(("", *starts)):
        for middle in middles:
            yield from (Family(start, middle, end) for end in ("", *ends) if end != middle)
        for one, other in permutations(middles, 2):
            yield from (Family(start, one + other, end) for end in ("", "\0"))
        if start:
            yield from (Family("", start, end) for end in ("", "\0"))


def too_steep(act: Act, family: Family, *, before: Callable[[], object] = bool) -> str:
    """Where the work grows faster than the text: what was measured; "" where it does not.

    `before` runs before each reading: it empties the caches.
    """
    for length in LENGTHS:
        text = family.text(length)
        taken = _seconds(act, text, before)
        if taken > FLOOR and (found := _certain(act, (family.text(length // 16), text), before)):
            return f"{family!r}: {found}"
    return ""


def _certain(act: Act, texts: tuple[str, str], before: Callable[[], object]) -> str:
    """The readings of a text and of a sixteenth of it, if each round says that they are too far apart."""
    short, long = float("inf"), float("inf")
    for _ in range(ROUNDS):
        short = min(short, *[_seconds(act, texts[0], before) for _ in range(3)])
        long = min(long, _seconds(act, texts[1], before))
        if long <= max(FLOOR, STEEPEST * short):
            return ""
    lengths = tuple(map(len, texts))
    return f"{short * 1000:.2f} ms for {lengths[0]} characters, {long * 1000:.2f} ms for {lengths[1]}"


def _seconds(act: Act, text: str, before: Callable[[], object]) -> float:
    """The CPU time of one call."""
    before()
    gc.disable()
    try:
        begun = thread_time()
        act(text)
        return thread_time() - begun
    finally:
        gc.enable()


_parser: Final[Any] = import_module("re._parser")
_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_TAKES_ONE: Final = ("LITERAL", "NOT_LITERAL", "RANGE", "CATEGORY", "IN", "ANY")
_CATEGORIES: Final = {"SPACE": " \t\n", "DIGIT": "09", "WORD": "aZ_09é"}


def of_pattern(pattern: str, flags: int = 0) -> Iterator[Family]:
    """The families that a regular expression is afraid of, from its own parse.

    The starts are texts that lead to each of its repeats. The signs are those that it names and some that it does not,
    one for each set of its parts that take it.
    """
    tree = _parser.parse(pattern, flags)
    signs = tuple(dict.fromkeys([*_signs(tree), *' "\\\n\0aé']))
    repeated = [part for node in _flat(tree) if str(node[0]) in _REPEATS for part in _parts(node[1][2])]
    return families(_apart(signs, repeated), _apart(signs, _parts(tree)), _starts(tree, "", signs))


def _parts(tree: Any) -> list[Any]:
    """The parts of a parse that take one character each; a class of characters is one part."""
    return [node for node in _flat(tree) if str(node[0]) in _TAKES_ONE]


def _apart(signs: Iterable[str], parts: list[Any]) -> list[str]:
    """One sign for each set of parts that take it."""
    return list({tuple(_takes(part, sign) for part in parts): sign for sign in signs}.values())


def _signs(tree: Any) -> Iterator[str]:
    """The characters that a pattern names: its literals, the ends of its ranges, some of its categories."""
    for op, value in _flat(tree):
        match str(op):
            case "LITERAL" | "NOT_LITERAL":
                yield chr(value)
            case "RANGE":
                yield from (chr(end) for end in value)
            case "CATEGORY":
                yield from _CATEGORIES.get(str(value).rpartition("_")[2], "")
            case "IN":
                yield from _signs(value)


def _flat(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every node of a parse, with those inside it."""
    for op, value in tree:
        yield op, value
        for inner in _inner(str(op), value):
            yield from _flat(inner)


def _inner(op: str, value: Any) -> list[Any]:
    """The sequences inside one node."""
    match op:
        case "BRANCH":
            return list(value[1])
        case "SUBPATTERN":
            return [value[3]]
        case "ATOMIC_GROUP":
            return [value]
        case "ASSERT" | "ASSERT_NOT":
            return [value[1]]
        case op if op in _REPEATS:
            return [value[2]]
    return []


def _starts(tree: Any, before: str, signs: tuple[str, ...]) -> Iterator[str]:
    """For each repeat of a sequence, and for each one inside it, a text that leads there."""
    for node in tree:
        op, value = str(node[0]), node[1]
        if op in _REPEATS:
            yield before
        for inner in _inner(op, value):
            yield from _starts(inner, before, signs)
        before += _sample(node, signs)


def _sample(node: Any, signs: tuple[str, ...]) -> str:
    """A short text that one node takes."""
    op, value = str(node[0]), node[1]
    match op:
        case op if op in _TAKES_ONE:
            return next((sign for sign in ("a", "0", *signs) if _takes(node, sign)), "")
        case "ASSERT" | "ASSERT_NOT" | "AT":
            return ""
        case "BRANCH":
            return "".join(_sample(inner, signs) for inner in value[1][0])
        case op if op in _REPEATS:
            return "".join(_sample(inner, signs) for inner in value[2]) * max(1, value[0])
    return "".join(_sample(inner, signs) for part in _inner(op, value) for inner in part)


def _takes(node: Any, sign: str) -> bool:
    """Whether a part that takes one character takes this one."""
    op, value = str(node[0]), node[1]
    match op:
        case "LITERAL":
            return ord(sign) == value
        case "NOT_LITERAL":
            return ord(sign) != value
        case "RANGE":
            return bool(value[0] <= ord(sign) <= value[1])
        case "CATEGORY":
            kind = str(value).removeprefix("CATEGORY_")
            has = sign in _CATEGORIES.get(kind.removeprefix("NOT_"), "")
            return has is not kind.startswith("NOT_")
        case "IN":
            negated = str(value[0][0]) == "NEGATE"
            return any(_takes(member, sign) for member in value[negated:]) is not negated
    return sign != "\n"  # any

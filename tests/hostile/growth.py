"""The growth of work with the length of a text: hostile texts of every length, and a measure of their cost.

The house measures in benchmarks and not in tests. This module and `test_worst_request` are the only exceptions, so
the measure must be right on a busy machine. It reads the CPU time of its own thread. It compares a text with the same
text at a sixteenth of the length, where linear and quadratic work differ much. A reading that is too steep counts only
if it stays too steep in ten rounds, between the lowest times so far.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import permutations
from time import thread_time
from typing import Any, Final, NamedTuple

LENGTHS: Final = (64, 256, 1_024, 4_096, 16_384)  # each four times the one before
FLOOR: Final = 0.004  # seconds: a shorter reading means nothing; 16,384 quadratic steps take ten times as long or more
STEEPEST: Final = 110
"""Times the work for 16 times the text: linear is 16, quadratic is 256, cubic is 4,096.

Linear work was measured at 68: a long text needs new memory from the system, a short one does not.
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
"""Signs of formats, blanks, controls, and Unicode that folds, grows or cannot be encoded."""


class Family(NamedTuple):
    """Texts of one form and any length: the start, the repeated middle, the end."""

    start: str
    middle: str
    end: str = ""

    def text(self, length: int) -> str:
        """The text of about this length."""
        return self.start + self.middle * (length // len(self.middle)) + self.end


def families(middles: Iterable[str], ends: Iterable[str], starts: Iterable[str] = ()) -> Iterator[Family]:
    """Every sign repeated, before every end, and every two signs in turn."""
    middles, ends = tuple(dict.fromkeys(middles)), tuple(dict.fromkeys(ends))
    for start in dict.fromkeys(("", *starts)):
        for middle in middles:
            yield from (Family(start, middle, end) for end in ("", *ends) if end != middle)
        for one, other in permutations(middles, 2):
            yield from (Family(start, one + other, end) for end in ("", "\0"))
        if start:
            yield from (Family("", start, end) for end in ("", "\0"))


def too_steep(act: Act, family: Family, *, before: Callable[[], object] = bool) -> str:
    """The measured times if the work grows faster than the text; otherwise "".

    `before` runs before each reading: it empties the caches.
    """
    for length in LENGTHS:
        text = family.text(length)
        taken = _seconds(act, text, before)
        if taken > FLOOR and (found := _certain(act, (family.text(length // 16), text), before, long=taken)):
            return f"{family!r}: {found}"
    return ""


def _certain(act: Act, texts: tuple[str, str], before: Callable[[], object], *, long: float) -> str:
    """The readings of a text and of a sixteenth of it, if they are too far apart in each round.

    `long` is the first reading of the long text.
    """
    short = float("inf")
    for _ in range(ROUNDS):
        short = min(short, _seconds(act, texts[0], before))
        if long <= max(FLOOR, STEEPEST * short):
            return ""
        long = min(long, _seconds(act, texts[1], before))
    lengths = tuple(map(len, texts))
    return f"{short * 1000:.2f} ms for {lengths[0]} characters, {long * 1000:.2f} ms for {lengths[1]}"


@contextmanager
def untraced() -> Iterator[None]:
    """Stop the tracer of a coverage run, here and in new threads: it makes Python code several times slower."""
    tracer, of_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        threading.settrace(of_threads)
        sys.settrace(tracer)


def _seconds(act: Act, text: str, before: Callable[[], object]) -> float:
    """The CPU time of one call."""
    before()
    gc.disable()
    try:
        with untraced():
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
    """The families that may be slow for a regular expression, from its own parse.

    The starts are texts that lead to each of its repeats. The signs are those that it names and some that it does not,
    one for each set of its parts that take it.
    """
    tree = _parser.parse(pattern, flags)
    signs = tuple(dict.fromkeys([*_signs(tree), *' "\\\n\0aé']))
    repeated = [part for node in _flat(tree) if str(node[0]) in _REPEATS for part in _parts(node[1][2])]
    return families(_apart(signs, repeated), _apart(signs, _parts(tree)), _starts(tree, "", signs))


def _parts(tree: Any) -> list[Any]:
    """The parts of a parse that match one character each. A class of characters is one part."""
    return [node for node in _flat(tree) if str(node[0]) in _TAKES_ONE]


def _apart(signs: Iterable[str], parts: list[Any]) -> list[str]:
    """One sign for each set of parts that match it."""
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
    """For each repeat of a sequence, and for each one inside it, a text that reaches it."""
    for node in tree:
        op, value = str(node[0]), node[1]
        if op in _REPEATS:
            yield before
        for inner in _inner(op, value):
            yield from _starts(inner, before, signs)
        before += _sample(node, signs)


def _sample(node: Any, signs: tuple[str, ...]) -> str:
    """A short text that one node matches."""
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
    """Whether a part that matches one character matches this one."""
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

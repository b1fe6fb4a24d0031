"""Counts: what all processes have decided in the last minute, by rule and by refused identity.

Each process adds its own to a few tables on the server, in one command a second. A table is of BUCKET seconds by the
clock of the process, so the clocks of the machines must agree, as those with NTP do.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, get_args

from sluicegate.algorithms import KEPT
from sluicegate.algorithms.checks import MAX
from sluicegate.clock import MICROSECOND, epoch_seconds
from sluicegate.errors import StoreError, is_foreign
from sluicegate.identity import digest
from sluicegate.observe.events import DecisionEvent, Result
from sluicegate.plan import BAN, Check, Outcome, Plan, Terms
from sluicegate.quota import Quota
from sluicegate.runtime import fork
from sluicegate.stores import COUNTED, Counted

BUCKET: Final = 5  # seconds
BUCKETS: Final = 12  # that are shown: a minute
TOP: Final = 10  # refused identities that are shown
_MINUTE: Final = BUCKET * (BUCKETS + 2)  # the table that is still added to, and clocks that differ


class RuleCounts(NamedTuple):
    """One rule in the last minute."""

    rule: str
    rates: Mapping[str, float]  # per second, in the last seconds
    refusals: Sequence[int]  # in each bucket, the oldest first


class Counts:
    """Counts decisions, as `on_decision`. The first one of a second starts a timer, whose thread sends them all."""

    decides = False  # so that `Delivery` calls it without a guard

    def __init__(self, store: Any, *, show_identities: bool) -> None:
        self._store, self._shows = store, show_identities
        self.after_fork()
        fork.renew(self)

    def after_fork(self) -> None:
        """Begin anew: the parent sends what it has counted, and its timer is no thread of the child."""
        self._lock = threading.Lock()
        self._waits = False  # whether a timer runs
        self._results: dict[tuple[Terms | None, Result], int] = {}
        self._refused: dict[tuple[str, str], int] = {}  # by the rule and the text of the identity

    def __call__(self, event: DecisionEvent) -> None:
        """Count one decision."""
        lines = event.labels()[4]
        with self._lock:
            results, refused = self._results, self._refused  # inside: `send` takes them away
            for (terms, identity, _), (rule, result, _, _) in zip(event.about.checks, lines, strict=True):
                _count(results, (terms, result))
                if result != "allowed":
                    _count(refused, (rule, identity))
            if event.forbidden:
                _count(results, (None, "refused"))
            starts, self._waits = not self._waits, True
        if starts:
            timer = threading.Timer(1.0, self.send)
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:  # the process has no more threads, or ends: the next decision tries again
                self._waits = False

    def send(self) -> None:
        """Send what was counted. While the server is away, counts are lost: they are no budgets."""
        with self._lock:
            results, refused = self._results, self._refused
            self._results, self._refused, self._waits = {}, {}, False
        rules, known, top = Counter[str](), Counter[str](), Counter[str]()
        for (terms, result), number in results.items():
            rules[f"{result} {_clean(terms.name if terms else 'deny list')}"] += number
            if terms:  # what another process needs to read a budget under them
                known[json.dumps([_clean(terms.name), *terms[1:3], terms.window_us, *terms.params])] += number
        for (rule, who), number in Counter(refused).most_common(COUNTED):
            top["\n".join((digest(who), _clean(who) if self._shows else "", _clean(rule)))] += number
        now = int(epoch_seconds()) // BUCKET
        tables = [Counted(f"rules:{now}", _MINUTE, rules), Counted(f"refused:{now}", _MINUTE, top)]
        with suppress(StoreError):
            # Yesterday's too, for two days: memory keeps the tables that were added to last.
            self._store.add_counts([*tables, *map(Counted, _terms_tables(), (172_800, 172_800), (known, {}))])


def report(store: Any) -> tuple[list[RuleCounts], list[tuple[list[str], int]]]:
    """Return what all processes have counted in the last minute, by one command: the rules, and who was refused (the
    digest, the text if it is shown, the rule) how often. The most refusals come first.
    """
    now = epoch_seconds()
    buckets = [int(now) // BUCKET - ago for ago in reversed(range(BUCKETS))]
    found = store.read_counts([f"{kind}:{each}" for kind in ("rules", "refused") for each in buckets])
    rules, top = found[:BUCKETS], sum(map(Counter[str], found[BUCKETS:]), Counter[str]())
    seconds, counted = BUCKET + now % BUCKET, list[RuleCounts]()  # of the last two buckets
    for rule in {name.partition(" ")[2] for table in rules for name in table}:
        series = {each: [table.get(f"{each} {rule}", 0) for table in rules] for each in get_args(Result)}
        rates = {each: sum(numbers[-2:]) / seconds for each, numbers in series.items()}
        refusals = [sum(pair) for pair in zip(series["refused"], series["banned"], strict=True)]
        counted.append(RuleCounts(rule, rates, refusals))
    counted.sort(key=lambda each: (-sum(each.refusals), each.rule))
    return counted, [(name.split("\n"), number) for name, number in top.most_common(TOP) if name.count("\n") == 2]


def known_terms(store: Any) -> list[Terms]:
    """Return the terms of the rules that have decided most today and yesterday. What cannot be read is left out."""
    most = sum(map(Counter[str], store.read_counts(_terms_tables())), Counter[str]()).most_common(COUNTED)
    read = [_terms_of(text) for text, _ in most]
    return sorted([each for each in read if each is not None], key=lambda each: (each.name, each.rule_id))


def _terms_tables() -> list[str]:
    """Return the names of the tables of terms, the one of today first. Terms of long ago leave room for new ones."""
    return [f"terms:{int(epoch_seconds()) // 86_400 - ago}" for ago in (0, 1)]


def budgets(store: Any, terms: list[Terms], text: str) -> list[tuple[Terms, Outcome]]:
    """Return the budgets of an identity. Nothing is charged, and a key of another program is left out."""
    found: list[tuple[Terms, Outcome]] = []
    for each in terms:  # one by one: terms of several quotas may share a budget
        try:
            found.append((each, store.run(Plan((Check(each, text, 0),), charge=False))[0]))
        except StoreError as error:
            if not is_foreign(error):
                raise
    return found


def _count(counts: dict[Any, int], key: object) -> None:
    if key in counts or len(counts) < 1_000:  # what clients invent must not fill the memory
        counts[key] = counts.get(key, 0) + 1


def _clean(text: str) -> str:
    """Return text in one line that UTF-8 can carry. An application may make a name from what a client has sent."""
    return text[:200].replace("\n", " ").encode("utf-8", "replace").decode()


def _terms_of(text: str) -> Terms | None:
    """Return the terms of a description; None for one of another version, or of another program."""
    with suppress(ValueError, TypeError), suppress(ArithmeticError, LookupError, RecursionError):
        name, rule_id, algorithm, window_us, *given = json.loads(text)
        params, kept, quota = tuple(given), KEPT[algorithm], Quota(given[0], window_us / MICROSECOND)
        kept.decide(None, 0, 0, params)  # raises for parameters of another number
        # An alias has no script, and a ban no function for its window.
        is_own = algorithm == kept.NAMES[0] and window_us == (params[1] if algorithm == BAN else kept.window_us(params))
        is_whole = {*map(type, (window_us, *params))} == {int} and 0 <= min(params) <= max(params) <= MAX
        if is_own and is_whole and str.isascii(rule_id):
            return Terms(_clean(str(name)), rule_id, algorithm, params=params, window_us=window_us, quota=quota)
    return None

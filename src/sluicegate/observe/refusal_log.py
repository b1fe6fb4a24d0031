"""Refusal log: a line for the first refusal of an identity under a rule, then counts.

A bounded table follows identities for a period each. What it has no room for is counted by rule. So a period has at
most a few hundred lines, whatever clients do. All periods are equally long, so the oldest entry ends first, and an
event looks at the oldest ones only.
"""

from __future__ import annotations

import logging
import re
import threading
from itertools import islice
from math import inf
from typing import Final

from sluicegate.clock import MICROSECOND, Clock, SystemClock
from sluicegate.errors import ConfigurationError
from sluicegate.observe.events import DecisionEvent, RuleEvent
from sluicegate.runtime import fork

_SWEPT: Final = 2  # entries that one event may end
_SAID: Final = {
    "refused": "rule %s refused",
    "banned": "ban %s refused",
    "shadow": "rule %s would have refused",
    "forbidden": "list %s refused",
}
_WORD: Final = re.compile(r"[A-Za-z0-9_.:@-]+")
_WHOSE: Final = " (sluicegate whois DIGEST access.log says who that is; show_identities=True shows it here)"
_DENY: Final = "deny"  # the one list that refuses

log = logging.getLogger("sluicegate.refusals")

_Rule = tuple[str, str, str]  # application, rule or list, result
_Line = tuple[str, tuple[object, ...], dict[str, object]]


class RefusalLog:
    """Logs refusals, also those of bans, of rules in shadow and of the `deny` list, to the logger
    `sluicegate.refusals`. Give it as `on_decision`.

    The first refusal of an identity under a rule is a line. Further ones are counted, and the count is a line once in
    `period` seconds, as long as there are any. The first event after the end of a period writes it. At most
    `identities` are followed at one time; refusals of others are counted by rule. Those of the list are counted
    together, because a decision of the list knows no identity. `level` is the level of every line, a number or a name.
    Raises ConfigurationError for wrong arguments.

    Lines show the digest of an identity, as in the store's key, unless the limiter has `show_identities`. The first of
    these lines says how to find out who has it.
    """

    def __init__(
        self,
        *,
        period: float = 60.0,
        identities: int = 100,
        level: int | str = logging.INFO,
        clock: Clock | None = None,
    ) -> None:
        number = logging.getLevelNamesMapping().get(level) if isinstance(level, str) else level
        if not isinstance(number, int) or isinstance(number, bool):
            problem, expected = "not a level of logging", 'give a number, or a name like "INFO"'
            raise ConfigurationError("RefusalLog: level", level, problem=problem, expected=expected)
        for option, given in (("period", period), ("identities", identities)):
            if not isinstance(given, (int, float)) or isinstance(given, bool) or not 0 < given < inf:
                what = f"RefusalLog: {option}"
                raise ConfigurationError(what, given, problem="not a number above 0", expected="give a number above 0")
        self._period, self._period_us = period, round(period * MICROSECOND)
        self._most, self._level = identities, number
        self._now_us = (SystemClock() if clock is None else clock).now_us
        self._followed: dict[tuple[_Rule, str], list[int]] = {}  # the end of the period, and the count; oldest first
        self._others: dict[_Rule, int] = {}
        self._ends_us = inf  # the first end of a period
        self._whose = _WHOSE  # until a line has said it
        self._others_end_us = inf
        self._lock = threading.Lock()
        fork.renew(self)

    def after_fork(self) -> None:
        """Follow no identity in the child: the parent logs what it has counted."""
        self._lock = threading.Lock()
        self._followed, self._others = {}, {}
        self._ends_us = self._others_end_us = inf

    def __call__(self, event: DecisionEvent) -> None:
        """Log or count the refusals of a decision, and log the counts of periods that have ended."""
        refused = [at for at, (_, said, _, _) in enumerate(event.labels()[4]) if said != "allowed"]
        now = self._now_us()
        if not refused and not event.forbidden and now < self._ends_us:
            return
        lines: list[_Line] = []
        with self._lock:
            lines += self._end_periods(now)
            for rule in [event.rules[at] for at in refused]:
                lines += self._note(event, rule, now)
            if event.forbidden:
                lines += self._note_forbidden(event, now)
            oldest = next(iter(self._followed.values()), None)
            self._ends_us = min(self._others_end_us, inf if oldest is None else oldest[0])
        for message, arguments, fields in lines:  # outside of the lock, because a handler of the log may wait
            log.log(self._level, message, *arguments, extra=fields)

    def _note(self, event: DecisionEvent, rule: RuleEvent, now: int) -> list[_Line]:
        """Return the line of a refusal if its identity is new, or count the refusal."""
        name, identity = (event.application, _shown(rule.rule), rule.result), _shown(rule.identity)
        if (name, identity) not in self._followed and len(self._followed) >= self._most:
            if name not in self._others and len(self._others) >= self._most:
                name = (name[0], "other", name[2])
            if not self._others:
                self._others_end_us = now + self._period_us
            self._others[name] = self._others.get(name, 0) + 1
            return []
        if not self._follows(name, identity, now):
            return []
        wait = "never passes" if rule.retry_after is None else f"passes after {rule.retry_after:.1f} s"
        fields = {
            **_place(event, name, identity),
            "sluicegate_limit": rule.limit,
            "sluicegate_cost": rule.cost,
            "sluicegate_retry_after": rule.retry_after,
            "sluicegate_source": rule.source,
        }
        whose = "" if event.delivery.shows else self._whose
        self._whose = "" if whose else self._whose
        return [(f"{_SAID[name[2]]} identity %s: it %s{whose}", (_quoted(name[1]), _word(identity), wait), fields)]

    def _note_forbidden(self, event: DecisionEvent, now: int) -> list[_Line]:
        """Return the line of a refusal by the list if it is the first one, or count it."""
        name = event.application, _DENY, "forbidden"
        if not self._follows(name, "", now):
            return []
        return [(f"{_SAID['forbidden']} a request", (_quoted(_DENY),), _place(event, name, ""))]

    def _follows(self, name: _Rule, identity: str, now: int) -> bool:
        """True if this refusal begins a period. Within a period it is counted."""
        entry = self._followed.get((name, identity))
        if entry is not None:
            entry[1] += 1
            return False
        self._followed[name, identity] = [now + self._period_us, 0]
        return True

    def _end_periods(self, now: int) -> list[_Line]:
        """Return the counts of the oldest periods that have ended. An identity that was refused is followed on."""
        lines: list[_Line] = []
        for key, (ends, count) in list(islice(self._followed.items(), _SWEPT)):
            if ends > now:
                break
            del self._followed[key]
            if count:
                self._followed[key] = [now + self._period_us, 0]
                lines.append(self._count(*key, count))
        if self._others and now >= self._others_end_us:
            lines += [self._count(name, "", count) for name, count in self._others.items()]
            self._others, self._others_end_us = {}, inf
        return lines

    def _count(self, name: _Rule, identity: str, count: int) -> _Line:
        who = "again" if name[2] == "forbidden" else "other identities"
        if identity:
            who = f"identity {_word(identity)} again"
        numbers = {"sluicegate_count": count, "sluicegate_period": self._period}
        message, given = f"{_SAID[name[2]]} %s: %d refusals in %g s", (_quoted(name[1]), who, count, self._period)
        return message, given, {**_fields("refused_again", name, identity), **numbers}


def _place(event: DecisionEvent, name: _Rule, identity: str) -> dict[str, object]:
    """Return the fields of a first refusal: who was refused, and where."""
    place = {"sluicegate_endpoint": _shown(event.endpoint), "sluicegate_method": event.method}
    return {**_fields("refused", name, identity), **place}


def _fields(kind: str, name: _Rule, identity: str) -> dict[str, object]:
    application, rule, result = name
    return {
        "sluicegate_event": kind,
        "sluicegate_application": application,
        "sluicegate_list" if result == "forbidden" else "sluicegate_rule": rule,
        "sluicegate_result": result,
        "sluicegate_identity": identity,
    }


def _quoted(text: str) -> str:
    """Return text in quotes, with no other quote between them: it ends where it seems to end."""
    return "'" + text.replace("'", r"\x27") + "'"


def _word(identity: str) -> str:
    """Return an identity that cannot be taken for other parts of a line. A digest and an address stay as they are."""
    return identity if _WORD.fullmatch(identity) else _quoted(identity)


def _shown(text: str) -> str:
    """Return text that stays in one line: a client may have put line breaks into an identity that is shown."""
    return text if text.isprintable() else ascii(text)[1:-1]

"""The sentences and figures that the reports of a replay share: the terminal and the page say the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sluicegate.quota import Quota
from sluicegate.runtime.awaiting import label_of

if TYPE_CHECKING:
    from sluicegate.replay.result import Candidate, ClosedLoop, Load, Result, Traffic

_LETTERS: Final = re.compile(r"(?:[A-Za-z]|[^\x00-\x7f])+")
_DIGITS: Final = re.compile("[0-9]+")
KINDS: Final = {
    "human": ("person", "people"),
    "shared": ("shared address", "shared addresses"),
    "unclear": ("unclear", "unclear"),
    "automated": ("program", "programs"),
}
"""The names of the kinds of identities: for one, and for several."""
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))


def count(number: int, one: str, several: str = "") -> str:
    """Return a number of things.

    >>> count(1, "request"), count(2000, "identity", "identities")
    ('1 request', '2,000 identities')
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def share(part: float, whole: float) -> str:
    """Return a part in percent, never rounded to nothing or to all.

    >>> share(1, 8), share(1, 1_000_000), share(999_999, 1_000_000), share(0, 5), share(5, 5), share(0, 0)
    ('12.5 %', '< 0.1 %', '> 99.9 %', '0 %', '100 %', '0 %')
    """
    percent = 100 * part / whole if whole else 0
    if percent in (0, 100):
        return f"{percent:.0f} %"
    return "< 0.1 %" if percent < 0.1 else "> 99.9 %" if percent > 99.9 else f"{percent:.1f} %"


def span(seconds: float) -> str:
    """Return a time, in two units at most.

    >>> span(0), span(0.25), span(61), span(3600), span(93_600)
    ('0 s', '0.25 s', '1 min 1 s', '1 h', '1 d 2 h')
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    left = round(seconds)
    for i, (unit, length) in enumerate(_UNITS):
        if left >= length:
            rest_unit, rest_length = _UNITS[i + 1] if i + 1 < len(_UNITS) else ("s", 1)
            rest = left % length // rest_length
            return f"{left // length:,} {unit} {rest} {rest_unit}" if rest else f"{left // length:,} {unit}"
    return f"{left} s"


def moment(time: float) -> str:
    """Return a time of the log in UTC, to the minute.

    >>> moment(0)
    '1970-01-01 00:00'
    """
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}"


def answer(candidate: Candidate) -> str:
    """Return in one sentence whom a candidate refuses."""
    if not candidate.decided:
        return "applies to no request of the log"
    if not candidate.refused:
        return f"refuses none of {count(candidate.decided, 'request')}"
    kinds = [count(each.identities, *KINDS[each.kind]) for each in candidate.kinds if each.identities]
    return (
        f"refuses {candidate.refused:,} of {count(candidate.decided, 'request')} "
        f"({share(candidate.refused, candidate.decided)}), {candidate.refused_identities:,} of "
        f"{count(candidate.identities, 'identity', 'identities')}: {', '.join(kinds)}"
    )


def headline(result: Result) -> str:
    """Return the answer of a replay in one sentence."""
    found = result.candidates
    if not result.traffic.requests:
        return "The log has no request."
    if not found:
        return f"{count(result.traffic.requests, 'request')}, and no candidate to judge them."
    if len(found) == 1:
        return f"{printable(found[0].name)} {answer(found[0])}."
    shares = [share(each.refused, result.traffic.requests) for each in sorted(found, key=lambda each: each.refused)]
    if not any(each.refused for each in found):
        return f"None of {len(found)} candidates refuses a request."
    some = shares[0] if shares[0] == shares[-1] else f"{shares[0]} to {shares[-1]}"
    return f"{len(found)} candidates refuse {some} of all {count(result.traffic.requests, 'request')}."


def _enumeration(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def key_text(key: object) -> str:
    """Return a key as text: several parts are joined by "+", and a function is its name."""
    if isinstance(key, tuple):
        return " + ".join(map(key_text, key))
    return str(key) if hasattr(key, "columns") else label_of(key)  # a key that only a log has


def period(seconds: float) -> str:
    """Return the name of a period, as a quota has it.

    >>> period(60), period(300)
    ('minute', '5 minutes')
    """
    return str(Quota(1, seconds)).removeprefix("1/").removeprefix("1 per ")


def printable(text: str) -> str:
    """Return text with its control characters shown."""
    return "".join([sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text])


def quoted(text: str) -> str:
    """Return a text as a string that TOML and Python both read. JSON's escapes of emoji are no TOML.

    >>> quoted('a "b"')
    '"a \\\\"b\\\\""'
    """
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(sign: str) -> str:
    if sign in '"\\':
        return f"\\{sign}"
    if sign.isprintable():
        return sign
    return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}"


def listed(texts: Iterable[str]) -> str:
    """Return texts as a list that TOML and Python both read."""
    return f"[{', '.join(map(quoted, texts))}]"


def told_apart(names: Iterable[str], form: str) -> list[str]:
    """Return names that are all different: to one that was there, its number is added in this form.

    >>> told_apart(["login", "login", "api", "login"], "{}-{}")
    ['login', 'login-2', 'api', 'login-3']
    """
    found: dict[str, None] = {}
    for name in names:
        different, number = name, 2
        while different in found:
            different, number = form.format(name, number), number + 1
        found[different] = None
    return [*found]


def rollout(candidate: Candidate) -> str:
    """Return which rules were replayed as if enforced for everybody; empty if all of them are."""
    several = dict.fromkeys(
        [
            f"{each.name} (in shadow)" if not each.enforced else f"{each.name} (for {each.enforced:g} %)"
            for each in candidate.rules
            if each.enforced < 100
        ]
    )
    return f"Replayed as if enforced for everybody: {_enumeration([*several])}." if several else ""


def shape(text: str) -> str:
    """Return what a text of a client looks like: words as `a` and numbers as `9`, so that it has no identity.

    >>> shape('192.0.2.1 - alice@example.com "GET /\u00e9?token=3fG"')
    '9.9.9.9 - a@a.a "a /a?a=9a"'
    """
    return _DIGITS.sub("9", _LETTERS.sub("a", text))


FACTS: Final = (
    "Blocked is the time for which identities were refused, added up. A wait is that of a client that honours "
    "Retry-After and then goes on. The busiest time is without the candidate and with it. "
    "People are all identities that the signs of `suggest` do not take for programs. `sluicegate suggest --share 0.1%` "
    "finds the smallest limits that refuse at most such a share of them."
)
"""What the figures of `facts` mean."""


def kinds(candidate: Candidate) -> str:
    """Return how many identities of each kind are refused."""
    found = [f"{each.identities:,} of {count(each.of, *KINDS[each.kind])}" for each in candidate.kinds if each.of]
    requests = sum([each.requests for each in candidate.kinds if each.kind != "automated"])
    return f"{', '.join(found)}; {count(requests, 'request')} of people. They are told apart by the signs of `suggest`"


def closed_loop(found: ClosedLoop) -> str:
    """Return what clients that honour Retry-After would have met."""
    if found.delayed is None:
        return f"What clients that honour Retry-After would have met is not computed: {found.not_computed}."
    if not found.delayed and not found.never:
        return "Clients that honour Retry-After would have waited for no request."
    never = f" {count(found.never, 'request')} would never pass." if found.never else ""
    if found.people_delayed:
        whose = (
            f" {found.people_delayed:,} of these are of people: half of them wait at most "
            f"{wait(found.people_median)}, the last {wait(found.people_longest)}."
        )
    else:
        whose = " None of these is of people." if found.delayed else ""
    return (
        f"Clients that honour Retry-After would have got {count(found.delayed, 'request')} through later, after "
        f"{count(found.retries or 0, 'retry', 'retries')}: half of them within {wait(found.median)}, 95 % within "
        f"{wait(found.p95)}, the last after {wait(found.longest)}.{never}{whose}"
    )


def wait(seconds: float | None) -> str:
    """Return how long a client waits, if that is known; a dash if nobody waits."""
    return "not computed" if seconds is None else span(seconds) if seconds else "–"


def facts(candidate: Candidate) -> list[tuple[str, str]]:
    """Return the figures by which candidates are compared, each with its title."""
    load = candidate.load
    found = [
        ("Requests refused", _of(candidate.refused, candidate.decided)),
        ("Identities refused", _of(candidate.refused_identities, candidate.identities)),
        ("People refused", f"{candidate.people:,}"),
        ("Blocked in all", span(candidate.blocked)),
        ("Median wait", wait(candidate.closed_loop.median)),
        ("Longest wait", wait(candidate.closed_loop.longest)),
        ("Median wait, people", wait(candidate.closed_loop.people_median)),
        (f"Busiest {span(load.bucket)} without it", f"{peak(load.logged, load):.3g}/s"),
        (f"Busiest {span(load.bucket)} with it", f"{peak(load.passed, load):.3g}/s"),
    ]
    if any(load.busy_logged):
        before, after = sum(load.busy_logged), sum(load.busy_passed)
        found.append(("Work saved", f"{100 * (before - after) / before:.1f} %"))
    return found


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({share(part, whole)})"


def peak(counts: Iterable[float], load: Load) -> float:
    """Return the most of one bucket, per second."""
    return max(counts, default=0) / load.bucket


def what_was_read(traffic: Traffic) -> str:
    """Return how much was read, and of which time."""
    size = f"{count(traffic.requests, 'request')} by {count(traffic.identities, 'identity', 'identities')}"
    if traffic.first is None or traffic.last is None:
        return size
    return f"{size}, {moment(traffic.first)} to {moment(traffic.last)} UTC ({span(traffic.last - traffic.first)})"


def unread(lines: int, of: int) -> str:
    """Return how many lines could not be read; empty if all could."""
    return f"{count(lines, 'line')} of {of:,} could not be read" if lines else ""


def late(lines: int, at: float | None, by: float) -> str:
    """Return how often time went back in the log, and what was done; empty if it did not."""
    if at is None:
        return ""
    return (
        f"time goes back in the log by up to {span(by)}, first after {moment(at)} UTC: "
        f"{count(lines, 'line is', 'lines are')} later than --window, and replayed at the newest time before"
    )


def notes(traffic: Traffic) -> list[str]:
    """Return what a reader must know about the log: what could not be read, and what the log cannot say."""
    found = [
        *traffic.warnings,
        unread(traffic.unreadable.lines, traffic.lines),
        late(traffic.late, traffic.late_at, traffic.late_by),
        f"the times of the log are exact to {span(traffic.resolution)}: limits for shorter periods cannot be judged"
        if traffic.resolution >= 1 and traffic.requests
        else "",
        f"the log lacks {', '.join(traffic.missing)}: figures that need this are left out"
        if traffic.missing and traffic.requests
        else "",
        f"{count(traffic.refused, 'request has', 'requests have')} status 429: some limit was active already"
        if traffic.refused
        else "",
    ]
    return [f"{each[0].upper()}{each[1:].removesuffix('.')}." for each in found if each]

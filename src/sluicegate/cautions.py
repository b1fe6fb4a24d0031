"""Cautions: what works today and will hurt one day. Each has a code, is told once in a process, and can be silenced.

The table is all there is to say. Whoever sees the condition calls `caution` with the facts; under `strict` it is an
error. This module knows the errors, and nothing of what it warns about.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sluicegate.errors import SettingsError, SluicegateWarning, StrictError


class Caution(NamedTuple):
    """The parts of a message, as those of a ConfigurationError. In `problem` stand the names of facts."""

    what: str
    problem: str
    expected: str


CAUTIONS: Final = {
    "SG101": Caution(
        "store",
        "this is one of {count} workers, and memory:// counts in each of them for itself, so that a client may get "
        "{count} times its limit",
        'use "embedded://" on one machine, or "redis://…"',
    ),
    "SG102": Caution(
        "header",
        "a request has it, but `trusted_proxies` names nobody: behind a proxy, all clients share the proxy's budget",
        "name your proxies, or silence this where clients reach the application directly",
    ),
    "SG103": Caution(
        "trusted_proxies",
        "this is everybody, so each client has the address that it says it has",
        "give the networks of your own proxies",
    ),
    "SG104": Caution(
        "@limit on",
        "the view limits itself, for there is no RateLimitMiddleware: default limits and rules hold nowhere",
        "add it to MIDDLEWARE, or silence this if decorators are all you want",
    ),
    "SG105": Caution(
        "rule",
        "charged twice for one request, by two limiters that count in the same store",
        "leave one of them, or give each a prefix of its own",
    ),
    "SG106": Caution(
        "client",
        "it retries {count} times: a reply that is lost charges a request again",
        "give the client retry=Retry(NoBackoff(), 0)",
    ),
    "SG107": Caution(
        "client",
        "it has no socket_timeout: when its server hangs, so does every request",
        "give it one, and a socket_connect_timeout",
    ),
    "SG108": Caution(
        "rule",
        "two rules of this name hold for one request, so one of them is shown under another name",
        "give each rule a name of its own",
    ),
    "SG109": Caution(
        "server",
        "when its memory is full it drops keys ({policy}): whoever is refused may be forgotten",
        'set its maxmemory-policy to "noeviction", or give sluicegate a server of its own',
    ),
}

_told: Final[set[str]] = set()


def caution(code: str, given: str, *, strict: bool, **facts: object) -> None:
    """Warn of one thing, the first time; or raise a StrictError, every time, under `strict`."""
    what, problem, expected = CAUTIONS[code]
    problem = problem.format_map(facts)
    if strict:
        raise StrictError(code, what, given, problem=problem, expected=expected)
    text = f"{what} {given!r}: {problem}; {expected}"
    if text not in _told:
        SluicegateWarning.warn(code, text)
        _told.add(text)  # not before: where a filter makes it an error, it is one every time


def check_strict(strict: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(strict, bool):
        raise SettingsError("strict", strict, problem="neither True nor False", expected="give one of them")


def forget() -> None:
    """Tell everything anew: for tests."""
    _told.clear()

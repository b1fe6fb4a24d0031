"""What a replay says: frozen values which the terminal, JSON and HTML show. Times are seconds since 1970.

The JSON document has the values by their names, in the order of the fields.
"""

from __future__ import annotations

from typing import NamedTuple

from sluicegate.errors import needs

with needs("replay"):
    import orjson


class File(NamedTuple):
    """A file of the log."""

    name: str
    format: str  # as it was recognised or given


class Example(NamedTuple):
    """A line that could not be read."""

    file: str
    line: int
    text: str  # shortened; its shape unless the reader asked for identities


class Unreadable(NamedTuple):
    """Lines that could not be read: how many, and the first of them."""

    lines: int
    examples: tuple[Example, ...]


class Traffic(NamedTuple):
    """What was read."""

    files: tuple[File, ...]
    lines: int
    unreadable: Unreadable
    late: int  # lines further out of order than the window: replayed at the newest time of the lines before them
    first: float | None
    last: float | None
    resolution: float  # seconds between two times that the log can tell apart: 1, 0.001, 0.000001
    requests: int
    identities: int  # different addresses, or of the first key if there is one for all
    refused: int  # status 429 in the log: some limit was active already
    missing: tuple[str, ...]  # columns that the log does not have, and that a rule or an answer would need
    warnings: tuple[str, ...] = ()  # why the figures may mean something else than the rules say
    late_at: float | None = None  # the newest time known when time first went back by more than the window
    late_by: float = 0  # seconds: how far it went back at most


class RuleText(NamedTuple):
    """One rule of a candidate, as text, and how often it refused."""

    name: str
    quota: str
    key: str
    algorithm: str
    applies_to: str  # methods and path, "" for every request
    refused: int
    identities: int  # refused at least once by this rule
    enforced: float = 100  # percent of identities for which its file enforces it; 0: in shadow. A replay enforces it
    rule: str = ""  # the name of the rule, which may have several quotas; "" for a ban
    options: tuple[
        tuple[str, int | str | None], ...
    ] = ()  # others that the rule sets; None: what no text can have, as a function


class Refused(NamedTuple):
    """One identity that was refused."""

    identity: str  # a digest, or the identity if the reader asked for it
    requests: int
    refused: int
    seconds: float  # for how long it was blocked, in all
    first: float
    last: float
    kind: str  # as in Kind
    counts: tuple[int, ...]  # its requests in each bucket of the load
    refusals: tuple[int, ...]


class Route(NamedTuple):
    """One route: a method, and a path with its variable parts as `*`."""

    route: str
    requests: int
    refused: int
    identities: int
    refused_identities: int


class Load(NamedTuple):
    """Requests over time, in equal buckets."""

    start: float
    bucket: float  # seconds
    logged: tuple[int, ...]
    passed: tuple[int, ...]
    busy_logged: tuple[float, ...]  # seconds of work begun in the bucket, if durations were logged, else empty
    busy_passed: tuple[float, ...]


class Moment(NamedTuple):
    """One of the worst moments."""

    start: float
    seconds: float
    requests: int
    refused: int
    identities: int


class Kind(NamedTuple):
    """The refused identities of one kind, by the signs of `suggest`."""

    kind: str  # "human", "shared" by many people, "unclear": these are counted as people; "automated": programs
    identities: int
    of: int  # identities of this kind
    requests: int  # refused


class ClosedLoop(NamedTuple):
    """What clients that honour Retry-After would have met: each waits, asks again and goes on. None: not computed."""

    delayed: int | None  # requests that passed later than logged
    never: int | None  # requests that no wait lets through
    retries: int | None
    median: float | None  # seconds of delay, over the delayed requests
    p95: float | None
    longest: float | None
    people_delayed: int | None  # the same for people alone: a program that asks without end waits without end
    people_median: float | None
    people_longest: float | None
    not_computed: str  # why some of these are None; "" if none is

    @classmethod
    def unknown(cls, reason: str) -> ClosedLoop:
        """Return the loop of which nothing was computed."""
        return cls._make([*[None] * (len(cls._fields) - 1), reason])


class Point(NamedTuple):
    """One limit on the curve of a rule: what this candidate would have done with it."""

    limit: int
    refused: int
    identities: int
    people: int  # identities of people among them


class Curve(NamedTuple):
    """One rule's limit against its effect, all other things equal. A rule of several quotas has a curve for each."""

    rule: str
    period: float
    limit: int  # the candidate's own: one of the points
    points: tuple[Point, ...]


class Rates(NamedTuple):
    """Identities by the most requests that each made within a period."""

    period: float
    key: str
    applies_to: str  # only requests of these methods and path, as in RuleText
    bins: tuple[tuple[int, int], ...]  # most requests in any such period (from), number of identities; rising


class Candidate(NamedTuple):
    """What one set of rules would have done."""

    name: str
    rules: tuple[RuleText, ...]
    decided: int  # requests that some rule applied to
    refused: int
    identities: int
    refused_identities: int
    blocked: float  # seconds, summed over identities
    routes: tuple[Route, ...]
    worst: tuple[Moment, ...]
    kinds: tuple[Kind, ...]
    closed_loop: ClosedLoop
    load: Load
    most_refused: tuple[Refused, ...]
    curves: tuple[Curve, ...]
    curves_note: str  # why there is no curve; "" if there are all

    @property
    def people(self) -> int:
        """The refused identities that are not taken for programs."""
        return sum([each.identities for each in self.kinds if each.kind != "automated"])


class Result(NamedTuple):
    """A whole replay."""

    traffic: Traffic
    candidates: tuple[Candidate, ...]
    rates: tuple[Rates, ...]
    seconds: float  # that the replay took


def as_json(result: tuple[object, ...]) -> bytes:
    """Return a result as JSON. The names are those of the fields, and docs/replay-report.md lists them."""
    return orjson.dumps(plain_values(result), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def plain_values(value: object) -> object:
    """Return a value of `result.py` as dictionaries and lists.

    The name of a file may have bytes that are not UTF-8, which Python keeps as surrogates. They are shown escaped.
    """
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        return [plain_values(each) for each in value] if names is None else _by_name(value, names)
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _by_name(value: tuple[object, ...], names: tuple[str, ...]) -> dict[str, object]:
    return {name: plain_values(each) for name, each in zip(names, value, strict=True)}

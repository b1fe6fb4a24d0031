"""Decisions about logged requests: the gate of `web/` on a clock that the log moves, and a step for a whole identity.

A candidate with plain rules is decided identity by identity, each as `OneIdentity`: an algorithm alone decides. Most
identities never come near a limit: `suspected` leaves out those that no algorithm can refuse, without a loop. For all
other candidates `Decider` is the gate, request after request in order of time, over a store that never evicts. Tests
prove that both agree event by event with a Limiter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, NamedTuple

from sluicegate.address import IPV4_PREFIX
from sluicegate.errors import RuleError, needs
from sluicegate.identity import identity_text, joined
from sluicegate.plan import Decision, Terms
from sluicegate.replay.caller import LoggedRequest, Places, Row
from sluicegate.replay.candidates import Candidate, rules_of
from sluicegate.replay.plain import Asked, OneIdentity, reach
from sluicegate.replay.traffic import COLUMNS, FIELD, HEADER
from sluicegate.rules.key import Caller, KeySpec, ReadyKey
from sluicegate.rules.response import Response
from sluicegate.rules.rollout import EVERYBODY
from sluicegate.runtime.awaiting import Waiting
from sluicegate.stores.memory import MemoryStore
from sluicegate.web.bound import Bound
from sluicegate.web.charges import Charges, owed
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import Gate
from sluicegate.web.settings import Settings
from sluicegate.web.settlement import Settlement

with needs("replay"):
    import polars as pl

ENDLESS: Final = 2**60  # keys: a store of this size never evicts
FORBIDDEN_RULE: Final = "deny"  # the rule of a request that the list of denied clients refuses
_TEXTS: Final = 50_000  # identities whose text is remembered while a log is read
_EVERYWHERE: Final = Endpoint()
_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = rf"^(?:{_OCTET}\.){{3}}{_OCTET}$"
_OF_IP: Final = joined([identity_text("ip")])  # the identity of an address begins with this

ALLOWED: Final = -1  # in the place of the rule that refused
REFUSALS: Final = {"row": pl.Int64(), "until": pl.Int64(), "rule": pl.Int32()}
"""The columns of refusals: the number of the row, the time at which the same request would pass (null: never), and the
number of the rule that refused among `Ready.names`.
"""


class LogClock:
    """The clock of a replay: the log's own time."""

    def __init__(self) -> None:
        self.now = 0

    def now_us(self) -> int:
        """Return the time of the request that is being decided."""
        return self.now


class Ready:
    """A candidate made ready for a log: a gate over an endless store, and what can be known before the first line."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.name = candidate.name
        self.clock = LogClock()
        store = MemoryStore(max_keys=ENDLESS, clock=self.clock)
        settings = replace(candidate.settings, store=store, clock=None, on_decision=None, on_store_change=None)
        _check(settings)
        self.settings = settings
        self.gate = Gate(settings)
        self.bounds = self.gate.bind(_EVERYWHERE)
        self.forwarding = settings.trusted_header.lower()
        keys = {self.gate.key_of(bound) for bound in self.bounds}
        self.one_key = len(keys) == 1
        self.key: KeySpec = keys.pop() if len(keys) == 1 else "ip"
        self.identity: ReadyKey = self.bounds[0].key if self.one_key else settings.address
        self.reads = _columns(self.key, settings)  # None: any
        self.terms = tuple([each for bound in self.bounds for each in bound.terms or ()])
        self.owner = tuple([at for at, bound in enumerate(self.bounds) for _ in bound.terms or ()])  # of each terms
        self._texts: dict[Row, str | None] = {}
        self.sets: list[tuple[int, ...]] = [()]  # the sets of quotas that apply to a request, by their number
        self.bans = tuple(dict.fromkeys([each.ban for each in self.terms if each.ban is not None]))
        self.names = (*[each.name for each in (*self.terms, *self.bans)], FORBIDDEN_RULE)
        self.plain = self._has_only_plain_rules()
        costs = [self.bounds[at].rule.cost for at in self.owner]
        # Of each quota of plain rules. There is none if the cost of the only quota differs from request to request.
        self.costs = tuple([cost for cost in costs if isinstance(cost, int)])

    @property
    def wanted(self) -> set[str]:
        """The columns that the rules read."""
        return {"time", *_wanted(self.settings, self.bounds)}

    @property
    def counted(self) -> set[str]:
        """The columns that plain rules read of a request whose identity is known."""
        costs = [getattr(bound.rule.cost, "columns", ()) for bound in self.bounds]
        return {"time"}.union(*map(_narrowing, self.bounds), *costs)

    def request(self, values: Row, at: Places) -> LoggedRequest:
        return LoggedRequest(values, at, self.forwarding)

    def text_of(self, caller: Caller) -> str | None:
        """Return the identity of a request under the key that all rules have in common, or else its address."""
        text = self.identity(caller, {})
        if isinstance(text, Waiting):
            raise text.refused()
        return text

    def _has_only_plain_rules(self) -> bool:
        """True if a decision depends only on the times of an identity's requests, and on which rules apply to them."""
        settings, bounds = self.settings, self.bounds
        special = [terms.count_denied or terms.shadow or terms.ban or terms.refund_when for terms in self.terms]
        others = [bound.rule.per_method or bound.share != EVERYBODY for bound in bounds]
        whole = all([isinstance(bound.rule.cost, int) for bound in bounds])
        return (
            self.one_key
            and self.reads is not None
            and not settings.lists
            and settings.enabled
            and len({each.rule_id for each in self.terms}) == len(self.terms)
            and all([bound.terms is not None and bound.rule.when is None for bound in bounds])
            and (whole or (len(self.terms) == 1 and hasattr(bounds[0].rule.cost, "columns")))
            and not any([each.held or each.quota.calendar for each in self.terms])
            and not any(special)
            and not any(others)
        )

    def numbered(self, frame: pl.DataFrame) -> pl.Series:
        """Return for each row the number of the set of quotas that apply to its method and path, as in `sets`."""
        columns = {name for bound in self.bounds for name in _narrowing(bound)}
        return mapped(frame, sorted(columns), self._set, kind=pl.UInt32())

    def _set(self, values: Row, at: Places) -> int:
        request = self.request(values, at)
        holding = [bound.holds(request) for bound in self.bounds]
        found = tuple([number for number, at in enumerate(self.owner) if holding[at]])
        if found not in self.sets:
            self.sets.append(found)
        return self.sets.index(found)

    def having(self, quota: int) -> pl.Expr:
        """Return whether this quota is in the set of the column `set`."""
        return pl.col("set").is_in([number for number, quotas in enumerate(self.sets) if quota in quotas])

    def identify(self, frame: pl.DataFrame) -> pl.Series:
        """Return the identity of each row as text; null if the key does not apply to it.

        By `ip`, an IPv4 address in its usual form that no proxy reported needs no function: it is the identity.
        """
        if self.reads is None:
            return mapped(frame, frame.columns, self._text, kind=pl.String())
        if len(self._texts) > _TEXTS:
            self._texts.clear()
        if self.key != "ip" or self.settings.ipv4_prefix != IPV4_PREFIX or "address" not in frame.columns:
            return mapped(frame, [*self.reads], self._known_text, kind=pl.String())
        address, length = pl.col("address"), (pl.col("address").str.len_bytes() + 1).cast(pl.String())
        direct = [pl.col(name).is_null() for name in self.reads if name != "address" and name in frame.columns]
        text = pl.concat_str([pl.lit(_OF_IP), length, pl.lit(":s"), address])
        found = frame.select(pl.when(address.str.contains(_IPV4), *direct).then(text).alias("found"))["found"]
        others = found.is_null()
        if not others.any():
            return found
        texts = mapped(frame.filter(others), [*self.reads], self._known_text, kind=pl.String())
        return found.scatter(others.arg_true(), texts)

    def _text(self, values: Row, at: Places) -> str | None:
        return self.text_of(self.request(values, at))

    def _known_text(self, values: Row, at: Places) -> str | None:
        """Return the identity of these values of the columns that the key reads. The latest are remembered."""
        try:
            return self._texts[values]
        except KeyError:
            found = self._texts[values] = self._text(values, at)
            return found


def mapped(
    frame: pl.DataFrame,
    columns: list[str],
    function: Callable[[Row, Places], object],
    *,
    kind: pl.DataType,
) -> pl.Series:
    """Return what a function of a row returns for each row. It is called once for equal values of these columns."""
    known = [name for name in columns if name in frame.columns]
    if not known:
        return pl.Series("found", [function((), {})], dtype=kind).new_from_index(0, frame.height)
    different = frame.select(known).unique(maintain_order=True)
    at = {name: place for place, name in enumerate(known)}
    if len(known) == 1:
        values = [function((value,), at) for value in different.to_series().to_list()]
    else:
        values = [function(row, at) for row in different.iter_rows()]
    if different.height == frame.height:
        return pl.Series("found", values, dtype=kind)
    table = different.with_columns(pl.Series("found", values, dtype=kind))
    return frame.select(known).join(table, on=known, how="left", nulls_equal=True, maintain_order="left")["found"]


class Decider:
    """The gate over requests in order of time. The refusals are collected until they are taken."""

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self._rule_at = {name: number for number, name in reversed([*enumerate(ready.names)])}
        self._ends: list[tuple[int, int, Settlement, int | None]] = []  # (time, a number, whose, status at the end)
        self._numbers = count()
        self._third = min([each.window_us // 3 for each in ready.terms if each.held], default=0)

    def decide(self, now: int, caller: LoggedRequest) -> Decision | None:
        """Decide about a request at this time, after the ends of earlier requests. None if no rule applies."""
        ready, ends = self.ready, self._ends
        while ends and ends[0][0] <= now:
            self._end()
        ready.clock.now = now
        if not ready.settings.enabled:
            return None
        gate = ready.gate
        decision = gate.decide(caller, ready.bounds)
        if gate.may_owe and decision is not None and (charges := _told(owed(decision))):
            settlement = gate.settlement()
            settlement.add(charges)
            status = caller.status
            self._push(now + (caller.column("duration") or 0), settlement, 200 if status is None else status)
            if settlement.holds and self._third:
                self._push(now + self._third, settlement, None)
        return decision

    def ask(self, now: int, caller: LoggedRequest) -> tuple[int | None, int] | None:
        """Return until when a request is refused and by which rule, or ALLOWED. None if no rule applies to it."""
        decision = self.decide(now, caller)
        if decision is None or decision.allowed:
            return (None, ALLOWED) if decision is not None and decision.checks else None
        binding = decision.binding  # computed at each read
        rule = FORBIDDEN_RULE if binding is None else binding[0].terms.name
        wait = None if binding is None else wait_of(decision)
        number = self._rule_at.get(rule, self._rule_at[FORBIDDEN_RULE])
        return None if wait is None else now + wait, number

    def feed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Decide about a frame. Return the rows that a rule applied to, with the columns of refusals."""
        at = {name: place for place, name in enumerate(frame.columns)}
        found: list[tuple[int, int | None, int]] = []
        for values in frame.iter_rows():
            answer = self.ask(values[at["time"]], self.ready.request(values, at))
            if answer is not None:
                found.append((values[at["row"]], *answer))
        return pl.DataFrame(found, schema=REFUSALS, orient="row")

    def _push(self, at: int, settlement: Settlement, status: int | None) -> None:
        heappush(self._ends, (at, next(self._numbers), settlement, status))

    def _end(self) -> None:
        """End a request, or renew what it holds."""
        at, _, settlement, status = heappop(self._ends)
        self.ready.clock.now = max(self.ready.clock.now, at)
        if settlement.is_over:
            return
        if status is None:
            settlement.going_on()
            self._push(at + self._third, settlement, None)
        else:
            settlement.answered(Response(status))
            settlement.ended()


def wait_of(decision: Decision) -> int | None:
    """Return the microseconds after which a refused request would pass; None if it never would."""
    pairs = zip(decision.checks, decision.outcomes, strict=True)
    waits = [outcome.retry_after for check, outcome in pairs if not check.terms.shadow]
    known = [wait for wait in waits if wait is not None]
    return max(known) if waits and len(known) == len(waits) else None


def suspects(frame: pl.DataFrame, terms: Terms, cost: object) -> pl.Series:
    """Return the identities that a rule might refuse, from the rows that it applies to, sorted by identity and time.

    Too many requests must have come within the reach of its algorithm. For costs that differ, which are in the column
    `cost`, the sum over the whole log must pass the limit.
    """
    limit = terms.limit
    if not isinstance(cost, int):
        # A sum of whole numbers may leave int64. As floats it is exact up to 2**53, which is above each limit.
        heavy = frame.group_by("identity").agg(pl.col("cost").cast(pl.Float64()).sum()).filter(pl.col("cost") > limit)
        return heavy["identity"]
    if cost == 0:
        return frame["identity"].head(0)
    back = limit // cost
    close = (pl.col("time") - pl.col("time").shift(back) < reach(terms, cost)) & (
        pl.col("identity") == pl.col("identity").shift(back)
    )
    found: pl.Series = frame.lazy().filter(close).select("identity").unique().collect()["identity"]
    return found


def one_identity(ready: Ready, other: Mapping[int, Terms] | None = None) -> OneIdentity:
    """Return an identity that has asked nothing yet. `other` quotas, by number, replace those of the rules."""
    return OneIdentity(dict(enumerate(ready.terms)) if other is None else other, ready.costs, ready.sets)


class Decided(NamedTuple):
    """What plain rules decide about a frame."""

    rest: pl.DataFrame  # the rows of identities that might be refused, of those that a rule applies to
    decided: pl.Series  # all rows that a rule applies to
    refusals: pl.DataFrame


def ruled(ready: Ready, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of known identities that some rule applies to. The column `set` has the number of the set of its
    quotas. If the cost of the only quota differs from request to request, the column `cost` has it.
    """
    known = frame.filter(pl.col("identity").is_not_null())
    rows = known.with_columns(ready.numbered(known).alias("set")).filter(pl.col("set") > 0)
    if ready.costs or not ready.plain:
        return rows
    # A rule is not plain if an async function, or one without columns, returns its cost.
    cost: Any = ready.bounds[0].rule.cost
    costs = mapped(rows, [*cost.columns], lambda values, at: cost(ready.request(values, at)), kind=pl.Int64())
    return rows.with_columns(costs.alias("cost"))


def suspected(ready: Ready, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of those who might be refused. The frame has all requests of its identities to which a rule
    applies, sorted by identity, then by time.
    """
    found = []
    for number, (at, terms) in enumerate(zip(ready.owner, ready.terms, strict=True)):
        found.append(suspects(rows.filter(ready.having(number)), terms, ready.bounds[at].rule.cost))
    return rows.filter(pl.col("identity").is_in(pl.concat(found).unique().implode()))


def by_identity(ready: Ready, frame: pl.DataFrame) -> Iterator[tuple[int, list[int], Asked]]:
    """Yield each identity, the numbers of its rows, and its requests."""
    names = ["row", "time", "set" if ready.costs else "cost"]
    for identity, rows, *asked in frame.group_by("identity", maintain_order=True).agg(names).iter_rows():
        yield identity, rows, Asked(*asked)


def decided(ready: Ready, frame: pl.DataFrame) -> Decided:
    """Decide about a frame that has all requests of its identities, sorted by identity, then by time. Its columns are
    those of traffic, and `identity`, `row`.
    """
    rows = ruled(ready, frame)
    rest = suspected(ready, rows)
    refused: list[int] = []
    untils: list[int | None] = []
    rules: list[int] = []
    for _, mine, asked in by_identity(ready, rest):
        for at, after, until, rule in one_identity(ready).refused(asked):
            refused += mine[at:after]
            untils += [until] * (after - at)
            rules += [rule] * (after - at)
    refusals = pl.DataFrame({"row": refused, "until": untils, "rule": rules}, schema=REFUSALS)
    return Decided(rest, rows["row"], refusals)


def _narrowing(bound: Bound) -> list[str]:
    """Return the columns that say whether a rule applies to a request."""
    return [name for name, given in (("method", bound.methods), ("path", bound.path)) if given is not None]


def _columns(key: KeySpec, settings: Settings) -> tuple[str, ...] | None:
    """Return the columns that a key reads; None for a function, which may read any."""
    trust, address = settings.trust, ["address"]
    if trust.hops or trust.networks or trust.unix:
        address += ["forwarded", f"{HEADER}{trust.header.lower()}"]
    if isinstance(key, tuple):
        parts = [_columns(part, settings) for part in key]
        return None if None in parts else tuple(dict.fromkeys([name for part in parts for name in part or ()]))
    if isinstance(key, str):
        name = key.partition(":")[2]
        own = {"ip": (), "user": ("user",)}.get(key, (f"{HEADER}{name.lower()}",))
        return (*own, *(("agent",) if name.lower() == "user-agent" else ()), *address)
    columns: tuple[str, ...] | None = getattr(key, "columns", None)
    return columns


def _told(charges: Charges) -> Charges:
    """Return the charges whose end a log tells. It has no bodies: a cost that a response tells stays the estimate."""
    return [pair for pair in charges if pair[0].terms.cost_after is None]


def _wanted(settings: Settings, bounds: Sequence[Bound]) -> set[str]:
    """Return the columns that a candidate reads; all of them, and each field of the log, if it has a function."""
    found: set[str] = set()
    functions: list[object] = [function for listed in settings.lists for function in listed.functions]
    if settings.lists:
        found |= {"address", "forwarded", *(_columns(settings.key, settings) or ())}
    for bound in bounds:
        rule = bound.rule
        key = settings.key if rule.key is None else rule.key
        columns = _columns(key, settings)
        found |= {"address"} if columns is None else set(columns)
        functions += [key] if columns is None else []
        functions += [
            each for each in (rule.when, rule.cost, rule.quota) if callable(each) and not hasattr(each, "columns")
        ]
        found |= set(getattr(rule.cost, "columns", ()))
        found |= {*_narrowing(bound), *(["method"] if rule.per_method else [])}
        found |= {"status", "duration"} if rule.charge_when or rule.refund_when else set()
        found |= {"duration", "status"} if any(each.held for each in bound.terms or ()) else set()
    return found | {*COLUMNS, FIELD} if functions else found


def _check(settings: Settings) -> None:
    rules = rules_of(settings)
    for rule in rules:
        if rule.route is not None:
            problem, expected = "a log has no names of routes", 'give a path such as "/api/*"'
            raise RuleError(f"rule {rule.name!r}: route", rule.route, problem=problem, expected=expected)
    for key in (settings.key, *[rule.key for rule in rules]):
        for part in key if isinstance(key, tuple) else (key,):
            if isinstance(part, str) and part.startswith("path:"):
                problem, expected = "a log has no named parts of a path", 'give --rule with its number, as "by path:2"'
                raise RuleError("key", part, problem=problem, expected=expected)

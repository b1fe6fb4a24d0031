"""Stores keep the budgets: their contract in prose, and the table of URL schemes.

A store turns a plan into outcomes. All I/O of sluicegate is in the stores.

- `run(plan)` checks every check of the plan. It charges all of them if all allow and the plan says so. Otherwise it
  charges only the checks whose terms count refusals. This is one atomic step, also when other processes run plans at
  the same time. A forced plan charges all its checks in any case, as a plan that was refused elsewhere and whose checks
  all count refusals. `run` returns one Outcome for each check, in order. A failure is a StoreError. It leaves open
  whether the plan was charged.
- A check whose terms have `shadow` refuses nothing: the other checks are charged as if it were not there. The shadow
  checks of one rule for one identity (`Check.group`) are charged when the enforced checks were and each of the group
  would have passed; else none of the group is. The outcome of a shadow check is always allowed. Its `retry_after` is 0
  if the check would have passed, else that of the refusal.
- `refund(plan, outcomes)` gives back what `run` charged: each check's cost, or a part of it, to the window of
  `outcome.at`. Nothing is given back if that window has passed, or for an outcome that has another source or is not
  allowed.
- `renew(plan, outcomes)` refunds the same charge and charges it again as of now, whatever else is charged, in one step:
  a slot stays held. It returns the outcomes with the new `at`, for a later `refund` or `renew`. If it renewed nothing,
  it returns `outcomes` itself: so the caller knows.
- `forget(rule_id, identity)` drops one budget.
- `close()` closes what the store itself opened.
- `compile(terms, mode)` is optional. It returns a `Run`, which decides checks of exactly these terms in this mode as
  `run` decides their plan. The limiter keeps it, so a store does there what depends only on the terms. That of an async
  store may return outcomes, or an awaitable of them.
- `accept(terms)` is optional. It raises a ConfigurationError for terms that the store cannot keep. The limiter calls it
  when rules are made, and it does no I/O.
- `warn(strict=…)` is optional. It warns of risky properties of the store, and raises under `strict`. It is called when
  a limiter is made with the store, and does no I/O. `run` warns of what is found later.
- `needs_asyncio` is True for an async store that works only on asyncio. The limiter refuses it on another event loop,
  such as trio.
- `bans(terms)` is optional. It returns the identities that a ban holds for: the microseconds left, by their digests. It
  takes as many steps as there are keys.
- `rule_ids(identity)` is optional. It returns the ids of the rules under which an identity has a budget, as a set, for
  `Limiter.reset_all`. It may take as many steps as there are keys.
- `read_overrides(known)`, `write_overrides(before, after, entry)` and `override_entries(count)` are optional. They keep
  one document of bytes, the overrides, and a list of the last HISTORY entries. A read returns None if the document
  begins with `known`; that takes no time in a store where `is_here` is True. A write changes nothing and returns False
  if the document is not what it was `before`.
- `add_counts(tables)` and `read_counts(names)` are optional. They keep tables of counts by name, for the dashboard and
  the names of processes, and know nothing of what is counted. Each keeps its COUNTED largest counts, until nothing was
  added for its seconds.
- `describe()` is optional. It returns a `sluicegate.observe.status.Status`: what this process knows of the store. It
  does no I/O and is not awaited.
- `ask()` is optional. It asks the server what `describe` then returns: its version and the time of a round trip. It
  charges nothing, and waits for a silent server no longer than the deadline.
- `page(position, identity)` is optional. It returns the budgets among a few keys as a `KeyPage`, for the commands that
  show them. One call is short, whatever the number of keys.

After the checks of its rules a plan has one check for each ban that they name (`sluicegate.algorithms.ban`). A refusal
of such a rule is a strike, counted in the same step.

A store has its own clock: the server's `TIME`, the process's monotonic clock, or a ManualClock that it was given. A
wrapper of a store (a fallback, a cache) is a store. An async store awaits the same five calls.

To add a store: write one module with `open_sync` and `open_async`, and add its schemes to the table below. It may
import values, algorithms and the digest of `sluicegate.identity`, but not rules, HTTP or frameworks.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, Protocol, cast, runtime_checkable

from sluicegate.clock import Clock
from sluicegate.errors import StoreError, StoreURLError, nearest
from sluicegate.plan import Check, Checks, Network, Outcome, Outcomes, Plan, Terms, new
from sluicegate.runtime.hidden import hide_store, shown_url

Mode = Literal["charge", "peek", "forced"]
"""How checks are decided: charged if all are allowed; charged never; charged always, because the units are used."""

Run = Callable[[Checks, Network], Outcomes]
"""Turns checks of the terms that it was compiled for into outcomes."""

AsyncRun = Callable[[Checks, Network], "Outcomes | Awaitable[Outcomes]"]
"""The same of an async store. A store that need not wait returns the outcomes themselves."""


def compiled(store: Any, terms: tuple[Terms, ...], mode: Mode) -> Any:
    """Return the Run of a store; of an async store the AsyncRun.

    A user's own store may have only `run`, and so may a subclass or an instance of one of ours that replaces `run`.
    """
    if "run" not in getattr(store, "__dict__", ()):
        for kind in type(store).__mro__:
            if "compile" in vars(kind):
                return store.compile(terms, mode)
            if "run" in vars(kind):  # it replaces the `run` of a class above, whose `compile` must not be used then
                break

    def run(checks: Checks, network: Network = None) -> Any:
        return store.run(plan_of(checks, mode, network))

    return run


_TERMS: Final[Callable[[Check], Terms]] = itemgetter(0)  # a function of C: it runs for every check


def terms_of(checks: Checks) -> tuple[Terms, ...]:
    """Return the terms of checks: what a Run is compiled for."""
    return tuple(map(_TERMS, checks))


def plan_of(checks: Checks, mode: Mode, network: Network = None) -> Plan:
    """Return the plan of checks that are decided in a mode."""
    return new(Plan, (checks, mode != "peek", mode == "forced", network))


def mode_of(plan: Plan) -> Mode:
    """Return how a plan is decided."""
    return "peek" if not plan.charge else "forced" if plan.forced else "charge"


class RunsPlans:
    """The `run` of a store that has a `compile`."""

    compile: Callable[[tuple[Terms, ...], Mode], Run]

    def run(self, plan: Plan) -> Outcomes:
        """Decide one plan."""
        return self.compile(terms_of(plan.checks), mode_of(plan))(plan.checks, plan.network)


class AsyncRunsPlans:
    """The same for asynchronous code."""

    compile: Callable[[tuple[Terms, ...], Mode], AsyncRun]

    async def run(self, plan: Plan) -> Outcomes:
        found = self.compile(terms_of(plan.checks), mode_of(plan))(plan.checks, plan.network)
        return found if type(found) is tuple else await cast("Awaitable[Outcomes]", found)


@runtime_checkable
class Store(Protocol):
    """A store for a Limiter."""

    def run(self, plan: Plan) -> tuple[Outcome, ...]: ...

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None: ...

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]: ...

    def forget(self, rule_id: str, identity: str) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class AsyncStore(Protocol):
    """A store for an AsyncLimiter."""

    async def run(self, plan: Plan) -> tuple[Outcome, ...]: ...

    async def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> None: ...

    async def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]: ...

    async def forget(self, rule_id: str, identity: str) -> None: ...

    async def close(self) -> None: ...


class StoreChange(NamedTuple):
    """The argument of the hook `on_store_change`: a store became unavailable, or recovered."""

    store: str  # without the password
    available: bool
    error: StoreError | None  # of the failure; None when it recovered


class _Opener(Protocol):
    """The functions of a store's module."""

    def open_sync(self, url: str, *, prefix: str, clock: Clock | None, deadline: float) -> Store: ...

    def open_async(self, url: str, *, prefix: str, clock: Clock | None, deadline: float) -> AsyncStore: ...


class Counted(NamedTuple):
    """What a process adds to a table of counts. `seconds` is how long the table is kept after that."""

    name: str
    seconds: int
    counts: Mapping[str, int]


HISTORY: Final = 1_000  # changes of overrides that are kept
OLDER: Final = 4_000_000  # bytes of those before the last one, which may have 10,000 overrides
COUNTED: Final = 200  # counts that a table keeps, the largest ones
DEADLINE: Final = 0.1  # seconds that a request waits for a silent server
_REDIS: Final = "sluicegate.stores.redis"
SCHEMES: Final = {  # names, not modules: a module is imported when a URL needs it, and with it its client
    "memory": "sluicegate.stores.memory",
    "embedded": "sluicegate.stores.embedded",
    **dict.fromkeys(("redis", "rediss", "unix", "valkey", "valkeys"), _REDIS),
    **dict.fromkeys(("redis+sentinel", "rediss+sentinel", "valkey+sentinel", "valkeys+sentinel"), _REDIS),
    **dict.fromkeys(("redis+cluster", "rediss+cluster", "valkey+cluster", "valkeys+cluster"), _REDIS),
    **dict.fromkeys(("redis+cell", "rediss+cell"), f"{_REDIS}.cell"),
}


_PREFIX: Final = r"[!-z|~]+"  # printable ASCII without space, and without braces: a key has one hash tag, the digest


def open_store(url: str, *, prefix: str, clock: Clock | None = None, deadline: float = DEADLINE) -> Store:
    """Open the store for a URL such as `memory://` or `redis://localhost:6379/0`. Raises StoreURLError for an unknown
    URL.

    `prefix` begins every key in a shared server. `deadline` is how many seconds a request waits for a silent
    server; while the server answers or a connection opens, it may wait longer (up to a second).
    """
    url = hide_store(url)
    return _opener(url).open_sync(url, prefix=valid_prefix(prefix), clock=clock, deadline=deadline)


def open_async_store(url: str, *, prefix: str, clock: Clock | None = None, deadline: float = DEADLINE) -> AsyncStore:
    """Open the store for an AsyncLimiter."""
    url = hide_store(url)
    return _opener(url).open_async(url, prefix=valid_prefix(prefix), clock=clock, deadline=deadline)


def _opener(url: str) -> _Opener:
    known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    if not isinstance(url, str) or "://" not in url:
        given = shown_url(url) if isinstance(url, str) else type(url)  # its repr may show a password
        is_address = isinstance(url, str) and url.rpartition(":")[2].isdecimal()
        expected = 'write "redis://" before it' if is_address else f"use one of: {known}"
        raise StoreURLError("store", given, problem="not a URL and not a store", expected=expected)
    scheme = url.partition("://")[0].lower()
    if scheme not in SCHEMES:
        expected = nearest(scheme, SCHEMES, f"use one of: {known}", kind="scheme")
        raise StoreURLError("store", shown_url(url), problem=f'unknown scheme "{scheme}"', expected=expected)
    try:
        return cast(_Opener, import_module(SCHEMES[scheme]))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sluicegate":
            raise
        problem = f"this program was packed without {error.name}"
        expected = "add that module in the tool that packs it"
        raise StoreURLError("store", shown_url(url), problem=problem, expected=expected) from error


def valid_prefix(prefix: str) -> str:
    """Return the prefix. Raises StoreURLError if it is empty or has a space, brace, control or non-ASCII character."""
    if not isinstance(prefix, str) or not re.fullmatch(_PREFIX, prefix):
        problem = "empty, or with a space, a brace or a character outside ASCII"
        raise StoreURLError("prefix", prefix, problem=problem, expected='use a word, for example "sluicegate"')
    return prefix

"""Stores: where budgets live. The contract in prose, and the table of URL schemes.

A store turns a plan into outcomes: it is the only place where sluicegate does I/O.

- `run(plan)` checks every check of the plan and charges all of them if all allow and the plan says so; otherwise none,
  save those whose terms count refusals. One atomic step, whoever else runs at the same time. A forced plan is charged
  in any case, as one that was refused elsewhere and all of whose checks count that. It answers one Outcome for each
  check, in order. Trouble is a StoreError, and then nothing is known of the charge.
- Checks whose terms say `shadow` are told, and refuse nothing: the others are charged as if these were not there. A
  shadow check is charged when the others were and it would itself have passed. Its outcome is always allowed, with a
  `retry_after` of 0 if it would have passed, and else that of the refusal.
- `refund(plan, outcomes)` gives back what `run` charged: each check's cost, or a part of it, to the window of
  `outcome.at`, or to nobody when that window has passed. Outcomes of another source or not allowed give nothing back.
- `renew(plan, outcomes)` gives the same back and charges it again as of now, whatever else there is, in one step: what
  is held goes on being held. It answers the outcomes with the new `at`, for a later `refund` or `renew`.
- `forget(rule_id, identity)` drops one budget.
- `close()` gives back what the store itself opened.
- `accept(terms)`, which a store may have, raises a ConfigurationError for terms that it cannot keep. It is asked when
  rules are made, and does no I/O.
- `caution(strict=…)`, which a store may have, warns of what is risky about it, and under `strict` raises. It is called
  when a limiter is made with the store, and does no I/O; what is found later is told from `run`.
- `bans(terms)`, which a store may have, tells whom a ban holds for: microseconds by the digests of identities. It takes
  as many steps as there are keys.

After the checks of its rules a plan has one for each ban that they name (`sluicegate.algorithms.ban`). A refusal of
such a rule is a strike, counted in the same step.

A store owns its clock: the server's `TIME`, the process's monotonic clock, or a ManualClock handed in. Stores compose:
one that wraps another (a deadline, a fallback, a cache) is a store. The async twin awaits the same five calls.

A module of this package imports values, cautions, algorithms and the digest of `sluicegate.identity`: never rules, HTTP
or frameworks. To add a store: one module with `open_sync` and `open_async`, and its schemes in the table below.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Final, NamedTuple, Protocol, cast, runtime_checkable

from sluicegate.clock import Clock
from sluicegate.errors import StoreError, StoreURLError
from sluicegate.hidden import hide_store, shown_url
from sluicegate.plan import Outcome, Plan


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
    """What the hook `on_store_change` is told: that a store stopped answering, or that it answers again."""

    store: str  # as it may be shown: no password
    available: bool
    error: StoreError | None  # what it failed with; None when it answers again


class _Opener(Protocol):
    """What a store's module offers."""

    def open_sync(self, url: str, *, prefix: str, clock: Clock | None, deadline: float) -> Store: ...

    def open_async(self, url: str, *, prefix: str, clock: Clock | None, deadline: float) -> AsyncStore: ...


DEADLINE: Final = 0.1  # seconds that a store may cost one request
SCHEMES: Final = {
    "memory": "sluicegate.stores.memory",
    "embedded": "sluicegate.stores.embedded",
    "redis": "sluicegate.stores.redis",
    "rediss": "sluicegate.stores.redis",
    "unix": "sluicegate.stores.redis",
    "valkey": "sluicegate.stores.redis",
    "valkeys": "sluicegate.stores.redis",
    "redis+sentinel": "sluicegate.stores.redis",
    "rediss+sentinel": "sluicegate.stores.redis",
    "valkey+sentinel": "sluicegate.stores.redis",
    "valkeys+sentinel": "sluicegate.stores.redis",
    "redis+cluster": "sluicegate.stores.redis",
    "rediss+cluster": "sluicegate.stores.redis",
    "valkey+cluster": "sluicegate.stores.redis",
    "valkeys+cluster": "sluicegate.stores.redis",
    "redis+cell": "sluicegate.stores.redis_cell",
    "rediss+cell": "sluicegate.stores.redis_cell",
}


_PREFIX: Final = r"[!-z|~]+"  # printable ASCII but space and braces


def open_store(url: str, *, prefix: str, clock: Clock | None = None, deadline: float = DEADLINE) -> Store:
    """The store for a URL such as `memory://` or `redis://localhost:6379/0`. StoreURLError if there is none.

    `prefix` begins every key in a shared server; `deadline` bounds, in seconds, all that a request waits for it.
    """
    url = hide_store(url)
    return _opener(url).open_sync(url, prefix=valid_prefix(prefix), clock=clock, deadline=deadline)


def open_async_store(url: str, *, prefix: str, clock: Clock | None = None, deadline: float = DEADLINE) -> AsyncStore:
    """The same for an AsyncLimiter."""
    url = hide_store(url)
    return _opener(url).open_async(url, prefix=valid_prefix(prefix), clock=clock, deadline=deadline)


def _opener(url: str) -> _Opener:
    known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    if not isinstance(url, str) or "://" not in url:
        given = shown_url(url) if isinstance(url, str) else url
        raise StoreURLError("store", given, problem="not a URL and not a store", expected=f"use one of: {known}")
    scheme = url.partition("://")[0].lower()
    if scheme not in SCHEMES:
        raise StoreURLError(
            "store", shown_url(url), problem=f'unknown scheme "{scheme}"', expected=f"use one of: {known}"
        )
    try:
        return cast(_Opener, import_module(SCHEMES[scheme]))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sluicegate":
            raise
        problem = f"this program was packed without {error.name}"
        expected = "name that module to the tool that packs it"
        raise StoreURLError("store", shown_url(url), problem=problem, expected=expected) from error


def valid_prefix(prefix: str) -> str:
    """A prefix that cannot steer where a key goes: no braces, no space, no control characters."""
    if not isinstance(prefix, str) or not re.fullmatch(_PREFIX, prefix):
        raise StoreURLError(
            "prefix",
            prefix,
            problem="empty, or with a space, a brace or a character outside ASCII",
            expected='use a word, as "sluicegate"',
        )
    return prefix

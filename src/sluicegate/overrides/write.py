"""Writing overrides, from the command line or from an application's own back office.

A change reads the set, and writes it only if nobody else has changed it meanwhile. Each change is an entry of the
history, so it can be undone.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any, Final, TypedDict, Unpack

from sluicegate.clock import MICROSECOND, epoch_seconds
from sluicegate.errors import OverrideError, StoreError, unknown_option
from sluicegate.identity import Identity, digest
from sluicegate.overrides.override import EVERY_RULE, Action, Document, Entry, Override, checked
from sluicegate.quota import Quota
from sluicegate.stores.completion import apart, got

_TRIES: Final = 20  # of a write, while others write too
_BUSY: Final = "others change them at the same time; try again"
_EXPECTED: Final = 'give a datetime with its zone, seconds, a timedelta, or words like "2h" or "7 days"'

Plan = Callable[[tuple[Override, ...], Sequence[str | bytes]], Entry]
"""Makes a change from the set that holds, and from the last entry of the history, which only `undo` reads."""


def _now_us() -> int:
    return int(epoch_seconds() * MICROSECOND)


def ending(given: datetime | timedelta | float | str | None, now: int) -> int | None:
    """Return when an override ends, in microseconds since 1970. Raises OverrideError for anything but a time."""
    if given is None:
        return None
    if isinstance(given, datetime):
        if given.tzinfo is not None and (moment := int(given.timestamp() * MICROSECOND)) > now:
            return moment
    else:
        given = f"{given}s" if isinstance(given, str) and given.isdecimal() else given
        with suppress(ValueError):
            quota = Quota.parse(f"1/{given}") if isinstance(given, str) else Quota(1, given)
            if quota.burst is None and quota.calendar is None:
                return now + quota.period_us
    raise OverrideError("until", str(given), problem="neither a later moment nor a length of time", expected=_EXPECTED)


class OverrideOptions(TypedDict, total=False):
    """The options of `set`, beside the rule and the quota."""

    action: Action
    identities: Iterable[Identity] | None
    pattern: str | None
    tier: str | None
    until: datetime | timedelta | float | str | None
    by: str
    why: str


_OPTIONS: Final = ("rule", "quota", *OverrideOptions.__annotations__)


def override_from(options: Mapping[str, Any], text_of: Callable[[Any], str], *, now: int, name: str) -> Override:
    """Make an override from its options, as people write them. Raises OverrideError for options that cannot be."""
    for option in options:
        if option not in _OPTIONS:
            raise unknown_option("override", option, _OPTIONS, error=OverrideError)
    given: dict[str, Any] = {"rule": "", "action": "quota", **options}
    quota, until, identities = (given.pop(option, None) for option in ("quota", "until", "identities"))
    listed = tuple(identities) if isinstance(identities, Iterable) and not isinstance(identities, (str, bytes)) else ()
    if not listed and identities is not None:  # without identities it would hold for everybody
        problem, expected = "not a list of identities, or an empty one", "give one or more, or leave it out"
        raise OverrideError("identities", type(identities), problem=problem, expected=expected)
    return Override(
        **given,
        quota=None if quota is None else str(quota),
        digests=tuple([digest(text_of(each)) for each in listed]),
        until=ending(until, now),
        at=now,
        id=name,
    )


def _removing(which: str, *, by: str, why: str) -> Plan:
    def plan(held: tuple[Override, ...], _: object) -> Entry:
        removed = tuple([each for each in held if which in (EVERY_RULE, each.id)])
        if not removed and which != EVERY_RULE:
            raise OverrideError("override", which, problem="no such override", expected="list them to see their ids")
        return Entry(_now_us(), by, "remove", removed=removed, why=why)

    return plan


def _undoing(*, by: str, why: str) -> Plan:
    def plan(_: object, history: Sequence[str | bytes]) -> Entry:
        if not history:
            expected = "list the history to see the changes"
            raise OverrideError("undo", None, problem="nothing was changed", expected=expected)
        last, now = Entry.of(history[0]), _now_us()
        added, removed = (tuple([each for each in held if each.holds(now)]) for held in (last.removed, last.added))
        return Entry(now, by, "undo", added=added, removed=removed, why=why)

    return plan


def _changed(text: bytes, plan: Plan, *, history: Sequence[str | bytes], clears: bool) -> tuple[Entry, bytes]:
    """Return a change of this document, and the document after it. What has ended is left out. A change of nothing
    leaves the document as it is, unless it clears one that cannot be read.
    """
    unread = False
    try:
        version, held = Document.of(text)
    except OverrideError:
        if not clears:
            raise
        version, held, unread = 0, (), True
    now = _now_us()
    live = tuple([each for each in held if each.holds(now)])
    entry = plan(live, history)
    if not (entry.added or entry.removed or unread):
        return entry, text
    gone = {each.id for each in (*entry.removed, *entry.added)}
    stays = checked([*[each for each in live if each.id not in gone], *entry.added])
    return entry, Document(version + 1, stays).text()


def _live(text: bytes | None) -> tuple[Override, ...]:
    now = _now_us()
    return tuple([each for each in Document.of(text or b"").held if each.holds(now)])


class _Writer:
    """The common part of both: everything but the awaits."""

    def __init__(self, store: object, text_of: Callable[[object], str]) -> None:
        self._store: Any = store
        self._text_of = text_of
        if not hasattr(store, "read_overrides"):
            problem, expected = "this store cannot keep overrides", "use a memory:// or redis:// store"
            raise OverrideError("store", store, problem=problem, expected=expected)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r})"

    def _setting(self, rule: str, quota: str | Quota | None, options: OverrideOptions) -> Plan:
        """Return the change that adds an override, instead of the one with the same target."""
        given = {**options, "rule": rule, "quota": quota}
        made = override_from(given, self._text_of, now=_now_us(), name=token_hex(4))

        def plan(held: tuple[Override, ...], _: object) -> Entry:
            replaced = tuple([each for each in held if each.target == made.target])
            return Entry(made.at, made.by, made.action, added=(made,), removed=replaced, why=made.why)

        return plan


class Overrides(_Writer):
    """The overrides of the rules of all applications that use a store under one prefix.

    `Limiter.overrides` is one. Every method asks the store, and raises StoreError if it does not answer.

    >>> from sluicegate import Limiter
    >>> overrides = Limiter().overrides
    >>> overrides.set("export", "300/minute", identities=[("user", "42")], until="7 days", why="a big import").rule
    'export'
    """

    def set(self, rule: str, quota: str | Quota | None = None, **options: Unpack[OverrideOptions]) -> Override:
        """Let another quota, or another `action`, hold for a rule ("*": for every rule). Return the override.

        `identities` are what keys return, `pattern` is text with one `*`, and `tier` one of the rule's Tiers; without
        any of them it holds for everybody. `until` is a moment, or how long it holds. An override with the same rule
        and the same identities is replaced. Raises QuotaError for a wrong quota, and OverrideError for a tie with
        another one or another wrong argument.
        """
        return self._write(self._setting(rule, quota, options)).added[0]

    def list(self) -> tuple[Override, ...]:
        """Return what holds."""
        return _live(self._store.read_overrides(b""))

    def remove(self, which: str, *, by: str = "", why: str = "") -> Entry:
        """Remove the override of this id; "*" for all, also what cannot be read. Return the change: one of nothing is
        not written.
        """
        return self._write(_removing(which, by=by, why=why), clears=which == EVERY_RULE)

    def undo(self, *, by: str = "", why: str = "") -> Entry:
        """Take back the last change; a second `undo` makes that change again. Return the change."""
        return self._write(_undoing(by=by, why=why), undoes=True)

    def history(self, count: int = 20) -> builtins.list[Entry]:
        """Return the last changes, the newest first: 1,000 are kept."""
        return [Entry.of(text) for text in self._store.override_entries(count)]

    def _write(self, plan: Plan, *, clears: bool = False, undoes: bool = False) -> Entry:
        for _ in range(_TRIES):
            text = self._store.read_overrides(b"") or b""
            # After the set: an older one would not be the last change.
            history = self._store.override_entries(1) if undoes else ()
            entry, after = _changed(text, plan, history=history, clears=clears)
            if after == text or self._store.write_overrides(text, after, entry.text()):
                return entry
        raise StoreError("of overrides", _BUSY, concerns="plan")


class AsyncOverrides(_Writer):
    """The same for asynchronous code: its methods are awaited. A large set is read and written in a thread."""

    async def set(self, rule: str, quota: str | Quota | None = None, **options: Unpack[OverrideOptions]) -> Override:
        return (await self._write(self._setting(rule, quota, options))).added[0]

    async def list(self) -> tuple[Override, ...]:
        return await apart(_live, await got(self._store.read_overrides(b"")))

    async def remove(self, which: str, *, by: str = "", why: str = "") -> Entry:
        return await self._write(_removing(which, by=by, why=why), clears=which == EVERY_RULE)

    async def undo(self, *, by: str = "", why: str = "") -> Entry:
        return await self._write(_undoing(by=by, why=why), undoes=True)

    async def history(self, count: int = 20) -> builtins.list[Entry]:
        return [Entry.of(text) for text in await got(self._store.override_entries(count))]

    async def _write(self, plan: Plan, *, clears: bool = False, undoes: bool = False) -> Entry:
        for _ in range(_TRIES):
            text = await got(self._store.read_overrides(b"")) or b""
            history = await got(self._store.override_entries(1)) if undoes else ()
            entry, after = await apart(_changed, text, plan, history=history, clears=clears)
            if after == text or await got(self._store.write_overrides(text, after, entry.text())):
                return entry
        raise StoreError("of overrides", _BUSY, concerns="plan")

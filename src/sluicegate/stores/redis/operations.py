"""The operations of the store as steps for a sync or an async driver, and the meaning of error replies.

A command is sent again only if it certainly did not run: the server did not know the script, did not have the key,
could not write, or was never reached. A command without a reply may have run, so it is not sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha1
from math import inf
from typing import Any, Final

from sluicegate.errors import SluicegateWarning, StoreError, StrictError
from sluicegate.plan import BAN, Check, Checks, Outcome, Outcomes, Plan, Terms, charged, in_shadow, new
from sluicegate.stores import COUNTED, HISTORY, OLDER, Counted, Mode
from sluicegate.stores.redis.commands import AnyCommand, Command, Script, pack
from sluicegate.stores.redis.encoding import REFUND, RENEW, Encoder, decode, decode_time
from sluicegate.stores.redis.failures import kind_of, may_succeed_elsewhere, store_error
from sluicegate.stores.redis.scan import OVERRIDES
from sluicegate.stores.redis.server_info import identify
from sluicegate.stores.redis.steps import (
    MALFORMED,
    NO_SENSE,
    Address,
    NoReplyError,
    Pause,
    Reconnect,
    Send,
    Steps,
    address_from,
)
from sluicegate.stores.redis.topology import Topology, slot_of

_TRIES: Final = 6  # enough for an unknown script and a slot that moves at the same time
_REPLACE: Final = """
if redis.sha1hex(redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('LPUSH', KEYS[2], ARGV[3])
redis.call('LTRIM', KEYS[2], 0, ARGV[4])
local left = BYTES
for i, entry in ipairs(redis.call('LRANGE', KEYS[2], 1, -1)) do
  left = left - #entry
  if left < 0 then return redis.call('LTRIM', KEYS[2], 0, i - 1) and 1 end
end
return 1
""".replace("BYTES", str(OLDER))
_ADD: Final = """
local at = 1
for _, key in ipairs(KEYS) do
  local seconds, last = ARGV[at], at + 2 * ARGV[at + 1]
  for i = at + 2, last, 2 do redis.call('ZINCRBY', key, ARGV[i + 1], ARGV[i]) end
  redis.call('ZREMRANGEBYRANK', key, 0, -COUNTED - 1)
  redis.call('EXPIRE', key, seconds)
  at = last + 2
end
""".replace("COUNTED", str(COUNTED))
_READ: Final = """
local found = {}
for i, key in ipairs(KEYS) do found[i] = redis.call('ZREVRANGE', key, 0, -1, 'WITHSCORES') end
return found
"""
_PAUSE: Final = 0.005  # seconds between two attempts while the keys of a slot move


class Operations:
    """The operations of one store, as steps."""

    def __init__(self, topology: Topology, encoder: Encoder) -> None:
        self._topology = topology
        self._encoder = encoder
        # Scripts that a server did not know, with no time left to send them: the next command brings its script.
        self.unknown: set[Script | None] = set()
        self.check_memory: Callable[[object], None] | None = None
        """Gets the server's reply about its memory, once, after the next plan. It may raise a warning."""

    def first_step(self, terms: tuple[Terms, ...], mode: Mode) -> Callable[[Checks], Send | None]:
        """Return what makes the one step that decides checks of these terms. It returns None if the server is not known
        or if several steps may be needed: then `run` makes the steps.
        """
        topology, unknown, make = self._topology, self.unknown, self._encoder.compile(terms, mode)
        if not terms or (topology.split and len(terms) > 1):  # the keys of several checks may be on several nodes
            return _no_step
        split = topology.split

        def first(checks: Checks) -> Send | None:
            address = topology.known(slot_of(checks[0][1])) if split else topology.address
            if address is None or self.check_memory is not None:
                return None
            command = make(checks)
            return new(Send, (address, self._informed(command) if unknown else command, 1.0, False))

        return first

    def run(self, plan: Plan, first: Send | None = None, reply: object = None) -> Steps[tuple[Outcome, ...]]:
        """Decide a plan: charge all its enforced checks or none, and what `count_denied`, `forced` and shadow groups
        add. `first` was sent already and got `reply`.
        """
        outcomes = yield from self._decide(plan, first, reply)
        if self.check_memory is not None:
            yield from self._read_memory()
        return outcomes

    def _decide(self, plan: Plan, first: Send | None, reply: object) -> Steps[tuple[Outcome, ...]]:
        checks = plan.checks
        if not checks:
            return ()
        if self._topology.split and first is None and len(checks) > 1:
            groups = _groups(checks)
            if len(groups) > 1:
                return (yield from self._across(plan, groups))
        command = self._encoder.run(plan) if first is None else first.command.whole
        reply = yield from self._send(checks, command, first, reply=reply)
        if isinstance(reply, Exception):
            return (yield from self._across(plan, _alone(checks, range(len(checks)))))
        return self.decode(checks, reply)

    def decode(self, checks: Checks, reply: Any) -> Outcomes:
        """Return one outcome for each check, from a script's reply. Raises StoreError if it makes no sense."""
        if type(reply) is Outcome:  # read already, as a part of a batch
            return (reply,)
        try:
            return decode(checks, reply)
        except MALFORMED as error:
            raise self._malformed(checks) from error

    def _malformed(self, checks: Checks) -> StoreError:
        """Return the error for a reply without sense."""
        server = self._topology.known(slot_of(checks[0].identity) if self._topology.split else 0)
        return StoreError("" if server is None else str(server), NO_SENSE, concerns="plan")

    def refund(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> Steps[None]:
        """Refund what was charged."""
        yield from self._undo(plan, outcomes, REFUND)

    def renew(self, plan: Plan, outcomes: tuple[Outcome, ...]) -> Steps[tuple[Outcome, ...]]:
        """Refund what was charged, then charge it again as of now. Returns `outcomes` itself if nothing was charged."""
        at = yield from self._undo(plan, outcomes, RENEW)
        if not at:
            return outcomes
        pairs = zip(plan.checks, outcomes, strict=True)
        return tuple([outcome._replace(at=at.get(check, outcome.at)) for check, outcome in pairs])

    def _undo(self, plan: Plan, outcomes: tuple[Outcome, ...], mode: bytes) -> Steps[dict[Check, int]]:
        """Refund or renew. Returns the time for each check, by its server's clock."""
        at: dict[Check, int] = {}
        pairs = charged(plan, outcomes)
        checks = tuple([check for check, _ in pairs])
        groups = deque(_groups(checks) if self._topology.split else [tuple(range(len(checks)))] if checks else ())
        while groups:
            group = groups.popleft()
            part = tuple([checks[i] for i in group])
            reply = yield from self._send(part, self._encoder.refund(Plan(part), [pairs[i][1] for i in group], mode))
            if isinstance(reply, Exception):
                groups.extend(_alone(checks, group))
            else:
                try:
                    now = decode_time(reply)
                except MALFORMED as error:
                    raise self._malformed(part) from error
                for check in part:
                    at[check] = now
        return at

    def forget(self, rule_id: str, identity: str) -> Steps[None]:
        """Drop one budget."""
        yield from self._send_to_slot(slot_of(identity), self._encoder.forget(rule_id, identity))

    def _read_memory(self) -> Steps[None]:
        """Check the memory of a server: once, or after every plan if the warning is an error."""
        check, self.check_memory = self.check_memory, None  # first: one request reads it, the others go on
        try:
            with suppress(StoreError):  # the server may not allow it
                reply = yield from self._send_to_slot(0, Command(pack("INFO", "memory")))
                if check is not None:
                    check(reply)
        except (StrictError, SluicegateWarning):
            self.check_memory = check
            raise

    def identify(self) -> Steps[tuple[str | None, float]]:
        """Return the version of a server, and the seconds of a round trip."""
        return identify(partial(self._send_to_slot, 0))

    def read_overrides(self, known: bytes) -> Steps[bytes | None]:
        """Return the document of the overrides; None if it begins with `known`: then only its beginning was read."""
        key, slot = self._encoder.key("document", OVERRIDES), slot_of(OVERRIDES)
        if known:
            begins = yield from self._send_to_slot(slot, Command(pack("GETRANGE", key, 0, len(known) - 1)))
            if _raw(begins) == known:
                return None
        return _raw((yield from self._send_to_slot(slot, Command(pack("GET", key)))))

    def write_overrides(self, before: bytes, after: bytes, entry: str) -> Steps[bool]:
        """Replace the document and add an entry to the history, unless the document is not what it was before."""
        keys = [self._encoder.key(name, OVERRIDES) for name in ("document", "history")]
        seen = sha1(before, usedforsecurity=False).hexdigest()  # the one digest that Lua can make
        command = Command(pack("EVAL", _REPLACE, 2, *keys, seen, after, entry, HISTORY - 1))
        reply: object = yield from self._send_to_slot(slot_of(OVERRIDES), command)
        return reply == 1

    def override_entries(self, count: int) -> Steps[list[bytes]]:
        """Return the last entries of the history, the newest first."""
        words = ("LRANGE", self._encoder.key("history", OVERRIDES), 0, count - 1)
        return [_raw(each) for each in (yield from self._send_to_slot(slot_of(OVERRIDES), Command(pack(*words))))]

    def add_counts(self, tables: Sequence[Counted]) -> Steps[None]:
        """Add to some tables of counts, in one command."""
        words: list[str | int] = [*self._tables([each.name for each in tables])]
        for _, seconds, counts in tables:
            words += [seconds, len(counts), *[word for pair in counts.items() for word in pair]]
        yield from self._send_to_slot(slot_of(OVERRIDES), Command(pack("EVAL", _ADD, *words)))

    def read_counts(self, names: Sequence[str]) -> Steps[list[dict[str, int]]]:
        """Return the tables of these names, in one command."""
        reply = yield from self._send_to_slot(slot_of(OVERRIDES), Command(pack("EVAL", _READ, *self._tables(names))))
        found = [[_raw(each).decode(errors="replace") for each in table] for table in reply]
        return [dict(zip(each[::2], map(int, each[1::2]), strict=True)) for each in found]

    def _tables(self, names: Sequence[str]) -> list[str | int]:
        """Return the number of these tables and their keys, which are all in one slot."""
        return [len(names), *[self._encoder.key(f"counts:{name}", OVERRIDES) for name in names]]

    def _across(self, plan: Plan, groups: list[tuple[int, ...]]) -> Steps[tuple[Outcome, ...]]:
        """Run the groups of the plan one after the other. If a later one refuses, refund what the others charged. A
        shadow rule's refusal refunds the checks of that rule.
        """
        outcomes: dict[int, Outcome] = {}
        charged_groups: list[tuple[int, ...]] = []
        refused = False
        waiting = deque(groups)
        try:
            while waiting:
                group = waiting.popleft()
                part = plan._replace(checks=tuple([plan.checks[i] for i in group]))
                reply = yield from self._send(part.checks, self._encoder.run(part, refused=refused))
                if isinstance(reply, Exception):
                    waiting.extendleft(reversed(_alone(plan.checks, group)))
                    continue
                found = self.decode(part.checks, reply)
                outcomes.update(zip(group, found, strict=True))
                if plan.charge and not plan.forced and not refused:
                    refused = not all([outcome.allowed for outcome in found])
                    charged_groups += [] if refused else [group]
        except StoreError:  # all or nothing: the groups before were charged
            yield from self._give_back(plan, charged_groups, outcomes=outcomes)
            raise
        stays = [] if refused else _charges(plan, range(len(plan.checks)), outcomes)
        back = [group for group in charged_groups if any(pair not in stays for pair in _charges(plan, group, outcomes))]
        yield from self._give_back(plan, back, outcomes=outcomes)
        return tuple([outcomes[i] for i in range(len(plan.checks))])

    def _give_back(self, plan: Plan, groups: list[tuple[int, ...]], *, outcomes: dict[int, Outcome]) -> Steps[None]:
        """Refund these groups and update their outcomes. A charge that cannot be refunded now expires."""
        for group in groups:
            part = Plan(tuple([plan.checks[i] for i in group]))
            kept = tuple([check._replace(cost=0) if check.terms.count_denied else check for check in part.checks])
            with suppress(StoreError):
                yield from self.refund(Plan(kept), tuple([outcomes[i] for i in group]))
                reply = yield from self._send(part.checks, self._encoder.run(part._replace(charge=False)))
                if isinstance(reply, Exception):  # the slot has begun to move: the outcomes stay as they were
                    continue
                for i, outcome in zip(group, self.decode(part.checks, reply), strict=True):
                    stands = in_shadow(outcome, passed=outcomes[i].retry_after == 0)
                    outcomes[i] = stands if plan.checks[i].terms.shadow else outcome._replace(allowed=True)

    def _send(
        self, checks: tuple[Check, ...], command: Command, first: Send | None = None, reply: object = None
    ) -> Steps[Any]:
        """Return the reply to a command for keys of one slot: the reply TRYAGAIN if each check may be sent alone."""
        slot = slot_of(checks[0].identity) if self._topology.split else 0
        # A ban counts the refusals of the other checks in the same run of the script.
        alone = len(checks) > 1 and checks[-1].terms.algorithm != BAN
        return self._send_to_slot(slot, command, first, reply=reply, alone=alone)

    def _send_to_slot(
        self, slot: int, command: Command, step: Send | None = None, reply: object = None, *, alone: bool = False
    ) -> Steps[Any]:
        """Return the reply to a command, from the server that has the slot. Follows redirections. `step` was sent
        already and got `reply`.

        If `alone`, TRYAGAIN is a reply too: the keys of the command are on two nodes, but each key is on one.
        """
        elsewhere: Address | None = None  # the node that the slot is moving to, for the next attempt only
        failed: dict[Address, Exception] = {}  # what the servers answered that cannot run the command
        pause, moves = 0.0, 0
        brings: Command | None = None  # the same command with its script
        if step is None and self.unknown:
            command = self._informed(command).whole
        tries = 0
        while tries < _TRIES:
            if pause and not (yield Pause(pause)):
                break
            tries, pause = tries + 1, 0.0
            if step is None:
                address = elsewhere if elsewhere is not None else (yield from self._topology.find(slot))
                if isinstance(failed.get(address), NoReplyError):
                    break  # a new look-up has found no other server
                step = Send(address, command.asking() if elsewhere is not None else command)
                reply = yield step
            address, step = step.address, None
            if not isinstance(reply, Exception):
                self._topology.answered(address)
                return reply
            known = address in failed
            failed.pop(address, None)
            failed[address] = reply  # the last one is reported
            code, _, rest = str(reply).partition(" ")
            if code == "NOSCRIPT":
                command = brings = command.with_text()  # the script did not run, so the command may be sent again
                continue
            elsewhere, again = None, False
            if isinstance(reply, NoReplyError):
                if brings is not None:
                    self.unknown.add(brings.script)
                if reply.concerns != "plan":
                    again = self._topology.lost(address) and may_succeed_elsewhere(reply)
            elif code == "ASK":
                again, elsewhere = True, _target(rest, address)
            elif code == "MOVED":
                again = True
                self._topology.moved(slot, _target(rest, address))
                pause = _PAUSE * 2 ** (moves - 1) if moves else 0.0  # the nodes may not agree yet
                moves += 1
            elif code == "TRYAGAIN" and alone:
                self._topology.answered(address)
                return reply
            elif code == "TRYAGAIN":  # until the slot has moved, or the patience ends
                again, pause, tries = True, _PAUSE, 0
            elif kind_of(reply).concerns == "node":
                again = "READONLY" in str(reply) and not known
                self._topology.lost(address)
                if again:
                    yield Reconnect(address)
            else:
                self._topology.answered(address)
            if not again:
                break
        where, last = next(reversed(failed.items()))
        raise store_error(str(where), last) from last

    def _informed(self, command: AnyCommand) -> AnyCommand:
        """Return the command, with its script if the last one could not bring it."""
        whole = command.whole
        if whole.script not in self.unknown:
            return command
        self.unknown.discard(whole.script)
        return whole.with_text()


def _no_step(checks: Checks) -> None:
    """Return None: these checks may need several steps."""


def _raw(reply: str | bytes | None) -> bytes:
    """Return the bytes of a reply, which a user's own client may have decoded."""
    return reply.encode() if isinstance(reply, str) else reply or b""


def _groups(checks: Sequence[Check]) -> list[tuple[int, ...]]:
    """Return the checks by slot, in the order in which they are charged."""
    slots: dict[int, list[int]] = {}
    for i, check in enumerate(checks):
        slots.setdefault(slot_of(check.identity), []).append(i)
    return _by_rate(checks, slots.values())


def _alone(checks: Sequence[Check], group: Iterable[int]) -> list[tuple[int, ...]]:
    """Return the checks of a group one by one, in the order in which they are charged."""
    return _by_rate(checks, [[i] for i in group])


def _charges(plan: Plan, group: Sequence[int], outcomes: dict[int, Outcome]) -> list[tuple[Check, Outcome]]:
    """Return what a plan of this group of checks charges."""
    part = plan._replace(checks=tuple([plan.checks[i] for i in group]))
    return charged(part, tuple([outcomes[i] for i in group]))


def _by_rate(checks: Sequence[Check], groups: Iterable[list[int]]) -> list[tuple[int, ...]]:
    """Sort groups of checks: first the group with the tightest rule, last those with shadow rules only.

    A client's own budgets are smaller than those that it shares with others. If a client is refused by its own budget,
    the plan has not changed a budget of others yet.
    """

    def rate(group: list[int]) -> float:
        enforced = [checks[i].terms for i in group if not checks[i].terms.shadow]
        return min([terms.limit / terms.window_us for terms in enforced], default=inf)

    return [tuple(group) for group in sorted(groups, key=rate)]


def _target(rest: str, asked: Address) -> Address:
    """Return the address in a redirection: "3999 127.0.0.1:6381", or ":6381" for the same host."""
    host, _, port = rest.rpartition(" ")[2].rpartition(":")
    try:
        return address_from(host or asked.host, port)
    except MALFORMED as error:
        raise StoreError(str(asked), NO_SENSE, concerns="plan") from error

"""What a store does, in steps that either colour takes: what to ask of which server, and what an error reply means.

A command is sent again only when it certainly did not run: the server did not know the script, was not the one for the
key, could not write, or was never reached. A command that got no answer may have run, and is not sent again.
This module knows topologies and the wire's commands; it does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final

from sluicegate.errors import StoreError
from sluicegate.plan import Check, Outcome, Plan, Terms, charged, in_shadow, new
from sluicegate.stores.redis.asks import Address, Ask, Leave, LinkError, Pause, Steps, Tried
from sluicegate.stores.redis.commands import AnyCommand, Command, pack
from sluicegate.stores.redis.topology import Topology, slot_of
from sluicegate.stores.redis.walk import Walk, walk
from sluicegate.stores.redis.wire import GIVE_BACK, LOOK, REFUSED, RENEW, Wire, outcomes

_TRIES: Final = 6  # a script that is not known, and a slot that moves while it is asked for
_PAUSE: Final = 0.005  # seconds, while a slot's keys are on their way


class Routes:
    """What a store does, in steps."""

    def __init__(self, topology: Topology, wire: Wire) -> None:
        self._topology = topology
        self._wire = wire

    def quick(self, plan: Plan) -> Ask | None:
        """The one thing to ask, where nothing has to be looked up or split: nearly always."""
        checks = plan.checks
        slot = 0
        if self._topology.split:
            if len(checks) != 1:
                return None
            slot = slot_of(checks[0].identity)
        address = self._topology.known(slot)
        return None if address is None or not checks else new(Ask, (address, self._wire.run(plan), 1.0, False))

    def run(self, plan: Plan, quick: Ask | None = None, reply: Any = None) -> Steps[tuple[Outcome, ...]]:
        """Charge every check of the plan, or none. `quick`: it was asked already, and what came of it."""
        checks, tried = plan.checks, None if quick is None else Tried(quick, reply)
        if not checks:
            return ()
        if self._topology.split and tried is None and len(checks) > 1:
            groups = _groups(checks)
            if len(groups) > 1:
                return (yield from self._across(plan, groups))
        command = self._wire.run(plan) if tried is None else tried.ask.command
        return outcomes(plan, (yield from self._ask(checks, command, tried)))

    def refund(self, plan: Plan, told: tuple[Outcome, ...]) -> Steps[None]:
        """Give back what was charged."""
        yield from self._undo(plan, told, GIVE_BACK)

    def renew(self, plan: Plan, told: tuple[Outcome, ...]) -> Steps[tuple[Outcome, ...]]:
        """Give back what was charged, and charge it again as of now."""
        at = yield from self._undo(plan, told, RENEW)
        pairs = zip(plan.checks, told, strict=True)
        return tuple([outcome._replace(at=at.get(check, outcome.at)) for check, outcome in pairs])

    def _undo(self, plan: Plan, told: tuple[Outcome, ...], mode: bytes) -> Steps[dict[Check, int]]:
        """When each charge was undone, by its server's clock."""
        at: dict[Check, int] = {}
        pairs = charged(plan, told)
        checks = tuple([check for check, _ in pairs])
        for group in _groups(checks) if self._topology.split else [tuple(range(len(checks)))]:
            part = tuple([checks[i] for i in group])
            if part:
                command = self._wire.refund(Plan(part), [pairs[i][1] for i in group], mode)
                _, now = yield from self._ask(part, command)
                for check in part:
                    at[check] = now
        return at

    def forget(self, rule_id: str, identity: str) -> Steps[None]:
        """Drop one budget."""
        yield from self._ask_slot(slot_of(identity), self._wire.forget(rule_id, identity))

    def memory(self) -> Steps[Any]:
        """What a server says of its memory."""
        return self._ask_slot(0, Command(pack("INFO", "memory")))

    def bans(self, terms: Terms) -> Walk[dict[str, int]]:
        """Whom a ban holds for, by their digests, and how long."""
        return walk(self._topology, self._wire, terms)

    def _across(self, plan: Plan, groups: list[tuple[int, ...]]) -> Steps[tuple[Outcome, ...]]:
        """Servers one after the other; what was charged is given back when a later one refuses."""
        told: dict[int, Outcome] = {}
        paid: list[tuple[int, ...]] = []
        refused = False
        try:
            for group in groups:
                part = plan._replace(checks=tuple([plan.checks[i] for i in group]))
                mode = REFUSED if refused else None
                found = outcomes(part, (yield from self._ask(part.checks, self._wire.run(part, mode))))
                told.update(zip(group, found, strict=True))
                if plan.charge and not plan.forced and not refused:
                    refused = not all([outcome.allowed for outcome in found])
                    paid += [] if refused else [group]
        except StoreError:
            yield from self._give_back(plan, paid, told=told)
            raise
        if refused:
            yield from self._give_back(plan, paid, told=told)
        return tuple([told[i] for i in range(len(plan.checks))])

    def _give_back(self, plan: Plan, groups: list[tuple[int, ...]], *, told: dict[int, Outcome]) -> Steps[None]:
        """Refund these groups, and say how their checks stand then. What cannot be refunded now expires in time."""
        for group in groups:
            part = Plan(tuple([plan.checks[i] for i in group]))
            kept = tuple([check._replace(cost=0) if check.terms.count_denied else check for check in part.checks])
            with suppress(StoreError):
                yield from self.refund(Plan(kept), tuple([told[i] for i in group]))
                reply = yield from self._ask(part.checks, self._wire.run(part, LOOK))
                for i, outcome in zip(group, outcomes(part, reply), strict=True):
                    stands = in_shadow(outcome, passed=told[i].retry_after == 0)
                    told[i] = stands if plan.checks[i].terms.shadow else outcome._replace(allowed=True)

    def _ask(self, checks: tuple[Check, ...], command: AnyCommand, tried: Tried | None = None) -> Steps[Any]:
        """The answer to a command for keys of one slot."""
        return self._ask_slot(slot_of(checks[0].identity) if self._topology.split else 0, command, tried)

    def _ask_slot(self, slot: int, command: AnyCommand, tried: Tried | None = None) -> Steps[Any]:
        """The answer to a command, from whichever server takes it."""
        elsewhere: Address | None = None  # the node that the slot is moving to, for this time only
        left: set[Address] = set()  # what could not write, and was called anew
        where = ""
        for _ in range(_TRIES):
            if tried is None:
                address = elsewhere if elsewhere is not None else (yield from self._topology.find(slot))
                tried = yield from _try(Ask(address, command.asking() if elsewhere is not None else command))
            address, reply, tried = tried.ask.address, tried.reply, None
            where = str(address)
            if isinstance(reply, LinkError):
                elsewhere = None
                if self._topology.lost(address) and not reply.sent:
                    continue
                raise StoreError(where, reply.cause) from reply
            if not isinstance(reply, Exception):
                return reply
            code, _, rest = str(reply).partition(" ")
            if code == "NOSCRIPT":
                command = command.with_text()
                continue
            elsewhere = _target(rest, address) if code == "ASK" else None
            if code == "MOVED":
                self._topology.moved(slot, _target(rest, address))
            elif code == "TRYAGAIN":
                yield Pause(_PAUSE)
            elif "READONLY" in str(reply) and address not in left:
                left.add(address)
                self._topology.lost(address)
                yield Leave(address)
            elif code != "ASK":
                raise StoreError(where, str(reply))
        raise StoreError(where, f"no server took it in {_TRIES} attempts")


def _try(ask: Ask) -> Steps[Tried]:
    try:
        return Tried(ask, (yield ask))
    except LinkError as error:
        return Tried(ask, error)


def _groups(checks: Sequence[Check]) -> list[tuple[int, ...]]:
    """The checks by slot. First the slot with the tightest rule: a subject's own budgets are smaller than those it
    shares, and what is refused there has then touched nobody else's. Last those that can refuse nothing."""
    slots: dict[int, list[int]] = {}
    for i, check in enumerate(checks):
        slots.setdefault(slot_of(check.identity), []).append(i)

    def rate(group: list[int]) -> float:
        enforced = [checks[i].terms for i in group if not checks[i].terms.shadow]
        return min([terms.params[0] / terms.window_us for terms in enforced], default=inf)

    return [tuple(group) for group in sorted(slots.values(), key=rate)]


def _target(rest: str, asked: Address) -> Address:
    """The address in a redirection: "3999 127.0.0.1:6381", or ":6381" for the host that was asked."""
    host, _, port = rest.rpartition(" ")[2].rpartition(":")
    return Address(host if host else asked.host, int(port))

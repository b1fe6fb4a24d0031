"""Retries: the requests with one key, as in `Idempotency-Key`, are charged once.

A rule with `once_per` has one check more, in shadow: the record of a key, which counts its requests. A store charges a
check in shadow exactly when it charges the plan. So one step decides which of several retries is the first, and a
request that is refused leaves no record. A later request with the key is a retry: the charge of it is refunded. If the
rule refuses a retry, it is decided again without the rule, whose budget has the charge of the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sluicegate.address import TOKEN
from sluicegate.errors import RuleError
from sluicegate.identity import digest, joined
from sluicegate.plan import Check, Checks, Decision
from sluicegate.rules.key import Caller

_BODY: Final = ("Content-Length", "Content-Type", "Content-Digest")
_WITH_BODY: Final = ("POST", "PUT", "PATCH", "QUERY")
_READ: Final = ("_body", "_cached_data")  # of Django and of Flask: the body, if it was read and kept


def header_of(once_per: object) -> str:
    """Return the name of the header. Raises RuleError for anything else than "header:Name"."""
    kind, _, name = once_per.partition(":") if isinstance(once_per, str) else ("", "", "")
    if kind != "header" or not TOKEN.fullmatch(name):
        problem = "not the name of a header"
        raise RuleError("once_per", once_per, problem=problem, expected='write "header:Idempotency-Key"')
    return name


def with_records(checks: Sequence[Check], caller: Caller) -> list[Check]:
    """Return the checks, followed by a check of the record for each rule with `once_per` whose header the request has.

    A record belongs to an identity, so nobody can use the key of another one, and to a cost, so a cheap request does
    not make a dear one free.
    """
    records: dict[tuple[str, str], Check] = {}
    for terms, identity, cost in checks:
        if terms.once is not None and (request := _request(caller, terms.once.per or "")) is not None:
            records[terms.once.rule_id, identity] = Check(terms.once, f"{identity}~{cost}.{request}", 1)
    return [*checks, *records.values()]


def retried(decision: Decision) -> set[Check]:
    """Return the checks of rules that the first request with the same key was charged for; none of them if a rule
    refuses that is not one of them.
    """
    found, refusing = set[Check](), set[Check]()
    for check, outcome in zip(decision.checks, decision.outcomes, strict=True):
        terms, identity, cost = check
        if not outcome.allowed:
            refusing.add(check)
        elif terms.per is not None and outcome.retry_after == 0 and outcome.source != "policy":
            earlier = outcome.limit - outcome.remaining - cost * decision.allowed  # a refused plan charges no record
            of = (terms.rule_id, identity.rpartition("~")[0]) if earlier > 0 else None
            found |= {each for each in decision.checks if each.terms.once and (each.terms.once.rule_id, each[1]) == of}
    return found if refusing <= found else set()


def at_no_cost(checks: Checks, free: Collection[Check]) -> Checks:
    """Return the checks, some of them at a cost of 0."""
    return tuple([check._replace(cost=0) if check in free else check for check in checks])


def _request(caller: Caller, header: str) -> str | None:
    """Return the digest of a request with its key; None without the key, if its body may be any, and for the messages
    of a WebSocket, which share the key of the handshake.

    The body itself is a part only if something has read it before: a limiter that reads it would take a stream away.
    """
    if not any(lines := caller.header(header)):
        return None
    native = caller.native
    # Of ASGI and Starlette it is a mapping itself, of Flask it has an environ, and of Django the same as META.
    facts = native if isinstance(native, Mapping) else getattr(native, "environ", None) or getattr(native, "META", {})
    body = next((read for name in _READ if isinstance(read := getattr(native, name, None), bytes)), None)
    described = [";".join(caller.header(name)) for name in _BODY]
    may_have_one = caller.method in _WITH_BODY or caller.header("Transfer-Encoding")
    if facts.get("type") == "websocket" or (may_have_one and body is None and not described[0]):
        return None
    query = facts.get("query_string", facts.get("QUERY_STRING", ""))
    parts = (*lines, caller.method, caller.path, query, *described, b"" if body is None else body)
    texts = [part.decode("latin-1") if isinstance(part, bytes) else str(part) for part in parts]
    return digest(joined(map(digest, texts)))

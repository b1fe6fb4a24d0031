"""Throttles: the common part of the throttle classes for REST framework and for Ninja.

Both frameworks authenticate inside the view, and then ask one throttle after the other. Each throttle is one rule. Its
charge joins what the request was charged before: all or nothing, and one set of RateLimit fields.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Final, TypeAlias

from asgiref.sync import async_to_sync
from django.http import HttpRequest

from sluicegate.address import NO_PEER, Trust, client_address
from sluicegate.clock import MICROSECOND
from sluicegate.django import conf
from sluicegate.django.lifecycle import release_at_close
from sluicegate.django.request import DjangoRequestState, native_request, state_of
from sluicegate.django.responses import rate_limited
from sluicegate.errors import QuotaError, RuleError, within
from sluicegate.identity import identity_text
from sluicegate.plan import Checks, Decision, RateLimitExceeded
from sluicegate.quota import Quota
from sluicegate.rules.key import KeySpec, ReadyKey
from sluicegate.rules.rule import QuotaFunction, Rule
from sluicegate.rules.terms import read
from sluicegate.runtime.awaiting import async_mismatch, close_unawaited, waits
from sluicegate.stores import Mode
from sluicegate.stores.completion import running_loop, start
from sluicegate.web.bound import Bound, names_of, unique
from sluicegate.web.charge import NOTHING, Charge
from sluicegate.web.charges import Charges
from sluicegate.web.endpoint import Endpoint, printable, scope_of
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.http import detail, retry_after
from sluicegate.web.marks import RuleOptions

_STATE: Final = "_sluicegate_throttles"
Theirs: TypeAlias = Any
"""What the classes of a framework declare, each with a type of its own or with none."""


class RateThrottle:
    """A rule in the shape of a throttle class. A class for a framework inherits this class before the framework's.

    - `rate`: "10/min" and so on, as the framework reads it, or as sluicegate reads a quota; a Quota; or a method or
      Tiers that gets the framework's request and returns one of these. None means no limit.
    - `scope`: throttles, rules and views with the same scope share budgets. The default is the name of the class.
    - `options`: the options of a rule, as for `@limit`: `cost`, `algorithm`, `mode`, and so on. The key comes from
      `get_cache_key`, unless it is given here.
    """

    framework: ClassVar[Theirs]  # the framework's SimpleRateThrottle
    # A key, and the `get_cache_key` that names the same clients.
    standard: ClassVar[tuple[KeySpec, Callable[..., object]] | None] = None
    options: ClassVar[RuleOptions] = {}

    THROTTLE_RATES: ClassVar[Theirs]  # rates by scope
    rate: Theirs
    scope: Theirs
    num_requests: Theirs
    duration: Theirs
    cache_format: Theirs
    get_cache_key: Theirs
    _parsed: tuple[Quota, ...] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if (given := cls.options.get("on_denied")) is not None:
            problem, expected = "the framework answers what a throttle refuses", "use its own exception handlers"
            raise RuleError(f"{cls.__name__}: on_denied", given, problem=problem, expected=expected)

    def parse_rate(self, rate: Theirs) -> tuple[Theirs, Theirs]:
        """Return the number of requests and the seconds of a rate; of its first quota if it has several."""
        if rate is None or callable(rate):
            return None, None
        self._parsed = self._read(rate)
        return self._parsed[0].limit, self._parsed[0].period

    def get_ident(self, request: object) -> str | None:
        """Return the client's address. `TRUSTED_PROXIES` says whose header is trusted; without it, the framework's own
        number of proxies does.
        """
        native = native_request(request, "throttle")
        gate = gate_for(native)
        caller = DjangoRequestState(native, gate)
        settings = gate.settings
        proxies = None if settings.trusted_proxies is not None else self.proxies()
        trust = Trust.of(proxies) if proxies else settings.trust
        found = client_address(caller.peer, caller.header(trust.header), trust, prefix=settings.ipv6_prefix)
        return None if found == NO_PEER else found

    def proxies(self) -> int | None:
        """Return the framework's setting NUM_PROXIES."""
        raise NotImplementedError

    def throttle_success(self) -> bool:
        """Return the answer for a request that was charged. For subclasses."""
        return True

    def bounds(self, request: object, key: str) -> tuple[Bound, ...]:
        """Return the rule of this throttle, ready for this request; nothing if there is no limit.

        `key` is what `get_cache_key` has returned. Unless a subclass has changed it, sluicegate's own key of the same
        meaning takes its place, so that plain views with the same scope share the budget.
        """
        gate = gate_for(native_request(request, "throttle"))
        own, found = self._ready(gate, self._quotas(request))
        return found if own is not None else tuple([replace(each, key=_key_of(identity_text(key))) for each in found])

    def declared(self, gate: Gate | AsyncGate) -> tuple[Bound, ...]:
        """Return the rule of this throttle for people who read it: it is complete except for the identity."""
        is_chosen = callable(self.rate)  # for each request
        own, found = self._ready(gate, self.rate if is_chosen else self._quotas(None))
        key = partial(self.get_cache_key, view=None)
        return found if own is not None else tuple([replace(each, rule=replace(each.rule, key=key)) for each in found])

    def _ready(
        self, gate: Gate | AsyncGate, quotas: tuple[Quota, ...] | QuotaFunction | None
    ) -> tuple[KeySpec | None, tuple[Bound, ...]]:
        """Return the key, and the rule with it: with the key "ip" if the text of `get_cache_key` is the identity."""
        key = self._key(proxied=gate.settings.trusted_proxies is not None)
        if quotas is None:
            return key, ()
        kind: Theirs = type(self)  # mypy takes the hash of a class for that of its instances
        return key, _bounds(gate, kind, self.scope, quotas=quotas, key="ip" if key is None else key)

    def _quotas(self, request: object) -> tuple[Quota, ...] | None:
        rate = self.rate
        if callable(rate):
            rate = rate(request)
            if waits(rate):
                close_unawaited(rate)
                raise async_mismatch(f"rate of {type(self).__name__}", self.rate)
            return None if rate is None else self._read(rate)
        parsed = self._parsed
        if parsed and (parsed[0].limit, parsed[0].period) == (self.num_requests, self.duration):
            return parsed
        return None if self.num_requests is None else (Quota(self.num_requests, self.duration),)  # set by a subclass

    def _read(self, rate: Theirs) -> tuple[Quota, ...]:
        """Read a rate. An error names this class."""
        try:
            return read_rate(rate, self.framework)
        except QuotaError as error:
            error.within(type(self).__name__)
            raise

    def _key(self, *, proxied: bool) -> KeySpec | None:
        """Return the key of the rule; None if the text of `get_cache_key` is the identity."""
        if "key" in self.options:
            return self.options["key"]
        if self.standard is None or not (proxied or not self.proxies()):
            return None
        key, method = self.standard
        is_changed = (
            getattr(self.get_cache_key, "__func__", None) is not method
            or type(self).get_ident is not RateThrottle.get_ident
            or self.cache_format != self.framework.cache_format
        )
        return None if is_changed else key


def _key_of(text: str) -> ReadyKey:
    """Make the key of one request, whose identity is known."""
    return lambda _caller, _known: text


@lru_cache(maxsize=1024)
def read_rate(rate: Theirs, framework: Theirs) -> tuple[Quota, ...]:
    """Return the quotas of a rate: as the framework reads the text, or as sluicegate does.

    Raises QuotaError for a text that neither can read, or that has two meanings ("10/month" is 10 a minute for REST
    framework).
    """
    theirs: tuple[Quota, ...] = ()
    if isinstance(rate, str):
        with suppress(ValueError, KeyError, IndexError):
            theirs = (Quota(*framework.parse_rate(framework, rate)),)
    try:
        ours = read(rate)
    except QuotaError:
        if not theirs:
            raise
        return theirs
    if not isinstance(ours, tuple):
        expected = "give it to @limit or to a rule of the settings"
        raise QuotaError("rate", rate, problem="a concurrency limit, not a rate", expected=expected)
    if theirs and ours != theirs and ours[0].burst is None:
        problem = f'"{theirs[0]}" for {framework.__module__.partition(".")[0]}, but not for sluicegate'
        raise QuotaError("rate", rate, problem=problem, expected=f'write "{theirs[0]}" or "{ours[0]}"')
    return ours


@lru_cache(maxsize=1024)
def _bounds(
    gate: Gate | AsyncGate,
    cls: type[RateThrottle],
    scope: object,
    *,
    quotas: tuple[Quota, ...] | QuotaFunction,
    key: KeySpec,
) -> tuple[Bound, ...]:
    label = str(scope) if scope else f"{cls.__module__}.{cls.__qualname__}"
    name = printable(label).strip() or "throttle"
    options: RuleOptions = {**cls.options, "key": key}
    with within(cls.__name__):
        return gate.bind_rule(Rule(name=name, scope=scope_of(Endpoint(label=label)), quota=quotas, **options))


class _ThrottleCharge(Charge):
    """The charge of some throttles for one request, in one plan."""

    def about(self, decision: Decision, bounds: Sequence[Bound]) -> Decision:
        """Return the part of a decision that is about some of the rules."""
        names = {name for bound in bounds for name in names_of(bound)}
        names |= {bound.rule.ban.name for bound in bounds if bound.rule.ban is not None}
        pairs = zip(decision.checks, decision.outcomes, strict=True)
        found = [pair for pair in pairs if self._names.get(pair[0].budget, pair[0].terms.name) in names]
        checks, outcomes = zip(*found, strict=True) if found else ((), ())
        return Decision(allowed=all([outcome.allowed for outcome in outcomes]), checks=checks, outcomes=outcomes)

    def _trim(self, given: Checks) -> Checks:
        self._names = {check.budget: check.terms.name for check in given}  # as the rules have them
        return super()._trim(given)

    def _join(self, decision: Decision | None) -> tuple[Charges, Decision]:
        if self._mode == "peek" and decision is not None and decision.allowed:
            return [], NOTHING  # this says nothing of the request: another throttle has refused it
        return super()._join(decision)


def is_refused(state: DjangoRequestState) -> bool:
    """True if a throttle has refused the request."""
    return state.decision is not None and not state.decision.allowed


def gate_for(native: HttpRequest) -> Gate | AsyncGate:
    """Return the gate that can charge this request from here."""
    state = state_of(native)
    gate = conf.gate_for(native) if state is None else state.gate
    return conf.loop_gate() if isinstance(gate, AsyncGate) and running_loop() is not None else gate


def state_for(request: object) -> DjangoRequestState | None:
    """Return the state of a request; None if limits are off.

    It is the state of the middleware. Without it there is a state for each call of the view, kept
    on the framework's own request: Django's request may come again (in tests it does), and is then charged again. On
    Django's request `charge` would find it, and nothing would answer its refusal.
    """
    native = native_request(request, "throttle")
    state = state_of(native)
    if state is not None and state.open and not state.alone:
        return state
    gate = gate_for(native)
    if not gate.settings.enabled:
        return None
    known: dict[str, DjangoRequestState] = {} if request is native else vars(request)
    if _STATE not in known:
        known[_STATE] = DjangoRequestState(native, gate)
        known[_STATE].open = False  # nothing will add the fields
    return known[_STATE]


def decide(native: HttpRequest, state: DjangoRequestState, wanted: Sequence[tuple[Bound, ...]]) -> list[Decision]:
    """Charge the rules of some throttles, all or none. Return the decision about each throttle."""
    apart = iter(unique([bound for bounds in wanted for bound in bounds]))
    parts = [[next(apart) for _ in bounds] for bounds in wanted]
    on_loop = isinstance(state.gate, AsyncGate) and running_loop() is not None
    with _state_on_loop(native, state) if on_loop else nullcontext(state) as here:
        # After a refusal, charge nothing more: the others only say how long the client has to wait.
        mode: Mode = "peek" if is_refused(here) else "charge"
        bounds = tuple([bound for part in parts for bound in part])
        charge = _ThrottleCharge(bounds, here, "a throttle", mode=mode)
        decision: Decision
        try:
            if isinstance(here.gate, AsyncGate):
                decision = async_to_sync(charge.run_async)(here.charging(native, bounds))
            else:
                decision = charge.run(here.charging(native, bounds))
        except RateLimitExceeded as error:
            decision = error.decision
            if mode == "charge":
                _send_signal(native, decision)
            here.refuse(decision)
    release_at_close(state)
    return [decision if decision.forbidden else charge.about(decision, part) for part in parts]


def _send_signal(native: HttpRequest, decision: Decision) -> None:
    """Send the signal of a refusal. On the event loop its receivers run in a task, because they may be async."""
    if running_loop() is None:
        rate_limited.send_robust(type(native), request=native, decision=decision)
    else:
        start(rate_limited.asend_robust(type(native), request=native, decision=decision))


@contextmanager
def _state_on_loop(native: HttpRequest, state: DjangoRequestState) -> Generator[DjangoRequestState]:
    """Make a state for sync code on the event loop. What it has decided and owes is added to the state of the request.

    If earlier charges of the request wait for its response, they are not given back by a refusal here.
    """
    here = DjangoRequestState(native, conf.loop_gate())
    if state.settlement is None or state.decision is None:
        here.decision = state.decision
    else:
        here.decision = Decision(allowed=state.decision.allowed, checks=(), outcomes=())
    yield here
    state.gate.may_owe = state.gate.may_owe or here.gate.may_owe  # the rules of throttles are ready in the loop's gate
    if state.settlement is None:
        state.decision = None  # what is decided here includes it
    state.note(here.decision)


def refusal(decision: Decision) -> tuple[int, int | None, str]:
    """Return the status of a refusal, the value of `Retry-After`, and a sentence for the client."""
    wait = retry_after(decision)
    return decision.status, wait, detail(decision, wait)


def wait_after(decision: Decision) -> float | None:
    """Return the seconds until the next request of the same kind passes; None if none ever does."""
    longest = 0
    for check, outcome in zip(decision.checks, decision.outcomes, strict=True):
        if check.terms.shadow:
            continue
        wait = (0 if outcome.remaining else outcome.next_after) if outcome.allowed else outcome.retry_after
        if wait is None:
            return None
        longest = max(longest, wait)
    return longest / MICROSECOND

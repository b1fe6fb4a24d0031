"""Events: what `on_decision` is called with, a value for each decision.

An event refers to the decision, and computes each fact when it is read. It has nothing of the request but the route's
template and the method. An identity is shown as the digest that is also in the store's key, unless the limiter has
`show_identities`.
"""

from __future__ import annotations

import logging
from collections import deque
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple, NoReturn, final

from sluicegate.clock import MICROSECOND
from sluicegate.errors import SettingsError, shows_half_made
from sluicegate.identity import digest
from sluicegate.plan import BAN, Check, Decision, Handler, Handlers, Outcome, Terms
from sluicegate.rules.rule import METHODS
from sluicegate.runtime.awaiting import async_mismatch, check_call, close_unawaited, is_async, label_of, waits
from sluicegate.stores.timed import LAST, StoreTime

Result = Literal["allowed", "refused", "shadow", "banned"]
"""What a rule said: "shadow" if it only would have refused, "banned" if the refusal comes from a ban."""

EventSource = Literal["store", "cache", "local", "policy"]
"""Who made an outcome: the store, the deny cache, the local fallback, or the failure policy."""

Line = tuple[str, Result, EventSource, bool]
"""The rule, its result, its source and whether it is near its limit."""

Labels = tuple[str, str, str, str, tuple[Line, ...]]
"""What has few values in an event, as one key."""

_new: Final = object.__new__
_METHODS: Final = METHODS | {""}


class RuleEvent(NamedTuple):
    """One rule of a decision."""

    rule: str
    """The name of the rule. A ban is a rule of its own."""
    result: Result
    """What the rule said."""
    limit: int
    """The limit in units; of a ban, the number of refusals that begin it."""
    remaining: int
    """The units that are left after the decision."""
    cost: int
    """The units that the decision is about."""
    retry_after: float | None
    """The seconds after which the same passes: 0.0 if it was allowed, None if no wait helps."""
    reset_after: float
    """The seconds until the limit is full again."""
    near: bool
    """True if the rule allowed, and at most a tenth of its limit is left. Never for a ban."""
    source: EventSource
    """Who made the outcome."""
    identity: str
    """The digest of the identity, or with `show_identities` its text."""

    def asdict(self) -> dict[str, Any]:
        """Return all fields by their names."""
        return self._asdict()

    def __reduce__(self) -> NoReturn:
        raise _no_copy(self)


def _rule_event(check: Check, outcome: Outcome, line: Line, *, shows: bool) -> RuleEvent:
    rule, result, source, near = line
    wait, identity = outcome.retry_after, check.identity
    return RuleEvent(
        rule=rule,
        result=result,
        limit=outcome.limit,
        remaining=outcome.remaining,
        cost=check.cost,
        retry_after=None if wait is None else wait / MICROSECOND,
        reset_after=outcome.reset_after / MICROSECOND,
        near=near,
        source=source,
        identity=identity if shows else digest(identity),
    )


def _no_copy(event: object) -> TypeError:
    name = type(event).__name__
    return TypeError(f"a {name} cannot be copied or pickled, because it knows identities; send asdict() instead")


@shows_half_made
@final
class DecisionEvent:
    """One decision: of a hit, a reservation, a slot, a request, or a charge inside a view.

    `application` is the name in the settings. `endpoint` is the template of the route, and `method` the method of the
    request ("other" for an unregistered one); both are empty for a plain limiter, and the endpoint also for a path
    without a route. `store_seconds` is the time of the calls of the store; None if it was not called.
    """

    __slots__ = ("_rules", "about", "at", "delivery", "elapsed")

    at: tuple[str, str]
    """The endpoint and the method. The limiter sets them before it delivers the event."""
    delivery: Delivery
    """What has made the event, and will deliver it: to nobody, if a program has made the event itself."""
    elapsed: float | None
    """The same as `store_seconds`, without a call."""
    about: Decision
    """The decision, with the identities."""
    _rules: tuple[RuleEvent, ...]

    def __init__(
        self,
        decision: Decision,
        *,
        application: str = "",
        endpoint: str = "",
        method: str = "",
        store_seconds: float | None = None,
        show_identities: bool = False,
    ) -> None:
        self.about = decision
        self.delivery = Delivery((), application=application, show_identities=show_identities)
        self.at = endpoint, method
        self.elapsed = store_seconds

    @property
    def application(self) -> str:
        """The name of the application."""
        return self.delivery.application

    @property
    def endpoint(self) -> str:
        """The template of the route."""
        return self.at[0]

    @property
    def method(self) -> str:
        """The method of the request."""
        return self.labels()[2]

    @property
    def allowed(self) -> bool:
        """True if the request may pass."""
        return self.about.allowed

    @property
    def forbidden(self) -> bool:
        """True if the `deny` list refused."""
        return self.about.forbidden

    @property
    def degraded(self) -> bool:
        """True if the store was unavailable for at least one rule."""
        return self.about.degraded

    @property
    def store_seconds(self) -> float | None:
        """The time of the calls of the store; None if it was not called."""
        return self.elapsed

    @property
    def rules(self) -> tuple[RuleEvent, ...]:
        """The rules that applied, in their order."""
        try:
            return self._rules
        except AttributeError:  # it is read for the first time
            shows, lines = self.delivery.shows, zip(*self.about[1:], self.labels()[4], strict=True)
            self._rules = tuple([_rule_event(*each, shows=shows) for each in lines])
            return self._rules

    def labels(self) -> Labels:
        """Return all that has few values, as one key for metrics: the application, the endpoint, the method, "allowed",
        "refused" or "forbidden", and a line for each rule.
        """
        (endpoint, method), (allowed, checks, outcomes) = self.at, self.about
        hint: EventSource = "cache" if self.elapsed is None else "store"
        if len(checks) == 1:
            lines: tuple[Line, ...] = (_line(checks[0][0], outcomes[0], hint),)
        else:
            lines = tuple([_line(check[0], outcome, hint) for check, outcome in zip(checks, outcomes, strict=True)])
        said = "allowed" if allowed else "forbidden" if self.forbidden else "refused"
        return self.delivery.application, endpoint, method if method in _METHODS else "other", said, lines

    def asdict(self) -> dict[str, Any]:
        """Return all fields by their names, the rules as dictionaries too: for JSON, or for another process."""
        return {**dict(self._items()), "rules": [each.asdict() for each in self.rules]}

    def _items(self) -> list[tuple[str, Any]]:
        """Return the fields by their names, in order: its properties."""
        return [(name, getattr(self, name)) for name, part in vars(DecisionEvent).items() if isinstance(part, property)]

    def __eq__(self, other: object) -> bool:
        return type(other) is DecisionEvent and self._items() == other._items()

    def __hash__(self) -> int:
        return hash(tuple(self._items()))

    def __repr__(self) -> str:
        return f"DecisionEvent({', '.join([f'{name}={part!r}' for name, part in self._items()])})"

    def __reduce__(self) -> NoReturn:
        raise _no_copy(self)


def _line(terms: Terms, outcome: Outcome, hint: EventSource) -> Line:
    """Return what a rule said. `hint` is the source of an outcome of the store."""
    allowed, limit, remaining, wait, _, _, _, made = outcome
    source: EventSource = hint if made == "store" else made
    if not allowed:
        return terms[0], "banned" if terms[2] == BAN else "refused", source, False
    if wait != 0:  # a shadow rule that would have refused: it has a time to wait
        return terms[0], "shadow", source, False
    return terms[0], "allowed", source, remaining * 10 <= limit and terms[2] != BAN


log = logging.getLogger("sluicegate.events")


class Pending:
    """The events of one request that wait for the end of its answer. Later ones are delivered at once.

    Several threads may add to it. Each event is delivered by the one that takes it.
    """

    __slots__ = ("at", "is_over", "made")

    def __init__(self, at: tuple[str, str], *, is_over: bool = False) -> None:
        self.at = at  # the template of the route, and the method
        self.is_over = is_over
        self.made: list[DecisionEvent] = []

    def end(self) -> None:
        """Deliver the events that wait."""
        Delivery.deliver(self)


class Delivery:
    """Makes the events of one limiter, and knows its handlers. It has no lock and nothing of a request."""

    pending = Pending
    """Keeps the events of one request until its answer was sent."""

    def __init__(self, given: Handlers, *, application: str, show_identities: bool) -> None:
        self.handlers = tuple([self._callable(each) for each in handlers_of(given)])
        self.application = application
        self.shows = show_identities
        self.failed: set[int] = set()  # the ids of the handlers that were logged
        self.last: deque[float] = deque(maxlen=LAST)
        """The seconds that the store took for the last decisions."""

    def measure(self) -> StoreTime:
        """Return what measures the store, in this context, for the decision that is made next."""
        return StoreTime()

    def note(self, decision: Decision, seconds: float | None, caller: Any = None) -> Decision:
        """Add the event of a decision to those of the caller's request. If nothing tells when that ends, or for the
        decision of a plain limiter, deliver it at once. Return the decision.

        Inside a handler of this object, and in a task that one has started, a decision has no event: its event would
        call the handler again, and so on without an end.
        """
        if seconds is not None:
            self.last.append(seconds)
        if self not in _DELIVERING.get():
            event = _new(DecisionEvent)
            event.delivery, event.elapsed, event.about = self, seconds, decision
            ask = getattr(caller, "pending", None)  # a plain limiter has no caller; adapters of others may lack it
            pending = None if ask is None else ask()
            if pending is None:
                pending = Pending(("", getattr(caller, "method", "")), is_over=True)
            pending.made.append(event)
            if pending.is_over:
                self.deliver(pending)
        return decision

    @staticmethod
    def deliver(pending: Any) -> None:
        """Call the handlers with the events of a request: its answer was sent, or there will be none.

        A handler that fails is logged once, and changes nothing. What is no Exception, such as KeyboardInterrupt, is
        raised when all handlers were called with all events.
        """
        pending.is_over = True
        made, raised = pending.made, None
        while made:
            try:
                event = made.pop(0)
            except IndexError:  # another thread was quicker
                break
            event.at = pending.at
            for handler in event.delivery.handlers:
                try:
                    handler(event)
                except Exception:
                    if id(handler) not in event.delivery.failed:
                        event.delivery.failed.add(id(handler))
                        log.exception("sluicegate: %s of on_decision failed; it is logged once", label_of(handler))
                except BaseException as error:  # noqa: BLE001  # it is raised below
                    raised = error
        if raised is not None:
            raise raised

    def _callable(self, handler: Any) -> Handler:
        """Return a function that calls a handler. A decision inside the handler has no event. A handler whose own class
        says that it never decides needs no guard, and is called by its method, which takes half as long.
        """
        if not vars(type(handler)).get("decides", True):
            return handler.__call__  # type: ignore[no-any-return]
        alone = (self,)

        def handle(event: DecisionEvent) -> None:
            outside = _DELIVERING.get()
            try:  # a signal handler may raise between any two lines
                _DELIVERING.set((*outside, self) if outside else alone)
                answer = handler(event)
                if answer is not None and waits(answer):
                    close_unawaited(answer)
                    raise async_mismatch("on_decision", handler)
            finally:
                _DELIVERING.set(outside)

        handle.func = handler  # type: ignore[attr-defined]  # so that `label_of` returns its name
        return handle


_DELIVERING: Final[ContextVar[tuple[Delivery, ...]]] = ContextVar("sluicegate_delivering", default=())
"""Those whose handlers are running in this context, one inside the other."""


def handlers_of(given: object) -> tuple[Handler, ...]:
    """Return the handlers of an `on_decision`. Raises SettingsError for anything but plain functions."""
    handlers: tuple[Any, ...] = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for handler in handlers:
        problem = ""
        if isinstance(handler, type):
            problem = "a class, not an instance of it"
        elif not callable(handler) or is_async(handler):
            problem = "not a plain function"
        if problem:
            expected = "give a function of a DecisionEvent, or a list of such functions"
            raise SettingsError("on_decision", handler, problem=problem, expected=expected)
        check_call("on_decision", handler, takes=("event",), error=SettingsError)
    return handlers

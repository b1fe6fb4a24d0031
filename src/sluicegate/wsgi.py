"""The adapter for any WSGI application. The Flask adapter builds on its caller and its state.

The middleware asks the gate. It either passes the request on and adds fields when the response starts, or refuses it.
It calls the application once and returns the application's iterable itself, unless the request holds a slot until the
last byte, or the application has not called start_response yet. It passes exceptions on, except a `RateLimitExceeded`
before the response has started: it handles that as its own refusal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Unpack

from sluicegate.errors import NotEnforcedError, RuleError
from sluicegate.observe.status import Status
from sluicegate.observe.usage import Budget
from sluicegate.plan import Decision, RateLimitExceeded
from sluicegate.rules.key import parts_of
from sluicegate.rules.response import Headers, Response
from sluicegate.rules.rule import Rule
from sluicegate.runtime.awaiting import async_mismatch, close_unawaited, waits
from sluicegate.web.bound import NO_BOUNDS, EndpointRules
from sluicegate.web.charge import AnyQuota, Charged, ChargedRule, ChargeOptions, unlimited
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import Gate
from sluicegate.web.health import FIELDS, OK, answer, check_code
from sluicegate.web.http import Fields, denial, environ_name, fields_for, merge
from sluicegate.web.request_state import RequestState, warn_of_twice
from sluicegate.web.settings import Settings, SettingsOptions, hide
from sluicegate.web.settlement import Settlement

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from sluicegate.observe.events import DecisionEvent

ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None

KEY: Final = "sluicegate.state"  # of an environ: the state of the request
_NOWHERE: Final = Endpoint()
_RAISED: Final[list[bytes]] = []  # instead of the iterable, while the application has returned none


class WsgiCaller:
    """The client of a request, read from its environ. `state` is that of the request, if a limiter has made one."""

    state: SyncState | None

    def __init__(self, environ: WSGIEnvironment, state: SyncState | None = None) -> None:
        self.environ = environ
        self.state = state

    @property
    def native(self) -> Any:
        """The environ itself. The Flask adapter returns its request instead."""
        return self.environ

    @property
    def method(self) -> str:
        """The method in capitals, because some servers and applications accept it in any case."""
        return str(self.environ.get("REQUEST_METHOD", "GET")).upper()

    @property
    def path(self) -> str:
        """The path below the application's mount point, decoded (PEP 3333 carries UTF-8 as latin-1)."""
        return str(self.environ.get("PATH_INFO", "")).encode("latin-1", "replace").decode("utf-8", "replace")

    @property
    def peer(self) -> str | None:
        """The address of the client's end of the socket; empty on a unix socket."""
        return self.environ.get("REMOTE_ADDR")

    def header(self, name: str) -> Sequence[str]:
        """Return a header as one line: the server has joined its lines."""
        value = self.environ.get(environ_name(name))
        return () if value is None else (value,)

    def path_value(self, name: str) -> str | None:
        """Return None: a bare WSGI application has no named routes."""
        return None

    def user(self) -> Hashable | None:
        """Return the user that the server has authenticated."""
        return self.environ.get("REMOTE_USER") or None

    def signs_in_later(self) -> bool:
        """True if the request has credentials, which the server has not read."""
        return "HTTP_AUTHORIZATION" in self.environ

    def pending(self) -> SyncState | None:
        """Return what keeps the events of the request until its response was sent; None if nothing does."""
        return self.state


class SyncState(RequestState):
    """The state of one request in a synchronous application. With `on_decision` it keeps the events of the request.

    The events are delivered when the response is closed: an `on_decision` delays no client.
    """

    __slots__ = ("at", "is_over", "made")

    at: tuple[str, str]  # the template of the route, and the method; unset, as are the others, without `on_decision`
    is_over: bool  # True: the events of the request are delivered at once
    made: list[DecisionEvent]

    def answered(self, response: Response) -> None:
        """Settle by this response, before it starts. The header fields then show what was refunded."""
        if isinstance(self.settlement, Settlement):
            self.regain(self.settlement.answered(response))

    def going_on(self, part: bytes) -> None:
        """Note a part of the response, and renew what the request holds while it is sent."""
        if isinstance(self.settlement, Settlement):
            self.settlement.going_on(part)

    def completed(self) -> None:
        """Note that the whole response was sent."""
        if self.settlement is not None:
            self.settlement.complete = True

    def over(self, error: BaseException | None) -> None:
        """Settle at the end of the request. `error` is the exception that ended it."""
        if isinstance(self.settlement, Settlement):
            self.settlement.over(error)

    def closed(self) -> None:
        """Release what the request holds, and deliver its events: the response was closed, or there will be none."""
        try:
            if isinstance(self.settlement, Settlement):
                self.settlement.ended()
        finally:
            events = self.gate.limiter.events
            if events is not None and not self.is_over:
                events.deliver(self)


class _Served(SyncState):
    """The state of one request, and whether its response has started."""

    __slots__ = ("is_left", "started")  # not the environ, which refers to this state: no cycle may keep it

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate)
        self.started = False
        self.is_left = False  # True: the server has the application's own iterable, so its end will not be noticed

    @property
    def can_hold(self) -> bool:
        """True while the end of the response will be noticed."""
        return not self.is_left and super().can_hold

    @property
    def can_refuse(self) -> bool:
        """True until the response starts."""
        return not self.started


def charge(environ: WSGIEnvironment, /, quota: AnyQuota, **options: Unpack[ChargeOptions]) -> Charged:
    """Charge this request under a rule of the application's own. Return the decision; raise RateLimitExceeded if it
    refuses.

    The middleware answers the exception with its usual refusal. What the request was charged before is given back then,
    unless `refund_earlier=False`. A rule that the request was charged for already is not charged again. The other
    options are those of `@limit`. All requests share a budget per quota and key, unless `scope` names another.

        charge(environ, "3/day", key=email_of)
        with charge(environ, "2 at once"): ...  # until the block ends; without a block until the response ends
    """
    rule = ChargedRule.of("charge", quota, **options)
    state = environ.get(KEY)
    if not isinstance(state, SyncState):
        problem, expected = "the request has not passed RateLimitMiddleware", "put RateLimitMiddleware around the app"
        raise NotEnforcedError("charge in", environ.get("PATH_INFO"), problem=problem, expected=expected)
    if not state.gate.settings.enabled:
        return unlimited()
    return rule.charge(state, _NOWHERE).run(WsgiCaller(environ, state))


def settle(environ: WSGIEnvironment, /, used: int, *, unit: str | None = None) -> None:
    """Note how many units the request has cost so far, for its rules with an `estimate`: those of this `unit`, or all.

    Call it as often as you count: the last number counts, in place of `cost_after`, when the response has ended. It
    does no I/O.
    """
    state = environ.get(KEY)
    if isinstance(state, SyncState):
        state.settle(used, unit)


class RateLimitMiddleware:
    """Limits every request of a WSGI application.

    Give the options of `sluicegate.Settings`, or a whole `settings`. Wrong options raise here, at start-up.
    `on_denied(environ, decision)` returns a WSGI application for the response, or None for the usual response. That
    application finds the decision in `environ["sluicegate.state"].decision`.
    """

    def __init__(
        self, app: WSGIApplication, *, settings: Settings | None = None, **options: Unpack[SettingsOptions]
    ) -> None:
        options = hide(options)
        self.app = app
        self.settings = Settings.given(settings, options, source="RateLimitMiddleware")
        for rule in self.settings.rules:
            if isinstance(rule, Rule) and rule.route is not None:
                problem, expected = "a bare WSGI application has no named routes", 'give a path such as "/api/*"'
                raise RuleError(f"rule {rule.name!r}: route", rule.route, problem=problem, expected=expected)
        for key in (self.settings.key, *[getattr(rule, "key", None) for rule in self.settings.rules]):
            for part in parts_of(key):
                if isinstance(part, str) and part.startswith("path:"):
                    problem, expected = "a bare WSGI application has no named parts of a path", 'use "ip" or a function'
                    raise RuleError("key", part, problem=problem, expected=expected)
        self.gate = Gate(self.settings)
        self.gate.bind(_NOWHERE)  # raises for wrong rules now

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        state, decision = _Served(self.gate), None
        if self.gate.limiter.events is not None:
            state.at, state.is_over, state.made = ("", WsgiCaller(environ).method), False, []
        respond = self._adding_fields(state, start_response)
        outer, environ[KEY] = environ.get(KEY), state
        chunks: Iterable[bytes] = _RAISED
        try:  # no `except`: the application's exceptions pass
            bounds = self.gate.bind(_NOWHERE) if self.settings.enabled else NO_BOUNDS
            if bounds or (self.settings.enabled and self.gate.decides_all):
                decision = self.gate.decide(WsgiCaller(environ, state), bounds)
                if outer is not None:
                    warn_of_twice(outer, self.gate, decision)
                state.note(decision)
            if decision is not None and not decision.allowed:
                state.started = True
                chunks = self._refuse(environ, decision, respond, raw=start_response)
            else:
                chunks = self._pass(state, environ, respond)
        finally:
            if chunks is _RAISED:
                state.over(sys.exception())
                state.closed()
        return self._ending(chunks, state, environ, respond=respond)

    def reset_all(self, identity: object) -> int:
        """Forget every budget, slot and ban of an identity, such as `("ip", "203.0.113.7")`. Return how many budgets
        were forgotten.
        """
        return self.gate.reset_all(identity)

    def usage_of(self, identity: object) -> tuple[Budget, ...]:
        """Return what an identity has used under the rules whose quota is written. Charges nothing."""
        return self.gate.usage_of(identity)

    def endpoint_rules(self) -> list[EndpointRules]:
        """Return the rules of every request: a bare WSGI application has no routes."""
        return [EndpointRules(_NOWHERE, self.gate.bind(_NOWHERE))]

    def status(self) -> Status:
        """Return the status of the limiter, its store and its circuits. Charges nothing."""
        return self.gate.limiter.status()

    def close(self) -> None:
        """Close what the settings made this middleware open."""
        self.gate.close()

    def _refuse(
        self,
        environ: WSGIEnvironment,
        decision: Decision,
        respond: StartResponse,
        *,
        raw: StartResponse | None = None,
    ) -> Iterable[bytes]:
        """Return the response of `on_denied`, or our own, which `raw` starts with fields that were made before: a flood
        of refusals takes half the CPU (7.5 µs each, and 14.5 if `respond` makes the fields).
        """
        on_denied = self.settings.answer_to(decision)
        if on_denied is not None:
            own: WSGIApplication | None = on_denied(environ, decision)
            if waits(own):
                close_unawaited(own)
                raise async_mismatch("on_denied", on_denied)
            if own is not None:
                return own(environ, respond)
        caller = WsgiCaller(environ)
        found = denial(decision, self.settings.headers, accept=",".join(caller.header("accept")))
        if raw is None:
            respond(_line(found.status), [*found.body_fields])  # the fields also cover the earlier decisions
        else:
            raw(_line(found.status), [*found.all_fields])
        return [b"" if caller.method == "HEAD" else found.body]

    def _pass(self, state: _Served, environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        """Call the application. If it raises a refusal before a response has started, return the refusal."""
        try:
            return self.app(environ, respond)
        except RateLimitExceeded as error:
            if state.started:
                raise
            raised = error.decision
        # Outside the `except`: what `on_denied` calls is not called while an error is handled.
        return self._exceeded(state, environ, raised, respond=respond)

    def _exceeded(
        self, state: _Served, environ: WSGIEnvironment, raised: Decision, *, respond: StartResponse
    ) -> Iterable[bytes]:
        """Return the response to a refusal that the application raised. The fields also cover the earlier decisions."""
        refused = state.refuse(raised)
        if refused.forbidden:  # the fields of the rules would not explain it
            state.decision = refused
        return self._refuse(environ, refused, respond)

    def _ending(
        self, chunks: Iterable[bytes], state: _Served, environ: WSGIEnvironment, *, respond: StartResponse
    ) -> Iterable[bytes]:
        """Return the body, so that its end is noticed if charges or events wait for the end."""
        settlement = state.settlement
        if not state.started:
            return SettlingBody(chunks, state, partial(self._exceeded, state, environ, respond=respond))
        if settlement is not None and (settlement.holds or not settlement.answered_once):
            return SettlingBody(chunks, state)
        if self.gate.limiter.events is None:
            state.is_left = True
            return chunks
        if type(chunks) in (list, tuple):  # not a subclass: it may have a `close`
            return _List(chunks, state)
        wrapper = environ.get("wsgi.file_wrapper")
        if isinstance(wrapper, type) and isinstance(chunks, wrapper):
            with suppress(AttributeError):  # the server sends its own file by itself, and closes it
                chunks.__dict__["close"] = closing(getattr(chunks, "close", None), state.closed)
                return chunks
        return SettlingBody(chunks, state)

    def _adding_fields(self, state: _Served, start_response: StartResponse) -> StartResponse:
        """Return a start_response that adds the fields of the decision, also to the response of `on_denied`."""

        def respond(status: str, headers: Fields, exc_info: ExcInfo = None) -> Callable[[bytes], object]:
            state.started, code = True, int(status[:3])
            if state.settlement is not None:  # also at the second call, when an error replaces the first response
                state.answered(Response(code, Headers(headers)))  # before the fields: they show what a refund has left
            if state.decision is not None:
                fields = fields_for(state.decision, self.settings.headers, status=code)
                headers = merge(headers, fields) if fields else headers
            write = start_response(status, headers, exc_info)
            return write if state.settlement is None else partial(_write, state, write)

        return respond


class _List(list[bytes]):
    """A body in a list, of which a server may ask the length. Closing it ends the request."""

    def __init__(self, chunks: Iterable[bytes], state: SyncState) -> None:
        super().__init__(chunks)
        self.close = state.closed


class SettlingBody:
    """The body of a response that settles when it ends. While it is sent, held charges are renewed.

    A generator calls start_response in its first step. If it raises a refusal instead, `refuse` returns the refusal.
    """

    def __init__(
        self,
        chunks: Iterable[bytes],
        state: SyncState,
        refuse: Callable[[Decision], Iterable[bytes]] | None = None,
    ) -> None:
        self.chunks = chunks
        self._state = state
        self._refuse = refuse

    def __iter__(self) -> Iterator[bytes]:
        try:
            try:
                for chunk in self.chunks:
                    self._state.going_on(chunk)
                    yield chunk
                self._state.completed()
                return
            except RateLimitExceeded as error:
                if self._refuse is None or not self._state.can_refuse:
                    raise
                raised = error.decision
            _close(self.chunks)
            self.chunks = self._refuse(raised)
            yield from self.chunks
        finally:
            self._state.over(sys.exception())

    def close(self) -> None:
        """Close the application's iterable. The server calls this even if it could not send everything."""
        try:
            _close(self.chunks)
        finally:
            self._state.closed()


def _write(state: SyncState, write: Callable[[bytes], object], part: bytes) -> object:
    """Write a part of the body as an old application does, and note it."""
    state.going_on(part)
    return write(part)


def closing(close: Callable[[], object] | None, end: Callable[[], None]) -> Callable[[], None]:
    """Return the `close` of a body that also calls `end`, even if the application's own `close` raises."""

    def both() -> None:
        try:
            if close is not None:
                close()
        finally:
            end()

    return both


def _close(chunks: Iterable[bytes]) -> None:
    """Close a body that can be closed."""
    close = getattr(chunks, "close", None)
    if close is not None:
        close()


def _line(code: int) -> str:
    return f"{code} {HTTPStatus(code).phrase}"


def health(middleware: RateLimitMiddleware, /, *, unavailable: int = OK) -> WSGIApplication:
    """Return an application that answers each request with the status of this limiter as JSON.

    `unavailable` is the status code while the store is unavailable: 200 unless another one is given. Call it beside
    the middleware, not inside: a probe of an orchestrator must not be limited.
    """
    check_code(unavailable)

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        code, body = answer(middleware.status(), unavailable=unavailable)
        start_response(_line(code), [*FIELDS, ("content-length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return application

"""The adapter for any WSGI application. The Flask adapter uses its caller.

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
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from sluicegate.errors import NotEnforcedError, RuleError
from sluicegate.observe.status import Status
from sluicegate.plan import Decision, RateLimitExceeded
from sluicegate.rules.key import parts_of
from sluicegate.rules.response import Headers, Response
from sluicegate.rules.rule import Rule
from sluicegate.runtime.awaiting import async_mismatch, close_unawaited, waits
from sluicegate.web.bound import EndpointRules
from sluicegate.web.charge import AnyQuota, Charge, Charged, ChargedRule, ChargeOptions, unlimited
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import Gate
from sluicegate.web.health import FIELDS, OK, answer, check_code
from sluicegate.web.http import Fields, denial, environ_name, fields_for, merge
from sluicegate.web.request_state import RequestState, warn_of_twice
from sluicegate.web.settings import Settings, SettingsOptions, hide
from sluicegate.web.settlement import Settlement

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from sluicegate.observe.events import Pending

ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None

KEY: Final = "sluicegate.state"
_PENDING: Final = "sluicegate.pending"
_NOWHERE: Final = Endpoint()
_RAISED: Final[list[bytes]] = []  # instead of the iterable, while the application has returned none


class WsgiCaller:
    """The client of a request, read from its environ."""

    __slots__ = ("environ",)

    def __init__(self, environ: WSGIEnvironment) -> None:
        self.environ = environ

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

    def pending(self) -> Any:
        """Return what keeps the decisions about the request until its answer was sent; None if nothing does."""
        return self.environ.get(_PENDING)


class _Served(RequestState):
    """The state of one request, and whether its response has started."""

    __slots__ = ("is_left", "started")

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
    if not isinstance(state, RequestState):
        problem, expected = "the request has not passed RateLimitMiddleware", "put RateLimitMiddleware around the app"
        raise NotEnforcedError("charge in", environ.get("PATH_INFO"), problem=problem, expected=expected)
    if not state.gate.settings.enabled:
        return unlimited()
    return Charge(rule, state, _NOWHERE).run(WsgiCaller(environ))


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
        self._bounds = self.gate.bind(_NOWHERE)
        if self.gate.limiter.events is not None:
            self.gate.limiter.events.take_part(self, _Watched)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        state = _Served(self.gate)
        respond = self._adding_fields(state, start_response)
        outer, environ[KEY] = environ.get(KEY), state
        if self.settings.enabled and (self._bounds or self.gate.denies):
            decision = self.gate.decide(WsgiCaller(environ), self._bounds)
            if outer is not None:
                warn_of_twice(outer, self.gate, decision)
            state.note(decision)
            if decision is not None and not decision.allowed:
                return self._refuse(environ, decision, respond=respond, raw=start_response)
        return self._pass(state, environ, respond)

    def reset_all(self, identity: object) -> int:
        """Forget every budget, slot and ban of an identity, such as `("ip", "203.0.113.7")`. Return how many budgets
        were forgotten.
        """
        return self.gate.reset_all(identity)

    def endpoint_rules(self) -> list[EndpointRules]:
        """Return the rules of every request: a bare WSGI application has no routes."""
        return [EndpointRules(_NOWHERE, self._bounds)]

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
        *,
        respond: StartResponse,
        raw: StartResponse | None = None,
    ) -> Iterable[bytes]:
        """Return the response of `on_denied`, or our own, which `raw` starts without adding fields."""
        on_denied = self.settings.answer_to(decision)
        if on_denied is not None:
            own: WSGIApplication | None = on_denied(environ, decision)
            if waits(own):
                close_unawaited(own)
                raise async_mismatch("on_denied", on_denied)
            if own is not None:
                return own(environ, respond)
        caller = WsgiCaller(environ)
        accept = ",".join(caller.header("accept"))
        answer = denial(decision, self.settings.headers, accept=accept)
        status = _line(answer.status)
        if raw is None:
            respond(status, [*answer.body_fields])  # `respond` adds the others
        else:
            raw(status, [*answer.all_fields])
        return [b"" if caller.method == "HEAD" else answer.body]

    def _pass(self, state: _Served, environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        """Call the application. If some charges depend on the response, settle them when the request ends."""
        chunks: Iterable[bytes] = _RAISED
        try:  # no `except`: the application's exceptions pass
            chunks = self._call(state, environ, respond)
        finally:
            if chunks is _RAISED and state.settlement is not None:
                cast("Settlement", state.settlement).over(sys.exception())
        settlement = state.settlement
        if state.started and (settlement is None or not (settlement.holds or not settlement.answered_once)):
            state.is_left = True
            return chunks
        return SettlingBody(chunks, state)

    def _call(self, state: _Served, environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        """Call the application. If it raises a refusal before a response has started, return the refusal."""
        try:
            chunks = self.app(environ, respond)
        except RateLimitExceeded as error:
            if state.started:
                raise
            raised = error.decision
        else:
            if state.started:
                return chunks
            return _Unstarted(chunks, state, partial(self._exceeded, state, environ, respond=respond))
        return self._exceeded(state, environ, raised, respond=respond)

    def _exceeded(
        self, state: _Served, environ: WSGIEnvironment, raised: Decision, *, respond: StartResponse
    ) -> Iterable[bytes]:
        """Return the response to a refusal that the application raised. The fields also cover the earlier decisions."""
        refused = state.refuse(raised)
        if refused.forbidden:  # the fields of the rules would not explain it
            state.decision = refused
        return self._refuse(environ, refused, respond=respond)

    def _adding_fields(self, state: _Served, start_response: StartResponse) -> StartResponse:
        """Return a start_response that adds the fields of the decision, also to the response of `on_denied`."""

        def respond(status: str, headers: Fields, exc_info: ExcInfo = None) -> Callable[[bytes], object]:
            state.started = True
            if state.settlement is not None:  # also at the second call, when an error replaces the first response
                answer = Response(int(status[:3]), Headers(headers))
                state.regain(cast("Settlement", state.settlement).answered(answer))
            decision = state.decision
            if decision is not None:
                fields = fields_for(decision, self.settings.headers, status=int(status[:3]))
                headers = merge(headers, fields) if fields else headers
            return start_response(status, headers, exc_info)

        return respond


class _Watched(RateLimitMiddleware):
    """The middleware of an application with `on_decision`: it delivers the events when the body is closed."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        outer, pending = environ.get(_PENDING), self.gate.events.pending(("", WsgiCaller(environ).method))
        environ[_PENDING] = pending
        chunks: Iterable[bytes] = _RAISED
        try:
            chunks = super().__call__(environ, start_response)
        finally:
            if outer is not None:
                environ[_PENDING] = outer
            if chunks is _RAISED:
                pending.end()
        if type(chunks) in (list, tuple):
            return _List(chunks, pending)
        body, wrapper = _Body(chunks, pending), environ.get("wsgi.file_wrapper")
        if isinstance(wrapper, type) and isinstance(chunks, wrapper):
            with suppress(AttributeError):  # the server sends its own file by itself, and closes it
                body.close_instead()
                return chunks
        return body


class _List(list[bytes]):
    """A body in a list, of which a server may ask the length. Closing it delivers the events."""

    def __init__(self, chunks: Iterable[bytes], pending: Pending) -> None:
        super().__init__(chunks)
        self.close = pending.end


class _Body:
    """Any other body. Closing it delivers the events."""

    def __init__(self, chunks: Iterable[bytes], pending: Pending) -> None:
        self._chunks: Any = chunks
        self._close = getattr(chunks, "close", None)
        self._pending = pending

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._chunks)

    def close(self) -> None:
        """Close the application's iterable, then deliver."""
        try:
            if self._close is not None:
                self._close()
        finally:
            self._chunks = ()  # it may refer to this object: see below
            self._pending.end()

    def close_instead(self) -> None:
        """Let closing the application's iterable call `close`, as Django does with its files."""
        self._chunks.close = self.close


class SettlingBody:
    """The body of a response that settles when it ends. While it is sent, held charges are renewed."""

    def __init__(self, chunks: Iterable[bytes], state: RequestState) -> None:
        self.chunks = chunks
        self._state = state

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self.chunks:
                if self._state.settlement is not None:
                    cast("Settlement", self._state.settlement).going_on()
                yield chunk
        finally:
            if self._state.settlement is not None:
                cast("Settlement", self._state.settlement).over(sys.exception())

    def close(self) -> None:
        """Close the application's iterable. The server calls this even if it could not send everything."""
        try:
            _close(self.chunks)
        finally:
            if self._state.settlement is not None:
                cast("Settlement", self._state.settlement).ended()


class _Unstarted:
    """The body of an application that has not called start_response yet: a generator calls it in its first step."""

    def __init__(self, chunks: Iterable[bytes], state: _Served, refuse: Callable[[Decision], Iterable[bytes]]) -> None:
        self._chunks = chunks
        self._state = state
        self._refuse = refuse

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._chunks:  # noqa: UP028  # `yield from` would close what the server then closes again
                yield chunk
            return
        except RateLimitExceeded as error:
            if self._state.started:
                raise
            raised = error.decision
        self.close()
        self._chunks = self._refuse(raised)
        yield from self._chunks

    def close(self) -> None:
        """Close the application's iterable, or that of the refusal."""
        _close(self._chunks)


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

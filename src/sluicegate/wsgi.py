"""The adapter for any WSGI application; what it reads from an environ, the Flask adapter reads as well.

It asks the gate and either passes the request on, with fields added when the response starts, or answers it. The
application is called once, and its iterable is handed back as it is, unless something is held until the last byte, or
the application has still to say how it answers. Nothing that it raises is caught, with one exception: a
`RateLimitExceeded` that comes before its response has started is answered like a refusal of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

from sluicegate.after import Headers, Response
from sluicegate.awaiting import answers_later, called_at_once, give_up, waits
from sluicegate.clock import epoch_seconds
from sluicegate.ending import Ending
from sluicegate.errors import RateLimitExceeded, RuleError
from sluicegate.gate import Gate
from sluicegate.http import Fields, denial, denial_fields, merge, response_fields
from sluicegate.passage import Passage, Place, warn_of_twice
from sluicegate.plan import Decision
from sluicegate.rule import Rule
from sluicegate.settings import Settings, hide

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None

KEY: Final = "sluicegate.passage"
_NOWHERE: Final = Place()
_RAISED: Final[list[bytes]] = []  # stands for what an application would have returned
_WITHOUT_HTTP: Final = ("CONTENT_TYPE", "CONTENT_LENGTH")  # the two headers that PEP 3333 names otherwise


class WsgiCaller:
    """What an environ tells about who is asking."""

    __slots__ = ("environ",)

    def __init__(self, environ: WSGIEnvironment) -> None:
        self.environ = environ

    @property
    def native(self) -> Any:
        """The environ itself; the Flask adapter gives its own request."""
        return self.environ

    @property
    def method(self) -> str:
        """The method, in capitals: there are servers and applications that take it in any case."""
        return str(self.environ.get("REQUEST_METHOD", "GET")).upper()

    @property
    def path(self) -> str:
        """The path below the application's mount point, decoded (PEP 3333 carries UTF-8 as latin-1)."""
        return str(self.environ.get("PATH_INFO", "")).encode("latin-1", "replace").decode("utf-8", "replace")

    @property
    def peer(self) -> str | None:
        """The address of the socket's other end; empty on a unix socket."""
        return self.environ.get("REMOTE_ADDR")

    def header(self, name: str) -> Sequence[str]:
        """A header; servers have joined its lines already."""
        key = name.upper().replace("-", "_")
        value = self.environ.get(key if key in _WITHOUT_HTTP else f"HTTP_{key}")
        return () if value is None else (value,)

    def path_value(self, name: str) -> str | None:
        """A bare WSGI application tells nothing of its routes."""
        return None

    def user(self) -> Hashable | None:
        """The user that the server has authenticated."""
        return self.environ.get("REMOTE_USER") or None


class _Served(Passage):
    """The passage of one request, and whether its response has started."""

    __slots__ = ("started",)

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate)
        self.started = False


class RateLimitMiddleware:
    """Limits every request of a WSGI application.

    Options are those of `sluicegate.settings.Settings`; or hand over a whole `settings`. Wrong ones raise here, at
    start-up. `on_denied(environ, decision)` returns a WSGI application that answers. The application finds what was
    decided in `environ["sluicegate.passage"].decision`.
    """

    def __init__(self, app: WSGIApplication, *, settings: Settings | None = None, **options: Any) -> None:
        options = hide(options)
        self.app = app
        self.settings = Settings.given(settings, options, source="RateLimitMiddleware")
        for rule in self.settings.rules:
            if isinstance(rule, Rule) and rule.route is not None:
                problem, expected = "a bare WSGI application has no named routes", 'give a path such as "/api/*"'
                raise RuleError(f"rule {rule.name!r}: route", rule.route, problem=problem, expected=expected)
        if answers_later(self.settings.on_denied):
            raise called_at_once("on_denied", self.settings.on_denied)
        for key in (self.settings.key, *[getattr(rule, "key", None) for rule in self.settings.rules]):
            for part in key if isinstance(key, tuple) else (key,):
                if isinstance(part, str) and part.startswith("path:"):
                    problem, expected = "a bare WSGI application has no named parts of a path", 'use "ip" or a function'
                    raise RuleError("key", part, problem=problem, expected=expected)
        self.gate = Gate(self.settings)
        self._bounds = self.gate.bind(_NOWHERE)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        passage = _Served(self.gate)
        tell = self._telling(passage, start_response)
        if self.settings.enabled and (self._bounds or self.gate.denies):
            decision = self.gate.decide(WsgiCaller(environ), self._bounds)
            warn_of_twice(environ.get(KEY), self.gate, decision)
            environ[KEY] = passage
            passage.note(decision)
            if decision is not None and not decision.allowed:
                return self._refuse(environ, decision, tell=tell, start=start_response)
        return self._pass(passage, environ, tell)

    def close(self) -> None:
        """Close what the settings made this middleware open."""
        self.gate.close()

    def _refuse(
        self, environ: WSGIEnvironment, decision: Decision, *, tell: StartResponse, start: StartResponse | None = None
    ) -> Iterable[bytes]:
        """Answer with what `on_denied` gives, or with our own answer. Through `start` it goes out as it is."""
        if self.settings.on_denied is not None:
            own: WSGIApplication = self.settings.on_denied(environ, decision)
            if waits(own):
                give_up(own)
                raise called_at_once("on_denied", self.settings.on_denied)
            return own(environ, tell)
        caller = WsgiCaller(environ)
        accept = ",".join(caller.header("accept"))
        answer = denial(decision, self.settings.headers, epoch=epoch_seconds(), accept=accept)
        status = f"{answer.status} {HTTPStatus(answer.status).phrase}"
        if start is None:
            tell(status, list(answer.fields[:2]))  # those about the body; it adds the others
        else:
            start(status, list(answer.fields))
        return [b"" if caller.method == "HEAD" else answer.body]

    def _pass(self, passage: _Served, environ: WSGIEnvironment, tell: StartResponse) -> Iterable[bytes]:
        """Call the application. Only a request that owes something is looked after until it is over."""
        ending = cast("Ending | None", passage.ending)
        if ending is None:
            return self._call(passage, environ, tell)
        chunks: Iterable[bytes] = _RAISED
        try:  # no `except`: whatever the application raises is its own
            chunks = self._call(passage, environ, tell)
        finally:
            if chunks is _RAISED:
                ending.over(sys.exception())
        return Attended(chunks, ending) if ending.holds or not ending.answered_once else chunks

    def _call(self, passage: _Served, environ: WSGIEnvironment, tell: StartResponse) -> Iterable[bytes]:
        """Call the application, and answer the refusal that it may raise instead of starting a response."""
        try:
            chunks = self.app(environ, tell)
        except RateLimitExceeded as error:
            if passage.started:
                raise
            raised = error.decision
        else:
            if passage.started:
                return chunks
            return _Unstarted(chunks, passage, partial(self._exceeded, passage, environ, tell=tell))
        return self._exceeded(passage, environ, raised, tell=tell)

    def _exceeded(
        self, passage: _Served, environ: WSGIEnvironment, raised: Decision, *, tell: StartResponse
    ) -> Iterable[bytes]:
        """Answer a refusal that the application has raised, together with what was decided before."""
        decision = raised._replace(allowed=False) if raised else raised  # what is raised is a refusal
        if raised is passage.decision or decision.forbidden:
            passage.decision = decision
        else:
            passage.note(decision)
        return self._refuse(environ, cast("Decision", passage.decision), tell=tell)

    def _telling(self, passage: _Served, start_response: StartResponse) -> StartResponse:
        """A start_response that adds the fields of the decision, also to what `on_denied` answers."""

        def tell(status: str, headers: Fields, exc_info: ExcInfo = None) -> Callable[[bytes], object]:
            passage.started = True
            if passage.ending is not None:  # also a second time, when an error takes the place of the first answer
                answer = Response(int(status[:3]), Headers(headers))
                passage.regain(cast("Ending", passage.ending).answered(answer))
            decision = passage.decision
            if decision is not None:
                told = response_fields if decision.allowed else denial_fields
                fields = told(decision, self.settings.headers, epoch=epoch_seconds(), status=int(status[:3]))
                headers = merge(headers, fields) if fields else headers
            return start_response(status, headers, exc_info)

        return tell


class Attended:
    """The body of a request that owes something until it is over: what is held is renewed as it is sent."""

    def __init__(self, chunks: Iterable[bytes], ending: Ending) -> None:
        self._chunks = chunks
        self._ending = ending

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._chunks:
                self._ending.going_on()
                yield chunk
        finally:
            self._ending.over(sys.exception())

    def close(self) -> None:
        """Close the application's own iterable. The server calls this whether it has sent everything or not."""
        try:
            close = getattr(self._chunks, "close", None)
            if close is not None:
                close()
        finally:
            self._ending.ended()


class _Unstarted:
    """The body of an application that has not called start_response yet, as a generator does with its first step."""

    def __init__(
        self, chunks: Iterable[bytes], passage: _Served, refuse: Callable[[Decision], Iterable[bytes]]
    ) -> None:
        self._chunks = chunks
        self._passage = passage
        self._refuse = refuse

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._chunks
            return
        except RateLimitExceeded as error:
            if self._passage.started:
                raise
            raised = error.decision
        self.close()
        self._chunks = self._refuse(raised)
        yield from self._chunks

    def close(self) -> None:
        """Close the application's own iterable, or that of the refusal."""
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()

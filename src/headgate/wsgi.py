"""The adapter for any WSGI application; what it reads from an environ, the Flask adapter reads as well.

It asks the gate and either passes the request on, with fields added when the response starts, or answers it. The
application is called once, nothing that it raises is caught, and its iterable is handed back as it is, unless something
is held until the last byte, or the application has still to say how it answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

from headgate.after import Headers, Response
from headgate.awaiting import answers_later, called_at_once, give_up, waits
from headgate.clock import epoch_seconds
from headgate.ending import Ending
from headgate.errors import RuleError, SettingsError
from headgate.gate import Gate
from headgate.http import Fields, denial, denial_fields, merge, response_fields
from headgate.passage import Passage, Place, warn_of_twice
from headgate.preflight import is_preflight
from headgate.rule import Rule
from headgate.settings import Settings, hide

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None

KEY: Final = "headgate.passage"
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


class RateLimitMiddleware:
    """Limits every request of a WSGI application.

    Options are those of `headgate.settings.Settings`; or hand over a whole `settings`. Wrong ones raise here, at
    start-up. `on_denied(environ, decision)` returns a WSGI application that answers. The application finds what was
    decided in `environ["headgate.passage"].decision`.
    """

    def __init__(self, app: WSGIApplication, *, settings: Settings | None = None, **options: Any) -> None:
        options = hide(options)
        self.app = app
        if settings is not None and options:
            problem, expected = "given beside settings=", "put it into the settings, or leave those out"
            raise SettingsError("options", sorted(options), problem=problem, expected=expected)
        self.settings = Settings.from_mapping(options, source="RateLimitMiddleware") if settings is None else settings
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
        caller = WsgiCaller(environ)
        bounds = () if is_preflight(caller.method, caller.header) else self._bounds
        if not self.settings.enabled or not (bounds or self.gate.denies):
            return self.app(environ, start_response)
        decision = self.gate.decide(caller, bounds)
        warn_of_twice(environ.get(KEY), self.gate, decision)
        passage = environ[KEY] = Passage(self.gate)
        passage.note(decision)
        tell = self._telling(passage, start_response)
        if decision is None or decision.allowed:
            return self._pass(passage, environ, tell)
        if self.settings.on_denied is not None:
            own: WSGIApplication = self.settings.on_denied(environ, decision)
            if waits(own):
                give_up(own)
                raise called_at_once("on_denied", self.settings.on_denied)
            return own(environ, tell)
        accept = ",".join(caller.header("accept"))
        answer = denial(decision, self.settings.headers, epoch=epoch_seconds(), accept=accept)
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", list(answer.fields))
        return [b"" if caller.method == "HEAD" else answer.body]

    def close(self) -> None:
        """Close what the settings made this middleware open."""
        self.gate.close()

    def _pass(self, passage: Passage, environ: WSGIEnvironment, tell: StartResponse) -> Iterable[bytes]:
        """Call the application. Only a request that owes something is looked after until it is over."""
        ending = cast("Ending | None", passage.ending)
        if ending is None:
            return self.app(environ, tell)
        chunks: Iterable[bytes] = _RAISED
        try:  # no `except`: whatever the application raises is its own
            chunks = self.app(environ, tell)
        finally:
            if chunks is _RAISED:
                ending.over(sys.exception())
        return Attended(chunks, ending) if ending.holds or not ending.answered_once else chunks

    def _telling(self, passage: Passage, start_response: StartResponse) -> StartResponse:
        """A start_response that adds the fields of the decision, also to what `on_denied` answers."""

        def tell(status: str, headers: Fields, exc_info: ExcInfo = None) -> Callable[[bytes], object]:
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

"""The Flask extension: the functions that it registers on an application, and their work for each request.

A `before_request` decides, also where no route matches; an `after_request` tells the client, whoever made the response.
A `before_request` function that was registered earlier may answer instead. The `after_request` decides then, and puts
the refusal in the place of that answer.
The place of a concurrency limit is freed when the response is closed, or with the request if there was no response.
Nothing about one request is kept here: a Passage is left on the request itself, because `flask.g` outlives a request
that is made inside an application context. Nothing here refers to the application but by a weak reference: `del app`
frees it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, cast

from flask import Flask, Request, Response, current_app, has_request_context, request
from flask.signals import got_request_exception, request_tearing_down
from werkzeug.datastructures import Headers as ResponseHeaders

from sluicegate.after import Headers
from sluicegate.after import Response as Answer
from sluicegate.clock import epoch_seconds
from sluicegate.ending import Ending
from sluicegate.errors import RateLimitExceeded, SettingsError, SluicegateError
from sluicegate.flask.caller import FlaskCaller
from sluicegate.flask.refusal import OnDenied, answered, handled, refuse
from sluicegate.flask.sites import Sites
from sluicegate.gate import Bound, Gate
from sluicegate.http import Denial, Field, denial, denial_fields, merge, response_fields
from sluicegate.marks import Mark
from sluicegate.passage import Passage, count_together, warn_of_twice
from sluicegate.plan import Decision
from sluicegate.preflight import is_preflight
from sluicegate.settings import Settings, hide
from sluicegate.wsgi import KEY, Attended, WsgiCaller

_NAME: Final = "sluicegate"
_PREFIX: Final = "SLUICEGATE_"
_ON_REQUEST: Final = "_sluicegate"
_CORS: Final = ("access-control-", "vary")

_native: Final[Callable[[], Request]] = cast(Any, request)._get_current_object
"""The request itself, not the proxy for it."""


class RateLimiter:
    """The extension: `RateLimiter(app, …)`, or `RateLimiter(…)` and then `init_app(app)` for each application.

    Options are those of `sluicegate.settings.Settings`, as keywords or as `app.config["SLUICEGATE_STORE"]` and so on,
    one source for each option. `init_app` reads them and does no I/O; wrong ones raise there.
    `on_denied(request, decision)` returns what a view may return, or None for the usual answer.

    Several may stand on one application: each enforces its own default limits and rules, the first one `@limit` as
    well. `config_prefix` tells their configurations apart; with None nothing is read from `app.config`.
    """

    def __init__(self, app: Flask | None = None, *, config_prefix: str | None = _PREFIX, **options: Any) -> None:
        self._prefix = config_prefix
        options = self._options = hide(options)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Limit an application. `app.extensions["sluicegate"]` lists what stands on it, to be read or closed."""
        if not isinstance(cast("object", app), Flask):
            problem = "not an application of Flask"
            raise SettingsError(
                "RateLimiter", app, problem=problem, expected="give a Flask application, and options by name"
            )
        installed: list[Installation] = app.extensions.setdefault(_NAME, [])
        if any(other.extension is self for other in installed):
            problem = "this RateLimiter is on it already"
            raise SettingsError("application", app.name, problem=problem, expected="call init_app once")
        settings = Settings.from_mapping(self._all_options(app), source="RateLimiter")
        for other in installed:
            _check_apart(settings, other.settings)
        added = Installation(self, app, settings)
        app.before_request(added.before)
        # To be called after all others: what is sent is what counts.
        app.after_request_funcs.setdefault(None, []).insert(len(installed), added.after)
        app.error_handler_spec[None][None].setdefault(RateLimitExceeded, added.exceeded)
        got_request_exception.connect(added.failed, app)
        installed.append(added)

    def _all_options(self, app: Flask) -> dict[str, Any]:
        options = dict(self._options)
        if self._prefix is None:
            return options
        if not isinstance(cast("object", self._prefix), str) or not self._prefix.isupper():
            problem, expected = "Flask's configuration has names in capitals", f'use capitals, as "{_PREFIX}"'
            raise SettingsError("config_prefix", self._prefix, problem=problem, expected=expected)
        if self._prefix == _PREFIX and isinstance(app.config.get(_PREFIX[:-1]), Mapping):
            problem, expected = "a dictionary is not read", f'write app.config["{_PREFIX}STORE"] and so on'
            raise SettingsError("app.config", _PREFIX[:-1], problem=problem, expected=expected)
        for name in [name for name in app.config if name.startswith(self._prefix)]:
            option = name.removeprefix(self._prefix).lower()
            if option in options:
                problem = f"given as {option}= and as app.config[{name!r}]"  # the values may hold a password
                raise SettingsError("setting", option, problem=problem, expected="keep one of them")
            options |= hide({option: app.config[name]})
        return options


class _Visit(Passage):
    """A passage, and of one that was refused the answer."""

    __slots__ = ("arrived", "denial", "denied", "failed")

    denial: Denial

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate)
        self.arrived = False  # the rules of the place where the request arrived have been decided
        self.denied: Decision | None = None  # what `denial` answers; more may have been decided since
        self.failed = False  # an unhandled error came before the decision


Visits = dict["Installation", _Visit]


class Installation:
    """One RateLimiter on one application: its settings, and its gate."""

    def __init__(self, extension: RateLimiter, app: Flask, settings: Settings) -> None:
        self.extension = extension
        self.settings = settings
        self._app_ref = weakref.ref(app)
        self.gate = Gate(settings)
        self._sites = Sites(self.gate, owns_marks=not app.extensions[_NAME])

    @property
    def _app(self) -> Flask:
        """The application. It still exists: only the application calls the functions registered on it."""
        return cast("Flask", self._app_ref())

    @cached_property
    def _handled(self) -> frozenset[int]:
        """The statuses of refusals that may be answered by others. Asked once: Flask takes handlers until it serves."""
        return handled(self._app)

    def close(self) -> None:
        """Close the connections that the settings made this limiter open; the end of the process does as much."""
        self.gate.close()

    def before(self) -> Response | None:
        """Decide about a request, before its view or its error page."""
        if not self.settings.enabled:
            return None
        native = _native()
        visits = _visits(native)
        visit = visits.get(self)
        if visit is None or visit.arrived:
            visit = visits[self] = _Visit(self.gate)
        if native.method == "OPTIONS" and not _reaches_a_view(native) and _is_preflight(native):
            return self._enforce(native, visit, (), ahead=True)  # whether it is charged depends on its answer
        return self._arrive(native, visit)

    def after(self, response: Response) -> Response:
        """Tell the client what was decided."""
        native = _native()
        visit = _visits(native).get(self)
        if visit is None or not visit.arrived:
            response = _decided_late(self._app, native, response)
            visit = _visits(native).get(self)
        if visit is None or visit.decision is None:
            return response
        if visit.ending is not None:
            self._attend(visit, response)
        decision, dialect, status = visit.decision, self.settings.headers, response.status_code
        fields: Sequence[Field]
        if decision.allowed:
            fields = response_fields(decision, dialect, epoch=epoch_seconds(), status=status)
        elif decision is visit.denied and status == visit.denial.status:
            fields = visit.denial.fields[2:]  # as in our own answer, after what is about its body
        else:
            fields = denial_fields(decision, dialect, epoch=epoch_seconds(), status=status)
        _add(fields, response.headers)
        return response

    def late(self, native: Request, response: Response) -> Response:
        """Decide about a request that was answered before it came so far: its response, or the refusal instead."""
        visit = _visits(native).setdefault(self, _Visit(self.gate))
        if visit.arrived or not self.settings.enabled:
            return response

        def refusal() -> Response | None:
            if not _is_free(native, response.status_code):
                return self._arrive(native, visit)
            visit.arrived = True
            return self._enforce(native, visit, (), ahead=True)

        refused = answered(self._app, refusal)
        return response if refused is None else _instead(refused, response)

    def failed(self, app: Flask, exception: Exception) -> None:
        """Note an error that nobody handles. If `after` is not called for its response either, `over` charges it."""
        visit = _visits(_native()).setdefault(self, _Visit(self.gate))
        if not visit.arrived and self.settings.enabled:
            visit.failed = True
            request_tearing_down.connect(self.over, app)

    def exceeded(self, error: RateLimitExceeded) -> Any:
        """Answer a refusal that a view has raised like one of ours. The application's own handlers go first."""
        app, native = self._app, _native()
        own = app.error_handler_spec[None][None].get(SluicegateError)
        if own is not None:
            return app.ensure_sync(own)(error)
        visit = _visits(native).setdefault(self, _Visit(self.gate))
        raised, ours = error.decision, error.decision is visit.denied
        decision = raised._replace(allowed=False) if raised else raised  # what is raised is a refusal
        if raised is visit.decision or decision.forbidden:
            visit.decision = decision
        else:
            visit.note(decision)
        on_denied = None if ours else self.settings.on_denied  # it is `on_denied` that raises our own decision
        return answered(app, lambda: self._refuse(native, visit, decision, on_denied=on_denied))

    def _arrive(self, native: Request, visit: _Visit) -> Response | None:
        """Enforce the rules of the place where the request has arrived."""
        visit.arrived = True
        site = self._sites.find(self._app, native.url_rule, native.method)
        visit.enforced.update(site.marks)
        return self._enforce(native, visit, site.bounds, ahead=True)

    def _attend(self, visit: _Visit, response: Response) -> None:
        """Give back what this response gives back, and have it release what is held when it is closed."""
        ending = cast("Ending", visit.ending)
        visit.regain(ending.answered(Answer(response.status_code, Headers(response.headers))))
        if ending.holds:
            response.call_on_close(ending.ended)
            response.direct_passthrough = False  # with it, werkzeug hands a file to the server and closes only that
            if response.is_streamed:
                response.response = Attended(cast("Iterable[bytes]", response.response), ending)

    def over(self, app: Flask, exc: BaseException | None) -> None:
        """The request is over. Its response, if there is one that was not lost by an error, is still to be sent."""
        native = _native()
        visit = _visits(native).get(self)
        if visit is None:
            return
        if visit.failed and not visit.arrived:
            visit.arrived = True
            self._decide(native, visit, self._sites.find(app, native.url_rule, native.method).bounds)
        ending = cast("Ending | None", visit.ending)
        if ending is not None and (exc is not None or not ending.answered_once):
            ending.over(exc)

    def reach(self, mark: Mark, label: str) -> Response | None:
        """Enforce the mark of a view, unless it was: None to go on, or the response to give instead of calling it."""
        native = _native()
        visit = _visits(native).setdefault(self, _Visit(self.gate))
        if not self.settings.enabled or mark in visit.enforced:
            return None
        visit.enforced.add(mark)
        return self._enforce(native, visit, self._sites.own(self._app, mark, label=label), ahead=False)

    def _enforce(self, native: Request, visit: _Visit, bounds: tuple[Bound, ...], *, ahead: bool) -> Response | None:
        """None to go on, or the response to give; a refusal raises unless `on_denied` answers, or nobody handles it."""
        decision = self._decide(native, visit, bounds)
        if decision is None or decision.allowed:
            return None
        return self._refuse(native, visit, decision, on_denied=self.settings.on_denied, ahead=ahead)

    def _decide(self, native: Request, visit: _Visit, bounds: tuple[Bound, ...]) -> Decision | None:
        """Charge these rules."""
        if not bounds and not self.gate.denies:
            return None
        caller = FlaskCaller(self._app, native, parses=self.settings.trusted_proxies is not None)
        decision = self.gate.decide(caller, bounds)
        warn_of_twice(native.environ.get(KEY), self.gate, decision)
        visit.note(decision)
        if visit.ending is not None:
            request_tearing_down.connect(self.over, self._app)  # to do so again is harmless; most never have to
        return decision

    def _refuse(
        self,
        native: Request,
        visit: _Visit,
        decision: Decision,
        *,
        on_denied: OnDenied | None,
        ahead: bool = True,
    ) -> Response:
        if decision.results and visit.decision is not None:
            decision = visit.decision  # under the names that the fields will have
        visit.denied = decision
        accept = native.environ.get("HTTP_ACCEPT", "")
        visit.denial = denial(decision, self.settings.headers, epoch=epoch_seconds(), accept=accept)
        raises = not ahead or visit.denial.status in self._handled
        return refuse(self._app, native, decision, answer=visit.denial, on_denied=on_denied, raises=raises)


def decision() -> Decision | None:
    """What was decided about this request; None where no rule applied."""
    together = None
    for visit in _visits(_native()).values():
        if together is None:
            together = Passage(visit.gate)
        together.note(visit.decision)
    return None if together is None else together.decision


def first_on_app() -> Installation | None:
    """The limiter that enforces `@limit` for the request that is being served; None where there is none."""
    if not has_request_context():
        return None
    installed: list[Installation] = current_app.extensions.get(_NAME, [])
    return installed[0] if installed else None


def _visits(native: Request) -> Visits:
    """What each limiter has done about this request."""
    visits: Visits = vars(native).setdefault(_ON_REQUEST, {})
    return visits


def _decided_late(app: Flask, native: Request, response: Response) -> Response:
    """Let the limiters decide that have not yet, in their order. After a refusal the later limiters do not charge."""
    visits = _visits(native)
    for limiter in app.extensions[_NAME]:
        if all([visit.denied is None for visit in visits.values()]):
            response = limiter.late(native, response)
    return response


def _instead(refusal: Response, response: Response) -> Response:
    """The refusal that replaces a response. The client never sees that response."""
    own = {name.lower() for name, _ in refusal.headers}
    for name, value in response.headers:  # `after_request` functions have seen only that one: scripts may read both
        if name.lower().startswith(_CORS) and name.lower() not in own:
            refusal.headers.add(name, value)
    refusal.call_on_close(response.close)
    return refusal


def _reaches_a_view(native: Request) -> bool:
    """Whether a view runs on this OPTIONS: neither Flask's automatic answer nor an error of the router."""
    rule = native.url_rule
    return rule is not None and not getattr(rule, "provide_automatic_options", False)


def _is_preflight(native: Request) -> bool:
    return is_preflight(native.method, WsgiCaller(native.environ).header)


def _is_free(native: Request, status: int) -> bool:
    """Whether this is a preflight that no view has answered. A CORS layer answers by 2xx; all else is charged.

    Only the router's own answers are free as well. Otherwise requests that look like preflights could try API keys
    without end, against a function that answers 401 or sends to a login.
    """
    routed = native.routing_exception
    return (200 <= status < 300 or (routed is not None and routed.code == status)) and _is_preflight(native)


def _add(fields: Sequence[Field], headers: ResponseHeaders) -> None:
    """Add fields to those of a response, which may speak of rate limits itself."""
    names = {name.lower() for name, _ in fields}
    existing = [field for field in headers if field[0].lower() in names]
    if existing:
        for name, value in merge(existing, fields):
            headers[name] = value
    else:
        for name, value in fields:
            headers.add(name, value)


def _check_apart(settings: Settings, other: Settings) -> None:
    """Refuse two limiters of one application that would count the same budgets twice."""
    if count_together(settings, other):
        problem = "another RateLimiter of this application counts under it in the same store"
        raise SettingsError("prefix", settings.prefix, problem=problem, expected="give each a prefix of its own")

"""The Flask extension: what it adds to an application, and what that does with each request.

A `before_request` decides, also where no route matches; an `after_request` tells the client, whoever made the response.
What is held until the last byte goes with the response, and with the request if no response came so far.
Nothing about one request is kept here: a Passage is left on the request itself, because `flask.g` outlives a request
that is made inside an application context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final, cast

from flask import Flask, Request, Response, current_app, has_request_context, request, request_tearing_down
from werkzeug.datastructures import Headers as ResponseHeaders

from headgate.after import Headers
from headgate.after import Response as Answer
from headgate.clock import epoch_seconds
from headgate.ending import Ending
from headgate.errors import SettingsError
from headgate.flask.caller import FlaskCaller
from headgate.flask.refusal import handled, refuse
from headgate.flask.sites import Sites
from headgate.gate import Bound, Gate
from headgate.http import Denial, Field, denial, denial_fields, merge, response_fields
from headgate.marks import Mark
from headgate.passage import Passage, count_together, warn_of_twice
from headgate.plan import Decision
from headgate.preflight import is_preflight
from headgate.settings import Settings, hide
from headgate.wsgi import KEY, Attended

_NAME: Final = "headgate"
_ON_REQUEST: Final = "_headgate"

_native: Final[Callable[[], Request]] = cast(Any, request)._get_current_object
"""The request itself, not the proxy for it."""


class RateLimiter:
    """The extension: `RateLimiter(app, …)`, or `RateLimiter(…)` and then `init_app(app)` for each application.

    Options are those of `headgate.settings.Settings`, as keywords or as `app.config["HEADGATE_STORE"]` and so on, one
    source for each option. `init_app` reads them and does no I/O; wrong ones raise there.
    `on_denied(request, decision)` returns what a view may return, or None for the usual answer.

    Several may stand on one application: each enforces its own default limits and rules, the first one `@limit` as
    well. `config_prefix` tells their configurations apart; with None nothing is read from `app.config`.
    """

    def __init__(self, app: Flask | None = None, *, config_prefix: str | None = "HEADGATE_", **options: Any) -> None:
        self._prefix = config_prefix
        options = self._options = hide(options)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Limit an application. What stands on it can be read, and closed, in `app.extensions["headgate"]`, a list."""
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
        installed.append(added)

    def _all_options(self, app: Flask) -> dict[str, Any]:
        options = dict(self._options)
        if self._prefix is None:
            return options
        for name in [name for name in app.config if name.startswith(self._prefix)]:
            option = name.removeprefix(self._prefix).lower()
            if option in options:
                problem = f"given as {option}= and as app.config[{name!r}]"  # the values may hold a password
                raise SettingsError("setting", option, problem=problem, expected="keep one of them")
            options |= hide({option: app.config[name]})
        return options


class _Visit(Passage):
    """A passage, and of one that was refused the answer."""

    __slots__ = ("denial", "denied")

    denial: Denial
    denied: Decision  # what it answers; more may have been decided since


class Installation:
    """One RateLimiter on one application: its settings, and its gate."""

    def __init__(self, extension: RateLimiter, app: Flask, settings: Settings) -> None:
        self.extension = extension
        self.settings = settings
        self._app = app
        self.gate = Gate(settings)
        self._sites = Sites(self.gate, owns_marks=not app.extensions[_NAME])
        self._on_denied = None if settings.on_denied is None else app.ensure_sync(settings.on_denied)

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
        site = self._sites.find(self._app, native.url_rule, native.method)
        visit = vars(native).setdefault(_ON_REQUEST, {})[self] = _Visit(self.gate)
        visit.enforced.update(site.marks)
        return self._enforce(native, visit, site.bounds, ahead=True)

    def after(self, response: Response) -> Response:
        """Tell the client what was decided."""
        visit = _visits().get(self)
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
        visit = _visits().get(self)
        ending = None if visit is None else cast("Ending | None", visit.ending)
        if ending is not None and (exc is not None or not ending.answered_once):
            ending.over(exc)

    def reach(self, mark: Mark, label: str) -> Response | None:
        """Enforce the mark of a view, unless it was: None to go on, or the response to give instead of calling it."""
        native = _native()
        visit = vars(native).setdefault(_ON_REQUEST, {}).setdefault(self, _Visit(self.gate))
        if not self.settings.enabled or mark in visit.enforced:
            return None
        visit.enforced.add(mark)
        return self._enforce(native, visit, self._sites.own(self._app, mark, label=label), ahead=False)

    def _enforce(self, native: Request, visit: _Visit, bounds: tuple[Bound, ...], *, ahead: bool) -> Response | None:
        """None to go on, or the response to give; a refusal raises unless `on_denied` answers, or nobody handles it."""
        if not bounds and not self.gate.denies:
            return None
        caller = FlaskCaller(self._app, native, parses=self.settings.trusted_proxies is not None)
        if is_preflight(native.method, caller.header):
            bounds = ()
        decision = self.gate.decide(caller, bounds)
        warn_of_twice(native.environ.get(KEY), self.gate, decision)
        visit.note(decision)
        if visit.ending is not None:
            request_tearing_down.connect(self.over, self._app)  # to do so again is harmless; most never have to
        if decision is None or decision.allowed:
            return None
        whole = visit.decision if decision.results else decision  # under the names that the fields will have
        visit.denied = decision = whole or decision
        accept = native.environ.get("HTTP_ACCEPT", "")
        visit.denial = denial(decision, self.settings.headers, epoch=epoch_seconds(), accept=accept)
        raises = not ahead or visit.denial.status in self._handled
        return refuse(self._app, native, decision, answer=visit.denial, on_denied=self._on_denied, raises=raises)


def decision() -> Decision | None:
    """What was decided about this request; None where no rule applied."""
    together = None
    for visit in _visits().values():
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


def _visits() -> dict[Installation, _Visit]:
    """What each limiter has done about this request."""
    found: dict[Installation, _Visit] = vars(_native()).get(_ON_REQUEST, {})
    return found


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

"""The Flask extension: what it adds to an application, and what that does with each request.

A `before_request` decides, also where no route matches; an `after_request` tells the client, whoever made the response.
What is held until the last byte goes with the response, and with the request if no response came so far.
Nothing about one request is kept here: a Passage is left on the request itself, because `flask.g` outlives a request
that is made inside an application context.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from flask import Flask, Request, Response, current_app, has_request_context, request

from headgate.after import Headers
from headgate.after import Response as Answer
from headgate.clock import epoch_seconds
from headgate.ending import Ending
from headgate.errors import SettingsError
from headgate.flask.caller import FlaskCaller
from headgate.flask.refusal import refuse
from headgate.flask.sites import Sites
from headgate.gate import Bound, Gate
from headgate.http import denial_fields, merge, response_fields
from headgate.marks import Mark
from headgate.passage import Passage, count_together, warn_of_twice
from headgate.plan import Decision
from headgate.preflight import is_preflight
from headgate.settings import Settings
from headgate.wsgi import KEY, Attended

_NAME: Final = "headgate"
_ON_REQUEST: Final = "_headgate"


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
        self._options = options
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
        app.teardown_request(added.over)
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
            options[option] = app.config[name]
        return options


class Installation:
    """One RateLimiter on one application: its settings, and its gate."""

    def __init__(self, extension: RateLimiter, app: Flask, settings: Settings) -> None:
        self.extension = extension
        self.settings = settings
        self._app = app
        self.gate = Gate(settings)
        self._sites = Sites(self.gate, owns_marks=not app.extensions[_NAME])
        self._on_denied = None if settings.on_denied is None else app.ensure_sync(settings.on_denied)

    def close(self) -> None:
        """Close the connections that the settings made this limiter open; the end of the process does as much."""
        self.gate.close()

    def before(self) -> Response | None:
        """Decide about a request, before its view or its error page."""
        if not self.settings.enabled:
            return None
        self._sites.prepare(self._app)
        native = _native()
        site = self._sites.find(self._app, native.url_rule, native.method)
        passage = vars(native).setdefault(_ON_REQUEST, {})[self] = Passage(self.gate)
        passage.enforced.update(site.marks)
        return self._enforce(native, passage, site.bounds, ahead=True)

    def after(self, response: Response) -> Response:
        """Tell the client what was decided."""
        passage = _passages().get(self)
        if passage is None or passage.decision is None:
            return response
        if passage.ending is not None:
            self._attend(passage, response)
        decision = passage.decision
        epoch, status = epoch_seconds(), response.status_code
        told = response_fields if decision.allowed else denial_fields
        fields = told(decision, self.settings.headers, epoch=epoch, status=status)
        names = {name.lower() for name, _ in fields}
        existing = [field for field in response.headers if field[0].lower() in names]
        if existing:
            for name, value in merge(existing, fields):
                response.headers[name] = value
        else:
            for name, value in fields:
                response.headers.add(name, value)
        return response

    def _attend(self, passage: Passage, response: Response) -> None:
        """Give back what this response gives back, and have it release what is held when it is closed."""
        ending = cast("Ending", passage.ending)
        passage.regain(ending.answered(Answer(response.status_code, Headers(response.headers))))
        if ending.holds:
            response.call_on_close(ending.ended)
            response.direct_passthrough = False  # with it, werkzeug hands a file to the server and closes only that
            if response.is_streamed:
                response.response = Attended(cast("Iterable[bytes]", response.response), ending)

    def over(self, error: BaseException | None) -> None:
        """The request is over. Its response, if there is one that was not lost by an error, is still to be sent."""
        passage = _passages().get(self)
        ending = None if passage is None else cast("Ending | None", passage.ending)
        if ending is not None and (error is not None or not ending.answered_once):
            ending.over(error)

    def reach(self, mark: Mark, label: str) -> Response | None:
        """Enforce the mark of a view, unless it was: None to go on, or the response to give instead of calling it."""
        native = _native()
        passage = vars(native).setdefault(_ON_REQUEST, {}).setdefault(self, Passage(self.gate))
        if not self.settings.enabled or mark in passage.enforced:
            return None
        passage.enforced.add(mark)
        self._sites.prepare(self._app)
        return self._enforce(native, passage, self._sites.own(mark, label), ahead=False)

    def _enforce(self, native: Request, passage: Passage, bounds: tuple[Bound, ...], *, ahead: bool) -> Response | None:
        """None to go on, or the response to give; a refusal raises unless `on_denied` answers, or nobody handles it."""
        if not bounds and not self.gate.denies:
            return None
        caller = FlaskCaller(self._app, native, parses=self.settings.trusted_proxies is not None)
        if is_preflight(native.method, caller.header):
            bounds = ()
        decision = self.gate.decide(caller, bounds)
        warn_of_twice(native.environ.get(KEY), self.gate, decision)
        passage.note(decision)
        if decision is None or decision.allowed:
            return None
        whole = passage.decision if decision.results else decision  # under the names that the fields will have
        return refuse(self._app, native, whole or decision, on_denied=self._on_denied, ahead=ahead)


def decision() -> Decision | None:
    """What was decided about this request; None where no rule applied."""
    together = None
    for passage in _passages().values():
        if together is None:
            together = Passage(passage.gate)
        together.note(passage.decision)
    return None if together is None else together.decision


def first_on_app() -> Installation | None:
    """The limiter that enforces `@limit` for the request that is being served; None where there is none."""
    if not has_request_context():
        return None
    installed: list[Installation] = current_app.extensions.get(_NAME, [])
    return installed[0] if installed else None


def _passages() -> dict[Installation, Passage]:
    """What each limiter has done about this request."""
    return cast("dict[Installation, Passage]", vars(_native()).get(_ON_REQUEST, {}))


def _native() -> Request:
    """The request itself, not the proxy for it."""
    return cast(Any, request)._get_current_object()  # type: ignore[no-any-return]


def _check_apart(settings: Settings, other: Settings) -> None:
    """Refuse two limiters of one application that would count the same budgets twice."""
    if count_together(settings, other):
        problem = "another RateLimiter of this application counts under it in the same store"
        raise SettingsError("prefix", settings.prefix, problem=problem, expected="give each a prefix of its own")

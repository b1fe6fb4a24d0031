"""The Flask extension: the functions that it registers on an application, and their work for each request.

A `before_request` function decides, also if no route matches. An `after_request` function adds the fields to the
response, whatever made that response. A `before_request` function that was registered earlier may return a response
first. Then the `after_request` function decides, and replaces that response if it refuses.
The slot of a concurrency limit is released when the response is closed, or at the end of a request without a response.
The state of a request is kept on the request object. `flask.g` would outlive a request that is made inside an
application context. The extension has only weak references to the application: `del app` frees it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, NoReturn, Unpack, cast

from flask import Flask, Request, Response, current_app, has_app_context, has_request_context
from flask.signals import got_request_exception, request_tearing_down
from flask.views import View

from sluicegate.errors import NotEnforcedError, RuleError, SettingsError, SluicegateError, name_here, warn
from sluicegate.flask.request import FlaskRequestState, context
from sluicegate.flask.responses import (
    STATUSES,
    add_fields,
    ending,
    late_error,
    refusal_class,
    refuse,
    replace_response,
    statuses_with_handlers,
    with_error_handlers,
)
from sluicegate.flask.routes import AppRoutes
from sluicegate.observe.status import Status
from sluicegate.observe.usage import Budget
from sluicegate.plan import Decision, RateLimitExceeded
from sluicegate.rules.response import Headers
from sluicegate.rules.response import Response as Answer
from sluicegate.rules.rule import Rule
from sluicegate.web.bound import NO_BOUNDS, Bounds, EndpointRules
from sluicegate.web.charge import AnyQuota, Charge, Charged, ChargedRule, ChargeOptions, MarkCharge, unlimited
from sluicegate.web.endpoint import label_of
from sluicegate.web.gate import Gate
from sluicegate.web.http import Fields, denial, fields_for, is_preflight, merge
from sluicegate.web.marks import Arguments, Guard, Mark, Options
from sluicegate.web.request_state import RequestState, count_together, warn_of_twice
from sluicegate.web.settings import Settings, SettingsOptions, hide
from sluicegate.wsgi import KEY, SettlingBody, WsgiCaller

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue


_NAME: Final = "sluicegate"  # the key in `app.extensions`
_PREFIX: Final = "SLUICEGATE_"  # of options in `app.config`
_WHOLE: Final = "settings"  # the option that has all of them
_NOT_LIMITED: Final = (  # what to do then
    "call RateLimiter(app), or init_app(app); in another framework import it from there, as from sluicegate.fastapi"
)
_FLASK_LIMITER: Final = "RATELIMIT_"  # the prefix of the options of Flask-Limiter, which limit nothing here
_MEMBERS: Final = {  # of Flask-Limiter's class → what to use here
    "request_filter": "the setting allow, with the function",
    "enabled": "the setting enabled; in tests the fixture limits_off",
    "reset": "reset_all(identity); in tests the fixture fresh_limits",
    "check": "charge(request, quota) of sluicegate.flask",
    **dict.fromkeys(("current_limit", "current_limits", "context"), "decision() of sluicegate.flask"),
}
_ON_REQUEST: Final = "_sluicegate_{}"  # attribute of a request: its state under the limiter with this number
_FIRST: Final = _ON_REQUEST.format(0)


class RateLimiter:
    """The extension: `RateLimiter(app, …)`, or `RateLimiter(…)` and then `init_app(app)` for each application.

    Options are those of `sluicegate.Settings`, as keywords or as `app.config["SLUICEGATE_STORE"]` and so on. Give each
    option in one of the two. Or give all of them as `settings=Settings(…)` or `app.config["SLUICEGATE"] = Settings(…)`.
    `init_app` reads them and does no I/O; a wrong option raises there.
    `on_denied(request, decision)` returns what a view may return, or None for the usual response.

    One application may have several limiters. Each enforces its own default limits and rules; the first one enforces
    `@limit` as well. Give each its own `config_prefix`; with None nothing is read from `app.config`.
    """

    __slots__ = ("__weakref__", "_options", "_prefix")  # so `limiter.enabled = False` is an error

    def __init__(
        self,
        app: Flask | None = None,
        *,
        config_prefix: str | None = _PREFIX,
        settings: Settings | None = None,
        **options: Unpack[SettingsOptions],
    ) -> None:
        self._prefix = config_prefix
        options = hide(options)
        self._options = options if settings is None else {**options, _WHOLE: settings}
        if app is not None:
            self.init_app(app)

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __new__(cls, *given: object, **options: object) -> RateLimiter:
            """Say what to give for `RateLimiter(key_func, app=app)`, as Flask-Limiter's class is called."""
            if given and "app" in options:
                raise _no_application(given[0])
            return super().__new__(cls)

        def __getattr__(self, name: str) -> NoReturn:
            """Say what there is here for a member of Flask-Limiter's class."""
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in ("limit", "shared_limit", "exempt"):
                name = name.removeprefix("shared_")
                text = f"{text}; write from sluicegate.flask import {name}, and @{name} without the limiter before it"
            elif name in _MEMBERS:
                text = f"{text}; use {_MEMBERS[name]}"
            raise AttributeError(text)

    def init_app(self, app: Flask) -> None:
        """Limit the requests of a Flask application. This adds an Installation to the list
        `app.extensions["sluicegate"]`, where you can read its settings and close it.
        """
        if not isinstance(app, Flask):
            raise _no_application(app)
        installed: list[Installation] = app.extensions.setdefault(_NAME, [])
        if any(other.extension is self for other in installed):
            problem = "this RateLimiter limits it already"
            raise SettingsError("application", app.name, problem=problem, expected="call init_app once")
        settings = self._read(app)
        if "flask_limiter" not in sys.modules and self._prefix not in (None, _FLASK_LIMITER):
            _warn_of_leftovers(app, self._prefix, strict=settings.strict)
        for other in installed:
            _check_together(settings, other.settings)
        added = Installation(self, app, settings)
        app.before_request(added.before)
        # Flask calls the first one last: it sees the response that is sent.
        app.after_request_funcs.setdefault(None, []).insert(len(installed), added.after)
        app.error_handler_spec[None][None].setdefault(RateLimitExceeded, added.answer_raised)
        got_request_exception.connect(added.note_error, app)
        installed.append(added)
        if added is not installed[0]:
            installed[0].later.insert(0, added)

    def reset_all(self, identity: object) -> int:
        """Forget every budget, slot and ban of an identity under this limiter. Return how many budgets were forgotten.

        The identity is as its key gives it. Outside a request and a command of Flask, write `with app.app_context():`.

            limiter.reset_all(("user", "alice"))
            limiter.reset_all(("ip", "203.0.113.7"))
        """
        return self._installation("reset_all").gate.reset_all(identity)

    def usage(self, identity: object = None) -> tuple[Budget, ...]:
        """Return what the client of this request has used under every rule that counts for him. Charges nothing.

        Of an `identity`, as its key gives it, return what it has used under every rule whose quota is written and whose
        key may give it: of tiers the budget of each tier.

            limiter.usage(("user", "alice"))
        """
        here = self._installation("usage")
        if identity is None:
            return here.gate.usage(here.state(context().request))
        here.endpoint_rules()  # binds the rules of all views: this process may have had no request
        return here.gate.usage_of(identity)

    def status(self) -> Status:
        """Return the status of the limiter, its store and its circuits. Charges nothing.

        Outside a request and a command of Flask, write `with app.app_context():`.
        """
        return self._installation("status").gate.limiter.status()

    def _installation(self, asked: str) -> Installation:
        """Return this limiter's installation on the current application. `asked` is the method that needs it."""
        installed: list[Installation] = current_app.extensions.get(_NAME, []) if has_app_context() else []
        for each in installed:
            if each.extension is self:
                return each
        problem = "called outside an application context, or in an application that this RateLimiter does not limit"
        raise NotEnforcedError(asked, type(self), problem=problem, expected="write with app.app_context():")

    def _read(self, app: Flask) -> Settings:
        """Return the settings for an application, from the options of the constructor and of `app.config`."""
        options: dict[str, object] = dict(self._options)
        for name, option in self._names(app).items():
            if option in options:
                problem = f"given as {option}= and as app.config[{name!r}]"  # the values may hold a password
                raise SettingsError("setting", option, problem=problem, expected="keep one of the two")
            options |= hide({option: app.config[name]})
        settings = Settings.given(options.pop(_WHOLE, None), options, source="RateLimiter")
        unnamed = settings.on_decision is not None and not settings.application
        return replace(settings, application=app.name) if unnamed else settings

    def _names(self, app: Flask) -> dict[str, str]:
        """Return the names in `app.config` that belong to this limiter, each with its option."""
        prefix = self._prefix
        if prefix is None:
            return {}
        if not isinstance(prefix, str) or not prefix.isupper():
            problem, expected = "Flask's configuration has names in capitals", f'use capitals, as "{_PREFIX}"'
            raise SettingsError("config_prefix", prefix, problem=problem, expected=expected)
        names = {name: name.removeprefix(prefix).lower() for name in app.config if name.startswith(prefix)}
        name = prefix.removesuffix("_")
        whole = app.config.get(name)
        if whole is None or (prefix != _PREFIX and not isinstance(whole, Settings)):  # something of the application's
            return names
        if not isinstance(whole, Settings):  # the value may hold a password
            problem = f"a {type(whole).__name__} is not read"
            expected = f'give Settings(…), or write app.config["{_PREFIX}STORE"] and so on'
            raise SettingsError("app.config", name, problem=problem, expected=expected)
        return {**names, name: _WHOLE}


def _warn_of_leftovers(app: Flask, prefix: str | None, *, strict: bool) -> None:
    """Warn about the options of Flask-Limiter in the configuration: they limited something before."""
    for name in app.config:
        if name.startswith(_FLASK_LIMITER) and (found := name_here(name)) is not None:
            option, use = found
            of_rule = option not in SettingsOptions.__annotations__
            place = f'app.config["{prefix}{"RULES" if of_rule else option.upper()}"]'
            place = f"a Rule in {place}, or @limit" if of_rule else place
            use = f"it is {option}: {use}; give it in {place}" if option else f"there is none: {use}"
            warn("SG111", name, strict=strict, use=use)


class Installation:
    """One RateLimiter on one application, with its settings and its gate."""

    def __init__(self, extension: RateLimiter, app: Flask, settings: Settings) -> None:
        self.extension = extension
        self.settings = settings
        # Returns the application. It still exists: only the application calls the functions registered on it.
        self._app = cast("Callable[[], Flask]", weakref.ref(app))
        self.gate = Gate(settings, awaits_answers=True)
        number = len(app.extensions[_NAME])
        self._on_request = _ON_REQUEST.format(number)
        self._is_first = not number
        self.later: list[Installation] = []  # of the first limiter: the others, the last one first
        self._routes = AppRoutes(self._app, self.gate, owns_marks=self._is_first)
        if self.gate.limiter.events is not None:
            self._await_end()

    @cached_property
    def _classes(self) -> dict[int, type[Response]]:
        """The classes of our responses, by status. A status that the application may handle itself is missing: then an
        error is raised. Read once: Flask takes no handlers after it serves.
        """
        app = self._app()
        own, handled = refusal_class(app), statuses_with_handlers(app)
        return {} if own is None else {status: own for status in STATUSES if status not in handled}

    def close(self) -> None:
        """Close the connections that this limiter opened from its settings. The end of the process closes them too."""
        self.gate.close()

    def endpoint_rules(self) -> list[EndpointRules]:
        """Return the rules of all routes. Raises for rules that cannot work."""
        return self._routes.endpoint_rules()

    def before(self) -> Response | None:
        """Decide about a request, before its view or its error page."""
        if not self.settings.enabled:
            return None
        here = context()
        native = here.request
        state: FlaskRequestState | None = vars(native).get(self._on_request)
        if state is None or state.is_routed:
            if state is not None:  # a test may dispatch a request twice in one context
                state.closed()
            state = vars(native)[self._on_request] = FlaskRequestState(self.gate, here)
        # A preflight that no view handles is asked for the `deny` list alone: by its response `after` decides the rest.
        waits = native.method == "OPTIONS" and not _reaches_a_view(native) and _is_preflight(native)
        decision = self._decide(native, state, NO_BOUNDS if waits else None)
        return None if decision is None or decision.allowed else self._refuse(native, state, decision)

    def after(self, response: Response) -> Response:
        """Settle by the response. The first limiter, whose function Flask calls last, adds the fields of all."""
        native = context().request
        state: FlaskRequestState | None = vars(native).get(self._on_request)
        if state is None or not state.is_routed:
            response = self._decide_late(native, response)
            state = self.state(native)
        state.is_answered = True
        if state.settlement is not None:
            # Before the fields: they show what a refund has left.
            state.answered(Answer(response.status_code, Headers(response.headers)))
        if self._is_first:
            fields: Fields = []
            for limiter in self.later:
                fields = merge(fields, limiter.fields(vars(native).get(limiter._on_request), response.status_code))
            own = self.fields(state, response.status_code)
            add_fields(response, merge(fields, own) if fields else own)
        if state.settlement is None and self.gate.limiter.events is None:
            return response
        return _ending(response, state)

    def _decide_late(self, native: Request, response: Response) -> Response:
        """Decide about a request that was answered before `before` decided. Return that answer, or the refusal.

        All limiters that have not decided yet decide in their order. After a refusal the later ones do not charge.
        """
        app = self._app()
        for limiter in app.extensions[_NAME]:
            if all([state.denied is None for state in _states(native)]):
                refused = with_error_handlers(app, partial(limiter.decide_late, native, response.status_code))
                response = response if refused is None else replace_response(refused, response)
        return response

    def decide_late(self, native: Request, status: int) -> Response | None:
        """Return the refusal of a request that was answered with this status; None if this limiter allows it."""
        state = self.state(native)
        if state.is_routed or not self.settings.enabled:
            return None
        state.is_routed = True
        decision = self._decide(native, state, NO_BOUNDS if _is_free(native, status) else None)
        return None if decision is None or decision.allowed else self._refuse(native, state, decision)

    def note_error(self, app: Flask, exception: Exception) -> None:
        """Note an error without a handler. If `after` is not called for its response, `end_request` charges it."""
        self.state(context().request)
        self._await_end()

    def end_request(self, app: Flask, exc: BaseException | None) -> None:
        """End the request, with its own context. Its response, unless an error has lost it, is still to be sent."""
        here = context()
        state: FlaskRequestState | None = vars(here.request).get(self._on_request)
        if state is None or state.context != id(here):
            return
        state.is_answered = True  # also without a response: a copy of the context takes no slot any more
        if exc is not None and not state.is_routed and self.settings.enabled:
            self._decide(here.request, state, None)
        if exc is not None or not state.is_closed_later:  # after an error Flask may send another response
            state.over(exc)
            state.closed()

    def answer_raised(self, error: RateLimitExceeded) -> ResponseReturnValue:
        """Handle a RateLimitExceeded that a view raised, as our own refusals. The application's handlers come first."""
        app, native = self._app(), context().request
        own = app.error_handler_spec[None][None].get(SluicegateError)
        if own is not None:
            answer: ResponseReturnValue = app.ensure_sync(own)(error)
            return answer
        state = self.state(native)
        ours = error.decision is state.denied
        decision = state.refuse(error.decision)
        if decision.forbidden:  # the fields of the rules would not explain it
            state.decision = decision
        return with_error_handlers(app, lambda: self._refuse(native, state, decision, again=ours))

    def enforce_mark(self, mark: Mark, label: str) -> None:
        """Enforce the mark of a view unless it was enforced. Raises RateLimited if it refuses."""
        native = context().request
        state = self.state(native)
        if self.settings.enabled and mark not in state.enforced:
            charge = MarkCharge(self._routes.own(mark, label=label), state, label, marks=(mark,))
            try:
                self._run(charge, state)
            except RateLimitExceeded as error:
                found, accept = state.refuse(error.decision), native.environ.get("HTTP_ACCEPT", "")
                raise late_error(found, denial(found, self.settings.headers, accept=accept)) from None

    def charge(self, rule: ChargedRule) -> Charged:
        """Charge a rule of the view's own. Raises RateLimitExceeded if it refuses."""
        if not self.settings.enabled:
            return unlimited()
        native = context().request
        state = self.state(native)
        return self._run(rule.charge(state, self._routes.endpoint(native.url_rule)), state)

    def _run(self, charge: Charge, state: FlaskRequestState) -> Charged:
        charged = charge.run(state)
        if state.settlement is not None:
            self._await_end()
        return charged

    def state(self, native: Request) -> FlaskRequestState:
        """Return the state of this request, made now if there is none."""
        state: FlaskRequestState | None = vars(native).get(self._on_request)
        if state is None:
            state = vars(native)[self._on_request] = FlaskRequestState(self.gate, context())
        return state

    def fields(self, state: FlaskRequestState | None, status: int) -> Fields:
        """Return the fields of this limiter for a response with this status."""
        if state is None or state.decision is None:
            return []
        if state.decision is state.denied and status == state.denial.status:
            return [*state.denial.fields]
        return fields_for(state.decision, self.settings.headers, status=status)

    def _decide(self, native: Request, state: FlaskRequestState, bounds: Bounds | None) -> Decision | None:
        """Charge these rules; None for those of the route that the request has matched."""
        if bounds is None:
            state.is_routed = True
            bounds, marks = self._routes.find(native.url_rule, native.method)
            state.enforced |= marks
        gate = self.gate
        decision = gate.decide(state, bounds)
        if (outer := state.environ.get(KEY)) is not None:
            warn_of_twice(outer, gate, decision)
        if gate.may_owe or state.decision is not None:
            state.note(decision)
            if state.settlement is not None:
                self._await_end()
        else:  # for most requests, without a call
            state.decision = decision
        return decision

    def _await_end(self) -> None:
        """Let Flask call `end_request` for a request whose end matters. Connecting twice is harmless."""
        request_tearing_down.connect(self.end_request, self._app())

    def _refuse(
        self,
        native: Request,
        state: FlaskRequestState,
        decision: Decision,
        *,
        again: bool = False,
    ) -> Response:
        """Return the response to a refused request. Raises if `on_denied` does not answer and a handler may.

        `again` is True if this decision was refused before: then `on_denied` has been asked.
        """
        on_denied = None if again else self.settings.answer_to(decision)
        if decision.outcomes and state.decision is not None:
            decision = state.decision  # with the names that the fields have
        state.denied = decision
        accept = native.environ.get("HTTP_ACCEPT", "")
        found = state.denial = denial(decision, self.settings.headers, accept=accept)
        own = self._classes.get(found.status)
        return refuse(self._app(), native, decision, answer=found, on_denied=on_denied, own=own)


class ViewGuard(Guard):
    """The guard around each view with `@limit`.

    Async views use a sync store too: each of their event loops lives for one request.
    """

    def sync(self, mark: Mark, view: Callable[..., object], args: Arguments, kwargs: Options) -> None:
        """Enforce the mark unless it was enforced. Raises RateLimited if it refuses."""
        state = vars(context().request).get(_FIRST) if has_request_context() else None
        if state is not None and mark in state.enforced:  # nearly always
            return
        # The label of the view. For `dispatch_request`, which a class may have inherited, that of the class.
        of_class = args and isinstance(args[0], View) and getattr(view, "__name__", "") == "dispatch_request"
        label = label_of(type(args[0]) if of_class else view)
        _first_limiter("@limit", label).enforce_mark(mark, label)


def decision() -> Decision | None:
    """Return the decision about this request, of all limiters together; None if no rule applied."""
    together = None
    for state in _states(context().request):
        if together is None:
            together = RequestState(state.gate)
        together.note(state.decision)
    return None if together is None else together.decision


def charge(request: Request, /, quota: AnyQuota, **options: Unpack[ChargeOptions]) -> Charged:
    """Charge Flask's `request` under a rule of the view's own. Return the decision; raise RateLimitExceeded if it
    refuses.

    The limiter answers the exception with its usual refusal. What the request was charged before is given back then,
    unless `refund_earlier=False`. A rule that the request was charged for already is not charged again. The other
    options are those of `@limit`. Each view has a budget of its own for each quota, unless `scope` shares it.

        charge(request, "3/day", key=email_of)
        with charge(request, "2 at once"): ...  # until the block ends; without a block until the response ends
    """
    rule = ChargedRule.of("charge", quota, **options)
    limiter = _first_limiter("charge", rule.mark.rule.quota)
    if not isinstance(request, Request):
        raise RuleError("charge", type(request), problem="not a request", expected="give flask.request first")
    return limiter.charge(rule)


def settle(request: Request, /, used: int, *, unit: str | None = None) -> None:
    """Note how many units Flask's `request` has cost so far, for its rules with an `estimate`: those of this `unit`, or
    all.

    Call it as often as you count: the last number counts, in place of `cost_after`, when the response has ended. It
    does no I/O. In a generator, Flask needs `stream_with_context` for its `request`.
    """
    for state in _states(request):
        state.settle(used, unit)


def _first_limiter(what: str, given: object) -> Installation:
    """Return the limiter that enforces `@limit` for the current request."""
    installed: list[Installation] = current_app.extensions.get(_NAME, []) if has_request_context() else []
    if not installed:
        problem = "called outside a request, or in an application that no RateLimiter limits"
        raise NotEnforcedError(what, given, problem=problem, expected=_NOT_LIMITED)
    return installed[0]


def _states(native: Request) -> list[FlaskRequestState]:
    """Return the states of this request, one for each limiter that has seen it."""
    facts = list(vars(native).values())  # in one step: another thread that has the request may read its form
    return [each for each in facts if type(each) is FlaskRequestState]


def _ending(response: Response, state: FlaskRequestState) -> Response:
    """Return a response that ends its request when it is closed: it releases the slots, and delivers the events."""
    response = ending(response, state.closed)  # also if it holds nothing yet: the stream may take a slot
    if state.settlement is not None and state.settlement.holds:
        response.direct_passthrough = False  # with it, werkzeug gives a file to the server and closes only the file
        if response.is_streamed and state.environ["REQUEST_METHOD"] != "HEAD":
            response.response = SettlingBody(cast("Iterable[bytes]", response.response), state)
        else:
            for part in response.get_app_iter(state.environ):  # what werkzeug sends: nothing for a HEAD
                state.going_on(part)
            state.completed()
    state.is_closed_later = not response.direct_passthrough
    return response


def _reaches_a_view(native: Request) -> bool:
    """True if a view runs on this OPTIONS: neither Flask's automatic response nor an error of the router."""
    rule = native.url_rule
    return rule is not None and not getattr(rule, "provide_automatic_options", False)


def _is_preflight(native: Request) -> bool:
    return is_preflight(native.method, WsgiCaller(native.environ).header)


def _is_free(native: Request, status: int) -> bool:
    """True if this is a preflight whose response is not from a view: a CORS layer sent it (2xx), or the router.

    All other preflights are charged. Otherwise a client could try any number of API keys, with requests that look like
    preflights, against a function that responds with 401 or redirects to a login.
    """
    routed = native.routing_exception
    return (200 <= status < 300 or (routed is not None and routed.code == status)) and _is_preflight(native)


def _check_together(settings: Settings, other: Settings) -> None:
    """Raise SettingsError for two limiters of one application that would count the same budgets twice. Warn (SG105) if
    they have equal rules in two stores.
    """
    if count_together(settings, other):
        problem = "another RateLimiter of this application counts under it in the same store"
        raise SettingsError("prefix", settings.prefix, problem=problem, expected="give each a prefix of its own")
    if (settings.prefix, settings.key) == (other.prefix, other.key):
        same = [rule.name for rule in settings.rules if isinstance(rule, Rule) and rule in list(other.rules)]
        defaults = settings.default_limits and settings.default_limits == other.default_limits
        for name in ["default", *same] if defaults else same:
            warn("SG105", name, strict=settings.strict)


def _no_application(given: object) -> SettingsError:
    problem = "not an application of Flask"
    expected = 'give a Flask application, and options by name, such as key="ip"'
    return SettingsError("RateLimiter", given, problem=problem, expected=expected)

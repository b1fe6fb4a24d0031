"""Enforcement and its Django responses, sync and async; the signal that is sent for each refused request.

`enforce` and `enforce_async` decide, send the signal, and return the response to a refused request, else None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.dispatch import Signal
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase, ResponseHeaders
from django.template.response import SimpleTemplateResponse

from sluicegate.django.lifecycle import release_at_close
from sluicegate.django.request import OUTER, DjangoRequestState, outer_of
from sluicegate.errors import SettingsError
from sluicegate.plan import Decision
from sluicegate.runtime.awaiting import async_mismatch, close_unawaited, waits
from sluicegate.web.bound import Bounds
from sluicegate.web.gate import AsyncGate, Gate, Undecided
from sluicegate.web.http import NAMES, Field, denial, fields_for, merge
from sluicegate.web.request_state import warn_of_twice

rate_limited: Final = Signal()
"""Sent when a request is refused. Arguments: `request`, `decision`; the sender is the request's class.

Receivers may be async. Django logs what a receiver raises, and neither that nor what it returns changes the response.
"""

_NONE: Final = ResponseHeaders({})
_DECISION: Final = "_sluicegate"  # attribute of a refusal made here: the decision whose RateLimit fields it has

Response = TypeVar("Response", bound=HttpResponseBase)


def enforce(request: HttpRequest, state: DjangoRequestState, bounds: Bounds) -> HttpResponseBase | None:
    """Charge these rules, and return the refusal if one of them refuses."""
    gate: Gate = state.gate  # type: ignore[assignment]  # of the middleware that calls this
    try:
        decision = gate.decide(state, bounds)
    except Undecided as error:
        decision = error.decision
    if decision is None:
        return None
    _note(request, state, decision)
    return None if decision.allowed else refuse(request, state, decision)


async def enforce_async(request: HttpRequest, state: DjangoRequestState, bounds: Bounds) -> HttpResponseBase | None:
    """Charge these rules, and return the refusal if one of them refuses."""
    gate: AsyncGate = state.gate  # type: ignore[assignment]
    try:
        decision = await gate.decide(state, bounds)
    except Undecided as error:
        decision = error.decision
    if decision is None:
        return None
    _note(request, state, decision)
    return None if decision.allowed else await refuse_async(request, state, decision)


def _note(request: HttpRequest, state: DjangoRequestState, decision: Decision) -> None:
    """Note the first decision about a request."""
    if OUTER in state.meta or "scope" in vars(request):  # nearly never under WSGI: most requests make no call here
        warn_of_twice(outer_of(request), state.gate, decision)
    if state.gate.may_owe or state.decision is not None:
        state.note(decision)
        release_at_close(state)
    else:  # for most requests, without a call
        state.decision = decision


def refuse(request: HttpRequest, state: DjangoRequestState, decision: Decision) -> HttpResponseBase:
    """Send the signal, and return the response to a refused request."""
    if isinstance(state.gate, AsyncGate):  # RateLimitExceeded: Django calls `process_exception` in a thread
        return async_to_sync(refuse_async)(request, state, decision)
    if rate_limited.receivers:
        rate_limited.send_robust(type(request), request=request, decision=decision)
    on_denied = state.gate.settings.answer_to(decision)
    own: object = None if on_denied is None else on_denied(request, decision)
    return _refusal(request, state, decision, own=_rendered(own))


async def refuse_async(request: HttpRequest, state: DjangoRequestState, decision: Decision) -> HttpResponseBase:
    """Send the signal, and return the response to a refused request."""
    if rate_limited.receivers:
        await rate_limited.asend_robust(type(request), request=request, decision=decision)
    on_denied = state.gate.settings.answer_to(decision)
    own: object = None if on_denied is None else on_denied(request, decision)
    own = await own if waits(own) else own
    own = await sync_to_async(_rendered)(own) if isinstance(own, SimpleTemplateResponse) else own
    return _refusal(request, state, decision, own=own)


def add_fields(response: Response, state: DjangoRequestState) -> Response:
    """Add the fields of the decision to the response. Its body is not changed."""
    state.open = False
    decision = state.decision
    if decision is None or decision is vars(response).get(_DECISION):
        return response
    fields = fields_for(decision, state.gate.settings.headers, status=response.status_code)
    if fields:
        response.headers = _headers_with(fields, response.headers)
    return response


class _Headers(ResponseHeaders):
    """Headers with the fields of a decision. If the response comes again, its next fields replace these.

    A cache pickles responses: the pickle leaves the RateLimit fields out, because they are one client's.
    """

    def __reduce__(self) -> tuple[type[ResponseHeaders], tuple[dict[str, str]]]:
        return ResponseHeaders, ({name: value for name, value in self.items() if "ratelimit" not in name.lower()},)


# Whether Django keeps its fields in this dictionary, so that they can be written there. Else its own method is used.
_KEEPS_A_STORE: Final = vars(ResponseHeaders({"A": "b"})) == {"_store": {"a": ("A", "b")}}


def _headers_with(fields: Iterable[Field], headers: ResponseHeaders) -> _Headers:
    """Return new headers with these fields too: another thread may be sending the old ones. Fields that the application
    has set are joined with ours.

    Django's own method makes nine calls for each field, to look for characters that a header cannot have. The fields of
    this library have none. Written into Django's dictionary, they take 1.4 µs instead of 4.1, a tenth of what the
    limiter adds to a request.
    """
    made = _Headers({})
    store = {**vars(headers)["_store"]} if _KEEPS_A_STORE else {name.lower(): (name, headers[name]) for name in headers}
    if type(headers) is not _Headers and not NAMES.isdisjoint(store):  # rarely
        fields = merge([field for name, field in store.items() if name in NAMES], fields)
    for field in fields:
        store[field[0].lower()] = field
    if _KEEPS_A_STORE:
        vars(made)["_store"] = store
    else:
        for name, value in store.values():
            made[name] = value
    return made


def replace_response(answer: HttpResponseBase, response: HttpResponseBase) -> HttpResponseBase:
    """Return the refusal instead of a response. The refusal closes the resources of that response."""
    # Not response.close(): that would also send Django's request_finished signal, a second time.
    vars(answer)["_resource_closers"].extend(vars(response)["_resource_closers"])
    return answer


def _refusal(request: HttpRequest, state: DjangoRequestState, decision: Decision, *, own: object) -> HttpResponseBase:
    """Return the response to a refused request. If the decision is the whole request's, it has the RateLimit fields.

    Else `add_fields` adds them later, as to a response of `on_denied`.
    """
    if own is None:
        dialect = state.gate.settings.headers if decision is state.decision else None
        answer = denial(decision, dialect, accept=request.META.get("HTTP_ACCEPT", ""))
        # Empty for HEAD, because gunicorn would send the body. Then GZipMiddleware leaves out the fields that it makes
        # from the body, which RFC 9110 §9.3.2 allows.
        body = b"" if request.method == "HEAD" else answer.body
        own = HttpResponse(body, status=answer.status, content_type=answer.content_type)
        own.headers = _headers_with(answer.all_fields, _NONE)
        if dialect is not None:
            setattr(own, _DECISION, decision)
    elif not isinstance(own, HttpResponseBase):
        if waits(own):
            close_unawaited(own)
            raise async_mismatch("on_denied", state.gate.settings.answer_to(decision))
        expected = "return one of Django's responses, or None for the usual answer"
        raise SettingsError("on_denied", type(own), problem="what it returned is no response", expected=expected)
    vars(own)["_has_been_logged"] = True  # Django then logs nothing: refusals must not fill the log
    return own


def _rendered(response: object) -> object:
    """Render a TemplateResponse: Django renders only those that a view returns."""
    return response.render() if isinstance(response, SimpleTemplateResponse) else response

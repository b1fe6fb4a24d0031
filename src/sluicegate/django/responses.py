"""Enforcement and its Django responses, sync and async.

`enforce` and `enforce_async` decide, send the signal, and return the response to a refused request, else None.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator
from inspect import isawaitable
from typing import Any, Final, TypeVar, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase, ResponseHeaders

from sluicegate.django.lifecycle import release_at_close
from sluicegate.django.request import OUTER, DjangoRequestState, outer_of
from sluicegate.django.signals import rate_limited
from sluicegate.errors import SettingsError
from sluicegate.plan import Decision
from sluicegate.runtime.awaiting import async_mismatch, close_unawaited, waits
from sluicegate.web.bound import Bounds
from sluicegate.web.gate import AsyncGate, Gate, Undecided
from sluicegate.web.http import Field, denial, fields_for, merge
from sluicegate.web.request_state import warn_of_twice

_DECISION: Final = "_sluicegate"  # attribute of a refusal made here: the decision whose RateLimit fields it has

Response = TypeVar("Response", bound=HttpResponseBase)


def enforce(request: HttpRequest, state: DjangoRequestState, bounds: Bounds) -> HttpResponseBase | None:
    """Charge these rules, and return the refusal if one of them refuses."""
    gate = state.gate
    if isinstance(gate, AsyncGate):  # a sync view under ASGI: the gate's connections belong to the server's loop
        return async_to_sync(enforce_async)(request, state, bounds)
    try:
        decision = gate.decide(state.charging(request, bounds), bounds)
    except Undecided as error:
        decision = error.decision
    refusal = _noted(request, state, decision)
    return None if refusal is None else refuse(request, state, refusal)


async def enforce_async(request: HttpRequest, state: DjangoRequestState, bounds: Bounds) -> HttpResponseBase | None:
    """Charge these rules, and return the refusal if one of them refuses."""
    gate = state.gate
    if isinstance(gate, Gate):  # an async view under WSGI: its loop ends with this call, and reading the user blocks
        return await sync_to_async(enforce)(request, state, bounds)
    try:
        decision = await gate.decide(state.charging(request, bounds), bounds)
    except Undecided as error:
        decision = error.decision
    refusal = _noted(request, state, decision)
    return None if refusal is None else await refuse_async(request, state, refusal)


def _noted(request: HttpRequest, state: DjangoRequestState, decision: Decision | None) -> Decision | None:
    """Note the decision on the request, and return it if it refuses."""
    if OUTER in state.meta or "scope" in vars(request):  # nearly never under WSGI: most requests make no call here
        warn_of_twice(outer_of(request), state.gate, decision)
    state.note(decision)
    if state.settlement is not None:
        release_at_close(state)
    return None if decision is None or decision.allowed else decision


def refuse(request: HttpRequest, state: DjangoRequestState, decision: Decision) -> HttpResponseBase:
    """Send the signal, and return the response to a refused request."""
    gate = state.gate
    if isinstance(gate, AsyncGate):
        return async_to_sync(refuse_async)(request, state, decision)
    if rate_limited.receivers:
        rate_limited.send_robust(type(request), request=request, decision=decision)
    own = gate.settings.answer_to(decision)
    response: Any = None if own is None else own(request, decision)
    return _refusal(request, state, decision, own=response.render() if _is_unrendered(response) else response)


async def refuse_async(request: HttpRequest, state: DjangoRequestState, decision: Decision) -> HttpResponseBase:
    """Send the signal, and return the response to a refused request."""
    gate = state.gate
    if isinstance(gate, Gate):
        return await sync_to_async(refuse)(request, state, decision)
    if rate_limited.receivers:
        await rate_limited.asend_robust(type(request), request=request, decision=decision)
    own = gate.settings.answer_to(decision)
    response: Any = None if own is None else own(request, decision)
    response = await response if isawaitable(response) else response
    response = await sync_to_async(response.render)() if _is_unrendered(response) else response
    return _refusal(request, state, decision, own=response)


def add_fields(response: Response, state: DjangoRequestState) -> Response:
    """Add the fields of the decision to the response. Its body is not changed."""
    state.open = False
    decision, dialect = state.decision, state.gate.settings.headers
    if decision is not None and decision is not vars(response).get(_DECISION):
        fields = fields_for(decision, dialect, status=response.status_code)
        if fields:
            headers = response.headers
            if type(headers) is not _Headers:  # fields that the application has set are joined with ours
                fields = merge([(name, headers[name]) for name, _ in fields if name in headers], fields)
            response.headers = _headers_with(fields, headers)
    return response


_KEEPS_A_STORE: Final = vars(ResponseHeaders({"A": "b"})) == {"_store": {"a": ("A", "b")}}


class _Items(ItemsView[str, str]):
    """The names and values of headers, without the look-up of each value that Django's view makes."""

    def __iter__(self) -> Iterator[Field]:
        headers: Any = cast("Any", self)._mapping
        return iter(headers._store.values())


class _Headers(ResponseHeaders):
    """Headers with the fields of a decision. If the response comes again, its next fields replace these.

    A server reads the headers of every response; here that takes a fifth of the time. A cache pickles responses: the
    pickle leaves the RateLimit fields out, because they are one client's.
    """

    def items(self) -> ItemsView[str, str]:
        return _Items(self) if _KEEPS_A_STORE else super().items()

    def __reduce__(self) -> tuple[Any, ...]:
        return ResponseHeaders, ({name: value for name, value in self.items() if "ratelimit" not in name.lower()},)


def _headers_with(fields: Iterable[Field], headers: ResponseHeaders | None = None) -> _Headers:
    """Return new headers with these fields too: another thread may be sending the old ones.

    Django's own method makes nine calls for each field, to look for characters that a header cannot have. The fields of
    this library have none.
    """
    made = _Headers({})
    if not _KEEPS_A_STORE:
        for name, value in (*({} if headers is None else headers).items(), *fields):
            made[name] = value
        return made
    store: dict[str, Field] = {} if headers is None else {**headers._store}
    for field in fields:
        store[field[0].lower()] = field
    made._store = store
    return made


def replace_response(answer: HttpResponseBase, response: HttpResponseBase) -> HttpResponseBase:
    """Return the refusal instead of a response. The refusal closes the resources of that response."""
    # Not response.close(): that would also send Django's request_finished signal, a second time.
    refusal: Any = answer
    refusal._resource_closers.extend(cast("Any", response)._resource_closers)
    return answer


def _refusal(
    request: HttpRequest, state: DjangoRequestState, decision: Decision, *, own: HttpResponseBase | None
) -> HttpResponseBase:
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
        own.headers = _headers_with(answer.all_fields)
        if dialect is not None:
            setattr(own, _DECISION, decision)
    elif not isinstance(own, HttpResponseBase):
        if waits(own):
            close_unawaited(own)
            raise async_mismatch("on_denied", state.gate.settings.answer_to(decision))
        expected = "return one of Django's responses, or None for the usual answer"
        raise SettingsError("on_denied", type(own), problem="what it returned is no response", expected=expected)
    own._has_been_logged = True  # type: ignore[attr-defined]  # Django then logs nothing: refusals must not fill the log
    return own


def _is_unrendered(response: Any) -> bool:
    """True if this is an unrendered TemplateResponse: Django renders only those that a view returns."""
    return getattr(response, "is_rendered", True) is False

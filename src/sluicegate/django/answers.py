"""From decisions to Django's responses, and the two drivers that ask the gate: one for each colour.

`enforce` and `enforce_later` decide, tell the listeners, and return the answer to a refused request, or None to go on.
This module calls no view.
"""

from __future__ import annotations

from collections.abc import Collection
from inspect import isawaitable
from typing import Any, Final, TypeVar, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase, ResponseHeaders

from sluicegate.awaiting import called_at_once, give_up, waits
from sluicegate.clock import epoch_seconds
from sluicegate.django.endings import end_with
from sluicegate.django.signals import rate_limited
from sluicegate.django.users import UserUnknownError
from sluicegate.django.visit import AsyncDjangoCaller, DjangoCaller, Visit, outer_of
from sluicegate.errors import RateLimitExceeded, SettingsError
from sluicegate.gate import AsyncGate, Bound, Gate
from sluicegate.http import Denial, Fields, denial, denial_fields, merge, response_fields
from sluicegate.passage import warn_of_twice
from sluicegate.plan import Decision

_TELLS: Final = "_sluicegate"  # on our own answer: the decision whose RateLimit fields it has

Response = TypeVar("Response", bound=HttpResponseBase)


def enforce(request: HttpRequest, visit: Visit, bounds: Collection[Bound]) -> HttpResponseBase | None:
    """Charge these rules, and answer the request if one of them refuses."""
    gate = visit.gate
    if isinstance(gate, AsyncGate):  # a sync view under ASGI: the gate's connections belong to the server's loop
        return async_to_sync(enforce_later)(request, visit, bounds)
    try:
        decision = gate.decide(DjangoCaller(request, visit, bounds), bounds)
    except UserUnknownError as error:
        decision = error.decision
    warn_of_twice(outer_of(request), gate, decision)
    visit.note(decision)
    end_with(request, visit)
    return None if decision is None or decision.allowed else refuse(request, visit, decision)


async def enforce_later(request: HttpRequest, visit: Visit, bounds: Collection[Bound]) -> HttpResponseBase | None:
    """Charge these rules, and answer the request if one of them refuses."""
    gate = visit.gate
    if isinstance(gate, Gate):  # an async view under WSGI: its loop is for this call only, and the user is read by I/O
        return await sync_to_async(enforce)(request, visit, bounds)
    try:
        decision = await gate.decide(AsyncDjangoCaller(request, visit, bounds), bounds)
    except UserUnknownError as error:
        decision = error.decision
    warn_of_twice(outer_of(request), gate, decision)
    visit.note(decision)
    end_with(request, visit)
    return None if decision is None or decision.allowed else await refuse_later(request, visit, decision)


def refuse(request: HttpRequest, visit: Visit, decision: Decision) -> HttpResponseBase:
    """The answer to a refused request, after the listeners have heard of it."""
    gate = visit.gate
    if isinstance(gate, AsyncGate):
        return async_to_sync(refuse_later)(request, visit, decision)
    rate_limited.send_robust(type(request), request=request, decision=decision)
    own = gate.settings.on_denied
    return _refusal(request, visit, decision, own=None if own is None else _rendered(own(request, decision)))


async def refuse_later(request: HttpRequest, visit: Visit, decision: Decision) -> HttpResponseBase:
    """The answer to a refused request, after the listeners have heard of it."""
    gate = visit.gate
    if isinstance(gate, Gate):
        return await sync_to_async(refuse)(request, visit, decision)
    await rate_limited.asend_robust(type(request), request=request, decision=decision)
    own = gate.settings.on_denied
    response = None if own is None else own(request, decision)
    response = await response if isawaitable(response) else response
    if _is_unrendered(response):
        response = await sync_to_async(_rendered)(response)
    return _refusal(request, visit, decision, own=response)


def raised(visit: Visit, error: RateLimitExceeded) -> Decision:
    """The refusal that a view has raised, as part of what was decided about its request.

    The decision may be of any limiter. One that allowed refuses nevertheless: the view says so.
    """
    refusal = error.decision._replace(allowed=False) if error.decision.allowed else error.decision
    if error.decision is visit.decision:
        visit.decision = refusal
    else:
        visit.note(refusal)
    return refusal


def told(response: Response, visit: Visit) -> Response:
    """The response with the fields of what was decided. Its body is not touched."""
    visit.open = False
    decision, known = visit.decision, getattr(response, _TELLS, None)
    if decision is not None and decision is not known:
        dialect = visit.gate.settings.headers
        fields = response_fields(decision, dialect, epoch=epoch_seconds(), status=response.status_code)
        if fields:
            response.headers = _Told(response.headers, fields)
        if known is None:
            add(response, fields)
        else:  # it was refused inside a view, which went on
            for name, value in fields:
                response.headers[name] = value
    return response


class _Told(ResponseHeaders):
    """Headers with the fields of one client. A cache keeps pickles of responses: there they are without them."""

    def __init__(self, headers: ResponseHeaders, fields: Fields) -> None:
        super().__init__(headers)
        self.before: dict[str, str | None] = {name: headers.get(name) for name, _ in fields}  # None: it was not there
        if isinstance(headers, _Told):
            self.before.update(headers.before)

    def __reduce__(self) -> tuple[Any, ...]:
        rest = {name: value for name, value in self.items() if name not in self.before}
        return ResponseHeaders, ({**rest, **{name: value for name, value in self.before.items() if value is not None}},)


def instead(answer: HttpResponseBase, response: HttpResponseBase) -> HttpResponseBase:
    """The answer in the place of a response that nobody will read, which leaves it what is to be closed."""
    # Not response.close(): that would also tell Django that the request has finished, once too often.
    heir: Any = answer
    heir._resource_closers.extend(cast("Any", response)._resource_closers)
    return answer


def add(response: HttpResponseBase, fields: Fields) -> None:
    """Add fields to those of the response: lists grow, other fields of the response stay."""
    headers = response.headers
    names = {name.lower() for name in headers}
    own = [(name, headers[name]) for name, _ in fields if name.lower() in names]
    for name, value in merge(own, fields) if own else fields:
        headers[name] = value


def _refusal(
    request: HttpRequest, visit: Visit, decision: Decision, *, own: HttpResponseBase | None
) -> HttpResponseBase:
    """The answer to a refused request. The RateLimit fields are in it where they tell of no other decision.

    Else whoever is outside adds them, as to an answer that is not ours.
    """
    if own is None:
        dialect = visit.gate.settings.headers if decision is visit.decision else None
        answer = denial(decision, dialect, epoch=epoch_seconds(), accept=request.META.get("HTTP_ACCEPT", ""))
        own = _response(answer, empty=request.method == "HEAD")
        if dialect is not None:
            setattr(own, _TELLS, decision)
    elif not isinstance(own, HttpResponseBase):
        if waits(own):
            give_up(own)
            raise called_at_once("on_denied", visit.gate.settings.on_denied)
        expected = "return one of Django's responses, or None for the usual answer"
        raise SettingsError("on_denied", type(own), problem="what it returned is no response", expected=expected)
    else:
        add(own, denial_fields(decision, None, epoch=0, status=own.status_code))
    own._has_been_logged = True  # type: ignore[attr-defined]  # Django's own mark: a flood is not to fill the log
    return own


def _response(answer: Denial, *, empty: bool) -> HttpResponse:
    return HttpResponse(b"" if empty else answer.body, status=answer.status, headers=dict(answer.fields))


def _is_unrendered(response: Any) -> bool:
    """Whether this is a TemplateResponse that Django would render only if a view had returned it."""
    return getattr(response, "is_rendered", True) is False


def _rendered(response: Any) -> Any:
    return response.render() if _is_unrendered(response) else response

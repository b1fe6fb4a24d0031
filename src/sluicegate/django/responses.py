"""Enforcement and its Django responses, sync and async.

`enforce` and `enforce_async` decide, send the signal, and return the response to a refused request, else None.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from inspect import isawaitable
from typing import Any, Final, TypeVar, cast
from weakref import ref

from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.cookie import SimpleCookie
from django.http.response import HttpResponseBase, ResponseHeaders

from sluicegate.awaiting import async_mismatch, close_unawaited, waits
from sluicegate.django.lifecycle import release_at_close
from sluicegate.django.request import OUTER, DjangoRequestState, outer_of
from sluicegate.django.signals import rate_limited
from sluicegate.errors import SettingsError
from sluicegate.plan import Decision
from sluicegate.web.bound import Bounds
from sluicegate.web.gate import AsyncGate, Gate, Undecided
from sluicegate.web.http import Denial, Field, Fields, denial, fields_for, merge
from sluicegate.web.request_state import warn_of_twice

_DECISION: Final = "_sluicegate"  # attribute of a refusal made here: the decision whose RateLimit fields it has
_OWNER: Final = "_sluicegate_owner"  # attribute of a response: the request that it answers

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


class _Owner(ref[DjangoRequestState]):
    """The request that a response answers. A cache pickles responses: one from a pickle answers no request yet."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def own_response(response: Response, state: DjangoRequestState) -> Response:
    """Return the response, or a copy of it if it has answered another request: a view may return one object to all.

    Django closes a request by the response that answers it. Without a copy the end of one request would end the others,
    and free their slots.
    """
    facts, mine = vars(response), _Owner(state)
    owner = facts.setdefault(_OWNER, mine)  # one step: two threads may have the same response
    if owner is None:  # from a pickle
        owner = facts[_OWNER] = mine
    return response if owner() is state else _copy_of(response, mine)


def _copy_of(response: Response, owner: _Owner) -> Response:
    """Return the response for another request: with headers, cookies and an end of its own.

    Not by the copy module: a class may be pickled in a way of its own.
    """
    facts = {name: [*value] if type(value) is list else value for name, value in vars(response).copy().items()}
    for name in (_DECISION, "close"):  # those of the other request
        facts.pop(name, None)
    headers, cookies = _Headers({}), SimpleCookie()
    _write(headers, _without_ours(response.headers))
    dict.update(cookies, [(name, morsel.copy()) for name, morsel in [*response.cookies.items()]])
    facts |= {_OWNER: owner, "headers": headers, "cookies": cookies, "_resource_closers": [], "closed": False}
    copied: Response = object.__new__(type(response))
    vars(copied).update(facts)
    return copied


def add_fields(response: Response, state: DjangoRequestState) -> Response:
    """Add the fields of the decision to the response. Its body is not changed."""
    state.open, state.answered = False, True
    decision, known = state.decision, vars(response).get(_DECISION)
    if decision is not None and decision is not known:
        dialect = state.gate.settings.headers
        fields = fields_for(decision, dialect, status=response.status_code)
        if fields:
            # If it is known, a view was given the refusal of a decorator inside it, and returned it.
            response.headers = _ClientHeaders(response.headers, fields, merges=known is None)
    return response


_KEEPS_A_STORE: Final = vars(ResponseHeaders({"A": "b"})) == {"_store": {"a": ("A", "b")}}


def _write(headers: ResponseHeaders, fields: Mapping[str, Field]) -> None:
    """Write fields, given by their names in lower case.

    Django's own method makes nine calls for each, to look for characters that a header cannot have. The fields of this
    library have none.
    """
    if _KEEPS_A_STORE:
        headers._store.update(fields)
    else:
        for name, value in fields.values():
            headers[name] = value


def _by_name(fields: Iterable[Field]) -> dict[str, Field]:
    """Return fields by their names in lower case."""
    found = {}
    for field in fields:  # a loop, not a comprehension: that is a call on the hot path
        found[field[0].lower()] = field
    return found


class _Items(ItemsView[str, str]):
    """The names and values of headers, without the look-up of each value that Django's view makes."""

    def __iter__(self) -> Iterator[Field]:
        headers: Any = cast("Any", self)._mapping
        return iter(headers._store.values())


class _Headers(ResponseHeaders):
    """Django's headers. A server reads those of every response; here that takes a fifth of the time."""

    def items(self) -> ItemsView[str, str]:
        return _Items(self) if _KEEPS_A_STORE else super().items()

    def __reduce__(self) -> tuple[Any, ...]:
        return ResponseHeaders, (dict(self.items()),)


class _ClientHeaders(_Headers):
    """Headers with the fields of one client. A cache pickles responses; the pickle leaves these fields out."""

    def __init__(self, headers: ResponseHeaders, fields: Fields, *, merges: bool) -> None:
        added = _by_name(fields)
        self.before: ResponseHeaders = headers
        self.added: AbstractSet[str] = added.keys()
        if type(headers) is _ClientHeaders:  # of this request too: `own_response` has removed those of others
            self.before, self.added = headers.before, headers.added | self.added
        if merges and not (_KEEPS_A_STORE and self.added.isdisjoint(headers._store)):
            added = _by_name(merge([(name, headers[name]) for name, _ in fields if name in headers], fields))
        if _KEEPS_A_STORE:
            self._store: dict[str, Field] = headers._store | added
        else:
            super().__init__(headers)
            _write(self, added)

    def __reduce__(self) -> tuple[Any, ...]:
        return ResponseHeaders, (dict(_without_ours(self).values()),)


def _without_ours(headers: ResponseHeaders) -> dict[str, Field]:
    """Return the fields of a response by their names in lower case, as they would be without this library."""
    found = _by_name([*headers._store.values()] if _KEEPS_A_STORE else [*headers.items()])
    if isinstance(headers, _ClientHeaders):
        before = _by_name(headers.before.items())
        found = {name: field for name, field in found.items() if name not in headers.added}
        found |= {name: field for name, field in before.items() if name in headers.added}
    return found


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
        own = _response(answer, empty=request.method == "HEAD")
        if dialect is not None:
            setattr(own, _DECISION, decision)
    elif not isinstance(own, HttpResponseBase):
        if waits(own):
            close_unawaited(own)
            raise async_mismatch("on_denied", state.gate.settings.answer_to(decision))
        expected = "return one of Django's responses, or None for the usual answer"
        raise SettingsError("on_denied", type(own), problem="what it returned is no response", expected=expected)
    else:
        own = own_response(own, state)
        fields = fields_for(decision, None, status=own.status_code)
        own.headers = _ClientHeaders(own.headers, fields, merges=True)  # its other fields stay
    own._has_been_logged = True  # type: ignore[attr-defined]  # Django then logs nothing: refusals must not fill the log
    return own


def _response(answer: Denial, *, empty: bool) -> HttpResponse:
    body, headers = b"" if empty else answer.body, _Headers({})
    _write(headers, _fields_of(answer))
    if not _HAS_KNOWN_PARTS:
        response = HttpResponse(body, status=answer.status, content_type=answer.content_type)
        response.headers = headers
        return response
    # Django's own method checks the values that it is given, and makes headers for the content type.
    response = HttpResponse.__new__(HttpResponse)
    vars(response).update(
        _PARTS,
        headers=headers,
        status_code=answer.status,
        cookies=SimpleCookie(),
        _resource_closers=[],
        _container=[body],
    )
    return response


_PARTS: Final = {"_charset": None, "_handler_class": None, "closed": False, "_reason_phrase": None}
"""The attributes that every new response has, beside those that belong to one response."""

_HAS_KNOWN_PARTS: Final = vars(HttpResponse(b"a", "x", 429)) == {
    **_PARTS,
    "headers": {"Content-Type": "x"},
    "status_code": 429,
    "cookies": SimpleCookie(),
    "_resource_closers": [],
    "_container": [b"a"],
}


@lru_cache(maxsize=1024)
def _fields_of(answer: Denial) -> dict[str, Field]:
    """Return the fields of a cached response by their names in lower case."""
    return _by_name(answer.all_fields)


def _is_unrendered(response: Any) -> bool:
    """True if this is an unrendered TemplateResponse: Django renders only those that a view returns."""
    return getattr(response, "is_rendered", True) is False

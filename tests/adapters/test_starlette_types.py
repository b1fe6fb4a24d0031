"""The types of decorated views: those of the undecorated views. mypy checks the assertions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import assert_type

import pytest
from starlette.endpoints import HTTPEndpoint
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse

from sluicegate import Decision
from sluicegate.errors import NotEnforcedError
from sluicegate.fastapi import RateLimit
from sluicegate.starlette import decision, exempt, limit


@limit("5/minute", key="ip", methods=["POST"], override_defaults=True)
def plain(number: int, *, word: str = "") -> PlainTextResponse:
    return PlainTextResponse(word * number)


@limit("5/minute", key=lambda request: request.client)
async def async_view(request: Request) -> PlainTextResponse:
    return PlainTextResponse("async_view")


@exempt
def free(number: int) -> str:
    return "free" * number


@limit("5/minute")
class Page(HTTPEndpoint):
    @limit("1/minute")
    async def get(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("page")


def seen(connection: HTTPConnection) -> None:
    """Never called: mypy checks its types."""
    assert_type(plain(2, word="x"), PlainTextResponse)
    takes: Callable[[Request], Awaitable[PlainTextResponse]] = async_view
    page: type[Page] = Page
    assert_type(free(2), str)
    assert_type(decision(connection), Decision | None)
    assert_type(takes, Callable[[Request], Awaitable[PlainTextResponse]])
    assert_type(page, type[Page])
    plain("2")  # type: ignore[arg-type]
    limit("5/minute", kei="ip")  # type: ignore[call-arg]
    RateLimit("5/minute", override_defaults=True)  # type: ignore[call-arg]


def test_pk03_a_decorated_view_keeps_its_type() -> None:
    assert isinstance(Page, type)
    assert (plain.__name__, async_view.__name__, free(2)) == ("plain", "async_view", "freefree")
    with pytest.raises(NotEnforcedError):
        plain(2)
    assert callable(seen)

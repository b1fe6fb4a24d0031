"""What a type checker sees of a decorated view: exactly what was decorated. mypy reads the assertions."""

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
async def later(request: Request) -> PlainTextResponse:
    return PlainTextResponse("later")


@exempt
def free(number: int) -> str:
    return "free" * number


@limit("5/minute")
class Page(HTTPEndpoint):
    @limit("1/minute")
    async def get(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("page")


def seen(connection: HTTPConnection) -> None:
    """Never called: only its types are looked at."""
    assert_type(plain(2, word="x"), PlainTextResponse)
    takes: Callable[[Request], Awaitable[PlainTextResponse]] = later
    page: type[Page] = Page
    assert_type(free(2), str)
    assert_type(decision(connection), Decision | None)
    assert_type(takes, Callable[[Request], Awaitable[PlainTextResponse]])
    assert_type(page, type[Page])
    plain("2")  # type: ignore[arg-type]
    limit("5/minute", kei="ip")  # type: ignore[call-arg]
    RateLimit("5/minute", override_defaults=True)  # type: ignore[call-arg]


def test_pk03_the_decorated_is_what_it_says() -> None:
    assert isinstance(Page, type)
    assert (plain.__name__, later.__name__, free(2)) == ("plain", "later", "freefree")
    with pytest.raises(NotEnforcedError):
        plain(2)
    assert callable(seen)

"""Applications whose views charge, in every framework and mode. What a view does is written once, as a generator.

A view yields each charge that it makes, and gets the decision, or the refusal as an exception. It returns its text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any, NamedTuple

from sluicegate import Decision
from sluicegate.errors import SluicegateError
from sluicegate.testing.client import Answer
from tests.adapters.django_app import OURS, serving


class Ask(NamedTuple):
    """A charge that a view makes."""

    quota: Any
    options: dict[str, Any]
    block: bool = False  # as a `with` block, which lasts until the view yields END or ends


END = Ask("", {})
Body = Callable[[], Generator[Ask, Decision, str]]


def ask(quota: Any, **options: Any) -> Ask:
    return Ask(quota, options)


def block(quota: Any, **options: Any) -> Ask:
    return Ask(quota, options, block=True)


def play(body: Body, charge: Any, request: Any) -> str:
    """Run what a view does, with a sync charge."""
    steps = body()
    with ExitStack() as blocks:
        try:
            wanted = next(steps)
            while True:
                if wanted is END:
                    blocks.close()
                    wanted = next(steps)
                    continue
                try:
                    made = charge(request, wanted.quota, **wanted.options)
                    made = blocks.enter_context(made) if wanted.block else made
                except SluicegateError as error:
                    wanted = steps.throw(error)
                else:
                    wanted = steps.send(made)
        except StopIteration as end:
            return str(end.value)


async def play_async(body: Body, charge: Any, request: Any) -> str:
    """Do the same with an async charge."""
    steps = body()
    async with AsyncExitStack() as blocks:
        try:
            wanted = next(steps)
            while True:
                if wanted is END:
                    await blocks.aclose()
                    wanted = next(steps)
                    continue
                try:
                    made = charge(request, wanted.quota, **wanted.options)
                    made = await (blocks.enter_async_context(made) if wanted.block else made)
                except SluicegateError as error:
                    wanted = steps.throw(error)
                else:
                    wanted = steps.send(made)
        except StopIteration as end:
            return str(end.value)


class Site:
    """An application, limited by an adapter, with a client."""

    def __init__(self, stack: ExitStack, client: Any) -> None:
        self._stack, self._client = stack, client

    def get(self, path: str = "/a") -> Answer:
        answer: Answer = self._client.request("GET", path)
        return answer

    def statuses(self, *paths: str) -> list[int]:
        return [self.get(path).status for path in paths]

    def left(self, path: str = "/plain") -> str | None:
        """The RateLimit fields of a request whose view charges nothing."""
        return self.get(path).one("ratelimit")


Views = Mapping[str, Body]
Limits = Mapping[str, Any]


def plain() -> Generator[Ask, Decision, str]:
    """A view that charges nothing."""
    return "plain"
    yield END


def django_site(
    stack: ExitStack,
    views: Views,
    limits: Limits,
    *,
    asgi: bool,
    is_async: bool,
    middleware: Any = (OURS,),
    **options: Any,
) -> Site:
    """A project of Django."""
    from django.http import HttpRequest, HttpResponse
    from django.urls import path

    from sluicegate.django import acharge, charge, limit

    def view_of(body: Body) -> Any:
        def view(request: HttpRequest) -> HttpResponse:
            return HttpResponse(play(body, charge, request))

        async def async_view(request: HttpRequest) -> HttpResponse:
            return HttpResponse(await play_async(body, acharge, request))

        return async_view if is_async else view

    made = {where: view_of(body) for where, body in views.items()}
    marked = {where: limit(limits[where])(view) if where in limits else view for where, view in made.items()}
    urls = [path(where.lstrip("/"), view) for where, view in marked.items()]
    return Site(stack, stack.enter_context(serving(asgi=asgi, urls=urls, middleware=middleware, **options)))


SITES: dict[str, tuple[Any, dict[str, Any]]] = {
    "django": (django_site, {"asgi": False, "is_async": False}),
    "django-async-view": (django_site, {"asgi": False, "is_async": True}),
    "django-asgi": (django_site, {"asgi": True, "is_async": True}),
    "django-asgi-sync-view": (django_site, {"asgi": True, "is_async": False}),
}


class Sites:
    """Makes the applications of one test, in one framework and mode."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        self.name = name
        self._stack = stack
        self._make, self._mode = SITES[name]

    def __call__(self, body: Body | Views, limits: Limits | None = None, **options: Any) -> Site:
        views = {"/plain": plain, **({"/a": body} if callable(body) else body)}
        site: Site = self._make(self._stack, views, limits or {}, **self._mode, **options)
        return site

"""The sync and the async limiter with the same calls: an event loop runs the async one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from sluicegate import AsyncLimiter, Limiter
from sluicegate.clock import Clock
from sluicegate.stores import open_async_store, open_store

PATIENCE = 10.0  # seconds: CI machines may be busy


class Blocking:
    """An AsyncLimiter whose calls are not awaited."""

    def __init__(self, limiter: Any, runner: asyncio.Runner) -> None:
        self._limiter, self._runner = limiter, runner

    def limit(self, *arguments: Any, **options: Any) -> Any:
        return Blocking(self._limiter.limit(*arguments, **options), self._runner)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **options: self._runner.run(getattr(self._limiter, name)(*arguments, **options))


@contextmanager
def sync_limiter(
    url: str, *, clock: Clock | None = None, prefix: str = "sg", deadline: float = PATIENCE, **options: Any
) -> Iterator[Any]:
    """A Limiter over the store itself: without wrappers, so the store's errors are raised."""
    with closing(open_store(url, prefix=prefix, clock=clock, deadline=deadline)) as store:
        limiter = Limiter(**options)
        limiter.store = store
        yield limiter


@contextmanager
def async_limiter(
    url: str, *, clock: Clock | None = None, prefix: str = "sg", deadline: float = PATIENCE, **options: Any
) -> Iterator[Any]:
    """The same for asyncio."""
    with asyncio.Runner() as runner:
        limiter = AsyncLimiter(**options)
        limiter.store = open_async_store(url, prefix=prefix, clock=clock, deadline=deadline)
        try:
            yield Blocking(limiter, runner)
        finally:
            runner.run(limiter.store.close())


MODES = {"sync": sync_limiter, "async": async_limiter}

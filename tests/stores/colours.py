"""Both colours through one door: a test calls `hit`, and an event loop turns where one is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headgate import AsyncLimiter, Limiter


class Blocking:
    """An AsyncLimiter whose calls are not awaited."""

    def __init__(self, limiter: AsyncLimiter, runner: asyncio.Runner) -> None:
        self._limiter, self._runner = limiter, runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **options: self._runner.run(getattr(self._limiter, name)(*arguments, **options))


@contextmanager
def sync_limiter(store: Any, **options: Any) -> Iterator[Any]:
    with Limiter(store, **options) as limiter:
        yield limiter


@contextmanager
def async_limiter(store: Any, **options: Any) -> Iterator[Any]:
    with asyncio.Runner() as runner:
        limiter = Blocking(AsyncLimiter(store, **options), runner)
        try:
            yield limiter
        finally:
            limiter.close()


COLOURS = {"sync": sync_limiter, "async": async_limiter}

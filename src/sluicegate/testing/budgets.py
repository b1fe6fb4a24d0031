"""Separate budgets for one test: inside a block every limiter of the process decides in another store.

This includes limiters that exist already, such as those that an application made when it was imported, and limiters
that the test makes. Nothing is deleted: after the block each limiter goes back to its own store, which has not changed.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any, Final, NamedTuple, NoReturn

from sluicegate.clock import Clock
from sluicegate.errors import ConfigurationError, SettingsError
from sluicegate.limiter import AsyncLimiter, Limiter
from sluicegate.stores.async_adapter import AsyncAdapter
from sluicegate.testing.stores import BrokenStore, OpenStore


class _Layer(NamedTuple):
    """One block. An inner block has the clock of the outer block, unless it has one of its own."""

    name: str  # on a server, a part of every key
    clock: Clock | None
    off: bool
    stores: dict[int, tuple[object, Any]]  # by its id: a limiter's own store, and the store that replaces it


_LAYERS: Final[list[_Layer]] = []


@contextmanager
def separate_budgets(*, clock: Clock | None = None, off: bool = False) -> Generator[None]:
    """Let every limiter begin with empty budgets, until the end of the block. Limiters that share a store share the new
    budgets too.

    With `clock` they read the time from it, except a limiter or store that was given a clock of its own. With `off`
    they allow every request and call no store, until an inner block begins.
    """
    if off and clock is not None:
        problem, expected = "given beside off=True, which needs no clock", "give one of the two"
        raise SettingsError("clock", clock, problem=problem, expected=expected)
    if _LAYERS and clock is None:
        clock = _LAYERS[-1].clock
    _LAYERS.append(_Layer(name=f"test-{token_hex(8)}", clock=clock, off=off, stores={}))
    try:
        _place_all()
        yield
    finally:
        _LAYERS.pop()
        _place_all()


def _place_all() -> None:
    for kind in (Limiter, AsyncLimiter):
        kind.on_made = _place if _LAYERS else None
        for limiter in kind.existing():
            _place(limiter)


def _place(limiter: Limiter | AsyncLimiter) -> None:
    """Give a limiter the store of the innermost block, or its own store."""
    own: Any = limiter.own
    if not _LAYERS:
        limiter.use(own)
        return
    layer = _LAYERS[-1]
    if id(own) not in layer.stores:
        made = OpenStore() if layer.off else _separated(own, layer)
        if isinstance(limiter, AsyncLimiter) and isinstance(made, (OpenStore, BrokenStore)):
            made = AsyncAdapter(made)
        layer.stores[id(own)] = own, made
    limiter.use(layer.stores[id(own)][1])


def _separated(own: Any, layer: _Layer) -> Any:
    """Return the store that replaces a limiter's own store."""
    try:
        return own.separate(layer.name, clock=layer.clock)
    except AttributeError:
        problem = "it has no method `separate`, so a test cannot have budgets of its own in it"
        expected = "give the application another store in tests, or add the method to the store"
        return _Unseparable(ConfigurationError("store", own, problem=problem, expected=expected))
    except ConfigurationError as error:
        return _Unseparable(error)


class _Unseparable(BrokenStore):
    """Raises an error that no failure policy hides: the test uses a limiter without separate budgets."""

    def __init__(self, error: ConfigurationError) -> None:
        self._error = error

    def run(self, *_: object, **__: object) -> NoReturn:
        raise self._error

"""Tools for tests: fixtures of pytest, assertions about a response, stores with fixed outcomes, and exams for a
store or an adapter.

`assert_limited`, `assert_allowed`, `OpenStore`, `ShutStore` and `BrokenStore` need only sluicegate. pytest loads the
fixtures from `plugin`; `separate_budgets` does the same without pytest. An exam is a base class with tests; it needs
pytest and hypothesis. Subclass it and define the method that makes the object under test. pytest then runs every test:

    from sluicegate.testing import StoreExam

    class TestMyStore(StoreExam):
        def make_store(self, clock):
            return MyStore(clock=clock)

Exams, assertions and `separate_budgets` are imported on first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sluicegate.stores.async_adapter import AsyncAdapter
from sluicegate.testing.stores import BrokenStore, OpenStore, ShutStore

if TYPE_CHECKING:
    from sluicegate.testing.adapter import AdapterExam as AdapterExam
    from sluicegate.testing.assertions import assert_allowed as assert_allowed
    from sluicegate.testing.assertions import assert_limited as assert_limited
    from sluicegate.testing.budgets import separate_budgets as separate_budgets
    from sluicegate.testing.store import StoreExam as StoreExam

_LATER: Final = {  # name → module of this package
    "AdapterExam": "adapter",
    "StoreExam": "store",
    "assert_allowed": "assertions",
    "assert_limited": "assertions",
    "separate_budgets": "budgets",
}
_EXAMS: Final = ("adapter", "charges", "functions", "held", "store")  # modules with laws

if "pytest" in sys.modules:
    # pytest then shows the values in a failed assert.
    sys.modules["pytest"].register_assert_rewrite(*[f"{__name__}.{module}" for module in _EXAMS])

__all__ = [
    "AdapterExam",
    "AsyncAdapter",
    "BrokenStore",
    "OpenStore",
    "ShutStore",
    "StoreExam",
    "assert_allowed",
    "assert_limited",
    "separate_budgets",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)

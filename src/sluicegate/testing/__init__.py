"""Tools for tests: stores with fixed outcomes, and exams for an algorithm, a store or an adapter.

`OpenStore`, `ShutStore` and `BrokenStore` need only sluicegate. With ManualClock they make an application's own tests
fast and deterministic. An exam is a base class with tests; it needs pytest and hypothesis. Subclass it and define the
method that makes the object under test. pytest then runs every test:

    from sluicegate.testing import StoreExam

    class TestMyStore(StoreExam):
        def make_store(self, clock):
            return MyStore(clock=clock)

An exam is imported on first use. Each exam has its own module; its row in `_EXAMS` makes it public.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sluicegate.stores.async_adapter import AsyncAdapter
from sluicegate.testing.stores import BrokenStore, OpenStore, ShutStore

if TYPE_CHECKING:
    from sluicegate.testing.adapter import AdapterExam as AdapterExam
    from sluicegate.testing.algorithm import AlgorithmExam as AlgorithmExam
    from sluicegate.testing.store import StoreExam as StoreExam

_EXAMS: Final = {  # name → module
    "AdapterExam": "sluicegate.testing.adapter",
    "AlgorithmExam": "sluicegate.testing.algorithm",
    "StoreExam": "sluicegate.testing.store",
}

_PARTS: Final = tuple(
    f"sluicegate.testing.{part}" for part in ("charges", "functions", "held", "rollout")
)  # of the exams

if "pytest" in sys.modules:
    # pytest then shows the values in a failed assert.
    sys.modules["pytest"].register_assert_rewrite(*_EXAMS.values(), *_PARTS)

__all__ = ["AdapterExam", "AlgorithmExam", "AsyncAdapter", "BrokenStore", "OpenStore", "ShutStore", "StoreExam"]


def __getattr__(name: str) -> Any:
    if name not in _EXAMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXAMS[name]), name)

"""Every algorithm takes the exam."""

from __future__ import annotations

from sluicegate.algorithms import ALGORITHMS, KEPT, find
from sluicegate.quota import Quota
from tests.algorithms.exam import AlgorithmExam


class TestSlidingWindow(AlgorithmExam):
    algorithm = find("sliding-window")

    def guarantee(self, quota: Quota) -> int:
        return quota.limit


class TestSlidingLog(AlgorithmExam):
    algorithm = find("sliding-log")

    def guarantee(self, quota: Quota) -> int:
        return quota.limit


class TestSlidingCounter(AlgorithmExam):
    algorithm = find("sliding-counter")
    first_hit_opens = True

    def guarantee(self, quota: Quota) -> int:
        return max(1, 2 * quota.limit - 1)


class TestFixedWindow(AlgorithmExam):
    algorithm = find("fixed-window")
    first_hit_opens = True

    def guarantee(self, quota: Quota) -> int:
        return 2 * quota.limit


class TestGcra(AlgorithmExam):
    algorithm = find("gcra")

    def guarantee(self, quota: Quota) -> int:
        return quota.limit + (quota.limit if quota.burst is None else quota.burst)


class TestCalendar(AlgorithmExam):
    algorithm = KEPT["calendar"]

    def guarantee(self, quota: Quota) -> int:
        return 2 * quota.limit


def test_none_is_missing() -> None:
    examined = {exam.algorithm for exam in AlgorithmExam.__subclasses__()}
    assert set(map(id, ALGORITHMS.values())) <= set(map(id, examined))

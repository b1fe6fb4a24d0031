"""The tests of sluicegate. A package, so that no other `tests` on the path can stand in for it."""

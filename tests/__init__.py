"""The tests of sluicegate. A package, so that Python imports no other `tests` folder on the path instead."""

"""The benchmark: sluicegate beside its peers and the floors, on one machine in one run.

`scripts/bench` starts it; README.md beside this file is the map. Nothing here is part of the package `sluicegate`.
`figures`, `budgets`, `report` and `plots` are pure and import neither a peer nor sluicegate, so tests can read them.
"""

"""The benchmark: sluicegate, its peers and the floors, on one machine in one run.

A peer is another library. A floor is the least that the measured work can cost, such as a request without a limiter.
`scripts/bench` starts the benchmark; README.md lists the files. Nothing here is part of the package `sluicegate`.
`figures`, `budgets`, `report` and `plots` are pure and import neither a peer nor sluicegate, so tests can import them.
"""

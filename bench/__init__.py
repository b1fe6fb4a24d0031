"""The benchmark: headgate beside its peers and the floors, on one machine in one run.

`scripts/bench` starts it; README.md beside this file is the map. Nothing here is part of the package `headgate`.
`figures`, `budgets`, `report` and `plots` are pure and import neither a peer nor headgate, so tests can read them.
"""

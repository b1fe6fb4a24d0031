"""Scaling: the capacity of one server core and of one worker, and a model of many of both.

`python -m bench.scale` starts it. `stream` and `workers` make load; `server`, `growth`, `hot` and `size` measure;
`model` and `page` are pure and import neither a peer nor sluicegate, so tests can import them. It uses the figures,
races and tables of the rest of the benchmark. It measures only sluicegate, no peers.
"""

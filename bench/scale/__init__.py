"""Past one machine: what one server core and one worker carry, and a model of what several do.

`python -m bench.scale` starts it. `stream` and `workers` make load; `server`, `growth`, `hot` and `size` measure;
`model` and `page` are pure and import neither a peer nor sluicegate, so tests can read them. It has figures, races and
tables in common with the rest of the benchmark, and no contender: sluicegate is alone here.
"""

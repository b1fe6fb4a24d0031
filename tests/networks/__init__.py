"""The network matrix: one exam of the limiters over links that are slow, silent, cut, or gone."""

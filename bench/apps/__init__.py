"""One small application for each framework, behind the limiter that the environment names.

`BENCH_LIMITER` is a key of the module's LIMITERS, `BENCH_STORE` a URL, `BENCH_LIMIT` how many requests an hour each
identity has; the identity is the header X-User. Limiters put out their header fields where they have any.
"""

import os

LIMITER = os.environ.get("BENCH_LIMITER", "none")
STORE = os.environ.get("BENCH_STORE", "memory://")
LIMIT = f"{os.environ.get('BENCH_LIMIT', '10')}/hour"
BODY = "ok"

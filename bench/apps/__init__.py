"""One small application for each framework. Environment variables select its limiter.

`BENCH_LIMITER` is a key of the module's LIMITERS, `BENCH_STORE` a URL, `BENCH_LIMIT` the requests an hour of each
identity. The identity is the header X-User. Limiters that have response fields send them.
"""

import os

LIMITER = os.environ.get("BENCH_LIMITER", "none")
STORE = os.environ.get("BENCH_STORE", "memory://")
LIMIT = f"{os.environ.get('BENCH_LIMIT', '10')}/hour"
BODY = "ok"

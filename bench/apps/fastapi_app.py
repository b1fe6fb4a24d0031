"""FastAPI: `uvicorn bench.apps.fastapi_app:app`."""

from collections.abc import Callable

import pyrate_limiter
from fastapi import Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse
from fastapi_limiter.depends import RateLimiter

from bench.apps import LIMIT, LIMITER, STORE, work
from bench.peers import PerKey
from sluicegate.fastapi import RateLimitMiddleware


def application(limiter: str) -> FastAPI:
    made = FastAPI()
    LIMITERS[limiter](made)
    return made


def route(app: FastAPI, dependencies: list[object]) -> None:
    @app.get("/", dependencies=dependencies, response_class=PlainTextResponse)
    async def home() -> str:
        return work()


def sluicegate(app: FastAPI) -> None:
    app.add_middleware(RateLimitMiddleware, store=STORE, default_limits=[LIMIT], key="header:X-User")
    route(app, [])


def of_fastapi_limiter(app: FastAPI) -> None:
    """fastapi-limiter over pyrate-limiter, with a factory of one bucket for each key; the user has to write one."""

    async def user(request: Request) -> str:
        return request.headers["x-user"]

    count = int(LIMIT.partition("/")[0])
    rates = [pyrate_limiter.Rate(count, pyrate_limiter.Duration.HOUR)]
    limiter = pyrate_limiter.Limiter(PerKey(rates, STORE))
    route(app, [Depends(RateLimiter(limiter=limiter, identifier=user))])


LIMITERS: dict[str, Callable[[FastAPI], None]] = {
    "none": lambda app: route(app, []),
    "sluicegate": sluicegate,
    "fastapi-limiter": of_fastapi_limiter,
}

app = application(LIMITER)

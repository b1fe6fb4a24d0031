"""A gateway to an AI service: plans with tokens per minute and requests per day, streamed to the client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import httpx2
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from sluicegate import Tiers
from sluicegate.fastapi import RateLimitMiddleware, limit
from sluicegate.usage import openai_tokens

PLANS = {"key-of-alice": "pro", "key-of-bob": "free"}  # of each customer's key
SERVICE = httpx2.AsyncClient(
    base_url=os.environ.get("AI_SERVICE", "https://api.openai.com"),
    headers={"Authorization": f"Bearer {os.environ.get('AI_KEY')}", "Accept-Encoding": "identity"},  # the usage is read
)
app = FastAPI()
app.add_middleware(RateLimitMiddleware, store=os.environ.get("SLUICEGATE_STORE", "memory://"), headers="openai")


def customer(request: Request) -> str | None:
    key = request.headers.get("authorization", "").removeprefix("Bearer ")
    return key if key in PLANS else None  # no limit applies then, and the view refuses the request


def plan(request: Request) -> str | None:
    return PLANS.get(customer(request) or "")


def prompt_tokens(request: Request) -> int:
    return 300 + int(request.headers.get("content-length", "0")) // 4  # four bytes are about a token


REQUESTS = Tiers({"free": "100/day", "pro": "10_000/day"}, by=plan, default="free")
TOKENS = Tiers({"free": "1_000/minute", "pro": "100_000/minute"}, by=plan, default="free")


@app.post("/v1/chat/completions")
@limit(REQUESTS, key=customer, name="requests")
@limit(TOKENS, key=customer, name="tokens", estimate=prompt_tokens, cost_after=openai_tokens, unit="tokens")
async def chat(request: Request) -> Response:
    if customer(request) is None:
        return JSONResponse({"error": {"message": "unknown key"}}, 401)
    asked = await request.json()
    if asked.get("stream"):
        asked["stream_options"] = {"include_usage": True}
    answer = await SERVICE.send(SERVICE.build_request("POST", "/v1/chat/completions", json=asked), stream=True)

    async def parts() -> AsyncIterator[bytes]:
        try:
            async for part in answer.aiter_raw():
                yield part
        finally:
            await answer.aclose()

    return StreamingResponse(parts(), answer.status_code, media_type=answer.headers["content-type"])

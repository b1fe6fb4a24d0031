"""A gateway to an AI service: plans with tokens per minute and requests per day, streamed to the client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import httpx2
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from sluicegate import Rule, Tiers
from sluicegate.fastapi import RateLimitMiddleware, limit, settle
from sluicegate.rules.cost import Ended
from sluicegate.usage import openai_tokens

LARGEST = 200_000  # bytes of a prompt
PLANS = {"key-of-alice": "pro", "key-of-bob": "free"}  # of each customer's key
SERVICE = httpx2.AsyncClient(
    base_url=os.environ.get("AI_SERVICE", "https://api.openai.com"),
    headers={"Authorization": f"Bearer {os.environ.get('AI_KEY')}", "Accept-Encoding": "identity"},  # the usage is read
)
app = FastAPI()


def customer(request: Request) -> str | None:
    key = request.headers.get("authorization", "").removeprefix("Bearer ")
    return key if key in PLANS else None  # only the limit of unknown keys applies then


def plan(request: Request) -> str | None:
    return PLANS.get(customer(request) or "")


def prompt_tokens(request: Request) -> int:
    chunked = "transfer-encoding" in request.headers  # its length is unknown
    return int(LARGEST if chunked else request.headers.get("content-length", LARGEST)) // 4  # bytes a token


REQUESTS = Tiers({"free": "100/day", "pro": "10_000/day"}, by=plan, default="free")
TOKENS = Tiers({"free": "1_000/minute", "pro": "100_000/minute"}, by=plan, default="free")
UNKNOWN = Rule(name="unknown", quota="20/minute", key="ip", when=lambda request: customer(request) is None)
STORE = os.environ.get("SLUICEGATE_STORE", "memory://")
app.add_middleware(RateLimitMiddleware, store=STORE, headers="openai", rules=[UNKNOWN])


@app.post("/v1/chat/completions")
@limit(REQUESTS, key=customer, name="requests")
@limit(TOKENS, key=customer, name="tokens", estimate=lambda request: 300 + prompt_tokens(request), unit="tokens")
async def chat(request: Request) -> Response:
    if customer(request) is None:
        return JSONResponse({"error": {"message": "unknown key"}}, 401)
    sent = len(await request.body())
    if sent > LARGEST:  # the estimate stays charged
        return JSONResponse({"error": {"message": f"the prompt is longer than {LARGEST} bytes"}}, 413)
    try:
        asked = dict(await request.json())
    except (ValueError, TypeError):
        settle(request, 0, unit="tokens")
        return JSONResponse({"error": {"message": "the body is not an object of JSON"}}, 400)
    if asked.get("stream"):
        asked["stream_options"] = {"include_usage": True}
    answer = await SERVICE.send(SERVICE.build_request("POST", "/v1/chat/completions", json=asked), stream=True)

    async def parts() -> AsyncIterator[bytes]:
        used, tail = sent // 4, b""
        try:
            async for part in answer.aiter_raw():  # the client may cut it off at any part
                used, tail = used + part.count(b"data:"), (tail + part)[-16_384:]  # an event is about a token
                settle(request, used, unit="tokens")
                yield part
            exact = openai_tokens(Ended(answer.status_code, tail=tail))
            settle(request, 0 if answer.is_error else used if exact is None else exact, unit="tokens")
        finally:
            await answer.aclose()

    return StreamingResponse(parts(), answer.status_code, media_type=answer.headers["content-type"])

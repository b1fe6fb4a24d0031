"""A false AI service for tests, with the paths and the usage of OpenAI and of Anthropic.

`limited` allows one request in two seconds, and answers a GET with the number of requests that it got.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Event
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from sluicegate.fastapi import RateLimitMiddleware

service = FastAPI()
USAGE = {"prompt_tokens": 5, "completion_tokens": 15, "total_tokens": 20}


def _of_openai(kind: str, choice: dict[str, Any] | None, usage: Any) -> dict[str, Any]:
    choices = [] if choice is None else [{"index": 0, "finish_reason": None, **choice}]
    return {"id": "1", "object": kind, "created": 1, "model": "m", "choices": choices, "usage": usage}


@service.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    asked = await request.json()
    if asked["model"] == "unknown":
        return JSONResponse({"error": {"message": "no such model"}}, 404)
    if not asked.get("stream"):
        message = {"role": "assistant", "content": "hello"}
        return JSONResponse(_of_openai("chat.completion", {"message": message, "finish_reason": "stop"}, USAGE))

    def events() -> Iterator[str]:
        for word in ("hel", "lo") * (200 if asked["model"] == "long" else 1):
            Event().wait(0.003 if asked["model"] == "long" else 0)  # the client cuts it off before its end
            yield f"data: {json.dumps(_of_openai('chat.completion.chunk', {'delta': {'content': word}}, None))}\n\n"
        if asked.get("stream_options", {}).get("include_usage"):
            yield f"data: {json.dumps(_of_openai('chat.completion.chunk', None, USAGE))}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@service.post("/v1/messages")
async def messages() -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 15}
    text = [{"type": "text", "text": "hello"}]
    start = {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": text}
    return {**start, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}


limits = RateLimitMiddleware(service, default_limits=["1/2 seconds"], key="ip", headers="openai")
_asked: list[str] = []


async def limited(scope: Any, receive: Any, send: Any) -> None:
    """The service with limits. A GET is not limited."""
    if scope["type"] != "http":
        await limits(scope, receive, send)
    elif scope["method"] == "GET":
        await Response(str(len(_asked)))(scope, receive, send)
    else:
        _asked.append(scope["path"])
        await limits(scope, receive, send)

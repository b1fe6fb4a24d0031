"""A board on FastAPI: the middleware for protection, a dependency for the quota of those who are signed in."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel

from sluicegate.fastapi import RESPONSES, RateLimit, RateLimitMiddleware, limit

TOKENS = {"token-of-alice": "alice", "token-of-bob": "bob"}
replies: list[str] = []


class Reply(BaseModel):
    """What a user posts."""

    text: str


def signed_in(authorization: Annotated[str, Header()] = "") -> str:
    """The user that holds the token."""
    name = TOKENS.get(authorization.removeprefix("Bearer "))
    if name is None:
        raise HTTPException(401, "sign in first")
    return name


router = APIRouter(prefix="/board", responses=RESPONSES)


@router.get("/replies", dependencies=[Depends(RateLimit("3/minute", scope="reading"))])
async def list_replies() -> list[str]:
    """Reading has a budget of its own."""
    return replies


@router.post("/replies", status_code=201)
@limit("5/minute", key="header:Authorization")
async def post_reply(reply: Reply, name: Annotated[str, Depends(signed_in)]) -> dict[str, int]:
    """Five a minute for each token; a malformed body is counted as well, before it is read."""
    replies.append(f"{name}: {reply.text}")
    return {"replies": len(replies)}


app = FastAPI(title="A board")
app.include_router(router)
app.add_middleware(
    RateLimitMiddleware,
    store=os.environ.get("SLUICEGATE_STORE", "memory://"),
    deadline=float(os.environ.get("SLUICEGATE_DEADLINE", "0.1")),
    default_limits=["20/second", "1000/day"],
)

"""A board on FastAPI: the middleware limits every client, a dependency limits reading, a decorator limits replies."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel

from sluicegate import Rule
from sluicegate.fastapi import RESPONSES, RateLimit, RateLimitMiddleware, limit
from sluicegate.rules.response import Response

TOKENS = {"token-of-alice": "alice", "token-of-bob": "bob"}
replies: list[str] = []


class Reply(BaseModel):
    """What a user posts."""

    text: str


def signed_in(authorization: Annotated[str, Header()] = "") -> str:
    """The user of the token."""
    name = TOKENS.get(authorization.removeprefix("Bearer "))
    if name is None:
        raise HTTPException(401, "sign in first")
    return name


router = APIRouter(prefix="/board", responses=RESPONSES)


@router.get("/replies", dependencies=[Depends(RateLimit("3/minute", scope="reading"))])
async def list_replies() -> list[str]:
    """Reading has its own budget."""
    return replies


@router.post("/replies", status_code=201)
@limit("5/minute", key="header:Authorization")
async def post_reply(reply: Reply, name: Annotated[str, Depends(signed_in)]) -> dict[str, int]:
    """Five a minute for each token. A request with a malformed body counts too: it is counted before it is read.

    A client can invent tokens, and each has a budget: the rule "guesses" of its address stops it.
    """
    replies.append(f"{name}: {reply.text}")
    return {"replies": len(replies)}


def is_unknown(response: Response) -> bool:
    """True if the token was no user's."""
    return response.status_code == 401


app = FastAPI(title="A board")
app.include_router(router)
app.add_middleware(
    RateLimitMiddleware,
    store=os.environ.get("SLUICEGATE_STORE", "memory://"),
    deadline=float(os.environ.get("SLUICEGATE_DEADLINE", "0.1")),
    key="ip",  # nobody is signed in yet where the middleware runs
    default_limits=["20/second", "1000/day"],
    rules=[Rule(name="guesses", quota="10/minute", charge_when=is_unknown)],
)

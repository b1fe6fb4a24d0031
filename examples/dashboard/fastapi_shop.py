"""A shop on FastAPI with the dashboard at /limits/."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.middleware.sessions import SessionMiddleware

from examples.dashboard.rules import RULES, SIGN_IN, STORE, is_right
from sluicegate.dashboard import Dashboard
from sluicegate.fastapi import RateLimitMiddleware

dashboard = Dashboard(STORE, authorize=lambda scope: scope["session"].get("staff"), writable=True)

app = FastAPI(title="A shop")
app.add_middleware(RateLimitMiddleware, store=STORE, rules=RULES, on_decision=dashboard.note)
app.add_middleware(SessionMiddleware, secret_key=os.environ.get("SHOP_SECRET", "for the example only"))
app.mount("/limits", dashboard.asgi)


@app.get("/export")
async def export() -> str:
    """What the rule limits."""
    return "exported"


@app.get("/sign-in", response_class=HTMLResponse)
async def sign_in_page() -> str:
    """For the staff."""
    return SIGN_IN


@app.post("/sign-in")
async def sign_in(request: Request, password: Annotated[str, Form()] = "") -> Response:
    """Keep the staff's name in the session."""
    if not is_right(password):
        return HTMLResponse(SIGN_IN)
    request.session["staff"] = "carol"
    return RedirectResponse("/limits/", 303)

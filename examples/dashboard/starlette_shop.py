"""A shop on Starlette with the dashboard at /limits/."""

from __future__ import annotations

import os
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from examples.dashboard.rules import RULES, SIGN_IN, STORE, is_right
from sluicegate.dashboard import Dashboard
from sluicegate.starlette import RateLimitMiddleware

# authorize gets the scope, which has the session of SessionMiddleware. The name is the author in the history.
dashboard = Dashboard(STORE, authorize=lambda scope: scope["session"].get("staff"), writable=True)


async def export(request: Request) -> Response:
    """What the rule limits."""
    return PlainTextResponse("exported\n")


async def sign_in(request: Request) -> Response:
    """For the staff."""
    if request.method == "POST":
        given = parse_qs((await request.body()).decode()).get("password", [""])
        if is_right(given[0]):
            request.session["staff"] = "carol"
            return RedirectResponse("/limits/", 303)
    return HTMLResponse(SIGN_IN)


app = Starlette(
    routes=[
        Route("/export", export),
        Route("/sign-in", sign_in, methods=["GET", "POST"]),
        Mount("/limits", dashboard.asgi),
    ],
    middleware=[
        Middleware(SessionMiddleware, secret_key=os.environ.get("SHOP_SECRET", "for the example only")),
        Middleware(RateLimitMiddleware, store=STORE, rules=RULES, on_decision=dashboard.note),
    ],
)

"""A shop on Flask with the dashboard at /limits/."""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, redirect, request, session
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from examples.dashboard.rules import RULES, SIGN_IN, STORE, is_right
from sluicegate.dashboard import Dashboard
from sluicegate.flask import RateLimiter

app = Flask(__name__)
app.secret_key = os.environ.get("SHOP_SECRET", "for the example only")


def staff(environ: dict[str, Any]) -> object:
    """The name of the staff, from Flask's session."""
    with app.request_context(environ):
        return session.get("staff")


dashboard = Dashboard(STORE, authorize=staff, writable=True)
RateLimiter(app, store=STORE, rules=RULES, on_decision=dashboard.note)
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/limits": dashboard.wsgi})  # type: ignore[method-assign]


@app.get("/export")
def export() -> str:
    """What the rule limits."""
    return "exported\n"


@app.route("/sign-in", methods=["GET", "POST"])
def sign_in() -> Any:
    """For the staff."""
    if request.method == "POST" and is_right(request.form.get("password", "")):
        session["staff"] = "carol"
        return redirect("/limits/", 303)
    return SIGN_IN

"""A login on Flask: wrong passwords are limited by account and by address, right ones cost nothing."""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, Request, jsonify, request
from werkzeug.security import check_password_hash, generate_password_hash

from sluicegate.flask import RateLimiter, limit
from sluicegate.identity import account
from sluicegate.rules.response import Response

# A check is slow on purpose: one more reason to limit how often a client may try.
PASSWORDS = {"alice": generate_password_hash("correct horse"), "bob": generate_password_hash("battery staple")}
UNKNOWN = generate_password_hash("for names without an account")

limiter = RateLimiter()
app = Flask(__name__)
app.config["SLUICEGATE_STORE"] = os.environ.get("SLUICEGATE_STORE", "memory://")
app.config["SLUICEGATE_DEADLINE"] = float(os.environ.get("SLUICEGATE_DEADLINE", "0.1"))
limiter.init_app(app)


def by_account(asked: Request) -> str:
    """The account that the form names, from any client."""
    return account(asked.form.get("username", ""))


def failed(response: Response) -> bool:
    """True for a wrong password, which is charged. A right password is refunded."""
    return response.status_code == 401


@app.post("/login")
@limit("5/minute; 20/hour", key=by_account, scope="login-account", charge_when=failed)
@limit("30/minute; 100/hour", key="ip", scope="login-address", charge_when=failed)
def login() -> Any:
    """Do the same work and send the same response whether or not the account exists."""
    name = account(request.form.get("username", ""))
    if check_password_hash(PASSWORDS.get(name, UNKNOWN), request.form.get("password", "")) and name in PASSWORDS:
        return jsonify(welcome=name)
    return jsonify(error="wrong name or password"), 401

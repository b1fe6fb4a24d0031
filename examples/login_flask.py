"""A login on Flask: wrong passwords are limited by account and by address, right ones cost nothing."""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, Request, jsonify, request
from werkzeug.security import check_password_hash, generate_password_hash

from sluicegate.after import Response
from sluicegate.flask import RateLimiter, limit
from sluicegate.identity import account

# Costly to check, as it should be: another reason to let nobody try for ever.
PASSWORDS = {"alice": generate_password_hash("correct horse"), "bob": generate_password_hash("battery staple")}
NOBODY = generate_password_hash("nobody knows this one")

limiter = RateLimiter()
app = Flask(__name__)
app.config["SLUICEGATE_STORE"] = os.environ.get("SLUICEGATE_STORE", "memory://")
app.config["SLUICEGATE_DEADLINE"] = float(os.environ.get("SLUICEGATE_DEADLINE", "0.1"))
limiter.init_app(app)


def by_account(asked: Request) -> str:
    """Whose login this is, whoever asks."""
    return account(asked.form.get("username", ""))


def failed(response: Response) -> bool:
    """A wrong password is charged; a right one gets its charge back."""
    return response.status_code == 401


@app.post("/login")
@limit("5/minute; 20/hour", key=by_account, scope="login-account", charge_when=failed)
@limit("30/minute; 100/hour", key="ip", scope="login-address", charge_when=failed)
def login() -> Any:
    """The same work and the same answer for an account that exists and one that does not."""
    name = account(request.form.get("username", ""))
    if check_password_hash(PASSWORDS.get(name, NOBODY), request.form.get("password", "")) and name in PASSWORDS:
        return jsonify(welcome=name)
    return jsonify(error="wrong name or password"), 401

"""A board on Flask: an application factory, a blueprint and a custom 429 response."""

from __future__ import annotations

import os
from typing import Any

from flask import Blueprint, Flask, jsonify, request
from werkzeug.exceptions import HTTPException

from sluicegate.flask import RateLimiter, exempt, limit

TOKENS = {"token-of-alice": "alice", "token-of-bob": "bob"}
replies: list[str] = []

board = Blueprint("board", __name__)
limiter = RateLimiter(default_limits=["20/second", "1000/day"], key="header:Authorization")


@board.get("/replies")
def list_replies() -> Any:
    """Only the default limits apply here."""
    return jsonify(replies)


@board.post("/replies")
@limit("5/minute")
def post_reply() -> Any:
    """Five a minute for each token."""
    name = TOKENS.get(request.headers.get("Authorization", "").removeprefix("Bearer "), "anonymous")
    replies.append(f"{name} was here")
    return jsonify(replies=len(replies)), 201


@board.get("/export")
@limit("2/minute; 10/hour", key="ip", scope="export")
def export() -> str:
    """An expensive page: two limits at once, for each address."""
    return "\n".join(replies)


@board.get("/health")
@exempt
def health() -> str:
    """No limit at all."""
    return "ok"


def too_many(error: HTTPException) -> Any:
    """The application's own 429 response. sluicegate adds Retry-After and the RateLimit fields."""
    return jsonify(error="slow down", why=error.description), 429


def create_app() -> Flask:
    """Create the application. The environment names its store."""
    app = Flask(__name__)
    app.config["SLUICEGATE_STORE"] = os.environ.get("SLUICEGATE_STORE", "memory://")
    app.config["SLUICEGATE_DEADLINE"] = float(os.environ.get("SLUICEGATE_DEADLINE", "0.1"))
    limiter.init_app(app)
    app.register_blueprint(board)
    app.register_error_handler(429, too_many)
    return app

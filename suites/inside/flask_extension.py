"""Pytest plugin: a RateLimiter on every Flask application."""

from __future__ import annotations

from functools import wraps
from typing import Any

from flask import Flask

from sluicegate.flask import RateLimiter
from suites.inside.limits import OPTIONS

_make = Flask.__init__


@wraps(_make)
def _make_limited(self: Flask, *args: Any, **kwargs: Any) -> None:
    _make(self, *args, **kwargs)
    RateLimiter(self, **OPTIONS)


Flask.__init__ = _make_limited  # type: ignore[method-assign]

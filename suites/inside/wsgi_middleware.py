"""Pytest plugin: sluicegate.wsgi around every Flask application. One middleware serves all and references none."""

from __future__ import annotations

from typing import Any

from flask import Flask

from sluicegate.wsgi import RateLimitMiddleware
from suites.inside.limits import OPTIONS

_APP = "suites.app"


def _call(environ: Any, start_response: Any) -> Any:
    return environ.pop(_APP).wsgi_app(environ, start_response)


_MIDDLEWARE = RateLimitMiddleware(_call, **OPTIONS)


def _call_limited(self: Flask, environ: Any, start_response: Any) -> Any:
    environ[_APP] = self
    return _MIDDLEWARE(environ, start_response)


Flask.__call__ = _call_limited  # type: ignore[method-assign]

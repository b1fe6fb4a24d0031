"""What a Flask request tells about who is asking.

The address is read once: from `remote_addr`, which ProxyFix may have set, or from the trusted header, never from both.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from flask import Flask, Request

from sluicegate.wsgi import WsgiCaller


class FlaskCaller(WsgiCaller):
    """A Flask request as keys see it."""

    __slots__ = ("_app", "_parses", "_request")

    def __init__(self, app: Flask, request: Request, *, parses: bool) -> None:
        self.environ = request.environ
        self._app = app
        self._request = request
        self._parses = parses  # the trusted header is read here: what ProxyFix has made of it is put aside

    @property
    def native(self) -> Any:
        """The request itself, not Flask's proxy for it."""
        return self._request

    @property
    def method(self) -> str:
        """The method."""
        return self._request.method

    @property
    def path(self) -> str:
        """The path below the application's mount point."""
        return self._request.path

    @property
    def peer(self) -> str | None:
        """The address of the socket's other end, or what ProxyFix has put in its place."""
        if self._parses and (original := self.environ.get("werkzeug.proxy_fix.orig")):
            return cast("str | None", original["REMOTE_ADDR"])
        return self._request.remote_addr

    def path_value(self, name: str) -> str | None:
        """A value of the matched URL rule."""
        value = (self._request.view_args or {}).get(name)
        return None if value is None else str(value)

    def user(self) -> Hashable | None:
        """Flask-Login's user where the application has a login manager, else the user that the server authenticated."""
        if hasattr(self._app, "login_manager"):
            from flask_login import current_user

            if current_user.is_authenticated:
                return cast("Hashable", current_user.get_id())
        return super().user()

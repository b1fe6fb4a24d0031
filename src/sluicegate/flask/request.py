"""A Flask request as key functions see it.

The address is read from one source: from `remote_addr`, which ProxyFix may have set, or from the trusted header.
"""

from __future__ import annotations

from collections.abc import Hashable

from flask import Request, current_app

from sluicegate.wsgi import SyncState, WsgiCaller


class FlaskCaller(WsgiCaller):
    """The client of a Flask request."""

    __slots__ = ("_request", "_settings")

    def __init__(self, request: Request, state: SyncState) -> None:
        self.environ = request.environ
        self.state = state
        self._request = request
        self._settings = state.gate.settings

    @property
    def native(self) -> Request:
        """The request itself, not Flask's proxy for it."""
        return self._request

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self._request.method

    @property
    def path(self) -> str:
        """The path below the application's mount point."""
        return self._request.path

    @property
    def peer(self) -> str | None:
        """The address of the socket's other end, or the one that ProxyFix has set."""
        original: dict[str, str | None] | None = self.environ.get("werkzeug.proxy_fix.orig")
        if original and self._settings.trusted_proxies is not None:  # ProxyFix does not read the header
            return original["REMOTE_ADDR"]
        return self._request.remote_addr

    def path_value(self, name: str) -> str | None:
        """Return a value of the matched URL rule."""
        value = (self._request.view_args or {}).get(name)
        return None if value is None else str(value)

    def user(self) -> Hashable | None:
        """Return Flask-Login's user if the application has a login manager, else the one the server authenticated."""
        if hasattr(current_app, "login_manager"):
            from flask_login import current_user

            if current_user.is_authenticated:
                user: Hashable = current_user.get_id()
                return user
        return self.environ.get("REMOTE_USER") or None

    def signs_in_later(self) -> bool:
        """True if the request has credentials, and Flask-Login has no function that reads them."""
        if "HTTP_AUTHORIZATION" not in self.environ:
            return False
        return getattr(getattr(current_app, "login_manager", None), "_request_callback", None) is None

"""A Flask request as key functions see it.

The address is read from one source: from `remote_addr`, which ProxyFix may have set, or from the trusted header.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, cast

from flask import Request, current_app

from sluicegate.web.settings import Settings
from sluicegate.wsgi import WsgiCaller

PENDING: Final = "_sluicegate_pending"  # attribute of a request


class FlaskCaller(WsgiCaller):
    """The client of a Flask request."""

    __slots__ = ("_request", "_settings")

    def __init__(self, request: Request, settings: Settings) -> None:
        self.environ = request.environ
        self._request = request
        self._settings = settings

    @property
    def native(self) -> Any:
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
        original = self.environ.get("werkzeug.proxy_fix.orig")
        if original and self._settings.trusted_proxies is not None:  # the header is read here, and not by ProxyFix
            return cast("str | None", original["REMOTE_ADDR"])
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
                return cast("Hashable", current_user.get_id())
        return super().user()

    def pending(self) -> Any:
        """Return what keeps the decisions about the request until its response is closed; None if nothing does."""
        return vars(self._request).get(PENDING)

    def signs_in_later(self) -> bool:
        """True if the request has credentials, and Flask-Login has no function that reads them."""
        login = getattr(current_app, "login_manager", None)
        return getattr(login, "_request_callback", None) is None and super().signs_in_later()

"""The state of one Flask request under one limiter: what keys read from it, and what the gate has decided about it.

The address is read from one source: from `remote_addr`, which ProxyFix may have set, or from the trusted header.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

from flask import Request, current_app, has_request_context
from flask.globals import request_ctx

from sluicegate.plan import Decision
from sluicegate.web.gate import Gate
from sluicegate.web.http import Denial
from sluicegate.web.request_state import NO_MARKS
from sluicegate.wsgi import SyncState, WsgiCaller

if TYPE_CHECKING:
    from flask.ctx import RequestContext

# The context itself. By the proxies of Flask, each attribute of the request would cost a look-up of the context.
context: Final[Callable[[], RequestContext]] = cast(Any, request_ctx)._get_current_object


class FlaskRequestState(SyncState, WsgiCaller):
    """One Flask request under one limiter. Its reference to the request is weak: the request has this state."""

    _request: Callable[[], Request]  # Flask keeps it until its context ends
    denial: Denial  # the response, if the request was refused
    denied: Decision | None = None  # the decision of `denial`; later decisions may follow
    is_routed = False  # whether the rules of the route have been decided
    is_answered = False  # whether the response is finished, except for the body of a stream
    is_closed_later = False  # whether closing the response calls `closed`

    def __init__(self, gate: Gate, context: RequestContext) -> None:
        # Not by super(): this runs for every request.
        self.gate, self.decision, self.settlement, self.enforced = gate, None, None, NO_MARKS
        native = context.request
        self.environ, self._request = native.environ, ref(native)  # type: ignore[assignment]
        self.context = id(context)  # a copy of it (copy_current_request_context) may end while the view runs
        if gate.limiter.events is not None:
            self.at = "" if native.url_rule is None else native.url_rule.rule, native.method
            self.is_over, self.made = False, []

    @property
    def can_hold(self) -> bool:
        """True while a slot would be released: by the end of the response, or of this context."""
        if not has_request_context():
            return False
        return super().can_hold if self.settlement or self.can_refuse else self.context == id(context())

    @property
    def can_refuse(self) -> bool:
        """True until the response is finished."""
        return not self.is_answered

    @property
    def native(self) -> Request:
        """The request itself, not Flask's proxy for it."""
        return self._request()

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self._request().method

    @property
    def path(self) -> str:
        """The path below the application's mount point."""
        return self._request().path

    @property
    def peer(self) -> str | None:
        """The address of the socket's other end, or the one that ProxyFix has set."""
        original: dict[str, str | None] | None = self.environ.get("werkzeug.proxy_fix.orig")
        if original and self.gate.settings.trusted_proxies is not None:  # ProxyFix does not read the header
            return original["REMOTE_ADDR"]
        return self._request().remote_addr

    def path_value(self, name: str) -> str | None:
        """Return a value of the matched URL rule."""
        value = (self._request().view_args or {}).get(name)
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

    def pending(self) -> FlaskRequestState:
        """Return what keeps the events of the request until its response was sent."""
        return self

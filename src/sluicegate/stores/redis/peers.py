"""Connections to the embedded server. They check whose server it is before they send anything."""

from __future__ import annotations

from typing import Any

import redis.asyncio.connection
import redis.connection
from redis.exceptions import ConnectionError  # noqa: A004 - it is what redis-py closes a connection after

from sluicegate.stores.server_process import check_peer


class OwnConnection(redis.connection.UnixDomainSocketConnection):
    """A connection to a server of this user or of root. Nothing is sent to another user's server.

    `ensure` has checked the directory, but its owner or root may delete it before the connection is opened.
    """

    def on_connect(self) -> Any:
        """Check the server, then greet it. redis-py 5 calls this."""
        _require_peer(self)
        return super().on_connect()  # type: ignore[no-untyped-call]

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Do the same. redis-py 8 calls this."""
        _require_peer(self)
        super().on_connect_check_health(check_health)


class OwnConnectionAsync(redis.asyncio.connection.UnixDomainSocketConnection):
    """The same as the sync function or class, for an AsyncLimiter."""

    async def on_connect(self) -> None:
        """Check the server, then greet it. redis-py 5 calls this, and redis-py 8 too."""
        _require_peer(self)
        await super().on_connect()

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Do the same. redis-py 8 calls this."""
        _require_peer(self)
        await super().on_connect_check_health(check_health)


def _require_peer(connection: Any) -> None:
    """Check the peer of a connection of redis-py, which closes it after an error of its own kind."""
    writer = getattr(connection, "_writer", None)  # on asyncio; redis-py has no public name for the socket
    try:
        check_peer(connection._sock if writer is None else writer.get_extra_info("socket"))
    except OSError as error:
        raise ConnectionError(str(error)) from error

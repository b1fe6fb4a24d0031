"""CORS preflights: what a browser sends before its real requests. A preflight is not charged if no view runs for it.

Each adapter finds out whether a view runs, or a CORS layer or the router responds instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

_REQUIRED: Final = ("origin", "access-control-request-method")  # a browser always sends both
_FORBIDDEN: Final = ("transfer-encoding", "authorization", "cookie")  # the signs of a body or of credentials


def is_preflight(method: str, lines: Callable[[str], Sequence[str]]) -> bool:
    """True if this is a CORS preflight in the form that browsers send. `lines` returns all lines of a header.

    A bare OPTIONS is an ordinary request. So is an OPTIONS with a body or with credentials: a preflight of the Fetch
    standard has neither, and the application might read them.
    """
    return (
        method == "OPTIONS"
        and all([any(lines(name)) for name in _REQUIRED])
        and not any([any(lines(name)) for name in _FORBIDDEN])
        and all([line in ("", "0") for line in lines("content-length")])
    )

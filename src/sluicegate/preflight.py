"""Preflights: which requests a browser sends ahead of its own. They are free where no view runs for them.

Each adapter decides that by what it can see ahead: a CORS layer or the router answers, or a view runs. This module
reads a method and header lines, and knows nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

_ASKING: Final = ("origin", "access-control-request-method")
_CARRYING: Final = ("transfer-encoding", "authorization", "cookie")


def is_preflight(method: str, lines: Callable[[str], Sequence[str]]) -> bool:
    """Whether this is a CORS preflight as browsers send it: a bare OPTIONS is a request like any other.

    So is one with a body or with credentials: the Fetch standard sends neither, and the application might read them.
    `lines` gives all lines of a header.
    """
    return (
        method == "OPTIONS"
        and all([any(lines(name)) for name in _ASKING])
        and not any([any(lines(name)) for name in _CARRYING])
        and all([line in ("", "0") for line in lines("content-length")])
    )

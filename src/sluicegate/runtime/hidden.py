"""Values that are not shown: the password in a store's URL, and the secret. A traceback may print every local variable.

Hidden values are text and bytes with another repr. A traceback with local variables, an error tracker and a debugger
print the repr. So every entry point wraps such a value first, before anything can fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast, overload

Options = TypeVar("Options", bound=Mapping[Any, object])
T = TypeVar("T")
_HOST: Final = r"(?:[A-Za-z0-9.\-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?"
_URL: Final = (  # a password that was not percent-encoded may contain @ / ? #
    rf"([A-Za-z][A-Za-z0-9+.\-]*://)(?:[!-\"$-.0->A-~]*@)?({_HOST}(?:,{_HOST})*)(/[^@?#]*|)(?:\?[^@#]*)?"
)


class Hidden(str):
    """Text that is not shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


class HiddenURL(Hidden):
    """A URL that is shown without the part that may be a password."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(shown_url(self))


class HiddenBytes(bytes):
    """Bytes that are not shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "b'…'"


@overload
def hide_store(store: str) -> HiddenURL: ...
@overload
def hide_store(store: T) -> T: ...
def hide_store(store: object) -> object:
    """Wrap a URL, so that it is shown without its password. Any other store is returned as it is."""
    return HiddenURL(store) if isinstance(store, str) else store


def hide_secret(secret: T) -> T | Hidden | HiddenBytes:
    """Wrap a secret, so that it is not shown. A value of a wrong type is returned as it is."""
    if isinstance(secret, str):
        return Hidden(secret)
    return HiddenBytes(secret) if isinstance(secret, bytes) else secret


def hide(options: Options) -> Options:
    """Copy settings exactly as they were given, with the password of every URL and the secret hidden."""
    return cast("Options", {name: _hide_option(name, value) for name, value in options.items()})


def _hide_option(name: object, value: T) -> T | Hidden | HiddenBytes:
    option = name.lower() if isinstance(name, str) else ""
    if option == "secret":
        return hide_secret(value)
    return HiddenURL(value) if isinstance(value, str) and (option == "store" or "://" in value) else value


def shown_url(url: str) -> str:
    """Return what an error may show of a URL: scheme, host, port and path; "…" if it is uncertain where each begins."""
    match = re.fullmatch(_URL, url)
    if match is not None:
        return "".join(match.groups())
    scheme, colon, rest = url.partition(":")
    return scheme + (colon and (":…" if not rest.startswith("//") else "://…"))

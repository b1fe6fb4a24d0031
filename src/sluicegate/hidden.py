"""Values that are not shown: the password in a store's URL, and the secret. A traceback may print every local variable.

Hidden values are text and bytes with another repr. A traceback with local variables, an error tracker and a debugger
print the repr. So every entry point wraps such a value first, before anything can fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

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


class Concealed:
    """A value of a wrong type, which may contain a secret."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__}>"


def hide_store(store: Any) -> Any:
    """Wrap the `store` option: a URL is shown without its password, and a value that is not a store is not shown."""
    if isinstance(store, str):
        return HiddenURL(store)
    plain = store is None or isinstance(store, (type, Concealed)) or hasattr(store, "run")
    return store if plain else Concealed(store)


def hide_secret(secret: Any) -> Any:
    """Wrap the `secret` option, so that it is not shown."""
    match secret:
        case Hidden() | HiddenBytes() | Concealed() | None:
            return secret
        case str():
            return Hidden(secret)
        case bytes():
            return HiddenBytes(secret)
    return Concealed(secret)


def hide_options(options: Mapping[Any, Any], known: frozenset[str]) -> dict[Any, Any]:
    """Copy settings exactly as they were given, with passwords and secrets hidden."""
    return {name: _hide_option(name, value, known) for name, value in options.items()}


def _hide_option(name: object, value: Any, known: frozenset[str]) -> Any:
    """Return the value of one setting, hidden if necessary. Text under an unknown name is hidden, because the name may
    be a misspelt `secret`.
    """
    option = name.lower() if isinstance(name, str) else ""
    if option == "store":
        return hide_store(value)
    if isinstance(value, str) and "://" in value:
        return HiddenURL(value)
    is_text = isinstance(value, (str, bytes)) and option not in known
    return hide_secret(value) if is_text or option == "secret" else value


def shown_url(url: str) -> str:
    """Return what an error may show of a URL: scheme, host, port and path; "…" if it is uncertain where each begins."""
    match = re.fullmatch(_URL, url)
    if match is not None:
        return "".join(match.groups())
    scheme, colon, rest = url.partition(":")
    return scheme + (colon and (":…" if not rest.startswith("//") else "://…"))

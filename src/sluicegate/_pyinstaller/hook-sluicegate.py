"""The hook for what no import names: the stores that a URL names, and the Lua scripts for the server.

The hook packs a store's module also if its client is missing. Then its URL raises SG007, as without PyInstaller.
"""

from __future__ import annotations

from pathlib import Path

import sluicegate
from sluicegate.stores import SCHEMES

_TOP = Path(sluicegate.__file__).parent

hiddenimports = sorted(set(SCHEMES.values()))
datas = [(str(path), str(path.parent.relative_to(_TOP.parent))) for path in sorted(_TOP.rglob("*.lua"))]

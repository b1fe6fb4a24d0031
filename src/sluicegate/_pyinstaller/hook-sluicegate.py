"""Hook for `sluicegate`: the stores' modules, which are imported by URL scheme, and the files that it
reads: Lua scripts for the server, and the parts of the report of a replay.

The hook packs a store's module even without its client package. Its URL then raises SG007, as without PyInstaller.
"""

from __future__ import annotations

from pathlib import Path

import sluicegate
from sluicegate.stores import SCHEMES

_TOP = Path(sluicegate.__file__).parent

hiddenimports = sorted(set(SCHEMES.values()))
datas = [
    (str(path), str(path.parent.relative_to(_TOP.parent)))
    for kind in ("lua", "html", "css", "js")
    for path in sorted(_TOP.rglob(f"*.{kind}"))
]

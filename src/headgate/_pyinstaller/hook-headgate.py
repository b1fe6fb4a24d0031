"""What a program needs of headgate and no import names: the stores that a URL names, and the scripts for the server.

A store's module is put in also where its client is missing: then its URL is answered by HG007, as without PyInstaller.
"""

from __future__ import annotations

from pathlib import Path

import headgate
from headgate.stores import SCHEMES

_TOP = Path(headgate.__file__).parent

hiddenimports = sorted(set(SCHEMES.values()))
datas = [(str(path), str(path.parent.relative_to(_TOP.parent))) for path in sorted(_TOP.rglob("*.lua"))]

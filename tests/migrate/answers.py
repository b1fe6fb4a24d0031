"""Prints what the application in a folder answers to the same requests, some to each route. In a process of its own:
`python -m tests.migrate.answers FOLDER`.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import django

from docs.visits import visit

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    is_django = (folder / "settings.py").exists()
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings" if is_django else "tests.migrate.nothing"
    if is_django:
        django.setup()
    name = "urls" if is_django else "app"
    (visited,) = visit({name: vars(import_module(name))})
    print(json.dumps([(each.route, each.status) for each in visited.answers]))

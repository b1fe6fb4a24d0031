"""Hooks for PyInstaller. They name the modules and files that it cannot find in sluicegate's source.

PyInstaller finds this folder by the entry point `pyinstaller40`. It runs a hook when it packs the module that the
hook's file is named after. No module of sluicegate imports them.
"""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """Where the hooks are."""
    return [str(Path(__file__).parent)]

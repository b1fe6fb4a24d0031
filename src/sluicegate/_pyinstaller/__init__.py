"""Hooks for PyInstaller: they list the modules and files that PyInstaller cannot find in sluicegate's source.

PyInstaller finds this folder by the entry point `pyinstaller40`. The name of a hook's file contains a module's name.
PyInstaller runs the hook when it packs that module. No module of sluicegate imports a hook.
"""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """Return the folder of the hooks, for PyInstaller."""
    return [str(Path(__file__).parent)]

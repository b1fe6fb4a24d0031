"""Hooks for PyInstaller, which finds them by the entry point `pyinstaller40`: what it cannot see in headgate's source.

A hook is run when the module that its file is named after is put into a program. Nothing of headgate imports these.
"""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """Where the hooks are."""
    return [str(Path(__file__).parent)]

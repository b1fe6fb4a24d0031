"""Suggested limits as rules to paste: TOML for the settings, and decorators for views. All are in shadow at first."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from typing import Final

from sluicegate.replay.suggest import Suggestion, Suggestions
from sluicegate.replay.words import listed, printable, quoted

FRAMEWORKS: Final = {
    "starlette": ("sluicegate.starlette", "async def {}(request): ..."),
    "fastapi": ("sluicegate.fastapi", "async def {}(): ..."),
    "flask": ("sluicegate.flask", "def {}(): ..."),
    "django": ("sluicegate.django", "def {}(request): ..."),
}
_LOGGED: Final = ("path:", "field:")  # keys that only a log has


def as_toml(found: Suggestions) -> str:
    """Return the suggested rules as settings that `Settings.from_toml` reads."""
    lines = ["[sluicegate]", "# the settings of your application"]
    key, note = _key(found.key)
    for each in _suggested(found):
        lines += ["", f"# {_about(each)}", "[[sluicegate.rules]]", f"name = {quoted(each.name)}"]
        lines += [f"quota = {quoted(each.quota or '')}", *([note] if note else []), f"key = {key}"]
        lines += [f"path = {quoted(each.path)}"] if each.path is not None else []
        lines += [f"methods = {listed(each.methods)}"] if each.methods else []
        lines += ['mode = "shadow"  # counts, and refuses no request; remove it to enforce the limit']
    return "\n".join(lines) + "\n"


def as_decorators(found: Suggestions, framework: str) -> str:
    """Return the suggested limits of routes as decorators of views. The views of one limit share its budget."""
    module, view = FRAMEWORKS[framework]
    key, note = _key(found.key)
    key = key.replace("[", "(").replace("]", ")")
    lines = [f"from {module} import limit"]
    for each in _suggested(found):
        if each.path is None:
            lines += ["", "", f"# {_about(each)}", f"# No view of its own: default_limits = {_parts(each)}"]
            continue
        options = [f"name={quoted(each.name)}", f"scope={quoted(each.name)}", f"key={key}"]
        options += [f"methods={listed(each.methods)}"] if each.methods else []
        options += ['mode="shadow"']
        name = each.name.replace("-", "_")
        name += "_" if keyword.iskeyword(name) or name == "limit" else ""
        lines += ["", "", f"# {_about(each)}", *([note] if note else [])]
        lines += [f"@limit({quoted(each.quota or '')}, {', '.join(options)})", view.format(name)]
    return "\n".join(lines) + "\n"


def _suggested(found: Suggestions) -> Iterator[Suggestion]:
    return (each for each in found.suggestions if each.quota is not None)


def _parts(each: Suggestion) -> str:
    return listed((each.quota or "").split("; "))


def _about(each: Suggestion) -> str:
    warning = f" {each.warning}" if each.warning else ""
    return f"{printable(each.requests_to)}: {each.verdict.partition('. ')[0].rstrip('.')}.{warning}"


def _key(key: str) -> tuple[str, str]:
    """Return a key as settings write it, and a comment if the application must have a key of its own for it."""
    parts = [part.strip() for part in key.split(",")]
    if any(part.startswith(_LOGGED) for part in parts):
        return '"user"', f"# The log's key is {key}: give the key of your application that is the same."
    written = [part if part.startswith("header:") else part.replace(":", ".") for part in parts]
    return (quoted(written[0]) if len(written) == 1 else listed(written)), ""

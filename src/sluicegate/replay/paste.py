"""Rules to paste: TOML for the settings, and decorators for views. All are in shadow at first."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from sluicegate.replay.result import RuleText
from sluicegate.replay.routes import name_of
from sluicegate.replay.suggest import Suggestion, Suggestions
from sluicegate.replay.words import listed, printable, quoted, told_apart

FRAMEWORKS: Final = {
    "starlette": ("sluicegate.starlette", "async def {}(request): ..."),
    "fastapi": ("sluicegate.fastapi", "async def {}(): ..."),
    "flask": ("sluicegate.flask", "def {}(): ..."),
    "django": ("sluicegate.django", "def {}(request): ..."),
}
_LOGGED: Final = ("path:", "field:")  # keys that only a log has
_DEFAULT: Final = "sliding-window"  # an algorithm that need not be named
_MARK: Final = "\ue000"  # in the place of the limit that is dragged: a sign that no rule has
_ESCAPED: Final = quoted(_MARK).strip('"')
_NUMBER: Final = re.compile(r"[0-9]+")


class Pasted(NamedTuple):
    """One rule as text."""

    name: str
    quota: str
    keys: Sequence[str]
    methods: Sequence[str]
    path: str | None
    options: Sequence[tuple[str, int | str | None]] = ()  # None: an option that cannot be written

    def toml(self) -> str:
        """Return the rule as settings have it."""
        options = {"name": quoted(self.name), "quota": quoted(self.quota), "key": _key(self.keys)}
        options |= {} if self.path is None else {"path": quoted(self.path)}
        lines = [f"{name} = {value}" for name, value in (options | self._others(json.dumps)).items()]
        mode = 'mode = "shadow"  # counts, and refuses no request; remove it to enforce the limit'
        return "\n".join([*self._notes(), "[[sluicegate.rules]]", *lines, f"{mode}\n"])

    def decorator(self) -> str:
        """Return the rule as a decorator. The views that have it share its budget."""
        key = _key(self.keys).replace("[", "(").replace("]", ")")
        options = {"name": quoted(self.name), "scope": quoted(self.name), "key": key} | self._others(repr)
        given = "".join([f", {name}={value}" for name, value in options.items()])
        return "\n".join([*self._notes(), f'@limit({quoted(self.quota)}{given}, mode="shadow")\n'])

    def _others(self, literal: Callable[[object], str]) -> dict[str, str]:
        methods = {"methods": listed(self.methods)} if self.methods else {}
        options = {name: value for name, value in self.options if value is not None}
        return methods | {
            name: quoted(each) if isinstance(each, str) else literal(each) for name, each in options.items()
        }

    def _notes(self) -> Iterator[str]:
        if any(key.startswith(_LOGGED) for key in self.keys):
            key = ", ".join(self.keys)
            yield f"# The log's key is {printable(key)}: give the key of your application that is the same."
        if left := [name for name, value in self.options if value is None]:
            yield f"# Not copied: {', '.join(left)}."


def _key(keys: Sequence[str]) -> str:
    """Return a key as settings write it. The application must have a key of its own for one that only a log has."""
    if any(key.startswith(_LOGGED) for key in keys):
        return '"user"'
    written = [key if key.startswith("header:") else key.replace(":", ".") for key in keys]
    return quoted(written[0]) if len(written) == 1 else listed(written)


def as_toml(found: Suggestions) -> str:
    """Return the suggested rules as settings that `Settings.from_toml` reads."""
    rules = [f"\n# {_about(each)}\n{_pasted(found, each).toml()}" for each in _suggested(found)]
    return "".join(["[sluicegate]\n# the settings of your application\n", *rules])


def as_decorators(found: Suggestions, framework: str) -> str:
    """Return the suggested limits of routes as decorators of views. The views of one limit share its budget."""
    module, view = FRAMEWORKS[framework]
    lines = [f"from {module} import limit\n"]
    for each in _suggested(found):
        lines.append(f"\n\n# {_about(each)}\n")
        if each.path is None:
            lines.append(f"# No view of its own: default_limits = {listed((each.quota or '').split('; '))}\n")
            continue
        name = each.name.replace("-", "_")
        name += "_" if keyword.iskeyword(name) or name == "limit" else ""
        lines.append(f"{_pasted(found, each).decorator()}{view.format(name)}\n")
    return "".join(lines)


def candidate(rules: Sequence[RuleText], moved: str) -> dict[str, list[str] | None]:
    """Return all rules of a candidate that has curves, as TOML and as decorators, without the limit of the quota that
    is `moved`: what is before it, and what is after it.
    """
    quotas: dict[str, list[RuleText]] = {}
    for rule in rules:
        quotas.setdefault(rule.rule, []).append(rule)
    paths = {name: _requests(first.applies_to) for name, (first, *_) in quotas.items()}
    # A name like "5/minute" would be that of another limit.
    names = [name_of(paths[name][1]) if name == first.quota else name for name, (first, *_) in quotas.items()]
    toml, decorators = "", ""
    for name, each in zip(told_apart(names, "{}-{}"), quotas.values(), strict=True):
        first, (methods, path) = each[0], paths[each[0].rule]
        texts = [_NUMBER.sub(_MARK, rule.quota, count=1) if rule.name == moved else rule.quota for rule in each]
        algorithm = [] if first.algorithm == _DEFAULT else [("algorithm", first.algorithm)]
        keys, options = first.key.split(" + "), [*algorithm, *first.options]
        pasted = Pasted(name, "; ".join(texts), keys, methods=methods, path=path, options=options)
        toml += pasted.toml()
        views = printable(first.applies_to) or "every request"
        decorators += f"# The views of {views} share this limit.\n{pasted.decorator()}"
    cut = {"toml": toml.split(_ESCAPED, 1), "decorator": decorators.split(_ESCAPED, 1)}
    return {form: parts if len(parts) == 2 else None for form, parts in cut.items()}


def _requests(applies_to: str) -> tuple[list[str], str | None]:
    """Return the methods and the path that a rule applies to."""
    methods, slash, path = applies_to.partition("/")
    return methods.replace(",", " ").split(), slash + path or None


def _pasted(found: Suggestions, each: Suggestion) -> Pasted:
    keys = [part.strip() for part in found.key.split(",")]
    return Pasted(each.name, each.quota or "", keys, methods=each.methods, path=each.path)


def _suggested(found: Suggestions) -> Iterator[Suggestion]:
    return (each for each in found.suggestions if each.quota is not None)


def _about(each: Suggestion) -> str:
    warning = f" {each.warning}" if each.warning else ""
    return f"{printable(each.requests_to)}: {each.verdict.partition('. ')[0].rstrip('.')}.{warning}"

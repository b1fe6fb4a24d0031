"""The report of a replay as one HTML file that needs no network.

The template, the style and the script are files of this folder. Values go into the page as JSON, and the script makes
elements of them. So text from a log is never read as HTML.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

from sluicegate.extras import needs
from sluicegate.replay import words
from sluicegate.replay.document import plain_values
from sluicegate.replay.result import Candidate, Curve, Result, RuleText
from sluicegate.replay.routes import name_of

with needs("replay"):
    import orjson

_LEFT_OUT: Final = ("sliding-window", "slots")  # the default algorithm, and a concurrency limit, which has none
_PARTS: Final = files(__name__)
_PART: Final = re.compile(r"\{\{(\w+)\}\}")
_NUMBER: Final = re.compile(r"[0-9]+")


def html(result: Result) -> str:
    """Return the page of a result."""
    style, script = (_PARTS.joinpath(name).read_text("utf-8") for name in ("style.css", "script.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    data = orjson.dumps({"result": plain_values(result), "words": _words(result)}).decode()
    # "<" ends the data early in "</script>", and "<!--" begins a comment there
    parts = {"policy": policy, "style": style, "script": script, "data": data.replace("<", "\\u003c")}
    template = _PARTS.joinpath("template.html").read_text("utf-8")
    return _PART.sub(lambda found: parts[found[1]], template)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _words(result: Result) -> dict[str, Any]:
    """Return the sentences of the page, and what is ready to paste."""
    return {
        "headline": words.headline(result),
        "kinds": {kind: one for kind, (one, _) in words.KINDS.items()},
        "facts": words.FACTS,
        "read": words.what_was_read(result.traffic),
        "notes": [words.printable(note) for note in words.notes(result.traffic)],
        "seconds": words.span(result.seconds),
        "candidates": [_candidate(each) for each in result.candidates],
    }


def _candidate(found: Candidate) -> dict[str, Any]:
    rules = {rule.name: rule for rule in found.rules}
    return {
        "answer": words.answer(found),
        "facts": words.facts(found),
        "rollout": words.rollout(found),
        "closed_loop": words.closed_loop(found.closed_loop),
        "kinds": words.kinds(found),
        "limits": [_limit(curve, rules.get(curve.rule)) for curve in found.curves],
    }


def _limit(curve: Curve, rule: RuleText | None) -> dict[str, Any]:
    """Return the texts around the limit of a curve, to paste: its rule in TOML, and as a decorator."""
    period = words.period(curve.period)
    number = None if rule is None else _NUMBER.match(rule.quota)
    if rule is None or number is None:
        return {"period": period, "toml": None, "decorator": None}
    keys = rule.key.split(" + ")
    key = words.listed(keys) if len(keys) > 1 else words.quoted(rule.key)
    methods, slash, path = rule.applies_to.partition("/")
    unnamed = rule.name == rule.quota  # the limit of a name like "5/minute" would be another
    name = words.quoted(name_of(slash + path or None) if unnamed else rule.name)
    options = {
        "methods": words.listed(methods.replace(",", " ").split()) if methods else "",
        "algorithm": "" if rule.algorithm in _LEFT_OUT else words.quoted(rule.algorithm),
        "mode": '"shadow"',
    }
    in_toml = {"key": key, "path": words.quoted(slash + path) if slash else "", **options}
    of_view = {"name": name, "scope": name, "key": f"({key[1:-1]})" if len(keys) > 1 else key, **options}
    lines = "".join([f"{option} = {value}\n" for option, value in in_toml.items() if value])
    arguments = "".join([f", {option}={value}" for option, value in of_view.items() if value])
    views = f"# The views of {words.printable(rule.applies_to) or 'every request'} share this limit.\n"
    rest = f'{rule.quota[number.end() :]}"'
    return {
        "period": period,
        "toml": [f'[[sluicegate.rules]]\nname = {name}\nquota = "', f"{rest}\n{lines}"],
        "decorator": [f'{views}@limit("', f"{rest}{arguments})\n"],
    }

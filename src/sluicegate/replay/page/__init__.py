"""The report of a replay as one HTML file that needs no network.

The template, the style and the script are files of this folder. Values go into the page as JSON, and the script makes
elements of them. So text from a log is never read as HTML.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Final

from sluicegate.errors import needs
from sluicegate.replay import paste, words
from sluicegate.replay.result import Candidate, Result, plain_values

with needs("replay"):
    import orjson

_PARTS: Final = files(__name__)
_PART: Final = re.compile(r"\{\{(\w+)\}\}")


def html(result: Result, said: Sequence[str] = ()) -> str:
    """Return the page of a result. The page begins with the sentences that are `said` about it."""
    style, script = (_PARTS.joinpath(name).read_text("utf-8") for name in ("style.css", "script.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    data = orjson.dumps({"result": plain_values(result), "words": _words(result) | {"said": said}}).decode()
    # "<" ends the data early in "</script>", and "<!--" begins a comment there
    parts = {"policy": policy, "style": style, "script": script, "data": data.replace("<", "\\u003c")}
    template = _PARTS.joinpath("template.html").read_text("utf-8")
    return _PART.sub(lambda found: parts[found[1]], template)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _words(result: Result) -> dict[str, object]:
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


def _candidate(found: Candidate) -> dict[str, object]:
    return {
        "answer": words.answer(found).removeprefix(f"refuses {found.refused:,} "),  # the card has the number
        "facts": words.facts(found),
        "rollout": words.rollout(found),
        "closed_loop": words.closed_loop(found.closed_loop),
        "kinds": words.kinds(found),
        "limits": [
            {"period": words.period(curve.period), **paste.candidate(found.rules, curve.rule)} for curve in found.curves
        ],
    }

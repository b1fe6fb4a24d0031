"""Readers of the tokens that a response of an AI API has used: ready functions for `cost_after`.

They read the JSON body, or the events of a stream, in the two ends of the body that `Ended` has: no stream is buffered,
and the work is linear in their length. In JSON a quotation mark inside a text has a backslash before it. So no text of
a user or a model looks like a field. The last field counts, because the API writes it after all texts. The body must
pass as the API sent it, without compression.
"""

from __future__ import annotations

import re
from typing import Final

from sluicegate.rules.cost import Ended

_VALUE: Final = rb'"[ \t]{0,4}:[ \t]{0,4}([0-9]{1,15})(?=[\s,}])'
_TOTAL: Final = re.compile(rb'(?<!\\)"(total_tokens)' + _VALUE)
_PARTS: Final = re.compile(rb'(?<!\\)"((?:cache_creation_)?input_tokens|output_tokens)' + _VALUE)


def openai_tokens(response: Ended) -> int | None:
    """Return `total_tokens` of the usage that the API of OpenAI writes, and many others. None if there is none.

    A stream has it only if the request says `"stream_options": {"include_usage": true}`.

    >>> openai_tokens(Ended(200, tail=b'data: {"choices": [], "usage": {"total_tokens": 12}}\\n\\ndata: [DONE]\\n\\n'))
    12
    """
    found = _TOTAL.findall(response.tail)
    return int(found[-1][1]) if found else None


def anthropic_tokens(response: Ended) -> int | None:
    """Return the input tokens that were not read from a cache, and the output tokens, as the API of Anthropic writes
    them. None without both, and for a stream that was cut off: its last event has the output.

    >>> anthropic_tokens(Ended(200, tail=b'{"usage": {"input_tokens": 9, "output_tokens": 3}}'))
    12
    """
    # A zero byte between the two ends: no number goes from one into the other.
    found = dict(_PARTS.findall(response.head + b"\0" + response.tail)) if response.complete else {}
    return sum(map(int, found.values())) if {b"input_tokens", b"output_tokens"} <= found.keys() else None

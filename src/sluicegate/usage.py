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
_TOTAL: Final = re.compile(rb'(?<!\\)"usage"[ \t]{0,4}:[ \t]{0,4}\{(?:[^{}]|\{[^{}]*\})*?"total_tokens' + _VALUE)
_PARTS: Final = re.compile(rb'(?<!\\)"((?:cache_creation_)?input_tokens|output_tokens)' + _VALUE)
_ITERATIONS: Final = re.compile(rb'"iterations"[ \t]{0,4}:\s{0,4}\[[^\[\]]*\]')  # parts of the usage beside their sum


def openai_tokens(response: Ended) -> int | None:
    """Return `total_tokens` of the usage that the API of OpenAI writes, and many others. None if there is none, and for
    a response that was cut off: before its usage it may repeat JSON of the client.

    A stream has it only if the request says `"stream_options": {"include_usage": true}`.

    >>> openai_tokens(Ended(200, tail=b'data: {"choices": [], "usage": {"total_tokens": 12}}\\n\\ndata: [DONE]\\n\\n'))
    12
    """
    found = _TOTAL.findall(response.tail) if response.complete else ()
    return int(found[-1]) if found else None


def anthropic_tokens(response: Ended) -> int | None:
    """Return the input tokens that were not read from a cache, and the output tokens, as the API of Anthropic writes
    them. None without both, and for a stream that was cut off: its event `message_delta` has the output.

    >>> anthropic_tokens(Ended(200, tail=b'{"usage": {"input_tokens": 9, "output_tokens": 3}}'))
    12
    """
    head, tail = (_ITERATIONS.sub(b"", end) for end in (response.head, response.tail))
    is_stream = head.lstrip()[:1] not in (b"", b"{")  # its start has an output too, of the first tokens only
    last = dict(_PARTS.findall(tail[tail.rfind(b"message_delta") if is_stream else 0 :])) if response.complete else {}
    found = dict(_PARTS.findall(head)) | last
    return sum(map(int, found.values())) if b"output_tokens" in last and b"input_tokens" in found else None

"""docs/compared.md: every behaviour has a row, and every test that a row names exists. And the tests of some rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from typing import Any

import pytest
from flask import Flask
from starlette.applications import Starlette

from docs.pages import DOCS, ROOT, written
from sluicegate import Limiter, ManualClock, Rule, asgi, flask, wsgi
from sluicegate.stores.memory import MemoryStore
from tests.adapters.asgi_client import AsgiClient
from tests.adapters.wsgi_client import WsgiClient
from tests.servers import Server

PAGE = DOCS / "compared.md"
ROWS = [  # without a word a row holds
    (number, kind or "holds", here)
    for number, kind, here in re.findall(r"^\| (\d+) \| .+ \| (?:(\w+): )?(.+) \|$", written(PAGE), re.MULTILINE)
]
MOST_MISSING = 1


def test_every_behaviour_has_a_row() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 108))
    kinds = Counter(kind for _, kind, _ in ROWS)
    assert set(kinds) == {"holds", "differs", "missing"}
    assert kinds["missing"] <= MOST_MISSING
    (said,) = re.findall(r"(\d+) hold here too, (\d+) differ on purpose, and\s(\d+) is", written(PAGE))
    assert dict(zip(("holds", "differs", "missing"), map(int, said), strict=True)) == kinds


@cache
def text_of(path: str) -> str:
    return (ROOT / ("src" if path.startswith("sluicegate/") else "tests") / path).read_text("utf-8")


@pytest.mark.parametrize(("number", "kind", "here"), ROWS)
def test_every_named_test_exists(number: str, kind: str, here: str) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", here)
    assert named or kind != "holds"
    missing = [name for path, name in named if not re.search(rf"def {name}\(", text_of(path))]
    assert not missing


def test_10_a_cost_of_a_million_is_one_entry() -> None:
    """In a list of a million entries this would take seconds and megabytes."""
    limiter = Limiter(store := MemoryStore())
    assert limiter.hit("1000000/day", "alice", cost=1_000_000).remaining == 0
    (entry,) = store._table._queue
    assert len(repr(entry.state)) < 200


def test_28_the_prefix_says_who_shares(server: Server) -> None:
    clock = ManualClock()
    same, other = (Limiter(server.url, prefix=f"sg:28:{name}", clock=clock) for name in ("one", "two"))
    with same, other, Limiter(server.url, prefix="sg:28:one", clock=clock) as again:
        assert [each.hit("1/day", "alice").allowed for each in (same, again, other)] == [True, False, True]


@pytest.mark.parametrize(
    ("refund_when", "refuses"), [(None, "outer"), (lambda response: response.status_code == 429, "inner")]
)
@pytest.mark.parametrize("kind", ["asgi", "wsgi", "flask"])
def test_32_of_two_limiters_the_outer_keeps_its_charge_unless_its_rule_gives_it_back(
    kind: str, refund_when: Any, refuses: str
) -> None:
    """All or nothing holds for the rules of one limiter: they are one plan."""
    outer = Rule(name="outer", quota="3/hour", refund_when=refund_when)
    inner = Rule(name="inner", quota="1/hour")
    client: Any
    if kind == "flask":
        app = Flask("app")
        flask.RateLimiter(app, rules=[outer])
        flask.RateLimiter(app, rules=[inner], config_prefix=None)
        client = WsgiClient(app)
    elif kind == "wsgi":
        page = wsgi.RateLimitMiddleware(Flask("app"), rules=[inner])
        client = WsgiClient(wsgi.RateLimitMiddleware(page, rules=[outer]))
    else:
        client = AsgiClient(
            asgi.RateLimitMiddleware(asgi.RateLimitMiddleware(Starlette(), rules=[inner]), rules=[outer])
        )
    answers = [client.request("GET", "/") for _ in range(4)]
    assert [answer.status for answer in answers] == [404, 429, 429, 429]
    assert json.loads(answers[3].body)["violated-policies"] == [refuses]


def test_34_the_order_of_methods_does_not_matter() -> None:
    rules = [Rule(name="writing", quota="5/minute", methods=methods) for methods in (["PUT", "POST"], ["POST", "PUT"])]
    assert rules[0] == rules[1]
    assert rules[0].terms("sliding-window") == rules[1].terms("sliding-window")

"""web/http.py: vectors of the draft with http-sf as oracle, dialects, merging, the response to a refused request."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Decision, Limiter, ManualClock, Outcome, Rule
from sluicegate.asgi import merged, with_fields
from sluicegate.errors import QuotaError, RuleError, SettingsError
from sluicegate.plan import Check, Terms
from sluicegate.quota import Quota
from sluicegate.web import http
from sluicegate.web.http import (
    DIALECTS,
    PROBLEM,
    Denial,
    denial,
    fields_for,
    make_denial,
    merge,
    quoted,
    read_dialect,
    retry_after,
    seconds,
    wants_text,
)

SECOND = 1_000_000
DRAFT = "draft-11"


def made(*rules: tuple[str, Outcome], window: float = 60) -> Decision:
    """A decision of named outcomes."""
    checks = tuple([Check(terms(name, out.limit, window=window), "i", 1) for name, out in rules])
    outcomes = tuple([outcome for _, outcome in rules])
    return Decision(all(outcome.allowed for outcome in outcomes), checks, outcomes)


def terms(name: str, limit: int, *, window: float) -> Terms:
    """Terms of any name, also one that a rule refuses."""
    return Terms(name, name, "x", params=(limit,), window_us=round(window * SECOND), quota=Quota(limit, window))


def out(limit: int, remaining: int, *, wait: float | None = 0.0, next_after: float = 0, reset: float = 0) -> Outcome:
    """An outcome with times in seconds; refused unless `wait` is 0."""
    wait_us = None if wait is None else round(wait * SECOND)
    return Outcome(wait == 0.0, limit, remaining, wait_us, round(reset * SECOND), round(next_after * SECOND))


def fields_of(decision: Decision, dialect: Any = DRAFT, *, status: int = 200, epoch: float = 0) -> dict[str, str]:
    """The fields of a dialect by their names."""
    fields = fields_for(decision, dialect, epoch=epoch, status=status)
    assert len({name for name, _ in fields}) == len(fields)
    return dict(fields)


def parsed(text: str) -> Any:
    """A structured list, parsed by the oracle."""
    return http_sf.parse(text.encode(), tltype="list")


# Examples of the draft, and what the oracle reads: (number, text, items, canonical text or None for the same).
VECTORS: list[tuple[str, str, list[Any], str | None]] = [
    (
        "V1",
        '"burst";q=100;w=60,"daily";q=1000;w=86400',
        [("burst", {"q": 100, "w": 60}), ("daily", {"q": 1000, "w": 86400})],
        '"burst";q=100;w=60, "daily";q=1000;w=86400',
    ),
    ("V2", '"default";q=100;w=10', [("default", {"q": 100, "w": 10})], None),
    (
        "V3",
        '"permin";q=50;w=60,"perhr";q=1000;w=3600',
        [("permin", {"q": 50, "w": 60}), ("perhr", {"q": 1000, "w": 3600})],
        '"permin";q=50;w=60, "perhr";q=1000;w=3600',
    ),
    (
        "V4",
        '"peruser";q=100;w=60;pk=:cHsdsRa894==:',
        [("peruser", {"q": 100, "w": 60, "pk": bytes.fromhex("707b1db116bcf7")})],
        '"peruser";q=100;w=60;pk=:cHsdsRa89w==:',
    ),
    (
        "V5",
        '"peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:',
        [("peruser", {"q": 65535, "qu": "content-bytes", "w": 10, "pk": bytes.fromhex("b1d7e32c950e50")})],
        '"peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUA==:',
    ),
    ("V6", '"default";r=50;t=30', [("default", {"r": 50, "t": 30})], None),
    ("V7", '"default";r=999;pk=:dHJpYWwxMjEzMjM=:', [("default", {"r": 999, "pk": b"trial121323"})], None),
    (
        "V8",
        '"default";r=300000000;t=60;pk=:QXBwLTk5OQ==:',
        [("default", {"r": 300000000, "t": 60, "pk": b"App-999"})],
        None,
    ),
    (
        "V9",
        '"hour";q=1000;w=3600, "day";q=5000;w=86400',
        [("hour", {"q": 1000, "w": 3600}), ("day", {"q": 5000, "w": 86400})],
        None,
    ),
    ("V10", '"basic";r=60;t=58', [("basic", {"r": 60, "t": 58})], None),
    ("V13", '"a b\\"c";q=1', [('a b"c', {"q": 1})], None),
]


@pytest.mark.parametrize(("text", "items", "canonical"), [row[1:] for row in VECTORS], ids=[row[0] for row in VECTORS])
def test_the_oracle_reads_the_drafts_vectors(text: str, items: list[Any], canonical: str | None) -> None:
    assert parsed(text) == items
    assert http_sf.ser(parsed(text)) == (text if canonical is None else canonical)


@pytest.mark.parametrize(
    ("number", "decision", "field", "expected"),
    [
        ("V1", made(("burst", out(100, 9)), window=60), "RateLimit-Policy", '"burst";q=100;w=60'),
        ("V2", made(("default", out(100, 50)), window=10), "RateLimit-Policy", '"default";q=100;w=10'),
        ("V6", made(("default", out(100, 50, next_after=29.000001))), "RateLimit", '"default";r=50;t=30'),
        ("V7", made(("default", out(1000, 999))), "RateLimit", '"default";r=999'),
        ("V8", made(("d", out(10**9, 300000000, next_after=60))), "RateLimit", '"d";r=300000000;t=60'),
        ("V10", made(("basic", out(100, 60, next_after=58))), "RateLimit", '"basic";r=60;t=58'),
        ("V13", made(('a b"c', out(2, 1))), "RateLimit", '"a b\\"c";r=1'),
    ],
)
def test_fields_are_written_as_in_the_draft(number: str, decision: Decision, field: str, expected: str) -> None:
    text = fields_of(decision)[field]
    assert text == expected
    assert http_sf.ser(parsed(text)) == expected


def test_v9_a_refusal_lists_the_violated_policies_only() -> None:
    decision = made(("hour", out(1000, 5)), ("day", out(5000, 0, wait=36000, next_after=36000)))
    fields = dict(fields_for(decision, DRAFT, epoch=0, status=429))
    assert fields["RateLimit-Policy"] == '"hour";q=1000;w=60, "day";q=5000;w=60'
    assert fields["RateLimit"] == '"day";r=0;t=36000'
    assert fields["Retry-After"] == "36000"


def test_v11_retry_after_and_t_name_the_same_instant() -> None:
    fields = dict(fields_for(made(("d", out(1, 0, wait=5, next_after=5))), DRAFT, epoch=0, status=429))
    assert (fields["Retry-After"], fields["RateLimit"]) == ("5", '"d";r=0;t=5')


def test_v12_two_lines_are_one_list() -> None:
    lines = ['"burst";q=100;w=60', '"daily";q=1000;w=86400']
    assert http_sf.parse(", ".join(lines).encode(), tltype="list") == parsed(VECTORS[0][1])


@pytest.mark.parametrize("name", ["café", "a\nb", "a\x7fb", "", "x" * 129])
def test_n1_a_rule_refuses_a_name_that_no_structured_string_can_contain(name: str) -> None:
    with pytest.raises(RuleError):
        Rule(name=name, quota="1/minute")


@pytest.mark.parametrize("name", ["café", "a\nb"])
def test_n1_such_a_name_is_never_written(name: str) -> None:
    with pytest.raises(RuleError):
        quoted(name)


@pytest.mark.parametrize("quota", ["1000000000000000/day", "1.5/day", "-1/day", "1/0 seconds", "0/day"])
def test_n2_a_quota_that_no_structured_integer_can_contain_is_refused(quota: str) -> None:
    with pytest.raises(QuotaError):
        Rule(name="x", quota=quota)


@pytest.mark.parametrize("text", ['"x";Q=1', "limit=100, remaining=50, reset=5"])
def test_n3_n4_other_values_are_no_list_of_strings(text: str) -> None:
    try:
        items = parsed(text)
    except http_sf.StructuredFieldError:
        return
    assert not all(type(name) is str for name, _ in items)


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=128))
def test_any_printable_name_round_trips(name: str) -> None:
    [(read, parameters)] = parsed(fields_of(made((name, out(5, 4))))["RateLimit"])
    assert (read, parameters) == (name, {"r": 4})


# Dialects

TWO = made(("a", out(10, 9, next_after=1, reset=3.2)), ("b", out(100, 5, next_after=2, reset=50.5)))


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        ("draft-11", {"RateLimit-Policy": '"a";q=10;w=60, "b";q=100;w=60', "RateLimit": '"a";r=9;t=1, "b";r=5;t=2'}),
        ("draft-7", {"RateLimit-Policy": "10;w=60, 100;w=60", "RateLimit": "limit=100, remaining=5, reset=51"}),
        (
            "draft-6",
            {
                "RateLimit-Policy": "10;w=60, 100;w=60",
                "RateLimit-Limit": "100",
                "RateLimit-Remaining": "5",
                "RateLimit-Reset": "51",
            },
        ),
        ("x-ratelimit", {"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "1051"}),
        (
            {"remaining": "X-Left", "limit": "X-Most"},
            {"X-Most": "100", "X-Left": "5", "X-RateLimit-Reset": "1051"},
        ),
        ("x-ratelimit-delta", {"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "51"}),
        (
            "openai",
            {
                "x-ratelimit-limit-requests": "100",
                "x-ratelimit-remaining-requests": "5",
                "x-ratelimit-reset-requests": "51s",
            },
        ),
    ],
)
def test_dialects(dialect: Any, expected: dict[str, str]) -> None:
    assert fields_of(TWO, read_dialect(dialect), epoch=1000.25) == expected
    assert set(DIALECTS) == {"draft-11", "draft-7", "draft-6", "x-ratelimit", "x-ratelimit-delta", "openai"}


def test_only_x_ratelimit_contains_a_time_of_day() -> None:
    for dialect in set(DIALECTS) - {"x-ratelimit"}:
        assert fields_of(TWO, dialect, epoch=1e9) == fields_of(TWO, dialect, epoch=2e9)


@pytest.mark.parametrize("dialect", [*DIALECTS, None])
@pytest.mark.parametrize(("status", "silent"), [(101, True), (200, False), (304, True), (302, True), (404, False)])
def test_no_fields_on_1xx_and_3xx(dialect: str | None, status: int, silent: bool) -> None:
    fields = fields_for(TWO, dialect, epoch=0, status=status)
    assert (fields == []) is (silent or dialect is None)


def test_no_fields_where_no_rule_applied() -> None:
    assert fields_for(made(), DRAFT, epoch=0, status=200) == []


def test_a_429_of_other_code_gets_only_the_policies() -> None:
    assert fields_of(TWO, status=429).keys() == {"RateLimit-Policy"}


@pytest.mark.parametrize("dialect", ["draft-11", None])
def test_a_dialect_is_known_or_none(dialect: str | None) -> None:
    assert read_dialect(dialect) == dialect


def test_a_refusal_has_the_names_of_the_setting() -> None:
    names = read_dialect({"limit": "X-Most"})
    refused = denial(made(("a", out(10, 0, wait=1, reset=1))), names, epoch=1000)
    assert {"X-Most": "10", "X-RateLimit-Reset": "1001"}.items() <= dict(refused.fields).items()
    assert read_dialect(names) == names


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"limits": "X-Limit"}, '"limit"?'),
        ({"limit": "X Limit"}, "headers: limit"),
        ({"limit": 1}, "headers: limit"),
        ({"limit": "X-Reset", "reset": "x-reset"}, "two fields of one name"),
        ({"limit": "Content-Length"}, "means something else in HTTP"),
        ({"reset": "retry-after"}, "means something else in HTTP"),
    ],
)
def test_wrong_names_of_fields_are_refused(given: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(text)):
        read_dialect(given)


@pytest.mark.parametrize("dialect", ["draft-12", "", 11, ["draft-11"]])
def test_an_unknown_dialect_is_refused(dialect: Any) -> None:
    with pytest.raises(SettingsError, match="draft-11, draft-7"):
        read_dialect(dialect)


# Retry-After


@pytest.mark.parametrize(
    ("us", "whole"), [(0, 0), (1, 1), (999_999, 1), (SECOND, 1), (SECOND + 1, 2), (2**53 - 1, 9007199255)]
)
def test_seconds_are_rounded_up(us: int, whole: int) -> None:
    assert seconds(us) == whole


@pytest.mark.parametrize(
    ("decision", "wait"),
    [
        (made(("a", out(1, 0, wait=0.000001))), 1),
        (made(("a", out(1, 0, wait=1))), 1),
        (made(("a", out(1, 0, wait=1.000001))), 2),
        (made(("a", out(1, 0, wait=1)), ("b", out(1, 0, wait=30)), ("c", out(9, 9))), 30),
        (made(("a", out(1, 0, wait=None))), None),
        (made(("a", out(1, 0, wait=None)), ("b", out(1, 0, wait=30))), None),
        (made(("a", out(1, 0, wait=0.2)._replace(source="policy"))), 1),
    ],
)
def test_retry_after(decision: Decision, wait: int | None) -> None:
    assert retry_after(decision) == wait


@given(st.integers(1, 2**53 - 1), st.integers(0, 10**15))
def test_retry_after_is_never_too_early(wait_us: int, epoch_us: int) -> None:
    decision = made(("a", Outcome(False, 1, 0, wait_us, wait_us, wait_us)))
    found = retry_after(decision)
    assert found is not None
    assert 0 <= found - Fraction(wait_us, SECOND) < 1
    moment = int(fields_of(decision, "x-ratelimit", epoch=epoch_us / SECOND)["X-RateLimit-Reset"])
    assert moment >= Fraction(round(epoch_us / SECOND * SECOND) + wait_us, SECOND)


# Responses

REFUSED = made(("a", out(1, 0, wait=1.5, next_after=1.5)), ("b", out(9, 3)))
NEVER = made(("a", out(1, 0, wait=None)))
SHUT = made(("a", out(1, 0, wait=0.2)._replace(source="policy")), ("b", out(9, 3)._replace(source="local")))


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (
            REFUSED,
            {
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Quota Exceeded",
                "status": 429,
                "detail": "Retry after 2 seconds.",
                "violated-policies": ["a"],
            },
        ),
        (
            NEVER,
            {
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Quota Exceeded",
                "status": 429,
                "detail": "This request costs more than its limit, so it can never pass.",
                "violated-policies": ["a"],
            },
        ),
        (
            SHUT,
            {
                "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "title": "Temporary Reduced Capacity",
                "status": 503,
                "detail": "Retry after 1 second.",
                "violated-policies": [],
            },
        ),
    ],
    ids=["refused", "never", "store down"],
)
def test_the_problem(decision: Decision, expected: dict[str, Any]) -> None:
    answer = denial(decision, DRAFT, epoch=0)
    fields = dict(answer.all_fields)
    assert json.loads(answer.body) == expected
    assert answer.status == expected["status"]
    assert answer.content_type == fields["Content-Type"] == PROBLEM
    assert fields["Content-Length"] == str(len(answer.body))
    assert fields["Cache-Control"] == "no-store"
    assert answer.all_fields == (*answer.body_fields, *answer.fields)
    assert fields.get("Retry-After") == (None if answer.wait is None else str(answer.wait))
    assert (answer.wait is None) is (decision is NEVER)
    policies = {name for name, _ in parsed(fields.get("RateLimit-Policy", ""))} if decision.outcomes else set()
    assert set(expected["violated-policies"]) <= policies


def test_names_of_problems_and_fields_are_the_same_text() -> None:
    answer = denial(made(('a "b"\\', out(1, 0, wait=1))), DRAFT, epoch=0)
    [(name, _)] = parsed(dict(answer.fields)["RateLimit"])
    assert json.loads(answer.body)["violated-policies"] == [name] == ['a "b"\\']


@pytest.mark.parametrize("decision", [REFUSED, NEVER, SHUT], ids=["refused", "never", "store down"])
def test_text_for_browsers(decision: Decision) -> None:
    answer = denial(decision, DRAFT, epoch=0, accept="text/html")
    assert answer.content_type == "text/plain; charset=utf-8"
    assert answer.body.decode().endswith(".\n")


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
@given(wait=st.integers(1, 10**10), epoch=st.integers(10**15, 2 * 10**15))
def test_a_cached_response_has_the_same_fields(dialect: str, wait: int, epoch: int) -> None:
    outcome = Outcome(False, 10, 0, wait, wait + 300_000, wait)
    decision, now = made(("a", outcome)), epoch / SECOND
    assert denial(decision, dialect, epoch=now).fields == tuple(fields_for(decision, dialect, epoch=now, status=429))


NAMES = st.sampled_from(["a", "per%d", 'say "hi"'])
TIMES = st.integers(0, 3 * SECOND) | st.integers(0, 10**13)


@st.composite
def refusals(draw: Any) -> Decision:
    """A refusal of one or several rules, of a ban, of a list, or because the store failed."""
    checks, outcomes = [], []
    for at in range(draw(st.sampled_from([1, 1, 1, 2, 3, 0]))):
        refused = at == 0 or draw(st.booleans())
        limit = draw(st.integers(1, 10**6))
        special = draw(st.sampled_from([{}, {}, {}, {"algorithm": "ban"}, {"held": True}, {"shadow": True}]))
        if "shadow" in special:
            refused = False
        checks.append(Check(terms(f"{draw(NAMES)}{at}", limit, window=60)._replace(**special), "i", 1))
        wait = draw(st.none() | TIMES) if refused else 0
        source = draw(st.sampled_from(["store", "store", "local", "policy"]))
        outcomes.append(
            Outcome(not refused, limit, draw(st.integers(0, limit)), wait, draw(TIMES), draw(TIMES), 5, source)
        )
    return Decision(False, tuple(checks), tuple(outcomes))


@pytest.mark.slow
@pytest.mark.parametrize("dialect", [None, *DIALECTS])
@given(decision=refusals(), epoch=st.integers(10**15, 2 * 10**15), accept=st.sampled_from(["", "*/*", "text/html"]))
def test_a_cached_refusal_is_the_one_that_would_be_made_now(
    dialect: str | None, decision: Decision, epoch: int, accept: str
) -> None:
    now = epoch / SECOND
    for _ in range(2):
        cached = denial(decision, dialect, epoch=now, accept=accept)
        anew = make_denial(decision, dialect, epoch=now, text=wants_text(accept))
        assert [getattr(cached, part) for part in Denial.__slots__] == [
            getattr(anew, part) for part in Denial.__slots__
        ]
        assert cached.lines == tuple([(name.lower().encode(), value.encode()) for name, value in anew.all_fields])


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [b"x", b"Content-Type", b"RateLimit", b"ratelimit-policy", b"X-RateLimit-Limit", b"cache-control"]
        ),
        st.sampled_from([b"", b"3", b'"a0";r=1', b'"other";q=1;w=1', b"public"]),
    ),
    max_size=3,
)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", [None, *DIALECTS])
@given(
    decision=refusals(), allowed=st.booleans(), headers=HEADERS, status=st.sampled_from([101, 200, 204, 301, 404, 429])
)
def test_the_fields_of_a_message_are_those_of_the_text(
    dialect: str | None, decision: Decision, allowed: bool, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    if allowed:
        passed = [out._replace(allowed=True, retry_after=0) for out in decision.outcomes]
        decision = Decision(True, decision.checks, tuple(passed))
    before = list(headers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "epoch_seconds", lambda: 7.5)
        made = with_fields({"status": status, "headers": headers, "more": 1}, decision, dialect)
        lazy = with_fields({"status": status, "headers": iter(headers), "more": 1}, decision, dialect)
    fields = fields_for(decision, dialect, epoch=7.5, status=status)
    assert made == lazy == {"status": status, "headers": merged(headers, fields) if fields else headers, "more": 1}
    assert headers == before
    assert made["headers"] is not headers or not fields
    assert "headers" not in with_fields({"status": 301}, decision._replace(allowed=True), dialect)


@pytest.mark.parametrize(("status", "has_retry_after"), [(200, False), (303, False), (420, True), (503, True)])
def test_a_redirect_after_a_refusal_has_no_retry_after(status: int, has_retry_after: bool) -> None:
    fields = dict(fields_for(REFUSED, DRAFT, epoch=0, status=status))
    assert ("Retry-After" in fields) is has_retry_after
    assert fields["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("accept", "text"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/problem+json", False),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", True),
        ("text/plain", True),
        ("TEXT/HTML ; Q=0.9 , application/json;q=0.8", True),
        ("text/html;q=0.5, application/json", False),
        ("text/html;q=0.5, */*", False),
        ("application/json, text/html", False),
        ("text/html, application/json", True),
        ("text/html;q=0", False),
        ("text/html;q=x, */*;q=0.1", False),
        ("text/html;level=1;q=0.7, */*;q=0.1", True),
        ("image/png", False),
        (",;,=;q", False),
        ("text/html;q=1.5", True),
        ("image/png;" + "x" * 1_013 + ",text/html", False),  # only the first 1,024 characters are read
        ("text/html," + "x" * 9_999, True),
        ("text/html;q=0," + "x" * 1_001 + ",text/html", False),
        ("text/html;" + "x" * 1_014 + ",*/*", True),
        ("text/html;" + "x" * 1_015 + ",*/*", False),
    ],
)
def test_what_a_client_prefers(accept: str, text: bool) -> None:
    assert wants_text(accept) is text


@pytest.mark.slow
@given(st.text())
def test_no_accept_header_raises(accept: str) -> None:
    assert wants_text(accept) in (True, False)


# Merging


@pytest.mark.parametrize(
    ("existing", "added", "expected"),
    [
        ([], [("RateLimit", '"a";r=1')], {"RateLimit": '"a";r=1'}),
        ([("Server", "x")], [("RateLimit", '"a";r=1')], {"Server": "x", "RateLimit": '"a";r=1'}),
        ([("ratelimit", '"a";r=1')], [("RateLimit", '"b";r=2')], {"RateLimit": '"a";r=1, "b";r=2'}),
        (
            [("RateLimit", '"a";r=1, "a-2";r=2')],
            [("RateLimit", '"a";r=3')],
            {"RateLimit": '"a";r=1, "a-2";r=2, "a-3";r=3'},
        ),
        (
            [("RateLimit", '"a";r=1'), ("RateLimit", '"b";r=2')],
            [("RateLimit", '"b";r=3')],
            {"RateLimit": '"a";r=1, "b";r=2, "b-2";r=3'},
        ),
        (  # a name means the same policy in both fields
            [("RateLimit-Policy", '"a";q=1, "b";q=2'), ("RateLimit", '"a";r=0')],
            [("RateLimit-Policy", '"a";q=3, "b";q=4'), ("RateLimit", '"b";r=1')],
            {"RateLimit-Policy": '"a";q=1, "b";q=2, "a-2";q=3, "b-2";q=4', "RateLimit": '"a";r=0, "b-2";r=1'},
        ),
        ([("RateLimit", '"a\\"b";r=1')], [("RateLimit", '"a\\"b";r=2')], {"RateLimit": '"a\\"b";r=1, "a\\"b-2";r=2'}),
        (  # the text of a parameter is no name
            [("RateLimit-Policy", '"a";q=5;qu="concurrent-requests"')],
            [("RateLimit-Policy", '"request";q=5;qu="concurrent-requests", "a";q=2;qu="a, \\"request"')],
            {
                "RateLimit-Policy": '"a";q=5;qu="concurrent-requests", "request";q=5;qu="concurrent-requests", '
                '"a-2";q=2;qu="a, \\"request"'
            },
        ),
        (
            [("RateLimit-Policy", '"b";qu="a"')],
            [("RateLimit-Policy", '"a";q=1')],
            {"RateLimit-Policy": '"b";qu="a", "a";q=1'},
        ),
        ([("Retry-After", "5")], [("Retry-After", "60")], {"Retry-After": "60"}),
        ([("retry-after", "60"), ("Retry-After", "7")], [("Retry-After", "5")], {"Retry-After": "60"}),
        ([("Retry-After", "Mon, 05 Aug 2019 09:27:05 GMT")], [("Retry-After", "5")], {"Retry-After": "5"}),
        ([("Retry-After", "9" * 5000)], [("Retry-After", "5")], {"Retry-After": "5"}),
        ([("Cache-Control", "public")], [("Cache-Control", "no-store")], {"Cache-Control": "no-store"}),
        (
            [("Cache-Control", "private, No-Store")],
            [("Cache-Control", "no-store")],
            {"Cache-Control": "private, No-Store"},
        ),
        (  # room for one rule: the tighter one stays
            [("RateLimit", "limit=10, remaining=1, reset=5")],
            [("RateLimit", "limit=10, remaining=9, reset=9")],
            {"RateLimit": "limit=10, remaining=1, reset=5"},
        ),
        (
            [("RateLimit", "limit=10, remaining=9, reset=5")],
            [("RateLimit", "limit=100, remaining=5, reset=9")],
            {"RateLimit": "limit=100, remaining=5, reset=9"},
        ),
        (
            [("X-RateLimit-Limit", "10"), ("X-RateLimit-Remaining", "1"), ("X-RateLimit-Reset", "5")],
            [("X-RateLimit-Limit", "9"), ("X-RateLimit-Remaining", "8"), ("X-RateLimit-Reset", "7")],
            {"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "5"},
        ),
        (
            [("X-RateLimit-Limit", "garbage"), ("X-RateLimit-Remaining", "1"), ("X-RateLimit-Reset", "5")],
            [("X-RateLimit-Limit", "9"), ("X-RateLimit-Remaining", "8"), ("X-RateLimit-Reset", "7")],
            {"X-RateLimit-Limit": "9", "X-RateLimit-Remaining": "8", "X-RateLimit-Reset": "7"},
        ),
        ([("RateLimit-Policy", "10;w=60")], [("RateLimit-Policy", "9;w=1")], {"RateLimit-Policy": "10;w=60, 9;w=1"}),
        (  # two dialects cannot be one value
            [("RateLimit", "limit=10, remaining=1, reset=5")],
            [("RateLimit", '"a";r=8')],
            {"RateLimit": '"a";r=8'},
        ),
    ],
)
def test_merge(existing: list[tuple[str, str]], added: list[tuple[str, str]], expected: dict[str, str]) -> None:
    merged = merge(existing, added)
    assert dict(merged) == expected
    assert len(merged) == len(expected)


def test_merge_keeps_all_other_fields_in_order() -> None:
    own = [("Set-Cookie", "a"), ("X", "1"), ("Set-Cookie", "b"), ("retry-after", "3")]
    assert merge(own, [("RateLimit", '"a";r=1')]) == [*own, ("RateLimit", '"a";r=1')]
    assert merge(own, [("Retry-After", "9")]) == [*own[:3], ("Retry-After", "9")]


DATES = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994")
MOMENT = 784111777


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize(
    ("ahead", "wins"), [(3600, True), (60.5, True), (60, False), (59, False), (0, False), (-3600, False)]
)
def test_the_later_retry_after_wins_also_if_it_is_a_date(date: str, ahead: float, wins: bool) -> None:
    for lines in ([date], ["7", date, "soon"]):
        own = [("retry-after", line) for line in lines]
        joined = merge(own, [("Retry-After", "60")], epoch=lambda: MOMENT - ahead)
        assert joined == [("Retry-After", date if wins else "60")]


@pytest.mark.parametrize(
    "text",
    [
        *["", "soon", "-1", "1.5", "+90", "9" * 16, " 90", "90, 91", "٩٠"],
        "Sun, 31 Feb 2094 08:49:37 GMT",
        "Sun, 06 Nov 2094 24:00:00 GMT",
        "Sun, 06 Nov 2094 23:59:60 GMT",
        "Sun, 06 Xyz 2094 08:49:37 GMT",
        "Sun, 06 Nov 0094 08:49:37 GMT",
        "Sun, 06 Nov 2094 08:49:37 +0000",
        "Sun, 06 Nov 2094 08:49:37 GMT ",
        "Sun, 6 Nov 2094 08:49:37 GMT",
        "2094-11-06T08:49:37Z",
        "Sun, 06 Nov " + "2" * 100_000 + " 08:49:37 GMT",
        "Sun," * 25_000,
        " " * 100_000 + "GMT",
    ],
)
def test_an_invalid_retry_after_is_replaced(text: str) -> None:
    assert merge([("Retry-After", text)], [("Retry-After", "60")], epoch=lambda: 0) == [("Retry-After", "60")]


def test_the_time_of_day_is_read_only_for_a_date() -> None:
    def unread() -> float:
        raise AssertionError("the clock was read")

    for text in ("7", "soon", "90"):
        merge([("Retry-After", text), ("RateLimit", '"a";r=1')], [("Retry-After", "60")], epoch=unread)


@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_two_limiters_of_one_dialect_make_one_valid_response(dialect: str) -> None:
    limiter = Limiter(clock=ManualClock())
    one, other = limiter.hit("5/minute", "a", action="x"), limiter.hit("9/hour", "a", action="x")
    first = fields_for(one, dialect, epoch=0, status=200)
    merged = merge(first, fields_for(other, dialect, epoch=0, status=200))
    assert len({name.lower() for name, _ in merged}) == len(merged)
    if dialect == DRAFT:
        assert [name for name, _ in parsed(dict(merged)["RateLimit"])] == ["x", "x-2"]


@pytest.mark.parametrize("rules", [1, 2])
def test_a_cached_response_is_found_without_another_decision(rules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = REFUSED._replace(checks=REFUSED.checks[:rules], outcomes=REFUSED.outcomes[:rules])
    first = denial(refused, DRAFT, epoch=0)
    for made_again in ("Check", "Outcome", "Decision"):
        monkeypatch.setattr(http, made_again, None)
    later = tuple([each._replace(reset_after=each.reset_after + SECOND) for each in refused.outcomes])  # not shown
    assert denial(refused._replace(outcomes=later), DRAFT, epoch=5) is first

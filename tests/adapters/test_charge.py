"""A charge inside a view, in every adapter, sync and async: it joins what was decided about the request before."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from sluicegate import Decision, ManualClock, RateLimitExceeded, Rule
from sluicegate.errors import ConfigurationError, NotEnforcedError
from sluicegate.testing.charges import wrong
from tests.adapters.charging import END, SITES, Ask, Sites, ask, block, forget
from tests.servers import Server

Steps = Generator[Ask, Decision, str]


@pytest.fixture(params=SITES)
def make(request: pytest.FixtureRequest) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield Sites(request.param, stack)


def once() -> Steps:
    yield ask("2/minute", key="ip", name="own")
    return "done"


def test_a_charge_counts_refuses_and_joins_the_fields(make: Sites) -> None:
    site = make(once, {"/a": "9/hour"}, default_limits=["5/minute"], clock=ManualClock())
    passed = site.get()
    assert (passed.status, passed.body) == (200, b"done")
    assert passed.one("ratelimit") == '"default";r=4;t=60, "view";r=8;t=3600, "own";r=1;t=60'
    assert site.statuses("/a") == [200]
    refused = site.get()
    assert (refused.status, refused.one("retry-after"), refused.one("cache-control")) == (429, "60", "no-store")
    assert refused.one("ratelimit") == '"own";r=0;t=60'
    assert json.loads(refused.body)["violated-policies"] == ["own"]
    assert site.left() == '"default";r=2;t=60'  # the refusal gave the default limit back


@pytest.mark.parametrize("where", ["settings", "view", "charge"])
def test_on_denied_is_called_wherever_it_is_given(make: Sites, where: str) -> None:
    asked: list[Any] = []
    note = {"on_denied": lambda request, decision: asked.append(decision.rule)}  # None: the usual response
    given = {place: note if place == where else {} for place in ("settings", "view", "charge")}

    def charges() -> Steps:
        yield ask("9/minute" if where == "view" else "1/minute", name="own", **given["charge"])
        return "done"

    view = {"quota": "1/minute" if where == "view" else "9/minute", **given["view"]}
    site = make(charges, {"/a": view}, clock=ManualClock(), **given["settings"])
    assert (site.statuses("/a", "/a"), asked) == ([200, 429], ["view" if where == "view" else "own"])


def test_a_refusal_gives_back_exactly_what_the_request_was_charged(make: Sites) -> None:
    rules = [Rule(name="shadow", quota="1/minute", mode="shadow"), Rule(name="all", quota="7/minute", cost=2)]
    site = make(once, {"/a": "9/hour"}, default_limits=["9/day"], rules=rules, clock=ManualClock())
    assert site.statuses(*["/a"] * 5) == [200, 200, 429, 429, 429]
    assert site.left() == '"default";r=6;t=86400, "all";r=1;t=60'


def paid() -> Steps:
    yield ask("1/minute", refund_earlier=False)
    return "done"


def test_refund_earlier_false_keeps_the_earlier_charges(make: Sites) -> None:
    site = make(paid, default_limits=["9/day"], clock=ManualClock())
    assert site.statuses("/a", "/a", "/a") == [200, 429, 429]
    assert site.left() == '"default";r=5;t=86400'


def caught() -> Steps:
    first = yield ask("9/hour", scope="first")
    assert first.remaining is not None
    try:
        yield ask("1/minute", scope="second")
    except RateLimitExceeded as error:
        third = yield ask("9/hour", scope="third")
        return f"{error.decision.allowed} {error.decision.rule} {third.remaining}"
    return f"done {first.remaining}"


def test_a_view_may_catch_the_refusal(make: Sites) -> None:
    site = make(caught, default_limits=["9/day"], clock=ManualClock())
    assert site.get().body == b"done 8"
    busy = site.get()
    assert (busy.status, busy.body, busy.one("retry-after")) == (200, b"False second 8", None)
    assert busy.one("ratelimit") == '"default";r=8;t=86400, "first";r=8;t=3600, "second";r=0;t=60, "third";r=8;t=3600'
    assert site.left() == '"default";r=7;t=86400'


def test_a_refusal_that_is_caught_again_and_again_has_one_name(make: Sites) -> None:
    """In the fields, and in the events: a name for each attempt would be a series of metrics for each."""

    def stubborn() -> Steps:
        for _ in range(5):
            with suppress(RateLimitExceeded):
                yield ask("1/minute; 1/hour", name="own", refund_earlier=False)
        return "done"

    seen: list[str] = []
    site = make(
        stubborn, clock=ManualClock(), on_decision=lambda event: seen.extend(line[0] for line in event.labels()[4])
    )
    for _ in range(2):
        fields = site.get().one("ratelimit")
        assert re.findall(r'"([^"]*)"', fields or "") == ["own-minute", "own-hour"]
    assert set(seen) == {"own-minute", "own-hour"}


def twice() -> Steps:
    first = yield ask("5/minute", key="ip")
    second = yield ask("5/minute", key="ip")
    mixed = yield ask("5/minute; 9/hour", key="ip")
    default = yield ask("9/day", scope="default")
    return f"{first.remaining} {second.remaining} {mixed.by_rule.keys() and mixed.remaining} {default.remaining}"


@pytest.mark.parametrize("quotas", [("9/minute", "2/minute"), (lambda _: "9/minute", lambda _: "2/minute")])
def test_a_stricter_rule_of_the_same_budget_takes_the_place_of_the_looser_one(make: Sites, quotas: Any) -> None:
    def view() -> Steps:
        for quota in quotas:
            yield ask(quota, scope="both")
        return "done"

    site = make({"/a": view}, default_limits=["7/minute"], clock=ManualClock())
    assert site.statuses("/a", "/a", "/a", "/a") == [200, 200, 429, 429]
    assert site.left() == '"default";r=4;t=60'


@pytest.mark.parametrize(("cost", "left"), [(1, 8), (2, 7)])
def test_the_looser_rule_shows_what_is_left_after_the_stricter_one(make: Sites, cost: int, left: int) -> None:
    def view() -> Steps:
        yield ask("9/minute", scope="both")
        yield ask("5/minute", scope="both", cost=cost)
        return "done"

    site = make({"/a": view}, clock=ManualClock())
    stricter = 5 - cost
    assert site.get().one("ratelimit") == f'"both";r={left};t=60, "both-2";r={stricter};t=60'
    again = f'"both";r={left - cost};t=60, "both-2";r={stricter - cost};t=60'
    assert site.get().one("ratelimit") == again


def test_a_shadow_rule_that_would_have_refused_gives_nothing_back_for_a_stricter_one(make: Sites) -> None:
    def view() -> Steps:
        first = yield ask("2/minute; 1/hour", scope="both")
        second = yield ask("1/minute", scope="both")
        return f"{len(first.would_refuse)} {len(second.would_refuse)}"

    site = make({"/a": view}, mode="shadow", clock=ManualClock())
    assert [site.get().body for _ in range(2)] == [b"0 0", b"1 1"]


def test_a_caught_refusal_of_a_stricter_rule_leaves_the_looser_one_charged(make: Sites) -> None:
    def view() -> Steps:
        yield ask("3/minute", scope="both")
        with suppress(RateLimitExceeded):
            yield ask("1/minute", scope="both", refund_earlier=False)
        return "done"

    assert make({"/a": view}, clock=ManualClock()).statuses("/a", "/a", "/a", "/a") == [200, 200, 200, 429]


def test_a_rule_that_counts_refusals_keeps_its_charge(make: Sites) -> None:
    rules = [Rule(name="all", quota="9/minute", count_denied=True)]
    site = make(once, rules=rules, default_limits=["9/day"], clock=ManualClock())
    assert site.statuses(*["/a"] * 4) == [200, 200, 429, 429]
    assert site.left() == '"default";r=6;t=86400, "all";r=4;t=60'


def test_a_rule_is_charged_once_for_a_request(make: Sites) -> None:
    site = make(twice, default_limits=["9/day"], clock=ManualClock())
    assert [site.get().body for _ in range(2)] == [b"4 4 4 8", b"3 3 3 7"]
    assert site.left() == '"default";r=6;t=86400'


def test_each_view_has_a_budget_of_its_own_unless_a_scope_shares_it(make: Sites) -> None:
    def shared() -> Steps:
        yield ask("1/minute", scope="both")
        return "done"

    views = {"/a": once, "/b": once, "/c": shared, "/d": shared}
    site = make(views, clock=ManualClock())
    assert site.statuses("/a", "/a", "/a", "/b", "/b", "/b", "/c", "/d") == [200, 200, 429, 200, 200, 429, 200, 429]


def holds() -> Steps:
    yield ask("1 at once", scope="slots")
    yield ask("2/minute", scope="count")
    return "done"


def blocks() -> Steps:
    with_block = yield block("1 at once", scope="slots")
    yield ask("1 at once", scope="other slots")
    with suppress(RateLimitExceeded):  # the block goes on with its slot
        yield ask("5/minute", cost=lambda _: 9, scope="refuses")
    inside = yield block("1 at once", scope="slots")
    other = yield ask("3 at once", scope="other slots")
    yield END
    after = yield block("3 at once", scope="slots", name="after")
    return f"{with_block.remaining} {inside.remaining} {other.remaining} {after.remaining}"


def test_a_slot_is_held_until_the_block_or_the_response_ends(make: Sites) -> None:
    site = make({"/a": holds, "/b": blocks}, clock=ManualClock())
    assert site.statuses("/a", "/a", "/a") == [200, 200, 429]  # the refusal released the slot
    assert [site.get("/b").body for _ in range(3)] == [b"0 0 2 2"] * 3


def failing() -> Steps:
    yield ask("2/minute", charge_when=wrong)
    return "done"


def test_a_charge_may_depend_on_the_response(make: Sites) -> None:
    site = make(failing, clock=ManualClock())
    assert site.statuses(*["/a"] * 4) == [200] * 4
    assert (site.get().one("ratelimit") or "").endswith(";r=2")


def nobody() -> Steps:
    none = yield ask("1/minute", key=lambda _: None)
    return f"{none.allowed} {none.remaining}"


def test_where_no_rule_applies_or_limits_are_off_the_charge_allows(make: Sites) -> None:
    site = make(nobody, clock=ManualClock())
    assert [site.get().body for _ in range(3)] == [b"True None"] * 3
    site = make(once, enabled=False)
    assert site.statuses(*["/a"] * 3) == [200] * 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kee": "ip"}, "charge 'kee': no such option; did you mean \"key\""),
        ({"override_defaults": True}, "charge 'override_defaults': the default limits are charged already"),
        ({"refund_earlier": "no"}, "refund_earlier 'no': neither True nor False"),
        ({"cost": True}, ": cost True: not a whole number of units"),
        ({"quota": {"5": "minute"}}, ": quota {'5': 'minute'}: not a quota"),
    ],
)
def test_wrong_arguments_say_what_to_do(make: Sites, options: dict[str, Any], text: str) -> None:
    def wrongly() -> Steps:
        yield ask("5/minute", cost=1)
        try:
            yield ask(**{"quota": "5/minute", **options})
        except ConfigurationError as error:
            return str(error)
        return "nothing"

    assert text in make(wrongly, clock=ManualClock()).get().body.decode()


@pytest.mark.parametrize("make", ["django-asgi", "django-async-view", "starlette", "fastapi", "asgi"], indirect=True)
def test_a_charge_whose_await_was_forgotten_is_logged(make: Sites, caplog: pytest.LogCaptureFixture) -> None:
    """By Python too, unless its warning is off (issue 26)."""

    def forgets() -> Steps:
        yield forget("5/minute")
        return "done"

    name = "acharge" if "django" in make.name else "charge"
    with pytest.warns(RuntimeWarning, match=f"^coroutine '{name}' was never awaited"):
        assert make(forgets, clock=ManualClock()).get().body == b"done"
    (line,) = [record.getMessage() for record in caplog.records if "[SG009]" in record.getMessage()]
    assert re.fullmatch(rf".*charging\.py, line \d+: {name} was not awaited.* write await {name}\(…\) \[SG009\]", line)
    assert caplog.records[-1].levelname == "ERROR"


def test_without_the_middleware_it_never_allows(make: Sites) -> None:
    def unlimited() -> Steps:
        try:
            yield ask("5/minute")
        except NotEnforcedError as error:
            return str(error)
        return "allowed"

    assert b"[SG008]" in make.without_middleware(unlimited).get().body


@pytest.mark.parametrize("real", [False, True], ids=["memory", "server"])
def test_the_store_has_nothing_left_after_a_refusal(make: Sites, real: bool, request: pytest.FixtureRequest) -> None:
    options: dict[str, Any] = {}
    if real:
        server: Server = request.getfixturevalue("valkey")
        options = {"store": server.url, "prefix": make.name, "deadline": 10}  # patient: the machine may be busy
    site = make(once, {"/a": "9/hour"}, default_limits=["9/day"], **options)
    assert site.statuses(*["/a"] * 4) == [200, 200, 429, 429]
    assert (site.left() or "").startswith('"default";r=6;')

"""Marks and endpoints: what decorators leave on views, guards, and the names of budgets."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from sluicegate import Limiter, ManualClock
from sluicegate.errors import AlgorithmError, ConfigurationError, IdentityError, QuotaError, RuleError
from sluicegate.web.endpoint import Endpoint, label_of, scope_of, short_name
from sluicegate.web.gate import Gate
from sluicegate.web.marks import (
    EXEMPT,
    Arguments,
    Guard,
    Mark,
    Options,
    declare,
    declare_within,
    guarded,
    make_mark,
    marks_of,
)
from sluicegate.web.request_state import RequestState
from sluicegate.web.settings import Settings


def view(number: int, *, text: str = "") -> str:
    """A view."""
    return f"{number}{text}"


def fresh() -> Callable[..., Any]:
    """A function of its own for each test: marks stay."""

    def made(number: int, *, text: str = "") -> str:
        """A view."""
        return f"{number}{text}"

    return made


class Watch(Guard):
    """A guard that records its calls, and may raise an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.error = error

    def sync(self, mark: Mark, view: Callable[..., object], args: Arguments, kwargs: Options) -> None:
        self.seen.append((mark, view, args, kwargs))
        if self.error is not None:
            raise self.error


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


# Marks


def test_marks_gather_innermost_first_and_each_once() -> None:
    made, one, two = fresh(), make_mark("1/s"), make_mark("2/s")
    assert marks_of(made) == ()
    assert declare(declare(declare(made, one), two), one) is made
    assert marks_of(made) == (one, two)


def test_marks_are_compared_by_identity() -> None:
    assert make_mark("1/s") != make_mark("1/s")


def test_a_bound_method_is_marked_on_its_function() -> None:
    class Pages:
        def home(self) -> str:
            return "home"

    mark = make_mark("1/s")
    declare(Pages().home, mark)
    assert marks_of(Pages.home) == marks_of(Pages().home) == (mark,)


def test_a_mark_reaches_the_functions_that_a_view_wraps() -> None:
    made = fresh()
    outer = plain(guarded(made, make_mark("1/s"), Watch()))
    mark = make_mark("2/s")
    declare_within(outer, mark)
    assert marks_of(outer) == marks_of(made) == (mark,)
    declare(outer, EXEMPT)
    assert EXEMPT not in marks_of(made)


@pytest.mark.parametrize("inner", [len, "".join, object()])
def test_a_built_in_inside_a_view_is_skipped(inner: Any) -> None:
    made, mark = fresh(), make_mark("1/s")
    made.__wrapped__ = inner  # type: ignore[attr-defined]
    assert marks_of(declare_within(made, mark)) == (mark,)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("5/fortnight",), QuotaError),
        ((None,), QuotaError),
        (("5/minute", {"cost": 6}), RuleError),
        (("5/minute", {"cost": -1}), RuleError),
        (("5/minute", {"key": "users"}), IdentityError),
        (("5/minute", {"algorithm": "leaky"}), AlgorithmError),
        (("5/minute burst 9", {"algorithm": "sliding-window"}), AlgorithmError),
        (("5/minute; 6/minute",), QuotaError),
        (("5/minute", {"methods": []}), RuleError),
        (("5/minute", {"scope": ""}), RuleError),
        (("5/minute", {"name": "café"}), RuleError),
        (("5/minute", {"when": "always"}), RuleError),
        (("5/minute", {"override_defaults": 1}), RuleError),
        (("5/minute", {"count_denied": 1}), RuleError),
        (("5/minute", {"on_store_failure": "open"}), RuleError),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: tuple[Any, ...], error: type[ConfigurationError]) -> None:
    quota, options = arguments if len(arguments) == 2 else (*arguments, {})
    with pytest.raises(error):
        make_mark(quota, **options)


def test_a_function_as_scope_is_named_and_is_a_part_of_the_key() -> None:
    with pytest.raises(RuleError, match=r'@limit scope .*test_marks.*: a function; .*key=\("ip", f\)'):
        make_mark("5/minute", scope=lambda endpoint: endpoint)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "name", "scope"),
    [
        ({}, "reply", "shop.reply"),
        ({"name": "n"}, "n", "shop.reply"),
        ({"scope": "s"}, "s", "s"),
        ({"name": "n", "scope": "s"}, "n", "s"),
    ],
)
def test_a_rule_gets_the_views_name_and_scope_where_it_was_given_none(
    options: dict[str, Any], name: str, scope: str
) -> None:
    rule = make_mark("1/s", **options).rule_for("reply", "shop.reply")
    assert (rule.name, rule.scope) == (name, scope)


# Guards


def test_a_guard_passes_the_arguments_on_and_looks_like_the_view() -> None:
    made, watch, mark = fresh(), Watch(), make_mark("1/s")
    guarded_view = guarded(declare(made, mark), mark, watch)
    assert guarded_view(5, text="x") == "5x"
    assert watch.seen == [(mark, made, (5,), {"text": "x"})]
    assert (guarded_view.__name__, guarded_view.__doc__, marks_of(guarded_view)) == ("made", "A view.", (mark,))
    assert inspect.signature(guarded_view) == inspect.signature(made)


def test_an_async_view_stays_one() -> None:
    async def later(number: int) -> int:
        return number

    watch = Watch()
    guarded_view = guarded(later, make_mark("1/s"), watch)
    assert inspect.iscoroutinefunction(guarded_view)
    assert asyncio.run(guarded_view(5)) == 5
    assert len(watch.seen) == 1


def test_a_view_is_not_called_if_its_guard_raises() -> None:
    called: list[int] = []

    async def later(number: int) -> None:
        called.append(number)

    mark, watch = make_mark("1/s"), Watch(LookupError())
    with pytest.raises(LookupError):
        guarded(called.append, mark, watch)(5)
    with pytest.raises(LookupError):
        asyncio.run(guarded(later, mark, watch)(5))
    assert called == []


# Places


class Pages:
    def __call__(self) -> str:
        return "called"

    def home(self) -> str:
        return "home"


@pytest.mark.parametrize(
    ("thing", "label"),
    [
        (view, "view"),
        (plain(view), "view"),
        (partial(view, 5), "view"),
        (partial(partial(view, 5), text=""), "view"),
        (Pages, "Pages"),
        (Pages(), "Pages"),
        (Pages.home, "Pages.home"),
        (Pages().home, "Pages.home"),
        (lambda: 1, "<lambda>"),
    ],
)
def test_labels(thing: Any, label: str) -> None:
    assert label_of(thing) == f"{__name__}.{label}"


@pytest.mark.parametrize(
    ("place", "name", "scope"),
    [
        (Endpoint(label="shop.reply", route="/a"), "reply", "shop.reply"),
        (Endpoint(label="shop.Pages.home", route="/a"), "home", "shop.Pages.home"),
        (Endpoint(label="shop.make.<locals>.reply", route="/a"), "reply", "shop.make.<locals>.reply[/a]"),
        (Endpoint(label="shop.<lambda>", route="/a"), "<lambda>", "shop.<lambda>[/a]"),
        (Endpoint(), "limit", ""),
    ],
)
def test_names_and_scopes_of_views(place: Endpoint, name: str, scope: str) -> None:
    assert (short_name(place), scope_of(place)) == (name, scope)


@pytest.mark.parametrize("label", ["shop.größe", "x" * 200, "a.b\x00c"])
def test_a_scope_that_could_not_be_one_is_digested(label: str) -> None:
    scope, other = scope_of(Endpoint(label=label)), scope_of(Endpoint(label=label + "x"))
    assert scope != other
    assert scope[0] == other[0] == "~"
    assert len(scope) < 30
    assert short_name(Endpoint(label=label)).isascii()
    assert len(short_name(Endpoint(label=label))) <= 128


def test_a_second_mark_of_a_view_has_a_second_budget() -> None:
    one, two, shared, three = (
        make_mark("1/s"),
        make_mark("1/s"),
        make_mark("1/s", scope="s"),
        make_mark("1/s", name="n"),
    )
    place = Endpoint(marks=(one, two, shared, EXEMPT, three), label="shop.reply")
    assert [scope_of(place, mark) for mark in (one, two, three)] == ["shop.reply", "shop.reply#2", "shop.reply#3"]


# Passages


def test_a_request_state_joins_several_decisions() -> None:
    limiter, state = Limiter(clock=ManualClock()), RequestState(Gate(Settings()))
    state.note(None)
    assert state.decision is None
    first = limiter.hit("5/minute", "a", action="x")
    state.note(first)
    assert state.decision == first
    for _ in range(2):
        state.note(limiter.hit("1/minute", "a", action="y"))
    decision = state.decision
    assert decision is not None
    assert (decision.allowed, decision.rule, list(decision.by_rule)) == (False, "y-2", ["x", "y", "y-2"])
    assert [outcome.allowed for outcome in decision.outcomes] == [True, True, False]

"""Wrong uses of `@limit` and `@exempt` in every adapter: an error with a code, at the decorator."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import flask.views
import pytest
from starlette.endpoints import HTTPEndpoint
from starlette.requests import HTTPConnection

import sluicegate.django
import sluicegate.fastapi
import sluicegate.flask
import sluicegate.starlette
import sluicegate.wsgi
from sluicegate import Quota, Tiers
from sluicegate.errors import ConfigurationError, QuotaError, RuleError
from sluicegate.web.marks import MarkOptions, make_mark, marks_of

ADAPTERS = [sluicegate.starlette, sluicegate.fastapi, sluicegate.flask, sluicegate.django]
adapters = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
PARENTHESES = '@limit("5/minute")'


def by_plan(request: Any) -> str:
    return "5/minute"


async def by_plan_async(request: Any) -> str:
    return "5/minute"


def make_quota() -> Callable[[Any], str]:
    def by_plan(request: Any) -> str:
        return "5/minute"

    return by_plan


def a_class(limit: Any) -> None:
    @limit
    class Page:
        def get(self, request: Any) -> None: ...


def a_flask_view(limit: Any) -> None:
    limit(flask.views.MethodView)


def an_endpoint(limit: Any) -> None:
    limit(HTTPEndpoint)


def a_method(limit: Any) -> None:
    class Page:
        @limit
        def get(self, request: Any) -> None: ...


def a_static_method(limit: Any) -> None:
    class Page:
        @limit
        @staticmethod
        def get(request: Any) -> None: ...

    Page.get(HTTPConnection({"type": "http"}))


def called_with(*given: Any, **named: Any) -> Callable[[Any], None]:
    """A view that a framework calls with these arguments."""

    def decorated(limit: Any) -> None:
        @limit
        def view(*given: Any, **named: Any) -> None: ...

        view(*given, **named)

    return decorated


BARE: dict[str, tuple[Callable[[Any], None], str]] = {  # the use of `@limit` without parentheses, and what to do
    "a class": (a_class, "give a Quota"),
    "a class of Flask": (a_flask_view, "give a Quota"),
    "a class of Starlette": (an_endpoint, "give a Quota"),
    "a method": (a_method, "give a function of request"),
    "a static method": (a_static_method, PARENTHESES),
    "a view of Starlette": (called_with({"type": "http"}, print, print), PARENTHESES),
    "a view of Django": (called_with(HTTPConnection({"type": "http"})), PARENTHESES),
    "a view of Django with arguments": (called_with(HTTPConnection({"type": "http"}), pk=5), PARENTHESES),
    "a view of Flask": (called_with(), PARENTHESES),
    "a view of Flask with arguments": (called_with(pk=5), PARENTHESES),
}


@adapters
@pytest.mark.parametrize("name", BARE)
def test_limit_without_parentheses_calls_no_view(adapter: Any, name: str) -> None:
    decorate, expected = BARE[name]
    with pytest.raises(ConfigurationError, match=r"SG00[12]") as caught:
        decorate(adapter.limit)
    assert expected in caught.value.expected


FUNCTIONS: list[Callable[[Any], Any]] = [
    lambda limit: limit(by_plan),
    lambda limit: limit(by_plan_async),
    lambda limit: limit(make_quota()),
    lambda limit: limit(lambda request: "5/minute"),
    lambda limit: limit(functools.partial(by_plan)),
    lambda limit: limit(functools.cache(by_plan)),
    lambda limit: limit(Tiers({"a": "5/minute"}, by=by_plan)),
    lambda limit: limit(quota=by_plan),
]


@adapters
@pytest.mark.parametrize("make", FUNCTIONS, ids=range(len(FUNCTIONS)))
def test_a_function_of_the_request_is_still_a_quota(adapter: Any, make: Any) -> None:
    @make(adapter.limit)
    def view(request: Any) -> None: ...

    assert len(marks_of(view)) == 1


# the call of limit → the given value, the problem, what to do
WRONG: list[tuple[tuple[Any, ...], dict[str, Any], object, str, str]] = [
    ((), {}, (), "no quota", PARENTHESES),
    ((), {"scope": "s"}, (), "no quota", PARENTHESES),
    (("5/minute", "s"), {}, "s", "only the quota is a positional argument", "as scope="),
    (("5/minute", "s", "n"), {}, "s", "only the quota is a positional argument", "as scope="),
    (("5/minute", "9/hour"), {}, "9/hour", "only the quota is a positional argument", '"5/minute; 100/day"'),
    (("5/minute",), {"quota": "6/minute"}, "6/minute", "given twice", "keep one of the two"),
    (("5/minute",), {"kei": "ip"}, "kei", "no such option", 'did you mean "key"?'),
    (("5/minute",), {"method": ["POST"]}, "method", "no such option", 'did you mean "methods"?'),
    (("5/minute",), {"override_default": True}, "override_default", "no such option", '"override_defaults"?'),
    (("5/minute",), {"zzz": 1}, "zzz", "no such option", f"known are quota, {', '.join(MarkOptions.__annotations__)}"),
    (("5/minute",), {"prefetch": 8}, "prefetch", "no such option", "known are quota, key"),
    (("5/minute",), {"path": "/x"}, "path", "no such option", "give it to a Rule of the settings"),
    (("5/minute",), {"route": "x"}, "route", "no such option", "give it to a Rule of the settings"),
    (("5/minute",), {"user": by_plan}, "user", "no such option", "to RateLimit of sluicegate.fastapi"),
    (("5/minute",), {"refund_earlier": True}, "refund_earlier", "no such option", "to a charge inside the view"),
]  # fmt: skip


@adapters
@pytest.mark.parametrize("row", WRONG, ids=range(len(WRONG)))
def test_wrong_arguments(adapter: Any, row: tuple[Any, ...]) -> None:
    quotas, options, given, problem, expected = row
    with pytest.raises(RuleError) as caught:
        adapter.limit(*quotas, **options)
    assert (caught.value.what, caught.value.given) == ("@limit", given)
    assert problem in caught.value.problem
    assert expected in caught.value.expected


OTHERS = ", ".join(name for name in MarkOptions.__annotations__ if name != "override_defaults")


@pytest.mark.parametrize(
    ("make", "name", "expected"),
    [
        (make_mark, "kei", 'did you mean "key"?'),
        (sluicegate.fastapi.RateLimit, "kei", 'did you mean "key"?'),
        (sluicegate.fastapi.RateLimit, "usr", 'did you mean "user"?'),
        (sluicegate.fastapi.RateLimit, "refund_earler", 'did you mean "refund_earlier"?'),
        (sluicegate.fastapi.RateLimit, "zzz", f"known are quota, user, refund_earlier, {OTHERS}"),
        (functools.partial(sluicegate.wsgi.charge, {}), "refund_earler", 'did you mean "refund_earlier"?'),
        (functools.partial(sluicegate.wsgi.charge, {}), "zzz", f"known are quota, refund_earlier, {OTHERS}"),
        (functools.partial(sluicegate.wsgi.charge, {}), "user", "give a key"),
    ],
)
def test_all_who_make_a_mark_refuse_unknown_options(make: Any, name: str, expected: str) -> None:
    with pytest.raises(RuleError) as caught:
        make("5/minute", **{name: "ip"})
    assert caught.value.expected.startswith(expected)


@adapters
@pytest.mark.parametrize("scope", [by_plan, "", "für"])
def test_a_wrong_scope_is_called_so(adapter: Any, scope: Any) -> None:
    with pytest.raises(
        RuleError, match=r"^(scope .*: not a name of printable ASCII|@limit scope .*by_plan': a function)"
    ):
        adapter.limit("5/minute", scope=scope)


@adapters
def test_a_wrong_quota_names_the_decorator(adapter: Any) -> None:
    for quota in ("5/fortnight", None, 5, [Quota(5, 60), "5/minute"]):
        with pytest.raises(QuotaError, match=r"rule '@limit': quota"):
            adapter.limit(quota)


@adapters
@pytest.mark.parametrize("call", [lambda exempt: exempt(), lambda exempt: exempt("x"), lambda exempt: exempt(None),
                                  lambda exempt: exempt(len), lambda exempt: exempt(by_plan, by_plan),
                                  lambda exempt: exempt(view=by_plan, other=1)], ids=range(6))  # fmt: skip
def test_exempt_on_other_values(adapter: Any, call: Any) -> None:
    with pytest.raises(RuleError, match="SG002") as caught:
        call(adapter.exempt)
    assert caught.value.what.startswith("@exempt")
    assert "@exempt" in caught.value.expected


@adapters
def test_exempt_takes_its_view_by_name_too(adapter: Any) -> None:
    def view(request: Any) -> None: ...

    assert len(marks_of(adapter.exempt(view=view))) == 1


@adapters
@pytest.mark.parametrize("view", [None, "view", 5, HTTPConnection({"type": "http"})], ids=type)
def test_limit_on_other_values(adapter: Any, view: Any) -> None:
    """With `@limit` without parentheses a request may arrive here."""
    with pytest.raises(ConfigurationError, match="SG002") as caught:
        adapter.limit("5/minute")(view)
    assert PARENTHESES in caught.value.expected


@adapters
def test_the_decorators_have_their_names(adapter: ModuleType) -> None:
    assert (adapter.limit.__name__, adapter.exempt.__name__) == ("limit", "exempt")
    assert adapter.limit.__doc__ is not None
    assert re.search("budget of its own|its own budget", adapter.limit.__doc__)

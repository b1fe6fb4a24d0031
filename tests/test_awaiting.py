"""Async functions in a synchronous application: found at start-up if possible, always with the same error."""

from __future__ import annotations

import asyncio
import functools
import gc
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, markcoroutinefunction

from sluicegate import Rule, Tiers
from sluicegate.errors import AsyncMismatchError, ConfigurationError
from sluicegate.runtime.awaiting import is_async, label_of
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.marks import make_mark
from sluicegate.web.settings import Settings
from sluicegate.wsgi import RateLimitMiddleware
from tests.adapters.wsgi_client import WsgiClient
from tests.test_gate import Visitor

WORDS = "an async function, but this application is called synchronously; give a plain function"


async def awaited(*given: Any) -> Any:
    return None


def hidden(*given: Any) -> Any:
    """A plain function that returns a coroutine."""
    return awaited()


class Called:
    async def __call__(self, *given: Any) -> Any:
        return None

    async def method(self, *given: Any) -> Any:
        return None

    @classmethod
    async def of_class(cls, *given: Any) -> Any:
        return None

    @staticmethod
    async def static(*given: Any) -> Any:
        return None


def annotated(*given: Any) -> Awaitable[str | None]:
    return awaited()


def marked(*given: Any) -> Any:
    return awaited()


markcoroutinefunction(marked)


HERE = __name__
SEEN: dict[str, tuple[Any, str]] = {  # what start-up can see, and its name
    "async def": (awaited, f"{HERE}.awaited"),
    "partial": (functools.partial(awaited, 1), f"{HERE}.awaited"),
    "partial of a partial": (functools.partial(functools.partial(Called().method), 1), f"{HERE}.Called.method"),
    "method": (Called().method, f"{HERE}.Called.method"),
    "class method": (Called.of_class, f"{HERE}.Called.of_class"),
    "static method": (Called.static, f"{HERE}.Called.static"),
    "object": (Called(), f"{HERE}.Called"),
    "cached": (functools.lru_cache(awaited), f"{HERE}.awaited"),
    "marked": (marked, f"{HERE}.marked"),
}


@functools.wraps(awaited)
def wrapped(*given: Any) -> Any:
    return awaited(*given)


@functools.wraps(awaited)
def bridged(*given: Any) -> Any:
    return asyncio.run(awaited(*given))


def perhaps(*given: Any) -> str | Awaitable[str]:
    return "alice"


UNSEEN: dict[str, tuple[Any, str]] = {  # seen only in the returned value
    "plain": (hidden, f"{HERE}.hidden"),
    "lambda": (lambda *given: awaited(), f"{HERE}.<lambda>"),
    "wrapped": (wrapped, f"{HERE}.awaited"),
    "annotated": (annotated, f"{HERE}.annotated"),
}
PLAIN: dict[str, Any] = {  # what returns at once: to refuse it would be wrong
    "plain": print,
    "class": str,
    "partial": functools.partial(str),
    "method": "".join,
    "bridge of asgiref": async_to_sync(awaited),
    "bridge by hand": bridged,
    "perhaps": perhaps,
    "a text": "ip",
    "nothing": None,
    "tiers": Tiers({"a": "1/minute"}, by=str),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_start_up_can_see(name: str) -> None:
    function, called = SEEN[name]
    assert is_async(function)
    assert label_of(function) == called


@pytest.mark.parametrize("function", [*PLAIN.values(), *[row[0] for row in UNSEEN.values()]], ids=[*PLAIN, *UNSEEN])
def test_what_it_cannot_see_and_must_not_refuse(function: Any) -> None:
    assert not is_async(function)


# where a function may stand: what the error names, and the settings with it
OPTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "rule 'r': key": lambda function: {"rules": [Rule(name="r", quota="5/minute", key=function)]},
    "rule 'default': key": lambda function: {"default_limits": ["5/minute"], "key": ("ip", function)},
    "rule 'r': cost": lambda function: {"rules": [Rule(name="r", quota="5/minute", cost=function)]},
    "rule 'r': quota": lambda function: {"rules": [Rule(name="r", quota=function)]},
    "rule 'r': Tiers.by": lambda function: {"rules": [Rule(name="r", quota=Tiers({"a": "5/minute"}, by=function))]},
    "rule 'r': when": lambda function: {"rules": [Rule(name="r", quota="5/minute", when=function)]},
    "allow": lambda function: {"allow": [function], "default_limits": ["5/minute"]},
    "deny": lambda function: {"deny": [function]},
    "key": lambda function: {"deny": [("alice",)], "key": (function,)},
}
# where an `on_denied` may stand. Flask awaits it, although its gate is synchronous.
ANSWERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "on_denied": lambda function: {"on_denied": function},
    "rule 'r': on_denied": lambda function: {"rules": [Rule(name="r", quota="5/minute", on_denied=function)]},
}


def page(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"page"]


@pytest.mark.parametrize("option", [*OPTIONS, *ANSWERS])
@pytest.mark.parametrize("name", SEEN)
def test_start_up_names_the_rule_the_option_and_the_function(option: str, name: str) -> None:
    function, called = SEEN[name]
    settings = Settings(**{**OPTIONS, **ANSWERS}[option](function))
    with pytest.raises(AsyncMismatchError) as caught:
        Gate(settings)
    assert str(caught.value) == f"{option} '{called}': {WORDS} [SG009]"
    AsyncGate(settings)
    if option in ANSWERS:
        Gate(settings, awaits_answers=True)


@pytest.mark.parametrize("option", ["key", "cost", "when", "on_denied"])
def test_a_mark_and_a_charge_are_refused_where_their_rule_is_bound(option: str) -> None:
    options: Any = {option: awaited}
    mark = make_mark("5/minute", name="r", **options)
    gate = Gate(Settings())
    for bind in (lambda: gate.bind(Endpoint(marks=(mark,), label="app.view")), lambda: gate.bind_rule(mark.rule)):
        with pytest.raises(AsyncMismatchError, match=rf"rule 'r': {option} '{HERE}.awaited'"):
            bind()
    if option == "on_denied":
        Gate(Settings(), awaits_answers=True).bind_rule(mark.rule)


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", UNSEEN)
def test_the_error_of_a_request_is_the_same_and_no_coroutine_is_left(option: str, name: str) -> None:
    function, called = UNSEEN[name]
    gate = Gate(Settings(**OPTIONS[option](function)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "coroutine … was never awaited"
        with pytest.raises(AsyncMismatchError) as caught:
            gate.decide(Visitor(), gate.bind(Endpoint()))
        assert str(caught.value) == f"{option} '{called}': {WORDS} [SG009]"
        del caught
        gc.collect()


def test_an_awaited_user_is_named_as_the_key_user() -> None:
    gate = Gate(Settings(default_limits=["5/minute"], key=("user", "ip")))
    with pytest.raises(AsyncMismatchError, match="rule 'default': key 'user': an async function"):
        gate.decide(Visitor(user=awaited()), gate.bind(Endpoint()))


@pytest.mark.parametrize("option", ["charge_when", "refund_when"])
@pytest.mark.parametrize("name", SEEN)
def test_a_predicate_of_the_response_is_seen_when_the_rule_is_made(option: str, name: str) -> None:
    function, called = SEEN[name]
    with pytest.raises(AsyncMismatchError) as caught:
        Rule(name="r", quota="5/minute", **{option: function})
    assert str(caught.value).startswith(f"rule 'r': {option} '{called}': an async function; give a plain function")


@pytest.mark.slow
@pytest.mark.parametrize("option", ["charge_when", "refund_when"])
@pytest.mark.parametrize("name", UNSEEN)
def test_a_predicate_that_hides_it_is_logged_and_the_charge_stays(
    option: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    function, called = UNSEEN[name]
    rule = Rule(name=f"{option} {name}", quota="1/minute", **{option: function})
    client = WsgiClient(RateLimitMiddleware(page, rules=[rule]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [client.request("GET", "/").status for _ in range(2)] == [200, 429]
        gc.collect()
    assert f"{option} '{called}': an async function; give a plain function" in caplog.text


@pytest.mark.parametrize("name", SEEN)
def test_on_denied_and_on_store_change_are_seen_at_start_up(name: str) -> None:
    function, called = SEEN[name]
    with pytest.raises(AsyncMismatchError) as caught:
        RateLimitMiddleware(page, default_limits=["1/minute"], on_denied=function)
    assert str(caught.value) == f"RateLimitMiddleware: on_denied '{called}': {WORDS} [SG009]"
    with pytest.raises(ConfigurationError, match=r"on_store_change .*: not a plain function"):
        Settings(on_store_change=function)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSEEN)
def test_on_denied_that_hides_it_says_the_same_with_the_refusal(name: str) -> None:
    function, called = UNSEEN[name]
    client = WsgiClient(RateLimitMiddleware(page, default_limits=["1/minute"], on_denied=function))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert client.request("GET", "/").status == 200
        with pytest.raises(AsyncMismatchError) as caught:
            client.request("GET", "/")
        assert str(caught.value) == f"on_denied '{called}': {WORDS} [SG009]"
        del caught
        gc.collect()


@pytest.mark.parametrize("name", [*SEEN, *UNSEEN])
@pytest.mark.parametrize("option", ["rule 'r': key", "rule 'r': when", "allow", "key"])
def test_an_asynchronous_application_awaits_them_all(option: str, name: str) -> None:
    function = ({**SEEN, **UNSEEN}[name])[0]

    async def decide() -> Any:
        gate = AsyncGate(Settings(**OPTIONS[option](function)))
        return await gate.decide(Visitor(), gate.bind(Endpoint()))

    if name != "cached":  # a coroutine can be awaited once
        decided = asyncio.run(decide())
        assert decided is None or decided.allowed

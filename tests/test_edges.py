"""Regressions that independent reviews found: each of these was wrong, or showed something secret."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from flask import Flask

from sluicegate import ConfigurationError, Decision, Limiter, ManualClock, Tiers
from sluicegate.errors import AsyncMismatchError
from sluicegate.flask import RateLimiter
from sluicegate.identity import identity_text
from sluicegate.web.settings import Settings
from tests.adapters.django_app import serving
from tests.adapters.wsgi_client import WsgiClient

URL = "redis://user:hunter2@host:1/0"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Settings(default_limits=URL),
        lambda: Settings(default_limits=[URL]),
        lambda: Settings(rules=[{"name": "a", "quota": URL}]),
        lambda: Settings(algorithm=URL),  # type: ignore[arg-type]
        lambda: Limiter(algorithm=URL),  # type: ignore[arg-type]
        lambda: Limiter().hit(URL, "alice"),
        lambda: RateLimiter(URL),  # type: ignore[arg-type]
    ],
    ids=range(7),
)
def test_a_url_given_to_the_wrong_option_keeps_its_password(wrong: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        wrong()
    assert "hunter2" not in str(caught.value)


def test_an_option_of_a_rule_given_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="given twice"):
        Settings(rules=[{"name": "a", "quota": "5/minute", "QUOTA": "500/minute"}])


class Staff(Tiers):
    """Tiers with an exception."""

    def __call__(self, request: Any) -> Any:
        return None if request == "staff" else super().__call__(request)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_of_a_subclass_of_tiers_is_one_as_well(again: Any) -> None:
    assert type(again(Staff({"free": "1/minute"}, by=str))) is Staff


async def async_answer(*_: Any) -> Any:
    return "async"


def test_an_async_on_denied_is_named_in_flask() -> None:
    app = Flask(__name__)
    app.get("/")(lambda: "ok")
    app.config["PROPAGATE_EXCEPTIONS"] = True
    RateLimiter(
        app, default_limits=["1/minute"], on_denied=lambda request, decision: async_answer(), clock=ManualClock()
    )
    client = WsgiClient(app)
    client.request("GET", "/")
    with pytest.raises(AsyncMismatchError, match=r"on_denied .*test_edges"):
        app.test_client().get("/", environ_base={"REMOTE_ADDR": "198.51.100.9"})


def test_an_async_on_denied_is_named_in_django(caplog: pytest.LogCaptureFixture) -> None:
    def on_denied(request: Any, decision: Decision) -> Any:
        return async_answer()

    with serving(asgi=False, default_limits=["1/minute"], on_denied=on_denied, clock=ManualClock()) as site:
        assert site.statuses("/open", "/open") == [200, 500]
    assert "AsyncMismatchError" in caplog.text
    assert "on_denied" in caplog.text


def test_an_async_hook_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with Limiter("redis://127.0.0.1:1", on_store_change=lambda change: async_answer()) as limiter:
        limiter.hit("1/minute", "alice")
    assert "on_store_change" in caplog.text
    assert "AsyncMismatchError" in caplog.text


def test_a_lazy_truth_is_a_wrong_identity_or_a_truth() -> None:
    assert identity_text(True) != identity_text(1)
    assert identity_text(False) != identity_text(0)

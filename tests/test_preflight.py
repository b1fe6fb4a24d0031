"""Preflights: requests as browsers send them, and requests that only look like them."""

from __future__ import annotations

import pytest

from sluicegate.web.http import is_preflight

BROWSERS = {"origin": "https://a.example", "access-control-request-method": "POST"}


@pytest.mark.parametrize(
    ("method", "headers", "preflight"),
    [
        ("OPTIONS", BROWSERS, True),
        ("OPTIONS", {**BROWSERS, "content-length": "0"}, True),
        ("OPTIONS", {**BROWSERS, "content-length": ""}, True),  # WSGI servers: no body
        ("OPTIONS", {"origin": "https://a.example"}, False),
        ("OPTIONS", {"access-control-request-method": "POST"}, False),
        ("OPTIONS", {**BROWSERS, "origin": ""}, False),
        ("OPTIONS", {}, False),
        ("GET", BROWSERS, False),
        ("options", BROWSERS, False),
        ("OPTIONS", {**BROWSERS, "content-length": "1"}, False),
        ("OPTIONS", {**BROWSERS, "transfer-encoding": "chunked"}, False),
        ("OPTIONS", {**BROWSERS, "cookie": "session=1"}, False),
        ("OPTIONS", {**BROWSERS, "authorization": "Basic YTpi"}, False),
    ],
)
def test_a_preflight_is_what_browsers_send(method: str, headers: dict[str, str], preflight: bool) -> None:
    assert is_preflight(method, lambda name: [headers[name]] if name in headers else []) is preflight

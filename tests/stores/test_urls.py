"""URLs that cannot be opened: the error says why, and never shows a password."""

from __future__ import annotations

from typing import Any, Final

import pytest

from sluicegate import AsyncLimiter, Limiter
from sluicegate.errors import StoreURLError

SECRET: Final = "hunter2"

PASSWORDS: Final = [
    "redis:/user:hunter2@host",
    "user:hunter2@host:6379",
    "http://user:hunter2@host",
    "http://user:hunter2/x@host",
    "http://host?password=hunter2",
    "http://[user:hunter2@host",
    "redis+unknown://:hunter2@host",
    "memory://:hunter2@host",
    "memory://?password=hunter2",
    "redis://:hunter2@host:port/0",
    "redis://:hunter2@host:99999/0",
    "redis://user:hunter2/0",  # without a host: redis-py reads the password as a port
    "redis://:hunter2?x@host/0",  # not percent-encoded
    "redis://:hunter2#x@host/0",
    "redis://:hunter2/x@host/0",
    "redis://:x@hunter2@host:port",
    "redis://:x@y:hunter2@host:port",
    "redis://:hunter2\u2100@host",
    "redis://:hunter2@[::1/0",
    "redis://:hunter2 @[::1]:0x/0",
    "redis://host?password=hunter2&bogus=1",
    "redis://host?password=a@hunter2&bogus=1",
    "redis://host?bogus=hunter2",
    "redis://host?socket_timeout=hunter2",
    "rediss://:hunter2@host/0?db=first",
    "unix://:hunter2@/tmp/s?bogus=1",
]


@pytest.mark.parametrize("limiter", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("url", PASSWORDS)
def test_no_error_shows_a_password(limiter: type[Limiter | AsyncLimiter], url: str) -> None:
    with pytest.raises(StoreURLError) as caught:
        limiter(url)
    error: Any = caught.value
    assert SECRET not in str(error)
    assert SECRET not in str(vars(error))
    assert error.__suppress_context__ or error.__context__ is None  # the traceback does not show it either


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis", "redis"),
        ("localhost:6379", "localhost:…"),
        ("http://user:hunter2@host:80/path?a=b", "http://host:80/path"),
        ("http://[::1]:80", "http://[::1]:80"),
        ("http://a@b@c", "http://…"),
        ("redis://host:port", "redis://…"),
        ("memory://?max_key=5", "memory://"),
    ],
)
def test_what_an_error_shows_of_a_url(url: str, shown: str) -> None:
    with pytest.raises(StoreURLError) as caught:
        Limiter(url)
    assert caught.value.given == shown


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis", "not a URL and not a store"),
        ("mongodb://host", 'unknown scheme "mongodb"'),
        ("memory://?max_key=5&ttl=9", "unknown option max_key, ttl"),
        ("memory://host", "not understood after memory://"),
        ("redis://host:port", "a part of it cannot be read"),
        ("redis://my..host", "a part of its host is empty, too long, or cannot be encoded"),
        ("redis+sentinel://one," + "x" * 64 + "/main", "a part of its host is empty, too long, or cannot be encoded"),
        ("redis://host:99999", "Port out of range 0-65535"),
        ("redis://host?sokcet_timeout=1", "unexpected keyword argument 'sokcet_timeout'"),
    ],
)
def test_what_is_wrong_with_it(url: str, problem: str) -> None:
    with pytest.raises(StoreURLError) as caught:
        Limiter(url)
    assert problem in caught.value.problem

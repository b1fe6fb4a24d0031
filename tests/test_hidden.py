"""No password and no secret is shown: not in a repr, an error, a log line, a warning, or a traceback with variables.

A traceback with local variables is what error trackers send, Django's debug page shows and `pytest -l` prints.
The frames of this file stand for the user's own: what they hold cannot be helped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import pickle
import pprint
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

import pytest
import redis
import redis.asyncio
from asgiref.sync import async_to_sync
from django.test import override_settings
from flask import Flask
from starlette.applications import Starlette

import sluicegate.asgi
import sluicegate.flask
import sluicegate.starlette
import sluicegate.wsgi
import tests.adapters.django_app  # noqa: F401 - configures Django
from sluicegate import AsyncLimiter, Limiter, Rule, SluicegateError
from sluicegate.django import conf
from sluicegate.identity import Seal
from sluicegate.runtime.hidden import HiddenURL, hide_secret, hide_store
from sluicegate.stores import open_async_store, open_store
from sluicegate.stores.redis import AsyncRedisStore, RedisStore
from sluicegate.stores.redis.cell import RedisCellStore
from sluicegate.web.settings import Settings

PASSWORD: Final = "hunter2"
SECRET: Final = "correct horse battery staple"
SHORT: Final = "hunter2secret"  # too short to be one

URLS: dict[str, str] = {
    "password": "redis://:hunter2@127.0.0.1:1/0",
    "user and password": "redis://alice:hunter2@127.0.0.1:1/0",
    "TLS": "rediss://:hunter2@127.0.0.1:1/0",
    "a socket": "unix://:hunter2@/tmp/there-is-no-such-socket",
    "in the query": "redis://127.0.0.1:1/0?password=hunter2",
    "percent-encoded": "redis://:p%40ss%2Fhunter2%3A@127.0.0.1:1/0",
    "not encoded": "redis://:p@ss@hunter2@127.0.0.1:1/0",
    "RESP3": "redis://:hunter2@127.0.0.1:1/0?protocol=3",
    "Valkey": "valkey://:hunter2@127.0.0.1:1/0",
    "Sentinel": "redis+sentinel://:hunter2@127.0.0.1:1,127.0.0.1:2/main/0",
    "Sentinel's own": "redis+sentinel://127.0.0.1:1/main/0?sentinel_password=hunter2&sentinel_username=alice",
    "cluster": "redis+cluster://:hunter2@127.0.0.1:1,127.0.0.1:2",
    "cell": "redis+cell://:hunter2@127.0.0.1:1/0",
}
BROKEN: dict[str, str] = {  # no store can be made of these
    "no port": "redis://:hunter2@127.0.0.1:port/0",
    "no database": "redis://:hunter2@127.0.0.1:1/first",
    "a slash in the password": "redis://:hunter2/x@127.0.0.1:1/0",
    "a hash in the password": "redis://:x#hunter2@127.0.0.1:1/0",
    "an unknown option": "redis://:hunter2@127.0.0.1:1/0?no_such_option=1",
    "a wrong option": "redis://:hunter2@127.0.0.1:1/0?max_connections=many",
    "no connection": "redis://:hunter2@127.0.0.1:1/0?max_connections=0",
    "a protocol": "redis://:hunter2@127.0.0.1:1/0?protocol=9",
    "a timeout": "redis://:hunter2@127.0.0.1:1/0?socket_timeout=1",
    "as an option": "redis://127.0.0.1:1/0?hunter2=1&db=x",
    "an open bracket": "redis://:hunter2@[::1/0",
    "no service": "redis+sentinel://:hunter2@127.0.0.1:1",
    "a database of a cluster": "redis+cluster://:hunter2@127.0.0.1:1/5",
    "an unknown scheme": "redi://:hunter2@127.0.0.1:1/0",
    "no scheme": "alice:hunter2@127.0.0.1:1",
    "memory": "memory://:hunter2@here",
    "memory's query": "memory://?password=hunter2",
    "embedded": "embedded://:hunter2@here",
    "embedded's query": "embedded://here?password=hunter2",
    "cell's query": "redis+cell://:hunter2@127.0.0.1:1/0?x=1",
}


def visible(error: BaseException, *others: str) -> str:
    """Return all that can be seen of an error: its message, its facts, its causes, and the variables of every frame."""
    seen, texts, left = set(), list(others), [error]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        texts += [str(each), repr(each), repr(each.args), repr(vars(each))]
        with suppress(TypeError, AttributeError, pickle.PicklingError):
            texts.append(repr(pickle.dumps(each)))
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code.co_filename != __file__:
                texts += [
                    f"{frame.f_code.co_qualname} {name} = {shown(value)}" for name, value in frame.f_locals.items()
                ]
        left += [other for other in (each.__cause__, each.__context__, getattr(each, "cause", None))
                 if isinstance(other, BaseException)]  # fmt: skip
    return "\n".join(texts)


def shown(value: object) -> str:
    """A variable as error trackers and debug pages show it."""
    texts = []
    for show in (repr, pprint.pformat):
        try:
            texts.append(show(value))
        except Exception as error:  # noqa: BLE001 - as a tracker does, for a half-made object has no repr
            texts.append(f"<{error!r}>")
    return " ".join(texts)


@contextmanager
def kept(caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder) -> Iterator[Callable[[], str]]:
    """The log and the warnings of a block."""
    caplog.set_level(logging.DEBUG)
    yield lambda: f"{caplog.text} {[str(each.message) for each in recwarn]}"


def find_hidden(text: str) -> list[str]:
    return [line for line in text.splitlines() if "hunter2" in line or "horse" in line]


def from_file(url: str, more: str, path: Path) -> Settings:
    path.write_text(f"[sluicegate]\nstore = '{url}'\nsecret = '{SECRET}'\n{more}\n")
    return Settings.from_toml(path)


def flask_app(url: str, **options: Any) -> None:
    app = Flask("shop")
    app.config.update(SLUICEGATE_STORE=url, SLUICEGATE_SECRET=SECRET, **options)
    sluicegate.flask.RateLimiter(app)


def flask_keywords(url: str, **options: Any) -> None:
    sluicegate.flask.RateLimiter(Flask("shop"), store=url, secret=SECRET, **options)


def django_settings(url: str, **options: Any) -> None:
    with override_settings(SLUICEGATE={"STORE": url, "SECRET": SECRET, **options}):
        conf.make_sync(conf.read_settings())


def starlette_app(url: str, **options: Any) -> None:
    """Starlette makes its middleware when the lifespan begins; its own frames have the keywords that it was given."""
    sluicegate.starlette.RateLimitMiddleware(Starlette(), store=url, secret=SECRET, **options)


def page(*given: Any) -> Any:
    return None


WRONG: Final[dict[str, Any]] = {"deadline": 0}
NOT_KNOWN: Final[dict[str, Any]] = {"stroe": "redis://:hunter2@there"}


def no_table(url: str, path: Path) -> Settings:
    from_file(url, "", path)
    return Settings.from_toml(path, table="shop")


# Ways to start with a URL that is right, and something else that is wrong.
STARTS: dict[str, Callable[[str, Path], object]] = {
    "Limiter, deadline": lambda url, path: Limiter(url, secret=SECRET, **WRONG),
    "Limiter, prefix": lambda url, path: Limiter(url, secret=SECRET, prefix="a b"),
    "Limiter, algorithm": lambda url, path: Limiter(url, secret=SECRET, algorithm="x"),  # type: ignore[arg-type]
    "Limiter, secret": lambda url, path: Limiter(url, secret=SHORT),
    "Limiter, clock": lambda url, path: Limiter(url, secret=SECRET, clock=cast(Any, 5)),
    "AsyncLimiter, deadline": lambda url, path: AsyncLimiter(url, secret=SECRET, **WRONG),
    "AsyncLimiter, secret": lambda url, path: AsyncLimiter(url, secret=SHORT.encode()),
    "Seal": lambda url, path: Seal(SHORT),
    "Seal of bytes": lambda url, path: Seal(SHORT.encode()),
    "RedisStore": lambda url, path: RedisStore(cast(Any, url)),
    "AsyncRedisStore": lambda url, path: AsyncRedisStore(cast(Any, url)),
    "Settings, deadline": lambda url, path: Settings(store=url, secret=SECRET, **WRONG),
    "Settings, rules": lambda url, path: Settings(store=url, secret=SECRET, rules=[{"name": "r", "quota": "x"}]),
    "Settings, trusted_proxies": lambda url, path: Settings(store=url, secret=SECRET, trusted_proxies=99),
    "Settings, strict": lambda url, path: Settings(store=url, strict=True, trusted_proxies=["0.0.0.0/0"]),
    "Settings, secret": lambda url, path: Settings(store=url, secret=SHORT),
    "from_mapping, wrong": lambda url, path: Settings.from_mapping({"STORE": url, "SECRET": SECRET, **WRONG}),
    "from_mapping, unknown": lambda url, path: Settings.from_mapping({"STORE": url, "SECRET": SECRET, **NOT_KNOWN}),
    "from_mapping, twice": lambda url, path: Settings.from_mapping({"STORE": url, "store": url, "secret": SECRET}),
    "from_toml, wrong": lambda url, path: from_file(url, "deadline = 0", path),
    "from_toml, unknown": lambda url, path: from_file(url, f"stroe = '{url}'", path),
    "from_toml, not TOML": lambda url, path: from_file(url, "= =", path),
    "from_toml, no table": no_table,
    "from_environ, wrong": lambda url, path: Settings.from_environ(
        {"SLUICEGATE_STORE": url, "SLUICEGATE_SECRET": SECRET, "SLUICEGATE_DEADLINE": "0"}
    ),
    "from_environ, unknown": lambda url, path: Settings.from_environ(
        {"SLUICEGATE_STROE": url, "SLUICEGATE_SECRET": SECRET}
    ),
    "from_environ, rules": lambda url, path: Settings.from_environ({"SLUICEGATE_STORE": url, "SLUICEGATE_RULES": url}),
    "WSGI, wrong": lambda url, path: sluicegate.wsgi.RateLimitMiddleware(page, store=url, secret=SECRET, **WRONG),
    "WSGI, unknown": lambda url, path: sluicegate.wsgi.RateLimitMiddleware(page, store=url, **NOT_KNOWN),
    "WSGI, both": lambda url, path: sluicegate.wsgi.RateLimitMiddleware(
        page, store=url, settings=Settings(store=url, secret=SECRET)
    ),
    "WSGI, route": lambda url, path: sluicegate.wsgi.RateLimitMiddleware(
        page, store=url, rules=[Rule(name="r", quota="5/m", route="x")]
    ),
    "ASGI, wrong": lambda url, path: sluicegate.asgi.RateLimitMiddleware(page, store=url, secret=SECRET, **WRONG),
    "ASGI, unknown": lambda url, path: sluicegate.asgi.RateLimitMiddleware(page, store=url, **NOT_KNOWN),
    "ASGI, both": lambda url, path: sluicegate.asgi.RateLimitMiddleware(
        page, store=url, settings=Settings(store=url, secret=SECRET)
    ),
    "Starlette, wrong": lambda url, path: sluicegate.starlette.RateLimitMiddleware(
        page, store=url, secret=SECRET, **WRONG
    ),
    "Starlette, unknown": lambda url, path: sluicegate.starlette.RateLimitMiddleware(page, store=url, **NOT_KNOWN),
    "Flask, wrong": lambda url, path: flask_app(url, SLUICEGATE_DEADLINE=0),
    "Flask, unknown": lambda url, path: flask_app(url, SLUICEGATE_STROE=url),
    "Flask, keywords": lambda url, path: flask_keywords(url, **WRONG),
    "Flask, unknown keywords": lambda url, path: flask_keywords(url, **NOT_KNOWN),
    "Flask, both": lambda url, path: sluicegate.flask.RateLimiter(*[_configured(url)], store=url, secret=SECRET),
    "Django, wrong": lambda url, path: django_settings(url, DEADLINE=0),
    "Django, unknown": lambda url, path: django_settings(url, **NOT_KNOWN),
}


def _configured(url: str) -> Flask:
    app = Flask("shop")
    app.config.update(SLUICEGATE_STORE=url)
    return app


@pytest.mark.parametrize("kind", ["password", "in the query", "percent-encoded", "Sentinel's own", "cluster"])
@pytest.mark.parametrize("start", STARTS)
def test_a_failing_start(start: str, kind: str, tmp_path: Path, caplog: Any, recwarn: Any) -> None:
    with kept(caplog, recwarn) as others:
        with pytest.raises(SluicegateError) as caught:
            STARTS[start](URLS[kind], tmp_path / "shop.toml")
        assert not find_hidden(visible(caught.value, others()))


# Values of a wrong type, which no wrapper can hide: the error names only the type.
TYPES: dict[str, Callable[[str], object]] = {
    "Limiter, a list": lambda url: Limiter(cast(Any, [url])),
    "Limiter, a dict": lambda url: Limiter(cast(Any, {"url": url})),
    "Limiter, bytes": lambda url: Limiter(cast(Any, url.encode())),
    "Limiter, a client": lambda url: Limiter(cast(Any, redis.Redis(password=PASSWORD))),
    "AsyncLimiter, a client": lambda url: AsyncLimiter(cast(Any, redis.asyncio.Redis(password=PASSWORD))),
    "Limiter, a secret": lambda url: Limiter(url, secret=cast(Any, [SECRET])),
    "Limiter, an unknown option": lambda url: Limiter(url, **cast(Any, {"secrte": SECRET})),
    "open_store, a list": lambda url: open_store(cast(Any, [url]), prefix="shop"),
    "Settings, a list": lambda url: sluicegate.wsgi.RateLimitMiddleware(page, store=cast(Any, [url])),
    "Settings, a secret": lambda url: sluicegate.wsgi.RateLimitMiddleware(page, secret=cast(Any, [SECRET])),
}


@pytest.mark.parametrize("kind", ["password", "in the query", "cluster"])
@pytest.mark.parametrize("start", TYPES)
def test_an_error_about_a_value_of_a_wrong_type(start: str, kind: str) -> None:
    with pytest.raises(SluicegateError) as caught:
        TYPES[start](URLS[kind])
    assert not find_hidden(visible(caught.value.with_traceback(None)))


# Ways to start with a URL that is wrong.
OPENS: dict[str, Callable[[str], object]] = {
    "Limiter": Limiter,
    "AsyncLimiter": AsyncLimiter,
    "open_store": lambda url: open_store(url, prefix="shop"),
    "open_async_store": lambda url: open_async_store(url, prefix="shop"),
    "WSGI": lambda url: sluicegate.wsgi.RateLimitMiddleware(page, store=url),
    "ASGI": lambda url: sluicegate.asgi.RateLimitMiddleware(page, store=url),
    "Starlette": lambda url: sluicegate.starlette.RateLimitMiddleware(page, store=url),
    "Flask": flask_app,
    "Django": django_settings,
}
STORES: dict[str, Callable[[str], object]] = {
    "RedisStore": RedisStore.from_url,
    "AsyncRedisStore": AsyncRedisStore.from_url,
    "RedisCellStore": RedisCellStore,
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("how", OPENS)
def test_a_url_that_cannot_be_opened(how: str, kind: str, caplog: Any, recwarn: Any) -> None:
    with kept(caplog, recwarn) as others:
        with pytest.raises(SluicegateError) as caught:
            OPENS[how](BROKEN[kind])
        assert not find_hidden(visible(caught.value, others()))


@pytest.mark.parametrize("kind", [kind for kind, url in BROKEN.items() if url.startswith("redis:")])
@pytest.mark.parametrize("how", STORES)
def test_a_store_that_cannot_be_made(how: str, kind: str) -> None:
    with pytest.raises(SluicegateError) as caught:
        STORES[how](BROKEN[kind])
    assert not find_hidden(visible(caught.value))


# Requests


def echoing(connection: socket.socket) -> None:
    """A server that does not know AUTH, and repeats what it was sent: Redis does so, and proxies before it."""
    with connection:
        while data := connection.recv(4096):
            words = " ".join(f"'{word}'" for word in data.decode("latin-1").split("\r\n") if word.isprintable())
            connection.sendall(
                f"-ERR unknown command, with args beginning with: {words}\r\n".encode() * data.count(b"*")
            )


def refusing(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(4096):
            connection.sendall(b"-WRONGPASS invalid username-password pair\r\n" * data.count(b"*"))


def leaving(connection: socket.socket) -> None:
    connection.close()


def babbling(connection: socket.socket) -> None:
    with connection:
        while connection.recv(4096):
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def silent(connection: socket.socket) -> None:
    with connection:
        while connection.recv(4096):
            pass


SERVERS: dict[str, Callable[[socket.socket], None]] = {
    server.__name__: server for server in (echoing, refusing, leaving, babbling, silent)
}


@contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server of this process, on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=_serve, args=(serve, listening.accept()[0]), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(serve: Callable[[socket.socket], None], connection: socket.socket) -> None:
    with suppress(OSError):
        serve(connection)


def ask(url: str) -> Any:
    with Limiter(url, on_store_failure="raise", algorithm="gcra", deadline=0.5) as limiter:
        return limiter.hit("5/minute", "alice")


def ask_async(url: str) -> Any:
    async def main() -> Any:
        async with AsyncLimiter(url, on_store_failure="raise", algorithm="gcra", deadline=0.5) as limiter:
            return await limiter.hit("5/minute", "alice")

    return asyncio.run(main())


def ask_locally(url: str) -> Any:
    """The failure is logged and passed to a hook; then it is raised here."""
    visible: list[Any] = []
    with Limiter(url, on_store_change=visible.append, algorithm="gcra", deadline=0.5) as limiter:
        limiter.hit("5/minute", "alice")
    (change,) = visible
    assert not find_hidden(repr(change))
    raise change.error


ASKS = [ask, ask_async, ask_locally]


@pytest.mark.parametrize("kind", URLS)
@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.__name__)
def test_a_failing_request_without_a_server(ask: Any, kind: str, caplog: Any, recwarn: Any) -> None:
    with kept(caplog, recwarn) as others:
        with pytest.raises(SluicegateError) as caught:
            ask(URLS[kind])
        assert not find_hidden(visible(caught.value, others()))


@pytest.mark.parametrize("kind", [kind for kind in URLS if kind != "a socket"])
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.__name__)
def test_a_failing_request(ask: Any, server: str, kind: str, caplog: Any, recwarn: Any) -> None:
    with serving(SERVERS[server]) as port, kept(caplog, recwarn) as others:
        with pytest.raises(SluicegateError) as caught:
            ask(URLS[kind].replace(":1,127.0.0.1:2", ":1").replace("127.0.0.1:1", f"127.0.0.1:{port}"))
        assert not find_hidden(visible(caught.value, others()))


# What is right


@pytest.mark.parametrize("kind", URLS)
def test_no_repr_shows_it(kind: str) -> None:
    url = URLS[kind]
    settings = Settings(store=url, secret=SECRET)
    limiters: list[Any] = [
        Limiter(url, secret=SECRET, algorithm="gcra"),
        AsyncLimiter(url, secret=SECRET, algorithm="gcra"),
    ]
    things = [settings, *limiters, *[limiter.store for limiter in limiters], *[vars(limiter) for limiter in limiters]]
    servers = [vars(limiter.opened) for limiter in limiters]
    assert not find_hidden(
        shown([*things, *servers, sluicegate.wsgi.RateLimitMiddleware(page, settings=settings).gate])
    )
    assert settings.store == url, "it is still the URL that was given"
    assert settings.secret == SECRET
    for limiter in limiters:
        close = limiter.close
        async_to_sync(close)() if inspect.iscoroutinefunction(close) else close()


def test_what_is_hidden_is_the_text_that_it_was() -> None:
    url = URLS["user and password"]
    hidden = hide_store(url)
    assert (hidden, str(hidden), f"{hidden}", hash(hidden)) == (url, url, url, hash(url))
    assert repr(hidden) == "'redis://127.0.0.1:1/0'"
    for secret in (SECRET, SECRET.encode()):
        assert hide_secret(secret) == secret
        assert "…" in repr(hide_secret(secret))
        assert pickle.loads(pickle.dumps(hide_secret(secret))) == secret
        assert "horse" not in repr(pickle.loads(pickle.dumps(hide_secret(secret))))
    assert isinstance(pickle.loads(pickle.dumps(hidden)), HiddenURL)
    assert (hide_store(None), hide_secret(None)) == (None, None)

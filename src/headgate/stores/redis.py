"""The store on a Redis or Valkey server, for threads and for asyncio: one script run for each plan.

Everything but the call itself is shared by the two colours: a plan becomes one EVALSHA, its reply becomes outcomes.
This module imports redis-py and knows values, algorithms and the digest; nothing of rules, HTTP or frameworks.

Keys are `prefix:{digest}:rule_id`; the digest of the identity is the one hash tag. The clock is the server's.
A charge is never sent twice: clients of our own making do not retry, because a reply that was lost may belong to a
charge that was made (redis-py would try eleven times). NOSCRIPT alone is repaired, for that call: nothing ran.
"""

from __future__ import annotations

import asyncio
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from headgate.clock import Clock
from headgate.errors import HeadgateWarning, MissingExtraError, StoreError, StoreURLError
from headgate.identity import digest
from headgate.plan import NEVER, Outcome, Plan, Terms
from headgate.stores import shown_url, valid_prefix

try:
    import redis
    import redis.asyncio
    from redis.asyncio.retry import Retry as AsyncRetry
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError, RedisError
    from redis.retry import Retry
except ImportError as error:
    raise MissingExtraError("redis", "redis") from error

TIMEOUT: Final = 0.25  # seconds to connect, to get a connection from the pool, and to be answered
CONNECTIONS: Final = 50
_PARAMS: Final = 3  # how many integers the script expects of every algorithm
_FIELDS: Final = 5  # and how many it answers for every check


class _Script(NamedTuple):
    text: str
    sha: str


class _Wire:
    """How a plan is told to the server, and how its reply is read: pure but for the look-ups it remembers."""

    def __init__(self, *, prefix: str, clock: Clock | None) -> None:
        self.prefix = valid_prefix(prefix)
        self._clock = clock
        self._scripts: dict[frozenset[str], _Script] = {}

    def command(self, plan: Plan) -> tuple[_Script, list[Any]]:
        """The script for the plan, and what follows its name in EVALSHA or EVAL."""
        checks = plan.checks
        words: list[Any] = [len(checks)]
        words += [self.key(check.terms.rule_id, check.identity) for check in checks]
        words += ("" if self._clock is None else self._clock.now_us(), int(plan.charge))
        for terms, _, cost in checks:
            words += (terms.algorithm, int(terms.count_denied), cost, *_padded(terms))
        return self._script(frozenset([check.terms.algorithm for check in checks])), words

    def outcomes(self, plan: Plan, reply: Any) -> tuple[Outcome, ...]:
        """One outcome for each check, from the flat list of integers that the script answers."""
        return tuple(
            Outcome(
                reply[at] == 1,
                check.terms.params[0],
                reply[at + 1],
                NEVER if reply[at + 2] < 0 else reply[at + 2],
                reply[at + 3],
                reply[at + 4],
            )
            for at, check in zip(range(0, len(reply), _FIELDS), plan.checks, strict=True)
        )

    def key(self, rule_id: str, identity: str) -> str:
        """Where the budget of one identity under one rule is kept."""
        return f"{self.prefix}:{{{digest(identity)}}}:{rule_id}"

    def _script(self, algorithms: frozenset[str]) -> _Script:
        """The script that runs plans of these algorithms, and holds no other."""
        found = self._scripts.get(algorithms)
        if found is None:
            chunks = "\n".join(_lua("headgate.algorithms", name) for name in sorted(algorithms))
            text = _lua("headgate.stores", "run").replace("--@ALGORITHMS", chunks)
            found = self._scripts[algorithms] = _Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())
        return found


def _padded(terms: Terms) -> tuple[int, ...]:
    return terms.params + (0,) * (_PARAMS - len(terms.params))


def _lua(package: str, name: str) -> str:
    return files(package).joinpath(f"{name.replace('-', '_')}.lua").read_text("utf-8")


class RedisStore:
    """A store over a `redis.Redis` client that you made; for a URL, hand the URL to Limiter.

    The client is used as it is and never closed. Give it timeouts and `Retry(NoBackoff(), 0)`: a client that
    retries can charge one request several times, and one without a timeout hangs with its server.
    `prefix` begins every key; `clock` is for tests, and replaces the server's.
    """

    def __init__(self, client: redis.Redis, *, prefix: str = "headgate", clock: Clock | None = None) -> None:
        _warn_about(client)
        self._client = client
        self._owned = False
        self._wire = _Wire(prefix=prefix, clock=clock)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "headgate", clock: Clock | None = None) -> RedisStore:
        """A store with a client of its own, which `close` closes. Connects when first used."""
        store = cls.__new__(cls)
        pool = _pool(redis.BlockingConnectionPool, url, Retry)
        store._client, store._owned = redis.Redis(connection_pool=pool), True
        store._wire = _Wire(prefix=prefix, clock=clock)
        return store

    def __repr__(self) -> str:
        return f"RedisStore({_where(self._client)})"

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Charge every check of the plan, or none, in one script run. StoreError when the server does not answer."""
        script, words = self._wire.command(plan)
        try:
            try:
                reply = self._client.execute_command("EVALSHA", script.sha, *words)
            except NoScriptError:
                reply = self._client.execute_command("EVAL", script.text, *words)
        except (RedisError, OSError) as error:
            raise StoreError(_where(self._client), error) from error
        return self._wire.outcomes(plan, reply)

    def forget(self, rule_id: str, identity: str) -> None:
        """Drop what is known of one identity under one rule."""
        try:
            self._client.delete(self._wire.key(rule_id, identity))
        except (RedisError, OSError) as error:
            raise StoreError(_where(self._client), error) from error

    def close(self) -> None:
        """Close the client, if this store made it."""
        if self._owned:
            self._client.close()
            self._client.connection_pool.disconnect()


class AsyncRedisStore:
    """A store over a `redis.asyncio.Redis` client that you made; for a URL, hand the URL to AsyncLimiter.

    As RedisStore, awaited. A client that was handed in belongs to one event loop, as all asyncio clients do; a
    store made from a URL keeps one client for each loop that uses it.
    """

    def __init__(self, client: redis.asyncio.Redis, *, prefix: str = "headgate", clock: Clock | None = None) -> None:
        _warn_about(client)
        self._given: redis.asyncio.Redis | None = client
        self._url = ""
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, redis.asyncio.Redis] = WeakKeyDictionary()
        self._wire = _Wire(prefix=prefix, clock=clock)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "headgate", clock: Clock | None = None) -> AsyncRedisStore:
        """A store with clients of its own, one for each event loop; `close` closes that of the running loop."""
        store = cls.__new__(cls)
        store._given, store._url = None, url
        store._clients = WeakKeyDictionary()
        store._wire = _Wire(prefix=prefix, clock=clock)
        _pool(redis.asyncio.BlockingConnectionPool, url, AsyncRetry)  # so that a URL that cannot work is refused here
        return store

    def __repr__(self) -> str:
        return f"AsyncRedisStore({shown_url(self._url) if self._given is None else _where(self._given)})"

    async def run(self, plan: Plan) -> tuple[Outcome, ...]:
        """Charge every check of the plan, or none, in one script run. StoreError when the server does not answer."""
        script, words = self._wire.command(plan)
        client = self._client()
        try:
            try:
                reply = await client.execute_command("EVALSHA", script.sha, *words)
            except NoScriptError:
                reply = await client.execute_command("EVAL", script.text, *words)
        except (TimeoutError, RedisError, OSError) as error:
            raise StoreError(_where(client), error) from error
        return self._wire.outcomes(plan, reply)

    async def forget(self, rule_id: str, identity: str) -> None:
        """Drop what is known of one identity under one rule."""
        client = self._client()
        try:
            await client.delete(self._wire.key(rule_id, identity))
        except (TimeoutError, RedisError, OSError) as error:
            raise StoreError(_where(client), error) from error

    async def close(self) -> None:
        """Close the running loop's client, if this store made it."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
            await client.connection_pool.disconnect()

    def _client(self) -> redis.asyncio.Redis:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            pool = _pool(redis.asyncio.BlockingConnectionPool, self._url, AsyncRetry)
            client = self._clients[loop] = redis.asyncio.Redis(connection_pool=pool)
        return client


def open_sync(url: str, *, prefix: str, clock: Clock | None) -> RedisStore:
    """A store for `redis://`, `rediss://`, `unix://` or `valkey://`. What redis-py reads from a URL works here."""
    return RedisStore.from_url(url, prefix=prefix, clock=clock)


def open_async(url: str, *, prefix: str, clock: Clock | None) -> AsyncRedisStore:
    """The same for an AsyncLimiter."""
    return AsyncRedisStore.from_url(url, prefix=prefix, clock=clock)


def _pool(kind: Any, url: str, retry: Any) -> Any:
    """A pool for the URL with short timeouts and no retries; what the URL itself says goes first.

    `retry` is of the pool's colour: a Retry of the other one is taken without complaint, and sees no error.
    """
    scheme, _, rest = url.partition("://")
    known = {"valkey": "redis", "valkeys": "rediss"}.get(scheme.lower(), scheme.lower())
    try:
        pool = kind.from_url(
            f"{known}://{rest}",
            max_connections=CONNECTIONS,
            timeout=TIMEOUT,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            retry=retry(cast(Any, NoBackoff()), 0),
        )
        pool.timeout = float(pool.timeout)  # older versions of redis-py leave it as the text of the URL
        pool.connection_class(**pool.connection_kwargs)  # an option that redis-py does not know shows here, not later
    except (ValueError, TypeError, RedisError) as error:
        shown = shown_url(url)
        raise StoreURLError(
            "store",
            shown,
            problem="a part of it cannot be read" if shown.endswith("…") else str(error),
            expected="use redis://user:password@host:port/db?option=value, each part percent-encoded",
        ) from None  # what was caught can show a part of the password
    return pool


def _where(client: Any) -> str:
    """The address of a client's server, for people."""
    options = client.connection_pool.connection_kwargs
    return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")


def _warn_about(client: Any) -> None:
    """A client that was handed in and can charge twice, or hang."""
    retry = client.get_retry() if hasattr(client, "get_retry") else None
    retries = getattr(retry, "_retries", 0)
    if retries:
        HeadgateWarning.warn(
            "HG106",
            f"this client retries {retries} times: a reply that is lost charges a request again; "
            "give the client retry=Retry(NoBackoff(), 0)",
        )
    if client.connection_pool.connection_kwargs.get("socket_timeout") is None:
        HeadgateWarning.warn("HG107", "this client has no socket_timeout: when its server hangs, so does every request")

"""Fixtures for every test: real servers, started when the first test asks, one of each per worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from sluicegate import cautions
from tests.cluster import Cluster
from tests.environments import Environments
from tests.sentinels import SENTINELS, Sentinels
from tests.servers import MAKERS, Server, named_server, redis_server, valkey_server

# A real server may be slow once; that is no error. (In CI the parent is Hypothesis's own "ci" profile.)
settings.register_profile("sluicegate", settings(), deadline=None)
settings.load_profile("sluicegate")

CLUSTERS = {"valkey": "cluster", "redis6": "redis6_cluster", "named": "named_cluster"}  # by their servers


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    """Each test is told everything anew: what a process hears once, one test would hear in another's place."""
    cautions.forget()


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """Valkey 9, shared by the worker's tests: use keys of your own, or `valkey.flush()`."""
    with valkey_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis6() -> Iterator[Server]:
    """Redis 6.2, shared by the worker's tests: use keys of your own, or `redis6.flush()`."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def named() -> Iterator[Server]:
    """The one that SLUICEGATE_REDIS_SERVER names, shared as they are; it is among `server` where it is named."""
    with named_server() as server:
        yield server


@pytest.fixture(scope="session", params=MAKERS)
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the real servers in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """Python with the wheel of sluicegate and chosen packages, made when a test first asks for them."""
    return Environments(tmp_path_factory.mktemp("environments"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three masters of Valkey 9, shared by the worker's tests: use keys of your own, or `cluster.flush()`."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis6_cluster() -> Iterator[Cluster]:
    """Three masters of Redis 6.2, shared by the worker's tests: use keys of your own, or `redis6_cluster.flush()`."""
    with Cluster(redis_server) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def named_cluster() -> Iterator[Cluster]:
    """Three masters of what SLUICEGATE_REDIS_SERVER names."""
    with Cluster(named_server) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=[CLUSTERS[name] for name in MAKERS])
def each_cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each of the clusters in turn."""
    found: Cluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def moving_cluster(each_cluster: Cluster) -> Iterator[Cluster]:
    """Each of the clusters in turn, to move slots and to stop nodes: as it was when the test ends, and empty."""
    yield each_cluster
    each_cluster.restore()


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    """A master with a replica under three Sentinels, for one test."""
    with Sentinels() as sentinels:
        yield sentinels


@pytest.fixture(params=SENTINELS)
def each_sentinels(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    """The same for each kind of server."""
    with Sentinels(request.param) as sentinels:
        yield sentinels

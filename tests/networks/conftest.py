"""A server with a user, the certificates, one link of each kind, and the law about the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.networks.links import PASSWORD, USER, Certificates, Link, linked
from tests.servers import Server, ask, valkey_server


@pytest.fixture(scope="session")
def guarded() -> Iterator[Server]:
    """Valkey with a user who has a password; the default user has none."""
    with valkey_server() as server:
        ask(server, "ACL", "SETUSER", USER, "on", f">{PASSWORD}", "~*", "+@all")
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def link(request: pytest.FixtureRequest, guarded: Server, certificates: Certificates) -> Iterator[Link]:
    """A link of the kind that the test's parameter names."""
    with linked(request.param, guarded, certificates) as link:
        yield link


@pytest.fixture(autouse=True)
def _no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """An outage is a warning. An error in the log is a defect, such as a task whose exception nobody has read."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []

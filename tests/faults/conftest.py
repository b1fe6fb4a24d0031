"""One site for each adapter. Every fault is repaired when its test ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.site import ADAPTERS, Site, serving


@pytest.fixture(scope="session", params=ADAPTERS)
def open_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with serving(request.param) as site:
        yield site


@pytest.fixture
def site(open_site: Site) -> Iterator[Site]:
    """Each adapter's site in turn. The fault of the test is repaired when it ends."""
    yield open_site
    open_site.restore()

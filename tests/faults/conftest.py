"""One site for each adapter, which every test of faults leaves in good health."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.site import ADAPTERS, Site, standing


@pytest.fixture(scope="session", params=ADAPTERS)
def standing_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with standing(request.param) as site:
        yield site


@pytest.fixture
def site(standing_site: Site) -> Iterator[Site]:
    """Each adapter's site in turn; what the test broke is mended when it ends."""
    yield standing_site
    standing_site.restore()

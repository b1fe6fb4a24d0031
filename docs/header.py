"""A hook of mkdocs: the site shows the version of the package that it describes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any


def on_config(config: Any) -> Any:
    """Put the version after the name of the site, in the header and in the titles of pages."""
    config.site_name = f"{config.site_name} {version('sluicegate')}"
    return config

"""A hook of mkdocs: the site shows the version of the package that it describes."""

from __future__ import annotations

from typing import Any

import sluicegate


def on_config(config: Any) -> Any:
    """Put the version after the name of the site, in the header and in the titles of pages."""
    config.site_name = f"{config.site_name} {sluicegate.__version__}"
    return config

"""`sluicegate dashboard`: the page of `sluicegate.dashboard` alone, for an application that does not mount it.

Only this machine sees it. A page for others is a Dashboard with `authorize`, whose `asgi` any server serves.
"""

from __future__ import annotations

from typing import Any

import click
import uvicorn

from sluicegate.cli.budgets import one_place, opened
from sluicegate.cli.commands import load_app, option_app
from sluicegate.cli.output import console


@click.command()
@option_app
@click.option("--port", default=8090, show_default=True, type=click.IntRange(1, 65535), help="The port to listen on.")
@click.option("--writable", is_flag=True, help="Let the page change something.")
def dashboard(app: str | None, *, port: int, writable: bool) -> None:
    """Serve a page that shows an application's limits, for this machine only.

    It shows counts if the application has the `note` of a Dashboard as its on_decision.
    """
    from sluicegate.dashboard import Dashboard  # here: it needs an extra of its own, which its error names

    with opened(load_app(app)) as places:
        settings = one_place(places).settings
        networks: Any = {"ipv6_prefix": settings.ipv6_prefix, "ipv4_prefix": settings.ipv4_prefix}
        page = Dashboard(places[0].store, insecure=True, writable=writable, secret=settings.secret, **networks)
        console().print(f"http://127.0.0.1:{port}/ (stop it with Ctrl-C)")
        uvicorn.run(page.asgi, host="127.0.0.1", port=port, lifespan="off", log_level="warning", proxy_headers=False)

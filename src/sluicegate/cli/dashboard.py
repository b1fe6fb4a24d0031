"""`sluicegate dashboard`: the page of `sluicegate.dashboard` alone, for an application that does not mount it.

Only this machine sees it. A page for others is a Dashboard with `authorize`, whose `asgi` any server serves.
"""

from __future__ import annotations

from typing import Any

import click
import uvicorn

from sluicegate.address import IPV4_PREFIX, IPV6_PREFIX
from sluicegate.cli.output import console
from sluicegate.stores.wrappers import PREFIX


@click.command()
@click.option("--store", required=True, envvar="SLUICEGATE_STORE", show_envvar=True, help="That of the application.")
@click.option(
    "--prefix", default=PREFIX, show_default=True, envvar="SLUICEGATE_PREFIX", help="That of the application."
)
@click.option("--secret", envvar="SLUICEGATE_SECRET", show_envvar=True, help="That of the application, if it has one.")
@click.option(
    "--ipv6-prefix",
    default=IPV6_PREFIX,
    show_default=True,
    type=click.IntRange(0, 128),
    help="Bits that the application counts by.",
)
@click.option(
    "--ipv4-prefix",
    default=IPV4_PREFIX,
    show_default=True,
    type=click.IntRange(0, 32),
    help="Bits that the application counts by.",
)
@click.option("--port", default=8090, show_default=True, type=click.IntRange(1, 65535), help="The port to listen on.")
@click.option("--writable", is_flag=True, help="Let the page change something.")
def dashboard(store: str, *, port: int, **options: Any) -> None:
    """Serve a page that shows an application's limits, for this machine only.

    It shows counts if the application has the `note` of a Dashboard as its on_decision.
    """
    from sluicegate.dashboard import Dashboard  # here: it needs an extra of its own, which its error names

    page = Dashboard(store, insecure=True, **options)
    console().print(f"http://127.0.0.1:{port}/ (stop it with Ctrl-C)")
    uvicorn.run(page.asgi, host="127.0.0.1", port=port, lifespan="off", log_level="warning", proxy_headers=False)

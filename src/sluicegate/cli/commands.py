"""The commands and their options. The work of each command is in its own module."""

from __future__ import annotations

from sluicegate import __version__
from sluicegate.extras import needs

with needs("cli"):
    import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def sluicegate() -> None:
    """Rate limiting for Python web applications."""


@sluicegate.command()
@click.option("--once", is_flag=True, help="Print the requests and their responses, then exit.")
@click.option("--store", default="memory://", show_default=True, metavar="URL", help="The store for the budgets.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="The port to listen on; a free one by default.")
def demo(store: str, port: int, *, once: bool) -> None:
    """Start a real application, limited to 5 replies a minute for each user, and watch it refuse."""
    from sluicegate.cli.demo import run_demo

    run_demo(store, port=port, once=once)

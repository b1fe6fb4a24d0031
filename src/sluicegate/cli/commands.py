"""The verbs of the command line, and their options. Each verb's work is in a module of its own."""

from __future__ import annotations

from sluicegate import __version__
from sluicegate.extras import needs

with needs("cli"):
    import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def sluicegate() -> None:
    """The gate that decides how many requests may enter."""


@sluicegate.command()
@click.option("--once", is_flag=True, help="Print the transcript and exit, instead of staying up.")
@click.option("--store", default="memory://", show_default=True, metavar="URL", help="Where the budgets are kept.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="The port to listen on; a free one by default.")
def demo(store: str, port: int, *, once: bool) -> None:
    """Start a real application, limited to 5 replies a minute for each user, and watch it refuse."""
    from sluicegate.cli.demo import run_demo

    run_demo(store, port=port, once=once)

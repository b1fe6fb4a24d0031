"""`sluicegate observability export`: the dashboard and the alert rules that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from sluicegate.cli.output import console, plain


@click.group()
def observability() -> None:
    """The dashboard for Grafana and the alert rules for Prometheus."""


@observability.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace files that differ.")
def export(folder: Path, *, force: bool) -> None:
    """Write dashboard.json and alerts.yml into a folder. A file of yours that differs is kept, unless --force."""
    found = files("sluicegate").joinpath("observe")
    texts = {folder / name: found.joinpath(name).read_text("utf-8") for name in ("alerts.yml", "dashboard.json")}
    kept = [path for path, text in texts.items() if path.exists() and path.read_bytes() != text.encode()]
    if kept and not force:
        raise click.UsageError(f"{kept[0]} differs from the one of this version; --force replaces it")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, "utf-8")
        console().print(plain(f"Wrote {path}."))

"""`sluicegate migrate`: the files of an application, from another library to this one."""

from __future__ import annotations

from pathlib import Path

import click

from sluicegate.cli.output import as_json, print_json
from sluicegate.replay.words import count


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--write", is_flag=True, help="Write the files. Without it nothing is written.")
@as_json
def migrate(paths: tuple[Path, ...], *, write: bool, as_json: bool) -> None:
    """Rewrite an application from Flask-Limiter, slowapi, fastapi-limiter, django-ratelimit or the throttles of REST
    framework. Print the change as a diff, and each place that is left for you, with its line after the change.

    The exit status is 1 if the application does not start before you have changed one of these places.
    """
    from sluicegate import migrate as library  # here: its error names its own extra

    files = library.migrate(paths)
    changed = [each for each in files if each.after != each.before]
    left = [{"file": str(each.path), **place._asdict()} for each in files for place in each.left]
    try:
        library.write(changed if write else ())
    except OSError as error:
        raise click.FileError(str(error.filename), error.strerror) from error
    if as_json:
        found = [{"file": str(each.path), "diff": each.diff} for each in changed]
        print_json({"changed": found, "left": left, "written": write})
    else:
        for each in () if write else changed:
            click.echo(each.diff, nl=False)
        for heading, is_needed in (("Before the application starts:", True), ("What differs:", False)):
            lines = ["{file}:{line}: {text}".format(**each) for each in left if each["needed"] is is_needed]
            click.echo("".join([f"{each}\n" for each in [heading, *lines] if lines]), nl=False, err=True)
        would = "changed" if write else "would change; --write writes them"
        click.echo(f"{count(len(changed), 'file')} {would}. {count(len(left), 'place')} left for you.", err=True)
    click.get_current_context().exit(int(any(each["needed"] for each in left)))

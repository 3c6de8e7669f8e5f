"""`shoal digest PATH`: the digest by which a manifest names a model or an adapter."""

from __future__ import annotations

from pathlib import Path

import click

from shoal_api.digest import digest


@click.command("digest")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def command(paths: tuple[Path, ...]) -> None:
    """Print the digest of a model or adapter, for `digest:` in a manifest.

    A file's is the SHA-256 of its bytes; a folder's covers the names and contents of its files. With several paths each line ends
    in its path.
    """
    for path in paths:
        try:
            found = digest(path)
        except (OSError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        click.echo(found if len(paths) == 1 else f"{found}  {path}")

"""Text on a terminal or into a pipe: tables, counts, sizes and times as people read them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

import click


def on_terminal() -> bool:
    """Is standard output a terminal?"""
    return sys.stdout.isatty()


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns: with rich on a terminal, plainly aligned elsewhere (nothing is ever cut off or wrapped there)."""
    if on_terminal():
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*headers, box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        Console().print(table)
        return
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(len(headers))]
    for row in (headers, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


_STYLES = {"READY": "green", "UNAVAILABLE": "red", "LOADING": "yellow"}


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """While the block runs, a terminal shows that something is going on."""
    if not on_terminal():
        yield
        return
    from rich.console import Console

    with Console().status(text):
        yield


def plural(count: int, noun: str) -> str:
    """ "1 model", "3 models"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def megabytes(size: int) -> str:
    """Bytes as "122 MB"."""
    return f"{size / 1e6:.0f} MB" if size >= 1_000_000 else f"{size / 1e3:.0f} kB"


def seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """A click callback: a number of seconds above 0. (click's own ranges let NaN through.)"""
    if not 0 < value <= 1e6:
        raise click.BadParameter(f"{value} is not a number of seconds above 0")
    return value

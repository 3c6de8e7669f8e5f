"""`shoal models`: what a running server has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import click

from shoal_cli.client.http import DEFAULT_URL, ClientError, HttpClient
from shoal_cli.text import print_table, seconds

HEADERS = ("Model", "Version", "State", "Backend", "Max batch", "Inputs", "Outputs")


@click.command("models")
@click.option("--url", default=DEFAULT_URL, show_default=True, envvar="SHOAL_URL", help="The server's HTTP port.")
@click.option("--timeout", default=10.0, show_default=True, callback=seconds, help="Seconds to wait for an answer.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(url: str, timeout: float, as_json: bool) -> None:
    """List the models of a running server: versions, states, inputs and outputs."""
    try:
        with closing(HttpClient(url, timeout)) as client:
            rows = list_models(client)
    except ClientError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo("This server has no models.")
        return
    print_table(HEADERS, [_cells(row) for row in rows])
    for row in rows:
        if row["state"] != "READY" and row["reason"]:
            click.echo(f"{row['name']}: {row['reason']}")


def list_models(client: HttpClient) -> list[dict[str, Any]]:
    """Return every model and version of the index; those that are ready with `backend`, `max_batch_size`, `inputs` and `outputs`.

    Raises ClientError.
    """
    rows = []
    for entry in client.index():
        row: dict[str, Any] = {key: entry.get(key) or "" for key in ("name", "version", "state", "reason")}
        if row["state"] == "READY":
            try:
                metadata = client.metadata(row["name"], row["version"])
                config = client.config(row["name"], row["version"])
            except ClientError as error:  # unloaded since
                if not error.status:
                    raise
            else:
                row["backend"] = config.get("backend") or config.get("platform") or ""
                row["max_batch_size"] = int(config.get("max_batch_size", 0))
                row["inputs"], row["outputs"] = metadata.get("inputs", []), metadata.get("outputs", [])
        rows.append(row)
    return rows


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    batch = row.get("max_batch_size")
    return (
        row["name"],
        row["version"] or "-",
        row["state"] or "not loaded",
        row.get("backend") or "-",
        "-" if batch is None else str(batch or "none"),
        _tensors(row.get("inputs", []), bool(batch)),
        _tensors(row.get("outputs", []), bool(batch)),
    )


def _tensors(tensors: Sequence[Mapping[str, Any]], batched: bool) -> str:
    """ "input_ids INT64 [-1], ..."; without the batch dimension, as in the configuration."""
    parts = []
    for tensor in tensors:
        shape = tensor["shape"][1:] if batched else tensor["shape"]
        parts.append(f"{tensor['name']} {tensor['datatype']} [{', '.join(map(str, shape))}]")
    return ", ".join(parts) or "-"

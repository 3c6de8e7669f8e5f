"""From an entry of the table to files on this machine: fetched where they are remote, and checked against their digest."""

from __future__ import annotations

from pathlib import Path

from shoal_api.digest import digest
from shoal_cli.fetch.http import fetch_http
from shoal_cli.fetch.store import FetchError, Progress
from shoal_cli.quickstart.prepare import CHECKOUT
from shoal_dataplane.repository.layout import ModelLocation, declared_model
from shoal_operator.tables import HttpFile, ModelEntry


def locate(entry: ModelEntry, cache: Path, progress: Progress) -> ModelLocation:
    """Return where the entry's model is, for the data plane.

    Raises FetchError: it cannot be fetched, or is not what its digest says; ServingError: there is no model at its path.
    """
    if isinstance(entry.source, HttpFile):
        path = fetch_http(entry.source.url, entry.source.sha256, cache, progress)
    else:
        path = entry.source.path
        if not path.exists() and path.absolute().is_relative_to(CHECKOUT):
            raise FetchError(f"{path} is made by `shoal quickstart --prepare`: run that first")
    location = declared_model(entry.name, path, entry.overlay)
    if entry.digest:
        _check(entry, path)
    return location


def _check(entry: ModelEntry, path: Path) -> None:
    try:
        found = digest(path)
    except (OSError, ValueError) as error:
        raise FetchError(f"the digest of {path} cannot be taken: {error}") from error
    if found != entry.digest:
        raise FetchError(
            f"{path} is not the model that the manifest names: its digest is {found}, expected {entry.digest}"
        )

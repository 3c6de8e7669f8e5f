"""What the repository shares with the rooms around it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from shoal_dataplane.core.request import Target
from shoal_dataplane.execution.source import VersionSource

RepositoryParameter = bool | int | str | bytes


class ModelState(enum.StrEnum):
    """State of one version, in Triton's words (RepositoryIndex)."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


class IndexEntry(NamedTuple):
    """One row of the repository index. `version`, `state` and `reason` are empty for a model that was never loaded."""

    name: str
    version: str
    state: str
    reason: str


class Servable(Target, Protocol):
    """One loaded version: its queue, its executors, its statistics."""

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is queued or running (new requests are no longer routed here); False when `timeout` seconds passed."""

    def close(self) -> None:
        """Free the instances. Returns when their memory is free. Idempotent."""

    def healthy(self) -> bool:
        """Can at least one instance run?"""


class ServableFactory(Protocol):
    """Builds servables. Slow; called on repository threads."""

    def build(self, source: VersionSource) -> Servable:
        """Load the instances and run the warm-up. Raises ServingError; then nothing is left behind."""


class Publisher(Protocol):
    """Where ready versions become visible to requests (routing.table)."""

    def publish(self, name: str, versions: Mapping[int, Servable]) -> None:
        """From now on requests for `name` see exactly these versions (none: the model is gone). Atomic; from any thread. When it
        returns, no request is routed to a version that is no longer named."""

    def set_waiting(self, name: str, versions: set[int]) -> None:
        """These versions exist but are loading, unloading or failed: requests for them get UNAVAILABLE instead of NOT_FOUND."""

    def forget(self, name: str) -> None:
        """The model is in no repository any more."""

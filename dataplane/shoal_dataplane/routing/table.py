"""The routing table: from a model's name and version to a loaded version.

Written by the repository (any thread), read by the core loop for every request. A write replaces a whole snapshot, so a reader
never sees half of a swap.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from shoal_dataplane.core.errors import ServingError, invalid, not_found, unavailable
from shoal_dataplane.core.request import Target


def parse_version(name: str, version: str) -> int:
    """Return the number of a requested version, -1 for none. Raises ServingError(INVALID_ARGUMENT) for anything but a number."""
    if version in ("", "-1"):
        return -1
    if not (version.isascii() and version.isdigit()) or len(version) > 19:
        raise invalid(
            f"failed to get model version from specified version string '{version}' for model '{name}', "
            "version should be an integral value > 0"
        )
    return int(version)


class RoutingTable:
    """Which versions serve, and which exist without being ready."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: dict[tuple[str, str], Target] = {}
        self._models: dict[str, dict[int, Target]] = {}
        self._waiting: dict[str, set[int]] = {}

    def resolve(self, name: str, version: str) -> Target:
        """Return the target of a request: the version asked for, else the highest ready one.

        Raises ServingError: NOT_FOUND for an unknown model or version, UNAVAILABLE for one that is not ready (triton.md A6).
        """
        target = self._ready.get((name, version))
        if target is not None:
            return target
        raise self._explain(name, version)

    def _explain(self, name: str, version: str) -> ServingError:
        try:
            number = parse_version(name, version)
        except ServingError as error:
            return error
        waiting = self._waiting.get(name, set())
        models = self._models.get(name)
        if models and number in models:  # a version written in another way, such as "01"
            return not_found(f"Request for unknown model: '{name}' version {version} is not found")
        if number in waiting or (number == -1 and waiting):
            shown = number if number != -1 else max(waiting)
            return unavailable(f"Request for unknown model: '{name}' version {shown} is not at ready state")
        if models:
            return not_found(f"Request for unknown model: '{name}' version {number} is not found")
        if name in self._models:
            return not_found(f"Request for unknown model: '{name}' has no available versions")
        return not_found(f"Request for unknown model: '{name}' is not found")

    def publish(self, name: str, versions: Mapping[int, Target]) -> None:
        """Replace what is served under `name`. From any thread."""
        with self._lock:
            ready = {key: target for key, target in self._ready.items() if key[0] != name}
            for number, target in versions.items():
                ready[name, str(number)] = target
            if versions:
                latest = versions[max(versions)]
                ready[name, ""] = latest
                ready[name, "-1"] = latest
            self._models = {**self._models, name: dict(versions)}
            self._ready = ready

    def forget(self, name: str) -> None:
        """The model is no longer in any repository."""
        with self._lock:
            self._ready = {key: target for key, target in self._ready.items() if key[0] != name}
            self._models = {key: value for key, value in self._models.items() if key != name}
            self._waiting = {key: value for key, value in self._waiting.items() if key != name}

    def set_waiting(self, name: str, versions: set[int]) -> None:
        """These versions exist, but are loading, unloading or failed."""
        with self._lock:
            self._waiting = {**self._waiting, name: set(versions)}

    def versions(self, name: str) -> dict[int, Target]:
        """The ready versions of a model, by number; empty when there are none."""
        return dict(self._models.get(name, {}))

    def models(self) -> dict[str, dict[int, Target]]:
        """All ready versions of all models."""
        return {name: dict(versions) for name, versions in self._models.items() if versions}

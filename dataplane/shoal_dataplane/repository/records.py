"""What the repository knows of each model, and the operations that wait for their turn on it. Plain data: the lifecycle locks it."""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.execution.source import VersionSource
from shoal_dataplane.repository.override import Override, Workspace
from shoal_dataplane.repository.types import IndexEntry, ModelState, Servable

UNLOADED: Final = "unloaded"
"""The reason of a version that was unloaded as asked (triton.md A7)."""


def describe(error: ServingError) -> str:
    """An error as the reason of a state, as Triton's Status prints it: "Invalid argument: ...", "Unsupported: ..."."""
    word = "Unsupported" if error.code is Code.UNIMPLEMENTED else error.code.name.replace("_", " ").capitalize()
    return f"{word}: {error.message}"


class LoadEvent(NamedTuple):
    """One version changed its state; `version` is None when the model failed as a whole. `seconds`: how long loading took, up to
    READY or UNAVAILABLE (0 for the other states)."""

    name: str
    version: int | None
    state: ModelState
    reason: str
    seconds: float


class Kind(enum.Enum):
    """What an operation does. REMOVE is UNLOAD for a model that is in no repository any more."""

    LOAD = "load"
    UNLOAD = "unload"
    REMOVE = "remove"


class Operation:
    """One load or unload of one model. Answered once, when its caller may go on; it may still be draining old versions then."""

    def __init__(self, name: str, kind: Kind, override: Override | None = None) -> None:
        self.name = name
        self.kind = kind
        self.override = override
        self.outdated = False  # a newer operation makes this one pointless; under the lifecycle's lock
        self._answered = threading.Event()
        self._error: ServingError | None = None

    @property
    def supersedes(self) -> bool:
        """Does it make the loads before it pointless? A plain load does not: it waits, and mostly finds its work done."""
        return self.kind is not Kind.LOAD or self.override is not None

    def answer(self, error: ServingError | None = None) -> None:
        """Let the caller go on. Only the first call counts."""
        if not self._answered.is_set():
            self._error = error
            self._answered.set()

    def wait(self) -> None:
        """Wait for the answer. Raises the ServingError that the operation ended with."""
        self._answered.wait()
        if self._error is not None:
            raise self._error


class VersionState(NamedTuple):
    """What the index shows of one version."""

    state: ModelState
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Is it down without having been asked to?"""
        return self.state is ModelState.UNAVAILABLE and self.reason != UNLOADED


@dataclass(frozen=True, slots=True)
class Serving:
    """One version that serves, and a fingerprint of the configuration and files that it was built from."""

    servable: Servable
    source: VersionSource
    fingerprint: bytes


@dataclass(slots=True)
class ModelEntry:
    """One model. `serving` are the versions that requests are routed to, `states` those that the index shows. `failure` says why the
    model as a whole could not be loaded. `signature` is that of the files last loaded, None when the next load must not be skipped.
    The first operation of `queue` is the one that runs."""

    name: str
    serving: dict[int, Serving] = field(default_factory=dict)
    states: dict[int, VersionState] = field(default_factory=dict)
    failure: str = ""
    signature: bytes | None = None
    workspace: Workspace | None = None
    queue: deque[Operation] = field(default_factory=deque)

    def forgettable(self) -> bool:
        """Is there nothing to remember of it?"""
        return not (self.queue or self.serving or self.states or self.failure)

    def set_states(self, versions: Iterable[int], state: ModelState, reason: str = "") -> None:
        """Set what the index shows of some versions."""
        for version in versions:
            self.states[version] = VersionState(state, reason)

    def waiting(self) -> set[int]:
        """Versions that exist but serve no request: loading, unloading or failed."""
        return {
            version
            for version, shown in self.states.items()
            if version not in self.serving and (shown.state is not ModelState.UNAVAILABLE or shown.failed)
        }

    def rows(self) -> list[IndexEntry]:
        """Its lines of the index, by version."""
        if self.failure:
            return [IndexEntry(self.name, "", ModelState.UNAVAILABLE, self.failure)]
        if not self.states and any(operation.kind is Kind.LOAD for operation in self.queue):
            return [IndexEntry(self.name, "", ModelState.LOADING, "")]
        return [IndexEntry(self.name, str(v), shown.state, shown.reason) for v, shown in sorted(self.states.items())]

    def unready(self) -> list[IndexEntry]:
        """The lines of what is neither ready nor unloaded (or being unloaded) as asked (triton.md J2)."""
        rows: list[IndexEntry] = []
        for row in self.rows():
            if row.state == ModelState.READY:
                serving = self.serving.get(int(row.version))
                if serving is not None and not serving.servable.healthy():
                    rows.append(row._replace(state=ModelState.UNAVAILABLE, reason="no instance of the model can run"))
            elif row.state != ModelState.UNLOADING and row.reason != UNLOADED:
                rows.append(row)
        return rows

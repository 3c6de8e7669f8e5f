"""Which models changed since they were last loaded (triton.md A9), with patience for one that is being copied. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Changes(NamedTuple):
    """Names of models to load or reload, and of models that are gone. `unsettled`: something is changing still, look again soon."""

    changed: set[str]
    removed: set[str]
    unsettled: bool


class ChangeDetector:
    """Compares signatures of model folders over time. A change counts once it has stayed the same for `settle_seconds`, so that a
    model that is copied into the repository is not loaded by halves, and one that is replaced is not unloaded in between."""

    def __init__(self, settle_seconds: float) -> None:
        self._settle_seconds = settle_seconds
        self._taken: dict[str, bytes] = {}
        self._pending: dict[str, tuple[bytes | None, float]] = {}

    def take(self, signatures: Mapping[str, bytes]) -> None:
        """Everything that is there now counts as loaded: the first look at the repository."""
        self._taken = dict(signatures)
        self._pending.clear()

    def taken(self) -> dict[str, bytes]:
        """The signatures as of the last change that was reported, by the model's name."""
        return dict(self._taken)

    def observe(self, signatures: Mapping[str, bytes], now: float) -> Changes:
        """Take what is there at `now` (seconds, monotonic). A change is reported once, and is then taken as loaded."""
        changed: set[str] = set()
        removed: set[str] = set()
        for name in signatures.keys() | self._taken.keys() | self._pending.keys():
            current = signatures.get(name)
            if current == self._taken.get(name):
                self._pending.pop(name, None)
            elif self._settled(name, current, now):
                del self._pending[name]
                if current is None:
                    del self._taken[name]
                    removed.add(name)
                else:
                    self._taken[name] = current
                    changed.add(name)
        return Changes(changed, removed, bool(self._pending))

    def _settled(self, name: str, current: bytes | None, now: float) -> bool:
        pending = self._pending.get(name)
        if pending is None or pending[0] != current:
            self._pending[name] = (current, now)
            return self._settle_seconds <= 0
        return now - pending[1] >= self._settle_seconds

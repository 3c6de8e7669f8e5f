"""Where a batch runs. An executor owns one instance and takes one batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal_dataplane.backends.base import Execution
from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.scheduling.base import Batch

Done = Callable[[Batch, Execution | ServingError], None]
"""Called on the core loop's thread when the batch has run; a ServingError fails every request of the batch."""


FEW_REQUESTS = 4
"""The answers to so many requests an executor's thread may give itself (CoreLoop.run_or_post). More are better given by the loop: each
answer causes events that wake it, and it would contend with the executor's thread for the interpreter."""


class Executor(Protocol):
    """Core loop's thread only, but for what an implementation does inside."""

    def free(self) -> bool:
        """Can it take a batch now?"""

    def submit(self, batch: Batch, done: Done) -> None:
        """Run the batch; `done` is called exactly once, perhaps before `submit` returns (inline)."""

    def cancel(self, batch: Batch) -> None:
        """The callers of some requests of a running batch are gone (request.cancelled is set): tell the model, if it can be told."""

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, on the core loop's thread, when the executor can take batches again after it could not."""

    def healthy(self) -> bool:
        """False while the instance cannot run (a process being restarted)."""

    def close(self) -> None:
        """Free the instance once the running batch is done. Blocking is allowed: called on a repository thread, not on the loop's."""

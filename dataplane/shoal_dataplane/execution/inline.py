"""Run a batch on the core loop itself: no hand-off, for models that take less time than one."""

from __future__ import annotations

from collections.abc import Callable

from shoal_dataplane.backends.base import Execution, Instance
from shoal_dataplane.core.errors import ServingError, internal
from shoal_dataplane.execution.base import Done
from shoal_dataplane.scheduling.base import Batch


def run(instance: Instance, batch: Batch) -> Execution | ServingError:
    """Execute, and turn what the instance raises into the error that fails the batch."""
    try:
        return instance.execute(batch.requests)
    except ServingError as error:
        return error
    except MemoryError as error:
        return internal(f"out of memory while executing a batch of {batch.size}: {error or 'no details'}")
    except Exception as error:
        return internal(f"{type(error).__name__}: {error}")


class InlineExecutor:
    """Runs in `submit`; `done` is called before it returns."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def free(self) -> bool:
        return True

    def on_ready(self, callback: Callable[[], None]) -> None:
        """It always can."""

    def healthy(self) -> bool:
        return True

    def submit(self, batch: Batch, done: Done) -> None:
        done(batch, run(self._instance, batch))

    def cancel(self, batch: Batch) -> None:
        """Nothing can be running when the loop gets here."""

    def close(self) -> None:
        self._instance.close()

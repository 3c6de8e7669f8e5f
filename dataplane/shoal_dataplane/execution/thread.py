"""Run batches on a thread of their own, so that a slow model does not hold up the doors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from shoal_dataplane.backends.base import Execution, Instance
from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.core.loop import CoreLoop
from shoal_dataplane.execution.base import Done
from shoal_dataplane.execution.inline import run
from shoal_dataplane.scheduling.base import Batch

INLINE_BELOW_NS = 400_000
"""An adaptive executor runs inline while a batch takes less than this: a hand-off to a thread and back costs 50-100 us and halves the
batches, so below it the loop is faster by itself; above it the doors would wait."""
THREAD_ABOVE_NS = 1_000_000
"""... and goes back to its thread when a batch takes more than this."""


class ThreadExecutor:
    """One instance, one thread, one batch at a time."""

    def __init__(self, instance: Instance, loop: CoreLoop, name: str) -> None:
        self._instance = instance
        self._loop = loop
        self._jobs: SimpleQueue[tuple[Batch, Done] | None] = SimpleQueue()
        self._busy = False
        self._thread = threading.Thread(target=self._work, name=f"shoal-model-{name}", daemon=True)
        self._thread.start()

    def free(self) -> bool:
        return not self._busy

    def on_ready(self, callback: Callable[[], None]) -> None:
        """A thread is never down."""

    def healthy(self) -> bool:
        return True

    def submit(self, batch: Batch, done: Done) -> None:
        self._busy = True
        self._jobs.put((batch, done))

    def cancel(self, batch: Batch) -> None:
        """Nothing to interrupt: a model in this process sees `request.cancelled` where it looks at it."""

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            batch, done = job
            result = run(self._instance, batch)
            self._loop.post(partial(self._finish, batch, done, result))
            del job, batch, done, result  # or they live until the next batch comes

    def _finish(self, batch: Batch, done: Done, result: Execution | ServingError) -> None:
        self._busy = False
        done(batch, result)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        self._instance.close()


class AdaptiveExecutor:
    """Inline while the model is fast, on a thread while it is not; by an average of the last batches. Starts on the thread."""

    def __init__(self, instance: Instance, loop: CoreLoop, name: str) -> None:
        self._inner = ThreadExecutor(instance, loop, name)
        self._instance = instance
        self._average_ns = float(THREAD_ABOVE_NS)
        self._inline = False

    @property
    def inline(self) -> bool:
        """Where the next batch will run."""
        return self._inline

    def free(self) -> bool:
        return self._inner.free()

    def on_ready(self, callback: Callable[[], None]) -> None:
        """A thread is never down."""

    def healthy(self) -> bool:
        return True

    def submit(self, batch: Batch, done: Done) -> None:
        if self._inline:
            started = time.perf_counter_ns()
            result = run(self._instance, batch)
            self._observe(time.perf_counter_ns() - started)
            done(batch, result)
        else:
            self._inner.submit(batch, lambda batch, result: self._threaded(batch, result, done))

    def _threaded(self, batch: Batch, result: Execution | ServingError, done: Done) -> None:
        if isinstance(result, Execution):
            self._observe(result.input_ns + result.infer_ns + result.output_ns)
        done(batch, result)

    def _observe(self, took_ns: int) -> None:
        self._average_ns += (min(took_ns, 20 * THREAD_ABOVE_NS) - self._average_ns) / 8
        if self._average_ns < INLINE_BELOW_NS:
            self._inline = True
        elif self._average_ns > THREAD_ABOVE_NS:
            self._inline = False

    def cancel(self, batch: Batch) -> None:
        """As for a thread."""

    def close(self) -> None:
        self._inner.close()

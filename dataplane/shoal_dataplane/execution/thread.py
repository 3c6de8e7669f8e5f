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
from shoal_dataplane.execution.base import FEW_REQUESTS, Done
from shoal_dataplane.execution.inline import run
from shoal_dataplane.scheduling.base import Batch

INLINE_BELOW_NS = 400_000
"""A model is tried inline when the fastest of its last WINDOW batches on its thread took less than this: a hand-off to a thread and back
costs 50-100 us and halves the batches, so below it the loop is faster by itself; above it the doors would wait. The fastest, because on
a thread a batch's time has the waits for the interpreter lock in it."""
THREAD_ABOVE_NS = 1_000_000
"""... and goes back to its thread when its batches take more than this on average. Each time it does, it stays there twice as long."""
WINDOW = 16
MAX_WINDOW = 4096


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
            give = self._loop.run_or_post if len(batch.requests) <= FEW_REQUESTS else self._loop.post
            give(partial(self._finish, batch, done, result))
            del job, batch, done, result  # or they live until the next batch comes

    def _finish(self, batch: Batch, done: Done, result: Execution | ServingError) -> None:
        self._busy = False
        done(batch, result)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        self._instance.close()


class AdaptiveExecutor:
    """Inline while the model is fast, on a thread while it is not. Starts on the thread."""

    def __init__(self, instance: Instance, loop: CoreLoop, name: str) -> None:
        self._inner = ThreadExecutor(instance, loop, name)
        self._instance = instance
        self._inline = False
        self._average_ns = 0.0  # inline
        self._fastest_ns = THREAD_ABOVE_NS  # on the thread, of the batches counted in `_seen`
        self._seen = 0
        self._window = WINDOW

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
            self.observe_inline(time.perf_counter_ns() - started)
            done(batch, result)
        else:
            self._inner.submit(batch, partial(self._threaded, done))

    def _threaded(self, done: Done, batch: Batch, result: Execution | ServingError) -> None:
        if isinstance(result, Execution):
            self.observe_threaded(result.input_ns + result.infer_ns + result.output_ns)
        done(batch, result)

    def observe_threaded(self, took_ns: int) -> None:
        """A batch took so long on the thread."""
        self._fastest_ns = min(self._fastest_ns, took_ns)
        self._seen += 1
        if self._seen >= self._window:
            self._inline = self._fastest_ns < INLINE_BELOW_NS
            self._average_ns = float(self._fastest_ns)
            self._seen, self._fastest_ns = 0, THREAD_ABOVE_NS

    def observe_inline(self, took_ns: int) -> None:
        """A batch took so long on the loop."""
        # Cut, so that it takes several slow batches in a row: a busy machine takes the processor away for milliseconds now and then.
        self._average_ns += (min(took_ns, 2 * THREAD_ABOVE_NS) - self._average_ns) / 8
        if self._inline and self._average_ns > THREAD_ABOVE_NS:
            self._inline = False
            self._window = min(2 * self._window, MAX_WINDOW)

    def cancel(self, batch: Batch) -> None:
        """As for a thread."""

    def close(self) -> None:
        self._inner.close()

"""The core loop: the one thread on which requests are routed, queued, batched and answered.

Everything that decides runs here, so schedulers and routing need no locks. A loop has three kinds of work:
- posted calls, from any thread (a door, an executor that finished, the repository that publishes a model);
- timers (queue delays, timeouts, deadlines);
- deferred calls, run once when the input that is there has been drained. Forming a batch is deferred, so that a batch holds
  everything that had arrived, with no delay configured.

`CoreLoop` is the mechanism. What it sleeps on is the driver's: gRPC's completion queue (server.completion_queue) or, where that
is not available, `ThreadedLoop` here.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

Callback = Callable[[], None]


class Timer:
    """A call at a point of the loop's clock; `cancel` before it runs."""

    __slots__ = ("callback", "cancelled", "when_ns")

    def __init__(self, when_ns: int, callback: Callback) -> None:
        self.when_ns = when_ns
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class CoreLoop:
    """Posted, timed and deferred calls. The driver calls `run_ready` after each burst of its own input.

    `now_ns` is a monotonic clock in nanoseconds; tests give a fake one and call `run_ready` themselves.
    """

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.now_ns = now_ns
        self.failed = False
        """Has a fault of the driver's own ended it? The process is then not live any more."""
        self._posted: deque[Callback] = deque()
        self._deferred: list[Callback] = []
        self._timers: list[tuple[int, int, Timer]] = []
        self._coarse: list[tuple[int, int, Timer]] = []
        self._sequence = itertools.count()

    def post(self, callback: Callback) -> None:
        """Run `callback` on the loop's thread soon. From any thread."""
        self._posted.append(callback)
        self.wake()

    def run_or_post(self, callback: Callback) -> None:
        """As `post`, but a driver may run `callback`, and what it makes ready, on the calling thread while its own sleeps: that saves
        waking it. From any thread but the loop's; for short work, a single answer."""
        self.post(callback)

    def defer(self, callback: Callback) -> None:
        """Run `callback` once the input at hand is drained. Loop's thread only; the caller sees to it that it defers once."""
        self._deferred.append(callback)

    def call_at(self, when_ns: int, callback: Callback, coarse: bool = False) -> Timer:
        """Run `callback` at `when_ns` or soon after; a `coarse` timer may be some milliseconds late, which costs the driver less.
        Loop's thread only."""
        timer = Timer(when_ns, callback)
        heapq.heappush(self._coarse if coarse else self._timers, (when_ns, next(self._sequence), timer))
        return timer

    def wake(self) -> None:
        """Interrupt the driver's sleep. From any thread. The base has nothing to interrupt."""

    def has_ready(self) -> bool:
        """Is there posted or deferred work that needs no waiting?"""
        return bool(self._posted or self._deferred)

    def run_posted(self) -> None:
        """Run what has been posted up to now."""
        posted = self._posted
        for _ in range(len(posted)):
            self._call(posted.popleft())

    def run_ready(self) -> None:
        """Run what is posted, then what is due, then what was deferred. Work that these add waits for the next call."""
        self.run_posted()
        self.run_timers()
        self.run_deferred()

    def run_deferred(self) -> None:
        """Run what was deferred up to now."""
        if self._deferred:
            deferred, self._deferred = self._deferred, []
            for callback in deferred:
                self._call(callback)

    def run_timers(self) -> None:
        """Run the timers that are due."""
        if self._timers or self._coarse:
            now = self.now_ns()
            for timers in (self._timers, self._coarse):
                while timers and (timers[0][0] <= now or timers[0][2].cancelled):
                    timer = heapq.heappop(timers)[2]
                    if not timer.cancelled:
                        self._call(timer.callback)

    def next_timer_ns(self) -> int | None:
        """When the next timer of either kind is due, None when there is none."""
        exact, coarse = self.next_exact_ns(), self.next_coarse_ns()
        if exact is None or coarse is None:
            return coarse if exact is None else exact
        return min(exact, coarse)

    def next_exact_ns(self) -> int | None:
        """When the next timer that is not coarse is due."""
        return _earliest(self._timers)

    def next_coarse_ns(self) -> int | None:
        """When the next coarse timer is due."""
        return _earliest(self._coarse)

    @staticmethod
    def _call(callback: Callback) -> None:
        try:
            callback()
        except Exception:  # the loop serves every model: one faulty callback must not end it
            logger.exception("a callback of the core loop raised")


def _earliest(timers: list[tuple[int, int, Timer]]) -> int | None:
    while timers and timers[0][2].cancelled:
        heapq.heappop(timers)
    return timers[0][0] if timers else None


class ThreadedLoop(CoreLoop):
    """A core loop on a thread of its own that sleeps on a condition. For the grpc.aio fallback and for servers without gRPC."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = threading.Condition()
        self._awake = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="shoal-core", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the work at hand and wait for it."""
        self._stopping = True
        self.wake()
        self._thread.join()

    def wake(self) -> None:
        with self._condition:
            self._awake = True
            self._condition.notify()

    def _run(self) -> None:
        while not self._stopping:
            self.run_ready()
            if self.has_ready():
                continue
            due = self.next_timer_ns()
            timeout = None if due is None else max(0.0, (due - self.now_ns()) / 1e9)
            with self._condition:
                if not self._awake:
                    self._condition.wait(timeout)
                self._awake = False

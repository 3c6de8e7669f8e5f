"""Whether a worker process does well: its load, its memory, its batch, its own opinion of its readiness."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import NamedTuple

from shoal_dataplane.backends.worker.options import EXECUTE_TIMEOUT, LOAD_TIMEOUT, MEMORY_LIMIT, WorkerOptions
from shoal_dataplane.core.loop import CoreLoop
from shoal_dataplane.execution import messages
from shoal_dataplane.execution.channel import Kind
from shoal_dataplane.execution.supervisor import Supervisor
from shoal_dataplane.execution.worker.process import WorkerProcess, anonymous_memory
from shoal_dataplane.scheduling.base import Batch

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
MEMORY_TICK_SECONDS = 0.2
STALE_SECONDS = 5.0
"""How long a batch that nobody waits for any more may run on."""
READY_SECONDS = 5.0
"""How long a model's is_ready may take (triton.md F3)."""
IDLE_SECONDS = 60.0
"""After so long without a batch, shared memory that is kept for the next one is given back."""


class Running(NamedTuple):
    """A batch that the worker runs, and when it was given it, on the loop's clock."""

    batch: Batch
    started_ns: int


class WorkerWatch:
    """Looks at one worker process now and then, until it has ended. Supervisor's thread, but for what is said below."""

    def __init__(
        self, worker: WorkerProcess, options: WorkerOptions, supervisor: Supervisor, loop: CoreLoop, name: str
    ) -> None:
        self.running: Running | None = None
        """Written on the core loop's thread."""
        self.ready = True
        """What the model's is_ready said last; True where it has none. Read from any thread."""
        self._worker = worker
        self._options = options
        self._supervisor = supervisor
        self._loop = loop
        self._name = name
        self._loaded = False
        self._checks_readiness = False
        self._asked_at: float | None = None
        self._problem = ""
        self._seen: Running | None = None
        self._stale_since: float | None = None
        self._used_at = time.monotonic()
        self._tick_seconds = TICK_SECONDS
        if options.memory_bytes is not None:
            self._tick_seconds = MEMORY_TICK_SECONDS
        for limit in (options.execute_seconds, options.load_seconds):
            if limit is not None:
                self._tick_seconds = min(self._tick_seconds, max(0.02, limit / 4))
        supervisor.call_later(self._tick_seconds, self._tick)

    def loaded(self, checks_readiness: bool) -> None:
        """The model is loaded; `checks_readiness`: it has an is_ready."""
        self._loaded = True
        self._checks_readiness = checks_readiness

    def heard_ready(self, head: messages.ReadyHead) -> None:
        """The model's is_ready has answered."""
        self._asked_at = None
        if (head.ready, head.problem) != (self.ready, self._problem):
            self._problem = head.problem
            logger.warning(
                "model instance '%s' says that it is %sready%s",
                self._name,
                "" if head.ready else "not ",
                f": {head.problem}" if head.problem else "",
            )
        self.ready = head.ready

    def _tick(self) -> None:
        if self._worker.ended:
            return
        now = time.monotonic()
        if not self._loaded and now - self._worker.started > self._options.load_seconds:
            self._worker.kill(f"took longer than {self._options.load_seconds:g} s to load ({LOAD_TIMEOUT})")
        self._check_memory()
        self._check_batch(now)
        if self._checks_readiness:
            self._ask_ready(now)
        self._trim(now)
        self._supervisor.call_later(self._tick_seconds, self._tick)

    def _check_memory(self) -> None:
        limit = self._options.memory_bytes
        if limit is not None:
            used = anonymous_memory(self._worker.pid)
            if used > limit:
                self._worker.kill(f"used {used >> 20} MB of memory, its limit is {limit >> 20} MB ({MEMORY_LIMIT})")

    def _check_batch(self, now: float) -> None:
        running = self.running
        if running is not self._seen:
            self._seen = running
            self._stale_since = None
            self._used_at = now
        if running is None:
            return
        loop_now = self._loop.now_ns()
        limit = self._options.execute_seconds
        if limit is not None and loop_now - running.started_ns > limit * 1e9:
            self._worker.kill(f"took longer than {limit:g} s for a batch ({EXECUTE_TIMEOUT})")
        elif any(
            not r.cancelled and (r.deadline_ns is None or r.deadline_ns > loop_now) for r in running.batch.requests
        ):
            self._stale_since = None
        elif self._stale_since is None:
            self._stale_since = now
        elif now - self._stale_since > STALE_SECONDS:
            self._worker.kill(f"still ran a batch {STALE_SECONDS:g} s after the last of its callers had gone")

    def _ask_ready(self, now: float) -> None:
        if self._asked_at is None:
            self._asked_at = now
            self._tell(Kind.READY_CHECK)
        elif now - self._asked_at > READY_SECONDS and self.ready:
            self.ready = False
            logger.warning("is_ready of model instance '%s' takes longer than %g s", self._name, READY_SECONDS)

    def _trim(self, now: float) -> None:
        worker = self._worker
        if self.running is None and now - self._used_at > IDLE_SECONDS:
            if worker.pool.segments() or worker.table.segments():
                worker.pool.trim()
                self._tell(Kind.TRIM)

    def _tell(self, kind: Kind) -> None:
        with suppress(OSError):  # it is gone
            self._worker.control.send(kind)

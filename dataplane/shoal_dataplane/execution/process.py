"""Run a model instance in a process of its own: whatever it does there, it does to nobody else.

When the process ends in a batch, that batch fails and the process is started again, at once the first time, then after 1 s, 2 s, 4 s and
so on up to 30 s, until it has lived for a minute. Meanwhile the executor is not free, so the model's queue waits. The model's parameters
bound it (backends.worker_options): time to load, time for one batch, memory, time to close. A batch whose requests are all cancelled or
past their deadlines, and that still runs seconds later, is taken for hung.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from shoal_dataplane.backends.base import Execution, InstanceSpec, ModelContext
from shoal_dataplane.backends.worker_options import EXECUTE_TIMEOUT, LOAD_TIMEOUT, MEMORY_LIMIT, WorkerOptions
from shoal_dataplane.core.errors import Code, Reason, ServingError, internal, unavailable
from shoal_dataplane.core.loop import CoreLoop
from shoal_dataplane.execution import messages
from shoal_dataplane.execution.base import Done
from shoal_dataplane.execution.bridge import ServerBridge
from shoal_dataplane.execution.channel import Frame, Kind, WireError
from shoal_dataplane.execution.supervisor import acquire_supervisor, release_supervisor
from shoal_dataplane.execution.wire import Failure, RequestEncoder, decode_answer, from_failure
from shoal_dataplane.execution.worker_calls import WorkerCalls
from shoal_dataplane.execution.worker_output import WorkerOutput
from shoal_dataplane.execution.worker_output import logger as models_logger
from shoal_dataplane.execution.worker_process import WorkerProcess, anonymous_memory
from shoal_dataplane.scheduling.base import Batch

logger = logging.getLogger(__name__)

STABLE_SECONDS = 60.0
MAX_BACKOFF_SECONDS = 30.0
TICK_SECONDS = 1.0
MEMORY_TICK_SECONDS = 0.2
STALE_SECONDS = 5.0
"""How long a batch that nobody waits for any more may run on."""
READY_SECONDS = 5.0
"""How long a model's is_ready may take (triton.md F3)."""
IDLE_SECONDS = 60.0
"""After so long without a batch, shared memory that is kept for the next one is given back."""


class _Running(NamedTuple):
    """A batch in a worker, for the supervisor to look at."""

    worker: WorkerProcess
    batch: Batch
    started_ns: int  # of the loop's clock


class ProcessExecutor:
    """An Executor (execution.base) over one worker process at a time."""

    @classmethod
    def start(
        cls, context: ModelContext, instance: InstanceSpec, loop: CoreLoop, bridge: ServerBridge
    ) -> ProcessExecutor:
        """Start a process, have it load the instance, and return when it has. Blocking, for as long as the model takes to load: not on
        the core loop's thread.

        Raises ServingError: what loading raised (for a Python model, the exception and where it was raised), or how the process ended.
        Nothing is left behind then.
        """
        executor = cls(context, instance, loop, bridge)
        try:
            executor._supervisor.call(executor._spawn)
            executor._first_outcome.wait()
            if executor._load_error is not None:
                raise executor._load_error
        except OSError as error:
            release_supervisor()
            raise unavailable(f"the process of model instance '{instance.name}' cannot be started: {error}") from error
        except BaseException:
            release_supervisor()
            raise
        return executor

    def __init__(self, context: ModelContext, instance: InstanceSpec, loop: CoreLoop, bridge: ServerBridge) -> None:
        """Used by `start`."""
        self._options = WorkerOptions.of(context.config)
        self._context = context
        self._instance = instance
        self._loop = loop
        self._bridge = bridge
        self._supervisor = acquire_supervisor()
        # The core loop's:
        self._worker: WorkerProcess | None = None
        self._batch: Batch | None = None
        self._done: Done | None = None
        self._sequence = 0
        self._submitted_ns = 0
        self._encoded_ns = 0
        self._encoder = RequestEncoder()
        self._callbacks: list[Callable[[], None]] = []
        # The supervisor's:
        self._process: WorkerProcess | None = None
        self._calls: WorkerCalls | None = None
        self._loaded_at = 0.0
        self._failures = 0
        self._load_error: ServingError | None = None
        self._stale_since: float | None = None
        self._checks_readiness = False
        self._asked_ready_at: float | None = None
        self._ready_problem = ""
        # Shared; each is one attribute, written whole:
        self._running: _Running | None = None
        self._user_ready = True
        self._used_at = time.monotonic()
        self._closing = False
        self._first_outcome = threading.Event()
        self._ended = threading.Event()
        self._close_lock = threading.Lock()

    # -- Executor, on the core loop's thread

    def free(self) -> bool:
        return self._batch is None and self._worker is not None

    def healthy(self) -> bool:
        """Is the process there, and, where the model has an is_ready, does that say so? From any thread."""
        return self._worker is not None and self._user_ready

    @property
    def worker_pid(self) -> int:
        """The process's id; 0 while there is none."""
        worker = self._worker
        return 0 if worker is None else worker.pid

    def on_ready(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def submit(self, batch: Batch, done: Done) -> None:
        worker = self._worker
        self._sequence += 1
        self._batch, self._done = batch, done
        self._submitted_ns = time.perf_counter_ns()
        if worker is None:
            self._finish(unavailable(f"the process of model instance '{self._instance.name}' is being started again"))
            return
        self._running = _Running(worker, batch, self._loop.now_ns())
        try:
            worker.data.send(Kind.EXECUTE, *self._encoder.encode(self._sequence, batch.requests))
        except (BrokenPipeError, ConnectionResetError):
            """It is gone; `_lost`, which is on its way, fails the batch."""
        except OSError as error:
            self._finish(
                ServingError(
                    Code.RESOURCE_EXHAUSTED,
                    f"no shared memory for a batch of model '{self._context.name}': {error}",
                    Reason.OTHER,
                )
            )
        self._encoded_ns = time.perf_counter_ns()

    def cancel(self, batch: Batch) -> None:
        worker = self._worker
        if worker is None or batch is not self._batch:
            return
        positions = [position for position, request in enumerate(batch.requests) if request.cancelled]
        try:
            worker.control.send(Kind.CANCEL, messages.encode(messages.CancelHead(self._sequence, positions)))
        except OSError:
            """It is gone."""

    def _answer(self, worker: WorkerProcess, frame: Frame) -> None:
        batch = self._batch
        if worker is not self._worker or batch is None:
            return
        try:
            if frame.kind != Kind.ANSWER:
                raise WireError(f"a frame of kind {frame.kind}")
            result = decode_answer(frame.head, frame.payload, self._sequence, len(batch.requests))
        except WireError as error:
            worker.kill_soon(f"sent something malformed: {error}")
            return
        if isinstance(result, Execution):
            input_ns = self._encoded_ns - self._submitted_ns + max(0, result.input_ns)
            infer_ns = max(0, result.infer_ns)
            total_ns = time.perf_counter_ns() - self._submitted_ns
            result = Execution(result.responses, input_ns, infer_ns, max(0, total_ns - input_ns - infer_ns))
        self._finish(result)

    def _finish(self, result: Execution | ServingError) -> None:
        batch, done = self._batch, self._done
        assert batch is not None
        assert done is not None
        self._batch = self._done = self._running = None
        self._used_at = time.monotonic()
        done(batch, result)

    def _attach(self, worker: WorkerProcess) -> None:
        """The process is there again."""
        self._worker = worker
        for callback in self._callbacks:
            callback()

    def _lost(self, worker: WorkerProcess, text: str) -> None:
        """The process is gone."""
        if self._worker is not worker:
            return
        self._worker = None
        if self._batch is not None:
            self._finish(internal(text))

    # -- the worker, on its reader's and on the supervisor's thread

    def answered(self, worker: WorkerProcess, frame: Frame) -> None:
        """A worker's answer to a batch."""
        self._loop.post(partial(self._answer, worker, frame))

    def heard(self, worker: WorkerProcess, frame: Frame) -> None:
        """Anything else a worker says. Raises WireError."""
        assert self._calls is not None
        if self._calls.handle(frame):
            return
        if frame.kind == Kind.LOG:
            line = messages.decode(messages.LogHead, frame.head)
            worker.output.log(line.level, line.message)
        elif frame.kind == Kind.LOADED:
            self._loaded(worker, messages.decode(messages.LoadedHead, frame.head))
        elif frame.kind == Kind.LOAD_FAILED:
            self._load_error = from_failure(messages.decode(Failure, frame.head))
        elif frame.kind == Kind.READY_RESULT:
            self._heard_ready(messages.decode(messages.ReadyHead, frame.head))
        elif frame.kind != Kind.TRIM:
            raise WireError(f"a frame of kind {frame.kind}")

    def _spawn(self) -> None:
        if self._closing:
            self._ended.set()
            return
        output = WorkerOutput(self._context.name, self._instance.name)
        self._load_error = None
        worker = WorkerProcess(self._supervisor, self, self._context.config, output)
        self._process = worker
        self._calls = WorkerCalls(self._bridge, worker.control, self._instance.name)
        self._loaded_at = 0.0
        config = self._context.config
        level = models_logger.getEffectiveLevel()
        load = messages.encode_load(config.backend or config.platform, self._context, self._instance, level)
        with suppress(OSError):  # when it has ended already, `ended` follows
            worker.data.send(Kind.LOAD, load)
        self._supervisor.call_later(self._options.load_seconds, partial(self._check_loaded, worker))

    def _check_loaded(self, worker: WorkerProcess) -> None:
        if worker is self._process and not self._loaded_at:
            worker.kill(f"took longer than {self._options.load_seconds:g} s to load ({LOAD_TIMEOUT})")

    def _loaded(self, worker: WorkerProcess, head: messages.LoadedHead) -> None:
        self._loaded_at = time.monotonic()
        self._checks_readiness = head.checks_readiness
        self._user_ready = True
        self._asked_ready_at = None
        self._stale_since = None
        if self._first_outcome.is_set():
            logger.info("model instance '%s' is loaded again", self._instance.name)
            self._loop.post(partial(self._attach, worker))
        else:
            self._worker = worker  # nobody else knows of this executor yet
            self._first_outcome.set()
        self._tick(worker)

    def ended(self, worker: WorkerProcess) -> None:
        """The worker's process is gone: fail its batch, and start another."""
        if self._calls is not None:
            self._calls.close()
        self._process = self._calls = None
        name = self._instance.name
        if not self._first_outcome.is_set():
            if self._load_error is None:
                self._load_error = internal(
                    f"the process of model instance '{name}' {worker.end} while it loaded the model"
                )
            self._first_outcome.set()
            return
        self._loop.post(partial(self._lost, worker, f"the process of model instance '{name}' {worker.end}"))
        if self._closing:
            self._ended.set()
            return
        if self._loaded_at and time.monotonic() - self._loaded_at >= STABLE_SECONDS:
            self._failures = 0
        delay = min(MAX_BACKOFF_SECONDS, 2.0 ** (self._failures - 1)) if self._failures else 0.0
        self._failures += 1
        why = f": {self._load_error.message}" if self._load_error is not None else ""
        logger.error("the process of model instance '%s' %s%s; starting it again in %g s", name, worker.end, why, delay)
        self._supervisor.call_later(delay, self._restart)

    def _restart(self) -> None:
        try:
            self._spawn()
        except OSError as error:
            logger.error("the process of model instance '%s' cannot be started: %s", self._instance.name, error)
            self._supervisor.call_later(MAX_BACKOFF_SECONDS, self._restart)

    # -- watching it, on the supervisor's thread

    def _tick(self, worker: WorkerProcess) -> None:
        if worker is not self._process:
            return
        options = self._options
        now = time.monotonic()
        self._check_batch(worker, now)
        if options.memory_bytes is not None:
            used = anonymous_memory(worker.pid)
            if used > options.memory_bytes:
                worker.kill(
                    f"used {used >> 20} MB of memory, its limit is {options.memory_bytes >> 20} MB ({MEMORY_LIMIT})"
                )
        if self._checks_readiness:
            self._ask_ready(worker, now)
        if (
            now - self._used_at > IDLE_SECONDS
            and self._batch is None
            and (worker.pool.segments() or worker.table.segments())
        ):
            worker.pool.trim()
            self._tell(worker, Kind.TRIM)
        tick = TICK_SECONDS if options.memory_bytes is None else MEMORY_TICK_SECONDS
        if options.execute_seconds is not None:
            tick = min(tick, max(0.02, options.execute_seconds / 4))
        self._supervisor.call_later(tick, partial(self._tick, worker))

    def _check_batch(self, worker: WorkerProcess, now: float) -> None:
        running = self._running
        if running is None or running.worker is not worker:
            self._stale_since = None
            return
        loop_now = self._loop.now_ns()
        limit = self._options.execute_seconds
        if limit is not None and loop_now - running.started_ns > limit * 1e9:
            worker.kill(f"took longer than {limit:g} s for a batch ({EXECUTE_TIMEOUT})")
            return
        for request in running.batch.requests:
            if not request.cancelled and (request.deadline_ns is None or request.deadline_ns > loop_now):
                self._stale_since = None
                return
        if self._stale_since is None:
            self._stale_since = now
        elif now - self._stale_since > STALE_SECONDS:
            worker.kill(f"still ran a batch {STALE_SECONDS:g} s after the last of its callers had gone")

    def _ask_ready(self, worker: WorkerProcess, now: float) -> None:
        if self._asked_ready_at is None:
            self._asked_ready_at = now
            self._tell(worker, Kind.READY_CHECK)
        elif now - self._asked_ready_at > READY_SECONDS and self._user_ready:
            self._user_ready = False
            logger.warning("is_ready of model instance '%s' takes longer than %g s", self._instance.name, READY_SECONDS)

    def _heard_ready(self, head: messages.ReadyHead) -> None:
        self._asked_ready_at = None
        if (head.ready, head.problem) != (self._user_ready, self._ready_problem):
            self._ready_problem = head.problem
            logger.warning(
                "model instance '%s' says that it is %sready%s",
                self._instance.name,
                "" if head.ready else "not ",
                f": {head.problem}" if head.problem else "",
            )
        self._user_ready = head.ready

    def _tell(self, worker: WorkerProcess, kind: Kind) -> None:
        try:
            worker.control.send(kind)
        except OSError:
            """It is gone."""

    # -- the end, on a repository's thread

    def close(self) -> None:
        """Wait for the batch that runs, have the model finalize, and end the process; each for a bounded time, after which it is killed.

        When it returns, no process, thread or descriptor is left. Idempotent.
        """
        with self._close_lock:
            if self._closing:
                return
            self._closing = True
            wait = self._options.close_seconds
            idle = threading.Event()
            self._loop.post(partial(self._when_idle, idle))
            patient = idle.wait(wait)
            self._supervisor.call(partial(self._end, patient))
            if not self._ended.wait(wait):
                self._supervisor.call(partial(self._kill, f"took longer than {wait:g} s to close"))
                self._ended.wait()
            release_supervisor()

    def _when_idle(self, idle: threading.Event) -> None:
        """Core loop's thread: set `idle` when no batch runs."""
        if self._batch is None:
            idle.set()
            return
        done = self._done
        assert done is not None

        def finished(batch: Batch, result: Execution | ServingError) -> None:
            idle.set()
            done(batch, result)

        self._done = finished

    def _end(self, patient: bool) -> None:
        worker = self._process
        if worker is None:  # it waits to be started again, which now does not happen
            self._ended.set()
        elif not patient or not self._loaded_at:
            worker.kill("was closed")
        else:
            try:
                worker.data.send(Kind.CLOSE)
            except OSError:
                """It ends already."""

    def _kill(self, reason: str) -> None:
        if self._process is not None:
            logger.warning("the process of model instance '%s' %s and is killed", self._instance.name, reason)
            self._process.kill(reason)

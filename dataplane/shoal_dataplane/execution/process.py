"""Run a model instance in a process of its own: whatever it does there, it does to nobody else.

When the process ends in a batch, that batch fails and the process is started again, at once the first time, then after 1 s, 2 s, 4 s and
so on up to 30 s, until it has lived for a minute. Meanwhile the executor is not free, so the model's queue waits. The model's parameters
bound it (backends.worker.options): time to load, time for one batch, memory, time to close. A batch whose requests are all cancelled or
past their deadlines, and that still runs seconds later, is taken for hung.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from shoal_dataplane.backends.base import Execution, InstanceSpec, ModelContext
from shoal_dataplane.backends.worker.options import MEMORY_LIMIT, WorkerOptions
from shoal_dataplane.core.errors import Code, Reason, ServingError, internal, unavailable
from shoal_dataplane.core.loop import CoreLoop
from shoal_dataplane.execution import messages
from shoal_dataplane.execution.base import FEW_REQUESTS, Done
from shoal_dataplane.execution.bridge import ServerBridge
from shoal_dataplane.execution.channel import Frame, Kind, WireError
from shoal_dataplane.execution.supervisor import acquire_supervisor, release_supervisor
from shoal_dataplane.execution.wire import Failure, RequestEncoder, decode_answer, from_failure
from shoal_dataplane.execution.worker.calls import WorkerCalls
from shoal_dataplane.execution.worker.output import WorkerOutput
from shoal_dataplane.execution.worker.output import logger as models_logger
from shoal_dataplane.execution.worker.process import WorkerProcess, anonymous_memory
from shoal_dataplane.execution.worker.watch import Running, WorkerWatch
from shoal_dataplane.scheduling.base import Batch

logger = logging.getLogger(__name__)

STABLE_SECONDS = 60.0
MAX_BACKOFF_SECONDS = 30.0
KILL_SECONDS = 30.0

_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF})
"""How a send fails when the process has ended."""


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
        if executor._options.memory_bytes is not None and not anonymous_memory(os.getpid()):
            logger.warning("model '%s': %s has no effect on this system", context.name, MEMORY_LIMIT)
        try:
            executor._supervisor.call(executor._spawn)
            executor._first_outcome.wait()
            if executor._load_error is not None:
                raise executor._load_error
        except OSError as error:
            release_supervisor()
            raise unavailable(f"the process of model instance '{instance.name}' cannot be started: {error}") from error
        except BaseException:
            if executor._process is not None:  # interrupted while it loads
                executor._supervisor.call(partial(executor._kill, "is not wanted any more"))
                executor._first_outcome.wait()
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
        self._watch: WorkerWatch | None = None
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
        self._process_watch: WorkerWatch | None = None
        self._loaded_at = 0.0
        self._failures = 0
        self._load_error: ServingError | None = None
        # Shared; each is one attribute, written whole:
        self._closing = False
        self._first_outcome = threading.Event()
        self._ended = threading.Event()
        self._close_lock = threading.Lock()

    # -- Executor, on the core loop's thread

    def free(self) -> bool:
        return self._batch is None and self._worker is not None

    def healthy(self) -> bool:
        """Is the process there, and, where the model has an is_ready, does that say so? From any thread."""
        watch = self._watch
        return watch is not None and watch.ready

    @property
    def worker_pid(self) -> int:
        """The process's id; 0 while there is none."""
        worker = self._worker
        return 0 if worker is None else worker.pid

    def on_ready(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def submit(self, batch: Batch, done: Done) -> None:
        worker, watch = self._worker, self._watch
        self._sequence += 1
        self._batch, self._done = batch, done
        self._submitted_ns = time.perf_counter_ns()
        if worker is None or watch is None:
            self._finish(unavailable(f"the process of model instance '{self._instance.name}' is being started again"))
            return
        watch.running = Running(batch, self._loop.now_ns())
        try:
            head, parts, size = self._encoder.encode(self._sequence, batch.requests)
            self._encoded_ns = time.perf_counter_ns()
            worker.data.send(Kind.EXECUTE, head, parts, size)
        except OSError as error:
            if error.errno not in _GONE:  # else `_detach`, which is on its way, fails the batch
                text = f"no shared memory for a batch of model '{self._context.name}': {error}"
                self._finish(ServingError(Code.RESOURCE_EXHAUSTED, text, Reason.OTHER))
        except Exception as error:  # or the batch would occupy the executor for ever
            logger.exception("a batch of model '%s' could not be encoded", self._context.name)
            self._finish(internal(f"the batch could not be sent to the model's process: {error}", Reason.OTHER))

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
        if worker is not self._worker:
            return
        batch = self._batch
        try:
            if frame.kind != Kind.ANSWER or batch is None:
                raise WireError(f"a frame of kind {frame.kind} that nothing asked for")
            result = decode_answer(frame.head, frame.payload, self._sequence, len(batch.requests))
        except WireError as error:
            worker.kill_soon(f"sent something malformed: {error}")
            return
        if isinstance(result, Execution):
            result = self._timed(result)
        self._finish(result)

    def _timed(self, execution: Execution) -> Execution:
        """The way there counts as input, the way back as output: what the worker's own times leave of the whole is shared between them."""
        there_ns = self._encoded_ns - self._submitted_ns + max(0, execution.input_ns)
        infer_ns, back_ns = max(0, execution.infer_ns), max(0, execution.output_ns)
        way_ns = max(0, time.perf_counter_ns() - self._submitted_ns - there_ns - infer_ns - back_ns) // 2
        return Execution(execution.responses, there_ns + way_ns, infer_ns, back_ns + way_ns)

    def _finish(self, result: Execution | ServingError) -> None:
        batch, done = self._batch, self._done
        assert batch is not None
        assert done is not None
        self._batch = self._done = None
        if self._watch is not None:
            self._watch.running = None
        done(batch, result)

    def _attach(self, worker: WorkerProcess, watch: WorkerWatch) -> None:
        """The process is there again."""
        self._worker, self._watch = worker, watch
        for callback in self._callbacks:
            callback()

    def _detach(self, worker: WorkerProcess, text: str) -> None:
        """The process is gone."""
        if self._worker is not worker:
            return
        self._worker = self._watch = None
        if self._batch is not None:
            self._finish(internal(text))

    # -- the worker, on its reader's and on the supervisor's thread

    def answered(self, worker: WorkerProcess, frame: Frame) -> None:
        """A worker's answer to a batch. A small one is given from here: many answers are better given by the loop, which would else
        contend with this thread for the interpreter with every event that they cause."""
        batch = self._batch
        take = self._loop.run_or_post if batch is not None and len(batch.requests) <= FEW_REQUESTS else self._loop.post
        take(partial(self._answer, worker, frame))

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
            assert self._process_watch is not None
            self._process_watch.heard_ready(messages.decode(messages.ReadyHead, frame.head))
        elif frame.kind != Kind.TRIM:
            raise WireError(f"a frame of kind {frame.kind}")

    def _spawn(self) -> None:
        if self._closing:
            self._ended.set()
            return
        output = WorkerOutput(self._context.name, self._instance.name)
        self._load_error = None
        worker = WorkerProcess(self._supervisor, self, self._context.config, self._instance.name, output)
        self._process = worker
        self._calls = WorkerCalls(self._bridge, worker.control, self._instance.name)
        self._process_watch = WorkerWatch(worker, self._options, self._supervisor, self._loop, self._instance.name)
        self._loaded_at = 0.0
        config = self._context.config
        level = models_logger.getEffectiveLevel()
        load = messages.encode_load(config.backend or config.platform, self._context, self._instance, level)
        with suppress(OSError):  # when it has ended already, `lost` follows
            worker.data.send(Kind.LOAD, load)

    def _loaded(self, worker: WorkerProcess, head: messages.LoadedHead) -> None:
        watch = self._process_watch
        assert watch is not None
        self._loaded_at = time.monotonic()
        watch.loaded(head.checks_readiness)
        if self._first_outcome.is_set():
            logger.info("model instance '%s' is loaded again", self._instance.name)
            self._loop.post(partial(self._attach, worker, watch))
        else:
            self._worker, self._watch = worker, watch  # nobody else knows of this executor yet
            self._first_outcome.set()

    def lost(self, worker: WorkerProcess) -> None:
        """The worker's process is gone: fail its batch, and start another."""
        if self._calls is not None:
            self._calls.close()
        self._process = self._calls = self._process_watch = None
        name = self._instance.name
        if not self._first_outcome.is_set():
            if self._load_error is None:
                self._load_error = internal(
                    f"the process of model instance '{name}' {worker.end} while it loaded the model"
                )
            self._first_outcome.set()
            return
        self._loop.post(partial(self._detach, worker, f"the process of model instance '{name}' {worker.end}"))
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
        gc.collect()  # what is left of the process has cycles with its buffers in them, and collections are rare while serving

    def _restart(self) -> None:
        try:
            self._spawn()
        except OSError as error:
            logger.error("the process of model instance '%s' cannot be started: %s", self._instance.name, error)
            self._supervisor.call_later(MAX_BACKOFF_SECONDS, self._restart)

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
                if not self._ended.wait(KILL_SECONDS):
                    logger.error("the process of model instance '%s' cannot be killed", self._instance.name)
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

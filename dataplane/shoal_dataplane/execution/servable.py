"""One loaded version of a model: its queue, its executors, and the pump that moves requests from the one to the others."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Sequence

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import Execution
from shoal_dataplane.core.errors import Code, Reason, ServingError, cancelled, internal
from shoal_dataplane.core.loop import CoreLoop, Timer
from shoal_dataplane.core.model_spec import ModelSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import failure
from shoal_dataplane.execution.base import Executor
from shoal_dataplane.execution.ordering import ResponseOrder
from shoal_dataplane.scheduling.base import Batch, Scheduler
from shoal_dataplane.telemetry.statistics import ModelStatistics

logger = logging.getLogger(__name__)


class ServedModel:
    """The target that routing finds for a request. Core loop's thread only, but for `drain` and `close`."""

    def __init__(
        self,
        config: mc.ModelConfig,
        spec: ModelSpec,
        scheduler: Scheduler,
        executors: Sequence[Executor],
        loop: CoreLoop,
        statistics: ModelStatistics,
        preserve_ordering: bool = False,
        execution: str = "auto",
    ) -> None:
        self.name = spec.name
        self.version = spec.version
        self.config = config
        self.spec = spec
        self.statistics = statistics
        self.execution = execution
        self._scheduler = scheduler
        self._executors = list(executors)
        self._loop = loop
        self._order = ResponseOrder() if preserve_ordering else None
        self._running: dict[int, tuple[Batch, Executor, int]] = {}
        self._pump_deferred = False
        self._timer: Timer | None = None
        self._idle = threading.Condition()
        self._open = 0  # requests taken and not yet answered
        self._closed = False

    # -- requests in

    def enqueue(self, request: InferRequest) -> None:
        self._scheduler.enqueue(request, self._loop.now_ns())
        self._open += 1
        if self._order is not None:
            self._order.expect(request)
        if not self._pump_deferred:
            self._pump_deferred = True
            self._loop.defer(self._pump)

    def cancel(self, request: InferRequest) -> None:
        request.cancelled = True
        if self._scheduler.remove(request):
            self._fail(request, cancelled())
            self._defer_pump()  # what is left may now be a preferred size
            return
        for batch, executor, _ in self._running.values():
            if request in batch.requests:
                executor.cancel(batch)
                return

    def pending(self) -> int:
        """Requests that wait in the queue."""
        return self._scheduler.pending()

    def open_requests(self) -> int:
        """Requests taken and not yet answered."""
        return self._open

    def running(self) -> int:
        """Batches in execution."""
        return len(self._running)

    def healthy(self) -> bool:
        return any(executor.healthy() for executor in self._executors)

    # -- the pump

    def _pump(self) -> None:
        """Give every free executor a batch, as the scheduler decides; then arm the timer for what has to wait."""
        self._pump_deferred = False
        now = self._loop.now_ns()
        self._expire(now)
        scheduler = self._scheduler
        wake_ns: int | None = None
        for executor in self._executors:
            if not executor.free():
                continue
            batch, wake_ns = scheduler.next_batch(now)
            if batch is None:
                break
            self._launch(batch, executor, now)
        self._arm(wake_ns)

    def _launch(self, batch: Batch, executor: Executor, now: int) -> None:
        self._running[id(batch)] = (batch, executor, now)
        try:
            executor.submit(batch, self._done)
        except Exception as error:  # an executor reports failures through done; anything else is a fault of ours
            logger.exception("executor of model '%s' refused a batch", self.name)
            self._done(batch, internal(f"model '{self.name}' could not run the batch: {error}", Reason.OTHER))

    def _done(self, batch: Batch, result: Execution | ServingError) -> None:
        now = self._loop.now_ns()
        started = self._running.pop(id(batch))[2]
        requests = batch.requests
        if isinstance(result, Execution) and len(result.responses) != len(requests):
            result = internal(f"model '{self.name}' gave {len(result.responses)} responses to {len(requests)} requests")
        if isinstance(result, ServingError):
            self.statistics.record_failed_batch(batch.size, now - started)
            for request in requests:
                self._fail(request, result)
        else:
            self._answer(batch, result, started, now)
        if self._scheduler.pending():
            self._defer_pump()

    def _answer(self, batch: Batch, result: Execution, started: int, now: int) -> None:
        statistics = self.statistics
        requests = batch.requests
        statistics.record_batch(
            batch.size, len(requests), batch.cut, result.input_ns, result.infer_ns, result.output_ns
        )
        order = self._order
        failed = False
        for request, response in zip(requests, result.responses, strict=True):
            if response.error is not None:
                failed = True
            if order is None:
                request.handle.respond(request, response)
            else:
                order.complete(request, response)
        self._closed_requests(len(requests))
        answered: Sequence[InferRequest] = requests
        if failed:
            answered = []
            for request, response in zip(requests, result.responses, strict=True):
                if response.error is None:
                    answered.append(request)
                else:
                    statistics.inference_count -= request.batch_size  # executed, but not answered
                    statistics.record_failure(failure_reason(response.error), now - request.arrival_ns)
        statistics.record_success(answered, started, now)

    def _fail(self, request: InferRequest, error: ServingError) -> None:
        self.statistics.record_failure(failure_reason(error), self._loop.now_ns() - request.arrival_ns)
        response = failure(error)
        if self._order is None:
            request.handle.respond(request, response)
        else:
            self._order.complete(request, response)
        self._closed_requests(1)

    def _expire(self, now: int) -> None:
        expiry = self._scheduler.next_expiry_ns()
        if expiry is not None and expiry <= now:
            for request, error in self._scheduler.expire(now):
                self._fail(request, error)

    def _defer_pump(self) -> None:
        if not self._pump_deferred:
            self._pump_deferred = True
            self._loop.defer(self._pump)

    def _arm(self, wake_ns: int | None) -> None:
        """One timer: the scheduler's wish, or the next expiry, whichever is first."""
        expiry = self._scheduler.next_expiry_ns()
        if expiry is not None and (wake_ns is None or expiry < wake_ns):
            wake_ns = expiry
        timer = self._timer
        if timer is not None:
            if timer.when_ns == wake_ns and not timer.cancelled:
                return
            timer.cancel()
            self._timer = None
        if wake_ns is not None:
            self._timer = self._loop.call_at(wake_ns, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._defer_pump()

    def executor_ready(self) -> None:
        """An executor can take batches again (a process came back): look at the queue. Core loop's thread only."""
        self._defer_pump()

    # -- the end

    def _closed_requests(self, count: int) -> None:
        self._open -= count
        if self._open == 0 and self._closed:
            with self._idle:
                self._idle.notify_all()

    def drain(self, timeout: float) -> bool:
        self._closed = True
        done = threading.Event()
        # Through the loop once: requests that were routed here before the table was swapped are queued by then.
        self._loop.post(done.set)
        if not done.wait(timeout):
            return False
        with self._idle:
            return self._idle.wait_for(lambda: self._open == 0, timeout)

    def close(self) -> None:
        executors, self._executors = self._executors, []
        for executor in executors:
            executor.close()
        if executors:
            del executor, executors
            gc.collect()  # collections are rare while serving, and what was closed has cycles with its buffers in them


def failure_reason(error: ServingError) -> Reason:
    """The metrics' reason of an error; one that says none is judged by its code."""
    if error.reason is not Reason.OTHER:
        return error.reason
    if error.code is Code.CANCELLED:
        return Reason.CANCELLED
    return Reason.BACKEND

"""A served model: the pump between queue and executors, its answers, its statistics, its end. Fake clock, fake instances."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import Execution
from shoal_dataplane.core.errors import Code, Reason, ServingError, internal, invalid
from shoal_dataplane.core.loop import CoreLoop, ThreadedLoop
from shoal_dataplane.core.model_spec import compile_spec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse, failure
from shoal_dataplane.core.tensors import Tensor
from shoal_dataplane.execution.inline import InlineExecutor
from shoal_dataplane.execution.servable import ServedModel
from shoal_dataplane.execution.thread import THREAD_ABOVE_NS, AdaptiveExecutor, ThreadExecutor
from shoal_dataplane.routing.normalize import normalize
from shoal_dataplane.scheduling.base import Batch
from shoal_dataplane.scheduling.factory import scheduler_for
from shoal_dataplane.telemetry.statistics import ModelStatistics

BATCHING = """
name: "m" max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
dynamic_batching { %s }
"""


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Caller:
    def __init__(self, log: list[str], name: str) -> None:
        self.log = log
        self.name = name
        self.response: InferResponse | None = None

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        assert self.response is None, "answered twice"
        self.response = response
        self.log.append(self.name)

    def error(self) -> ServingError:
        assert self.response is not None
        assert self.response.error is not None
        return self.response.error


class Echo:
    """Answers A as Y and keeps the batch sizes it saw."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.closed = 0
        self.fail: ServingError | Exception | None = None

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        self.batches.append([request.batch_size for request in requests])
        if self.fail is not None:
            raise self.fail
        return Execution(
            [InferResponse([Tensor("Y", "FP32", r.inputs["A"].shape, r.inputs["A"].data)]) for r in requests], 1, 10, 2
        )

    def close(self) -> None:
        self.closed += 1


class Manual:
    """An executor that finishes when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Batch, Any]] = []
        self.cancelled: list[Batch] = []

    def free(self) -> bool:
        return not self.jobs

    def submit(self, batch: Batch, done: Any) -> None:
        self.jobs.append((batch, done))

    def finish(self, result: Execution | ServingError | None = None) -> None:
        batch, done = self.jobs.pop()
        done(batch, result or Execution([InferResponse([]) for _ in batch.requests], 1, 1, 1))

    def cancel(self, batch: Batch) -> None:
        self.cancelled.append(batch)

    def on_ready(self, callback: Callable[[], None]) -> None:
        pass

    def healthy(self) -> bool:
        return True

    def close(self) -> None:
        pass


class Bench:
    """A model on a fake clock."""

    def __init__(self, options: str = "", executors: Sequence[Any] | None = None, preserve: bool = False) -> None:
        self.clock = Clock()
        self.loop = CoreLoop(self.clock)
        self.log: list[str] = []
        self.echo = Echo()
        config = text_format.Parse(BATCHING % options, mc.ModelConfig())
        self.spec = compile_spec(config, 1)
        self.model = ServedModel(
            config,
            self.spec,
            scheduler_for(config),
            executors if executors is not None else [InlineExecutor(self.echo)],
            self.loop,
            ModelStatistics("m", 1),
            preserve_ordering=preserve,
        )

    def send(self, name: str, rows: int = 1, **fields: Any) -> tuple[InferRequest, Caller]:
        caller = Caller(self.log, name)
        array = np.zeros((rows, 2), np.float32)
        request = InferRequest(
            "m", "", {"A": Tensor("A", "FP32", array.shape, array.tobytes())}, caller, arrival_ns=self.clock.now
        )
        for field, value in fields.items():
            setattr(request, field, value)
        request.target = self.model
        normalize(request, self.spec)
        self.model.enqueue(request)
        return request, caller

    def run(self, rounds: int = 10) -> None:
        for _ in range(rounds):
            self.loop.run_ready()


def test_requests_that_arrive_in_one_round_run_in_one_batch() -> None:
    bench = Bench()
    callers = [bench.send(name)[1] for name in "abc"]
    bench.run()
    assert bench.echo.batches == [[1, 1, 1]]
    assert all(caller.response is not None and caller.response.error is None for caller in callers)
    assert bench.log == ["a", "b", "c"]


def test_what_does_not_fit_waits_for_the_next_batch() -> None:
    bench = Bench()
    for name, rows in (("a", 3), ("b", 2), ("c", 2)):
        bench.send(name, rows)
    bench.run()
    assert bench.echo.batches == [[3], [2, 2]]


def test_a_queue_delay_is_waited_for_by_a_timer() -> None:
    bench = Bench("max_queue_delay_microseconds: 100")
    bench.send("a")
    bench.run()
    assert bench.echo.batches == []
    assert bench.loop.next_timer_ns() == 100_000
    bench.send("b")
    bench.clock.now = 100_000
    bench.run()
    assert bench.echo.batches == [[1, 1]]


def test_two_executors_run_two_batches_at_a_time() -> None:
    executors = [Manual(), Manual()]
    bench = Bench(executors=executors)
    for name in "abc":
        bench.send(name, 4)
    bench.run()
    assert [len(executor.jobs) for executor in executors] == [1, 1]
    assert bench.model.pending() == 1
    executors[1].finish()
    bench.run()
    assert bench.log == ["b"]
    assert [len(executor.jobs) for executor in executors] == [1, 1]


def test_preserved_order_holds_a_fast_batch_back_and_errors_too() -> None:
    executors = [Manual(), Manual()]
    bench = Bench(executors=executors, preserve=True)
    bench.send("a", 4)
    _, second = bench.send("b", 4)
    bench.run()
    executors[1].finish(internal("broken"))
    bench.run()
    assert bench.log == []
    executors[0].finish()
    assert bench.log == ["a", "b"]
    assert second.error().message == "broken"


def test_an_exception_fails_the_batch_and_the_next_one_runs() -> None:
    bench = Bench()
    bench.echo.fail = ValueError("bad weights")
    _, caller = bench.send("a")
    bench.run()
    assert (caller.error().code, caller.error().message) == (Code.INTERNAL, "ValueError: bad weights")
    bench.echo.fail = None
    _, caller = bench.send("b")
    bench.run()
    assert caller.response is not None
    assert caller.response.error is None
    statistics = bench.model.statistics
    assert (statistics.success.count, statistics.fail.count, statistics.failures[Reason.BACKEND]) == (1, 1, 1)
    assert (statistics.execution_count, statistics.inference_count) == (2, 1)


def test_one_failed_request_does_not_fail_its_batch() -> None:
    executor = Manual()
    bench = Bench(executors=[executor])
    _, first = bench.send("a", 1)
    _, second = bench.send("b", 2)
    bench.run()
    executor.finish(Execution([failure(invalid("not you")), InferResponse([])], 1, 1, 1))
    assert first.error().message == "not you"
    assert second.response is not None
    assert second.response.error is None
    statistics = bench.model.statistics
    assert (statistics.success.count, statistics.fail.count, statistics.inference_count) == (1, 1, 2)


@pytest.mark.parametrize("responses", [0, 2])
def test_a_wrong_number_of_responses_fails_the_batch(responses: int) -> None:
    executor = Manual()
    bench = Bench(executors=[executor])
    _, caller = bench.send("a")
    bench.run()
    executor.finish(Execution([InferResponse([])] * responses, 1, 1, 1))
    assert caller.error().message == f"model 'm' gave {responses} responses to 1 requests"


def test_a_request_cancelled_in_the_queue_is_answered_and_never_runs() -> None:
    executor = Manual()
    bench = Bench(executors=[executor])
    bench.send("a", 4)
    bench.run()
    request, caller = bench.send("b")
    bench.model.cancel(request)
    assert caller.error().code is Code.CANCELLED
    executor.finish()
    bench.run()
    assert executor.jobs == []
    assert bench.model.statistics.failures[Reason.CANCELLED] == 1


def test_a_cancel_of_a_running_request_reaches_its_executor() -> None:
    executor = Manual()
    bench = Bench(executors=[executor])
    request, caller = bench.send("a")
    bench.run()
    bench.model.cancel(request)
    assert [batch.requests for batch in executor.cancelled] == [[request]]
    assert request.cancelled
    assert caller.response is None
    executor.finish()
    assert caller.response is not None


def test_a_deadline_in_the_queue_expires_while_every_executor_is_busy() -> None:
    executor = Manual()
    bench = Bench(executors=[executor])
    bench.send("a", 4)
    bench.run()
    _, caller = bench.send("b", deadline_ns=5_000)
    bench.run()
    assert bench.loop.next_timer_ns() == 5_000
    bench.clock.now = 5_000
    bench.run()
    assert caller.error().code is Code.DEADLINE_EXCEEDED
    assert len(executor.jobs) == 1


def test_statistics_add_up() -> None:
    bench = Bench()
    for rows in (1, 3, 2):
        bench.clock.now += 7
        bench.send("x", rows)
    bench.clock.now += 100
    bench.run()
    statistics = bench.model.statistics
    assert (statistics.inference_count, statistics.execution_count) == (6, 2)
    assert {size: row.compute_infer.count for size, row in statistics.by_batch.items()} == {4: 1, 2: 1}
    assert statistics.queue.count == statistics.success.count == statistics.compute_infer.count == 3
    assert statistics.queue.ns == (100 + 14) + (100 + 7) + 100
    assert sum(statistics.request_hist.counts) == 3
    assert statistics.cuts == {"full": 1, "no_delay": 1} or sum(statistics.cuts.values()) == 2


def test_drain_waits_for_queued_and_running_requests() -> None:
    loop = ThreadedLoop()
    loop.start()
    release = threading.Event()

    class Slow(Echo):
        def execute(self, requests: Sequence[InferRequest]) -> Execution:
            assert release.wait(30)
            return super().execute(requests)

    slow = Slow()
    config = text_format.Parse(BATCHING % "", mc.ModelConfig())
    spec = compile_spec(config, 1)
    model = ServedModel(
        config, spec, scheduler_for(config), [ThreadExecutor(slow, loop, "m")], loop, ModelStatistics("m", 1)
    )
    log: list[str] = []
    caller = Caller(log, "a")
    array = np.zeros((1, 2), np.float32)
    request = InferRequest("m", "", {"A": Tensor("A", "FP32", array.shape, array.tobytes())}, caller)
    normalize(request, spec)
    queued = threading.Event()
    loop.post(lambda: (model.enqueue(request), queued.set())[0])
    assert queued.wait(10)
    assert not model.drain(0.05)
    release.set()
    assert model.drain(10)
    assert log == ["a"]
    model.close()
    model.close()
    assert slow.closed == 1
    loop.stop()


def test_an_adaptive_executor_moves_a_fast_model_into_the_loop_and_a_slow_one_out() -> None:
    loop = ThreadedLoop()
    loop.start()
    took = [1_000]
    threads: list[str] = []

    class Timed(Echo):
        def execute(self, requests: Sequence[InferRequest]) -> Execution:
            threads.append(threading.current_thread().name)
            return Execution([InferResponse([]) for _ in requests], 0, took[0], 0)

    executor = AdaptiveExecutor(Timed(), loop, "m")

    def run(times: int) -> None:
        for _ in range(times):
            finished = threading.Event()
            loop.post(lambda finished=finished: executor.submit(Batch([], 1, "single"), lambda *_: finished.set()))  # type: ignore[arg-type]
            assert finished.wait(10)

    assert not executor.inline
    run(20)
    assert executor.inline
    assert threads[0].startswith("shoal-model")
    assert threads[-1] == "shoal-core"
    executor.observe_inline(20 * THREAD_ABOVE_NS)
    assert executor.inline, "one slow batch is no slow model"
    for _ in range(8):
        executor.observe_inline(20 * THREAD_ABOVE_NS)
    assert not executor.inline
    run(20)
    assert not executor.inline, "it must not come back at once"
    run(20)
    assert executor.inline
    executor.close()
    loop.stop()

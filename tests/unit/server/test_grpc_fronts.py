"""Both gRPC fronts, over a socket, with a model whose execution the test controls: what must not differ between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import text_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from shoal_api.protocol import INFERENCE_SERVICE
from shoal_api.protocol import inference_pb2 as pb
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import Execution
from shoal_dataplane.core.errors import internal
from shoal_dataplane.core.loop import ThreadedLoop
from shoal_dataplane.core.model_spec import compile_spec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse, failure
from shoal_dataplane.core.tensors import Tensor
from shoal_dataplane.execution.servable import ServedModel
from shoal_dataplane.execution.thread import ThreadExecutor
from shoal_dataplane.options import GrpcOptions
from shoal_dataplane.routing.table import RoutingTable
from shoal_dataplane.scheduling.factory import scheduler_for
from shoal_dataplane.server import completion_queue
from shoal_dataplane.server.grpc_aio import AioGrpcDoor
from shoal_dataplane.server.grpc_door import GrpcDoor
from shoal_dataplane.serving import Serving
from shoal_dataplane.telemetry.statistics import ModelStatistics

CONFIG = """
name: "m" backend: "echo" max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
dynamic_batching { }
"""


class Gate:
    """Echoes A as Y; waits for `open` first, and fails a request whose A is negative."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Semaphore(0)
        self.seen: list[InferRequest] = []

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        self.seen += requests
        self.entered.release()
        assert self.open.wait(30)
        responses = []
        for request in requests:
            array = request.inputs["A"].array()
            if array.min() < 0:
                responses.append(failure(internal("a negative number")))
                continue
            responses.append(InferResponse([Tensor("Y", "FP32", array.shape, array)]))
        return Execution(responses, 1, 1, 1)

    def close(self) -> None:
        pass


class NoRepository:
    """A repository in which nothing is left to load."""

    def wait_initial(self, timeout: float) -> bool:
        return True

    def states(self) -> list[Any]:
        return []

    def unready(self) -> list[Any]:
        return []

    def index(self, ready_only: bool) -> list[Any]:
        return []


class Running:
    def __init__(self, front: str) -> None:
        self.gate = Gate()
        self.loop: ThreadedLoop = completion_queue.CompletionQueueLoop() if front == "fast" else ThreadedLoop()
        self.loop.start()
        config = text_format.Parse(CONFIG, mc.ModelConfig())
        spec = compile_spec(config, 1)
        self.model = ServedModel(
            config,
            spec,
            scheduler_for(config),
            [ThreadExecutor(self.gate, self.loop, "m")],
            self.loop,
            ModelStatistics("m", 1),
        )
        table = RoutingTable()
        table.publish("m", {1: self.model})
        self.service = Serving("test", self.loop, table, True)
        repository: Any = NoRepository()
        self.service.attach(repository, lambda _: (b"", ""))
        options = GrpcOptions(address="127.0.0.1", port=0, header_forward_pattern="x-.*")
        self.door: Any = (
            GrpcDoor(self.service, self.loop, options) if front == "fast" else AioGrpcDoor(self.service, options)
        )  # type: ignore[arg-type]
        self.door.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.door.port}")
        self.infer = self.channel.unary_unary(
            f"/{INFERENCE_SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        self.raw = self.channel.unary_unary(f"/{INFERENCE_SERVICE}/ModelInfer")
        self.stream = self.channel.stream_stream(
            f"/{INFERENCE_SERVICE}/ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )
        self.stopped = False

    def call(self, name: str, request: Any, response: type) -> Any:
        method = self.channel.unary_unary(
            f"/{INFERENCE_SERVICE}/{name}", type(request).SerializeToString, response.FromString
        )
        return method(request, timeout=20)

    def stop(self, grace: float = 5) -> bool:
        if self.stopped:
            return True
        self.stopped = True
        ended = self.door.stop(grace).wait(grace + 10)
        self.door.close()
        self.model.close()
        self.loop.stop()
        self.channel.close()
        return ended


@pytest.fixture(params=["fast", "aio"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    server = Running(request.param)
    try:
        yield server
    finally:
        server.gate.open.set()
        server.stop()


def message(value: float = 1, rows: int = 1, model: str = "m", identifier: str = "") -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, id=identifier)
    request.inputs.add(name="A", datatype="FP32", shape=[rows, 2])
    request.raw_input_contents.append(np.full((rows, 2), value, np.float32).tobytes())
    return request


def answer(response: pb.ModelInferResponse) -> float:
    return float(np.frombuffer(response.raw_output_contents[0], np.float32)[0])


def code(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code()


def eventually(condition: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


def test_each_caller_gets_its_own_answer(running: Running) -> None:
    calls = [running.infer.future(message(value, identifier=f"i{value}"), timeout=20) for value in range(50)]
    for value, call in enumerate(calls):
        response = call.result()
        assert (answer(response), response.id, response.model_name, response.model_version) == (
            value,
            f"i{value}",
            "m",
            "1",
        )


def test_calls_that_wait_together_run_together(running: Running) -> None:
    running.gate.open.clear()
    first = running.infer.future(message(), timeout=20)
    assert running.gate.entered.acquire(timeout=10)
    others = [running.infer.future(message(), timeout=20) for _ in range(8)]
    eventually(lambda: running.model.pending() == 8)
    running.gate.open.set()
    for call in [first, *others]:
        call.result()
    assert {size: row.compute_infer.count for size, row in running.model.statistics.by_batch.items()} == {1: 1, 8: 1}


def test_an_error_of_the_request_and_one_of_the_model_have_their_codes(running: Running) -> None:
    assert code(lambda: running.infer(message(model="x"), timeout=20)) is grpc.StatusCode.NOT_FOUND
    assert code(lambda: running.infer(message(rows=9), timeout=20)) is grpc.StatusCode.INVALID_ARGUMENT
    assert code(lambda: running.infer(message(-1), timeout=20)) is grpc.StatusCode.INTERNAL
    assert answer(running.infer(message(3), timeout=20)) == 3


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"", b"\x3a\xff\xff\xff\xff\x0f", b"\x0a\x02\xc3\x28"])
def test_garbage_is_an_invalid_argument_and_the_server_goes_on(running: Running, garbage: bytes) -> None:
    expected = grpc.StatusCode.NOT_FOUND if garbage == b"" else grpc.StatusCode.INVALID_ARGUMENT
    assert code(lambda: running.raw(garbage, timeout=20)) is expected
    assert answer(running.infer(message(3), timeout=20)) == 3


def test_a_call_cancelled_in_the_queue_never_runs(running: Running) -> None:
    running.gate.open.clear()
    first = running.infer.future(message(1), timeout=20)
    assert running.gate.entered.acquire(timeout=10)
    second = running.infer.future(message(2), timeout=20)
    eventually(lambda: running.model.pending() == 1)
    second.cancel()
    eventually(lambda: running.model.pending() == 0)
    running.gate.open.set()
    assert answer(first.result()) == 1
    assert len(running.gate.seen) == 1


def test_a_cancel_of_a_running_call_is_seen_by_the_model(running: Running) -> None:
    running.gate.open.clear()
    call = running.infer.future(message(1), timeout=20)
    assert running.gate.entered.acquire(timeout=10)
    assert not running.gate.seen[0].cancelled
    call.cancel()
    eventually(lambda: running.gate.seen[0].cancelled)
    running.gate.open.set()
    assert answer(running.infer(message(2), timeout=20)) == 2


def test_a_deadline_ends_the_wait_in_the_queue(running: Running) -> None:
    running.gate.open.clear()
    first = running.infer.future(message(1), timeout=30)
    assert running.gate.entered.acquire(timeout=10)
    assert code(lambda: running.infer(message(2), timeout=0.1)) is grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: running.model.pending() == 0)
    running.gate.open.set()
    first.result()
    assert len(running.gate.seen) == 1


def test_credentials_trace_context_deadline_and_forwarded_headers_reach_the_request(running: Running) -> None:
    metadata = (("authorization", "Bearer t"), ("traceparent", "00-ab-cd-01"), ("x-mine", "v"), ("other", "w"))
    running.infer(message(), timeout=20, metadata=metadata)
    request = running.gate.seen[0]
    assert dict(request.metadata) == {"authorization": "Bearer t", "traceparent": "00-ab-cd-01"}
    assert dict(request.parameters) == {"x-mine": "v"}
    assert request.deadline_ns is not None
    assert 10e9 < request.deadline_ns - time.monotonic_ns() < 25e9


def test_a_stream_answers_in_order_and_goes_on_after_an_error(running: Running) -> None:
    requests = [
        message(1, identifier="a"),
        message(model="x", identifier="b"),
        message(-1, identifier="c"),
        message(4, identifier="d"),
    ]
    responses = list(running.stream(iter(requests), timeout=20))
    assert [response.infer_response.id for response in responses] == list("abcd")
    assert [bool(response.error_message) for response in responses] == [False, True, True, False]
    assert answer(responses[3].infer_response) == 4
    assert responses[0].infer_response.parameters["triton_final_response"].bool_param


def test_a_strict_stream_ends_with_the_status_of_the_first_error(running: Running) -> None:
    call = running.stream(
        iter([message(1), message(-1), message(2)]), timeout=20, metadata=(("triton_grpc_error", "true"),)
    )
    assert answer(next(call).infer_response) == 1
    assert code(lambda: next(call)) is grpc.StatusCode.INTERNAL


def test_a_long_stream_is_bounded_and_complete(running: Running) -> None:
    count = 1000
    responses = running.stream((message(value) for value in range(count)), timeout=60)
    assert [answer(response.infer_response) for response in responses] == list(range(count))


def test_closing_a_stream_cancels_what_it_left(running: Running) -> None:
    running.gate.open.clear()
    hold = threading.Event()

    def requests() -> Iterator[pb.ModelInferRequest]:
        for value in range(20):
            yield message(value)
        hold.wait(30)

    call = running.stream(requests(), timeout=30)
    eventually(lambda: running.model.pending() >= 10)
    call.cancel()
    hold.set()
    eventually(lambda: running.model.pending() == 0)
    running.gate.open.set()
    assert answer(running.infer(message(2), timeout=20)) == 2


def test_stop_finishes_what_is_in_flight_and_refuses_what_is_new(running: Running) -> None:
    running.gate.open.clear()
    calls = [running.infer.future(message(value), timeout=20) for value in range(20)]
    assert running.gate.entered.acquire(timeout=10)
    eventually(lambda: len(running.gate.seen) + running.model.pending() == 20)
    running.door.drain()
    ended = running.door.stop(10)
    with grpc.insecure_channel(f"127.0.0.1:{running.door.port}") as fresh:
        late = fresh.unary_unary(f"/{INFERENCE_SERVICE}/ModelInfer")
        assert code(lambda: late(message().SerializeToString(), timeout=5)) is grpc.StatusCode.UNAVAILABLE
    running.gate.open.set()
    assert [answer(call.result()) for call in calls] == list(range(20))
    assert ended.wait(10)


def test_stop_ends_in_time_though_a_model_hangs(running: Running) -> None:
    running.gate.open.clear()
    call = running.infer.future(message(), timeout=30)
    assert running.gate.entered.acquire(timeout=10)
    started = time.monotonic()
    assert running.door.stop(0.2).wait(10)
    assert time.monotonic() - started < 5
    assert call.exception(timeout=10) is not None


def test_the_core_loop_outlives_the_grpc_server(running: Running) -> None:
    assert running.door.stop(1).wait(10)
    ran = threading.Event()
    running.loop.post(ran.set)
    assert ran.wait(10)


def test_health_check_and_watch_tell_of_the_server(running: Running) -> None:
    stub = health_pb2_grpc.HealthStub(running.channel)
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=20).status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=INFERENCE_SERVICE), timeout=20)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    running.service.drain()
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()
    assert (
        code(lambda: stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=20))
        is grpc.StatusCode.NOT_FOUND
    )


def test_reflection_lists_and_describes_the_service(running: Running) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(running.channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=INFERENCE_SERVICE),
    ]
    listed, described = stub.ServerReflectionInfo(iter(asked), timeout=20)
    names = {service.name for service in listed.list_services_response.service}
    assert {INFERENCE_SERVICE, "grpc.health.v1.Health"} <= names
    assert b"ModelStreamInfer" in b"".join(described.file_descriptor_response.file_descriptor_proto)


def test_control_methods_answer_and_their_errors_have_codes(running: Running) -> None:
    assert running.call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live
    assert running.call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready
    assert running.call("ModelReady", pb.ModelReadyRequest(name="m"), pb.ModelReadyResponse).ready
    assert not running.call("ModelReady", pb.ModelReadyRequest(name="x"), pb.ModelReadyResponse).ready
    metadata = running.call("ModelMetadata", pb.ModelMetadataRequest(name="m"), pb.ModelMetadataResponse)
    assert (list(metadata.versions), metadata.platform, list(metadata.inputs[0].shape)) == (["1"], "echo", [-1, 2])
    assert (
        code(lambda: running.call("ModelConfig", pb.ModelConfigRequest(name="x"), pb.ModelConfigResponse))
        is grpc.StatusCode.NOT_FOUND
    )
    request = pb.SystemSharedMemoryStatusRequest()
    assert (
        code(lambda: running.call("SystemSharedMemoryStatus", request, pb.SystemSharedMemoryStatusResponse))
        is grpc.StatusCode.UNIMPLEMENTED
    )
    assert (
        code(lambda: running.channel.unary_unary("/inference.GRPCInferenceService/Nope")(b"", timeout=20))
        is grpc.StatusCode.UNIMPLEMENTED
    )


def test_an_idle_server_uses_no_cpu(running: Running) -> None:
    running.infer(message(), timeout=20)
    before, wall = time.process_time(), time.monotonic()
    time.sleep(2)
    share = (time.process_time() - before) / (time.monotonic() - wall)
    assert share < 0.05  # far above the 1 % that it should be, far below what a loop that never blocks would take


def test_an_unsupported_grpcio_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completion_queue.supported() == ""
    monkeypatch.setattr(grpc, "__version__", "1.99.0")
    assert completion_queue.supported() == "grpcio 1.99.0 is not one of the tested minors 1.84, 1.85"


def test_a_draining_door_refuses_what_is_new_with_a_code_that_clients_retry(running: Running) -> None:
    running.gate.open.clear()
    first = running.infer.future(message(1), timeout=20)
    assert running.gate.entered.acquire(timeout=10)
    running.door.drain()
    assert code(lambda: running.infer(message(2), timeout=20)) is grpc.StatusCode.UNAVAILABLE
    (refused,) = running.stream(iter([message(2)]), timeout=20)
    assert "shutting down" in refused.error_message
    running.gate.open.set()
    assert answer(first.result()) == 1


def test_calls_that_arrive_during_the_stop_do_not_break_the_loop() -> None:
    for _ in range(5):
        server = Running("fast")
        ending = threading.Event()

        def call(server: Running = server, ending: threading.Event = ending) -> None:
            while not ending.is_set():
                running = server.infer.future(message(), timeout=5)
                running.exception()

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        eventually(lambda server=server: server.model.statistics.success.count > 20)
        assert server.door.stop(1).wait(10)
        ending.set()
        for caller in callers:
            caller.join()
        assert not server.loop.failed
        server.stop()


def test_work_given_to_a_sleeping_loop_runs_on_the_thread_that_gives_it_and_to_one_that_is_awake_on_its_own() -> None:
    server = Running("fast")
    try:
        loop = server.loop
        threads: list[int] = []
        eventually(lambda: loop._asleep)  # type: ignore[attr-defined]
        loop.run_or_post(lambda: threads.append(threading.get_ident()))
        assert threads == [threading.get_ident()]
        entered, release, ran = threading.Event(), threading.Event(), threading.Event()

        def occupy() -> None:
            entered.set()
            assert release.wait(10)

        loop.post(occupy)
        assert entered.wait(10)
        loop.run_or_post(lambda: (threads.append(threading.get_ident()), ran.set())[0])
        assert len(threads) == 1
        release.set()
        assert ran.wait(10)
        assert threads[1] != threading.get_ident()
    finally:
        server.stop()


def test_a_timer_set_by_work_on_another_thread_is_not_overslept() -> None:
    server = Running("fast")
    try:
        loop = server.loop
        for delay_ms in (1, 5, 50):
            rang = threading.Event()
            eventually(lambda: loop._asleep)  # type: ignore[attr-defined]
            loop.run_or_post(
                lambda rang=rang, delay_ms=delay_ms: loop.call_at(loop.now_ns() + delay_ms * 1_000_000, rang.set)
            )
            assert rang.wait(10)
    finally:
        server.stop()


def test_no_work_is_lost_between_threads_that_give_it_and_a_loop_that_falls_asleep() -> None:
    server = Running("fast")
    try:
        loop, total, per_thread = server.loop, [0], 3000
        finished = threading.Event()

        def one() -> None:
            total[0] += 1
            if total[0] == 4 * per_thread:
                finished.set()

        def give(method: Any) -> None:
            for _ in range(per_thread):
                method(one)

        threads = [threading.Thread(target=give, args=(method,)) for method in (loop.post, loop.run_or_post) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert finished.wait(10)
    finally:
        server.stop()

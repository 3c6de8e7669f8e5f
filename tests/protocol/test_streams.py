"""ModelStreamInfer: order, errors in the stream and as its end, cancellation, many requests; on both of the gRPC fronts."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient import grpc as tritongrpc
from tritonclient.grpc import aio as tritonaio
from tritonclient.grpc import service_pb2 as pb

from tests.protocol.conftest import EXPLICIT, Deploy, Gate, Serve
from tests.protocol.harness.grpc_calls import arrays, odd_request, refused, request, strings
from tests.protocol.harness.repository import Repository, Tensor
from tests.protocol.harness.server import Server
from tests.protocol.harness.targets import Target
from tests.protocol.harness.waiting import wait_for

ONE = {"inputs": [Tensor("IN", "FP32", (1,))], "outputs": [Tensor("OUT", "FP32", (1,))], "execution": "thread"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "s_fast": ("identity", {**ONE}),
    "s_gate": ("gate", {**ONE, "max_batch_size": 1, "more": "instance_group [ { kind: KIND_CPU count: 4 } ]"}),
    "s_faults": ("faults", {**ONE, "inputs": [Tensor("CODE", "BYTES", (1,))], "outputs": [Tensor("OUT")]}),
}


@pytest.fixture(scope="module", params=["fast", "aio"])
def streaming(request: pytest.FixtureRequest, target: Target, server: Server, start: Serve) -> Iterator[Server]:
    """A server with the models of this module: the shared one, and one with the other gRPC front."""
    if request.param == "fast":
        deploy: Deploy = request.getfixturevalue("deploy")
        for name, (source, settings) in MODELS.items():
            deploy(name, source, **settings)
        yield server
        return
    if not target.is_shoal:
        pytest.skip("has one gRPC front")

    def write(repository: Repository) -> None:
        for name, (source, settings) in MODELS.items():
            repository.model(name, source, **settings)

    yield start(write, [*EXPLICIT, "--load-model=*", "--grpc-front=aio"]).wait_ready()


class Stream:
    """One ModelStreamInfer call."""

    def __init__(self, server: Server, metadata: Iterable[tuple[str, str]] = (), timeout: float = 30) -> None:
        self._outgoing: queue.Queue[Any] = queue.Queue()
        self.call = server.stub.ModelStreamInfer(
            iter(self._outgoing.get, None), timeout=timeout, metadata=tuple(metadata)
        )

    def send(self, message: pb.ModelInferRequest) -> None:
        self._outgoing.put(message)

    def finish(self) -> None:
        """No more requests."""
        self._outgoing.put(None)

    def next(self) -> pb.ModelStreamInferResponse:
        return next(self.call)

    def rest(self) -> list[pb.ModelStreamInferResponse]:
        """Finish, and return all that comes until the end."""
        self.finish()
        return list(self.call)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self.call.cancel()


def fast(value: float, id: str = "", **more: Any) -> pb.ModelInferRequest:
    return request("s_fast", {"IN": np.full((1, 1), value, np.float32)}, id=id, **more)


def held(gate: Gate, id: str = "") -> pb.ModelInferRequest:
    return request("s_gate", {"IN": np.zeros((1, 1), np.float32)}, id=id, parameters=gate.parameters)


def faulty(code: str, id: str = "") -> pb.ModelInferRequest:
    return request("s_faults", {"CODE": strings(code).reshape(1, 1)}, id=id)


def test_each_request_is_answered_once_and_as_final(streaming: Server) -> None:
    with Stream(streaming) as stream:
        for value in range(5):
            stream.send(fast(value, str(value)))
        answers = stream.rest()
    assert [answer.error_message for answer in answers] == [""] * 5
    assert [answer.infer_response.id for answer in answers] == ["0", "1", "2", "3", "4"]
    assert [float(arrays(answer.infer_response)["OUT"][0, 0]) for answer in answers] == [0, 1, 2, 3, 4]
    for answer in answers:
        assert answer.infer_response.model_name == "s_fast"
        assert answer.infer_response.model_version == "1"
        assert dict(answer.infer_response.parameters) == {"triton_final_response": pb.InferParameter(bool_param=True)}


def test_an_answer_comes_before_the_next_request_is_sent(streaming: Server) -> None:
    with Stream(streaming) as stream:
        for value in range(3):
            stream.send(fast(value))
            assert arrays(stream.next().infer_response)["OUT"].tolist() == [[value]]
        assert stream.rest() == []


def test_answers_keep_the_order_of_requests_over_models_and_instances(
    streaming: Server, gate: Callable[[str], Gate]
) -> None:
    first, second = gate("a"), gate("b")
    with Stream(streaming) as stream:
        stream.send(held(first, "1"))
        stream.send(held(second, "2"))
        stream.send(fast(0, "3"))
        wait_for("both run", lambda: first.entered() and second.entered())
        second.open()
        first.open()
        assert [answer.infer_response.id for answer in stream.rest()] == ["1", "2", "3"]


def test_errors_wait_their_turn_and_the_stream_goes_on(streaming: Server) -> None:
    with Stream(streaming) as stream:
        stream.send(fast(0, "1"))
        stream.send(request("nobody", id="2"))
        stream.send(odd_request("s_fast", [("IN", "FP32", (1, 2))], [bytes(8)]))
        stream.send(faulty("error", "4"))
        stream.send(fast(0, "5"))
        answers = stream.rest()
        assert stream.call.code() is grpc.StatusCode.OK
    assert [answer.infer_response.id for answer in answers] == ["1", "2", "", "4", "5"]
    messages = [answer.error_message for answer in answers]
    assert messages[0] == messages[4] == ""
    assert messages[1] == "Request for unknown model: 'nobody' is not found"
    assert "Expected [-1,1], got [1,2]" in messages[2]
    assert messages[3] == "plain error"


def test_a_strict_stream_ends_with_the_status_of_a_models_error(streaming: Server) -> None:
    with Stream(streaming, [("triton_grpc_error", "true")]) as stream:
        stream.send(fast(0, "1"))
        assert stream.next().infer_response.id == "1"
        stream.send(faulty("code_UNAVAILABLE", "2"))
        with refused("UNAVAILABLE", "coded code_UNAVAILABLE"):
            stream.next()


@pytest.mark.differs("strict-streams")
def test_a_strict_stream_ends_with_the_status_of_a_refusal_too(streaming: Server) -> None:
    with Stream(streaming, [("triton_grpc_error", "true")]) as stream:
        stream.send(request("nobody"))
        with refused("NOT_FOUND", "'nobody' is not found"):
            stream.next()


def test_a_cancelled_stream_cancels_what_it_asked_for(streaming: Server, gate: Callable[[str], Gate]) -> None:
    hold = gate("cancelled")
    with Stream(streaming) as stream:
        stream.send(held(hold))
        wait_for("it runs", hold.entered)
        stream.call.cancel()
    hold.open()
    with Stream(streaming) as stream:
        stream.send(fast(1))
        assert len(stream.rest()) == 1


def test_a_stream_may_be_empty(streaming: Server) -> None:
    with Stream(streaming) as stream:
        assert stream.rest() == []
        assert stream.call.code() is grpc.StatusCode.OK


def test_a_thousand_requests_on_one_stream(streaming: Server) -> None:
    with Stream(streaming, timeout=60) as stream:
        for value in range(1000):
            stream.send(fast(value, str(value)))
        answers = stream.rest()
    assert [answer.infer_response.id for answer in answers] == [str(value) for value in range(1000)]
    assert all(float(arrays(answer.infer_response)["OUT"][0, 0]) == value for value, answer in enumerate(answers))


def test_several_streams_at_once(streaming: Server) -> None:
    streams = [Stream(streaming) for _ in range(20)]
    for value in range(10):
        for number, stream in enumerate(streams):
            stream.send(fast(number, f"{number}/{value}"))
    for number, stream in enumerate(streams):
        answers = stream.rest()
        assert [answer.infer_response.id for answer in answers] == [f"{number}/{value}" for value in range(10)]
        assert {float(arrays(answer.infer_response)["OUT"][0, 0]) for answer in answers} == {float(number)}


@pytest.mark.differs("garbage-in-streams")
def test_bytes_that_are_no_message_are_an_error_in_the_stream(streaming: Server) -> None:
    call = streaming.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    good = fast(1, "after").SerializeToString()
    answers = call(iter([b"\x0a\xff\xff\xff\xff\x0f", good]), timeout=10)
    first, second = [pb.ModelStreamInferResponse.FromString(answer) for answer in answers]
    assert "not a valid ModelInferRequest" in first.error_message
    assert second.infer_response.id == "after"


def test_unary_calls_work_as_well(streaming: Server) -> None:
    assert streaming.send(fast(3, "u")).id == "u"
    with refused("NOT_FOUND"):
        streaming.send(request("nobody"))
    with refused("INTERNAL", "boom happened"):
        streaming.send(faulty("raise"))
    assert streaming.stub.ServerLive(pb.ServerLiveRequest(), timeout=10).live


def test_a_cancelled_unary_call_leaves_the_server_usable(streaming: Server, gate: Callable[[str], Gate]) -> None:
    hold = gate("unary")
    future = streaming.later(held(hold))
    wait_for("it runs", hold.entered)
    assert future.cancel()
    hold.open()
    assert streaming.send(fast(3, "u")).id == "u"


def test_tritonclient_streams(streaming: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with tritongrpc.InferenceServerClient(streaming.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        tensor = tritongrpc.InferInput("IN", [1, 1], "FP32")
        for value in range(5):
            tensor.set_data_from_numpy(np.full((1, 1), value, np.float32))
            client.async_stream_infer("s_fast", [tensor], request_id=str(value))
        for value in range(5):
            result, error = answers.get(timeout=20)
            assert error is None
            assert result.get_response().id == str(value)
            assert result.as_numpy("OUT").tolist() == [[value]]
        client.stop_stream()


async def test_tritonclient_aio_streams(streaming: Server) -> None:
    async def requests() -> Any:
        for value in range(5):
            tensor = tritonaio.InferInput("IN", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.full((1, 1), value, np.float32))
            yield {"model_name": "s_fast", "inputs": [tensor], "request_id": str(value)}

    async with tritonaio.InferenceServerClient(streaming.grpc_address) as client:
        seen = []
        async for result, error in client.stream_infer(requests()):
            assert error is None
            seen.append(result.get_response().id)
    assert seen == ["0", "1", "2", "3", "4"]

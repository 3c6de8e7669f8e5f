"""ModelInfer: every datatype, raw and typed contents, ids, versions, requested outputs, parameters, large messages, tritonclient."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as tritongrpc
from tritonclient.grpc import aio as tritonaio
from tritonclient.grpc import service_pb2 as pb

from tests.protocol.conftest import Deploy
from tests.protocol.harness.grpc_calls import (
    BY_NAME,
    arrays,
    encode_bytes,
    odd_request,
    refused,
    request,
    strings,
)
from tests.protocol.harness.repository import IN, Tensor
from tests.protocol.harness.server import Server
from tests.protocol.harness.targets import Target

X = np.arange(4, dtype=np.float32).reshape(1, 4)
DESCRIBED = Tensor("OUT", "BYTES", (1,))


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    kinds = [*BY_NAME, "BYTES"]
    deploy(
        "g_types",
        inputs=[Tensor(f"IN_{kind}", kind, (-1,), "optional: true") for kind in kinds],
        outputs=[Tensor(f"OUT_{kind}", kind, (-1,)) for kind in kinds],
    )
    deploy(
        "g_plain", inputs=[Tensor("IN", "FP32", (2, -1))], outputs=[Tensor("OUT", "FP32", (2, -1))], max_batch_size=0
    )
    deploy(
        "g_two",
        inputs=[Tensor("IN0"), Tensor("IN1", "INT32")],
        outputs=[Tensor("OUT0"), Tensor("OUT1", "INT32")],
    )
    deploy(
        "g_describe",
        "describe",
        inputs=[IN],
        outputs=[DESCRIBED, Tensor("UNUSED", "INT32", (1,))],
        max_batch_size=0,
        parameters={"note": "from the configuration"},
    )
    deploy("g_large", inputs=[Tensor("IN", "FP32", (-1,))], outputs=[Tensor("OUT", "FP32", (-1,))], max_batch_size=0)
    deploy(
        "g_reshape",
        inputs=[Tensor("IN", "FP32", (2, 2), "reshape { shape: [ 4 ] }")],
        outputs=[Tensor("OUT", "FP32", (2, 2), "reshape { shape: [ 4 ] }")],
    )


def values_of(kind: str) -> np.ndarray[Any, Any]:
    """Values that show a wrong width, sign or byte order: [2, 3]."""
    if kind == "BYTES":
        return strings("", "a", "grüße", b"\x00\xff\xfe", "x" * 300, "\n").reshape(2, 3)
    dtype = BY_NAME[kind]
    if dtype.kind == "b":
        return np.array([[True, False, True], [False, False, True]])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.array([[limits.min, limits.max, 0], [1, 2, 1 << (limits.bits - 2)]], dtype)
    return np.array([[0.0, -0.0, 1.5], [-2.25, np.inf, 6e-5]], dtype)


@pytest.mark.parametrize("kind", [*BY_NAME, "BYTES"])
def test_every_datatype_comes_back_bit_for_bit(server: Server, kind: str) -> None:
    array = values_of(kind) if kind != "BF16" else np.array([[0x3F80, 0xBF80, 0], [0x7F80, 1, 0xFFFF]], "<u2")
    raw = encode_bytes(list(array.ravel())) if kind == "BYTES" else array.tobytes()
    response = server.send(odd_request("g_types", [(f"IN_{kind}", kind, (2, 3))], [raw], outputs=[f"OUT_{kind}"]))
    (output,) = response.outputs
    assert (output.name, output.datatype, list(output.shape)) == (f"OUT_{kind}", kind, [2, 3])
    assert response.raw_output_contents[0] == raw


TYPED = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


@pytest.mark.parametrize("kind", TYPED)
def test_typed_contents_are_taken_and_answered_raw(server: Server, kind: str) -> None:
    array = values_of(kind)
    contents = {TYPED[kind]: array.ravel().tolist()}
    response = server.send(odd_request("g_types", [(f"IN_{kind}", kind, (2, 3), contents)], outputs=[f"OUT_{kind}"]))
    assert not response.outputs[0].HasField("contents")
    np.testing.assert_array_equal(arrays(response)[f"OUT_{kind}"], array)


def test_several_typed_inputs_of_one_request(server: Server) -> None:
    tensors = [
        ("IN1", "INT32", (1, 4), {"int_contents": [1, 2, 3, 4]}),
        ("IN0", "FP32", (1, 4), {"fp32_contents": [5, 6, 7, 8]}),
    ]
    found = arrays(server.send(odd_request("g_two", tensors)))
    assert found["OUT0"].tolist() == [[5, 6, 7, 8]]
    assert found["OUT1"].tolist() == [[1, 2, 3, 4]]


def test_raw_contents_belong_to_the_inputs_in_their_order(server: Server) -> None:
    ints = np.arange(4, dtype=np.int32).reshape(1, 4)
    found = arrays(server.infer("g_two", {"IN1": ints, "IN0": X + 7}))
    assert found["OUT0"].tolist() == (X + 7).tolist()
    assert found["OUT1"].tolist() == ints.tolist()


@pytest.mark.parametrize("columns", [0, 1, 5])
def test_open_dimensions_take_any_size_even_none(server: Server, columns: int) -> None:
    array = np.arange(2 * columns, dtype=np.float32).reshape(2, columns)
    found = arrays(server.infer("g_plain", {"IN": array}))["OUT"]
    assert found.shape == (2, columns)
    assert found.tolist() == array.tolist()


def test_reshape_gives_the_model_another_shape_and_the_caller_its_own(server: Server) -> None:
    array = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    found = arrays(server.infer("g_reshape", {"IN": array}))["OUT"]
    assert found.reshape(2, 2, 2).tolist() == array.tolist()


@pytest.mark.parametrize("identifier", ["", "7", "ü" * 40, "x" * 1000])
def test_the_id_comes_back(server: Server, identifier: str) -> None:
    response = server.infer("g_two", {"IN0": X, "IN1": X.astype(np.int32)}, id=identifier)
    assert response.id == identifier
    assert (response.model_name, response.model_version) == ("g_two", "1")


def test_the_same_header_with_other_values_ids_and_lengths_is_never_mixed_up(server: Server) -> None:
    for step in range(30):
        value = X + step
        response = server.infer(
            "g_large", {"IN": np.repeat(value, 1 + step % 3).ravel()}, id="" if step % 4 == 0 else str(step)
        )
        assert response.id == ("" if step % 4 == 0 else str(step))
        assert arrays(response)["OUT"].tolist() == np.repeat(value, 1 + step % 3).ravel().tolist()


@pytest.mark.parametrize("version", ["", "1", "-1"])
def test_the_version_may_be_left_out(server: Server, target: Target, version: str) -> None:
    if version == "-1" and not target.is_shoal:
        pytest.skip("only in ensembles there")
    response = server.infer("g_plain", {"IN": np.zeros((2, 1), np.float32)}, version=version)
    assert response.model_version == "1"


def test_only_requested_outputs_come(server: Server) -> None:
    inputs = {"IN0": X, "IN1": X.astype(np.int32)}
    assert list(arrays(server.infer("g_two", inputs, outputs=["OUT1"]))) == ["OUT1"]
    assert sorted(arrays(server.infer("g_two", inputs, outputs=["OUT1", "OUT0"]))) == ["OUT0", "OUT1"]


def described(server: Server, **more: Any) -> Mapping[str, Any]:
    response = server.infer("g_describe", {"IN": X[0]}, **more)
    return json.loads(arrays(response)["OUT"][0])


def test_custom_parameters_reach_the_model_with_their_types(server: Server) -> None:
    sent = {"text": "x", "number": -5, "yes": True, "half": 0.5, "": "no name", "headers": "h"}
    assert described(server, parameters=sent)["parameters"] == sent


def test_reserved_parameters_do_not_reach_the_model_as_parameters(server: Server) -> None:
    sent = {
        "priority": 1,
        "timeout": 5_000_000,
        "sequence_id": 42,
        "sequence_start": True,
        "sequence_end": True,
        "own": 1,
    }
    seen = described(server, parameters=sent, id="me")
    assert seen["parameters"] == {"own": 1}
    assert seen["timeout"] == 5_000_000
    assert seen["correlation_id"] == 42
    assert seen["flags"] == 3
    assert seen["id"] == "me"


def test_a_string_correlation_id_stays_a_string(server: Server) -> None:
    assert described(server, parameters={"sequence_id": "s-1"})["correlation_id"] == "s-1"


def test_the_model_sees_which_outputs_are_wanted(server: Server) -> None:
    assert described(server, outputs=["OUT"])["requested"] == ["OUT"]
    assert described(server)["requested"] == ["OUT", "UNUSED"]


def test_initialize_gets_the_arguments_of_triton(server: Server) -> None:
    seen = described(server)
    args = seen["args"]
    assert args["model_name"] == "g_describe"
    assert args["model_version"] == "1"
    assert args["model_instance_kind"] == "CPU"
    assert args["model_instance_device_id"] == "0"
    assert args["model_instance_name"].startswith("g_describe")
    assert "g_describe" in args["model_repository"]
    assert seen["config_name"] == "g_describe"
    assert seen["parameter"] == "from the configuration"


@pytest.mark.differs("uint64-parameters")
def test_an_unsigned_parameter_reaches_the_model(server: Server) -> None:
    assert described(server, parameters={"big": ("uint64_param", 2**64 - 1)})["parameters"] == {"big": 2**64 - 1}


def test_priority_may_be_unsigned(server: Server) -> None:
    assert described(server, parameters={"priority": ("uint64_param", 2)})["parameters"] == {}


def test_more_raw_contents_than_inputs(server: Server, target: Target) -> None:
    message = odd_request("g_plain", [("IN", "FP32", (2, 1))], [bytes(8), b"more"])
    if target.pick("surplus-raw-contents", shoal=False, triton=True):
        assert server.send(message).model_name == "g_plain"
    else:
        with refused("INVALID_ARGUMENT", "expected 1 raw_input_contents for model 'g_plain', got 2"):
            server.send(message)


def test_a_64_mib_tensor_goes_in_and_out(server: Server) -> None:
    array = np.arange(16 << 20, dtype=np.float32)
    found = arrays(server.infer("g_large", {"IN": array}, timeout=60))["OUT"]
    assert found.shape == array.shape
    assert np.array_equal(found, array)


def test_many_small_requests_on_one_connection_each_get_their_own_answer(server: Server) -> None:
    futures = [
        server.later(request("g_plain", {"IN": np.full((2, 3), number, np.float32)}, id=str(number)))
        for number in range(300)
    ]
    for number, future in enumerate(futures):
        response = future.result()
        assert response.id == str(number)
        assert set(arrays(response)["OUT"].ravel()) == {float(number)}


def test_tritonclient_infers(server: Server) -> None:
    with tritongrpc.InferenceServerClient(server.grpc_address) as client:
        tensor = tritongrpc.InferInput("IN_BYTES", [1, 2], "BYTES")
        tensor.set_data_from_numpy(strings("a", "b").reshape(1, 2))
        result = client.infer(
            "g_types", [tensor], outputs=[tritongrpc.InferRequestedOutput("OUT_BYTES")], request_id="1"
        )
        assert result.as_numpy("OUT_BYTES").tolist() == [[b"a", b"b"]]
        assert result.get_response().id == "1"


def test_tritonclient_infers_with_callbacks_and_compression(server: Server) -> None:
    done: queue.Queue[Any] = queue.Queue()
    with tritongrpc.InferenceServerClient(server.grpc_address) as client:
        tensor = tritongrpc.InferInput("IN", [2, 50], "FP32")
        tensor.set_data_from_numpy(np.ones((2, 50), np.float32))
        client.async_infer(
            "g_plain", [tensor], lambda result, error: done.put((result, error)), compression_algorithm="gzip"
        )
        result, error = done.get(timeout=20)
        assert error is None
        assert result.as_numpy("OUT").sum() == 100


async def test_tritonclient_aio_infers(server: Server) -> None:
    async with tritonaio.InferenceServerClient(server.grpc_address) as client:
        tensor = tritonaio.InferInput("IN", [2, 2], "FP32")
        tensor.set_data_from_numpy(np.ones((2, 2), np.float32))
        results = await asyncio.gather(*(client.infer("g_plain", [tensor], request_id=str(i)) for i in range(20)))
        assert [result.get_response().id for result in results] == [str(i) for i in range(20)]


def test_classification_gives_the_largest_values_with_their_index(server: Server) -> None:
    values = np.array([[0.5, 3.25, -1.0, 3.25], [10.0, 0.0, 20.0, 1e10]], np.float32)
    message = request("g_two", {"IN0": values, "IN1": np.array([[0, 3, -1, 3], [10, 0, 20, 30]], np.int32)})
    message.outputs.add(name="OUT0").parameters["classification"].int64_param = 3
    message.outputs.add(name="OUT1").parameters["classification"].int64_param = 1
    response = server.send(message)
    found = arrays(response)
    assert [output.datatype for output in response.outputs] == ["BYTES", "BYTES"]
    assert found["OUT0"].tolist() == [
        [b"3.250000:1", b"3.250000:3", b"0.500000:0"],
        [b"10000000000.000000:3", b"20.000000:2", b"10.000000:0"],
    ]
    assert found["OUT1"].tolist() == [[b"3:1"], [b"30:3"]]


def test_classification_with_labels(server: Server, deploy: Deploy) -> None:
    deploy(
        "g_labels",
        outputs=[Tensor("OUT", "FP32", (4,), 'label_filename: "labels.txt"')],
        files={"labels.txt": "cat\ndog\nfish\n"},
    )
    message = request("g_labels", {"IN": np.array([[1, 4, 2, 3]], np.float32)})
    message.outputs.add(name="OUT").parameters["classification"].int64_param = 9
    assert arrays(server.send(message))["OUT"].tolist() == [
        [b"4.000000:1:dog", b"3.000000:3", b"2.000000:2:fish", b"1.000000:0:cat"]
    ]


def test_classification_of_a_model_without_batching_is_flat(server: Server) -> None:
    message = request("g_plain", {"IN": np.array([[1, 4], [2, 3]], np.float32)})
    message.outputs.add(name="OUT").parameters["classification"].int64_param = 2
    assert arrays(server.send(message))["OUT"].tolist() == [b"4.000000:1", b"3.000000:3"]


def test_an_unknown_method_is_unimplemented(server: Server) -> None:
    method = server.channel.unary_unary("/inference.GRPCInferenceService/Nope")
    with refused("UNIMPLEMENTED"):
        method(b"", timeout=10)


def test_a_request_for_protobuf_messages_of_the_future_is_still_answered(server: Server) -> None:
    raw = request("g_plain", {"IN": np.zeros((2, 1), np.float32)}).SerializeToString()
    unknown_field = b"\xfa\x3f\x03new"  # field 1023, 3 bytes
    method = server.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    response = pb.ModelInferResponse.FromString(method(unknown_field + raw, timeout=10))
    assert response.outputs[0].name == "OUT"

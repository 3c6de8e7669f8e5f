"""Decoding ModelInferRequest: equal to protobuf's own decoding, tensors left in the message, garbage refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_api.protocol import inference_pb2 as pb
from shoal_dataplane.codec.message import RequestDecoder, decode_full, split_message
from shoal_dataplane.core.errors import Code, ServingError

HANDLE: Any = None


def message(
    model: str = "m",
    identifier: str = "",
    version: str = "",
    rows: int = 2,
    inputs: int = 1,
    fill: int = 0,
    **parameters,
) -> bytes:
    proto = pb.ModelInferRequest(model_name=model, id=identifier, model_version=version)
    for index in range(inputs):
        proto.inputs.add(name=f"IN{index}", datatype="FP32", shape=[rows, 3])
        proto.raw_input_contents.append(np.full((rows, 3), fill + index, np.float32).tobytes())
    for name, value in parameters.items():
        setattr(
            proto.parameters[name],
            {int: "int64_param", str: "string_param", bool: "bool_param", float: "double_param"}[type(value)],
            value,
        )
    return proto.SerializeToString()


def refusal(data: bytes) -> str:
    with pytest.raises(ServingError) as caught:
        decode_full(data, HANDLE, 0)
    assert caught.value.code is Code.INVALID_ARGUMENT
    return caught.value.message


def test_raw_tensors_are_views_into_the_message() -> None:
    data = message(inputs=2)
    request, _, _ = decode_full(data, HANDLE, 7)
    for tensor in request.inputs.values():
        assert np.shares_memory(tensor.array(), np.frombuffer(data, np.uint8))
    assert [tensor.array()[0, 0] for tensor in request.inputs.values()] == [0, 1]
    assert request.arrival_ns == 7


KINDS = st.fixed_dictionaries(
    {
        "model": st.text(max_size=6),
        "identifier": st.text(max_size=140),
        "version": st.sampled_from(["", "1", "12"]),
        "rows": st.integers(0, 3),
        "inputs": st.integers(1, 3),
        "fill": st.integers(0, 5),
    }
)


@given(st.lists(KINDS, min_size=1, max_size=12))
@settings(max_examples=200)
def test_a_decoder_that_remembers_gives_what_a_fresh_one_gives(kinds: list[dict[str, Any]]) -> None:
    remembering = RequestDecoder(capacity=4)
    for kind in [*kinds, *kinds]:
        data = message(**kind)
        fresh, _, _ = decode_full(data, HANDLE, 0)
        known, _ = remembering.decode(data, HANDLE, 0)
        assert (known.model_name, known.model_version, known.id, known.outputs) == (
            fresh.model_name,
            fresh.model_version,
            fresh.id,
            fresh.outputs,
        )
        assert list(known.inputs) == list(fresh.inputs)
        for name, tensor in known.inputs.items():
            assert (tensor.datatype, tensor.shape) == (fresh.inputs[name].datatype, fresh.inputs[name].shape)
            assert bytes(tensor.buffer()) == bytes(fresh.inputs[name].buffer())


def test_a_remembered_header_carries_its_parameters_and_outputs() -> None:
    decoder = RequestDecoder()
    for _ in range(2):
        request, _ = decoder.decode(message(priority=3, timeout=50, mine="x"), HANDLE, 0)
        assert (request.priority, request.timeout_us, dict(request.parameters)) == (3, 50, {"mine": "x"})


def test_requests_with_equal_headers_share_a_signature_and_others_do_not() -> None:
    decoder = RequestDecoder()
    decoder.decode(message(), HANDLE, 0)
    first, _ = decoder.decode(message(fill=1), HANDLE, 0)
    second, _ = decoder.decode(message(fill=2), HANDLE, 0)
    other, _ = decoder.decode(message(rows=3), HANDLE, 0)
    assert first.signature is second.signature is not None
    assert other.signature is not first.signature


def test_equal_lengths_with_other_splits_are_not_confused() -> None:
    def two(first: int, second: int) -> bytes:
        proto = pb.ModelInferRequest(model_name="m")
        for name, count in (("A", first), ("B", second)):
            proto.inputs.add(name=name, datatype="UINT8", shape=[4])
            proto.raw_input_contents.append(bytes([7]) * count)
        return proto.SerializeToString()

    decoder = RequestDecoder()
    for first, second in ((4, 4), (3, 5), (4, 4), (5, 3)):
        request, _ = decoder.decode(two(first, second), HANDLE, 0)
        assert [tensor.nbytes() for tensor in request.inputs.values()] == [first, second]


def test_the_memory_of_headers_is_bounded() -> None:
    decoder = RequestDecoder(capacity=8)
    for index in range(100):
        decoder.decode(message(model="m" * (index + 1)), HANDLE, 0)
        decoder.decode(message(model=f"m{index}", identifier="x"), HANDLE, 0)
        assert len(decoder._by_length) + len(decoder._by_head) <= 8


@pytest.mark.parametrize(
    ("field", "datatype", "values", "expected"),
    [
        ("bool_contents", "BOOL", [True, False], np.array([True, False])),
        ("int_contents", "INT8", [-128, 127], np.array([-128, 127], np.int8)),
        ("int_contents", "INT16", [-5, 5], np.array([-5, 5], np.int16)),
        ("int_contents", "INT32", [-5, 5], np.array([-5, 5], np.int32)),
        ("int64_contents", "INT64", [-5, 1 << 40], np.array([-5, 1 << 40], np.int64)),
        ("uint_contents", "UINT8", [0, 255], np.array([0, 255], np.uint8)),
        ("uint_contents", "UINT32", [0, 1 << 31], np.array([0, 1 << 31], np.uint32)),
        ("uint64_contents", "UINT64", [0, 1 << 63], np.array([0, 1 << 63], np.uint64)),
        ("fp32_contents", "FP32", [0.5, -1], np.array([0.5, -1], np.float32)),
        ("fp64_contents", "FP64", [0.5, -1], np.array([0.5, -1], np.float64)),
        ("bytes_contents", "BYTES", [b"a", b""], np.array([b"a", b""], object)),
    ],
)
def test_typed_contents_of_every_datatype(field: str, datatype: str, values: list[Any], expected: np.ndarray) -> None:
    proto = pb.ModelInferRequest(model_name="m")
    tensor = proto.inputs.add(name="A", datatype=datatype, shape=[2])
    getattr(tensor.contents, field).extend(values)
    request, _, _ = decode_full(proto.SerializeToString(), HANDLE, 0)
    np.testing.assert_array_equal(request.inputs["A"].array(), expected)
    assert request.inputs["A"].array().dtype == expected.dtype


def build(**changes: Any) -> bytes:
    proto = pb.ModelInferRequest(model_name="m")
    tensor = proto.inputs.add(name="A", datatype=changes.get("datatype", "FP32"), shape=changes.get("shape", [2]))
    for field, values in changes.get("contents", {}).items():
        getattr(tensor.contents, field).extend(values)
    proto.raw_input_contents.extend(changes.get("raw", []))
    for name, value in changes.get("parameters", {}).items():
        setattr(proto.parameters[name], value[0], value[1])
    return proto.SerializeToString()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            build(contents={"fp32_contents": [1, 2]}, raw=[b"12345678"]),
            "contents field must not be specified when using raw_input_contents for 'A' for model 'm'",
        ),
        (build(), "unable to find data for input tensor 'A' for model 'm' in request."),
        (build(raw=[b"12345678", b"x"]), "expected 1 raw_input_contents for model 'm', got 2"),
        (build(contents={"fp64_contents": [1, 2]}), "unexpected contents field 'fp64_contents'"),
        (build(contents={"fp32_contents": [1]}), "unexpected number of elements 1"),
        (build(datatype="INT8", contents={"int_contents": [1, 300]}), r"outside INT8's range \[-128, 127\]"),
        (build(datatype="UINT16", contents={"uint_contents": [1, 70000]}), r"outside UINT16's range \[0, 65535\]"),
        (
            build(datatype="FP16", contents={"fp32_contents": [1, 2]}),
            "datatype 'FP16' of input 'A' for model 'm' has no typed contents",
        ),
        (build(datatype="FP99", raw=[b"12345678"]), "unknown datatype 'FP99' of input 'A'"),
        (build(raw=[b"12345678"], parameters={"triton_x": ("string_param", "y")}), "reserved"),
        (build(raw=[b"12345678"], parameters={"priority": ("int64_param", -1)}), "priority"),
        (build(raw=[b"12345678"], parameters={"timeout": ("string_param", "1")}), "timeout"),
        (build(raw=[b"12345678"], parameters={"sequence_start": ("int64_param", 1)}), "sequence_start"),
    ],
)
def test_each_fault_of_a_message_has_its_text(data: bytes, text: str) -> None:
    with pytest.raises(ServingError, match=text) as caught:
        decode_full(data, HANDLE, 0)
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_a_duplicate_input_is_refused_and_an_output_asked_for_twice_comes_once() -> None:
    proto = pb.ModelInferRequest.FromString(message(inputs=2))
    proto.inputs[1].name = "IN0"
    assert refusal(proto.SerializeToString()) == "input 'IN0' already exists in request"
    proto = pb.ModelInferRequest.FromString(message())
    for name in "YZY":
        proto.outputs.add(name=name)
    request, _, _ = decode_full(proto.SerializeToString(), HANDLE, 0)
    assert request.outputs == ("Y", "Z")


def test_shared_memory_is_refused_by_name() -> None:
    proto = pb.ModelInferRequest.FromString(message())
    proto.inputs[0].parameters["shared_memory_region"].string_param = "r"
    assert "shared memory regions are not supported" in refusal(proto.SerializeToString())


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_garbage_raises_only_serving_errors(data: bytes) -> None:
    try:
        decode_full(data, HANDLE, 0)
    except ServingError as error:
        assert error.code is Code.INVALID_ARGUMENT


@given(st.data())
@settings(max_examples=300)
def test_a_damaged_message_raises_only_serving_errors(data: st.DataObject) -> None:
    good = bytearray(message(inputs=2, identifier="abc", mine="x", priority=1))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))])
    decoder = RequestDecoder()
    decoder.decode(message(inputs=2, identifier="abc", mine="x", priority=1), HANDLE, 0)
    try:
        decoder.decode(cut, HANDLE, 0)
    except ServingError as error:
        assert error.code is Code.INVALID_ARGUMENT


@given(st.binary(max_size=120))
@settings(max_examples=300)
def test_what_protobuf_accepts_is_split_into_the_same_message(data: bytes) -> None:
    try:
        expected = pb.ModelInferRequest.FromString(data)
    except Exception:
        return
    try:
        header, raws = split_message(data)
    except ServingError:
        return  # stricter than protobuf (groups, over-long varints): fine
    header.raw_input_contents.extend(data[at : at + length] for at, length in raws)
    assert header.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


def test_a_request_that_lists_too_many_tensors_is_refused_before_they_are_read() -> None:
    proto = pb.ModelInferRequest(model_name="m")
    for index in range(100_000):
        proto.inputs.add(name=str(index), datatype="FP32", shape=[1])
    assert refusal(proto.SerializeToString()) == "the request lists 100000 inputs, at most 4096 are accepted"

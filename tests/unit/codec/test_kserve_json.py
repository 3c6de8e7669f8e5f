"""The KServe v2 envelope: what a request may say, and how a response is told."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal_dataplane.codec.json_data import Limits
from shoal_dataplane.codec.kserve_json import InferDocument, decode_infer, encode_infer, raw_document
from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.core.model_spec import ModelSpec, TensorSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor

LIMITS = Limits()


def item(**changes: Any) -> dict[str, Any]:
    entry = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4], **changes}
    return {key: value for key, value in entry.items() if value is not None}


def document(*inputs: Any, **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs) or [item()], **more}).encode()


def sized(size: Any) -> bytes:
    """A request with one binary input."""
    return document(item(data=None, parameters={"binary_data_size": size}))


def returned(**parameters: Any) -> bytes:
    """A request that wants one output in a certain way."""
    return document(outputs=[{"name": "O", "parameters": parameters}])


def decode(text: bytes, section: bytes = b"", limits: Limits = LIMITS) -> InferDocument:
    return decode_infer(text, memoryview(section), limits, "m")


def refusal(text: bytes, section: bytes = b"", limits: Limits = LIMITS, code: Code = Code.INVALID_ARGUMENT) -> str:
    with pytest.raises(ServingError) as caught:
        decode(text, section, limits)
    assert caught.value.code is code
    return caught.value.message


class Handle:
    def respond(self, request: InferRequest, response: InferResponse) -> None: ...


class Target:
    name = "m"
    version = 3

    def __init__(self, spec: ModelSpec | None = None) -> None:
        self.spec = spec or ModelSpec("m", 3, 0)

    def enqueue(self, request: InferRequest) -> None: ...

    def cancel(self, request: InferRequest) -> None: ...


def answered(id: str = "") -> InferRequest:
    request = InferRequest("m", "", {}, Handle(), id=id)
    request.target = Target()
    return request


def wanting(binary: Mapping[str, bool] | None = None, default: bool = False) -> InferDocument:
    return decode(document())._replace(binary=binary or {}, binary_default=default)


def test_a_request_is_read_whole() -> None:
    text = document(
        item(),
        item(name="B", datatype="BYTES", shape=[2], data=["x", "y"]),
        id="42",
        parameters={"priority": 2, "timeout": 7, "sequence_id": "s", "sequence_start": True, "own": 1.5, "flag": False},
        outputs=[{"name": "O1"}, {"name": "O2", "parameters": {"binary_data": True, "classification": 3}}],
        unknown={"ignored": []},
    )
    found = decode(text)
    assert found.id == "42"
    assert list(found.inputs) == ["IN", "B"]
    assert found.inputs["IN"].shape == (1, 4)
    np.testing.assert_array_equal(found.inputs["IN"].array(), np.array([[1, 2, 3, 4]], np.float32))
    assert found.inputs["B"].array().tolist() == [b"x", b"y"]
    assert found.outputs == ("O1", "O2")
    assert found.binary == {"O1": False, "O2": True}
    assert found.classes == {"O2": 3}
    assert not found.binary_default
    request = InferRequest("m", "", found.inputs, Handle())
    found.parameters.apply(request)
    assert (request.priority, request.timeout_us, request.correlation_id, request.sequence_start) == (2, 7, "s", True)
    assert request.parameters == {"own": 1.5, "flag": False}


def test_what_a_client_leaves_null_or_empty_is_as_if_absent() -> None:
    found = decode(document(id=None, parameters=None, outputs=[]))
    assert (found.id, found.outputs) == ("", None)
    assert decode(document(item(parameters={}), outputs=None)).outputs is None


def test_binary_tensors_are_views_of_the_body() -> None:
    body = np.arange(8, dtype=np.float32).tobytes()
    entries = [item(name=name, data=None, parameters={"binary_data_size": 16}) for name in ("A", "B")]
    found = decode_infer(document(*entries), memoryview(body), Limits(), "m")
    assert isinstance(found.inputs["B"].data, memoryview)
    assert found.inputs["B"].data.obj is body
    assert found.inputs["B"].array().tolist() == [[4, 5, 6, 7]]


def test_json_and_binary_inputs_may_be_mixed() -> None:
    found = decode(
        document(item(), item(name="B", data=None, shape=[2], parameters={"binary_data_size": 8})), b"\0" * 8
    )
    assert found.inputs["B"].nbytes() == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "failed to parse the request JSON buffer: Input data was truncated"),
        (b"{", "failed to parse the request JSON buffer"),
        (b"{'a':1}", "failed to parse the request JSON buffer"),
        (b"[]", "Unable to parse the request JSON: Expected 'object', got 'array'"),
        (b"{}", "Unable to parse the request JSON: Object missing required field 'inputs'"),
        (b'{"inputs":3}', "Unable to parse 'inputs': Expected 'array', got 'int'"),
        (b'{"inputs":[3]}', "Unable to parse 'inputs[0]': Expected 'object', got 'int'"),
        (document(item(name=None)), "Unable to parse 'inputs[0]': Object missing required field 'name'"),
        (document(item(shape=None)), "Unable to parse 'inputs[0]': Object missing required field 'shape'"),
        (document(item(datatype=None)), "Unable to parse 'inputs[0]': Object missing required field 'datatype'"),
        (document(item(shape=["1", 4])), "Unable to parse 'inputs[0].shape[0]': Expected 'int', got 'str'"),
        (document(item(shape=[1, 4.5])), "Unable to parse 'inputs[0].shape[1]': Expected 'int', got 'float'"),
        (document(id=5), "Unable to parse 'id': Expected 'str | null', got 'int'"),
        (document(parameters=3), "Unable to parse 'parameters': Expected 'object | null', got 'int'"),
        (document(outputs=3), "Unable to parse 'outputs': Expected 'array | null', got 'int'"),
        (document(outputs=[{}]), "Unable to parse 'outputs[0]': Object missing required field 'name'"),
        (b'{"inputs":[{"name":"\xff","shape":[1],"datatype":"FP32","data":[1]}]}', "Invalid UTF-8"),
        (document(item(data=None)), "Input 'IN' must set only one of the following fields: 'data', 'binary_data_size' in 'parameters',"),
        (document(item(data=None)), "'shared_memory_region' in 'parameters'. But no field is set"),
        (document(item(parameters={"binary_data_size": 16})), "But set 'data' 'binary_data_size'"),
        (document(item(datatype="FOO")), "invalid datatype for input IN: 'FOO', expected one of BOOL"),
        (document(item(shape=[-1, 4])), "invalid shape for input 'IN': shape [-1,4] contains one or more invalid dimensions: -1"),
        (document(item(shape=[2**62, 4])), "causes total element count to exceed maximum size"),
        (document(item(shape=[0, 2**62, 2**62], data=[])), "causes total element count to exceed maximum size"),
        (document(item(shape=[10**400], data=[])), "causes total element count to exceed maximum size"),
        (document(item(shape=[1] * 65)), "invalid shape for input 'IN': 65 dimensions, at most 64 are accepted"),
        (document(item(data=[1, 2])), "the shape has 4 elements, got 2"),
        (document(item(shape=[], data=[])), "the shape has 1 elements, got"),
        (document(item(), item()), "input 'IN' already exists in request"),
        (document(parameters={"triton_x": 1}), "keys starting with 'triton_' are reserved for Triton usage and should not be specified"),
        (document(parameters={"triton_enable_empty_final_response": True}), "reserved for Triton usage"),
        (document(parameters={"own": None}), "parameter 'own' has invalid type. It should be either 'int', 'bool', 'double' or 'string'."),
        (document(parameters={"own": [1]}), "parameter 'own' has invalid type"),
        (document(parameters={"own": {"a": 1}}), "parameter 'own' has invalid type"),
        (document(parameters={"own": 10**400}), "parameter 'own' is an integer too large for a double"),
        (document(parameters={"priority": -1}), "priority"),
        (document(parameters={"priority": "1"}), "invalid value type for 'priority' parameter"),
        (document(parameters={"priority": True}), "invalid value type for 'priority' parameter"),
        (document(parameters={"timeout": 1.5}), "invalid value type for 'timeout' parameter"),
        (document(parameters={"timeout": -1}), "timeout"),
        (document(parameters={"sequence_id": 1.5}), "invalid value type for 'sequence_id' parameter"),
        (document(parameters={"sequence_id": "x" * 129}), "128 bytes"),
        (document(parameters={"sequence_start": 1}), "invalid value type for 'sequence_start' parameter"),
        (document(parameters={"binary_data_output": "x"}), "Unable to parse 'binary_data_output': expected true or false, got 'x'"),
        (returned(binary_data=1), "Unable to parse 'binary_data' of output 'O'"),
        (returned(classification=-1), "Unable to set 'classification' of output 'O': expected an integer >= 0, got -1"),
        (returned(classification="2"), "Unable to set 'classification' of output 'O'"),
        (sized(16), "unexpected size for input 'IN', expecting 16 additional bytes for model 'm'"),
        (sized(-1), "Unable to parse 'binary_data_size' of input 'IN': expected an integer >= 0, got -1"),
        (sized("16"), "Unable to parse 'binary_data_size' of input 'IN'"),
        (sized(None), "Unable to parse 'binary_data_size' of input 'IN'"),
    ],
)  # fmt: skip
def test_a_malformed_request_is_refused_with_what_and_where(text: bytes, said: str) -> None:
    assert said in refusal(text)


def test_bytes_that_no_input_claims_are_refused() -> None:
    assert "unexpected additional input data for model 'm': 3 bytes belong to no input" in refusal(document(), b"abc")


@pytest.mark.parametrize("where", ["input", "output"])
def test_shared_memory_is_said_to_be_missing(where: str) -> None:
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    text = (
        document(item(data=None, parameters=shared))
        if where == "input"
        else document(outputs=[{"name": "O", "parameters": shared}])
    )
    assert "names a shared memory region, which this server does not support" in refusal(text, code=Code.UNIMPLEMENTED)


def test_class_count_zero_asks_for_no_classification() -> None:
    assert decode(document(outputs=[{"name": "O", "parameters": {"classification": 0}}])).classes == {}


def test_an_integer_parameter_beyond_64_bits_becomes_a_double() -> None:
    found = decode(document(parameters={"a": 2**63, "b": 2**64, "c": -(2**63)}))
    assert found.parameters.custom == {"a": 2**63, "b": float(2**64), "c": -(2**63)}
    assert isinstance(found.parameters.custom["b"], float)


def test_a_request_of_100000_inputs_is_refused_before_they_are_read() -> None:
    entry = json.dumps(item()).encode()
    text = b'{"inputs":[' + b",".join([entry] * 100_000) + b"]}"
    began = time.process_time()
    assert "the request lists 100000 inputs, at most 4096 are accepted" in refusal(text)
    assert time.process_time() - began < 2


def test_all_json_inputs_share_one_limit() -> None:
    limits = Limits(max_bytes=40)
    assert len(decode(document(item(), item(name="B")), limits=limits).inputs) == 2
    assert "exceeds the maximum allowed value" in refusal(
        document(item(), item(name="B"), item(name="C")), limits=limits
    )


@pytest.mark.parametrize("depth", [5_000, 100_000])
@pytest.mark.parametrize("place", ['{"inputs":%s}', '{"inputs":[],"parameters":{"a":%s}}', '{"x":%s,"inputs":[]}'])
def test_deep_documents_are_refused_wherever_they_are_deep(depth: int, place: str) -> None:
    text = (place % ("[" * depth + "]" * depth)).encode()
    message = refusal(text)
    assert (
        "JSON nesting depth exceeds maximum allowed limit (100)" in message
        or "Expected 'object', got 'array'" in message
    )


def test_deep_data_is_refused() -> None:
    text = (
        b'{"inputs":[{"name":"IN","shape":[1],"datatype":"FP32","data":' + b"[" * 10_000 + b"1" + b"]" * 10_000 + b"}]}"
    )
    assert "JSON nesting depth exceeds maximum allowed limit (100)" in refusal(text)


def test_an_empty_tensor_is_a_tensor() -> None:
    assert decode(document(item(shape=[0, 4], data=[]))).inputs["IN"].array().shape == (0, 4)


def test_a_json_response_looks_as_in_the_protocol() -> None:
    outputs = [
        Tensor("A", "FP32", (1, 2), np.array([[0.5, -0.0]], np.float32)),
        Tensor("B", "BYTES", (1,), np.array([b'x"y'], object)),
        Tensor("C", "UINT64", (1,), np.array([2**64 - 1], np.uint64)),
        Tensor("D", "BOOL", (2,), b"\x01\x00"),
    ]
    encoded = encode_infer(
        answered("7"), InferResponse(outputs, parameters={"k": 1, "f": 1.5, "b": True, "s": "x"}), wanting()
    )
    assert encoded.header == (
        b'{"id":"7","model_name":"m","model_version":"3","parameters":{"k":1,"f":1.5,"b":true,"s":"x"},"outputs":['
        b'{"name":"A","datatype":"FP32","shape":[1,2],"data":[0.5,-0.0]},'
        b'{"name":"B","datatype":"BYTES","shape":[1],"data":["x\\"y"]},'
        b'{"name":"C","datatype":"UINT64","shape":[1],"data":[18446744073709551615]},'
        b'{"name":"D","datatype":"BOOL","shape":[2],"data":[true,false]}]}'
    )
    assert not encoded.is_binary
    assert not encoded.tensors


def test_binary_outputs_follow_in_order_without_a_copy() -> None:
    array = np.arange(4, dtype=np.float16)
    outputs = [
        Tensor("A", "FP16", (4,), array),
        Tensor("B", "BYTES", (1,), np.array([b"xy"], object)),
        Tensor("C", "INT8", (1,), b"\x05"),
    ]
    encoded = encode_infer(answered(), InferResponse(outputs), wanting({"C": False}, default=True))
    assert [entry.get("parameters") for entry in json.loads(encoded.header)["outputs"]] == [
        {"binary_data_size": 8},
        {"binary_data_size": 6},
        None,
    ]
    assert b"".join(encoded.tensors) == array.tobytes() + b"\x02\0\0\0xy"
    assert np.shares_memory(np.frombuffer(encoded.tensors[0], np.float16), array)
    assert encoded.is_binary


def test_a_raw_body_is_the_single_input_and_asks_for_binary_outputs() -> None:
    spec = ModelSpec("m", 1, 8, {"IN": TensorSpec("IN", BY_WIRE["FP32"], (4,))})
    found = raw_document(spec, memoryview(np.arange(4, dtype=np.float32).tobytes()))
    assert found.inputs["IN"].array().tolist() == [[0, 1, 2, 3]]
    assert found.binary_default


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
_NAMES = (
    "binary_data_size", "binary_data", "classification", "shared_memory_region", "binary_data_output",
    "priority", "timeout", "sequence_id", "own",
)  # fmt: skip
_VALUES = st.sampled_from([0, 4, 16, 2**70, -1, True, "x", 1.5]) | _JSON
_PARAMETERS = st.dictionaries(st.sampled_from(_NAMES), _VALUES, max_size=3)
_INPUT = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["A", "B", ""]) | _JSON,
        "datatype": st.sampled_from(sorted(BY_WIRE)) | _JSON,
        "shape": st.lists(st.integers(-1, 5) | st.sampled_from([2**31, 2**62, 2**70]), max_size=4) | _JSON,
        "parameters": _PARAMETERS | _JSON,
        "data": st.lists(st.sampled_from([0, 1, -1, 0.5, True, "a", 300, 2**63]), max_size=5) | _JSON,
    },
)
_OUTPUT = st.fixed_dictionaries({}, optional={"name": st.text(max_size=2), "parameters": _PARAMETERS | _JSON})
_REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.lists(_INPUT, max_size=3) | _JSON,
        "outputs": st.lists(_OUTPUT, max_size=3) | _JSON,
        "parameters": _PARAMETERS | _JSON,
        "id": st.text(max_size=4) | _JSON,
    },
)  # fmt: skip


def outcome(text: bytes, section: bytes) -> tuple[Code, dict[str, Tensor]]:
    try:
        return Code.OK, decode(text, section).inputs
    except ServingError as error:
        return error.code, {}


@given(st.binary(max_size=64), st.binary(max_size=32))
@example(b'{"inputs":[{"name":"a","shape":[1],"datatype":"FP32","data":["\\ud800"]}]}', b"")
def test_any_bytes_give_a_request_or_a_serving_error(text: bytes, section: bytes) -> None:
    assert outcome(text, section)[0] in (Code.OK, Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED)


@given(_REQUEST, st.binary(max_size=40), st.data())
def test_any_document_gives_a_request_or_a_serving_error(value: Any, section: bytes, data: st.DataObject) -> None:
    text = json.dumps(value).encode()
    if data.draw(st.booleans()):  # cut it, or damage a byte
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.binary(max_size=2)) + text[at + data.draw(st.integers(0, 2)) :]
    code, inputs = outcome(text, section)
    assert code in (Code.OK, Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED)
    for tensor in inputs.values():
        if isinstance(tensor.data, np.ndarray):
            assert tensor.data.shape == tensor.shape

"""Flat JSON objects to tensors and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_dataplane.codec.generate import GenerateDocument, decode_generate, encode_generate, fit_shape
from shoal_dataplane.codec.json_data import Limits
from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.core.model_spec import ModelSpec, TensorSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor


def tensor(name: str, datatype: str, *dims: int) -> TensorSpec:
    return TensorSpec(name, BY_WIRE[datatype], dims)


def spec(*inputs: TensorSpec, max_batch_size: int = 0) -> ModelSpec:
    return ModelSpec("gen", 1, max_batch_size, {t.name: t for t in inputs})


LIMITS = Limits()
GEN = spec(
    tensor("text_input", "BYTES", -1), tensor("n", "INT32", -1), tensor("scale", "FP32", 1), tensor("h", "FP16", 1)
)


def decode(value: Any, model: ModelSpec = GEN, limits: Limits = LIMITS) -> GenerateDocument:
    return decode_generate(value if isinstance(value, bytes) else json.dumps(value).encode(), model, limits)


def test_keys_become_tensors_and_parameters() -> None:
    found = decode(
        {
            "id": "7",
            "text_input": "hi",
            "scale": 2,
            "parameters": {"temperature": 0.5, "n": [3, 4], "s": "x"},
            "stream": True,
            "timeout": 5,
        }
    )
    assert found.id == "7"
    assert found.inputs["text_input"].array().tolist() == [b"hi"]
    assert found.inputs["n"].array().tolist() == [3, 4]
    assert found.inputs["scale"].array().tolist() == [2.0]
    assert found.parameters == {"temperature": 0.5, "s": "x", "stream": True, "timeout": 5}


def test_lists_may_be_nested_and_parameters_null() -> None:
    found = decode({"text_input": [["a"], ["b"]], "parameters": None})
    assert found.inputs["text_input"].array().tolist() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("dims", "batched", "count", "shape"),
    [
        ((-1,), False, 1, (1,)),
        ((-1,), False, 3, (3,)),
        ((1,), True, 2, (2, 1)),
        ((4,), True, 4, (1, 4)),
        ((4,), True, 8, (2, 4)),
        ((-1,), True, 3, (1, 3)),
        ((-1, 2, -1), False, 6, (1, 2, 3)),
        ((2, 2), False, 4, (2, 2)),
        ((), True, 1, (1,)),
        ((-1,), False, 0, (0,)),
        ((2,), False, 3, None),
        ((2,), False, 4, None),
        ((2,), True, 3, None),
        ((2, 2), False, 0, None),
    ],
)
def test_elements_take_the_innermost_open_dimension(
    dims: tuple[int, ...], batched: bool, count: int, shape: tuple[int, ...] | None
) -> None:
    if shape is None:
        with pytest.raises(ServingError, match="The schema can not convert input 'X' to tensor with proper shape"):
            fit_shape(tensor("X", "INT8", *dims), batched, count)
    else:
        assert fit_shape(tensor("X", "INT8", *dims), batched, count) == shape


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"", "failed to parse the request JSON buffer"),
        (b"{", "failed to parse the request JSON buffer"),
        (b"[1]", "Expected 'object', got 'array'"),
        ({"id": 5}, "Unable to parse 'id': expected a string"),
        ({"foo": None}, "parameter 'foo' has invalid type"),
        ({"foo": [1]}, "parameter 'foo' has invalid type"),
        ({"foo": {"a": 1}}, "parameter 'foo' has invalid type"),
        ({"parameters": 3}, "Expected JSON object for keyword: 'parameters'"),
        ({"parameters": {"foo": [1]}}, "parameter 'foo' has invalid type"),
        ({"text_input": 5}, "element 0 is 5, expected a string (BYTES)"),
        ({"text_input": None}, "element 0 is null, expected a string (BYTES)"),
        ({"n": 1.5}, "element 0 is 1.5, expected an integer"),
        ({"n": {"a": 1}}, 'element 0 is {"a":1}, expected an integer'),
        ({"scale": [1, 2]}, "2 elements do not fit [1]"),
        ({"h": 1}, "receiving FP16 data via JSON is not supported"),
        ({"n": 1, "parameters": {"n": 2}}, "input 'n' already exists in request for model 'gen'"),
        (b'{"foo":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "JSON nesting depth exceeds maximum allowed limit"),
        (b'{"n":' + b"[" * 500 + b"1" + b"]" * 500 + b"}", "JSON nesting depth exceeds maximum allowed limit (100)"),
        (b'{"foo":"\xff"}', "Unable to parse 'foo': Invalid UTF-8"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, said: str) -> None:
    with pytest.raises(ServingError) as caught:
        decode(value)
    assert said in caught.value.message
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_a_model_with_an_input_called_parameters_cannot_be_asked_so() -> None:
    with pytest.raises(ServingError, match="Keyword 'parameters' for nested schema also given as input tensor name"):
        decode({"parameters": {}}, spec(tensor("parameters", "INT8", 1)))


def test_a_model_with_an_input_called_id_gets_it() -> None:
    found = decode({"id": "a"}, spec(tensor("id", "BYTES", 1)))
    assert found.id == "a"
    assert found.inputs["id"].array().tolist() == [b"a"]


def test_all_inputs_share_one_limit() -> None:
    limits = Limits(max_bytes=24)
    assert decode({"n": [1, 2], "scale": 1, "text_input": "abcd"}, limits=limits).inputs["n"].nbytes() == 8
    with pytest.raises(ServingError, match="exceeds the maximum allowed value"):
        decode({"n": [1, 2, 3, 4, 5], "text_input": "abcd"}, limits=limits)


class Handle:
    def respond(self, request: InferRequest, response: InferResponse) -> None: ...


class Target:
    name, version, spec = "gen", 2, GEN

    def enqueue(self, request: InferRequest) -> None: ...

    def cancel(self, request: InferRequest) -> None: ...


def answer(*outputs: Tensor, id: str = "", **parameters: Any) -> Any:
    request = InferRequest("gen", "", {}, Handle(), id=id)
    request.target = Target()
    return json.loads(encode_generate(request, InferResponse(list(outputs), parameters=parameters)))


def test_outputs_become_keys() -> None:
    outputs = [
        Tensor("text_output", "BYTES", (1, 1), np.array([["HI"]], object)),
        Tensor("num", "INT32", (3,), np.array([1, 2, 3], np.int32)),
        Tensor("flag", "BOOL", (1,), np.array([True])),
        Tensor("none", "FP32", (0,), np.array([], np.float32)),
    ]
    assert answer(*outputs, id="9", own=1.5) == {
        "text_output": "HI",
        "num": [1, 2, 3],
        "flag": True,
        "none": [],
        "own": 1.5,
        "id": "9",
        "model_name": "gen",
        "model_version": "2",
    }


def test_long_outputs_become_keys() -> None:
    array = np.arange(20_000)
    assert answer(Tensor("out", "INT64", array.shape, array))["out"] == array.tolist()


@given(st.dictionaries(st.sampled_from(["text_input", "n", "scale", "h", "id", "parameters", "x"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["n", "y"]), inner, max_size=2),
)), st.integers(0, 3))  # fmt: skip
def test_any_document_gives_a_request_or_a_serving_error(value: Any, batch: int) -> None:
    code, inputs = Code.OK, {}
    try:
        inputs = decode(value, spec(*GEN.inputs.values(), max_batch_size=batch)).inputs
    except ServingError as error:
        code = error.code
    assert code in (Code.OK, Code.INVALID_ARGUMENT)
    assert all(t.array().shape == t.shape for t in inputs.values())

"""`triton_python_backend_utils` as models use it, without a server."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_dataplane.backends.python import pb_utils
from shoal_dataplane.backends.python.pb_utils.server import set_server
from shoal_dataplane.backends.python.pb_utils.tensor import wrap
from shoal_dataplane.core.tensors import Tensor as CoreTensor

TRITON_TYPES = {
    "TYPE_BOOL": (1, np.bool_),
    "TYPE_UINT8": (2, np.uint8),
    "TYPE_UINT16": (3, np.uint16),
    "TYPE_UINT32": (4, np.uint32),
    "TYPE_UINT64": (5, np.uint64),
    "TYPE_INT8": (6, np.int8),
    "TYPE_INT16": (7, np.int16),
    "TYPE_INT32": (8, np.int32),
    "TYPE_INT64": (9, np.int64),
    "TYPE_FP16": (10, np.float16),
    "TYPE_FP32": (11, np.float32),
    "TYPE_FP64": (12, np.float64),
    "TYPE_STRING": (13, np.object_),
}


@pytest.mark.parametrize("name", sorted(TRITON_TYPES))
def test_datatypes_have_tritons_numbers_and_numpys_types(name: str) -> None:
    number, kind = TRITON_TYPES[name]
    assert np.dtype(pb_utils.triton_string_to_numpy(name)) == np.dtype(kind)
    assert np.dtype(pb_utils.triton_to_numpy_type(number)) == np.dtype(kind)
    assert pb_utils.numpy_to_triton_type(kind) == number
    assert pb_utils.numpy_to_triton_type(np.dtype(kind)) == number


def test_what_is_no_datatype_is_none() -> None:
    assert pb_utils.numpy_to_triton_type(np.complex64) is None
    assert pb_utils.triton_to_numpy_type(99) is None
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy("TYPE_BF16")


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=10))
def test_bytes_come_back_from_their_encoding(elements: list[bytes]) -> None:
    array = np.empty(len(elements), object)
    array[:] = elements
    encoded = pb_utils.serialize_byte_tensor(array)
    assert isinstance(encoded, bytes)
    assert list(pb_utils.deserialize_bytes_tensor(encoded)) == elements


def test_bytes_encoding_takes_strings_and_numbers_and_refuses_other_arrays() -> None:
    array = np.array([["é", 3]], object)
    assert pb_utils.serialize_byte_tensor(array) == struct.pack("<I", 2) + "é".encode() + struct.pack("<I", 1) + b"3"
    assert pb_utils.serialize_byte_tensor(np.zeros(2)) is None
    assert pb_utils.serialize_byte_tensor(np.zeros(0, object)) == ()


@pytest.mark.parametrize("data", [b"\1", b"\5\0\0\0abc"])
def test_a_bytes_encoding_that_is_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(struct.error):
        pb_utils.deserialize_bytes_tensor(data)


def test_a_tensor_says_what_it_is() -> None:
    tensor = pb_utils.Tensor("x", np.zeros((2, 3), np.float16))
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ("x", [2, 3], 10, True)
    assert tensor.as_numpy() is tensor.as_numpy()


@pytest.mark.parametrize(
    ("name", "array", "kind", "text"),
    [
        ("", np.zeros(1), pb_utils.TritonModelException, "Tensor name cannot be an empty string."),
        (
            "x",
            np.zeros(1, np.complex64),
            pb_utils.TritonModelException,
            "numpy dtype complex64, which is no Triton datatype",
        ),
        ("x", [1, 2], TypeError, "tensor 'x' must be made from a numpy array, got list"),
        (3, np.zeros(1), TypeError, "a tensor's name must be a str, got int"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(name: Any, array: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        pb_utils.Tensor(name, array)


def test_bf16_goes_through_dlpack_and_not_through_numpy() -> None:
    torch = pytest.importorskip("torch")
    bits = np.array([[0x3F80, 0x4000]], np.uint16)
    tensor = wrap(CoreTensor("x", "BF16", (1, 2), bits.tobytes()))
    assert (tensor.shape(), tensor.triton_dtype()) == ([1, 2], 14)
    with pytest.raises(pb_utils.TritonModelException, match="Tensor dtype is BF16 and cannot be converted to NumPy"):
        tensor.as_numpy()
    there = torch.from_dlpack(tensor)
    assert there.dtype is torch.bfloat16
    assert there.tolist() == [[1.0, 2.0]]
    back = pb_utils.Tensor.from_dlpack("y", there * 2)
    assert (back.name(), back.triton_dtype(), back.shape()) == ("y", 14, [1, 2])
    assert torch.from_dlpack(back.to_dlpack()).tolist() == [[2.0, 4.0]]
    grown = pb_utils.Tensor.from_dlpack("z", torch.ones(2, requires_grad=True))
    assert grown.as_numpy().tolist() == [1.0, 1.0]


def test_dlpack_shares_memory_and_refuses_strings() -> None:
    array = np.arange(4, dtype=np.int32)
    tensor = pb_utils.Tensor("x", array)
    shared = pb_utils.Tensor.from_dlpack("y", tensor.to_dlpack()).as_numpy()
    array[0] = 7
    assert shared.tolist() == [7, 1, 2, 3]
    assert np.from_dlpack(tensor).tolist() == [7, 1, 2, 3]
    with pytest.raises(pb_utils.TritonModelException, match="DLPack does not have support for string tensors"):
        pb_utils.Tensor("s", np.array(["a"])).to_dlpack()
    with pytest.raises(pb_utils.TritonModelException, match="Provided tensor is not supported"):
        pb_utils.Tensor.from_dlpack("y", [1, 2])


def test_a_response_says_what_it_is() -> None:
    tensor = pb_utils.Tensor("x", np.zeros(1))
    response = pb_utils.InferenceResponse([tensor], parameters={"a": 1, "b": "é", "c": True, "d": 0.5})
    assert (response.output_tensors(), response.has_error(), response.error()) == ([tensor], False, None)
    assert response.parameters() == '{"a":1,"b":"é","c":true,"d":0.5}'
    failed = pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND))
    assert failed.has_error()
    error = failed.error()
    assert error is not None
    assert (error.message(), error.code(), str(error)) == ("no", pb_utils.TritonError.NOT_FOUND, "no")
    assert (pb_utils.InferenceResponse().output_tensors(), pb_utils.InferenceResponse().parameters()) == ([], "{}")


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (
            {"output_tensors": [None]},
            pb_utils.TritonModelException,
            "Output tensor for inference response should not be empty.",
        ),
        ({"output_tensors": [3]}, TypeError, "output_tensors must be Tensor objects, got int"),
        ({"error": "text"}, TypeError, "error must be a TritonError, got str"),
        (
            {"parameters": {3: "x"}},
            pb_utils.TritonModelException,
            "Expect parameters keys to have type str, found type <class 'int'>",
        ),
        (
            {"parameters": {"x": [1]}},
            pb_utils.TritonModelException,
            "Expect parameters values to have type bool/int/str, found type <class 'list'>",
        ),
        ({"parameters": {"x": 1 << 64}}, pb_utils.TritonModelException, "the value of parameter 'x' is beyond 64 bits"),
    ],
)
def test_a_response_that_cannot_be_is_refused(arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        pb_utils.InferenceResponse(**arguments)
    assert str(caught.value).startswith(text)


def test_a_triton_error_is_not_an_exception() -> None:
    with pytest.raises(TypeError, match="exceptions must derive from BaseException"):
        raise pb_utils.TritonError("x")  # type: ignore[misc]


def test_a_request_of_a_models_own_says_what_it_is() -> None:
    request = pb_utils.InferenceRequest(
        model_name="other",
        model_version=2,
        requested_output_names=["A", "B"],
        inputs=[pb_utils.Tensor("x", np.zeros(1))],
        request_id="r",
        correlation_id="c",
        flags=3,
        timeout=5,
        parameters={"k": 1},
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0),
        trace=pb_utils.InferenceTrace('{"traceparent":"00-1"}'),
    )
    assert (request.model_name(), request.model_version(), request.request_id()) == ("other", 2, "r")
    assert (request.correlation_id(), request.flags(), request.timeout()) == ("c", 3, 5)
    assert request.requested_output_names() == ["A", "B"]
    assert json.loads(request.parameters()) == {"k": 1}
    assert request.trace().get_context() == '{"traceparent":"00-1"}'
    assert pb_utils.get_input_tensor_by_name(request, "x") is request.inputs()[0]
    assert pb_utils.get_input_tensor_by_name(request, "y") is None
    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
    with pytest.raises(pb_utils.TritonModelException, match="not supported yet"):
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"model_name": ""}, pb_utils.TritonModelException, "an InferenceRequest needs a model_name"),
        (
            {"inputs": [None]},
            pb_utils.TritonModelException,
            "Input tensor for request with id '' and model name 'm' should not be empty.",
        ),
        (
            {"requested_output_names": [""]},
            pb_utils.TritonModelException,
            "Requested output name for request with id '' and model name 'm' should not be empty.",
        ),
        ({"correlation_id": 1.5}, pb_utils.TritonModelException, "Correlation ID must be integer or string"),
        ({"inputs": [3]}, TypeError, "inputs must be Tensor objects, got int"),
        ({"parameters": 3}, pb_utils.TritonModelException, "Expect dict, got <class 'int'>"),
    ],
)
def test_a_request_that_cannot_be_is_refused(arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        pb_utils.InferenceRequest(**{"model_name": "m", **arguments})
    assert str(caught.value) == text


def test_configurations_are_searched_by_name() -> None:
    config = {
        "input": [{"name": "A", "dims": [1]}],
        "output": [{"name": "B"}],
        "model_transaction_policy": {"decoupled": True},
    }
    assert pb_utils.get_input_config_by_name(config, "A") == {"name": "A", "dims": [1]}
    assert pb_utils.get_output_config_by_name(config, "B") == {"name": "B"}
    assert pb_utils.get_input_config_by_name(config, "B") is None
    assert pb_utils.get_output_config_by_name({}, "B") is None
    assert pb_utils.using_decoupled_model_transaction_policy(config) is True
    assert pb_utils.using_decoupled_model_transaction_policy({}) is False


def test_an_optional_input_of_the_configuration_may_not_become_required() -> None:
    config = pb_utils.ModelConfig(
        '{"name": "m", "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [1], "optional": true}], "output": []}'
    )
    entry = {"name": "A", "data_type": "TYPE_FP32", "dims": [1]}
    config.add_input({**entry, "optional": True})
    with pytest.raises(
        ValueError, match="the model expects optional False but the model configuration specifies optional True"
    ):
        config.add_input({**entry, "optional": False})


def test_a_transaction_policy_may_not_be_turned_round() -> None:
    config = pb_utils.ModelConfig('{"name": "m"}')
    config.set_model_transaction_policy({"decoupled": False})
    with pytest.raises(ValueError, match="trying to change decoupled property in auto-complete-config for model 'm'"):
        config.set_model_transaction_policy({"decoupled": True})
    assert config.as_dict()["model_transaction_policy"] == {"decoupled": False}


def test_without_a_server_its_functions_say_so() -> None:
    set_server(None)
    with pytest.raises(pb_utils.TritonModelException, match="only in a model that a server runs"):
        pb_utils.Logger.log_info("x")
    with pytest.raises(pb_utils.TritonModelException, match="only in a model that has a process of its own"):
        pb_utils.get_model_dir()

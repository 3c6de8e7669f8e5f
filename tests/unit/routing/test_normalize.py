"""The checks on a request against its model: each rule of triton.md B13, with its text."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.core.model_spec import ModelSpec, compile_spec
from shoal_dataplane.core.request import InferRequest, Signature
from shoal_dataplane.core.tensors import Tensor
from shoal_dataplane.routing.normalize import normalize

CONFIG = """
name: "m" max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }
input { name: "B" data_type: TYPE_INT32 dims: [ -1, 2 ] }
input { name: "C" data_type: TYPE_STRING dims: [ 1 ] optional: true }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
"""


class Nobody:
    def respond(self, request, response) -> None:
        raise AssertionError("not answered here")


def spec(text: str = CONFIG) -> ModelSpec:
    return compile_spec(text_format.Parse(text, mc.ModelConfig()), 1)


def tensor(name: str, array: np.ndarray) -> Tensor:
    wire = {"float32": "FP32", "int32": "INT32", "float64": "FP64"}[str(array.dtype)]
    return Tensor(name, wire, array.shape, array.tobytes())


def request(**arrays) -> InferRequest:
    inputs = {name: value if isinstance(value, Tensor) else tensor(name, value) for name, value in arrays.items()}
    return InferRequest("m", "", inputs, Nobody())


def good(batch: int = 2, middle: int = 3) -> dict[str, np.ndarray]:
    return {"A": np.zeros((batch, 4), np.float32), "B": np.zeros((batch, middle, 2), np.int32)}


def refusal(model: ModelSpec, what: InferRequest) -> str:
    with pytest.raises(ServingError) as caught:
        normalize(what, model)
    assert caught.value.code is Code.INVALID_ARGUMENT
    return caught.value.message


def test_a_good_request_gets_its_batch_size_and_key() -> None:
    first, second, third = request(**good(2)), request(**good(5)), request(**good(2, middle=4))
    for each in (first, second, third):
        normalize(each, spec())
    assert (first.batch_size, second.batch_size) == (2, 5)
    assert first.batch_key == second.batch_key
    assert first.batch_key != third.batch_key


def test_requests_with_and_without_an_optional_input_do_not_share_a_batch() -> None:
    plain, with_c = request(**good(1)), request(**good(1), C=Tensor("C", "BYTES", (1, 1), b"\x01\x00\x00\x00x"))
    normalize(plain, spec())
    normalize(with_c, spec())
    assert plain.batch_key != with_c.batch_key


def test_ragged_inputs_share_a_batch_whatever_their_shapes() -> None:
    ragged = spec(CONFIG.replace("dims: [ -1, 2 ]", "dims: [ -1, 2 ] allow_ragged_batch: true"))
    first, second = request(**good(2)), request(**good(2, middle=9))
    normalize(first, ragged)
    normalize(second, ragged)
    assert first.batch_key == second.batch_key


def test_unknown_input_is_named_with_the_known_ones() -> None:
    text = refusal(spec(), request(**good(), D=np.zeros((2, 4), np.float32)))
    assert text.startswith("unexpected inference input 'D' for model 'm'")
    assert "'A', 'B', 'C'" in text


def test_missing_input_lists_what_came_and_what_lacks() -> None:
    text = refusal(spec(), request(A=np.zeros((2, 4), np.float32)))
    assert text == (
        "expected number of inputs between 2 and 3 but got 1 inputs for model 'm'. Got input(s) ['A'], "
        "but missing required input(s) ['B']. Please provide all required input(s)."
    )


def test_wrong_datatype_names_both() -> None:
    arrays = good()
    arrays["A"] = arrays["A"].astype(np.float64)
    assert refusal(spec(), request(**arrays)) == "inference input 'A' data-type is 'FP64', but model 'm' expects 'FP32'"


@pytest.mark.parametrize("shape", [(2, 5), (2,), (2, 4, 1)])
def test_wrong_shape_shows_expected_and_got(shape: tuple[int, ...]) -> None:
    arrays = good()
    arrays["A"] = np.zeros(shape, np.float32)
    text = refusal(spec(), request(**arrays))
    got = ",".join(map(str, shape))
    assert text.startswith(f"unexpected shape for input 'A' for model 'm'. Expected [-1,4], got [{got}]")


def test_unequal_batch_dimensions_are_refused() -> None:
    arrays = good()
    arrays["B"] = np.zeros((3, 1, 2), np.int32)
    assert "input 'B' batch size does not match other inputs for 'm'" in refusal(spec(), request(**arrays))


@pytest.mark.parametrize(
    ("batch", "text"), [(9, "batch-size must be <= 8 for 'm'"), (0, "batch-size must be >= 1 for 'm'")]
)
def test_batch_size_outside_the_limits_is_refused(batch: int, text: str) -> None:
    assert text in refusal(spec(), request(**good(batch)))


def test_wrong_byte_count_is_refused() -> None:
    short = Tensor("A", "FP32", (2, 4), b"\0" * 31)
    text = refusal(spec(), request(A=short, B=good()["B"]))
    assert text.startswith("input byte size mismatch for input 'A'")
    assert "Expected 32, got 31" in text


@pytest.mark.parametrize("shape", [(2, -4), (2, 1 << 62, 1 << 62), (-1, 4)])
def test_negative_and_overflowing_shapes_are_refused(shape: tuple[int, ...]) -> None:
    text = refusal(spec(), request(A=Tensor("A", "FP32", shape, b""), B=good()["B"]))
    assert "for input 'A' for model 'm'" in text
    assert text.startswith(("unexpected shape", "All input dimensions should be specified"))


def test_malformed_string_elements_are_refused() -> None:
    bad = Tensor("C", "BYTES", (2, 1), b"\x09\x00\x00\x00x")
    assert "incomplete string data for inference input 'C'" in refusal(spec(), request(**good(), C=bad))


def test_unknown_requested_output_is_refused() -> None:
    asked = request(**good())
    asked.outputs = ("Y", "Z")
    assert refusal(spec(), asked).startswith("unexpected inference output 'Z' for model 'm'")


def test_a_model_that_does_not_batch_takes_full_shapes() -> None:
    model = spec('name: "n" input { name: "A" data_type: TYPE_FP32 dims: [ 2, -1 ] }')
    fits = request(A=np.zeros((2, 7), np.float32))
    normalize(fits, model)
    assert fits.batch_size == 1
    assert "Expected [2,-1], got [3,7]" in refusal(model, request(A=np.zeros((3, 7), np.float32)))


def test_a_signature_is_believed_only_for_the_same_specification() -> None:
    model = spec()
    first = request(**good(3))
    first.signature = Signature()
    normalize(first, model)
    second = request(**good(3))
    second.signature = first.signature
    normalize(second, model)
    assert (second.batch_size, second.batch_key) == (3, first.batch_key)
    other = spec(CONFIG.replace("max_batch_size: 8", "max_batch_size: 2"))
    assert "batch-size must be <= 2" in refusal(other, second)

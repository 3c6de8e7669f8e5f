"""Raw tensors behind the JSON, and bodies that are one raw tensor."""

from __future__ import annotations

import pytest

from shoal_dataplane.codec.binary import BinarySection, raw_input
from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.core.model_spec import ModelSpec, TensorSpec


def spec(datatype: str, *dims: int, max_batch_size: int = 0, inputs: int = 1) -> ModelSpec:
    tensors = [TensorSpec(f"IN{n}", BY_WIRE[datatype], dims) for n in range(inputs)]
    return ModelSpec("m", 1, max_batch_size, {t.name: t for t in tensors})


def test_sections_are_handed_out_in_order_and_must_come_out_even() -> None:
    section = BinarySection(memoryview(b"abcdef"))
    assert bytes(section.take("A", 2, "m")) == b"ab"
    assert bytes(section.take("B", 0, "m")) == b""
    assert bytes(section.take("C", 4, "m")) == b"cdef"
    section.close("m")
    with pytest.raises(ServingError, match="unexpected size for input 'D', expecting 5 additional bytes for model 'm'"):
        section.take("D", 5, "m")


def test_a_size_beyond_any_memory_is_just_too_large() -> None:
    with pytest.raises(ServingError, match="additional bytes"):
        BinarySection(memoryview(b"ab")).take("A", 1 << 80, "m")


@pytest.mark.parametrize(
    ("model", "body", "shape"),
    [
        (spec("FP32", 4), 16, (4,)),
        (spec("FP32", 4, max_batch_size=8), 16, (1, 4)),
        (spec("FP32", 2, -1), 24, (2, 3)),
        (spec("INT8", -1, max_batch_size=2), 5, (1, 5)),
        (spec("INT8", -1), 0, (0,)),
    ],
)
def test_the_shape_of_a_raw_input_is_deduced(model: ModelSpec, body: int, shape: tuple[int, ...]) -> None:
    tensor = raw_input(model, memoryview(bytes(body)))
    assert tensor.shape == shape
    assert tensor.array().shape == shape


@pytest.mark.parametrize("batch", [0, 4])
def test_a_raw_string_needs_no_length(batch: int) -> None:
    tensor = raw_input(spec("BYTES", 1, max_batch_size=batch), memoryview(b"hello"))
    assert tensor.array().ravel().tolist() == [b"hello"]
    assert tensor.shape == ((1, 1) if batch else (1,))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            spec("FP32", 4, inputs=2),
            r"Raw request must only have 1 input \(found 1\) to be deduced but got 2 inputs in 'm' model configuration",
        ),
        (spec("FP32", -1, -1), "can not be deduced because there are more than one variable-sized dimension"),
        (spec("BYTES", 2), r"For BYTE datatype raw input 'IN0', the model must have input shape \[1\]"),
        (spec("BYTES", -1), r"the model must have input shape \[1\]"),
        (spec("FP32", 2, -1), "Expected a multiple of 8, got 10"),
    ],
)
def test_what_cannot_be_deduced_is_refused(model: ModelSpec, said: str) -> None:
    with pytest.raises(ServingError, match=said):
        raw_input(model, memoryview(bytes(10)))

"""Top k as Triton tells it (values measured on Triton 2.51)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal_dataplane.codec.classification import MAX_ELEMENTS, classify, classify_outputs
from shoal_dataplane.core.dtypes import BY_WIRE, from_numpy
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.core.model_spec import ModelSpec, TensorSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor

LABELS = ("cat", "dog", "", "bird")


def top(values: list[object], dtype: object, k: int, labels: tuple[str, ...] = (), batched: bool = True) -> Tensor:
    array = np.array(values, dtype=dtype)  # type: ignore[call-overload]  # any dtype of the table
    return classify(Tensor("OUT", from_numpy(array.dtype).wire, array.shape, array), k, labels, batched)


@pytest.mark.parametrize(
    ("values", "dtype", "k", "expected"),
    [
        ([[0.1, 3.5, -2, 1e10]], np.float32, 2, [["10000000000.000000:3", "3.500000:1"]]),
        ([[0.1, 3.5, -2, 1 / 3]], np.float32, 9, [["3.500000:1", "0.333333:3", "0.100000:0", "-2.000000:2"]]),
        ([[1, 1, 2, 2], [4, 3, 2, 1]], np.float32, 2, [["2.000000:2", "2.000000:3"], ["4.000000:0", "3.000000:1"]]),
        ([[1, 1, 1, 1]], np.float32, 4, [["1.000000:0", "1.000000:1", "1.000000:2", "1.000000:3"]]),
        ([[1, math.inf, 2, -math.inf]], np.float32, 4, [["inf:1", "2.000000:2", "1.000000:0", "-inf:3"]]),
        ([[math.nan, 1, math.nan, 2]], np.float32, 4, [["2.000000:3", "1.000000:1", "nan:0", "nan:2"]]),
        ([[1, 5, 2, 2]], np.int64, 3, [["5:1", "2:2", "2:3"]]),
        ([[1, 5.123456789, 3, 2]], np.float64, 1, [["5.123457:1"]]),
        ([[1, 5, 2, 2]], np.uint8, 3, [["5:1", "2:2", "2:3"]]),
        ([[-(2**63), 2**63 - 1, 0]], np.int64, 3, [["9223372036854775807:1", "0:2", "-9223372036854775808:0"]]),
        ([[0, 2**64 - 1]], np.uint64, 1, [["18446744073709551615:1"]]),
    ],
)  # fmt: skip
def test_the_largest_come_first_in_tritons_words(
    values: list[object], dtype: object, k: int, expected: list[list[str]]
) -> None:
    result = top(values, dtype, k)
    assert result.datatype == "BYTES"
    assert result.shape == (len(expected), len(expected[0]))
    assert [[text.decode() for text in row] for row in result.array()] == expected


def test_a_model_that_does_not_batch_is_classified_as_one() -> None:
    result = top([[1, 1.5, 2.25], [7, 6, 5]], np.float32, 3, batched=False)
    assert result.shape == (3,)
    assert result.array().tolist() == [b"7.000000:3", b"6.000000:4", b"5.000000:5"]


def test_labels_are_told_where_there_are_any() -> None:
    result = top([[3, 5, 4, 2, 1]], np.float32, 5, LABELS)
    assert result.array().tolist() == [
        [b"5.000000:1:dog", b"4.000000:2", b"3.000000:0:cat", b"2.000000:3:bird", b"1.000000:4"]
    ]


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES", "FP16", "BF16"])
def test_a_type_without_order_is_refused(datatype: str) -> None:
    with pytest.raises(
        ServingError, match=f"class result not available for output 'OUT' due to unsupported type '{datatype}'"
    ) as caught:
        classify(Tensor("OUT", datatype, (1, 1), b"\0\0"), 1, (), True)
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_sorting_is_bounded() -> None:
    with pytest.raises(ServingError, match="too large"):
        classify(Tensor("OUT", "INT8", (1, MAX_ELEMENTS + 1), bytes(MAX_ELEMENTS + 1)), 1, (), True)


def test_empty_outputs_have_no_classes() -> None:
    assert top([], np.float32, 3, batched=False).shape == (0,)
    assert classify(Tensor("OUT", "FP32", (0, 4), b""), 3, (), True).shape == (0, 3)
    assert classify(Tensor("OUT", "FP32", (), np.array(2.5, np.float32)), 3, (), True).array().tolist() == [
        b"2.500000:0"
    ]


ORDERED = st.sampled_from([np.int8, np.uint16, np.int64, np.float32, np.float64])


@given(hnp.arrays(ORDERED, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12)), st.integers(1, 20))
def test_the_order_is_that_of_a_stable_sort(array: np.ndarray, k: int) -> None:
    result = classify(Tensor("OUT", from_numpy(array.dtype).wire, array.shape, array), k, (), True).array()
    for row, texts in zip(array.tolist(), result, strict=True):
        plain = [-math.inf if isinstance(value, float) and math.isnan(value) else value for value in row]
        order = sorted(
            range(len(row)),
            key=lambda index: (isinstance(row[index], float) and math.isnan(row[index]), -plain[index], index),
        )
        assert [int(text.split(b":")[1]) for text in texts] == order[: min(k, len(row))]


def test_only_the_outputs_asked_for_are_replaced() -> None:
    class Handle:
        def respond(self, request: InferRequest, response: InferResponse) -> None: ...

    class Target:
        name, version = "m", 1
        spec = ModelSpec("m", 1, 8, {}, {"A": TensorSpec("A", BY_WIRE["FP32"], (2,), labels=("no", "yes"))})

        def enqueue(self, request: InferRequest) -> None: ...

        def cancel(self, request: InferRequest) -> None: ...

    request = InferRequest("m", "", {}, Handle())
    request.target = Target()
    tensors = [Tensor(name, "FP32", (1, 2), np.array([[1, 2]], np.float32)) for name in ("A", "B")]
    response = InferResponse(list(tensors))
    classify_outputs(response, request, {"A": 1, "absent": 1})
    assert response.outputs[0].array().tolist() == [[b"2.000000:1:yes"]]
    assert response.outputs[1] is tensors[1]

"""JSON arrays to tensors and back: exact values, exact errors, bounded work."""

from __future__ import annotations

import json
import math
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal_dataplane.codec.json_data import Limits, decode_data, encode_data
from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.core.tensors import Tensor

LIMITS = Limits()
NUMERIC = [name for name in BY_WIRE if name not in ("BYTES", "FP16", "BF16")]


def decode(datatype: str, text: str | bytes, count: int | None = None, limits: Limits = LIMITS) -> np.ndarray:
    raw = text.encode() if isinstance(text, str) else text
    return decode_data("IN", BY_WIRE[datatype], raw, limits, count)


def refusal(datatype: str, text: str | bytes, count: int | None = None, limits: Limits = LIMITS) -> str:
    with pytest.raises(ServingError) as caught:
        decode(datatype, text, count, limits)
    assert caught.value.code is Code.INVALID_ARGUMENT
    return caught.value.message


def shown(tensor: Tensor) -> bytes:
    return msgspec.json.encode(encode_data(tensor))


@given(st.data())
def test_every_tensor_survives_the_way_through_json(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(NUMERIC))
    dtype = BY_WIRE[datatype].numpy
    elements = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else None
    array = data.draw(
        hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5, min_side=0), elements=elements)
    )
    text = shown(Tensor("OUT", datatype, array.shape, array))
    back = decode(datatype, text, array.size)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, array.ravel())
    nested = decode(datatype, json.dumps(array.tolist()), array.size)
    np.testing.assert_array_equal(nested, array.ravel())


@given(st.lists(st.text()))
def test_every_string_survives_the_way_through_json(strings: list[str]) -> None:
    array = np.empty(len(strings), dtype=object)
    array[:] = [text.encode() for text in strings]
    text = shown(Tensor("OUT", "BYTES", array.shape, array))
    assert decode("BYTES", text, len(strings)).tolist() == array.tolist()


@pytest.mark.parametrize(
    "text", ["[1,2,3,4]", "[[1,2],[3,4]]", "[ [ 1 , 2 ] ,[3],4 ]", "[[],1,[2,[3,[]]],[[[4]]]]", "[[[[1]]],2,3,4]"]
)
def test_nesting_does_not_matter(text: str) -> None:
    for datatype in ("INT8", "UINT64", "FP32", "FP64"):
        assert decode(datatype, text, 4).tolist() == [1, 2, 3, 4]


def test_strings_may_be_nested_and_hold_brackets_and_commas() -> None:
    assert decode("BYTES", '[["a]",["[,"]],"é\\u0000"]', 3).tolist() == [b"a]", b"[,", "é\0".encode()]


@pytest.mark.parametrize(
    ("datatype", "text", "said"),
    [
        ("UINT8", "[1,-1]", "element 1 is -1, expected an integer from 0 to 255 (UINT8)"),
        ("UINT8", "[300]", "element 0 is 300, expected an integer from 0 to 255 (UINT8)"),
        ("INT8", "[1,[2,300]]", "element 2 is 300, expected an integer from -128 to 127 (INT8)"),
        ("INT32", "[1.5]", "element 0 is 1.5, expected an integer from -2147483648 to 2147483647 (INT32)"),
        ("INT32", "[2147483648]", "element 0 is 2147483648"),
        ("INT64", "[9223372036854775808]", "element 0 is 9223372036854775808"),
        ("UINT64", "[18446744073709551616]", "element 0 is 18446744073709551616"),
        ("UINT64", "[0,-1]", "element 1 is -1, expected an integer from 0 to 18446744073709551615 (UINT64)"),
        ("INT64", "[true]", "element 0 is true, expected an integer"),
        ("FP32", "[1,null]", "element 1 is null, expected a number (FP32)"),
        ("FP32", '["1"]', 'element 0 is "1", expected a number (FP32)'),
        ("FP32", "[true]", "element 0 is true, expected a number (FP32)"),
        ("FP32", "[1,1e39]", "element 1 is 1e+39, expected a number (FP32)"),
        ("FP32", '[{"a":[1]}]', 'element 0 is {"a":[1]}, expected a number (FP32)'),
        ("FP64", "[1e400]", "Number out of range"),
        ("BOOL", "[true,1]", "element 1 is 1, expected true or false (BOOL)"),
        ("BYTES", '["a",1]', "element 1 is 1, expected a string (BYTES)"),
        ("BYTES", "[null]", "element 0 is null, expected a string (BYTES)"),
        ("BYTES", b'["\xff\xfe"]', "Invalid UTF-8"),
        ("FP32", "5", "expected an array, got 5"),
        ("FP32", "null", "expected an array, got null"),
        (
            "FP16",
            "[1]",
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input IN",
        ),
        (
            "BF16",
            "[1]",
            "receiving BF16 data via JSON is not supported. Please use the binary data format for input IN",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_place(datatype: str, text: str, said: str) -> None:
    assert said in refusal(datatype, text)


@pytest.mark.parametrize("datatype", ["INT32", "FP64", "BOOL", "BYTES"])
@pytest.mark.parametrize("got", [0, 1, 3])
def test_a_wrong_number_of_elements_is_refused_with_both_numbers(datatype: str, got: int) -> None:
    element = {"BOOL": True, "BYTES": "a"}.get(datatype, 1)
    message = refusal(datatype, json.dumps([element] * got), 2)
    assert "Shape does not match true shape of 'data' field: the shape has 2 elements, got" in message


def test_a_shape_that_lies_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        assert "16777216 elements, got fewer" in refusal("FP32", "[1]", 1 << 24)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_expanded_size_is_bounded() -> None:
    limits = Limits(max_bytes=64)
    assert decode("FP64", json.dumps([1.0] * 8), 8, limits).size == 8
    said = "JSON input 'IN' has a byte_size (72 bytes) that exceeds the maximum allowed value of 64 bytes. Use --http-max-input-size"
    assert said in refusal("FP64", json.dumps([1] * 9), 9, limits)
    assert said in refusal("FP64", json.dumps([1] * 9), None, limits)
    assert "exceeds the maximum allowed value" in refusal("BYTES", json.dumps(["aaaa"] * 9), 9, limits)


@pytest.mark.parametrize("datatype", ["INT32", "BYTES"])
@pytest.mark.parametrize("depth", [100, 101, 10_000])
def test_depth_is_bounded(datatype: str, depth: int) -> None:
    element = '"a"' if datatype == "BYTES" else "1"
    text = "[" * depth + element + "]" * depth
    if depth <= 100:
        assert decode(datatype, text, 1).size == 1
    else:
        assert "JSON nesting depth exceeds maximum allowed limit (100)" in refusal(datatype, text, 1)


def test_many_brackets_are_not_depth() -> None:
    assert decode("UINT8", json.dumps([[[1]]] * 1000), 1000).sum() == 1000


@pytest.mark.parametrize("datatype", ["INT32", "FP32", "BOOL", "UINT64"])
def test_long_tensors_are_read_and_written_piece_by_piece(datatype: str) -> None:
    dtype = BY_WIRE[datatype].numpy
    array = (np.arange(100_003) % 97).astype(dtype).reshape(-1, 1)
    text = shown(Tensor("OUT", datatype, array.shape, array))
    assert json.loads(text) == array.ravel().tolist()
    np.testing.assert_array_equal(decode(datatype, text, array.size), array.ravel())
    np.testing.assert_array_equal(decode(datatype, json.dumps(array.tolist()), array.size), array.ravel())


def test_the_place_of_a_bad_element_in_a_long_tensor_is_found() -> None:
    values: list[object] = [0] * 50_000
    values[40_000] = 1000
    assert "element 40000 is 1000" in refusal("UINT8", json.dumps(values), 50_000)
    assert "the shape has 50000 elements, got 50001" in refusal("UINT8", json.dumps([0] * 50_001), 50_000)


def test_a_long_tensor_never_holds_all_its_python_numbers() -> None:
    text = b"[" + b",".join(b"%d.5" % (1000 + n % 1000) for n in range(200_000)) + b"]"
    tracemalloc.start()
    try:
        decode("FP32", text, 200_000)
        assert tracemalloc.get_traced_memory()[1] < 200_000 * 16  # 32 bytes each would be 6.4 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_have_no_json(datatype: str) -> None:
    with pytest.raises(
        ServingError, match=f"sending {datatype} data via JSON is not supported. Please use the binary data format"
    ):
        encode_data(Tensor("OUT", datatype, (1,), b"\0\0"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_express_is_refused_and_not_turned_into_null(value: float) -> None:
    with pytest.raises(ServingError, match=r"element 2 of output 'OUT' is .*, which JSON cannot express") as caught:
        encode_data(Tensor("OUT", "FP32", (2, 2), np.array([[1, 2], [value, 3]], np.float32)))
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_bytes_that_are_not_utf8_are_refused_with_their_place() -> None:
    array = np.array([b"ok", b"a\xff"], dtype=object)
    with pytest.raises(ServingError, match=r"element 1 of output 'OUT' is not UTF-8 \(invalid start byte at byte 1\)"):
        encode_data(Tensor("OUT", "BYTES", (2,), array))


@given(
    st.sampled_from(sorted(BY_WIRE)),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists),
)
def test_any_json_value_gives_a_tensor_or_a_serving_error(datatype: str, value: object) -> None:
    text = json.dumps(value, allow_nan=False) if not _has_nan(value) else "null"
    code, dtype = Code.OK, BY_WIRE[datatype].numpy
    try:
        dtype = decode(datatype, text).dtype
    except ServingError as error:
        code = error.code
    assert code in (Code.OK, Code.INVALID_ARGUMENT)
    assert dtype == BY_WIRE[datatype].numpy


def _has_nan(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_nan, value))
    return isinstance(value, float) and not math.isfinite(value)

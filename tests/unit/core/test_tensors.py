"""Tensors: the wire encoding and numpy, either way, without copies for fixed-size datatypes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_dataplane.core.dtypes import BY_WIRE, from_numpy
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.core.tensors import Tensor, decode_bytes, encode_bytes

FIXED = sorted(name for name, dtype in BY_WIRE.items() if dtype.itemsize)


@pytest.mark.parametrize("wire", FIXED)
def test_a_fixed_size_array_survives_the_wire_without_a_copy(wire: str) -> None:
    dtype = BY_WIRE[wire].numpy
    array = np.arange(12).reshape(3, 4).astype(dtype)
    buffer = Tensor("x", wire, (3, 4), array).buffer()
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), array)
    message = b"head" + bytes(buffer)
    tensor = Tensor("x", wire, (3, 4), memoryview(message)[4:])
    np.testing.assert_array_equal(tensor.array(), array)
    assert np.shares_memory(tensor.array(), np.frombuffer(message, np.uint8))


def test_a_transposed_array_is_written_in_row_major_order() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    assert bytes(Tensor("x", "INT32", (3, 2), array).buffer()) == np.ascontiguousarray(array).tobytes()


def test_wrong_byte_count_names_the_tensor_and_both_sizes() -> None:
    with pytest.raises(ServingError, match="input byte size mismatch for input 'x'. Expected 8, got 7") as caught:
        Tensor("x", "FP32", (2,), b"1234567").array()
    assert caught.value.code is Code.INVALID_ARGUMENT


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_bytes_elements_survive_the_wire(elements: list[bytes]) -> None:
    wire = encode_bytes(elements)
    assert decode_bytes("x", wire, len(elements)) == elements
    array = Tensor("x", "BYTES", (len(elements),), wire).array()
    assert array.tolist() == elements
    assert bytes(Tensor("x", "BYTES", array.shape, array).buffer()) == wire


@given(st.binary(max_size=64), st.integers(0, 5))
def test_malformed_bytes_raise_only_serving_errors(data: bytes, count: int) -> None:
    try:
        elements = decode_bytes("x", data, count)
    except ServingError as error:
        assert error.code is Code.INVALID_ARGUMENT
        assert "'x'" in error.message
    else:
        assert len(elements) == count
        assert encode_bytes(elements) == data


@pytest.mark.parametrize(
    ("data", "count", "text"),
    [
        (b"\x01\x00", 1, "incomplete string length indicator for inference input 'x', expecting 4 bytes but only 2"),
        (b"\x05\x00\x00\x00abc", 1, "expecting string of length 5 but only 3 bytes available"),
        (b"\xff\xff\xff\xffabc", 1, "expecting string of length 4294967295 but only 3"),
        (b"\x01\x00\x00\x00a", 2, "expected 2 string elements for inference input 'x', got 1"),
        (b"\x01\x00\x00\x00a" * 2, 1, "unexpected number of string elements 2"),
    ],
)
def test_each_fault_of_a_bytes_encoding_is_named(data: bytes, count: int, text: str) -> None:
    with pytest.raises(ServingError, match=text):
        decode_bytes("x", data, count)


def test_numpy_dtypes_map_to_wire_datatypes() -> None:
    assert from_numpy(np.dtype(np.float32)).wire == "FP32"
    assert from_numpy(np.dtype(np.uint16)).wire == "UINT16"
    assert from_numpy(np.dtype(">i4")).wire == "INT32"
    assert from_numpy(np.dtype("S5")).wire == "BYTES"
    with pytest.raises(KeyError, match="complex128"):
        from_numpy(np.dtype(np.complex128))

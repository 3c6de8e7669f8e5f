"""Datatypes as Python models name them: Triton's configuration names and numbers, numpy's types, BYTES in its wire encoding."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.dtypes import BY_CONFIG, config_name
from shoal_dataplane.core.tensors import encode_bytes

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    config_name(d.wire): d.numpy.type for d in BY_CONFIG.values() if d.wire not in ("BF16", "BYTES")
} | {"TYPE_BOOL": bool, "TYPE_STRING": np.object_}

_TO_NUMPY: dict[int, Any] = {code: d.numpy.type for code, d in BY_CONFIG.items() if d.wire != "BF16"}
_FROM_NUMPY: dict[Any, int] = {kind: code for code, kind in _TO_NUMPY.items()} | {np.bytes_: mc.TYPE_STRING}


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a configuration name such as "TYPE_FP32". Raises KeyError for TYPE_BF16, which numpy lacks, and for no type."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of a datatype's number; None when there is none."""
    return _TO_NUMPY.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The number of a numpy type's datatype; None when there is none."""
    try:
        return _FROM_NUMPY.get(np.dtype(data_type).type)
    except TypeError:
        return None


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes | tuple[()] | None:
    """The wire encoding of a BYTES array: a little-endian uint32 length before each element, in C order.

    What is neither bytes nor str is sent as its str. () for an empty array, None for an array of another type.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return encode_elements(input_tensor)


def encode_elements(elements: np.ndarray[Any, Any]) -> bytes:
    """The wire encoding of an array of objects, bytes or strings."""
    flat = elements.ravel().tolist()
    if elements.dtype.kind == "O":
        flat = [item if isinstance(item, (bytes, bytearray, str)) else str(item) for item in flat]
    return encode_bytes(flat)


def deserialize_bytes_tensor(encoded_tensor: bytes | bytearray | memoryview) -> np.ndarray[Any, Any]:
    """A one-dimensional object array of the elements in a BYTES tensor's wire encoding. Raises struct.error when it is cut off."""
    view = memoryview(encoded_tensor).cast("B")
    elements: list[bytes] = []
    at = 0
    while at < len(view):
        (length,) = struct.unpack_from("<I", view, at)
        at += 4
        if length > len(view) - at:
            raise struct.error(f"an element of {length} bytes at byte {at}, {len(view) - at} are left")
        elements.append(bytes(view[at : at + length]))
        at += length
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array

"""Datatypes: the KServe v2 wire names, Triton's configuration names, and how numpy holds them.

Wire encoding (KServe v2, "tensor data representation"): little-endian, row-major, no padding. BYTES is a sequence of elements,
each a uint32 length and that many bytes. BF16 is the upper half of an IEEE float32; numpy has no such type, so arrays of
BF16 are held as uint16 bit patterns.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from shoal_api.protocol import model_config_pb2 as mc


class DataType(NamedTuple):
    """One datatype. `itemsize` is bytes an element on the wire, 0 for BYTES (variable)."""

    wire: str
    config: int
    numpy: np.dtype[Any]
    itemsize: int


def _table() -> dict[str, DataType]:
    fixed = {
        "BOOL": (mc.TYPE_BOOL, np.bool_),
        "UINT8": (mc.TYPE_UINT8, np.uint8),
        "UINT16": (mc.TYPE_UINT16, np.uint16),
        "UINT32": (mc.TYPE_UINT32, np.uint32),
        "UINT64": (mc.TYPE_UINT64, np.uint64),
        "INT8": (mc.TYPE_INT8, np.int8),
        "INT16": (mc.TYPE_INT16, np.int16),
        "INT32": (mc.TYPE_INT32, np.int32),
        "INT64": (mc.TYPE_INT64, np.int64),
        "FP16": (mc.TYPE_FP16, np.float16),
        "FP32": (mc.TYPE_FP32, np.float32),
        "FP64": (mc.TYPE_FP64, np.float64),
        "BF16": (mc.TYPE_BF16, np.uint16),
    }
    table = {
        name: DataType(name, code, np.dtype(kind), np.dtype(kind).itemsize) for name, (code, kind) in fixed.items()
    }
    table["BYTES"] = DataType("BYTES", mc.TYPE_STRING, np.dtype(np.object_), 0)
    return table


BY_WIRE: Final[dict[str, DataType]] = _table()
BY_CONFIG: Final[dict[int, DataType]] = {d.config: d for d in BY_WIRE.values()}
"""Keyed by the value of the proto enum inference.DataType."""

_BY_NUMPY: Final[dict[np.dtype[Any], DataType]] = {d.numpy: d for d in BY_WIRE.values() if d.wire != "BF16"}


def from_numpy(dtype: np.dtype[Any]) -> DataType:
    """Return the datatype of a numpy array; uint16 is UINT16, strings and objects are BYTES.

    Raises KeyError with the dtype's name for a dtype that has no wire form (complex, datetime, ...).
    """
    found = _BY_NUMPY.get(dtype)
    if found is not None:
        return found
    if dtype.kind in "SUO":
        return BY_WIRE["BYTES"]
    native = _BY_NUMPY.get(dtype.newbyteorder("="))
    if native is not None:
        return native
    raise KeyError(f"numpy dtype {dtype} has no KServe datatype")


def config_name(wire: str) -> str:
    """Return Triton's configuration name, such as TYPE_FP32 for FP32 and TYPE_STRING for BYTES."""
    return mc.DataType.Name(BY_WIRE[wire].config)

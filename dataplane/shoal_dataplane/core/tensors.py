"""One tensor between the rooms, kept in the form it arrived in until somebody needs the other form."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import invalid

Buffer = bytes | bytearray | memoryview


class Tensor:
    """A named tensor.

    `datatype` is a KServe wire name, `shape` the full shape with the batch dimension. `data` is either
    - a bytes-like object: the wire encoding (see core.dtypes), usually a memoryview into the received message, or
    - a numpy array of `shape` and the datatype's numpy dtype (BYTES: an object array of `bytes`).
    Neither form is copied until the other one is asked for; fixed-size datatypes are never copied.
    """

    __slots__ = ("data", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: str, shape: tuple[int, ...], data: Buffer | np.ndarray[Any, Any]) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype}, {list(self.shape)})"

    def array(self) -> np.ndarray[Any, Any]:
        """Return the tensor as a numpy array of `shape`; a view for fixed-size datatypes (read-only when it came off the wire).

        Raises ServingError(INVALID_ARGUMENT) when the bytes do not hold exactly `shape` elements.
        """
        data = self.data
        if isinstance(data, np.ndarray):
            return data
        dtype = BY_WIRE[self.datatype]
        if dtype.itemsize == 0:
            elements = np.empty(math.prod(self.shape), dtype=object)
            elements[:] = decode_bytes(self.name, data, len(elements))
            return elements.reshape(self.shape)
        if len(data) != dtype.itemsize * math.prod(self.shape):
            raise size_mismatch(self.name, dtype.itemsize * math.prod(self.shape), len(data))
        return np.frombuffer(data, dtype.numpy).reshape(self.shape)

    def buffer(self) -> Buffer:
        """Return the wire encoding; a view for fixed-size datatypes in C order."""
        data = self.data
        if not isinstance(data, np.ndarray):
            return data
        if self.datatype == "BYTES":
            return encode_bytes(data.ravel())
        flat = np.ascontiguousarray(data)
        return flat.reshape(-1).view(np.uint8).data if flat.size else b""

    def nbytes(self) -> int:
        """Bytes of the wire encoding, without making it for fixed-size datatypes."""
        if isinstance(self.data, np.ndarray):
            return len(self.buffer()) if self.datatype == "BYTES" else int(self.data.nbytes)
        return len(self.data)


def size_mismatch(name: str, expected: int, got: int) -> Exception:
    return invalid(f"input byte size mismatch for input '{name}'. Expected {expected}, got {got}")


def encode_bytes(elements: Iterable[bytes | bytearray | str | np.bytes_ | np.str_]) -> bytes:
    """Encode BYTES elements: for each a little-endian uint32 length, then its bytes. Strings become UTF-8."""
    parts: list[bytes] = []
    for element in elements:
        raw = element.encode() if isinstance(element, str) else bytes(element)
        parts.append(struct.pack("<I", len(raw)))
        parts.append(raw)
    return b"".join(parts)


def _walk_bytes(name: str, data: Buffer, count: int) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) of each BYTES element. Raises ServingError(INVALID_ARGUMENT) with Triton's texts."""
    end = len(data)
    at = found = 0
    while at < end:
        if found == count:
            raise invalid(
                f"unexpected number of string elements {count + 1} for inference input '{name}', expecting {count}"
            )
        if end - at < 4:
            raise invalid(
                f"incomplete string length indicator for inference input '{name}', "
                f"expecting 4 bytes but only {end - at} bytes available"
            )
        (length,) = struct.unpack_from("<I", data, at)
        at += 4
        if length > end - at:
            raise invalid(
                f"incomplete string data for inference input '{name}', "
                f"expecting string of length {length} but only {end - at} bytes available"
            )
        yield at, at + length
        at += length
        found += 1
    if found != count:
        raise invalid(f"expected {count} string elements for inference input '{name}', got {found}")


def check_bytes(name: str, data: Buffer, count: int) -> None:
    """Check that `data` holds exactly `count` BYTES elements. Raises ServingError(INVALID_ARGUMENT) where it does not."""
    for _ in _walk_bytes(name, data, count):
        pass


def decode_bytes(name: str, data: Buffer, count: int) -> list[bytes]:
    """Decode `count` BYTES elements.

    Raises ServingError(INVALID_ARGUMENT) when a length runs past the end, or more or fewer elements are there than `count`.
    """
    view = memoryview(data)
    return [bytes(view[start:end]) for start, end in _walk_bytes(name, data, count)]

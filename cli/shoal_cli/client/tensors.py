"""Tensors on the client's side, in their wire encoding (KServe v2 binary representation)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.tensors import Tensor, encode_bytes


class ClientTensor(NamedTuple):
    """`datatype` is a wire name, `data` the bytes in that encoding."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, name: str, datatype: str, values: np.ndarray[Any, Any]) -> ClientTensor:
        """Encode an array; `datatype` BYTES takes strings and bytes, BF16 any floats."""
        if datatype == "BYTES":
            return cls(name, datatype, values.shape, encode_bytes(values.ravel()))
        if datatype == "BF16":
            bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
            return cls(name, datatype, values.shape, (bits >> 16).astype(np.uint16).tobytes())
        return cls(name, datatype, values.shape, np.ascontiguousarray(values, BY_WIRE[datatype].numpy).tobytes())

    def array(self) -> np.ndarray[Any, Any]:
        """Decode; BYTES become an object array of bytes, BF16 becomes float32. Raises ServingError when the bytes do not fit."""
        values = Tensor(self.name, self.datatype, self.shape, self.data).array()
        if self.datatype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values

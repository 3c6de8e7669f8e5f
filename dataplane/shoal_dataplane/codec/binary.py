"""The binary tensor data extension: raw tensors behind the JSON (triton.md I4), and requests that are one raw tensor."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from shoal_dataplane.core.errors import invalid
from shoal_dataplane.core.model_spec import ModelSpec
from shoal_dataplane.core.tensors import Tensor


class BinarySection:
    """The bytes behind the JSON of a request, handed out front to back as views."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def take(self, name: str, size: int, model_name: str) -> memoryview:
        """Return the next `size` bytes, the data of input `name`. Raises ServingError(INVALID_ARGUMENT) when fewer are left."""
        end = self._at + size
        if end > len(self._view):
            raise invalid(
                f"unexpected size for input '{name}', expecting {end - len(self._view)} additional bytes for model '{model_name}'"
            )
        taken = self._view[self._at : end]
        self._at = end
        return taken

    def close(self, model_name: str) -> None:
        """Raise ServingError(INVALID_ARGUMENT) when bytes are left that no input claimed."""
        left = len(self._view) - self._at
        if left:
            raise invalid(f"unexpected additional input data for model '{model_name}': {left} bytes belong to no input")


def binary_size(name: str, parameters: Mapping[str, Any]) -> int | None:
    """Return an input's `binary_data_size`, None when it has none. Raises ServingError(INVALID_ARGUMENT) for one that is no size."""
    size = parameters.get("binary_data_size")
    if size is None and "binary_data_size" not in parameters:
        return None
    if type(size) is not int or size < 0:
        raise invalid(f"Unable to parse 'binary_data_size' of input '{name}': expected an integer >= 0, got {size!r}")
    return size


def raw_input(spec: ModelSpec, body: memoryview) -> Tensor:
    """Make a whole body the model's single input (header length 0). At most one dimension of any size is deduced from the length.

    Raises ServingError(INVALID_ARGUMENT) when the model or the length does not allow that.
    """
    if len(spec.inputs) != 1:
        raise invalid(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(spec.inputs)} inputs "
            f"in '{spec.name}' model configuration"
        )
    (tensor,) = spec.inputs.values()
    batch = (1,) if spec.max_batch_size else ()
    fixed = math.prod(size for size in tensor.dims if size != -1)
    open_axes = [axis for axis, size in enumerate(tensor.dims) if size == -1]
    if len(open_axes) > 1:
        raise invalid(
            f"The shape of the raw input '{tensor.name}' can not be deduced because there are more than one variable-sized dimension"
        )
    if tensor.datatype.itemsize == 0:
        if open_axes or fixed != 1:
            raise invalid(f"For BYTE datatype raw input '{tensor.name}', the model must have input shape [1]")
        return Tensor(tensor.name, "BYTES", batch + tensor.dims, struct.pack("<I", len(body)) + bytes(body))
    dims = list(tensor.dims)
    if open_axes:
        unit = fixed * tensor.datatype.itemsize
        if len(body) % unit:
            raise invalid(
                f"input byte size mismatch for input '{tensor.name}' for model '{spec.name}'. "
                f"Expected a multiple of {unit}, got {len(body)}"
            )
        dims[open_axes[0]] = len(body) // unit
    return Tensor(tensor.name, tensor.datatype.wire, batch + tuple(dims), body)

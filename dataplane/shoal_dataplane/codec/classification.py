"""The classification extension: an output's largest values as "value:index[:label]" strings (triton.md I10).

Shared by the doors. The rules are those of Triton's classification.cc: sorted by falling value, ties by index, integers as they are,
floats with six decimals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal_dataplane.core.errors import invalid
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor

MAX_ELEMENTS: Final = 1_000_000
"""Values of one batch item that may be sorted for a caller."""

_UNSUPPORTED: Final = frozenset(("BOOL", "BYTES", "FP16", "BF16"))


def classify(tensor: Tensor, k: int, labels: Sequence[str], batched: bool) -> Tensor:
    """Return the `k` largest values of an output (of each batch item, if `batched`) as a BYTES tensor [batch, min(k, n)] or [min(k, n)].

    NaN sorts behind everything else. An index without a label, or with an empty one, has none in its string.
    Raises ServingError(INVALID_ARGUMENT) for a datatype that has no order here and for more than MAX_ELEMENTS values.
    """
    if tensor.datatype in _UNSUPPORTED:
        raise invalid(
            f"class result not available for output '{tensor.name}' due to unsupported type '{tensor.datatype}'"
        )
    batched = batched and len(tensor.shape) > 0
    rows = tensor.shape[0] if batched else 1
    size = math.prod(tensor.shape[1:] if batched else tensor.shape)
    if size > MAX_ELEMENTS:
        raise invalid(
            f"classification output tensor '{tensor.name}' too large: {size} values, at most {MAX_ELEMENTS} are sorted"
        )
    values = tensor.array().reshape(rows, size)
    top = _largest_first(values, min(k, size))
    floating = values.dtype.kind == "f"
    elements = np.empty(top.shape, dtype=np.object_)
    for row in range(rows):
        picked = top[row].tolist()
        texts = values[row, top[row]].tolist()
        for column, (index, value) in enumerate(zip(picked, texts, strict=True)):
            text = f"{value:.6f}:{index}" if floating else f"{value}:{index}"
            if index < len(labels) and labels[index]:
                text += f":{labels[index]}"
            elements[row, column] = text.encode()
    shape = top.shape if batched else top.shape[1:]
    return Tensor(tensor.name, "BYTES", tuple(shape), elements.reshape(shape))


def _largest_first(values: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    """Indices of the `k` largest values of each row, largest first, ties by index, NaN last."""
    if values.dtype.kind == "f":
        return np.argsort(-values, axis=1, kind="stable")[:, :k]
    # Negation would wrap integers: sort the mirrored row upwards and mirror the order, which keeps ties in order of their index.
    order = np.argsort(values[:, ::-1], axis=1, kind="stable")
    largest: np.ndarray[Any, Any] = values.shape[1] - 1 - order[:, ::-1][:, :k]
    return largest


def classify_outputs(response: InferResponse, request: InferRequest, classes: Mapping[str, int]) -> None:
    """Replace the outputs named in `classes` by their classification, with the labels of the model that answered."""
    assert request.target is not None, "a response without an error comes from a model"
    spec = request.target.spec
    for at, tensor in enumerate(response.outputs):
        k = classes.get(tensor.name, 0)
        if k:
            output = spec.outputs.get(tensor.name)
            response.outputs[at] = classify(tensor, k, output.labels if output else (), spec.max_batch_size > 0)

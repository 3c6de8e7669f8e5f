"""Check a request against the model's specification, and find its batch size and its batch key.

The rules and their wording are Triton's (core: infer_request.cc, Normalize), see B13 of the feature table. Every refusal is
INVALID_ARGUMENT.
"""

from __future__ import annotations

import math
from typing import Any

from shoal_dataplane.core.errors import ServingError, invalid
from shoal_dataplane.core.model_spec import ModelSpec, TensorSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.tensors import Tensor, check_bytes, size_mismatch

MAX_ELEMENTS = 1 << 40
"""More elements than any message can carry; a shape above it is refused before its product is used."""


def normalize(request: InferRequest, spec: ModelSpec) -> None:
    """Set `batch_size` and `batch_key` of a request, or raise ServingError(INVALID_ARGUMENT) saying what does not fit the model."""
    signature = request.signature
    if signature is not None and signature.spec is spec:
        request.batch_size = signature.batch_size
        request.batch_key = signature.batch_key
        return
    inputs = request.inputs
    for name, tensor in inputs.items():
        tensor_spec = spec.inputs.get(name)
        if tensor_spec is None:
            raise invalid(f"unexpected inference input '{name}' for model '{spec.name}'{_expected_names(spec.inputs)}")
        _check_tensor(tensor, tensor_spec, spec)
    if not spec.required <= inputs.keys():
        raise _missing(inputs, spec)
    if request.outputs is not None:
        for name in request.outputs:
            if name not in spec.outputs:
                raise invalid(
                    f"unexpected inference output '{name}' for model '{spec.name}'{_expected_names(spec.outputs)}"
                )
    request.batch_size = _batch_size(inputs, spec)
    request.batch_key = _batch_key(inputs, spec)
    if signature is not None:
        signature.batch_size, signature.batch_key = request.batch_size, request.batch_key
        signature.spec = spec


def _expected_names(tensors: dict[str, TensorSpec]) -> str:
    shown = ", ".join(f"'{name}'" for name in list(tensors)[:16])
    return f", expecting one of: {shown}" if shown else ", which has none"


def _missing(inputs: dict[str, Tensor], spec: ModelSpec) -> ServingError:
    got = ",".join(f"'{name}'" for name in inputs)
    lacking = ",".join(f"'{name}'" for name in spec.inputs if name in spec.required and name not in inputs)
    least, most = len(spec.required), len(spec.inputs)
    expected = f"expected {most} inputs" if least == most else f"expected number of inputs between {least} and {most}"
    return invalid(
        f"{expected} but got {len(inputs)} inputs for model '{spec.name}'. "
        f"Got input(s) [{got}], but missing required input(s) [{lacking}]. Please provide all required input(s)."
    )


def _check_tensor(tensor: Tensor, tensor_spec: TensorSpec, spec: ModelSpec) -> None:
    name = tensor.name
    if tensor.datatype != tensor_spec.datatype.wire:
        raise invalid(
            f"inference input '{name}' data-type is '{tensor.datatype}', but model '{spec.name}' expects '{tensor_spec.datatype.wire}'"
        )
    shape = tensor.shape
    for size in shape:
        if size < 0:
            raise invalid(
                f"All input dimensions should be specified for input '{name}' for model '{spec.name}', got {_dims(shape)}"
            )
    elements = math.prod(shape)
    if elements > MAX_ELEMENTS:
        raise invalid(
            f"unexpected shape for input '{name}' for model '{spec.name}': {list(shape)} has more than {MAX_ELEMENTS} elements"
        )
    dims = tensor_spec.dims
    own = shape
    if spec.max_batch_size:
        if not shape:
            raise invalid(f"input '{name}' has no shape but model requires batch dimension for '{spec.name}'")
        own = shape[1:]
    if len(own) != len(dims) or any(want not in (-1, got) for want, got in zip(dims, own, strict=True)):
        raise _unexpected_shape(tensor, tensor_spec, spec)
    data = tensor.data
    if isinstance(data, (bytes, bytearray, memoryview)):
        itemsize = tensor_spec.datatype.itemsize
        if itemsize == 0:
            check_bytes(name, data, elements)
        elif len(data) != itemsize * elements:
            raise size_mismatch(f"{name}' for model '{spec.name}", itemsize * elements, len(data))


def _unexpected_shape(tensor: Tensor, tensor_spec: TensorSpec, spec: ModelSpec) -> ServingError:
    expected = ([-1] if spec.max_batch_size else []) + list(tensor_spec.dims)
    hint = ""
    if spec.max_batch_size:
        hint = (
            ". NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input shape. "
            "If you want to specify the full shape including the batch dim in your input dims config, try setting max_batch_size to zero. "
            "See the model configuration docs for more info on max_batch_size."
        )
    return invalid(
        f"unexpected shape for input '{tensor.name}' for model '{spec.name}'. Expected {_dims(expected)}, got {_dims(tensor.shape)}{hint}"
    )


def _dims(shape: Any) -> str:
    return "[" + ",".join(str(size) for size in shape) + "]"


def _batch_size(inputs: dict[str, Tensor], spec: ModelSpec) -> int:
    if not spec.max_batch_size:
        return 1
    size = -1
    first = ""
    for name, tensor in inputs.items():
        if size == -1:
            size, first = tensor.shape[0], name
        elif tensor.shape[0] != size:
            raise invalid(
                f"input '{name}' batch size does not match other inputs for '{spec.name}': {tensor.shape[0]}, but '{first}' has {size}"
            )
    if size == -1:
        return 1
    if size < 1:
        raise invalid(f"inference request batch-size must be >= 1 for '{spec.name}', got {size}")
    if size > spec.max_batch_size:
        raise invalid(f"inference request batch-size must be <= {spec.max_batch_size} for '{spec.name}'")
    return size


def _batch_key(inputs: dict[str, Tensor], spec: ModelSpec) -> Any:
    """Shapes without the batch dimension of the inputs that must agree, in the model's order; absent optional inputs show as None."""
    if not spec.max_batch_size:
        return None
    return tuple(
        (False if item.ragged else inputs[name].shape[1:]) if name in inputs else None
        for name, item in spec.inputs.items()
    )

"""batch_input and batch_output: tensors that describe a batch, and outputs that are split by an input's shapes (triton.md C12)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.arrays.reshape import Reshape
from shoal_dataplane.core.dtypes import BY_CONFIG
from shoal_dataplane.core.errors import internal, invalid
from shoal_dataplane.core.model_spec import ModelSpec
from shoal_dataplane.core.request import InferRequest

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Shapes = Sequence[Shape]


class SourceInput:
    """The input whose shapes a batch_input or a batch_output is made from."""

    __slots__ = ("_batched", "_reshape", "name")

    def __init__(self, spec: ModelSpec, name: str) -> None:
        tensor = spec.inputs[name]
        self.name = name
        self._batched = spec.max_batch_size > 0
        self._reshape = None if tensor.reshape is None else Reshape(tensor.dims, tensor.reshape, name)

    def shapes(self, requests: Sequence[InferRequest]) -> list[Shape]:
        """The input's shapes in the requests, with the batch dimension, as the model sees them: its `reshape` is applied.

        Raises ServingError(INVALID_ARGUMENT) when a request leaves out the input, which is optional then.
        """
        try:
            shapes = [request.inputs[self.name].shape for request in requests]
        except KeyError:
            raise invalid(f"input '{self.name}' is needed to describe the batch to the model, but is missing") from None
        reshape = self._reshape
        if reshape is None:
            return shapes
        if self._batched:
            return [(shape[0], *reshape(shape[1:])) for shape in shapes]
        return [reshape(shape) for shape in shapes]


def _element_counts(shapes: Shapes) -> list[int]:
    return [math.prod(shape) for shape in shapes]


def _accumulated(shapes: Shapes) -> list[int]:
    return list(itertools.accumulate(_element_counts(shapes)))


def _accumulated_with_zero(shapes: Shapes) -> list[int]:
    return [0, *_accumulated(shapes)]


def _item_shapes(shapes: Shapes) -> list[int]:
    return [size for shape in shapes for _ in range(shape[0]) for size in shape[1:]]


_Kind = mc.BatchInput.Kind
_NUMBERS: Final[dict[int, Callable[[Shapes], list[int]]]] = {
    _Kind.BATCH_ELEMENT_COUNT: _element_counts,
    _Kind.BATCH_ACCUMULATED_ELEMENT_COUNT: _accumulated,
    _Kind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: _accumulated_with_zero,
    _Kind.BATCH_ITEM_SHAPE: _item_shapes,
    _Kind.BATCH_ITEM_SHAPE_FLATTEN: _item_shapes,
}


@dataclass(frozen=True, slots=True)
class BatchInput:
    """One batch_input: tensors named `targets`, all the same, computed from the shapes of `source` in the requests of a batch."""

    kind: int
    targets: tuple[str, ...]
    source: SourceInput
    dtype: np.dtype[Any]

    def build(self, requests: Sequence[InferRequest]) -> Array:
        """Return the tensor for a batch of n requests, n_i being the elements of the source input of request i:

        ELEMENT_COUNT [n]: n_i; ACCUMULATED_ELEMENT_COUNT [n]: n_0 + ... + n_i; ..._WITH_ZERO [n + 1]: the same after a 0;
        MAX_ELEMENT_COUNT_AS_SHAPE [max n_i]: zeros, only the shape speaks; ITEM_SHAPE [rows, rank]: for each row of each request its
        shape without the batch dimension; ITEM_SHAPE_FLATTEN [rows * rank]: the same, flat.
        """
        shapes = self.source.shapes(requests)
        if self.kind == _Kind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE:
            return np.zeros(max(_element_counts(shapes)), self.dtype)
        try:
            numbers = np.array(_NUMBERS[self.kind](shapes), self.dtype)
        except OverflowError:
            raise internal(
                f"batch input '{self.targets[0]}' cannot hold the element counts of input '{self.source.name}' in {self.dtype}"
            ) from None
        if self.kind == _Kind.BATCH_ITEM_SHAPE:
            return numbers.reshape(sum(shape[0] for shape in shapes), len(shapes[0]) - 1)
        return numbers


def batch_inputs(config: mc.ModelConfig, spec: ModelSpec) -> list[BatchInput]:
    """Compile the batch_input section. Raises ServingError(INVALID_ARGUMENT)."""
    compiled = []
    for item in config.batch_input:
        where = f"batch_input of model '{config.name}'"
        datatype = BY_CONFIG.get(item.data_type)
        if datatype is None or datatype.wire not in ("INT32", "FP32"):
            raise invalid(f"{where}: data type must be TYPE_INT32 or TYPE_FP32")
        if not item.target_name:
            raise invalid(f"{where}: expects at least one target name, got none")
        for target in item.target_name:
            if target in spec.inputs:
                raise invalid(f"{where}: target '{target}' is also an input of the model")
        source = _source(where, item.source_input, spec)
        compiled.append(BatchInput(item.kind, tuple(item.target_name), source, datatype.numpy))
    return compiled


def scatter_outputs(config: mc.ModelConfig, spec: ModelSpec) -> dict[str, SourceInput]:
    """Compile the batch_output section (BATCH_SCATTER_WITH_INPUT_SHAPE, the only kind): output names and whose shapes split them.

    Raises ServingError(INVALID_ARGUMENT).
    """
    compiled = {}
    for item in config.batch_output:
        where = f"batch_output of model '{config.name}'"
        source = _source(where, item.source_input, spec)
        rank = _rank(spec, source.name)
        for target in item.target_name:
            output = spec.outputs.get(target)
            if output is None:
                raise invalid(f"{where}: target '{target}' is no output of the model")
            dims = output.dims if output.reshape is None else output.reshape
            if any(size == -1 and index >= rank for index, size in enumerate(dims)):
                raise invalid(
                    f"{where}: output '{target}' has variable dimensions {list(dims)} that input '{source.name}', of {rank} dimensions, "
                    "cannot size"
                )
            compiled[target] = source
    return compiled


def _source(where: str, names: Sequence[str], spec: ModelSpec) -> SourceInput:
    if len(names) != 1:
        raise invalid(f"{where}: expects 1 source input, got {len(names)}")
    if names[0] not in spec.inputs:
        raise invalid(f"{where}: unknown source input name '{names[0]}'")
    return SourceInput(spec, names[0])


def _rank(spec: ModelSpec, name: str) -> int:
    """Dimensions of an input as the model sees it, without the batch dimension."""
    tensor = spec.inputs[name]
    return len(tensor.dims if tensor.reshape is None else tensor.reshape)

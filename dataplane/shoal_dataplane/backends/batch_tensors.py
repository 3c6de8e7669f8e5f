"""batch_input and batch_output: tensors that describe a batch, and outputs that take the shapes of an input (triton.md C12)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.dtypes import BY_CONFIG
from shoal_dataplane.core.errors import invalid
from shoal_dataplane.core.model_spec import ModelSpec
from shoal_dataplane.core.request import InferRequest

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class BatchInput:
    """One batch_input: tensors named `targets`, computed from the shapes that the requests of a batch gave `source`."""

    kind: int
    targets: tuple[str, ...]
    source: str
    dtype: np.dtype[Any]

    def build(self, requests: Sequence[InferRequest]) -> Array:
        """Return the tensor for a batch of n requests, n_i the elements of the source input of request i:

        ELEMENT_COUNT [n]: n_i; ACCUMULATED_ELEMENT_COUNT [n]: n_0 + ... + n_i; ..._WITH_ZERO [n + 1]: the same after a 0;
        MAX_ELEMENT_COUNT_AS_SHAPE [max n_i]: zeros, only the shape speaks; ITEM_SHAPE [rows, rank]: the shape of each row of each
        request, without the batch dimension; ITEM_SHAPE_FLATTEN [rows * rank]: the same, flat.
        """
        shapes = [request.inputs[self.source].shape for request in requests]
        kind = mc.BatchInput.Kind
        if self.kind in (kind.BATCH_ITEM_SHAPE, kind.BATCH_ITEM_SHAPE_FLATTEN):
            rows = [shape[1:] for shape in shapes for _ in range(shape[0])]
            table = np.array(rows, self.dtype).reshape(len(rows), len(shapes[0]) - 1)
            return table.reshape(-1) if self.kind == kind.BATCH_ITEM_SHAPE_FLATTEN else table
        counts = [math.prod(shape) for shape in shapes]
        if self.kind == kind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE:
            return np.zeros(max(counts), self.dtype)
        if self.kind == kind.BATCH_ELEMENT_COUNT:
            return np.array(counts, self.dtype)
        sums = list(itertools.accumulate(counts))
        return np.array(sums if self.kind == kind.BATCH_ACCUMULATED_ELEMENT_COUNT else [0, *sums], self.dtype)


@dataclass(frozen=True, slots=True)
class ScatterOutput:
    """One output of a batch_output BATCH_SCATTER_WITH_INPUT_SHAPE: each response's part has the shape of the request's `source`."""

    source: str


def batch_inputs(config: mc.ModelConfig, spec: ModelSpec) -> list[BatchInput]:
    """Compile the batch_input section. Raises ServingError(INVALID_ARGUMENT)."""
    compiled = []
    for item in config.batch_input:
        source = _source(config, "batch_input", item.source_input, spec)
        datatype = BY_CONFIG.get(item.data_type)
        if datatype is None or datatype.wire not in ("INT32", "FP32"):
            raise invalid(f"batch input of model '{config.name}' must have data type TYPE_INT32 or TYPE_FP32")
        compiled.append(BatchInput(item.kind, tuple(item.target_name), source, datatype.numpy))
    return compiled


def scatter_outputs(config: mc.ModelConfig, spec: ModelSpec) -> dict[str, ScatterOutput]:
    """Compile the batch_output section, by output name. Raises ServingError(INVALID_ARGUMENT)."""
    compiled = {}
    for item in config.batch_output:
        source = _source(config, "batch_output", item.source_input, spec)
        for target in item.target_name:
            if target not in spec.outputs:
                raise invalid(
                    f"batch_output of model '{config.name}' names '{target}', which is no output of the model"
                )
            compiled[target] = ScatterOutput(source)
    return compiled


def _source(config: mc.ModelConfig, section: str, names: Sequence[str], spec: ModelSpec) -> str:
    if len(names) != 1:
        raise invalid(f"{section} of model '{config.name}' expects exactly one source input, got {len(names)}")
    if names[0] not in spec.inputs:
        raise invalid(
            f"{section} of model '{config.name}' names source input '{names[0]}', which is no input of the model"
        )
    return names[0]

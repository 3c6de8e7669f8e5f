"""A batch of requests to the arrays that a model takes, and the model's arrays back to responses.

For backends that run arrays (torch, ONNX). Inputs are joined along the first dimension; an answer's rows go back to the requests in
order, as views into the model's output. Compiled once an instance, so that a batch costs little more than the join and the slices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.batch_tensors import BatchInput, ScatterOutput, batch_inputs, scatter_outputs
from shoal_dataplane.core.errors import Reason, ServingError, internal
from shoal_dataplane.core.model_spec import ModelSpec, TensorSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor

Array = np.ndarray[Any, Any]


class Stacker:
    """Gathers and scatters for one model. Thread-safe: it keeps nothing between calls."""

    def __init__(self, spec: ModelSpec, config: mc.ModelConfig) -> None:
        """Raises ServingError(INVALID_ARGUMENT) for a batch_input or batch_output that names no tensor of the model."""
        self._spec = spec
        self._batched = spec.max_batch_size > 0
        self._inputs = list(spec.inputs.values())
        self._batch_inputs: list[BatchInput] = batch_inputs(config, spec)
        self._scattered: dict[str, ScatterOutput] = scatter_outputs(config, spec)
        self._outputs = list(spec.outputs.values())

    # -- gather

    def gather(self, requests: Sequence[InferRequest]) -> dict[str, Array]:
        """Return the model's inputs by name, batch_input tensors among them. An optional input that no request has is absent.

        Shapes: [rows of all requests, *dims], where `reshape` is configured with its shape in the place of dims; a ragged input is flat.
        Arrays of a single request are views into its message, read-only.
        Raises ServingError(INVALID_ARGUMENT) for bytes that are no tensor (routing has checked sizes before).
        """
        first = requests[0].inputs
        gathered: dict[str, Array] = {}
        for spec in self._inputs:
            name = spec.name
            if name in first:
                gathered[name] = self._join(spec, [request.inputs[name] for request in requests])
        for made in self._batch_inputs:
            for target in made.targets:
                gathered[target] = made.build(requests)
        return gathered

    def _join(self, spec: TensorSpec, tensors: list[Tensor]) -> Array:
        if spec.ragged and self._batched:
            flat = [tensor.array().reshape(-1) for tensor in tensors]
            return flat[0] if len(flat) == 1 else np.concatenate(flat)
        if len(tensors) == 1:
            joined = tensors[0].array()
        elif spec.datatype.itemsize:
            # One join of the raw bytes: for many small tensors several times faster than numpy's concatenate.
            data = b"".join([tensor.data if type(tensor.data) is memoryview else tensor.buffer() for tensor in tensors])
            joined = np.frombuffer(data, spec.datatype.numpy).reshape(-1, *tensors[0].shape[1:])
            if 0 in tensors[0].shape[1:]:  # -1 cannot be inferred from no bytes
                joined = np.empty(
                    (sum(tensor.shape[0] for tensor in tensors), *tensors[0].shape[1:]), spec.datatype.numpy
                )
        else:
            joined = np.concatenate([tensor.array() for tensor in tensors])
        if spec.reshape is not None:
            own = joined.shape[1:] if self._batched else joined.shape
            shape = resolve_reshape(spec.dims, spec.reshape, own)
            joined = joined.reshape((len(joined), *shape) if self._batched else shape)
        return joined

    # -- scatter

    def scatter(self, outputs: Mapping[str, Array], requests: Sequence[InferRequest]) -> list[InferResponse]:
        """Return a response for each request, with the outputs it asked for, in the order of the configuration.

        `outputs` are the model's arrays by name, C-ordered or not; names that the configuration lacks are ignored.
        Raises ServingError(INTERNAL) naming model and output when an output is missing, of another dtype or of another shape.
        """
        responses = [InferResponse([]) for _ in requests]
        wanted = _wanted(requests)
        rows = 0
        for request in requests:
            rows += request.batch_size
        for spec in self._outputs:
            name = spec.name
            if wanted is not None and name not in wanted:
                continue
            array = outputs.get(name)
            if array is None:
                raise self._fault(name, "the model did not return it")
            self._check_dtype(spec, array)
            scattered = self._scattered.get(name)
            if scattered is not None:
                self._scatter_like_input(spec, array, scattered, requests, responses)
            elif self._batched:
                self._scatter_rows(spec, array, rows, requests, responses)
            else:
                shape = self._own_shape(spec, array.shape)
                responses[0].outputs.append(Tensor(name, spec.datatype.wire, shape, array.reshape(shape)))
        if wanted is not None:
            for request, response in zip(requests, responses, strict=True):
                asked = request.outputs
                if asked is not None and len(response.outputs) != len(asked):
                    response.outputs = [tensor for tensor in response.outputs if tensor.name in asked]
        return responses

    def _scatter_rows(
        self,
        spec: TensorSpec,
        array: Array,
        rows: int,
        requests: Sequence[InferRequest],
        responses: list[InferResponse],
    ) -> None:
        if array.ndim == 0 or array.shape[0] != rows:
            raise self._fault(
                spec.name,
                f"its shape is {list(array.shape)}, expected a batch dimension of {rows} for the {rows} rows it was given",
            )
        own = self._own_shape(spec, array.shape[1:])
        name, wire, itemsize = spec.name, spec.datatype.wire, spec.datatype.itemsize
        if len(requests) == 1 or not itemsize:
            array = array.reshape((rows, *own))
            at = 0
            for request, response in zip(requests, responses, strict=True):
                end = at + request.batch_size
                response.outputs.append(Tensor(name, wire, (request.batch_size, *own), array[at:end]))
                at = end
            return
        # Slices of bytes rather than of the array: cheaper to make, and the door writes them as they are.
        view = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        width = itemsize * math.prod(own)
        single = (1, *own)
        at = 0
        for request, response in zip(requests, responses, strict=True):
            count = request.batch_size
            end = at + count * width
            response.outputs.append(Tensor(name, wire, single if count == 1 else (count, *own), view[at:end]))
            at = end

    def _scatter_like_input(
        self,
        spec: TensorSpec,
        array: Array,
        scattered: ScatterOutput,
        requests: Sequence[InferRequest],
        responses: list[InferResponse],
    ) -> None:
        flat = array.reshape(-1)
        shapes = [request.inputs[scattered.source].shape for request in requests]
        total = sum(math.prod(shape) for shape in shapes)
        if flat.size != total:
            raise self._fault(
                spec.name,
                f"it has {flat.size} elements, expected the {total} of input '{scattered.source}', whose shapes it takes",
            )
        at = 0
        for shape, response in zip(shapes, responses, strict=True):
            end = at + math.prod(shape)
            response.outputs.append(Tensor(spec.name, spec.datatype.wire, shape, flat[at:end].reshape(shape)))
            at = end

    def _check_dtype(self, spec: TensorSpec, array: Array) -> None:
        expected = spec.datatype.numpy
        if array.dtype == expected or (spec.datatype.itemsize == 0 and array.dtype.kind in "SUO"):
            return
        raise self._fault(
            spec.name, f"its data type is {array.dtype}, but the configuration says {spec.datatype.wire} ({expected})"
        )

    def _own_shape(self, spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Check a shape without its batch dimension against the configuration, and return it with the reshape undone."""
        inner = spec.dims if spec.reshape is None else spec.reshape
        if len(shape) != len(inner) or any(want not in (-1, got) for want, got in zip(inner, shape, strict=True)):
            lead = ["batch"] if self._batched else []
            raise self._fault(
                spec.name, f"its shape is {[*lead, *shape]}, but the configuration says {[*lead, *inner]}"
            )
        return shape if spec.reshape is None else resolve_reshape(spec.reshape, spec.dims, shape)

    def _fault(self, name: str, what: str) -> ServingError:
        return internal(f"output '{name}' of model '{self._spec.name}': {what}", Reason.BACKEND)


def _wanted(requests: Sequence[InferRequest]) -> set[str] | None:
    """The outputs that any request asked for; None when one asked for all."""
    for request in requests:
        if request.outputs is None:
            return None
    return {name for request in requests for name in request.outputs or ()}


def resolve_reshape(dims: Sequence[int], reshape: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return `reshape` with its -1 replaced for a tensor of `shape`, which fits `dims`.

    Variable dimensions correspond in order (triton.md B2: the dims between them have equal products, which the repository checks).
    """
    variable = iter([size for want, size in zip(dims, shape, strict=True) if want == -1])
    return tuple(next(variable) if size == -1 else size for size in reshape)

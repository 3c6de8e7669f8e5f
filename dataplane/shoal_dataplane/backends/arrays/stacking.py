"""A batch of requests to the arrays that a model takes, and the model's arrays back to responses.

For backends that run arrays (torch, ONNX). Inputs are joined along the first dimension; an answer's rows go back to the requests in
order, as views into the model's output. Compiled once an instance, so that a batch costs little more than the join and the slices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.arrays.batch_tensors import SourceInput, batch_inputs, scatter_outputs
from shoal_dataplane.backends.arrays.reshape import Reshape
from shoal_dataplane.core.errors import ServingError, internal
from shoal_dataplane.core.model_spec import ModelSpec, TensorSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Stacker:
    """Gathers and scatters for one model. Thread-safe: it keeps nothing between calls."""

    def __init__(self, spec: ModelSpec, config: mc.ModelConfig) -> None:
        """Raises ServingError(INVALID_ARGUMENT) for a batch_input, batch_output or reshape that does not fit the model."""
        self._model = spec.name
        self._batched = spec.max_batch_size > 0
        self._batch_inputs = batch_inputs(config, spec)
        scattered = scatter_outputs(config, spec)
        self._inputs = [_Input(item, self._batched) for item in spec.inputs.values()]
        self._outputs = [
            _Output(spec.name, item, self._batched, scattered.get(item.name)) for item in spec.outputs.values()
        ]

    def gather(self, requests: Sequence[InferRequest]) -> dict[str, Array]:
        """Return the model's inputs by name, batch_input tensors among them. An optional input that no request has is absent.

        Shapes: [rows of all requests, *dims], with the `reshape` in the place of dims where one is configured; a ragged input is flat.
        The arrays of a single request are its own, or views into its message; all that come from messages are read-only.
        Raises ServingError: INVALID_ARGUMENT for bytes that do not fill their shape (routing has checked that before), INTERNAL for
        requests that cannot share a batch.
        """
        first = requests[0].inputs
        count = len(requests)
        if count > 1 and not self._batched:
            raise internal(f"model '{self._model}' does not batch, but was given {count} requests at once")
        gathered: dict[str, Array] = {}
        rows = 0
        for item in self._inputs:
            name = item.name
            if name not in first:
                continue
            if count == 1:
                gathered[name] = item.single(first[name])
                continue
            if not rows:
                rows = sum([request.batch_size for request in requests])
            try:
                tensors = [request.inputs[name] for request in requests]
            except KeyError:
                raise internal(
                    f"requests with and without input '{name}' of model '{self._model}' in one batch"
                ) from None
            gathered[name] = item.join(tensors, rows)
        for made in self._batch_inputs:
            array = made.build(requests)
            for target in made.targets:
                gathered[target] = array
        return gathered

    def scatter(self, outputs: Mapping[str, Array], requests: Sequence[InferRequest]) -> list[InferResponse]:
        """Return a response for each request, with the outputs it asked for, in the order of the configuration.

        `outputs` are the model's arrays by name, in any memory layout; names that the configuration lacks are ignored, and outputs that no
        request asks for may be absent. The tensors of the responses share the arrays' memory where these are C-ordered.
        Raises ServingError(INTERNAL) naming model and output when an output is missing, of another datatype or of another shape.
        """
        wanted = _wanted(requests)
        columns: list[list[Tensor]] = []
        for item in self._outputs:
            if wanted is not None and item.name not in wanted:
                continue
            array = outputs.get(item.name)
            if array is None:
                raise item.fault("it was not returned")
            columns.append(item.split(array, requests))
        if len(columns) == 1:
            responses = [InferResponse([tensor]) for tensor in columns[0]]
        elif columns:
            responses = [InferResponse(list(tensors)) for tensors in zip(*columns, strict=True)]
        else:
            responses = [InferResponse([]) for _ in requests]
        if len(columns) > 1:
            for request, response in zip(requests, responses, strict=True):
                asked = request.outputs
                if asked:
                    response.outputs = [tensor for tensor in response.outputs if tensor.name in asked]
        return responses


def _wanted(requests: Sequence[InferRequest]) -> set[str] | None:
    """The outputs that any request asked for; None when one asked for none in particular, which means all."""
    wanted: set[str] = set()
    for request in requests:
        if not request.outputs:
            return None
        wanted.update(request.outputs)
    return wanted


class _Input:
    """How one input is gathered."""

    __slots__ = ("_batched", "_dtype", "_itemsize", "_ragged", "_reshape", "name")

    def __init__(self, spec: TensorSpec, batched: bool) -> None:
        self.name = spec.name
        self._dtype = spec.datatype.numpy
        self._itemsize = spec.datatype.itemsize
        self._batched = batched
        self._ragged = spec.ragged and batched
        self._reshape = None if spec.reshape is None else Reshape(spec.dims, spec.reshape, spec.name)

    def single(self, tensor: Tensor) -> Array:
        """The array of a request that runs alone; no copy."""
        array = tensor.array()
        if self._ragged:
            return array.reshape(-1)
        return array if self._reshape is None else array.reshape(self._seen(array.shape))

    def join(self, tensors: Sequence[Tensor], rows: int) -> Array:
        """One array of the tensors of several requests, `rows` rows in all."""
        if not self._itemsize:
            arrays = [tensor.array() for tensor in tensors]
            if self._ragged:
                return np.concatenate([array.reshape(-1) for array in arrays])
            shape = (rows, *arrays[0].shape[1:])
            return np.concatenate(arrays).reshape(shape if self._reshape is None else self._seen(shape))
        try:
            # One join of the raw bytes: for many small tensors several times faster than numpy's concatenate. Takes arrays, too.
            parts: list[Any] = [tensor.data for tensor in tensors]
            data = b"".join(parts)
        except (BufferError, TypeError, ValueError):  # an array that is not C-ordered
            data = b"".join([tensor.buffer() for tensor in tensors])
        if self._ragged:
            expected = sum([math.prod(tensor.shape) for tensor in tensors])
            shape = (expected,)
        else:
            shape = (rows, *tensors[0].shape[1:])
            expected = math.prod(shape)
        if len(data) != expected * self._itemsize:
            for tensor in tensors:
                tensor.array()  # the one at fault says so
            raise internal(f"the shapes of input '{self.name}' differ in one batch: {_shown(tensors)}")
        array = np.frombuffer(data, self._dtype)
        return array.reshape(shape if self._reshape is None or self._ragged else self._seen(shape))

    def _seen(self, shape: Shape) -> Shape:
        """The shape that the model sees for a tensor of `shape`."""
        assert self._reshape is not None
        return (shape[0], *self._reshape(shape[1:])) if self._batched else self._reshape(shape)


def _shown(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(list(shape)) for shape in dict.fromkeys(tensor.shape for tensor in tensors))


class _Output:
    """How one output is checked and split."""

    __slots__ = ("_batched", "_dims", "_dtype", "_itemsize", "_model", "_reshape", "_source", "_wire", "name")

    def __init__(self, model: str, spec: TensorSpec, batched: bool, source: SourceInput | None) -> None:
        self._model = model
        self.name = spec.name
        self._wire = spec.datatype.wire
        self._dtype = spec.datatype.numpy
        self._itemsize = spec.datatype.itemsize
        self._batched = batched
        self._dims = spec.dims if spec.reshape is None else spec.reshape  # the model's side
        self._reshape = None if spec.reshape is None else Reshape(spec.reshape, spec.dims, spec.name)
        self._source = source

    def split(self, array: Array, requests: Sequence[InferRequest]) -> list[Tensor]:
        """A tensor for each request. Raises ServingError(INTERNAL) when the array is not what the configuration says."""
        if array.dtype != self._dtype:
            array = self._bytes_elements(array)
        if self._source is not None:
            return self._split_as_input(array, requests, self._source)
        if not self._batched:
            shape = self._own(array.shape, array)
            return [Tensor(self.name, self._wire, shape, array.reshape(shape))]
        if array.ndim == 0:
            raise self._shape_fault(array)
        own = self._own(array.shape[1:], array)
        sizes = [request.batch_size for request in requests]
        rows = sum(sizes)
        if array.shape[0] != rows:
            raise self.fault(f"expected batch size of {rows}, got {array.shape[0]} (shape {list(array.shape)})")
        return self._cut(array, sizes, own)

    def _cut(self, array: Array, sizes: Sequence[int], own: Shape) -> list[Tensor]:
        """Cut rows; `own` is the shape of one."""
        name, wire = self.name, self._wire
        if len(sizes) == 1:
            shape = (sizes[0], *own)
            return [Tensor(name, wire, shape, array.reshape(shape))]
        if not self._itemsize:
            array = array.reshape((len(array), *own))
            ends = itertools.accumulate(sizes)
            return [
                Tensor(name, wire, (size, *own), array[end - size : end]) for size, end in zip(sizes, ends, strict=True)
            ]
        # Slices of bytes rather than of the array: cheaper to make, and the doors write them as they are.
        width = self._itemsize * math.prod(own)
        view = _bytes_of(array)
        row = (1, *own)
        if width and len(sizes) == len(array):  # one row each: the common case
            return [Tensor(name, wire, row, view[at : at + width]) for at in range(0, len(view), width)]
        tensors: list[Tensor] = []
        at = 0
        for size in sizes:
            end = at + size * width
            tensors.append(Tensor(name, wire, (size, *own), view[at:end]))
            at = end
        return tensors

    def _split_as_input(self, array: Array, requests: Sequence[InferRequest], source: SourceInput) -> list[Tensor]:
        """BATCH_SCATTER_WITH_INPUT_SHAPE: where the output's dims are variable, the request's part has the input's size there."""
        dims = (-1, *self._dims) if self._batched else self._dims
        shapes = [
            tuple(shape[index] if size == -1 else size for index, size in enumerate(dims))
            for shape in source.shapes(requests)
        ]
        counts = [math.prod(shape) for shape in shapes]
        if array.size != sum(counts):
            raise self.fault(
                f"expected {sum(counts)} elements, as many as the shapes of input '{source.name}' say, got {array.size} "
                f"(shape {list(array.shape)})"
            )
        flat = array.reshape(-1)
        tensors: list[Tensor] = []
        at = 0
        for shape, count in zip(shapes, counts, strict=True):
            if self._reshape is not None:
                shape = (shape[0], *self._reshape(shape[1:])) if self._batched else self._reshape(shape)
            tensors.append(Tensor(self.name, self._wire, shape, flat[at : at + count].reshape(shape)))
            at += count
        return tensors

    def _own(self, shape: Shape, array: Array) -> Shape:
        """Check a shape without its batch dimension against the configuration, and return it with the reshape undone."""
        dims = self._dims
        if shape != dims and (
            len(shape) != len(dims) or any(want not in (-1, got) for want, got in zip(dims, shape, strict=True))
        ):
            raise self._shape_fault(array)
        return shape if self._reshape is None else self._reshape(shape)

    def _bytes_elements(self, array: Array) -> Array:
        """Strings of fixed width are accepted as BYTES; every other difference of types is the model's fault."""
        if not self._itemsize and array.dtype.kind == "U":
            return np.char.encode(array, "utf-8").astype(object)
        if not self._itemsize and array.dtype.kind == "S":
            return array.astype(object)
        raise self.fault(f"expected datatype {self._wire} ({self._dtype}), got {array.dtype}")

    def _shape_fault(self, array: Array) -> ServingError:
        expected = [-1, *self._dims] if self._batched else list(self._dims)
        return self.fault(f"expected shape {expected}, got {list(array.shape)}")

    def fault(self, what: str) -> ServingError:
        """The error for an output that is not what the configuration says."""
        return internal(f"unexpected output '{self.name}' of model '{self._model}': {what}")


def _bytes_of(array: Array) -> memoryview:
    """The array's bytes in C order; a copy only when it is not C-ordered."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

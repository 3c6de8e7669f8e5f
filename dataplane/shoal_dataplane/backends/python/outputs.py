"""Check what a Python model returns against its configuration.

Triton sends on whatever a model returns. A client then reads FP32 as INT32, or a batch of three rows as its own one row, so here each
output must have the configured datatype and shape; what a request did not ask for is dropped, as Triton does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal_dataplane.backends.python.pb_utils.errors import to_serving_error
from shoal_dataplane.backends.python.pb_utils.request import InferenceResponse
from shoal_dataplane.backends.python.pb_utils.tensor import Tensor, unwrap
from shoal_dataplane.core.errors import ServingError, internal
from shoal_dataplane.core.model_spec import ModelSpec, TensorSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse, failure
from shoal_dataplane.core.tensors import Tensor as CoreTensor


class OutputChecker:
    """Turns a model's responses into the server's, for one instance."""

    def __init__(self, spec: ModelSpec, instance_name: str) -> None:
        self._spec = spec
        self._instance = instance_name
        self._batched = spec.max_batch_size > 0
        self._good: dict[str, tuple[int, ...]] = {}
        """By output, the last shape that was as configured: the next one is usually the same."""

    def responses(self, requests: Sequence[InferRequest], returned: Any) -> list[InferResponse]:
        """Return a response for each request; one that is wrong becomes an error of its request.

        Raises ServingError(INTERNAL) when `returned` is no list of one response for each request.
        """
        if not isinstance(returned, list):
            raise self.error(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(requests):
            raise self.error(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        return [self._response(request, response) for request, response in zip(requests, returned, strict=True)]

    def error(self, message: str) -> ServingError:
        """The error of a batch or a request, in Triton's words."""
        return internal(f"Failed to process the request(s) for model '{self._instance}', message: {message}")

    def _response(self, request: InferRequest, response: Any) -> InferResponse:
        if not isinstance(response, InferenceResponse):
            return failure(
                self.error(
                    "Expected an 'InferenceResponse' object in the execute function return list, "
                    f"found type '{type(response)}'."
                )
            )
        if response._error is not None:
            return failure(to_serving_error(response._error))
        tensors = response._outputs
        outputs: list[CoreTensor] = []
        wanted = request.outputs
        for name, spec in self._spec.outputs.items():
            if wanted is not None and name not in wanted:
                continue
            found: Tensor | None = None
            for tensor in tensors:
                if tensor._name == name:
                    if found is not None:
                        return failure(self.error(f"the response has output '{name}' twice"))
                    found = tensor
            if found is None:
                if wanted is None and all(tensor._name in self._spec.outputs for tensor in tensors):
                    continue  # an output that nobody named may be left out, as in Triton: models have optional outputs
                got = ", ".join(f"'{tensor.name()}'" for tensor in tensors[:16]) or "none"
                return failure(self.error(f"the response lacks output '{name}'; its outputs are: {got}"))
            try:
                outputs.append(self._output(found, spec, request))
            except ServingError as problem:
                return failure(problem)
        return InferResponse(outputs, None, response._parameters or None)

    def _output(self, tensor: Tensor, spec: TensorSpec, request: InferRequest) -> CoreTensor:
        if tensor._datatype != spec.datatype.wire:
            if tensor._datatype == "UINT16" and spec.datatype.wire == "BF16":
                tensor._retyped("BF16")  # numpy has no BF16; its bits in a uint16 array can mean nothing else here
            else:
                raise self.error(
                    f"output '{spec.name}' has data-type '{tensor._datatype}', "
                    f"but the configuration of model '{self._spec.name}' expects '{spec.datatype.wire}'"
                )
        shape = tensor._shape
        if shape != self._good.get(spec.name) or (self._batched and shape[0] != request.batch_size):
            self._check_shape(spec, shape, request)
            self._good[spec.name] = shape
        try:
            core = unwrap(tensor)
        except UnicodeEncodeError as problem:
            raise self.error(f"output '{spec.name}' holds a string that is no UTF-8: {problem}") from None
        if spec.reshape is not None:
            skip = int(self._batched)
            core = reshaped(core, (*shape[:skip], *map_shape(shape[skip:], spec.reshape, spec.dims)))
        return core

    def _check_shape(self, spec: TensorSpec, shape: tuple[int, ...], request: InferRequest) -> None:
        dims = spec.dims if spec.reshape is None else spec.reshape
        own = shape[1:] if self._batched else shape
        if (self._batched and shape[:1] != (request.batch_size,)) or not _matches(own, dims):
            raise self._wrong_shape(spec, dims, shape, request)

    def _wrong_shape(
        self, spec: TensorSpec, dims: tuple[int, ...], shape: tuple[int, ...], request: InferRequest
    ) -> ServingError:
        expected = [request.batch_size, *dims] if self._batched else [*dims]
        note = f" (the request's batch size is {request.batch_size})" if self._batched else ""
        return self.error(
            f"unexpected shape for output '{spec.name}' for model '{self._spec.name}'. "
            f"Expected [{_join(expected)}], got [{_join(shape)}]{note}"
        )


def _join(shape: Sequence[int]) -> str:
    return ",".join(str(size) for size in shape)


def _matches(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(want in (-1, got) for want, got in zip(dims, shape, strict=True))


def map_shape(shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """Return `target` with its variable dimensions set to those of `shape`, in order: `shape` is an instance of `source`, and
    `source` and `target` are the two sides of a reshape, which have the same variable dimensions in the same order (triton.md B2)."""
    variable = iter([got for got, want in zip(shape, source, strict=True) if want == -1])
    return tuple(next(variable) if size == -1 else size for size in target)


def reshaped(tensor: CoreTensor, shape: tuple[int, ...]) -> CoreTensor:
    """The same elements under another shape."""
    data = tensor.data if isinstance(tensor.data, (bytes, bytearray, memoryview)) else tensor.data.reshape(shape)
    return CoreTensor(tensor.name, tensor.datatype, shape, data)

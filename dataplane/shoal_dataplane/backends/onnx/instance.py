"""Running batches in an ONNX Runtime session."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np
import onnxruntime as ort

from shoal_dataplane.backends.arrays.requested import requested_outputs
from shoal_dataplane.backends.arrays.signature import ModelTensor
from shoal_dataplane.backends.arrays.stacking import Stacker
from shoal_dataplane.backends.base import Execution, ModelContext
from shoal_dataplane.backends.onnx.session import error_text
from shoal_dataplane.core.errors import ServingError, internal, invalid
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse, failure

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[str], dict[str, Array]], list[Array]]

_ONNX_BFLOAT16 = 16  # TensorProto.DataType.BFLOAT16


class OnnxInstance:
    """One session. Arrays go in and out without a copy, but for BF16 outputs and strings.

    Strings: ONNX Runtime's Python interface takes str, so BYTES elements must be UTF-8; a request with others fails alone.
    """

    def __init__(
        self,
        context: ModelContext,
        session: ort.InferenceSession,
        inputs: Sequence[ModelTensor],
        outputs: Sequence[ModelTensor],
        options: ort.RunOptions | None,
    ) -> None:
        spec = context.spec
        self._name = context.name
        self._stacker = Stacker(spec, context.config)
        self._outputs = tuple(spec.outputs)
        types = {t.name: t.datatype for t in (*inputs, *outputs)}
        self._text_inputs = tuple(name for name in spec.inputs if spec.inputs[name].datatype.wire == "BYTES")
        self._text_outputs = frozenset(name for name in spec.outputs if spec.outputs[name].datatype.wire == "BYTES")
        # A model's scalar is configured as dims [1]; only a model that does not batch can have one.
        self._scalar_inputs = tuple(t.name for t in inputs if not t.shape)
        self._scalar_outputs = {t.name: spec.outputs[t.name] for t in outputs if not t.shape and t.name in spec.outputs}
        self._run: Run | None = (
            _Bfloat16Run(session, types, options) if "BF16" in types.values() else _NumpyRun(session, options)
        )

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Run the batch; only outputs that some request asks for are computed."""
        if self._text_inputs:
            return self._execute_text(requests)
        return self._execute(requests)

    def close(self) -> None:
        """Let go of the session; its memory is freed with it."""
        self._run = None

    def _execute(self, requests: Sequence[InferRequest]) -> Execution:
        run = self._run
        if run is None:
            raise internal(f"instance of model '{self._name}' is closed")
        started = perf_counter_ns()
        feeds = self._stacker.gather(requests)
        for name in self._text_inputs:
            if name in feeds:
                feeds[name] = _decode(feeds[name])
        for name in self._scalar_inputs:
            if name in feeds:
                feeds[name] = feeds[name].reshape(())
        wanted = requested_outputs(requests, self._outputs)
        ready = perf_counter_ns()
        try:
            results = run(wanted, feeds)
        except Exception as error:  # ONNX Runtime's exceptions share no base
            raise internal(error_text(error)) from error
        done = perf_counter_ns()
        outputs = dict(zip(wanted, results, strict=True))
        for name in self._text_outputs:
            if name in outputs:
                outputs[name] = _encode(outputs[name])
        for name, spec in self._scalar_outputs.items():
            if name in outputs:
                shape = spec.dims if spec.reshape is None else spec.reshape
                outputs[name] = np.asarray(outputs[name]).reshape(shape)
        responses = self._stacker.scatter(outputs, requests)
        return Execution(responses, ready - started, done - ready, perf_counter_ns() - done)

    def _execute_text(self, requests: Sequence[InferRequest]) -> Execution:
        try:
            return self._execute(requests)
        except UnicodeDecodeError:
            failures = {index: error for index, request in enumerate(requests) if (error := self._text_error(request))}
        good = [request for index, request in enumerate(requests) if index not in failures]
        execution = self._execute(good) if good else Execution((), 0, 0, 0)
        answers = iter(execution.responses)
        responses: list[InferResponse] = [
            failure(failures[index]) if index in failures else next(answers) for index in range(len(requests))
        ]
        return execution._replace(responses=responses)

    def _text_error(self, request: InferRequest) -> ServingError | None:
        for name in self._text_inputs:
            tensor = request.inputs.get(name)
            if tensor is None:
                continue
            for index, element in enumerate(tensor.array().ravel()):
                try:
                    _text(element)
                except UnicodeDecodeError as error:
                    return invalid(
                        f"element {index} of input '{name}' for model '{self._name}' is not valid UTF-8: {error.reason} at byte "
                        f"{error.start}"
                    )
        return None


class _NumpyRun:
    """Numpy arrays in, numpy arrays out; both ways by reference."""

    def __init__(self, session: ort.InferenceSession, options: ort.RunOptions | None) -> None:
        self._session = session
        self._options = options

    def __call__(self, wanted: Sequence[str], feeds: dict[str, Array]) -> list[Array]:
        results: list[Array] = self._session.run(wanted, feeds, self._options)
        return results


class _Bfloat16Run:
    """For models with a BF16 input or output, which numpy has no type for: by OrtValue, the bits in uint16 arrays."""

    def __init__(self, session: ort.InferenceSession, types: dict[str, str], options: ort.RunOptions | None) -> None:
        self._session = session
        self._types = types
        self._options = options

    def __call__(self, wanted: Sequence[str], feeds: dict[str, Array]) -> list[Array]:
        values = {name: self._value(name, array) for name, array in feeds.items()}
        results = self._session.run_with_ort_values(wanted, values, self._options)
        return [_bits(value) if value.data_type() == "tensor(bfloat16)" else value.numpy() for value in results]

    def _value(self, name: str, array: Array) -> ort.OrtValue:
        contiguous = np.ascontiguousarray(array)
        if self._types.get(name) == "BF16":
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(contiguous, _ONNX_BFLOAT16)
        return ort.OrtValue.ortvalue_from_numpy(contiguous)


def _bits(value: ort.OrtValue) -> Array:
    """Copy the bit patterns out of a BF16 value."""
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, np.uint16)
    return np.array((ctypes.c_uint16 * count).from_address(value.data_ptr()), np.uint16).reshape(shape)


def _text(element: bytes | str) -> str:
    return element if isinstance(element, str) else element.decode()


def _decode(array: Array) -> Array:
    return _objects([_text(element) for element in array.ravel()], array.shape)


def _encode(array: Array) -> Array:
    return _objects([element.encode() for element in array.ravel()], array.shape)


def _objects(elements: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)

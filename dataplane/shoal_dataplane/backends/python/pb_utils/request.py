"""InferenceRequest and InferenceResponse as Python models know them."""

from __future__ import annotations

import asyncio
import enum
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shoal_dataplane.backends.python.pb_utils.errors import (
    TritonError,
    TritonModelException,
    from_serving_error,
)
from shoal_dataplane.backends.python.pb_utils.server import server
from shoal_dataplane.backends.python.pb_utils.tensor import Tensor, unwrap, wrap
from shoal_dataplane.core.parameter import Parameter
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

_DECOUPLED = (
    "decoupled models and response senders are not supported yet: return one InferenceResponse for each request"
)


class MemoryType(enum.IntEnum):
    """Where a model would like its outputs; accepted, and always the host's memory here."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU


class PreferredMemory:
    """A wish for where outputs are placed, for InferenceRequest."""

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = MemoryType(preferred_memory_type)
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """The trace that a request belongs to."""

    def __init__(self, context: str | None = None) -> None:
        self._context = context

    def get_context(self) -> str | None:
        """JSON with the W3C traceparent, such as {"traceparent":"00-..."}; None without one."""
        return self._context


def _check_parameters(parameters: Any) -> dict[str, Parameter]:
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, float, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise TritonModelException(f"the value of parameter '{key}' is beyond 64 bits: {value}")
    return dict(parameters)


def to_json(parameters: Mapping[str, Parameter]) -> str:
    """Parameters as JSON text, without blanks."""
    return json.dumps(dict(parameters), separators=(",", ":"), ensure_ascii=False) if parameters else "{}"


def _trace_metadata(trace: InferenceTrace) -> dict[str, str]:
    context = json.loads(trace.get_context() or "{}")
    return {"traceparent": str(context["traceparent"])} if "traceparent" in context else {}


class InferenceResponse:
    """The answer to one request: output tensors, or an error."""

    __slots__ = ("_error", "_outputs", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        """With an error, outputs are ignored. Parameters are bool, int, float or str, by name."""
        outputs = list(output_tensors)
        for tensor in outputs:
            if type(tensor) is not Tensor:
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise TypeError(f"output_tensors must be Tensor objects, got {type(tensor).__name__}")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a TritonError, got {type(error).__name__}")
        self._outputs = outputs
        self._error = error
        self._parameters = _check_parameters(parameters) if parameters else {}

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """JSON text."""
        return to_json(self._parameters)


class InferenceRequest:
    """A request: one that the server gives to `execute`, or one that a model makes to ask another model (BLS).

    Business logic scripting: `exec` waits for the answer, `await async_exec()` lets others run. A model that asks itself and has one
    instance waits for ever, for the instance that would answer is the one that waits; so do two models that ask each other. Give
    such a model more instances than requests that it can have under way.
    """

    __slots__ = ("_core", "_inputs", "_model_version", "_outputs")

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Iterable[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        """A request to `model_name`, to its newest version when `model_version` is -1; `timeout` is microseconds, 0 the model's own."""
        if not isinstance(model_name, str) or not model_name:
            raise TritonModelException("an InferenceRequest needs a model_name")
        if isinstance(correlation_id, bool) or not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        names = list(requested_output_names)
        about = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        if any(not name for name in names):
            raise TritonModelException(f"Requested output name {about}")
        tensors = list(inputs)
        for tensor in tensors:
            if tensor is None:
                raise TritonModelException(f"Input tensor {about}")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"inputs must be Tensor objects, got {type(tensor).__name__}")
        core = InferRequest(
            model_name,
            "" if model_version == -1 else str(int(model_version)),
            {},
            _Unanswered(),
            id=str(request_id),
            outputs=tuple(dict.fromkeys(names)) or None,
            parameters=_check_parameters(parameters),
        )
        core.correlation_id = correlation_id
        core.timeout_us = int(timeout)
        if trace is not None:
            core.metadata = _trace_metadata(trace)
        self._core = core
        self._inputs: list[Tensor] | None = tensors
        self._outputs: list[str] = names
        self._model_version = int(model_version)
        self.set_flags(flags)

    # -- what the model reads

    def inputs(self) -> list[Tensor]:
        """The tensors that the request brought; an optional input that it left out is not there."""
        inputs = self._inputs
        if inputs is None:
            inputs = self._inputs = [wrap(tensor) for tensor in self._core.inputs.values()]
        return inputs

    def request_id(self) -> str:
        return self._core.id

    def correlation_id(self) -> int | str:
        return self._core.correlation_id

    def requested_output_names(self) -> list[str]:
        """The outputs that the request wants: all of the model's when it names none."""
        return list(self._outputs)

    def model_name(self) -> str:
        return self._core.model_name

    def model_version(self) -> int:
        return self._model_version

    def parameters(self) -> str:
        """The caller's own parameters as JSON text."""
        return to_json(self._core.parameters)

    def flags(self) -> int:
        """TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END, or'ed."""
        start = TRITONSERVER_REQUEST_FLAG_SEQUENCE_START if self._core.sequence_start else 0
        return start | (TRITONSERVER_REQUEST_FLAG_SEQUENCE_END if self._core.sequence_end else 0)

    def set_flags(self, flags: int) -> None:
        self._core.sequence_start = bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
        self._core.sequence_end = bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)

    def timeout(self) -> int:
        """Microseconds that the request may wait in the queue, 0 for the model's default."""
        return self._core.timeout_us

    def is_cancelled(self) -> bool:
        """Has the caller gone? Turns True while `execute` runs."""
        return self._core.cancelled

    def trace(self) -> InferenceTrace:
        traceparent = self._core.metadata.get("traceparent")
        return InferenceTrace(to_json({"traceparent": traceparent}) if traceparent else None)

    def get_response_sender(self) -> Any:
        """Raises TritonModelException: decoupled models are not supported yet."""
        raise TritonModelException(_DECOUPLED)

    def set_release_flags(self, flags: int) -> None:
        """TRITONSERVER_REQUEST_RELEASE_ALL changes nothing; raises TritonModelException for a reschedule."""
        if flags != TRITONSERVER_REQUEST_RELEASE_ALL:
            raise TritonModelException("rescheduling a request is not supported yet")

    # -- business logic scripting

    def exec(self, decoupled: bool = False) -> InferenceResponse:
        """Ask the model and wait for its answer; a failure is the response's error.

        Raises TritonModelException when waiting here would stop the server: in a model that runs inline on its loop.
        """
        self._refuse_decoupled(decoupled)
        refusal = server().refuse_blocking()
        if refusal:
            raise TritonModelException(refusal)
        answered = threading.Event()
        answers: list[InferResponse] = []

        def answer(response: InferResponse) -> None:
            answers.append(response)
            answered.set()

        self._send(answer)
        answered.wait()
        return from_core_response(answers[0])

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[InferenceResponse]:
        """Ask the model; await the answer. Needs a running event loop. Cancelling the future cancels the request."""
        self._refuse_decoupled(decoupled)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[InferenceResponse] = loop.create_future()

        def settle(response: InferResponse) -> None:
            if not future.done():
                future.set_result(from_core_response(response))

        def answer(response: InferResponse) -> None:
            try:
                loop.call_soon_threadsafe(settle, response)
            except RuntimeError:
                """The event loop has ended; nobody waits."""

        cancel = self._send(answer)
        future.add_done_callback(lambda future: cancel() if future.cancelled() else None)
        return future

    @staticmethod
    def _refuse_decoupled(decoupled: bool) -> None:
        if decoupled:
            raise TritonModelException("decoupled=True is not supported yet")

    def _send(self, answer: Callable[[InferResponse], None]) -> Callable[[], None]:
        core = self._core
        core.inputs = {tensor.name(): unwrap(tensor) for tensor in self.inputs()}
        return server().infer(core, answer)


class _Unanswered:
    """The handle of a request that a model has made: the server gives it one of its own."""

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """Never called."""


def wrap_request(core: InferRequest, outputs: list[str], version: int) -> InferenceRequest:
    """A request as `execute` sees it; `outputs` are all of the model's."""
    request = InferenceRequest.__new__(InferenceRequest)
    request._core = core
    request._inputs = None
    request._outputs = outputs if core.outputs is None else list(core.outputs)
    request._model_version = version
    return request


def from_core_response(response: InferResponse) -> InferenceResponse:
    """The answer of another model as a model sees it."""
    if response.error is not None:
        return InferenceResponse([], from_serving_error(response.error))
    return InferenceResponse([wrap(tensor) for tensor in response.outputs], None, response.parameters)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input of that name, None when the request did not bring it."""
    for tensor in inference_request.inputs():
        if tensor._name == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output of that name, None when the response has none."""
    for tensor in inference_response.output_tensors():
        if tensor._name == name:
            return tensor
    return None

"""What a frame's head says: requests, answers and the rest as MessagePack, typed, decoded with every value checked.

Tensors are not in the head: they follow one another in the payload, each starting at a multiple of 8 bytes, in the order of the
requests and of their tensors. Requests whose headers are the same share one description of it, and so do responses: a batch of 64
alike costs one description, 64 small numbers, and one join of 64 buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from shoal_dataplane.backends.base import Execution
from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import Code, Reason, ServingError
from shoal_dataplane.core.parameter import Parameter
from shoal_dataplane.core.request import InferRequest, ReplyHandle, Signature
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Buffer, Tensor
from shoal_dataplane.execution.channel import WireError

PADDING = [bytes(-size & 7) for size in range(8)]
MAX_CACHED_HEADERS = 256
SMALL = 4096
TRACE_KEY = "traceparent"


class TensorHead(msgspec.Struct, array_like=True, gc=False):
    """One tensor: `size` is bytes of its wire encoding."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int


class RequestHead(msgspec.Struct, array_like=True):
    """All of a request that requests with the same header share."""

    batch_size: int
    inputs: list[TensorHead]
    outputs: tuple[str, ...] | None
    parameters: dict[str, bool | int | float | str]
    correlation_id: int | str
    sequence_start: bool
    sequence_end: bool
    timeout_us: int
    priority: int


class ExecuteHead(msgspec.Struct, array_like=True):
    """A batch. `which` is each request's index in `heads`; `ids` and `traces` are by the request's place in the batch."""

    sequence: int
    heads: list[RequestHead]
    which: list[int]
    ids: dict[int, str]
    traces: dict[int, str]


class Failure(msgspec.Struct, array_like=True, gc=False):
    """A ServingError."""

    code: int
    message: str
    reason: str


class AnswerHead(msgspec.Struct, array_like=True):
    """The answers to a batch. `which` is each response's index in `heads`, -1 for one that is in `failures`."""

    sequence: int
    error: Failure | None
    heads: list[list[TensorHead]]
    which: list[int]
    failures: dict[int, Failure]
    parameters: dict[int, dict[str, bool | int | float | str]]
    input_ns: int
    infer_ns: int
    output_ns: int


_encode = msgspec.msgpack.Encoder().encode
_decode_execute = msgspec.msgpack.Decoder(ExecuteHead).decode
_decode_answer = msgspec.msgpack.Decoder(AnswerHead).decode


def to_failure(error: ServingError) -> Failure:
    """Make an error fit for the wire."""
    return Failure(int(error.code), utf8(error.message), str(error.reason))


def from_failure(failure: Failure) -> ServingError:
    """The error that the peer meant. Raises WireError for a code or reason that there is not."""
    try:
        return ServingError(Code(failure.code), failure.message, Reason(failure.reason))
    except ValueError as error:
        raise WireError(str(error)) from None


class RequestEncoder:
    """Encodes the requests of one model. Remembers the description of headers that come again, bounded. One thread."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Signature, RequestHead]] = {}

    def encode(self, sequence: int, requests: Sequence[InferRequest]) -> tuple[bytes, list[Buffer], int]:
        """Return the head, the parts of the payload, and the payload's size in bytes."""
        heads: list[RequestHead] = []
        which: list[int] = []
        ids: dict[int, str] = {}
        traces: dict[int, str] = {}
        parts: list[Buffer] = []
        size = 0
        last: Signature | None = None
        head: RequestHead | None = None
        for request in requests:
            buffers: list[Buffer] = []
            for tensor in request.inputs.values():
                data = tensor.data
                if type(data) is not memoryview:
                    data = tensor.buffer()
                buffers.append(data)
                length = len(data)
                parts.append(data)
                size += length
                if length & 7:
                    parts.append(PADDING[length & 7])
                    size += -length & 7
            signature = request.signature
            if signature is None or signature is not last:
                head = self._head(request, buffers)
                heads.append(head)
                last = signature
            if head is None or not fits(head, buffers):  # BYTES, whose length no header tells
                head = describe(request, buffers)
                heads.append(head)
                last = None
            if request.id:
                ids[len(which)] = request.id
            if request.metadata and TRACE_KEY in request.metadata:
                traces[len(which)] = request.metadata[TRACE_KEY]
            which.append(len(heads) - 1)
        batch = ExecuteHead(sequence, heads, which, ids, traces)
        try:
            return _encode(batch), parts, size
        except UnicodeEncodeError:
            return _encode(_without_surrogates(batch)), parts, size

    def _head(self, request: InferRequest, buffers: list[Buffer]) -> RequestHead:
        signature = request.signature
        if signature is None:
            return describe(request, buffers)
        known = self._known.get(id(signature))
        if known is not None and known[0] is signature:
            return known[1]
        head = describe(request, buffers)
        if len(self._known) >= MAX_CACHED_HEADERS:
            self._known.clear()
        self._known[id(signature)] = (signature, head)
        return head


def _without_surrogates(batch: ExecuteHead) -> ExecuteHead:
    """Lone surrogates, which JSON can bring and UTF-8 cannot carry, become question marks. One such request must not fail the others."""

    for head in batch.heads:
        head.parameters = {
            utf8(key): utf8(value) if isinstance(value, str) else value for key, value in head.parameters.items()
        }
        if isinstance(head.correlation_id, str):
            head.correlation_id = utf8(head.correlation_id)
    batch.ids = {position: utf8(identifier) for position, identifier in batch.ids.items()}
    batch.traces = {position: utf8(trace) for position, trace in batch.traces.items()}
    return batch


def utf8(text: str) -> str:
    """The text with question marks for what UTF-8 cannot carry."""
    return text.encode(errors="replace").decode()


def fits(head: RequestHead, buffers: list[Buffer]) -> bool:
    """Has each buffer the size that `head` says?"""
    return [len(data) for data in buffers] == [described.size for described in head.inputs]


def describe(request: InferRequest, buffers: list[Buffer]) -> RequestHead:
    """The head of a request whose inputs' wire encodings are `buffers`."""
    return RequestHead(
        request.batch_size,
        [
            TensorHead(t.name, t.datatype, t.shape, len(data))
            for t, data in zip(request.inputs.values(), buffers, strict=True)
        ],
        request.outputs,
        _wire_parameters(request.parameters) if request.parameters else {},
        request.correlation_id,
        request.sequence_start,
        request.sequence_end,
        request.timeout_us,
        request.priority,
    )


def _wire_parameters(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Integers beyond 64 bits become floats, as JSON's do in Triton."""
    return {
        name: float(value) if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64 else value
        for name, value in parameters.items()
    }


def decode_requests(
    head: bytes, payload: memoryview, name: str, version: str, handle: ReplyHandle
) -> tuple[int, list[InferRequest]]:
    """Return the batch's sequence number and its requests, whose tensors are views of `payload`.

    Raises WireError for a head that is malformed or a payload that is not as long as it says.
    """
    try:
        batch = _decode_execute(head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"not a batch: {error}") from None
    for description in batch.heads:
        check_tensors(description.inputs)
    requests: list[InferRequest] = []
    at = 0
    for position, index in enumerate(batch.which):
        if not 0 <= index < len(batch.heads):
            raise WireError(f"request {position} has description {index} of {len(batch.heads)}")
        request_head = batch.heads[index]
        inputs: dict[str, Tensor] = {}
        for tensor in request_head.inputs:
            end = at + tensor.size
            inputs[tensor.name] = Tensor(tensor.name, tensor.datatype, tensor.shape, payload[at:end])
            at = end + (-end & 7)
        request = InferRequest(
            name, version, inputs, handle, outputs=request_head.outputs, parameters=request_head.parameters
        )
        request.batch_size = request_head.batch_size
        if request_head.correlation_id or request_head.timeout_us or request_head.priority:
            request.correlation_id = request_head.correlation_id
            request.timeout_us = request_head.timeout_us
            request.priority = request_head.priority
        request.sequence_start = request_head.sequence_start
        request.sequence_end = request_head.sequence_end
        requests.append(request)
    if at != len(payload):
        raise WireError(f"a batch's tensors have {at} bytes, its payload {len(payload)}")
    for position, identifier in batch.ids.items():
        if not 0 <= position < len(requests):
            raise WireError(f"an id for request {position} of {len(requests)}")
        requests[position].id = identifier
    for position, trace in batch.traces.items():
        if not 0 <= position < len(requests):
            raise WireError(f"a trace for request {position} of {len(requests)}")
        requests[position].metadata = {TRACE_KEY: trace}
    return batch.sequence, requests


def encode_failure(sequence: int, error: ServingError) -> bytes:
    """An answer that fails the whole batch."""
    return _encode(AnswerHead(sequence, to_failure(error), [], [], {}, {}, 0, 0, 0))


def encode_answer(sequence: int, execution: Execution) -> tuple[bytes, list[Buffer], int]:
    """Return the head, the parts of the payload and the payload's size in bytes."""
    heads: list[list[TensorHead]] = []
    which: list[int] = []
    failures: dict[int, Failure] = {}
    parameters: dict[int, dict[str, Parameter]] = {}
    parts: list[Buffer] = []
    size = 0
    last: list[TensorHead] = []
    for position, response in enumerate(execution.responses):
        if response.error is not None:
            failures[position] = to_failure(response.error)
            which.append(-1)
            continue
        if response.parameters:
            parameters[position] = dict(response.parameters)
        outputs = response.outputs
        same = bool(heads) and len(outputs) == len(last)
        buffers = [_wire_form(tensor) for tensor in outputs]
        if same:
            for tensor, data, described in zip(outputs, buffers, last, strict=True):
                if (
                    tensor.shape != described.shape
                    or len(data) != described.size
                    or tensor.name != described.name
                    or tensor.datatype != described.datatype
                ):
                    same = False
                    break
        if not same:
            last = [
                TensorHead(tensor.name, tensor.datatype, tensor.shape, len(data))
                for tensor, data in zip(outputs, buffers, strict=True)
            ]
            heads.append(last)
        which.append(len(heads) - 1)
        for data in buffers:
            length = len(data)
            parts.append(data)
            size += length
            if length & 7:
                parts.append(PADDING[length & 7])
                size += -length & 7
    answer = AnswerHead(
        sequence, None, heads, which, failures, parameters, execution.input_ns, execution.infer_ns, execution.output_ns
    )
    return _encode(answer), parts, size


def _wire_form(tensor: Tensor) -> Buffer:
    data = tensor.data
    if isinstance(data, np.ndarray) and data.nbytes <= SMALL and tensor.datatype != "BYTES":
        return data.tobytes()  # a copy of so little costs less than a view
    return tensor.buffer()


def decode_answer(head: bytes, payload: memoryview, sequence: int, count: int) -> Execution | ServingError:
    """Return the answers to batch `sequence` of `count` requests, their tensors views of `payload`.

    Raises WireError for whatever is not a whole and consistent answer to that batch.
    """
    try:
        answer = _decode_answer(head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"not an answer: {error}") from None
    if answer.sequence != sequence:
        raise WireError(f"an answer to batch {answer.sequence}, expected {sequence}")
    if answer.error is not None:
        return from_failure(answer.error)
    if len(answer.which) != count:
        raise WireError(f"{len(answer.which)} answers to {count} requests")
    for described in answer.heads:
        check_tensors(described)
    heads = [[(t.name, t.datatype, t.shape, t.size, t.size + (-t.size & 7)) for t in head] for head in answer.heads]
    responses: list[InferResponse] = []
    at = 0
    for position, index in enumerate(answer.which):
        if index < 0:
            failed = answer.failures.get(position)
            if failed is None:
                raise WireError(f"answer {position} is neither a response nor an error")
            responses.append(InferResponse([], from_failure(failed)))
            continue
        if index >= len(heads):
            raise WireError(f"answer {position} has description {index} of {len(heads)}")
        outputs: list[Tensor] = []
        for name, datatype, shape, size, step in heads[index]:
            outputs.append(Tensor(name, datatype, shape, payload[at : at + size]))
            at += step
        responses.append(InferResponse(outputs))
    if at != len(payload):
        raise WireError(f"the answers' tensors have {at} bytes, the payload {len(payload)}")
    for position, values in answer.parameters.items():
        if not 0 <= position < count:
            raise WireError(f"parameters for answer {position} of {count}")
        responses[position].parameters = values
    return Execution(responses, answer.input_ns, answer.infer_ns, answer.output_ns)


def check_tensors(tensors: Sequence[TensorHead]) -> None:
    """Raise WireError unless each tensor has a known datatype, a shape, and the size that follows from them."""
    for tensor in tensors:
        datatype = BY_WIRE.get(tensor.datatype)
        if datatype is None:
            raise WireError(f"tensor '{tensor.name}' has the unknown datatype '{tensor.datatype}'")
        shape = tensor.shape
        if tensor.size < 0 or any(dimension < 0 for dimension in shape):
            raise WireError(f"tensor '{tensor.name}' has the shape {list(shape)} and {tensor.size} bytes")
        if datatype.itemsize and tensor.size != datatype.itemsize * math.prod(shape):
            raise WireError(
                f"tensor '{tensor.name}' of {tensor.datatype} and shape {list(shape)} has {tensor.size} bytes"
            )

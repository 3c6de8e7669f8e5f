"""The heads of every frame but batches and answers (execution.wire): loading, logs, calls of a model to its server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import InstanceSpec, ModelContext
from shoal_dataplane.core.model_spec import compile_spec
from shoal_dataplane.core.request import InferRequest, ReplyHandle
from shoal_dataplane.core.tensors import Buffer, Tensor
from shoal_dataplane.execution.channel import WireError
from shoal_dataplane.execution.wire import PADDING, TRACE_KEY, Failure, RequestHead, check_tensors, describe


class LoadHead(msgspec.Struct, array_like=True):
    """What a worker is to load: a ModelContext and an InstanceSpec. `log_level` is the server's."""

    backend: str
    name: str
    version: int
    model_dir: str
    version_dir: str
    config: bytes
    backend_options: dict[str, str]
    instance_name: str
    instance_kind: str
    device_id: int
    log_level: int


class LoadedHead(msgspec.Struct, array_like=True):
    """The model is loaded. `checks_readiness`: it has an is_ready of its own."""

    checks_readiness: bool


class CancelHead(msgspec.Struct, array_like=True):
    """The callers of these requests of batch `sequence` are gone."""

    sequence: int
    positions: list[int]


class LogHead(msgspec.Struct, array_like=True):
    """A line for the server's log; `level` is one of the logging module's."""

    level: int
    message: str


class InferHead(msgspec.Struct, array_like=True):
    """A request of a model to another. The answer is an AnswerHead whose sequence is `number`."""

    number: int
    model_name: str
    model_version: str
    id: str
    trace: str
    request: RequestHead


class NumberHead(msgspec.Struct, array_like=True):
    """The number of a request of a model (INFER_CANCEL)."""

    number: int


class ReadyHead(msgspec.Struct, array_like=True):
    """What a model's is_ready said; `problem` is what it raised."""

    ready: bool
    problem: str


class LoadModel(msgspec.Struct, array_like=True, tag=True):
    name: str
    texts: dict[str, str]
    files: dict[str, bytes]


class UnloadModel(msgspec.Struct, array_like=True, tag=True):
    name: str
    unload_dependents: bool


class ModelReady(msgspec.Struct, array_like=True, tag=True):
    name: str
    version: str


class MakeFamily(msgspec.Struct, array_like=True, tag=True):
    name: str
    description: str
    kind: str


class MakeMetric(msgspec.Struct, array_like=True, tag=True):
    family: int
    labels: dict[str, str]
    buckets: list[float] | None


class ChangeMetric(msgspec.Struct, array_like=True, tag=True):
    metric: int
    operation: str
    value: float


class ReadMetric(msgspec.Struct, array_like=True, tag=True):
    metric: int


class ReleaseMetric(msgspec.Struct, array_like=True, tag=True):
    item: int


Request = LoadModel | UnloadModel | ModelReady | MakeFamily | MakeMetric | ChangeMetric | ReadMetric | ReleaseMetric


class CallHead(msgspec.Struct, array_like=True):
    """A call of a model to its server; `number` 0 wants no answer."""

    number: int
    request: Request


class CallResultHead(msgspec.Struct, array_like=True):
    """The answer to a call: a value, a ServingError, or the text of a ValueError."""

    number: int
    failure: Failure | None = None
    problem: str | None = None
    value: bool | int | float | None = None


Head = TypeVar("Head")

encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {
    head: msgspec.msgpack.Decoder(head)
    for head in (
        LoadHead, LoadedHead, CancelHead, LogHead, InferHead, NumberHead, ReadyHead, CallHead, CallResultHead, Failure,
    )
}  # fmt: skip


def decode(kind: type[Head], data: bytes) -> Head:
    """Decode the head of a frame. Raises WireError when it is not a `kind`."""
    try:
        head: Head = _decoders[kind].decode(data)
        return head
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"not a {kind.__name__}: {error}") from None


def encode_load(backend: str, context: ModelContext, instance: InstanceSpec, log_level: int) -> bytes:
    """The head of a LOAD frame."""
    return encode(
        LoadHead(
            backend,
            context.name,
            context.version,
            str(context.model_dir),
            str(context.version_dir),
            context.config.SerializeToString(),
            context.backend_options,
            instance.name,
            instance.kind,
            instance.device_id,
            log_level,
        )
    )


def decode_load(head: LoadHead) -> tuple[ModelContext, InstanceSpec]:
    """What `encode_load` was given. The labels of classification outputs stay with the server, which does the classification."""
    config = mc.ModelConfig.FromString(head.config)
    context = ModelContext(
        head.name,
        head.version,
        Path(head.model_dir),
        Path(head.version_dir),
        config,
        compile_spec(config, head.version),
        head.backend_options,
    )
    return context, InstanceSpec(head.instance_name, head.instance_kind, head.device_id)


def encode_infer(number: int, request: InferRequest) -> tuple[bytes, list[Buffer], int]:
    """The head, the payload's parts and the payload's size of a model's request."""
    buffers = [tensor.buffer() for tensor in request.inputs.values()]
    parts: list[Buffer] = []
    size = 0
    for data in buffers:
        parts += (data, PADDING[len(data) & 7])
        size += len(data) + (-len(data) & 7)
    trace = request.metadata.get(TRACE_KEY, "")
    head = InferHead(number, request.model_name, request.model_version, request.id, trace, describe(request, buffers))
    return encode(head), parts, size


def decode_infer(head: InferHead, payload: memoryview, handle: ReplyHandle) -> InferRequest:
    """The request that a model has made, its tensors views of `payload`. Raises WireError."""
    described = head.request
    check_tensors(described.inputs)
    inputs: dict[str, Tensor] = {}
    at = 0
    for tensor in described.inputs:
        inputs[tensor.name] = Tensor(tensor.name, tensor.datatype, tensor.shape, payload[at : at + tensor.size])
        at += tensor.size + (-tensor.size & 7)
    if at != len(payload):
        raise WireError(f"a request's tensors have {at} bytes, its payload {len(payload)}")
    request = InferRequest(
        head.model_name,
        head.model_version,
        inputs,
        handle,
        id=head.id,
        outputs=described.outputs,
        parameters=described.parameters,
    )
    request.correlation_id = described.correlation_id
    request.sequence_start = described.sequence_start
    request.sequence_end = described.sequence_end
    request.timeout_us = described.timeout_us
    if head.trace:
        request.metadata = {TRACE_KEY: head.trace}
    return request

"""ModelInferRequest bytes to an InferRequest, with the raw tensors left where they are in the message.

protobuf would copy every raw tensor out of the message. So the top-level fields are walked by hand, `raw_input_contents` become
(offset, length) pairs, and only the rest, a few dozen bytes, goes through protobuf.

Most clients send the same header again and again: `RequestDecoder` remembers headers and then a request costs one comparison. What it
remembers is bounded, and equal to what the full decoding would give (the header is compared byte for byte).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from shoal_api.protocol import inference_pb2 as pb
from shoal_dataplane.codec.limits import MAX_TENSORS
from shoal_dataplane.codec.parameters import RequestParameters, read_parameters
from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import invalid
from shoal_dataplane.core.parameter import Parameter
from shoal_dataplane.core.request import InferRequest, ReplyHandle, Signature
from shoal_dataplane.core.tensors import Tensor

RAW_FIELD = 7
"""Field number of ModelInferRequest.raw_input_contents."""

_TYPED = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return (value, next offset). Raises IndexError past the end and ValueError for a varint of more than 10 bytes."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint is longer than 10 bytes")


def split_message(message: bytes) -> tuple[pb.ModelInferRequest, list[tuple[int, int]]]:
    """Return the request without its raw contents, and the (offset, length) of each raw content in `message`.

    Raises ServingError(INVALID_ARGUMENT) for bytes that are no ModelInferRequest.
    """
    raws: list[tuple[int, int]] = []
    pieces: list[bytes] = []
    start = at = 0
    end = len(message)
    try:
        while at < end:
            field_at = at
            key, at = _varint(message, at)
            wire = key & 7
            if wire == 2:
                length, at = _varint(message, at)
                if length > end - at:
                    raise ValueError(f"field {key >> 3} at byte {field_at} claims {length} bytes, {end - at} are left")
                if key >> 3 == RAW_FIELD:
                    raws.append((at, length))
                    if field_at > start:
                        pieces.append(message[start:field_at])
                    start = at + length
                at += length
            elif wire == 0:
                _, at = _varint(message, at)
            elif wire == 1:
                at += 8
            elif wire == 5:
                at += 4
            else:
                raise ValueError(f"wire type {wire} at byte {field_at}")
        if start < end:
            pieces.append(message[start:end])
        return pb.ModelInferRequest.FromString(b"".join(pieces)), raws
    except (ValueError, IndexError, DecodeError) as error:
        detail = "truncated" if isinstance(error, IndexError) else str(error)
        raise invalid(f"the message is not a valid ModelInferRequest: {detail}") from None


class RequestHeader:
    """Everything of a decoded request but its id and its tensors' bytes. `classes` maps outputs to classification counts."""

    __slots__ = ("classes", "inputs", "model_name", "model_version", "outputs", "parameters", "plain", "signature")

    def __init__(self, request: pb.ModelInferRequest) -> None:
        self.model_name = request.model_name
        self.model_version = request.model_version
        for what, listed in (("inputs", len(request.inputs)), ("outputs", len(request.outputs))):
            if listed > MAX_TENSORS:
                raise invalid(f"the request lists {listed} {what}, at most {MAX_TENSORS} are accepted")
        self.inputs = [(t.name, t.datatype, tuple(t.shape)) for t in request.inputs]
        self.classes: dict[str, int] = {}
        self.outputs = self._read_outputs(request.outputs)
        self.parameters: RequestParameters = read_parameters(parameter_values(request.parameters))
        self.plain = self.parameters.is_default()
        self.signature = Signature()
        names = set()
        for name, datatype, _ in self.inputs:
            if datatype not in BY_WIRE:
                raise invalid(f"unknown datatype '{datatype}' of input '{name}' for model '{self.model_name}'")
            if name in names:
                raise invalid(f"input '{name}' already exists in request")
            names.add(name)

    def _read_outputs(
        self, outputs: Iterable[pb.ModelInferRequest.InferRequestedOutputTensor]
    ) -> tuple[str, ...] | None:
        names: dict[str, None] = {}  # asked for twice, sent once, as Triton does
        for output in outputs:
            names[output.name] = None
            values = parameter_values(output.parameters)
            refuse_shared_memory("output", output.name, values)
            if "classification" in values:
                count = values["classification"]
                if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                    raise invalid(
                        f"invalid value for 'classification' parameter of output '{output.name}': expected a positive int64, got {count!r}"
                    )
                self.classes[output.name] = count
        return tuple(names) or None

    def fill(self, request: InferRequest) -> InferRequest:
        """Set on `request` what its parameters say."""
        if not self.plain:
            self.parameters.apply(request)
        return request


def parameter_values(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    """Return the plain values of an InferParameter map. Raises ServingError(INVALID_ARGUMENT) for one without a value."""
    values: dict[str, Parameter] = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise invalid(
                f"parameter '{name}' has no value: expected one of bool_param, int64_param, uint64_param, double_param, string_param"
            )
        values[name] = getattr(parameter, kind)
    return values


def refuse_shared_memory(kind: str, name: str, parameters: Mapping[str, Parameter]) -> None:
    """Shared-memory regions are registered per host, which a pod does not share with its clients: refused by name."""
    if "shared_memory_region" in parameters:
        raise invalid(
            f"{kind} '{name}': shared memory regions are not supported by this server; send the tensor in the message"
        )


def _typed_tensor(tensor: pb.ModelInferRequest.InferInputTensor, shape: tuple[int, ...], model: str) -> Tensor:
    """A tensor sent in `contents`. Raises ServingError(INVALID_ARGUMENT) when the field does not fit the datatype or the shape."""
    name, datatype = tensor.name, tensor.datatype
    field = _TYPED.get(datatype)
    if field is None:
        raise invalid(
            f"datatype '{datatype}' of input '{name}' for model '{model}' has no typed contents: send it in raw_input_contents"
        )
    for descriptor, _ in tensor.contents.ListFields():
        if descriptor.name != field:
            raise invalid(
                f"unexpected contents field '{descriptor.name}' for input '{name}' of datatype {datatype} "
                f"for model '{model}', expecting '{field}'"
            )
    values = getattr(tensor.contents, field)
    if any(size < 0 for size in shape) or math.prod(shape) != len(values):
        raise invalid(
            f"unexpected number of elements {len(values)} in contents of input '{name}' for model '{model}': "
            f"its shape {list(shape)} needs {math.prod(shape)}"
        )
    dtype = BY_WIRE[datatype].numpy
    if datatype == "BYTES":
        array: np.ndarray[Any, Any] = np.empty(len(values), dtype=object)
        array[:] = list(values)
        return Tensor(name, datatype, shape, array.reshape(shape))
    try:
        array = np.fromiter(values, dtype, count=len(values))
    except OverflowError:
        limits = np.iinfo(dtype)
        raise invalid(
            f"contents of input '{name}' for model '{model}' has a value outside {datatype}'s range [{limits.min}, {limits.max}]"
        ) from None
    return Tensor(name, datatype, shape, array.reshape(shape))


def decode_full(
    message: bytes, handle: ReplyHandle, arrival_ns: int
) -> tuple[InferRequest, RequestHeader, list[tuple[int, int]]]:
    """Decode any ModelInferRequest. Raises ServingError(INVALID_ARGUMENT)."""
    proto, raws = split_message(message)
    header = RequestHeader(proto)
    view = memoryview(message)
    inputs: dict[str, Tensor] = {}
    if raws:
        if len(raws) > len(proto.inputs):
            raise invalid(
                f"expected {len(proto.inputs)} raw_input_contents for model '{header.model_name}', got {len(raws)}"
            )
        for tensor in proto.inputs:
            if tensor.HasField("contents"):
                raise invalid(
                    f"contents field must not be specified when using raw_input_contents for '{tensor.name}' "
                    f"for model '{header.model_name}'"
                )
    for index, ((name, datatype, shape), tensor) in enumerate(zip(header.inputs, proto.inputs, strict=True)):
        refuse_shared_memory("input", name, parameter_values(tensor.parameters))
        if raws:
            if index >= len(raws):
                raise invalid(
                    f"unable to find data for input tensor '{name}' for model '{header.model_name}' in request."
                )
            offset, length = raws[index]
            inputs[name] = Tensor(name, datatype, shape, view[offset : offset + length])
        elif tensor.HasField("contents") or 0 in shape:
            inputs[name] = _typed_tensor(tensor, shape, header.model_name)
        else:
            raise invalid(f"unable to find data for input tensor '{name}' for model '{header.model_name}' in request.")
    request = InferRequest(
        header.model_name,
        header.model_version,
        inputs,
        handle,
        id=proto.id,
        outputs=header.outputs,
        arrival_ns=arrival_ns,
    )
    return header.fill(request), header, raws


class _Remembered:
    """A header seen before: the message bytes before each raw content, and what they meant."""

    __slots__ = ("gaps", "header", "prefix", "tensors")

    def __init__(
        self, message: bytes, header: RequestHeader, raws: list[tuple[int, int]], id_at: int, id_end: int
    ) -> None:
        self.header = header
        self.prefix = message[:id_at] + message[id_end : raws[0][0]]
        removed = id_end - id_at
        self.tensors = [
            (name, datatype, shape, offset - removed, offset - removed + length)
            for (name, datatype, shape), (offset, length) in zip(header.inputs, raws, strict=True)
        ]
        self.gaps = [
            (raws[i][0] + raws[i][1] - removed, message[raws[i][0] + raws[i][1] : raws[i + 1][0]])
            for i in range(len(raws) - 1)
        ]


class RequestDecoder:
    """Decodes requests and remembers the headers of up to `capacity` kinds of request. One thread."""

    MAX_HEADER = 4096

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._by_length: dict[int, _Remembered] = {}
        self._by_head: dict[tuple[bytes, int], _Remembered] = {}

    def decode(self, message: bytes, handle: ReplyHandle, arrival_ns: int) -> tuple[InferRequest, RequestHeader]:
        """Return the request and its header. Raises ServingError(INVALID_ARGUMENT)."""
        known = self._by_length.get(len(message))
        if known is not None and message.startswith(known.prefix):
            for at, gap in known.gaps:
                if not message.startswith(gap, at):
                    break
            else:
                return self._recall(known, message, 0, "", handle, arrival_ns), known.header
        id_at, id_end, identifier = _find_id(message)
        if identifier:
            known = self._by_head.get((message[:id_at], len(message) - (id_end - id_at)))
            if known is not None and message.startswith(known.prefix[id_at:], id_end):
                shift = id_end - id_at
                for at, gap in known.gaps:
                    if not message.startswith(gap, at + shift):
                        break
                else:
                    return self._recall(known, message, shift, identifier, handle, arrival_ns), known.header
        request, header, raws = decode_full(message, handle, arrival_ns)
        self._remember(message, header, raws, request, id_at, id_end)
        return request, header

    def _recall(
        self, known: _Remembered, message: bytes, shift: int, identifier: str, handle: ReplyHandle, arrival_ns: int
    ) -> InferRequest:
        header = known.header
        view = memoryview(message)
        inputs = {
            name: Tensor(name, datatype, shape, view[start + shift : end + shift])
            for name, datatype, shape, start, end in known.tensors
        }
        request = InferRequest(
            header.model_name,
            header.model_version,
            inputs,
            handle,
            id=identifier,
            outputs=header.outputs,
            arrival_ns=arrival_ns,
        )
        request.signature = header.signature
        if not header.plain:
            header.parameters.apply(request)
        return request

    def _remember(
        self,
        message: bytes,
        header: RequestHeader,
        raws: list[tuple[int, int]],
        request: InferRequest,
        id_at: int,
        id_end: int,
    ) -> None:
        """Remember a request whose raw contents are of fixed-size datatypes, complete, and the last fields of the message."""
        if (
            not raws
            or len(raws) != len(header.inputs)
            or raws[0][0] > self.MAX_HEADER
            or raws[-1][0] + raws[-1][1] != len(message)
        ):
            return
        if any(BY_WIRE[datatype].itemsize == 0 for _, datatype, _ in header.inputs):
            return
        if any(later[0] - (first[0] + first[1]) > 11 for first, later in pairwise(raws)):
            return  # other fields between the raw contents
        if len(self._by_length) + len(self._by_head) >= self._capacity:
            self._by_length.clear()
            self._by_head.clear()
        known = _Remembered(message, header, raws, id_at, id_end)
        if request.id:
            if id_end > id_at:
                self._by_head[message[:id_at], len(message) - (id_end - id_at)] = known
        else:
            self._by_length[len(message)] = known


def _find_id(message: bytes) -> tuple[int, int, str]:
    """Return (start, end, value) of the id field where it follows model_name and model_version directly, as every serialiser writes
    it; the start and end are equal and the value empty otherwise. Only ids under 128 bytes."""
    try:
        at = 2 + message[1] if message[0] == 0x0A and message[1] < 0x80 else 0
        if at and message[at] == 0x12 and message[at + 1] < 0x80:
            at += 2 + message[at + 1]
        if at and message[at] == 0x1A and 0 < message[at + 1] < 0x80:
            end = at + 2 + message[at + 1]
            if end < len(message):
                return at, end, message[at + 2 : end].decode()
    except (IndexError, UnicodeDecodeError):
        pass
    return 0, 0, ""

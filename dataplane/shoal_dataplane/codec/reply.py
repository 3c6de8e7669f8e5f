"""An InferResponse to ModelInferResponse bytes, with each output tensor copied once, from where it lies into the message.

The header (model, version, outputs' names, datatypes and shapes) of a response repeats; it is kept by its content, bounded.
Field numbers: ModelInferResponse model_name 1, model_version 2, id 3, parameters 4, outputs 5, raw_output_contents 6;
ModelStreamInferResponse error_message 1, infer_response 2 (all length-delimited: key = number << 3 | 2).
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal_api.protocol import inference_pb2 as pb
from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.core.parameter import Parameter
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Buffer, Tensor

_ID = b"\x1a"
_RAW = b"\x32"
_FINAL = pb.ModelInferResponse(
    parameters={"triton_final_response": pb.InferParameter(bool_param=True)}
).SerializeToString()


def varint(value: int) -> bytes:
    """Encode an unsigned integer as a protobuf varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class ResponseEncoder:
    """Encodes responses and keeps up to `capacity` headers. One thread."""

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._single: dict[tuple[str, int, str, str, tuple[int, ...], int], tuple[bytes, bytes]] = {}

    def encode(self, request: InferRequest, response: InferResponse) -> bytes:
        """Return the ModelInferResponse of a response without an error."""
        target = request.target
        assert target is not None
        outputs = response.outputs
        if len(outputs) == 1 and not response.parameters:
            tensor = outputs[0]
            raw = tensor.data if type(tensor.data) is memoryview else tensor.buffer()
            key = (target.name, target.version, tensor.name, tensor.datatype, tensor.shape, len(raw))
            known = self._single.get(key)
            if known is None:
                known = self._remember(key, tensor)
            if request.id:
                identifier = request.id.encode()
                return b"".join((known[0], _ID, varint(len(identifier)), identifier, known[1], raw))
            return b"".join((known[0], known[1], raw))
        return self._encode_any(target.name, target.version, request.id, outputs, response.parameters)

    def _remember(self, key: tuple[str, int, str, str, tuple[int, ...], int], tensor: Tensor) -> tuple[bytes, bytes]:
        if len(self._single) >= self._capacity:
            self._single.clear()
        head = pb.ModelInferResponse(model_name=key[0], model_version=str(key[1])).SerializeToString()
        tail = pb.ModelInferResponse(outputs=[_describe(tensor)]).SerializeToString() + _RAW + varint(key[5])
        self._single[key] = (head, tail)
        return head, tail

    @staticmethod
    def _encode_any(
        name: str, version: int, identifier: str, outputs: list[Tensor], parameters: Mapping[str, Parameter] | None
    ) -> bytes:
        header = pb.ModelInferResponse(model_name=name, model_version=str(version), id=identifier)
        for key, value in (parameters or {}).items():
            set_parameter(header.parameters[key], value)
        header.outputs.extend(_describe(tensor) for tensor in outputs)
        parts: list[Buffer] = [header.SerializeToString()]
        for tensor in outputs:
            raw = tensor.buffer()
            parts += (_RAW, varint(len(raw)), raw)
        return b"".join(parts)

    def encode_stream(self, request: InferRequest, response: InferResponse) -> bytes:
        """Return the ModelStreamInferResponse of a response; an error becomes `error_message`, with the id in `infer_response`."""
        if response.error is not None:
            return stream_error(response.error, request.id)
        body = self.encode(request, response)
        if response.final:
            return b"".join((b"\x12", varint(len(body) + len(_FINAL)), body, _FINAL))
        return b"".join((b"\x12", varint(len(body)), body))


def stream_error(error: ServingError, identifier: str) -> bytes:
    """A ModelStreamInferResponse that carries an error for the request `identifier`."""
    return pb.ModelStreamInferResponse(
        error_message=error.message, infer_response=pb.ModelInferResponse(id=identifier)
    ).SerializeToString()


def _describe(tensor: Tensor) -> pb.ModelInferResponse.InferOutputTensor:
    return pb.ModelInferResponse.InferOutputTensor(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)


def set_parameter(parameter: pb.InferParameter, value: Parameter) -> None:
    """Set an InferParameter to a plain value. An integer beyond int64 becomes uint64_param, one beyond that a string."""
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            parameter.int64_param = value
        elif 0 <= value < 1 << 64:
            parameter.uint64_param = value
        else:
            parameter.string_param = str(value)
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value

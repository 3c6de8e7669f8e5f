"""Raw gRPC messages: requests of any form, answers as numpy arrays, and errors by code and text."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

BY_NAME: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"INT{size}": np.dtype(f"<i{size // 8}") for size in (8, 16, 32, 64)},
    **{f"UINT{size}": np.dtype(f"<u{size // 8}") for size in (8, 16, 32, 64)},
    **{f"FP{size}": np.dtype(f"<f{size // 8}") for size in (16, 32, 64)},
    "BF16": np.dtype("<u2"),  # its bits
}
"""The numpy type of each datatype of a fixed size."""

_NAMES = {dtype: name for name, dtype in BY_NAME.items() if name != "BF16"}


def datatype_of(array: np.ndarray[Any, Any]) -> str:
    """The wire's name of an array's type."""
    return "BYTES" if array.dtype.kind in "OSU" else _NAMES[array.dtype]


def encode_bytes(elements: Sequence[bytes]) -> bytes:
    """BYTES elements, each with its length before it."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def decode_bytes(raw: bytes) -> list[bytes]:
    """The elements of a BYTES tensor."""
    elements, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        elements.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    return elements


def raw_of(array: np.ndarray[Any, Any]) -> bytes:
    """The bytes of a tensor on the wire."""
    return encode_bytes(list(array.ravel())) if array.dtype.kind == "O" else np.ascontiguousarray(array).tobytes()


def set_parameter(parameter: Any, value: Any) -> None:
    """Set an InferParameter: a (field, value) pair for a certain field, else by the value's type."""
    if isinstance(value, tuple):
        setattr(parameter, value[0], value[1])
    elif isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def request(
    model: str,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = None,
    *,
    outputs: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    version: str = "",
    id: str = "",
) -> pb.ModelInferRequest:
    """A well-formed request with raw contents."""
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=id)
    for name, array in (inputs or {}).items():
        message.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        message.raw_input_contents.append(raw_of(array))
    for name in outputs:
        message.outputs.add(name=name)
    for name, value in (parameters or {}).items():
        set_parameter(message.parameters[name], value)
    return message


def odd_request(
    model: str,
    tensors: Sequence[tuple[Any, ...]],
    raw: Sequence[bytes] | None = None,
    *,
    outputs: Sequence[str | tuple[str, Mapping[str, Any]]] = (),
    parameters: Mapping[str, Any] | None = None,
    version: str = "",
) -> pb.ModelInferRequest:
    """A request of any form. Tensors are (name, datatype, shape[, contents by field])."""
    message = pb.ModelInferRequest(model_name=model, model_version=version)
    for name, datatype, shape, *contents in tensors:
        tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
        for field, values in (contents[0] if contents else {}).items():
            getattr(tensor.contents, field).extend(values)
    for output in outputs:
        name, of_output = (output, {}) if isinstance(output, str) else output
        added = message.outputs.add(name=name)
        for key, value in of_output.items():
            set_parameter(added.parameters[key], value)
    for name, value in (parameters or {}).items():
        set_parameter(message.parameters[name], value)
    message.raw_input_contents.extend(raw or ())
    return message


def arrays(response: pb.ModelInferResponse) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of a response by name. BYTES are object arrays of bytes."""
    assert len(response.raw_output_contents) == len(response.outputs), "every output has one raw content"
    found = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        shape = tuple(output.shape)
        if output.datatype == "BYTES":
            array: np.ndarray[Any, Any] = np.empty(int(np.prod(shape)), dtype=object)
            array[:] = decode_bytes(raw)
            found[output.name] = array.reshape(shape)
        else:
            found[output.name] = np.frombuffer(raw, BY_NAME[output.datatype]).reshape(shape)
    return found


def strings(*values: str | bytes) -> np.ndarray[Any, Any]:
    """A BYTES array of one dimension."""
    array: np.ndarray[Any, Any] = np.empty(len(values), dtype=object)
    array[:] = [value.encode() if isinstance(value, str) else value for value in values]
    return array


class Refusal:
    """A gRPC error that was expected."""

    code = ""
    details = ""


@contextlib.contextmanager
def refused(code: str, pattern: str = "") -> Iterator[Refusal]:
    """The block must end in a gRPC error with this code (or one of those joined by "|") and text (a regular expression)."""
    refusal = Refusal()
    with pytest.raises(grpc.RpcError) as caught:
        yield refusal
    error: Any = caught.value
    refusal.code, refusal.details = error.code().name, error.details()
    assert refusal.code in code.split("|"), f"{refusal.code}: {refusal.details}"
    assert re.search(pattern, refusal.details), f"{refusal.code}: {refusal.details!r} does not have {pattern!r}"

"""The generate extension: a flat JSON object to tensors and back (triton.md I14).

A key that is an input's name becomes that tensor, `id` the request's id, the keys inside `parameters` and all other keys request
parameters. A response's outputs, each flattened, become keys again; an output with one element becomes that element.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import msgspec

from shoal_dataplane.codec.json_data import Limits, decode_data, encode_data, expanded_bytes, too_deep
from shoal_dataplane.codec.kserve_json import decode_json, json_parameter
from shoal_dataplane.core.errors import invalid
from shoal_dataplane.core.model_spec import ModelSpec, TensorSpec
from shoal_dataplane.core.parameter import Parameter
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Buffer, Tensor

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NESTED: Final = "parameters"


class GenerateDocument(NamedTuple):
    """A decoded generate request. No parameter name is reserved here: a model may call its own ones `timeout` or `priority`."""

    id: str
    inputs: dict[str, Tensor]
    parameters: dict[str, Parameter]


def decode_generate(body: Buffer, spec: ModelSpec, limits: Limits) -> GenerateDocument:
    """Decode a request for the model of `spec`. Raises ServingError(INVALID_ARGUMENT) that names the key which does not fit."""
    return _Reader(spec, limits).read(body)


class _Reader:
    """Decodes one request; `left` is what its tensors may still expand to, in bytes."""

    def __init__(self, spec: ModelSpec, limits: Limits) -> None:
        self.spec = spec
        self.limits = limits
        self.left = limits.max_bytes
        self.inputs: dict[str, Tensor] = {}
        self.parameters: dict[str, Parameter] = {}

    def read(self, body: Buffer) -> GenerateDocument:
        request_id = ""
        for key, raw in decode_json(_OBJECT, body, self.limits).items():
            text = bytes(raw)
            if key == _NESTED:
                self._read_nested(text)
                continue
            if key == "id":
                request_id = self._identifier(text)
                if key not in self.spec.inputs:
                    continue
            self._take(key, text)
        return GenerateDocument(request_id, self.inputs, self.parameters)

    def _read_nested(self, text: bytes) -> None:
        if _NESTED in self.spec.inputs:
            raise invalid(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        if text == b"null":
            return
        if text[:1] != b"{":
            raise invalid(f"Expected JSON object for keyword: '{_NESTED}'")
        for key, raw in decode_json(_OBJECT, text, self.limits).items():
            self._take(key, bytes(raw))

    def _identifier(self, text: bytes) -> str:
        value = self._value("id", text)
        if not isinstance(value, str):
            raise invalid("Unable to parse 'id': expected a string")
        return value

    def _value(self, name: str, text: bytes) -> Any:
        try:
            return msgspec.json.decode(text)
        except RecursionError:
            raise too_deep(self.limits, f" in '{name}'") from None
        except msgspec.DecodeError as error:
            raise invalid(f"Unable to parse '{name}': {error}") from None

    def _take(self, name: str, text: bytes) -> None:
        spec = self.spec
        tensor = spec.inputs.get(name)
        if tensor is None:
            self.parameters[name] = json_parameter(name, self._value(name, text))
            return
        if name in self.inputs:
            raise invalid(f"input '{name}' already exists in request for model '{spec.name}'")
        array = text if text[:1] == b"[" else b"[" + text + b"]"
        flat = decode_data(name, tensor.datatype, array, self.limits._replace(max_bytes=self.left))
        self.left -= expanded_bytes(flat)
        shape = fit_shape(tensor, spec.max_batch_size > 0, flat.size)
        self.inputs[name] = Tensor(name, tensor.datatype.wire, shape, flat.reshape(shape))


def fit_shape(tensor: TensorSpec, batched: bool, count: int) -> tuple[int, ...]:
    """Return the full shape that `count` elements take: fixed dimensions as they are, what is left in the innermost open one, 1 in the
    other open ones. Raises ServingError(INVALID_ARGUMENT) when that does not come out even."""
    dims = [-1, *tensor.dims] if batched else list(tensor.dims)
    fixed = math.prod(size for size in dims if size != -1)
    left, odd = divmod(count, fixed)
    for axis in range(len(dims) - 1, -1, -1):
        if dims[axis] == -1:
            dims[axis] = left
            left = 1
    if odd or left != 1:
        raise invalid(
            f"The schema can not convert input '{tensor.name}' to tensor with proper shape: "
            f"{count} elements do not fit [{','.join(map(str, [-1, *tensor.dims] if batched else tensor.dims))}]"
        )
    return tuple(dims)


def encode_generate(request: InferRequest, response: InferResponse) -> bytes:
    """Encode a response without an error as one JSON object. Raises ServingError(INVALID_ARGUMENT) for what JSON cannot hold."""
    target = request.target
    assert target is not None, "a response without an error comes from a model"
    shown: dict[str, Any] = {}
    for name, value in (response.parameters or {}).items():
        shown[name] = value
    for tensor in response.outputs:
        data = encode_data(tensor)
        shown[tensor.name] = data[0] if isinstance(data, list) and len(data) == 1 else data
    if request.id:
        shown["id"] = request.id
    shown["model_name"] = target.name
    shown["model_version"] = str(target.version)
    return msgspec.json.encode(shown)

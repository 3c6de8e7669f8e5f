"""KServe v2 REST inference: the JSON of a request and of a response, with the binary tensor data extension (triton.md I3, I4).

The envelope is decoded by type in one pass that leaves each input's `data` unparsed; json_data reads that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from shoal_dataplane.codec.binary import BinarySection, binary_size, raw_input
from shoal_dataplane.codec.json_data import Limits, decode_data, encode_data, expanded_bytes, too_deep, too_large
from shoal_dataplane.codec.limits import MAX_TENSORS
from shoal_dataplane.codec.parameters import RequestParameters, read_parameters
from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import ServingError, invalid, unimplemented
from shoal_dataplane.core.model_spec import ModelSpec
from shoal_dataplane.core.parameter import Parameter
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Buffer, Tensor

MAX_RANK: Final = 64
"""Dimensions of a tensor (numpy's own limit)."""

_MAX_ELEMENTS: Final = ((1 << 63) - 1) // 8  # of 8 bytes each: more can be neither addressed nor reshaped
_INT64: Final = range(-(1 << 63), 1 << 63)


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _Envelope(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[_Output] | None = None


_ENVELOPE = msgspec.json.Decoder(_Envelope)


class InferDocument(NamedTuple):
    """A decoded request, and how its caller wants the answer. `binary` and `classes` speak of outputs by name; `binary_default` is the
    form of those that the request did not list."""

    id: str
    parameters: RequestParameters
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...] | None
    binary: Mapping[str, bool]
    classes: Mapping[str, int]
    binary_default: bool


class EncodedResponse(NamedTuple):
    """A response: its JSON, and the raw tensors that follow it. `is_binary` when any output is in binary form, even an empty one."""

    header: bytes
    tensors: list[Buffer]
    is_binary: bool


def decode_infer(header: Buffer, section: memoryview, limits: Limits, model_name: str) -> InferDocument:
    """Decode a request. `header` is its JSON, `section` the binary data behind it; binary inputs are views into that.

    Raises ServingError: INVALID_ARGUMENT for anything that is not a well-formed request, UNIMPLEMENTED for shared memory.
    """
    envelope: _Envelope = decode_json(_ENVELOPE, header, limits)
    for what, listed in (("inputs", envelope.inputs), ("outputs", envelope.outputs or ())):
        if len(listed) > MAX_TENSORS:
            raise invalid(f"the request lists {len(listed)} {what}, at most {MAX_TENSORS} are accepted")
    binary_default = False
    parameters = envelope.parameters or {}
    if "binary_data_output" in parameters:
        binary_default = _flag("binary_data_output", parameters.pop("binary_data_output"))
    inputs: dict[str, Tensor] = {}
    rest = BinarySection(section)
    expanded = 0
    for item in envelope.inputs:
        if item.name in inputs:
            raise invalid(f"input '{item.name}' already exists in request")
        tensor = _input(item, rest, limits._replace(max_bytes=limits.max_bytes - expanded), model_name)
        if item.data is not msgspec.UNSET:
            expanded += expanded_bytes(tensor.array())
        inputs[item.name] = tensor
    rest.close(model_name)
    binary: dict[str, bool] = {}
    classes: dict[str, int] = {}
    for output in envelope.outputs or ():  # one that is asked for twice is sent once, as Triton does
        binary[output.name] = _output(output, classes)
    return InferDocument(
        envelope.id or "",
        http_parameters(parameters),
        inputs,
        tuple(binary) or None,
        binary,
        classes,
        binary_default,
    )


def raw_document(spec: ModelSpec, body: memoryview) -> InferDocument:
    """A request whose whole body is the model's one input; its outputs come back in binary form. Raises ServingError(INVALID_ARGUMENT)."""
    tensor = raw_input(spec, body)
    return InferDocument("", read_parameters({}), {tensor.name: tensor}, None, {}, {}, True)


def _input(item: _Input, section: BinarySection, limits: Limits, model_name: str) -> Tensor:
    name = item.name
    parameters = item.parameters or {}
    datatype = BY_WIRE.get(item.datatype)
    size = binary_size(name, parameters)
    sources = []
    if item.data is not msgspec.UNSET:
        sources.append("'data'")
    if size is not None:
        sources.append("'binary_data_size'")
    if "shared_memory_region" in parameters:
        sources.append("'shared_memory_region'")
    if len(sources) != 1:
        raise invalid(
            f"Input '{name}' must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'. But {'set ' + ' '.join(sources) if sources else 'no field is set'}"
        )
    if datatype is None:
        raise invalid(
            f"invalid datatype for input {name}: '{item.datatype[:40]}', expected one of {', '.join(BY_WIRE)}"
        )
    shape = tuple(item.shape)
    count = element_count(name, shape)
    if size is not None:
        return Tensor(name, datatype.wire, shape, section.take(name, size, model_name))
    if item.data is msgspec.UNSET:
        raise shared_memory("input", name)
    if count * datatype.itemsize > limits.max_bytes:
        raise too_large(name, count * datatype.itemsize, limits)
    flat = decode_data(name, datatype, bytes(item.data), limits, count)
    return Tensor(name, datatype.wire, shape, flat.reshape(shape))


def element_count(name: str, shape: tuple[int, ...]) -> int:
    """Return how many elements a shape has. Raises ServingError(INVALID_ARGUMENT) for a negative dimension, more than MAX_RANK of them,
    and for sizes whose product (zeros aside, so that [0, 2^62, 2^62] is refused too) overflows."""
    if len(shape) > MAX_RANK:
        raise invalid(f"invalid shape for input '{name}': {len(shape)} dimensions, at most {MAX_RANK} are accepted")
    product = 1
    for size in shape:
        if size < 0:
            raise invalid(
                f"invalid shape for input '{name}': shape {_dims(shape)} contains one or more invalid dimensions: {_number(size)}"
            )
        product *= size or 1
        if product > _MAX_ELEMENTS:
            raise invalid(
                f"invalid shape for input '{name}': shape {_dims(shape)} causes total element count to exceed "
                f"maximum size of {_MAX_ELEMENTS}"
            )
    return math.prod(shape)


def _dims(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(_number(size) for size in shape) + "]"


def _number(value: int) -> str:
    return str(value) if abs(value) < 1 << 64 else f"{'-' if value < 0 else ''}(more than 2^64)"


def _output(item: _Output, classes: dict[str, int]) -> bool:
    """Is this output wanted in binary form? Notes in `classes` how many classes are wanted of it."""
    parameters = item.parameters or {}
    if "shared_memory_region" in parameters:
        raise shared_memory("output", item.name)
    if "classification" in parameters:
        count = parameters["classification"]
        if type(count) is not int or count < 0:
            raise invalid(
                f"Unable to set 'classification' of output '{item.name}': expected an integer >= 0, got {count!r}"
            )
        if count:
            classes[item.name] = count
    return _flag(f"binary_data' of output '{item.name}", parameters.get("binary_data", False))


def _flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise invalid(f"Unable to parse '{name}': expected true or false, got {value!r}")
    return value


def shared_memory(what: str, name: str) -> ServingError:
    """This server has no shared memory extension."""
    return unimplemented(
        f"{what} '{name}' names a shared memory region, which this server does not support: send the data in the request"
    )


def http_parameters(values: Mapping[str, Any]) -> RequestParameters:
    """Sort the `parameters` of a JSON request. Raises ServingError(INVALID_ARGUMENT) as read_parameters does, for all `triton_*` names,
    and for values that are no string, integer, boolean or double."""
    if not values:
        return read_parameters({})
    for name in values:
        if name.startswith("triton_"):
            raise invalid(
                f"parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified, got '{name}'."
            )
    return read_parameters({name: json_parameter(name, value) for name, value in values.items()})


def json_parameter(name: str, value: Any) -> Parameter:
    """Check one parameter's value. An integer beyond 64 bits becomes a double, as in Triton."""
    if type(value) is int:
        if value in _INT64 or 0 <= value < 1 << 64:
            return value
        try:
            return float(value)
        except OverflowError:
            raise invalid(f"parameter '{name}' is an integer too large for a double") from None
    if type(value) in (str, bool, float):
        return value  # type: ignore[no-any-return]  # checked in the line above
    raise invalid(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', 'double' or 'string'.")


def decode_json(decoder: msgspec.json.Decoder[Any], text: Buffer, limits: Limits) -> Any:
    """Decode JSON by type. Raises ServingError(INVALID_ARGUMENT) that says where in the document what is wrong."""
    try:
        return decoder.decode(text)
    except RecursionError:
        raise too_deep(limits) from None
    except msgspec.ValidationError as error:
        raise invalid(_validation_text(str(error))) from None
    except msgspec.DecodeError as error:
        raise invalid(f"failed to parse the request JSON buffer: {error}") from None


_PLACE = re.compile(r"(?s)(.*) - at `\$\.?(.*)`")


def _validation_text(text: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.inputs[0].shape[1]`" in the words of this server."""
    found = _PLACE.fullmatch(text)
    what, where = (found[1], found[2]) if found else (text, "")
    what = what.replace("`", "'")
    return f"Unable to parse '{where}': {what}" if where else f"Unable to parse the request JSON: {what}"


def encode_infer(request: InferRequest, response: InferResponse, document: InferDocument) -> EncodedResponse:
    """Encode a response without an error, each output in the form that the request asked for.

    Raises ServingError(INVALID_ARGUMENT) when JSON was asked for an output that JSON cannot hold.
    """
    target = request.target
    assert target is not None, "a response without an error comes from a model"
    outputs: list[dict[str, Any]] = []
    tensors: list[Buffer] = []
    is_binary = False
    for tensor in response.outputs:
        entry: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": [int(size) for size in tensor.shape],
        }
        if document.binary.get(tensor.name, document.binary_default):
            is_binary = True
            raw = tensor.buffer()
            entry["parameters"] = {"binary_data_size": len(raw)}
            if len(raw):
                tensors.append(raw)
        else:
            entry["data"] = encode_data(tensor)
        outputs.append(entry)
    shown: dict[str, Any] = {"id": request.id} if request.id else {}
    shown["model_name"] = target.name
    shown["model_version"] = str(target.version)
    if response.parameters:
        shown["parameters"] = dict(response.parameters)
    shown["outputs"] = outputs
    return EncodedResponse(msgspec.json.encode(shown), tensors, is_binary)

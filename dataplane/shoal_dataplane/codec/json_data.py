"""The `data` of a tensor in JSON, to numpy and back (KServe v2 REST; triton.md I3).

`data` is an array, flat or nested in any way; its elements are taken in row-major order. Numbers are decoded and encoded piece by
piece: a long tensor then never holds all its Python numbers at once, nor the interpreter lock for longer than a piece takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from shoal_dataplane.core.dtypes import DataType
from shoal_dataplane.core.errors import ServingError, invalid
from shoal_dataplane.core.tensors import Tensor

PIECE_BYTES: Final = 1 << 16
PIECE_ELEMENTS: Final = 1 << 13


class Limits(NamedTuple):
    """What one request may expand to. `max_bytes`: all its tensors together; `max_depth`: nesting of JSON arrays."""

    max_bytes: int = 64 << 20
    max_depth: int = 100


class _Kind(NamedTuple):
    """How a family of datatypes is read: msgspec's decoder, the numpy type wide enough to check ranges in, and its name."""

    decoder: msgspec.json.Decoder[Any]
    wide: np.dtype[Any]
    types: tuple[type, ...]
    word: str


_INTEGERS = msgspec.json.Decoder(list[int])
_SIGNED = _Kind(_INTEGERS, np.dtype(np.int64), (int,), "an integer")
_UNSIGNED = _Kind(_INTEGERS, np.dtype(np.uint64), (int,), "an integer")
_FLOAT = _Kind(msgspec.json.Decoder(list[float]), np.dtype(np.float64), (int, float), "a number")
_BOOL = _Kind(msgspec.json.Decoder(list[bool]), np.dtype(np.bool_), (bool,), "true or false")
_STRING = _Kind(msgspec.json.Decoder(list[str]), np.dtype(np.object_), (str,), "a string")
_KINDS: Final = {"i": _SIGNED, "u": _UNSIGNED, "f": _FLOAT, "b": _BOOL, "O": _STRING}
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]"))
_NOT_IN_JSON: Final = frozenset(("FP16", "BF16"))


def decode_data(
    name: str, datatype: DataType, raw: bytes, limits: Limits, count: int | None = None
) -> np.ndarray[Any, Any]:
    """Decode the JSON text of an array into a flat numpy array of `datatype` (BYTES: an object array of UTF-8 `bytes`).

    `raw` must be one well-formed JSON value. `count` is how many elements there have to be (None: any number).
    Raises ServingError(INVALID_ARGUMENT) that names the input and the element which does not fit.
    """
    if datatype.wire in _NOT_IN_JSON:
        raise invalid(
            f"receiving {datatype.wire} data via JSON is not supported. Please use the binary data format for input {name}"
        )
    if raw[:1] != b"[":
        raise invalid(f"Unable to parse 'data' of input '{name}': expected an array, got {_shown(raw)}")
    if count is not None:
        if count * datatype.itemsize > limits.max_bytes:
            raise too_large(name, count * datatype.itemsize, limits)
        if count > len(raw):  # every element takes a byte at least: do not allocate for a shape that lies
            raise _wrong_count(name, count, "fewer")
    kind = _KINDS[datatype.numpy.kind]
    try:
        if kind is _STRING:
            return _strings(name, raw, limits, count)
        return _numbers(name, datatype, kind, _flat(name, raw, limits), limits, count)
    except (msgspec.DecodeError, OverflowError):
        return _one_by_one(name, datatype, kind, raw, limits, count)


def _flat(name: str, raw: bytes, limits: Limits) -> bytes:
    """Take the inner brackets out of an array of numbers. Empty inner arrays leave a hole, which the decoder will refuse."""
    if raw.find(b"[", 1) < 0:
        return raw
    brackets = raw.translate(None, _NOT_BRACKETS)
    if len(brackets) > 2 * limits.max_depth:
        steps = np.where(np.frombuffer(brackets, np.uint8) == ord("["), 1, -1)
        if int(np.cumsum(steps).max()) > limits.max_depth:
            raise too_deep(limits, f" in 'data' of input '{name}'")
    return b"[" + raw.translate(None, b"[]") + b"]"


def _pieces(raw: bytes, decoder: msgspec.json.Decoder[Any]) -> Iterator[list[Any]]:
    """Decode a flat array of numbers, a list of about PIECE_BYTES of text at a time."""
    start, end = 1, len(raw) - 1
    while end - start > PIECE_BYTES:
        comma = raw.find(b",", start + PIECE_BYTES, end)
        if comma < 0:
            break
        yield decoder.decode(b"[" + raw[start:comma] + b"]")
        start = comma + 1
    yield decoder.decode(b"[" + raw[start:end] + b"]")


def _numbers(
    name: str, datatype: DataType, kind: _Kind, raw: bytes, limits: Limits, count: int | None
) -> np.ndarray[Any, Any]:
    parts: list[np.ndarray[Any, Any]] = []
    got = 0
    for values in _pieces(raw, kind.decoder):
        got += len(values)
        if count is not None and got > count:
            raise _wrong_count(name, count, raw.count(b",") + 1)
        if got * datatype.itemsize > limits.max_bytes:
            raise too_large(name, got * datatype.itemsize, limits)
        parts.append(_narrow(np.array(values, kind.wide), datatype))
    if count is not None and got != count:
        raise _wrong_count(name, count, got)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _narrow(wide: np.ndarray[Any, Any], datatype: DataType) -> np.ndarray[Any, Any]:
    """Convert to the datatype's own numpy type. Raises OverflowError when a value does not fit."""
    narrow = datatype.numpy
    if wide.dtype == narrow:
        return wide
    if narrow.kind == "f":
        with np.errstate(over="ignore"):
            result = wide.astype(narrow)
        if not np.isfinite(result).all():
            raise OverflowError
        return result
    if wide.size:
        bounds = np.iinfo(narrow)
        if wide.max() > bounds.max or wide.min() < bounds.min:
            raise OverflowError
    return wide.astype(narrow)


def _strings(name: str, raw: bytes, limits: Limits, count: int | None) -> np.ndarray[Any, Any]:
    return _encoded(name, _STRING.decoder.decode(raw), limits, count)


def _encoded(name: str, values: list[str], limits: Limits, count: int | None) -> np.ndarray[Any, Any]:
    if count is not None and len(values) != count:
        raise _wrong_count(name, count, len(values))
    elements = [value.encode() for value in values]
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    size = expanded_bytes(array)
    if size > limits.max_bytes:
        raise too_large(name, size, limits)
    return array


def _one_by_one(
    name: str, datatype: DataType, kind: _Kind, raw: bytes, limits: Limits, count: int | None
) -> np.ndarray[Any, Any]:
    """The slow way: for arrays nested in unusual ways, and to find the element that is wrong."""
    try:
        data = msgspec.json.decode(raw)
    except RecursionError:
        raise too_deep(limits, f" in 'data' of input '{name}'") from None
    except msgspec.DecodeError as error:
        raise invalid(f"Unable to parse 'data' of input '{name}': {error}") from None
    values: list[Any] = []
    for value in _walk(name, data, limits):
        if type(value) not in kind.types or not _fits(value, datatype):
            raise invalid(
                f"Unable to parse 'data' of input '{name}': element {len(values)} is {_shown(value)}, "
                f"expected {_expected(kind, datatype)}"
            )
        values.append(value)
    if kind is _STRING:
        return _encoded(name, values, limits, count)
    if count is not None and len(values) != count:
        raise _wrong_count(name, count, len(values))
    return _narrow(np.array(values, kind.wide), datatype)


def _walk(name: str, data: list[Any], limits: Limits) -> Iterator[Any]:
    stack = [iter(data)]
    while stack:
        for value in stack[-1]:
            if type(value) is list:
                if len(stack) >= limits.max_depth:
                    raise too_deep(limits, f" in 'data' of input '{name}'")
                stack.append(iter(value))
                break
            yield value
        else:
            stack.pop()


def _fits(value: Any, datatype: DataType) -> bool:
    if datatype.numpy.kind in "iu":
        bounds = np.iinfo(datatype.numpy)
        return bool(int(bounds.min) <= value <= int(bounds.max))
    if datatype.numpy.kind == "f":
        return bool(abs(value) <= float(np.finfo(datatype.numpy).max))
    return True


def _expected(kind: _Kind, datatype: DataType) -> str:
    if datatype.numpy.kind in "iu":
        bounds = np.iinfo(datatype.numpy)
        return f"{kind.word} from {bounds.min} to {bounds.max} ({datatype.wire})"
    return f"{kind.word} ({datatype.wire})"


def _shown(value: object) -> str:
    """A value as JSON, short enough for an error text."""
    if isinstance(value, bytes):
        text = value[:41].decode(errors="replace")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:.6g}" if abs(value) > 1 << 64 else str(value)
    else:
        text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else text[:40] + "..."


def expanded_bytes(array: np.ndarray[Any, Any]) -> int:
    """Return what a decoded tensor counts against Limits.max_bytes: the size of its wire encoding."""
    if array.dtype.kind == "O":
        return sum(map(len, array.ravel())) + 4 * array.size
    return array.nbytes


def _wrong_count(name: str, count: int, got: object) -> ServingError:
    return invalid(
        f"Unable to parse 'data' of input '{name}': Shape does not match true shape of 'data' field: "
        f"the shape has {count} elements, got {got}"
    )


def too_large(name: str, size: int, limits: Limits) -> ServingError:
    """The tensors of a request would take more bytes than a request may."""
    return invalid(
        f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limits.max_bytes} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def too_deep(limits: Limits, where: str = "") -> ServingError:
    """A JSON document is nested too deeply."""
    return invalid(f"JSON nesting depth exceeds maximum allowed limit ({limits.max_depth}){where}")


def encode_data(tensor: Tensor) -> Any:
    """Return an output's elements, flat in row-major order, as something that msgspec encodes as a JSON array.

    Raises ServingError(INVALID_ARGUMENT) for what JSON cannot say: FP16, BF16, NaN, infinity, bytes that are not UTF-8. The caller can
    ask for the binary data format instead.
    """
    name = tensor.name
    if tensor.datatype in _NOT_IN_JSON:
        raise invalid(
            f"sending {tensor.datatype} data via JSON is not supported. Please use the binary data format for output '{name}'"
        )
    array = tensor.array().reshape(-1)
    if tensor.datatype == "BYTES":
        return [_text(name, index, element) for index, element in enumerate(array.tolist())]
    if array.dtype.kind == "f":
        finite = np.isfinite(array)
        if not finite.all():
            index = int(np.argmin(finite))
            raise invalid(
                f"element {index} of output '{name}' is {array[index]}, which JSON cannot express. "
                f"Please use the binary data format for output '{name}'"
            )
    if array.size <= PIECE_ELEMENTS:
        return array.tolist()
    encode = msgspec.json.encode
    pieces = (array[at : at + PIECE_ELEMENTS] for at in range(0, array.size, PIECE_ELEMENTS))
    return msgspec.Raw(b"[" + b",".join(encode(piece.tolist())[1:-1] for piece in pieces) + b"]")


def _text(name: str, index: int, element: Any) -> str:
    if isinstance(element, str):
        return element
    try:
        return bytes(element).decode()
    except UnicodeDecodeError as error:
        raise invalid(
            f"element {index} of output '{name}' is not UTF-8 ({error.reason} at byte {error.start}), which JSON cannot express. "
            f"Please use the binary data format for output '{name}'"
        ) from None

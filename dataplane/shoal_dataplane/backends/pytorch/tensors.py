"""Numpy arrays to torch tensors and back, without a copy on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from shoal_dataplane.core.errors import internal, invalid

Array = np.ndarray[Any, Any]
Convert = Callable[[Array], Any]

DTYPES: Final[dict[str, torch.dtype]] = {
    "BF16": torch.bfloat16,
    "BOOL": torch.bool,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "INT8": torch.int8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "UINT8": torch.uint8,
}
"""By KServe wire name. BYTES has none: PyTorch has no tensor of strings, only List[str]."""

WIRE: Final[dict[torch.dtype, str]] = {dtype: wire for wire, dtype in DTYPES.items()}


def _use_up_read_only_warning() -> None:
    """torch warns, once in a process, that a tensor made from a read-only array can be written to. Arrays that come off the wire are
    read-only, and models that write into their inputs get a copy (see `converter`): have that warning now, unseen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(np.frombuffer(b"\0", np.uint8))


_use_up_read_only_warning()


def converter(wire: str, device: torch.device, *, copy: bool) -> Convert:
    """Return the function that makes an input tensor of an array of datatype `wire`.

    On the CPU the tensor shares the array's memory, which may be the message that the request came in: `copy` must be set for a model
    that writes into its inputs. On a GPU the tensor is a copy in any case.
    """
    convert: Convert = _from_bfloat16_bits if wire == "BF16" else torch.from_numpy
    if device.type != "cpu":
        return lambda array: convert(array).to(device, non_blocking=True)
    return (lambda array: convert(array).clone()) if copy else convert


def _from_bfloat16_bits(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def reader(model: str, name: str, wire: str, *, copy: bool) -> Callable[[Any], Array]:
    """Return the function that makes a numpy array of datatype `wire` of what a model returned as output `name`.

    The array shares the tensor's memory unless that is on a GPU or `copy` is set. Raises ServingError(INTERNAL) when the model returned
    something else than the configuration says.
    """
    if wire == "BYTES":
        return lambda value: _from_strings(model, name, value)
    dtype = DTYPES[wire]
    plain = not copy and wire != "BF16"

    def read(value: Any) -> Array:
        if plain and type(value) is torch.Tensor and value.dtype is dtype:
            try:
                array: Array = value.numpy()
            except (RuntimeError, TypeError):  # it is on a GPU, or a parameter that is returned as it is
                pass
            else:
                return array
        return _to_array(model, name, wire, value, copy=copy)

    return read


def _to_array(model: str, name: str, wire: str, value: Any, *, copy: bool) -> Array:
    if not isinstance(value, torch.Tensor):
        raise internal(
            f"output '{name}' of model '{model}' must be a Tensor, the model returned {type(value).__name__}"
        )
    if value.dtype is not DTYPES[wire]:
        raise internal(
            f"configuration expects datatype TYPE_{wire} for output '{name}', model provides {_type_name(value.dtype)}"
        )
    value = value.detach()
    if value.device.type != "cpu":
        value = value.cpu()
    elif copy:
        value = value.clone()
    if wire == "BF16":
        value = value.view(torch.uint16)
    array: Array = value.numpy()
    return array


def _type_name(dtype: torch.dtype) -> str:
    wire = WIRE.get(dtype)
    return str(dtype) if wire is None else f"TYPE_{wire}"


def _from_strings(model: str, name: str, value: Any) -> Array:
    if not isinstance(value, list) or not all(isinstance(element, str) for element in value):
        raise internal(
            f"output '{name}' of model '{model}' must be a List[str], the model returned {type(value).__name__}"
        )
    array = np.empty(len(value), dtype=object)
    array[:] = [element.encode() for element in value]
    return array


def to_strings(model: str, name: str, array: Array) -> list[str]:
    """Return a BYTES array as the list of str that TorchScript takes. Raises ServingError(INVALID_ARGUMENT) when it is not UTF-8."""
    strings = []
    for index, element in enumerate(array.ravel()):
        try:
            strings.append(element if isinstance(element, str) else element.decode())
        except UnicodeDecodeError as error:
            raise invalid(
                f"element {index} of input '{name}' for model '{model}' is not valid UTF-8: {error.reason} at byte {error.start}"
            ) from None
    return strings


_NUMBERS: Final[dict[str, Callable[[Any], int | float]]] = {"bool": bool, "float": float, "int": int}


def number_reader(model: str, name: str, kind: str) -> Callable[[Array], int | float]:
    """Return the function that makes the Python number of type `kind` of an array of one element. It raises
    ServingError(INVALID_ARGUMENT) for an array of another size."""
    make = _NUMBERS[kind]

    def read(array: Array) -> int | float:
        if array.size != 1:
            raise invalid(f"input '{name}' for model '{model}' must be one number, got shape {list(array.shape)}")
        return make(array.reshape(-1)[0])

    return read

"""`--input NAME=VALUE`: from what a person types to a tensor that the model takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal_cli.client.tensors import ClientTensor
from shoal_dataplane.core.dtypes import BY_WIRE

Array = np.ndarray[Any, Any]

_IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"})
_CHANNELS = 3


class InputError(ValueError):
    """An --input that does not fit the model. The text names the input, what was expected and what was given."""


def split(text: str) -> tuple[str, str]:
    """Split NAME=VALUE. Raises InputError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--input {text}: expected NAME=VALUE, NAME=@file.npy, NAME=@image.png or NAME=@text.txt")
    return name, value


def build(given: Sequence[tuple[str, str]], metadata: Mapping[str, Any]) -> list[ClientTensor]:
    """Return the inputs of a request. `metadata` is the model's: names, datatypes, shapes (with -1, the batch first).

    Several values for one name become the rows of a batch. Raises InputError: a name that the model does not have, a value that
    does not fit its datatype or shape.
    """
    known = {entry["name"]: entry for entry in metadata.get("inputs", [])}
    rows: dict[str, list[Array]] = {}
    for name, value in given:
        if name not in known:
            listed = ", ".join(f"{n} ({e['datatype']} {_shape(e['shape'])})" for n, e in known.items())
            raise InputError(f"model '{metadata.get('name')}' has no input '{name}'; it has {listed}")
        entry = known[name]
        shape = [int(size) for size in entry["shape"]]
        rows.setdefault(name, []).append(_fit(name, read(name, value, entry["datatype"], shape), shape))
    return [ClientTensor.of(name, known[name]["datatype"], _stack(name, parts)) for name, parts in rows.items()]


def read(name: str, value: str, datatype: str, shape: Sequence[int]) -> Array:
    """Return the array that a VALUE means for an input of this datatype and shape."""
    if not value.startswith("@"):
        return _typed(name, value, datatype)
    if value == "@-":
        return _from_text(name, sys.stdin.read(), datatype)
    path = Path(value[1:]).expanduser()
    if not path.is_file():
        raise InputError(f"input '{name}': no such file: {path}")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _from_npy(name, path, datatype)
    if datatype == "BYTES":
        raw = path.read_bytes()
        return np.array(raw if suffix in _IMAGES else raw.rstrip(b"\r\n"), dtype=object)
    if suffix in _IMAGES:
        return _from_image(name, path, datatype, shape)
    return _from_text(name, path.read_text(encoding="utf-8"), datatype)


def _from_text(name: str, text: str, datatype: str) -> Array:
    text = text.rstrip("\r\n")
    return np.array(text, dtype=object) if datatype == "BYTES" else _typed(name, text, datatype)


def _typed(name: str, text: str, datatype: str) -> Array:
    """A typed value: JSON (a number, true, or nested lists) or numbers with commas between; for BYTES any text, or a JSON list of it."""
    if datatype == "BYTES":
        if text.startswith("["):
            try:
                return np.array(json.loads(text), dtype=object)
            except ValueError:
                pass
        return np.array(text, dtype=object)
    try:
        values = json.loads(text)
    except ValueError:
        try:
            values = json.loads(f"[{text}]")
        except ValueError:
            raise InputError(
                f"input '{name}': '{_short(text)}' is no {datatype} value: expected a number or a JSON list"
            ) from None
    try:
        array = np.array(values)
    except ValueError:
        raise InputError(f"input '{name}': the rows of the list have different lengths") from None
    return _cast(name, array, datatype)


def _cast(name: str, array: Array, datatype: str) -> Array:
    """Bring an array to the datatype, if no value changes by it beyond rounding of floats."""
    if array.dtype.kind not in "biuf":
        raise InputError(f"input '{name}': expected {datatype} values, got {array.dtype.name}")
    target = np.dtype(np.float32) if datatype == "BF16" else BY_WIRE[datatype].numpy
    if target.kind != "f" and array.size:
        with np.errstate(invalid="ignore", over="ignore"):
            same = array.astype(target)
        if not np.array_equal(same.astype(object), array.astype(object)):
            span = f"{array.dtype.name} from {array.min()} to {array.max()}"
            raise InputError(f"input '{name}': the values do not fit {datatype}: they are {span}")
        return same
    return array.astype(target)


def _from_npy(name: str, path: Path, datatype: str) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"input '{name}': {path} is no .npy file without objects: {error}") from error
    if datatype != "BYTES":
        return _cast(name, array, datatype)
    if array.dtype.kind not in "SU":
        raise InputError(f"input '{name}': expected strings for BYTES, got {array.dtype.name}")
    return array.astype(object)


def _from_image(name: str, path: Path, datatype: str, shape: Sequence[int]) -> Array:
    """Decode a picture and crop and scale it to the input: [..., height, width, 3] or [..., 3, height, width]. UINT8 gets 0 to 255,
    floats 0 to 1."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise InputError(
            f"input '{name}': reading {path.name} needs the package pillow (pip install 'shoal[quickstart]')"
        ) from None
    last = list(shape[-3:])
    if len(last) != _CHANNELS or _CHANNELS not in (last[0], last[2]):
        raise InputError(f"input '{name}' has shape {_shape(shape)}, expected [height, width, 3] or [3, height, width]")
    first = last[2] != _CHANNELS
    height, width = last[1:] if first else last[:2]
    try:
        picture = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(f"input '{name}': {path} cannot be read as a picture: {error}") from error
    size = (width if width > 0 else picture.width, height if height > 0 else picture.height)
    pixels: Array = np.asarray(ImageOps.fit(picture, size, Image.Resampling.BICUBIC))
    if first:
        pixels = np.moveaxis(pixels, -1, 0)
    return pixels if datatype == "UINT8" else _cast(name, pixels / np.float32(255), datatype)


def _fit(name: str, array: Array, shape: Sequence[int]) -> Array:
    """Give the array the rank of the input: dimensions of 1 come in front (a batch of one, say). Raises InputError when it cannot fit."""
    while array.ndim < len(shape):
        array = array[np.newaxis]
    fits = array.ndim == len(shape) and all(want in (-1, got) for want, got in zip(shape, array.shape, strict=True))
    if not fits:
        raise InputError(f"input '{name}': expected shape {_shape(shape)}, got {_shape(array.shape)}")
    return array


def _stack(name: str, rows: Sequence[Array]) -> Array:
    if len(rows) == 1:
        return rows[0]
    try:
        return np.concatenate(rows)
    except ValueError:
        shapes = " and ".join(dict.fromkeys(_shape(row.shape) for row in rows))
        raise InputError(f"input '{name}': rows of different shapes cannot share a batch: {shapes}") from None


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."

"""Outputs as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal_cli.client.tensors import ClientTensor

Array = np.ndarray[Any, Any]

_EDGE = 4
_MAX_TEXT = 200


def describe(tensor: ClientTensor, *, full: bool = False) -> str:
    """Return the lines of one output: name, datatype and shape, then the values; long ones are shortened unless `full`."""
    values = tensor.array()
    head = f"{tensor.name}  {tensor.datatype} [{', '.join(map(str, tensor.shape))}]"
    if tensor.datatype == "BYTES":
        return "\n".join([head, *(f"  {line}" for line in _strings(values, full))])
    limit = values.size + 1 if full else 64
    text = np.array2string(
        values, threshold=limit, edgeitems=_EDGE, precision=6, suppress_small=False, max_line_width=100, separator=", "
    )
    return "\n".join([head, *(f"  {line}" for line in text.splitlines())])


def classes(tensor: ClientTensor) -> str:
    """Return the lines of a classified output, whose elements are "VALUE:INDEX[:LABEL]": best first, a block for each row."""
    lines = [f"{tensor.name}"]
    rows = tensor.array().reshape(-1, tensor.shape[-1]) if tensor.shape else tensor.array().reshape(1, -1)
    for number, row in enumerate(rows):
        if len(rows) > 1:
            lines.append(f"  row {number}")
        for element in row:
            value, _, rest = _text(element).partition(":")
            index, _, label = rest.partition(":")
            lines.append(f"  {_number(value):>10}  {label or f'class {index}'}" + (f" ({index})" if label else ""))
    return "\n".join(lines)


def as_json(tensors: Sequence[ClientTensor]) -> list[dict[str, Any]]:
    """Return outputs as in a KServe v2 JSON response: data flat, row-major; BYTES as strings."""
    return [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "data": [_text(v) if isinstance(v, (bytes, str)) else v for v in tensor.array().ravel().tolist()],
        }
        for tensor in tensors
    ]


def _strings(values: Array, full: bool) -> list[str]:
    flat = values.ravel()
    shown = flat if full or flat.size <= 4 * _EDGE else flat[: 2 * _EDGE]
    lines = []
    for element in shown:
        text = _text(element)
        lines.append(text if full or len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... ({len(text)} characters)")
    if len(shown) < flat.size:
        lines.append(f"... and {flat.size - len(shown)} more")
    return lines


def _text(element: bytes | str) -> str:
    return element if isinstance(element, str) else element.decode("utf-8", errors="backslashreplace")


def _number(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text

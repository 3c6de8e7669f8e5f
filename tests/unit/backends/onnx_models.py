"""Small ONNX models, written with onnx.helper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Size = int | str | None
Value = tuple[str, int, Sequence[Any] | None]
"""Name, ONNX element type, shape (numbers, names, None for a size without a name)."""

FLOAT = TensorProto.FLOAT
STRING = TensorProto.STRING


def save(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    weights: dict[str, Array] | None = None,
    *,
    name: str = "model.onnx",
    ir_version: int = 9,
    external: bool = False,
) -> Path:
    """Write a model; returns its folder."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, key) for key, array in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / name, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return folder


def mlp(folder: Path, *, external: bool = False) -> Path:
    """x [batch, 8] FP32 -> y [batch, 3] FP32, through a hidden layer."""
    random = np.random.default_rng(1)
    weights = {
        "w0": random.standard_normal((8, 16)).astype(np.float32),
        "b0": random.standard_normal(16).astype(np.float32),
        "w1": random.standard_normal((16, 3)).astype(np.float32),
        "b1": random.standard_normal(3).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w1", "b1"], ["y"]),
    ]
    return save(folder, nodes, [("x", FLOAT, ["batch", 8])], [("y", FLOAT, ["batch", 3])], weights, external=external)


def elementwise(folder: Path, operator: str, kind: int, shape: Sequence[Size], out_kind: int | None = None) -> Path:
    """x -> y, one operator of one input."""
    attributes: dict[str, Any] = {"to": out_kind} if operator == "Cast" else {}
    return save(
        folder,
        [helper.make_node(operator, ["x"], ["y"], **attributes)],
        [("x", kind, shape)],
        [("y", out_kind or kind, shape)],
    )


def sum_and_difference(folder: Path) -> Path:
    """a [batch, 4], b [batch, 4] FP32 -> sum, difference [batch, 4]."""
    return save(
        folder,
        [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])],
        [("a", FLOAT, ["batch", 4]), ("b", FLOAT, ["batch", 4])],
        [("sum", FLOAT, ["batch", 4]), ("difference", FLOAT, ["batch", 4])],
    )

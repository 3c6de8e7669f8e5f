"""Small ONNX and PyTorch models: each multiplies by two and adds one, so that an answer can be told from its input."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT


def save_onnx(
    folder: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], constants: Sequence[Any]
) -> None:
    """Write FOLDER/model.onnx. Inputs and outputs are (name, element type, shape)."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        list(constants),
    )
    folder.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")


def affine_onnx(folder: Path, shape: Sequence[int | str], input_name: str = "x", output_name: str = "y") -> None:
    """y = 2 x + 1."""
    nodes = [
        helper.make_node("Mul", [input_name, "two"], ["double"]),
        helper.make_node("Add", ["double", "one"], [output_name]),
    ]
    constants = [helper.make_tensor("two", FLOAT, [], [2.0]), helper.make_tensor("one", FLOAT, [], [1.0])]
    save_onnx(folder, nodes, [(input_name, FLOAT, shape)], [(output_name, FLOAT, shape)], constants)


def ragged_onnx(folder: Path, kind: str) -> None:
    """X (flat, all requests one after the other) and the batch inputs B (of `kind`) and COUNT (elements of each request).

    Y = 2 X; SEEN [batch, 1]: what of B belongs to each request, or for MAX_ELEMENT_COUNT_AS_SHAPE its length.
    """
    column = helper.make_tensor("column", TensorProto.INT64, [2], [-1, 1])
    constants = [helper.make_tensor("two", FLOAT, [], [2.0]), column]
    nodes = [helper.make_node("Mul", ["X", "two"], ["Y"])]
    if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
        zero = helper.make_tensor("zero", FLOAT, [], [0.0])
        constants.append(zero)
        nodes += [
            helper.make_node("Shape", ["B"], ["length"]),
            helper.make_node("Cast", ["length"], ["length_float"], to=FLOAT),
            helper.make_node("Mul", ["COUNT", "zero"], ["zeros"]),
            helper.make_node("Add", ["zeros", "length_float"], ["flat"]),
        ]
    elif kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
        constants += [
            helper.make_tensor("start", TensorProto.INT64, [1], [0]),
            helper.make_tensor("end", TensorProto.INT64, [1], [-1]),
        ]
        nodes.append(helper.make_node("Slice", ["B", "start", "end"], ["flat"]))
    else:
        nodes.append(helper.make_node("Identity", ["B"], ["flat"]))
    nodes += [
        helper.make_node("Reshape", ["flat", "column"], ["SEEN"]),
    ]
    shape = ["b", 1] if kind == "BATCH_ITEM_SHAPE" else ["b"]
    inputs = [("X", FLOAT, ["n"]), ("B", FLOAT, shape), ("COUNT", FLOAT, ["c"])]
    save_onnx(folder, nodes, inputs, [("Y", FLOAT, ["n"]), ("SEEN", FLOAT, ["m", 1])], constants)


def affine_torch(folder: Path, exported: bool) -> None:
    """y = 2 x + 1 for x [n, 4]: model.pt (TorchScript), or model.pt2 (torch.export)."""
    import torch

    class Affine(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x + 1

    folder.mkdir(parents=True, exist_ok=True)
    example = torch.zeros(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about itself
        if exported:
            batch = torch.export.Dim("batch", min=1, max=64)
            program = torch.export.export(Affine(), (example,), dynamic_shapes={"x": {0: batch}})
            torch.export.save(program, folder / "model.pt2")
        else:
            torch.jit.save(torch.jit.trace(Affine().eval(), example), str(folder / "model.pt"))

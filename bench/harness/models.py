"""The models that are measured, written as Triton repositories."""

from __future__ import annotations

import textwrap
from pathlib import Path

MAX_BATCH = 64
INPUTS, HIDDEN, OUTPUTS = 64, 256, 16


def _config(name: str, backend: str, extra: str) -> str:
    return textwrap.dedent(
        f"""
        name: "{name}"
        backend: "{backend}"
        max_batch_size: {MAX_BATCH}
        input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ {INPUTS} ] }} ]
        output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ {OUTPUTS} ] }} ]
        {extra}
        """
    ).lstrip()


def dynamic(delay_us: int = 0) -> str:
    """A dynamic_batching section."""
    return f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}"


def instances(count: int) -> str:
    """An instance_group section."""
    return f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]"


def torch_mlp(repository: Path, name: str = "mlp", extra: str = "") -> None:
    """The MLP 64-256-256-16 as TorchScript, for Shoal's PyTorch backend."""
    import torch

    torch.manual_seed(0)
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    net = torch.nn.Sequential(
        linear(INPUTS, HIDDEN), relu(), linear(HIDDEN, HIDDEN), relu(), linear(HIDDEN, OUTPUTS)
    ).eval()
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    torch.jit.script(net).save(str(folder / "model.pt"))
    (folder.parent / "config.pbtxt").write_text(_config(name, "pytorch", extra))


PYTHON_MLP = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils

torch.set_num_threads(1)


class TritonPythonModel:
    def initialize(self, args):
        torch.manual_seed(0)
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        self.net = torch.nn.Sequential(
            linear(64, 256), relu(), linear(256, 256), relu(), linear(256, 16)
        ).eval()

    @torch.inference_mode()
    def execute(self, requests):
        parts = [pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() for r in requests]
        together = torch.from_numpy(np.concatenate(parts) if len(parts) > 1 else parts[0].copy())
        answers = self.net(together).numpy()
        responses, at = [], 0
        for part in parts:
            rows = part.shape[0]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answers[at : at + rows])]))
            at += rows
        return responses
"""


def python_mlp(repository: Path, name: str = "mlp", extra: str = "") -> None:
    """The same MLP as a Python model that runs each batch in one forward pass, for Triton's and Shoal's Python backends."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(PYTHON_MLP.lstrip())
    (folder.parent / "config.pbtxt").write_text(_config(name, "python", extra))


def own_process() -> str:
    """Run in a process of its own."""
    return 'parameters { key: "SHOAL_EXECUTION" value: { string_value: "process" } }'


def onnx_mlp(repository: Path, name: str = "mlp", extra: str = "") -> None:
    """The MLP's shape as ONNX, with random weights."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    sizes = [INPUTS, HIDDEN, HIDDEN, OUTPUTS]
    nodes, weights, value = [], [], "IN"
    for layer in range(3):
        weights.append(
            numpy_helper.from_array(
                random.standard_normal((sizes[layer], sizes[layer + 1])).astype(np.float32), f"w{layer}"
            )
        )
        weights.append(numpy_helper.from_array(np.zeros(sizes[layer + 1], np.float32), f"b{layer}"))
        last = layer == 2
        nodes.append(helper.make_node("Gemm", [value, f"w{layer}", f"b{layer}"], ["OUT" if last else f"h{layer}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"h{layer}"], [f"r{layer}"]))
        value = f"r{layer}"
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["batch", INPUTS])],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["batch", OUTPUTS])],
        weights,
    )
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )
    (folder.parent / "config.pbtxt").write_text(_config(name, "onnxruntime", extra))


PYTHON_ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
            for r in requests
        ]
"""


def python_echo(repository: Path, name: str = "echo") -> None:
    """A Python model that needs numpy alone."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(PYTHON_ECHO.lstrip())
    (folder.parent / "config.pbtxt").write_text(_config(name, "python", "").replace(f"[ {OUTPUTS} ]", f"[ {INPUTS} ]"))


def _identity(name: str, backend: str, extra: str) -> str:
    tensor = '[ {{ name: "{}" data_type: TYPE_FP32 dims: [ -1 ] }} ]'
    return (
        f'name: "{name}"\nbackend: "{backend}"\ninput {tensor.format("IN")}\noutput {tensor.format("OUT")}\n{extra}\n'
    )


def torch_identity(repository: Path, name: str = "big", extra: str = "") -> None:
    """A TorchScript model that answers its input."""
    import torch

    folder = repository / name / "1"
    folder.mkdir(parents=True)
    torch.jit.script(torch.nn.Identity()).save(str(folder / "model.pt"))
    (folder.parent / "config.pbtxt").write_text(_identity(name, "pytorch", extra))


def python_identity(repository: Path, name: str = "big", extra: str = "") -> None:
    """A Python model that answers its input, of any length."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(PYTHON_ECHO.lstrip())
    (folder.parent / "config.pbtxt").write_text(_identity(name, "python", extra))

"""Loading a model file through a backend and running batches in it, as the factory and a scheduler would."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import Backend, Execution, Instance, InstanceSpec, ModelContext
from shoal_dataplane.core.dtypes import from_numpy
from shoal_dataplane.core.model_spec import compile_spec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor

Array = np.ndarray[Any, Any]
CPU = InstanceSpec("m_0", "CPU", 0)


class Nobody:
    """A caller that wants no answer."""

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        raise AssertionError("a backend answers by returning")


def config(text: str = "") -> mc.ModelConfig:
    """Parse a configuration's text; its name is m."""
    return text_format.Parse(f'name: "m" {text}', mc.ModelConfig())


def completed(backend: Backend, version_dir: Path, text: str = "", **options: str) -> mc.ModelConfig:
    """Auto-complete a configuration. Options are written with underscores."""
    found = config(text)
    backend.auto_complete(found, version_dir, {key.replace("_", "-"): value for key, value in options.items()})
    return found


def context(version_dir: Path, found: mc.ModelConfig) -> ModelContext:
    return ModelContext("m", 1, version_dir.parent, version_dir, found, compile_spec(found, 1), {})


def load(backend: Backend, version_dir: Path, found: mc.ModelConfig | str, instance: InstanceSpec = CPU) -> Instance:
    """Load one instance of a complete configuration."""
    return backend.load(context(version_dir, config(found) if isinstance(found, str) else found), instance)


def request(
    inputs: dict[str, Array | Tensor],
    *,
    outputs: tuple[str, ...] | None = None,
    wire: bool = True,
    batch_size: int | None = None,
) -> InferRequest:
    """A request whose tensors are read-only bytes, as they come off the wire, or arrays when `wire` is False."""
    tensors = {name: _tensor(name, value, wire) for name, value in inputs.items()}
    made = InferRequest("m", "", tensors, Nobody(), outputs=outputs)
    first = next(iter(tensors.values())).shape
    made.batch_size = batch_size if batch_size is not None else (first[0] if first else 1)
    return made


def bfloat16(name: str, values: Array) -> Tensor:
    """A BF16 tensor: the upper halves of FP32 values, as bytes."""
    bits = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return Tensor(name, "BF16", values.shape, bits.tobytes())


def from_bfloat16(tensor: Tensor) -> Array:
    """The FP32 values of a BF16 tensor."""
    return (tensor.array().astype(np.uint32) << 16).view(np.float32)


def _tensor(name: str, value: Array | Tensor, wire: bool) -> Tensor:
    if isinstance(value, Tensor):
        return value
    made = Tensor(name, from_numpy(value.dtype).wire, value.shape, value)
    if wire:
        made.data = bytes(made.buffer())
    return made


def answers(execution: Execution) -> list[dict[str, Array]]:
    """The output arrays of each response by name; none of them may have failed."""
    for response in execution.responses:
        assert response.error is None, response.error
    return [{tensor.name: tensor.array() for tensor in response.outputs} for response in execution.responses]


def run(instance: Instance, *requests: InferRequest) -> list[dict[str, Array]]:
    """Run one batch and return its output arrays."""
    return answers(instance.execute(requests))


def run_one(instance: Instance, **inputs: Array) -> dict[str, Array]:
    """Run one request with these inputs."""
    return run(instance, request(dict(inputs)))[0]


def ramp(shape: Sequence[int], dtype: Any = np.float32) -> Array:
    """Different numbers around zero."""
    count = math.prod(shape)
    return (np.arange(count, dtype=np.float64) / max(1, count) - 0.5).astype(dtype).reshape(shape)


def tensor(kind: str, name: str, dtype: str = "FP32", dims: str = "4", more: str = "") -> str:
    """The text of an input or output."""
    return f'{kind} {{ name: "{name}" data_type: TYPE_{dtype} dims: [ {dims} ] {more} }} '


def parameter(key: str, value: str) -> str:
    """The text of a parameter."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '

"""The one interface that every backend implements.

A backend is a module with a `BACKEND` object. It is found by the configuration's `backend` (or `platform`) name through
`backends.registry`, which imports the module only then: a server whose models are ONNX never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.model_spec import ModelSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What a backend needs to load one version. `model_dir` holds config.pbtxt and the version folders, `version_dir` the files of
    this version. `config` is complete and normalised. `backend_options` come from --backend-config."""

    name: str
    version: int
    model_dir: Path
    version_dir: Path
    config: mc.ModelConfig
    spec: ModelSpec
    backend_options: dict[str, str]


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One execution instance: its name (`<group>_<i>`), "CPU", "GPU" or "MODEL", and the GPU's index (0 on CPU)."""

    name: str
    kind: str
    device_id: int


class Execution(NamedTuple):
    """The answers to one batch, one for each request in order, and how long the three phases took, in nanoseconds."""

    responses: Sequence[InferResponse]
    input_ns: int
    infer_ns: int
    output_ns: int


class Instance(Protocol):
    """A model loaded on a device. Runs one batch at a time, on one thread (not always the same one)."""

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Run the batch. A failure of one request is its response's error; an exception fails every request of the batch
        (INTERNAL, or as the ServingError says). Outputs that a request did not ask for may be left out."""

    def close(self) -> None:
        """Free what the instance holds. Called once, after the last execute."""


class Backend(Protocol):
    """How models of one kind are completed and loaded."""

    @property
    def default_filename(self) -> str:
        """The model file inside the version folder when the configuration names none ("model.onnx")."""

    @property
    def default_execution(self) -> str:
        """ "auto" (in the server's process: inline when fast, else a thread) or "process"."""

    def auto_complete(self, config: mc.ModelConfig, version_dir: Path, backend_options: dict[str, str]) -> None:
        """Fill what the configuration leaves open (max_batch_size, inputs, outputs, ...) from the model file, in place. What is
        configured is checked against the file and never changed. Raises ServingError(INVALID_ARGUMENT) on a contradiction."""

    def load(self, context: ModelContext, instance: InstanceSpec) -> Instance:
        """Load one instance. Raises ServingError whose text names the file and what is wrong with it."""

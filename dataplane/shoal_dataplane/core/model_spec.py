"""A model's configuration, compiled once into what each request is checked against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.dtypes import BY_CONFIG, DataType


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. `dims` as configured, without the batch dimension; -1 is any size. `reshape` is what the model itself
    sees instead of `dims` (None: the same). `labels` name the indices of a classification output."""

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    ragged: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelSpec:
    """What a request to one loaded version must look like. `max_batch_size` 0: the model does not batch, shapes are full shapes."""

    name: str
    version: int
    max_batch_size: int
    inputs: dict[str, TensorSpec] = field(default_factory=dict)
    outputs: dict[str, TensorSpec] = field(default_factory=dict)

    @cached_property
    def required(self) -> frozenset[str]:
        """Names of the inputs that every request must bring."""
        return frozenset(name for name, spec in self.inputs.items() if not spec.optional)


def compile_spec(config: mc.ModelConfig, version: int, labels: dict[str, tuple[str, ...]] | None = None) -> ModelSpec:
    """Compile a normalised configuration (see repository). `labels` maps output names to their label file's lines."""

    def specs(tensors: Iterable[mc.ModelInput] | Iterable[mc.ModelOutput]) -> dict[str, TensorSpec]:
        return {
            t.name: TensorSpec(
                t.name,
                BY_CONFIG[t.data_type],
                tuple(t.dims),
                tuple(t.reshape.shape) if t.HasField("reshape") else None,
                optional=getattr(t, "optional", False),
                ragged=getattr(t, "allow_ragged_batch", False),
                labels=(labels or {}).get(t.name, ()),
            )
            for t in tensors
        }

    return ModelSpec(config.name, version, config.max_batch_size, specs(config.input), specs(config.output))

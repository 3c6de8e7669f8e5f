"""torch.export files: torch.export.save of an ExportedProgram.

The program's graph is called directly, with its weights and the inputs as one flat list. ExportedProgram.module() would do the same
behind hooks, guards and a flattening of arguments: 130 us a call more than the 60 us that a small MLP takes (torch 2.13, one core).
What those guards check is checked elsewhere: datatypes, ranks and fixed sizes against the configuration when the model is loaded,
the limits of free sizes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.export
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.export.passes import move_to_device_pass

from shoal_dataplane.backends.arrays.signature import ModelSignature
from shoal_dataplane.backends.pytorch.effects import graph_effects
from shoal_dataplane.backends.pytorch.errors import error_text
from shoal_dataplane.backends.pytorch.export_signature import describe
from shoal_dataplane.backends.pytorch.program import Argument
from shoal_dataplane.core.errors import internal, invalid


class ExportProgram:
    """An exported graph, ready to call."""

    def __init__(self, model: str, program: torch.export.ExportedProgram) -> None:
        self._model = model
        description = describe(model, program)
        self.signature: ModelSignature = description.signature
        self.arguments = tuple(Argument(tensor.name) for tensor in self.signature.inputs)
        self.input_names = description.input_names
        self.output_names = description.output_names
        self.output_count = len(self.signature.outputs)
        self.writes_inputs, self.stateful = graph_effects(program)
        self._limits = description.limits
        self._forward = program.graph_module.forward
        self._values, self._feeds = _bind_inputs(program)
        self._results = [
            at
            for at, spec in enumerate(program.graph_signature.output_specs)
            if spec.kind is OutputKind.USER_OUTPUT and isinstance(spec.arg, TensorArgument)
        ]
        self._mutated = _bind_mutations(program)

    def run(self, arguments: list[Any]) -> Sequence[Any]:
        for argument, dimension, low, high in self._limits:
            size = arguments[argument].shape[dimension]
            if size < low or (high is not None and size > high):
                raise invalid(
                    f"input '{self.arguments[argument].name}' for model '{self._model}': dimension {dimension} must be "
                    f"{f'at least {low}' if high is None else f'from {low} to {high}'}, as the model was exported; got {size}"
                )
        values = self._values.copy()
        for at, value in zip(self._feeds, arguments, strict=True):
            values[at] = value
        results = self._forward(*values)
        for at, state in self._mutated:
            state.copy_(results[at])
        return [results[at] for at in self._results]


def load_export(model: str, path: Path, device: torch.device | None) -> ExportProgram:
    """Load an exported program on `device` (None: where it was exported).

    Raises ServingError: INTERNAL that names a file that cannot be loaded, INVALID_ARGUMENT for inputs or outputs that cannot be served.
    """
    try:
        program = torch.export.load(path)
        if device is not None and device.type != "cpu":
            program = move_to_device_pass(program, device)
    except Exception as error:
        raise internal(f"failed to load model '{model}' from '{path}': {error_text(error)}") from error
    return ExportProgram(model, program)


def _bind_inputs(program: torch.export.ExportedProgram) -> tuple[list[Any], list[int]]:
    """Return the graph's arguments with everything but the user's tensors filled in, and where those go."""
    values: list[Any] = []
    feeds: list[int] = []
    for spec in program.graph_signature.input_specs:
        if isinstance(spec.arg, TensorArgument) and spec.kind is InputKind.USER_INPUT:
            feeds.append(len(values))
            values.append(None)
        elif spec.kind is InputKind.USER_INPUT:
            values.append(getattr(spec.arg, "value", None))
        else:
            values.append(_state(program, spec.target or ""))
    return values, feeds


def _bind_mutations(program: torch.export.ExportedProgram) -> list[tuple[int, torch.Tensor]]:
    """Return which results of the graph are new values of which buffers (a decomposed graph does not write in place)."""
    return [
        (at, _state(program, spec.target or ""))
        for at, spec in enumerate(program.graph_signature.output_specs)
        if spec.kind is OutputKind.BUFFER_MUTATION
    ]


def _state(program: torch.export.ExportedProgram, target: str) -> Any:
    """A parameter, buffer or constant: the state dictionary has those that are saved with a module, `constants` the others."""
    return program.state_dict[target] if target in program.state_dict else program.constants[target]

"""What an exported program says about its inputs and outputs: names, datatypes, shapes, and which sizes are free within what limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.export
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from shoal_dataplane.backends.arrays.signature import ModelSignature, ModelTensor
from shoal_dataplane.backends.pytorch.names import leaf_paths, single_key
from shoal_dataplane.backends.pytorch.tensors import WIRE
from shoal_dataplane.core.errors import ServingError, invalid


class SizeLimit(NamedTuple):
    """The bounds of a free size: of which argument (by position), of which dimension; `high` None: no upper bound."""

    argument: int
    dimension: int
    low: int
    high: int | None


class ExportDescription(NamedTuple):
    """Names map to positions among the tensors of `signature`."""

    signature: ModelSignature
    input_names: Mapping[str, int]
    output_names: Mapping[str, int]
    limits: tuple[SizeLimit, ...]


_HANDLED_INPUTS = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ, InputKind.PARAMETER)
_HANDLED_OUTPUTS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
# Exporters assume that a free size is at least 2, because 0 and 1 could be special cases; torch does not hold callers to that either.
_ASSUMED_LOW = 2


def describe(model: str, program: torch.export.ExportedProgram) -> ExportDescription:
    """Read the signature. Raises ServingError(INVALID_ARGUMENT) for a program whose inputs or outputs cannot be served."""
    examples = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs, input_leaves = _inputs(model, program, examples)
    limits = [limit for at, tensor in enumerate(inputs) for limit in _limits(program, at, examples[tensor.name])]
    outputs, output_names = _outputs(model, program, examples)
    batches, most = _batch(program, [examples[t.name] for t in inputs] + _output_examples(program, examples))
    return ExportDescription(
        ModelSignature(tuple(inputs), tuple(outputs), batches, most),
        _input_names(program, inputs, input_leaves),
        output_names,
        tuple(limits),
    )


def _inputs(
    model: str, program: torch.export.ExportedProgram, examples: Mapping[str, Any]
) -> tuple[list[ModelTensor], list[int]]:
    """The user's tensors, and for each its position among all leaves of the arguments (constants are leaves too)."""
    tensors: list[ModelTensor] = []
    leaves: list[int] = []
    leaf = 0
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(spec.arg, TensorArgument):
                tensors.append(_tensor(model, "input", spec.arg.name, examples[spec.arg.name]))
                leaves.append(leaf)
            elif not isinstance(spec.arg, ConstantArgument):
                raise _unsupported(
                    model, f"its input '{spec.arg.name}' is a number ({type(spec.arg).__name__}), not a tensor"
                )
            leaf += 1
        elif spec.kind not in _HANDLED_INPUTS:
            raise _unsupported(model, f"it has an input of kind {spec.kind.name}")
    return tensors, leaves


def _input_names(
    program: torch.export.ExportedProgram, tensors: list[ModelTensor], leaves: list[int]
) -> dict[str, int]:
    names = {tensor.name: at for at, tensor in enumerate(tensors)}
    paths = _paths(program.call_spec.in_spec, ("ARGS", "KWARGS"))
    names.update({paths[leaf]: at for at, leaf in enumerate(leaves) if leaf < len(paths)})
    return names


def _outputs(
    model: str, program: torch.export.ExportedProgram, examples: Mapping[str, Any]
) -> tuple[list[ModelTensor], dict[str, int]]:
    tensors: list[ModelTensor] = []
    names: dict[str, int] = {}
    paths = _paths(program.call_spec.out_spec, ("RESULT",))
    leaf = 0
    for spec in program.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            if spec.kind not in _HANDLED_OUTPUTS:
                raise _unsupported(model, f"it has an output of kind {spec.kind.name}")
            continue
        path = paths[leaf] if leaf < len(paths) else ""
        leaf += 1
        if not isinstance(spec.arg, TensorArgument):
            continue
        key = single_key(path, "RESULT")
        by_index = f"OUTPUT__{len(tensors)}"
        names.update({name: len(tensors) for name in (by_index, path, key) if name})
        tensors.append(_tensor(model, "output", key or by_index, examples[spec.arg.name]))
    return tensors, names


def _output_examples(program: torch.export.ExportedProgram, examples: Mapping[str, Any]) -> list[Any]:
    specs = program.graph_signature.output_specs
    return [
        examples[s.arg.name] for s in specs if s.kind is OutputKind.USER_OUTPUT and isinstance(s.arg, TensorArgument)
    ]


def _tensor(model: str, kind: str, name: str, example: torch.Tensor) -> ModelTensor:
    wire = WIRE.get(example.dtype)
    if wire is None:
        raise _unsupported(model, f"its {kind} '{name}' is of type {example.dtype}, which has no KServe datatype")
    shape = tuple(size if isinstance(size, int) else -1 for size in example.shape)
    return ModelTensor(name, wire, shape)


def _limits(program: torch.export.ExportedProgram, argument: int, example: torch.Tensor) -> list[SizeLimit]:
    limits: list[SizeLimit] = []
    for dimension, size in enumerate(example.shape):
        if isinstance(size, torch.SymInt):
            low, high = _range(program, size)
            if low > _ASSUMED_LOW or high is not None:
                limits.append(SizeLimit(argument, dimension, low if low > _ASSUMED_LOW else 0, high))
    return limits


def _batch(program: torch.export.ExportedProgram, tensors: list[torch.Tensor]) -> tuple[bool, int | None]:
    """Is the first size of all tensors one and the same free size, and up to what?"""
    firsts: list[Any] = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
    symbols = [size.node.expr for size in firsts if isinstance(size, torch.SymInt)]
    if len(symbols) < len(firsts) or any(symbol != symbols[0] or not symbol.is_Symbol for symbol in symbols):
        return False, None
    low, high = _range(program, firsts[0])
    return low <= _ASSUMED_LOW, high


def _range(program: torch.export.ExportedProgram, size: Any) -> tuple[int, int | None]:
    bounds = program.range_constraints.get(size.node.expr)
    if bounds is None:
        return 0, None
    return int(bounds.lower), int(bounds.upper) if bounds.upper.is_Integer else None


def _paths(spec: pytree.TreeSpec, roots: tuple[str, ...]) -> list[str]:
    """The paths of the leaves of a tree; none where it has types of the exporter's own, which only positions can name."""
    try:
        return leaf_paths(pytree.treespec_dumps(spec), roots)
    except (NotImplementedError, ValueError, TypeError):
        return []


def _unsupported(model: str, what: str) -> ServingError:
    return invalid(f"unable to load model '{model}': the exported program cannot be served, {what}")

"""A configuration tied to a loaded PyTorch program: which tensor goes where, and what may go wrong is found when loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.arrays.signature import check_max_batch_size, check_tensor
from shoal_dataplane.backends.pytorch.names import positions
from shoal_dataplane.backends.pytorch.program import REQUIRED, ArgumentKind, Program
from shoal_dataplane.backends.pytorch.tensors import Array, converter, number_reader, reader, to_strings
from shoal_dataplane.core.dtypes import BY_CONFIG
from shoal_dataplane.core.errors import internal, invalid

Read = Callable[[Any], Array]
"""Takes one output, as an array, out of what a program returned."""


class Feed(NamedTuple):
    """One argument: the configured input that feeds it ("": none) and how, or else its default."""

    name: str
    convert: Callable[[Array], Any]
    default: Any


class Binding:
    """Turns gathered arrays into a program's arguments, and its results into named arrays."""

    def __init__(self, config: mc.ModelConfig, program: Program, device: torch.device) -> None:
        self._feeds = _bind_inputs(config, program, device)
        self._takes_dictionary = program.arguments is None
        self._all_required = all(feed.default is REQUIRED for feed in self._feeds)
        self._reads = _bind_outputs(config, program)
        self.outputs = tuple(self._reads)

    def arguments(self, arrays: Mapping[str, Array]) -> list[Any]:
        """Return one value for each argument of the program."""
        if self._takes_dictionary:
            return [{name: convert(arrays[name]) for name, convert, _ in self._feeds if name in arrays}]
        if self._all_required:
            return [convert(arrays[name]) for name, convert, _ in self._feeds]
        return [convert(arrays[name]) if name in arrays else default for name, convert, default in self._feeds]

    def arrays(self, results: Sequence[Any] | Mapping[str, Any], names: Sequence[str]) -> dict[str, Array]:
        """Return the outputs `names`. Raises ServingError(INTERNAL) when the model did not return one as it is configured."""
        return {name: self._reads[name](results) for name in names}


def _bind_inputs(config: mc.ModelConfig, program: Program, device: torch.device) -> tuple[Feed, ...]:
    generated = [(name, b.data_type) for b in config.batch_input for name in b.target_name]
    wires = {name: BY_CONFIG[code].wire for name, code in [*((t.name, t.data_type) for t in config.input), *generated]}
    _check_strings(config, "input", config.input)
    copy = program.writes_inputs
    if program.arguments is None:
        for name, wire in wires.items():
            if wire == "BYTES":
                raise invalid(
                    f"unable to load model '{config.name}', input '{name}' is TYPE_STRING, forward() takes Dict[str, Tensor]"
                )
        return tuple(Feed(name, converter(wire, device, copy=copy), REQUIRED) for name, wire in wires.items())
    at = positions(config.name, "input", list(wires), program.input_names, len(program.arguments))
    names = dict(zip(at, wires, strict=True))
    missing = [a.name for index, a in enumerate(program.arguments) if index not in names and a.default is REQUIRED]
    if missing:
        raise invalid(
            f"unable to load model '{config.name}', configuration expects {len(wires)} inputs, model provides "
            f"{len(program.arguments)}: no input feeds {', '.join(missing)}"
        )
    if program.signature is not None:
        check_max_batch_size(config, program.signature)
        models = dict(zip(wires, (program.signature.inputs[position] for position in at), strict=True))
        for tensor in config.input:
            check_tensor(config, tensor, models[tensor.name], shape=not tensor.allow_ragged_batch)
    return tuple(
        _feed(config, program, index, names.get(index, ""), wires, device) for index in range(len(program.arguments))
    )


def _feed(
    config: mc.ModelConfig, program: Program, index: int, name: str, wires: Mapping[str, str], device: torch.device
) -> Feed:
    """Tie the argument at `index` to the input `name` ("": none, its default)."""
    assert program.arguments is not None
    model = config.name
    argument = program.arguments[index]
    if not name:
        return Feed("", _unfed, argument.default)
    if argument.kind is ArgumentKind.FIXED:
        raise invalid(
            f"unable to load model '{model}', input '{name}' feeds the argument '{argument.name}', which takes no tensor"
        )
    strings = argument.kind is ArgumentKind.STRINGS
    if strings != (wires[name] == "BYTES"):
        raise invalid(
            f"unable to load model '{model}', input '{name}' is {'no TYPE_STRING' if strings else 'TYPE_STRING'}, the model's argument "
            f"'{argument.name}' is a {argument.kind.value}"
        )
    if argument.default is REQUIRED and any(t.optional for t in config.input if t.name == name):
        raise invalid(
            f"unable to load model '{model}', input '{name}' is optional, the model's argument '{argument.name}' has no default"
        )
    if strings:
        return Feed(name, lambda array: to_strings(model, name, array), argument.default)
    if argument.kind is not ArgumentKind.TENSOR:
        if config.max_batch_size > 0:
            raise invalid(
                f"unable to load model '{model}', input '{name}' feeds the argument '{argument.name}', one {argument.kind.value} for the "
                "whole batch: such a model is configured with max_batch_size 0"
            )
        return Feed(name, number_reader(model, name, argument.kind.value), argument.default)
    convert = converter(wires[name], device, copy=program.writes_inputs)
    if program.signature is not None and not program.signature.inputs[index].shape:
        return Feed(name, lambda array: convert(array.reshape(())), argument.default)
    return Feed(name, convert, argument.default)


def _bind_outputs(config: mc.ModelConfig, program: Program) -> dict[str, Read]:
    _check_strings(config, "output", config.output)
    names = [tensor.name for tensor in config.output]
    at = positions(config.name, "output", names, program.output_names, program.output_count)
    scattered = {name for b in config.batch_output for name in b.target_name}
    if program.signature is not None:
        for tensor, position in zip(config.output, at, strict=True):
            check_tensor(config, tensor, program.signature.outputs[position], shape=tensor.name not in scattered)
    return {
        tensor.name: _read(config, program, tensor, position)
        for tensor, position in zip(config.output, at, strict=True)
    }


def _read(config: mc.ModelConfig, program: Program, tensor: mc.ModelOutput, position: int) -> Read:
    """Return what takes one output out of the program's results."""
    name = tensor.name
    read = reader(config.name, name, BY_CONFIG[tensor.data_type].wire, copy=program.stateful)
    dims = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else tuple(tensor.dims)
    if config.max_batch_size == 0 and dims and all(dim == 1 for dim in dims):  # may be a tensor of rank 0
        inner = read

        def read(value: Any) -> Array:
            array = inner(value)
            return array if array.ndim else array.reshape(dims)

    if program.output_count is None:
        return lambda results: read(_find(config.name, name, position, results))
    return lambda results: read(results[position])


def _find(model: str, name: str, position: int, results: Any) -> Any:
    """Return one output of a program that only shows in running what it returns."""
    if isinstance(results, Mapping):
        if name in results:
            return results[name]
        returned = f"the dictionary's keys are {', '.join(map(str, results))}"
    elif position < len(results):
        return results[position]
    else:
        returned = f"it returned {len(results)} values, the output is the one at index {position}"
    raise internal(f"model '{model}' did not return output '{name}': {returned}")


def _unfed(array: Array) -> Any:
    raise AssertionError(f"an argument without an input was fed {array.shape}")


def _check_strings(
    config: mc.ModelConfig, kind: str, tensors: Sequence[mc.ModelInput] | Sequence[mc.ModelOutput]
) -> None:
    """PyTorch has lists of strings, no tensors of them: one dimension, which a batch would already take."""
    for tensor in tensors:
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        if tensor.data_type == mc.TYPE_STRING and len(dims) + (config.max_batch_size > 0) > 1:
            raise invalid(
                f"only 1 dimensional List of String is supported as {kind} for '{tensor.name}' for model '{config.name}': List[str] is "
                "configured with max_batch_size 0 and dims of one size"
            )

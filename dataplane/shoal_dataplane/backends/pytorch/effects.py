"""Whether an exported graph writes into its inputs or changes its state.

Graphs as torch.export makes them may hold operators that write in place (aten::add_, aten::relu_); what they write to may be a view
of an input or of a buffer. The schema of each operator says what it writes and which results share memory with which arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.node import map_arg

_INPUT = "input"
_STATE = "state"


def graph_effects(program: torch.export.ExportedProgram) -> tuple[bool, bool]:
    """Return (may it write into an input, may it change a parameter, buffer or constant). Errs towards yes."""
    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}
    shares: dict[torch.fx.Node, set[str]] = {}
    written: set[str] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            shares[node] = {_INPUT if kinds.get(node.name) is InputKind.USER_INPUT else _STATE}
        elif isinstance(node.target, torch._ops.OpOverload):
            shares[node] = _operator(node, node.target, shares, written)
        else:  # getitem, or an operator with subgraphs: whatever goes in may come out
            shares[node] = _origins(node.args, shares) | _origins(node.kwargs, shares)
    if any(spec.kind is OutputKind.BUFFER_MUTATION for spec in program.graph_signature.output_specs):
        written.add(_STATE)
    return _INPUT in written, _STATE in written


def _operator(
    node: torch.fx.Node, operator: torch._ops.OpOverload, shares: dict[torch.fx.Node, set[str]], written: set[str]
) -> set[str]:
    shared: set[str] = set()
    for position, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is None:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        origins = _origins(value, shares)
        shared |= origins
        if argument.alias_info.is_write:
            written |= origins
    return shared


def _origins(value: Any, shares: dict[torch.fx.Node, set[str]]) -> set[str]:
    found: set[str] = set()

    def visit(node: torch.fx.Node) -> torch.fx.Node:
        found.update(shares.get(node, ()))
        return node

    map_arg(value, visit)
    return found

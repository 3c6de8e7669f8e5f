"""TorchScript files: torch.jit.save of a scripted or traced module.

How the interpreter is set up, and why (an MLP 64-256-256-16 on one core, torch 2.13):
- Profiling is off. With it the first call records the shapes and the second one optimizes again for them: 60 ms in a model of 60
  layers, in the middle of serving. What it buys is fusion, which TorchScript does on CUDA only, anew for each batch size at first.
  Without it the only slow call is the first, which warm-up takes, and no batch size is slower when it is new.
- Modules are frozen: weights become constants and submodules are inlined, 10 % off the batch of one. Freezing is asked to leave the
  numerics alone (no folding of batch norms into convolutions), so that answers are bit for bit those of the saved module.
- `optimize_for_inference` is not used: it bakes in oneDNN layouts, which was slower here, and changes the numerics.
- The method is called, not the module: torch.nn.Module.__call__ looks for hooks first, 4 us each time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from shoal_dataplane.backends.pytorch.errors import error_text
from shoal_dataplane.backends.pytorch.program import REQUIRED, Argument, ArgumentKind
from shoal_dataplane.backends.pytorch.settings import TorchSettings
from shoal_dataplane.core.errors import internal, invalid

logger = logging.getLogger(__name__)

_jit_load: Callable[..., torch.jit.ScriptModule] = torch.jit.load

torch._C._jit_set_profiling_mode(False)


class ScriptProgram:
    """A TorchScript module, ready to call."""

    signature = None  # TorchScript holds neither datatypes nor shapes
    output_names: Mapping[str, int] = {}

    def __init__(self, model: str, module: torch.jit.ScriptModule) -> None:
        try:
            self._forward = module._c._get_method("forward")
        except RuntimeError:
            raise invalid(f"unable to load model '{model}': the TorchScript module has no method forward()") from None
        schema = self._forward.schema
        self.schema_text = _schema_text(schema)
        self.arguments = _arguments(model, schema)
        self.input_names = {a.name: at for at, a in enumerate(self.arguments or ())}
        result = schema.returns[0].type
        self.output_count = _output_count(model, result)
        self._single = result.kind() == "TensorType" or str(result) == "List[str]"
        self.writes_inputs, self.stateful = _side_effects(self._forward)

    def run(self, arguments: list[Any]) -> Sequence[Any] | Mapping[str, Any]:
        result = self._forward(*arguments)
        return (result,) if self._single else result


def load_script(model: str, path: Path, device: torch.device | None, settings: TorchSettings) -> ScriptProgram:
    """Load a TorchScript file on `device` (None: where its tensors were saved).

    Raises ServingError: INTERNAL that names a file that cannot be loaded, INVALID_ARGUMENT for a forward() that cannot be served.
    """
    try:
        module = _jit_load(str(path), map_location=device)
    except Exception as error:
        raise internal(f"failed to load model '{model}' from '{path}': {error_text(error)}") from error
    module.eval()
    if settings.optimized_execution:
        module = _frozen(model, module)
    return ScriptProgram(model, module)


def describe_script(model: str, path: Path) -> str:
    """Return forward()'s arguments and result as text: "forward(Tensor x) -> Tensor"."""
    try:
        module = _jit_load(str(path), map_location="cpu")
    except Exception as error:
        raise internal(f"failed to load model '{model}' from '{path}': {error_text(error)}") from error
    return _schema_text(module._c._get_method("forward").schema)


def _frozen(model: str, module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    try:
        frozen: torch.jit.ScriptModule = torch.jit.freeze(module, optimize_numerics=False)
    except Exception as error:  # some valid modules cannot be frozen (attributes that are interfaces, for one)
        logger.info("model '%s' is served as it is, it cannot be frozen: %s", model, error_text(error))
        return module
    return frozen


def _arguments(model: str, schema: Any) -> tuple[Argument, ...] | None:
    own = schema.arguments[1:]  # without self
    if len(own) == 1 and str(own[0].type) == "Dict[str, Tensor]":
        return None
    return tuple(_argument(model, argument) for argument in own)


def _argument(model: str, argument: Any) -> Argument:
    default = argument.default_value if argument.has_default_value() else REQUIRED
    kind = str(argument.type)
    if kind in ("Tensor", "Optional[Tensor]"):
        return Argument(argument.name, ArgumentKind.TENSOR, default)
    if kind in ("List[str]", "int", "float", "bool"):
        return Argument(argument.name, ArgumentKind(kind), default)
    if default is not REQUIRED:
        return Argument(argument.name, ArgumentKind.FIXED, default)
    raise invalid(
        f"unable to load model '{model}': An input of type '{kind}' was detected in the model ('{argument.name}'). Only a single input of "
        "type Dict(str, Tensor) or input(s) of type Tensor, List[str], int, float or bool are supported."
    )


def _output_count(model: str, result: Any) -> int | None:
    kind = result.kind()
    if kind == "TensorType" or str(result) == "List[str]":
        return 1
    if kind == "TupleType":
        for at, element in enumerate(result.elements()):
            if str(element) not in ("Tensor", "List[str]"):
                raise invalid(
                    f"unable to load model '{model}': output at index {at} must be of type Tensor or List[str], received {element}"
                )
        return len(result.elements())
    if str(result) in ("List[Tensor]", "Dict[str, Tensor]"):
        return None
    raise invalid(
        f"unable to load model '{model}': output must be of type Tensor, List[str], a Tuple of these, List[Tensor] or "
        f"Dict[str, Tensor], forward() returns {result}"
    )


def _schema_text(schema: Any) -> str:
    arguments = ", ".join(f"{a.type} {a.name}" for a in schema.arguments[1:])
    return f"forward({arguments}) -> {', '.join(str(r.type) for r in schema.returns)}"


def _side_effects(method: Any) -> tuple[bool, bool]:
    """May the method write into a tensor that it is given? May it change the module's state?

    By TorchScript's own alias analysis, which errs towards yes. It does not look into containers, so a method that takes a dictionary
    is said to write into it when it writes anywhere.
    """
    graph = method.graph.copy()
    torch._C._jit_pass_inline(graph)
    aliases = graph.alias_db()
    inputs = list(graph.inputs())[1:]
    if all(str(value.type()) in ("Tensor", "Optional[Tensor]") for value in inputs):
        writes = any(aliases.has_writers(value) for value in inputs)
    else:
        writes = any(aliases.has_writers(value) for node in _nodes(graph) for value in node.outputs())
    state = any(
        node.kind() == "prim::SetAttr" or (node.kind() == "prim::GetAttr" and aliases.has_writers(node.output()))
        for node in _nodes(graph)
    )
    return writes, state


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)

"""Small PyTorch modules, and how they become model files."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.export

_script: Callable[..., torch.jit.ScriptModule] = torch.jit.script
_trace: Callable[..., torch.jit.ScriptModule] = torch.jit.trace
_save: Callable[..., None] = torch.jit.save


def script(folder: Path, module: torch.nn.Module, name: str = "model.pt") -> Path:
    """Write a scripted module; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _save(_script(module), str(folder / name))
    return folder


def trace(folder: Path, module: torch.nn.Module, *example: torch.Tensor) -> Path:
    """Write a traced module; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _save(_trace(module.eval(), example), str(folder / "model.pt"))
    return folder


def export(
    folder: Path,
    module: torch.nn.Module,
    *example: Any,
    keywords: dict[str, Any] | None = None,
    shapes: Any = None,
    decomposed: bool = False,
) -> Path:
    """Write an exported program; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its own code
        program = torch.export.export(module.eval(), example, keywords, dynamic_shapes=shapes)
        torch.export.save(program.run_decompositions() if decomposed else program, folder / "model.pt2")
    return folder


class Mlp(torch.nn.Module):
    """x [n, 8] -> [n, 3], the same weights each time."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -1, 1, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)
        return result


MLP_CONFIG = (
    'max_batch_size: 8 input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 8 ] } '
    'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] }'
)
"""For a scripted Mlp."""


class SumAndDifference(torch.nn.Module):
    """a, b -> (a + b, a - b)."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, a - b


class Identity(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class WritesItsInput(torch.nn.Module):
    """x -> x + 1, in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1).add_(1).view(x.size(0), -1)


class RunningTotal(torch.nn.Module):
    """x [n, 2] -> total [2] of all rows ever seen: the module's own buffer, returned as it is."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum(0))
        return self.total


class ScaledPair(torch.nn.Module):
    """x, options {a}, *, bias -> {"scaled": x * 2, "pair": (x + a, x + bias)}: nested arguments and results."""

    def forward(self, x: torch.Tensor, options: dict[str, torch.Tensor], *, bias: torch.Tensor) -> dict[str, Any]:
        return {"scaled": x * 2, "pair": (x + options["a"], x + bias)}


class WithDefaults(torch.nn.Module):
    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None, factor: int = 3) -> torch.Tensor:
        return x * factor if bias is None else x * factor + bias


class Strings(torch.nn.Module):
    def forward(self, words: list[str]) -> tuple[list[str], torch.Tensor]:
        shouted: list[str] = []
        for word in words:
            shouted.append(word + "!")
        return shouted, torch.tensor([len(word) for word in words])


STRINGS_CONFIG = (
    'input { name: "words" data_type: TYPE_STRING dims: [ -1 ] } '
    'output { name: "shouted" data_type: TYPE_STRING dims: [ -1 ] } output { name: "lengths" data_type: TYPE_INT64 dims: [ -1 ] }'
)
"""For a scripted Strings."""

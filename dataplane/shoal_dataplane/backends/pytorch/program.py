"""What a loaded PyTorch file is, whatever its kind: positions to fill, something to call, positions to read."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from shoal_dataplane.backends.arrays.signature import ModelSignature


class ArgumentKind(enum.Enum):
    """What an argument takes."""

    TENSOR = "Tensor"
    STRINGS = "List[str]"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    FIXED = "fixed"
    """Its default, always: no request can feed it."""


REQUIRED: Final = object()
"""The default of an argument that has none."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One positional argument of the program."""

    name: str
    kind: ArgumentKind = ArgumentKind.TENSOR
    default: Any = REQUIRED


class Program(Protocol):
    """A loaded model file. Nothing in it depends on the configuration, so instances may share it.

    `arguments` None: the program takes one dictionary of tensors by name. `input_names` and `output_names` are the names that the
    model knows, with their positions; `output_count` is None when only a run can tell, and then `run` may return a dictionary.
    `writes_inputs`: it may write into a tensor that it is given. `stateful`: a run changes what a later run sees.
    `signature` is there when the file holds datatypes and shapes.
    """

    @property
    def arguments(self) -> tuple[Argument, ...] | None: ...

    @property
    def input_names(self) -> Mapping[str, int]: ...

    @property
    def output_names(self) -> Mapping[str, int]: ...

    @property
    def output_count(self) -> int | None: ...

    @property
    def writes_inputs(self) -> bool: ...

    @property
    def stateful(self) -> bool: ...

    @property
    def signature(self) -> ModelSignature | None: ...

    def run(self, arguments: list[Any]) -> Sequence[Any] | Mapping[str, Any]:
        """Call the model with one value for each argument. Raises what torch raises, or ServingError(INVALID_ARGUMENT)."""

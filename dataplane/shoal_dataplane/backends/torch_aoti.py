"""AOTInductor packages: torch._inductor.aoti_compile_and_package, machine code for one kind of device.

The package holds neither datatypes nor shapes, and its code checks neither: fed with other shapes than it was compiled for it reads
memory that is not its own. So a model is probed when it is loaded: once in a copy of the library whose checks are switched on, with the
shapes of the configuration.

The loader is torch's own C++ one. torch._inductor.aoti_load_package wraps it, and to do so imports the compiler: 10 s and 100 MB.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from shoal_dataplane.backends.torch_errors import error_text
from shoal_dataplane.backends.torch_names import leaf_paths, single_key
from shoal_dataplane.backends.torch_program import Argument
from shoal_dataplane.core.errors import internal

_MODEL: Final = "model"  # the name that aoti_compile_and_package gives
_CHECKS: Final = "AOTI_RUNTIME_CHECK_INPUTS"
_environment = threading.Lock()


class AotiProgram:
    """A compiled model, ready to call."""

    signature = None
    writes_inputs = True  # not known; compiled code may
    stateful = True  # not known; it may keep buffers

    def __init__(self, path: Path, device: torch.device | None) -> None:
        self._path = path
        self._device = device
        self._loader = self._open()
        inputs, outputs = self._loader.get_call_spec()
        paths = leaf_paths(inputs, ("ARGS", "KWARGS"))
        self.arguments = tuple(Argument(path) for path in paths)
        self.input_names = _named(paths, "KWARGS")
        results = leaf_paths(outputs, ("RESULT",))
        self.output_names = _named(results, "RESULT")
        self.output_count = len(results)

    def run(self, arguments: list[Any]) -> Sequence[Any]:
        results: Sequence[Any] = self._loader.boxed_run(arguments)
        return results

    def probe(self, model: str, arguments: list[torch.Tensor]) -> None:
        """Run once with the checks of the compiled code. Raises ServingError(INVALID_ARGUMENT) when it was not compiled for this."""
        with _environment:  # the library reads the variable at its first run, and never again
            before = os.environ.get(_CHECKS)
            os.environ[_CHECKS] = "1"
            try:
                self._open().boxed_run(arguments)
            finally:
                if before is None:
                    del os.environ[_CHECKS]
                else:
                    os.environ[_CHECKS] = before

    def _open(self) -> Any:
        index = -1 if self._device is None or self._device.index is None else self._device.index
        return torch._C._aoti.AOTIModelPackageLoader(str(self._path), _MODEL, False, 1, index)


def load_aoti(model: str, path: Path, device: torch.device | None) -> AotiProgram:
    """Load a package. Raises ServingError(INTERNAL) that names a file that cannot be loaded."""
    try:
        return AotiProgram(path, device)
    except Exception as error:
        raise internal(f"failed to load model '{model}' from '{path}': {error_text(error)}") from error


def _named(paths: Sequence[str], root: str) -> Mapping[str, int]:
    names = {path: at for at, path in enumerate(paths)}
    names.update({key: at for at, path in enumerate(paths) if (key := single_key(path, root))})
    return names

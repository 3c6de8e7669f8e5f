"""AOTInductor packages: torch._inductor.aoti_compile_and_package, machine code for one kind of device.

The package holds neither datatypes nor shapes, and its code checks neither: fed with other shapes than it was compiled for it reads
memory that is not its own. So a model is probed when it is loaded: once in a copy of the library whose checks are switched on, with the
shapes of the configuration.

The loader is torch's own C++ one. torch._inductor.aoti_load_package wraps it, and to do so imports the compiler: 10 s and 100 MB.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.pytorch.binding import Binding
from shoal_dataplane.backends.pytorch.errors import error_text
from shoal_dataplane.backends.pytorch.names import leaf_paths, single_key
from shoal_dataplane.backends.pytorch.program import Argument
from shoal_dataplane.backends.pytorch.tensors import Array
from shoal_dataplane.core.dtypes import BY_CONFIG
from shoal_dataplane.core.errors import ServingError, internal, invalid

_MODEL: Final = "model"  # the name that aoti_compile_and_package gives
_CHECKS: Final = "AOTI_RUNTIME_CHECK_INPUTS"
_TOO_SMALL: Final = re.compile(r"dim value is too small at \d+, expected it to be >= 2,")
_environment = threading.Lock()


class AotiProgram:
    """A compiled model, ready to call."""

    signature = None
    writes_inputs = True  # not known; compiled code may
    stateful = True  # not known; it may keep buffers

    def __init__(self, model: str, path: Path, device: torch.device | None) -> None:
        self._path = path
        self._device = device
        self._loader = self._open()
        compiled_for = self._loader.get_metadata().get("AOTI_DEVICE_KEY", "cpu")
        if device is not None and device.type != compiled_for:
            raise invalid(
                f"unable to load model '{model}' from '{path}': it was compiled for {compiled_for}, its instance is on {device.type}"
            )
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

    def run_checked(self, arguments: list[torch.Tensor]) -> None:
        """Run once in a copy of the library whose checks are on. Raises RuntimeError when it was not compiled for these arguments."""
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
        return AotiProgram(model, path, device)
    except ServingError:
        raise
    except Exception as error:
        raise internal(f"failed to load model '{model}' from '{path}': {error_text(error)}") from error


def probe_shapes(config: mc.ModelConfig, program: AotiProgram, binding: Binding) -> None:
    """Raises ServingError(INVALID_ARGUMENT) when the configuration allows shapes that the code was not compiled for.

    Free sizes (the batch, dims of -1) are tried at 2 and 3: a size that is fixed in the code fits one of them at most. The batch is tried
    at max_batch_size too.
    """
    if config.batch_input:
        return  # the shapes of generated inputs depend on the requests
    most = config.max_batch_size
    for free, batch in ((2, min(2, most)), (3, min(3, most)), (2, most)):
        arrays = {tensor.name: _zeros(tensor, free, batch) for tensor in config.input}
        try:
            program.run_checked(binding.arguments(arrays))
        except RuntimeError as error:
            if _TOO_SMALL.search(str(error)):  # exporters assume at least 2; the code works for less
                continue
            raise invalid(
                f"unable to load model '{config.name}', its compiled code does not take inputs of the configured datatypes and shapes "
                f"({', '.join(f'{name} {list(array.shape)}' for name, array in arrays.items())}): {error_text(error)}"
            ) from error


def _zeros(tensor: mc.ModelInput, free: int, batch: int) -> Array:
    dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    shape = [free if dim == -1 else dim for dim in dims]
    return np.zeros([batch, *shape] if batch else shape, BY_CONFIG[tensor.data_type].numpy)


def _named(paths: Sequence[str], root: str) -> Mapping[str, int]:
    names = {path: at for at, path in enumerate(paths)}
    names.update({key: at for at, path in enumerate(paths) if (key := single_key(path, root))})
    return names

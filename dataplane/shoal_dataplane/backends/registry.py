"""The backends by name.

A backend is imported when the first model asks for it, so that a server without PyTorch models never imports torch. Which backend a
model gets, by its configuration or its files, is decided in repository.backend_fields.
"""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

from shoal_dataplane.backends.base import Backend
from shoal_dataplane.core.errors import Code, Reason, ServingError, invalid


class _Entry(NamedTuple):
    """Where a backend is implemented and, when it needs a package that is an extra, that package and the extra's name."""

    module: str
    package: str = ""
    extra: str = ""


_BACKENDS: Final = {
    "onnxruntime": _Entry("shoal_dataplane.backends.onnx.backend", "onnxruntime", "onnx"),
    "python": _Entry("shoal_dataplane.backends.python.backend"),
    "pytorch": _Entry("shoal_dataplane.backends.pytorch.backend", "torch", "torch"),
}

_ALIASES: Final = {
    "libtorch": "pytorch",
    "onnx": "onnxruntime",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "torch": "pytorch",
    "torch_aoti": "pytorch",
}
"""Other names for a backend in a configuration's `backend` or `platform` (triton.md A2)."""


def backend_for(name: str) -> Backend:
    """Import and return the backend that `name` (canonical or an alias) means.

    Raises ServingError: INVALID_ARGUMENT for a name that is unknown, FAILED_PRECONDITION when a package that it needs is not
    installed or cannot be imported.
    """
    canonical = _ALIASES.get(name, name)
    entry = _BACKENDS.get(canonical)
    if entry is None:
        raise invalid(f"unknown backend '{name}'; the backends are {', '.join(_BACKENDS)}")
    try:
        backend: Backend = importlib.import_module(entry.module).BACKEND
    except ImportError as error:
        raise _import_failure(canonical, entry, error) from error
    return backend


def _import_failure(name: str, entry: _Entry, error: ImportError) -> ServingError:
    if entry.package and isinstance(error, ModuleNotFoundError) and error.name == entry.package:
        text = f"backend '{name}' needs the package '{entry.package}', which is not installed: pip install 'shoal[{entry.extra}]'"
    else:
        text = f"backend '{name}' cannot be imported: {error}"
    return ServingError(Code.FAILED_PRECONDITION, text, Reason.UNSUPPORTED)

"""Backend, platform and file name of a model, found from each other and from what its version folder holds (triton.md A2, B5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import Backend
from shoal_dataplane.core.errors import invalid
from shoal_dataplane.repository.layout import inside
from shoal_dataplane.repository.schema import near

BackendFor = Callable[[str], Backend]
"""Finds a backend by its name. Raises ServingError when there is none, or when it cannot be imported."""

_PLATFORM_BACKENDS = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
_FILE_BACKENDS = {  # in the order in which Triton looks for them
    "model.plan": "tensorrt",
    "model.onnx": "onnxruntime",
    "model.xml": "openvino",
    "model.pt": "pytorch",
    "model.pt2": "pytorch",
    "model.py": "python",
}
_SUFFIX_BACKENDS = {PurePosixPath(name).suffix: backend for name, backend in _FILE_BACKENDS.items()}
_PAIRED = ("tensorrt", "onnxruntime", "pytorch", "tensorflow")  # the backends that allow their own platforms only


def fill_backend_fields(config: mc.ModelConfig, version_dir: Path, backend_for: BackendFor) -> Backend:
    """Fill `backend`, `platform` and `default_model_filename` where they are empty, in place, and return the backend.

    Raises ServingError: INVALID_ARGUMENT when nothing says which backend it is, when backend and platform contradict each other, or
    when the model file is not in `version_dir`; what `backend_for` raises for a backend that this server does not have.
    """
    try:
        names = {entry.name for entry in version_dir.iterdir()}
    except OSError as error:
        raise invalid(f"cannot read the version folder '{version_dir}': {error.strerror}") from None
    if not config.backend:
        config.backend = _find_backend(config, names, version_dir)
    _check_platform(config)
    if config.backend == "onnxruntime" and not config.platform:
        config.platform = "onnxruntime_onnx"
    if config.backend == "pytorch":
        _fill_pytorch(config, names)
    backend = backend_for(config.backend)
    if not config.default_model_filename:
        config.default_model_filename = backend.default_filename
    _check_file(config, version_dir, names)
    return backend


def _find_backend(config: mc.ModelConfig, names: set[str], version_dir: Path) -> str:
    """By the platform, else by the file that is configured, else by the file that is there (which it then configures)."""
    if config.platform:
        backend = _PLATFORM_BACKENDS.get(config.platform)
        if backend is None:
            hint = near(config.platform, _PLATFORM_BACKENDS)
            raise invalid(f"unexpected platform type '{config.platform}' for {config.name}{hint}")
        return backend
    filename = config.default_model_filename
    if filename:
        backend = _FILE_BACKENDS.get(filename) or _SUFFIX_BACKENDS.get(PurePosixPath(filename).suffix)
        if backend is not None:
            return backend
    else:
        for name, backend in _FILE_BACKENDS.items():
            if name in names:
                config.default_model_filename = name
                return backend
    raise invalid(
        f"could not determine the backend of model '{config.name}': its configuration names no 'backend' or 'platform', and "
        f"{_holding(version_dir, names)}; expected one of {', '.join(_FILE_BACKENDS)}"
    )


def _check_platform(config: mc.ModelConfig) -> None:
    """Raise for a platform of another backend (core: ValidateModelConfig)."""
    if config.platform and config.backend in _PAIRED and _PLATFORM_BACKENDS.get(config.platform) != config.backend:
        raise invalid(f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}")


def _fill_pytorch(config: mc.ModelConfig, names: set[str]) -> None:
    if not config.platform:
        filename = config.default_model_filename or (
            "model.pt2" if "model.pt" not in names and "model.pt2" in names else ""
        )
        config.platform = "torch_aoti" if filename.endswith(".pt2") else "pytorch_libtorch"
    if not config.default_model_filename:
        config.default_model_filename = "model.pt2" if config.platform == "torch_aoti" else "model.pt"


def _check_file(config: mc.ModelConfig, version_dir: Path, names: set[str]) -> None:
    filename = config.default_model_filename
    if not filename:
        return
    if not inside(filename):
        raise invalid(
            f"'default_model_filename' must be a path inside the version folder, got '{filename}' for {config.name}"
        )
    if not (version_dir / filename).exists():
        raise invalid(
            f"unable to find '{version_dir / filename}' for model '{config.name}': {_holding(version_dir, names)}{near(filename, names)}"
        )


def _holding(version_dir: Path, names: set[str]) -> str:
    shown = sorted(names)[:8]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"version folder '{version_dir}' holds {', '.join(shown) + more if names else 'nothing'}"

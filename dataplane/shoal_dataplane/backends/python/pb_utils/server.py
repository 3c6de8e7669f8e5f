"""What a Python model may ask of the server that runs it, whether that server is this process or the one that started it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from shoal_dataplane.backends.python.pb_utils.errors import TritonModelException
from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse


class Server(Protocol):
    """Thread-safe. Every call but `infer`, `log` and `change_metric` blocks. Errors are ServingError, metrics' are ValueError."""

    def infer(self, request: InferRequest, answer: Callable[[InferResponse], None]) -> Callable[[], None]:
        """Send a request to a model of the server. `answer` is called once, on any thread. Returns what cancels the request."""

    def refuse_blocking(self) -> str:
        """Why the calling thread must not wait for an answer here; empty when it may."""

    def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None: ...

    def unload_model(self, name: str, unload_dependents: bool) -> None: ...

    def model_ready(self, name: str, version: str) -> bool: ...

    def log(self, level: int, message: str) -> None:
        """`level` is one of the logging module's."""

    def metric_family(self, name: str, description: str, kind: str) -> int: ...

    def metric(self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None) -> int: ...

    def change_metric(self, metric: int, operation: str, value: float) -> None: ...

    def metric_value(self, metric: int) -> float: ...

    def release_metric(self, item: int) -> None: ...


_server: Server | None = None


def set_server(server: Server | None) -> None:
    """Say which server the models of this process talk to."""
    global _server
    _server = server


def server() -> Server:
    """The server. Raises TritonModelException outside of one."""
    if _server is None:
        raise TritonModelException("this function works only in a model that a server runs")
    return _server


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load a model from the repository (explicit mode), or from `config` (JSON) and `files` ("file:1/model.onnx" to its bytes).

    Raises TritonModelException.
    """
    parameters: dict[str, str | bytes] = {}
    if config:
        parameters["config"] = config
    if files is not None:
        if not isinstance(files, Mapping):
            raise TritonModelException(
                f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
            )
        parameters.update({path: bytes(content) for path, content in files.items()})
    try:
        server().load_model(model_name, parameters)
    except ServingError as error:
        raise TritonModelException(f"Failed to load model: {error.message}") from None


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model (explicit mode). Returns when it is unloaded, or after a few seconds when that takes longer.

    Raises TritonModelException.
    """
    try:
        server().unload_model(model_name, bool(unload_dependents))
    except ServingError as error:
        raise TritonModelException(f"Failed to unload model: {error.message}") from None


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Is a version of a model (or any, with no version) ready? Raises TritonModelException for a version that is no number."""
    try:
        return server().model_ready(model_name, str(model_version))
    except ServingError as error:
        raise TritonModelException(f"Failed to check model readiness: {error.message}") from None


_model_dir: Path | None = None


def set_model_dir(path: Path) -> None:
    """Say where the model of this process lies."""
    global _model_dir
    _model_dir = path


def get_model_dir() -> str:
    """The version folder of the model. Raises TritonModelException where several models share a process."""
    if _model_dir is None:
        raise TritonModelException(
            "get_model_dir works only in a model that has a process of its own (SHOAL_EXECUTION=process)"
        )
    return str(_model_dir)

"""The parameters of a load request: a configuration and model files that replace those of the repository (triton.md A12, A13)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import internal, invalid
from shoal_dataplane.repository.config_json import parse_config_json
from shoal_dataplane.repository.layout import inside, quoted
from shoal_dataplane.repository.types import RepositoryParameter

FILE_PREFIX = "file:"
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Override:
    """What a load request brings: `config` replaces config.pbtxt; `files`, when there are any, replace every file of the model."""

    config: mc.ModelConfig
    files: Mapping[str, bytes] = field(default_factory=dict)


def parse_load_parameters(parameters: Mapping[str, RepositoryParameter]) -> Override | None:
    """Sort the parameters of a load; None when there are none.

    `config` is the JSON text of a ModelConfig, `file:<version>/<path>` the bytes of one file. Raises ServingError(INVALID_ARGUMENT)
    for any other parameter, a wrong type, a path that leaves the model's folder, and for files without a configuration.
    """
    text: str | None = None
    files: dict[str, bytes] = {}
    for name, value in parameters.items():
        if name == "config":
            if not isinstance(value, str):
                raise invalid("invalid value type for load parameter 'config', expected string_param.")
            text = value
        elif name.startswith(FILE_PREFIX):
            if not isinstance(value, bytes):
                raise invalid(f"invalid value type for load parameter {quoted(name)}, expected bytes_param.")
            files[_relative_path(name)] = value
        else:
            raise invalid(f"unrecognized load parameter {quoted(name)}.")
    if text is None:
        if files:
            raise invalid("Load parameter 'config' must be specified for model file override")
        return None
    for path in files:
        if any(str(parent) in files for parent in PurePosixPath(path).parents):
            raise invalid(f"Invalid file parameter '{FILE_PREFIX}{path}', directory has been created as a file")
    return Override(parse_config_json(text), files)


def _relative_path(parameter: str) -> str:
    name = parameter.removeprefix(FILE_PREFIX)
    path = PurePosixPath(name)
    if not inside(name) or not path.parts or not name.isprintable():
        raise invalid(
            f"Invalid file parameter {quoted(parameter)} with normalized path {quoted(str(path))} must stay within model directory."
        )
    sizes = [len(part.encode(errors="replace")) for part in path.parts]
    if max(sizes) > _MAX_NAME_BYTES or sum(sizes) + len(sizes) > _MAX_PATH_BYTES:
        raise invalid(f"Invalid file parameter '{parameter[:40]}...': the path is longer than a file system takes")
    return str(path)


class Workspace:
    """A temporary model folder with the files of an override. It is gone after `remove`, at the latest when the process exits."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Write the files. Raises ServingError(INTERNAL) when one cannot be written; then nothing is left behind."""
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-model-", ignore_cleanup_errors=True)
        self.path = Path(self._folder.name)
        try:
            for name, data in files.items():
                target = self.path / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        except OSError as error:
            self.remove()
            raise internal(f"the file of parameter '{FILE_PREFIX}{name}' cannot be written: {error.strerror}") from None

    def remove(self) -> None:
        """Delete the folder. Idempotent."""
        self._folder.cleanup()

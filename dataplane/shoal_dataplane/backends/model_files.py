"""Where the file of a model version is."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Code, Reason, ServingError, invalid


def find_model_file(config: mc.ModelConfig, version_dir: Path, defaults: tuple[str, ...]) -> Path:
    """Return the model file: `default_model_filename` when the configuration sets it, else the first of `defaults` that exists.

    Raises ServingError: INVALID_ARGUMENT for a name that leaves the version folder, UNAVAILABLE when the file is not there (Triton's
    code and wording).
    """
    names = (config.default_model_filename,) if config.default_model_filename else defaults
    for name in names:
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise invalid(f"model '{config.name}': default_model_filename '{name}' must be inside the version folder")
        path = version_dir / relative
        if path.exists():
            return path
    raise ServingError(
        Code.UNAVAILABLE,
        f"unable to find {' or '.join(repr(str(version_dir / name)) for name in names)} for model '{config.name}'; "
        f"the version folder {_contents(version_dir)}",
        Reason.NOT_READY,
    )


def _contents(folder: Path, limit: int = 8) -> str:
    if not folder.is_dir():
        return "does not exist"
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        return "is empty"
    return f"holds {', '.join(names[:limit])}{', ...' if len(names) > limit else ''}"

"""From what the user wrote to the complete configuration of one version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import invalid
from shoal_dataplane.execution.source import VersionSource
from shoal_dataplane.options import RepositoryOptions
from shoal_dataplane.repository.backend_fields import BackendFor, fill_backend_fields
from shoal_dataplane.repository.config_pbtxt import read_config
from shoal_dataplane.repository.layout import CONFIG_FILE, ModelLocation, config_path, read_labels
from shoal_dataplane.repository.normalize import lay_over, normalize
from shoal_dataplane.repository.support import refuse_unsupported
from shoal_dataplane.repository.validate import validate


def written_config(location: ModelLocation, options: RepositoryOptions) -> mc.ModelConfig:
    """Return the configuration that the user wrote: config.pbtxt (none at all is allowed while auto-complete is on), the manifest's
    overlay on top, and the model's name.

    Raises ServingError(INVALID_ARGUMENT): the file does not parse, or it names another model.
    """
    path = config_path(location, options.config_name)
    if path is not None:
        config = read_config(path)
    elif options.auto_complete or location.is_file:
        config = mc.ModelConfig()
    else:
        config = read_config(location.path / CONFIG_FILE)  # raises that it is not there
    if location.overlay is not None:
        lay_over(config, location.overlay)
    if location.is_file:
        config.default_model_filename = location.path.name
    name_config(config, location)
    return config


def name_config(config: mc.ModelConfig, location: ModelLocation) -> None:
    """Set the configuration's name. Raises ServingError(INVALID_ARGUMENT) when it has another one and no manifest renames the model."""
    if config.name and config.name != location.name and not location.declared:
        raise invalid(
            f"unexpected directory name '{location.name}' for model '{config.name}', directory name must equal model name"
        )
    config.name = location.name


@dataclass(frozen=True, slots=True)
class Completer:
    """Completes the configuration of one version after the other. Thread-safe. `gpu_count` says how many GPUs there are."""

    options: RepositoryOptions
    backend_for: BackendFor
    gpu_count: Callable[[], int]

    def complete(self, written: mc.ModelConfig, version: int, model_dir: Path, version_dir: Path) -> VersionSource:
        """Return the version with a complete, normalised and valid configuration of its own; `written` stays as it is.

        The backend reads the model file for it, so it may take seconds. Raises ServingError: what is wrong with the configuration, with
        the model file, or UNIMPLEMENTED for a feature that this server does not have (yet).
        """
        config = mc.ModelConfig()
        config.CopyFrom(written)
        refuse_unsupported(config)
        backend = fill_backend_fields(config, version_dir, self.backend_for)
        if self.options.auto_complete:
            backend.auto_complete(config, version_dir, self._backend_options(config.backend))
            refuse_unsupported(config)  # a model may complete itself into something unsupported
        gpus = self.gpu_count()
        normalize(config, gpus)
        validate(config, gpus)
        labels = read_labels(model_dir, config)
        return VersionSource(config.name, version, model_dir, version_dir, config, labels)

    def _backend_options(self, backend: str) -> dict[str, str]:
        configured = self.options.backend_config
        return {**configured.get("", {}), **configured.get(backend, {})}

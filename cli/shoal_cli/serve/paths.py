"""What a PATH of `shoal serve` is: manifests, or a model repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal_api.kinds import load_manifests
from shoal_cli.serve.other_flags import FlagError
from shoal_operator.tables import ModelEntry, plan_model

_YAML = frozenset({".yaml", ".yml"})
_MODEL_FILES = frozenset({".onnx", ".pt", ".pt2", ".py"})


@dataclass(frozen=True)
class Plan:
    """What is to be served: whole repositories, and the models that manifests declare."""

    repositories: tuple[Path, ...]
    entries: tuple[ModelEntry, ...]


def plan_paths(paths: Sequence[Path]) -> Plan:
    """Tell manifests from repositories, and read the manifests.

    Raises FlagError for a path that is neither, ManifestError for manifests that cannot be honoured.
    """
    manifests: list[Path] = []
    repositories: list[Path] = []
    for path in paths:
        (manifests if _has_manifests(path) else repositories).append(path)
    models = load_manifests(manifests) if manifests else []
    entries = tuple(plan_model(model, origin.file.parent) for model, origin in models)
    return Plan(tuple(repositories), entries)


def _has_manifests(path: Path) -> bool:
    """A YAML file, or a folder with one in it; else it must be a folder of models."""
    if not path.exists():
        raise FlagError(f"{path}: no such file or folder")
    if not path.is_dir():
        if path.suffix in _YAML or path.suffix == ".json":
            return True
        hint = "; an InferenceModel manifest can name a single model file" if path.suffix in _MODEL_FILES else ""
        raise FlagError(f"{path}: expected a YAML manifest, a folder of manifests, or a model repository{hint}")
    if any(entry.suffix in _YAML and entry.is_file() for entry in path.iterdir()):
        return True
    if (path / "config.pbtxt").is_file():
        raise FlagError(f"{path} is one model's folder; a repository is the folder around it: {path.absolute().parent}")
    return False

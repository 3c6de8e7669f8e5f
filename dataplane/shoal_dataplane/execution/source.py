"""What the repository gives to be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal_api.protocol import model_config_pb2 as mc


@dataclass(frozen=True, slots=True)
class VersionSource:
    """One version to load: the completed configuration (each version has its own) and where its files are."""

    name: str
    version: int
    model_dir: Path
    version_dir: Path
    config: mc.ModelConfig
    labels: Mapping[str, tuple[str, ...]]

"""One InferenceModel as an entry of the desired table: what to load, from where, and how to serve it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from shoal_api.kinds import InferenceModel, check, dotted
from shoal_api.protocol import model_config_pb2 as mc
from shoal_operator.tables.config import overlay


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A file or folder on the machine that serves."""

    path: Path


@dataclass(frozen=True, slots=True)
class HttpFile:
    """One file behind a URL; `sha256` (64 hexadecimal digits) says which content is meant."""

    url: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """`overlay` is laid over the configuration that comes with the model. `digest` ("sha256:..." or "") is checked before the model is
    loaded."""

    name: str
    source: LocalPath | HttpFile
    overlay: mc.ModelConfig = field(default_factory=mc.ModelConfig)
    digest: str = ""


def plan_model(model: InferenceModel, base: Path) -> ModelEntry:
    """Return the entry of a model. A relative path of its source starts at `base`, the manifest's folder.

    Raises ValueError with every broken rule; what `load_manifests` returned breaks none.
    """
    problems = check(model)
    if problems:
        raise ValueError("; ".join(f"{dotted(p.path)}: {p.message}" for p in problems))
    config = overlay(model.spec)
    config.name = model.served_name
    return ModelEntry(model.served_name, _source(model, base), config, model.spec.model.digest or "")


def _source(model: InferenceModel, base: Path) -> LocalPath | HttpFile:
    source, uri, digest = model.spec.model.source, model.spec.model.uri, model.spec.model.digest
    if source is not None and source.local is not None:
        return LocalPath(base / source.local.path)
    if source is not None and source.http is not None:
        return HttpFile(source.http.url, source.http.sha256)
    if uri is None:
        raise ValueError("spec.model: exactly one of source and uri is needed")
    if uri.startswith("file://"):
        return LocalPath(base / unquote(uri.removeprefix("file://")))
    return HttpFile(uri, (digest or "").removeprefix("sha256:"))

"""From YAML files to checked objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal_api.kinds.common import API_VERSION, KINDS
from shoal_api.kinds.convert import convert
from shoal_api.kinds.document import Document, read_documents
from shoal_api.kinds.inference_model import InferenceModel
from shoal_api.kinds.problems import ManifestError, Origin, Problem, located, near
from shoal_api.kinds.rules import check

SERVED = ("InferenceModel",)
"""The kinds that this release serves."""
SUFFIXES = frozenset({".yaml", ".yml", ".json"})
MAX_FILES = 1000
"""In one folder."""


class Manifest(NamedTuple):
    """One object and where it was written."""

    model: InferenceModel
    origin: Origin


def load_manifests(paths: Sequence[Path]) -> list[Manifest]:
    """Read manifests from files, and from folders (their *.yaml, *.yml and *.json files, not the folders inside).

    Raises ManifestError with every problem of every file: what does not parse, fields that are unknown or not honoured yet, broken
    rules, and two models of one name.
    """
    manifests: list[Manifest] = []
    lines: list[str] = []
    for file in _files(paths):
        try:
            for document in read_documents(file):
                model, problems = _read(document)
                lines += problems
                if model is not None:
                    manifests.append(Manifest(model, document.origin))
        except ManifestError as error:
            lines += error.lines
    lines += _duplicates(manifests)
    if lines:
        raise ManifestError(lines)
    if not manifests:
        raise ManifestError(
            [f"no manifests in {', '.join(map(str, paths))}: expected YAML with kind {' or '.join(SERVED)}"]
        )
    return manifests


def _files(paths: Iterable[Path]) -> list[Path]:
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found = sorted(
                f for f in path.iterdir() if f.suffix in SUFFIXES and f.is_file() and not f.name.startswith(".")
            )
            if len(found) > MAX_FILES:
                raise ManifestError([f"{path}: {len(found)} manifest files; a folder may have {MAX_FILES}"])
            files.update(dict.fromkeys(found))
        else:
            files[path] = None
    return list(files)


def _read(document: Document) -> tuple[InferenceModel | None, list[str]]:
    values, origin = document
    kind, api_version = values.get("kind"), values.get("apiVersion")
    problem = _wrong_kind(kind, api_version)
    if problem is not None:
        return None, located(origin, [problem])
    subject = f"{kind} {_name(document)}".rstrip()
    if "status" in values:
        return None, located(origin, [Problem("written by the operator; leave it out", ("status",))], subject)
    model, problems = convert(values, InferenceModel)
    if model is not None:
        problems = check(model)
    return (None if problems else model), located(origin, problems, subject)


def _wrong_kind(kind: object, api_version: object) -> Problem | None:
    if kind is None or api_version is None:
        missing = "apiVersion" if api_version is None else "kind"
        return Problem(f"no {missing}; expected apiVersion: {API_VERSION}, kind: {' or '.join(SERVED)}")
    if api_version != API_VERSION:
        return Problem(f"'{api_version}' is not served here; expected {API_VERSION}", ("apiVersion",))
    if kind in SERVED:
        return None
    if kind in KINDS:
        return Problem(f"{kind} is not served yet by this release; it serves {' and '.join(SERVED)}", ("kind",))
    return Problem(f"unknown kind '{kind}'{near(str(kind), KINDS)}", ("kind",))


def _name(document: Document) -> str:
    metadata = document.values.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _duplicates(manifests: Sequence[Manifest]) -> list[str]:
    first: dict[str, Origin] = {}
    lines: list[str] = []
    for model, origin in manifests:
        name = model.served_name
        if name in first:
            path = ("spec", "model", "name") if model.spec.model.name else ("metadata", "name")
            other = first[name]
            problem = Problem(
                f"a model is served as '{name}' already: {other.file}:{other.line(path)} (document {other.document})",
                path,
            )
            lines += located(origin, [problem], f"InferenceModel {model.metadata.name}")
        first.setdefault(name, origin)
    return lines

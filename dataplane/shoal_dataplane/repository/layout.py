"""Where models, versions and their files are.

A model is found in a repository, as a folder of it (triton.md A1), or declared by a manifest, with a path of its own: a model folder
or a single model file, which is version 1.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import ServingError, internal, invalid, unimplemented
from shoal_dataplane.repository.schema import near

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.pbtxt"
CONFIG_FOLDER = "configs"
MODEL_FILE_SUFFIXES = (".onnx", ".pt", ".pt2", ".py")
DUPLICATE_REASON = "model appears in two or more repositories"
MAX_VERSION = (1 << 63) - 1
MAX_LABEL_BYTES = 16 << 20
_MAX_NAME_BYTES = 255
_NO_MODELS = {"lost+found"}  # and names with a leading dot: what file systems, volumes and editors leave in a folder


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """One model on disk. `path` is a model folder or, `is_file`, a single model file. `repository` is the folder in which it was
    found, None for a model that a manifest declares; `overlay` is that manifest's configuration, laid over config.pbtxt."""

    name: str
    path: Path
    repository: Path | None = None
    is_file: bool = False
    overlay: mc.ModelConfig | None = None

    @property
    def model_dir(self) -> Path:
        """The folder with config.pbtxt, label files and version folders."""
        return self.path.parent if self.is_file else self.path

    @property
    def declared(self) -> bool:
        """Is it declared by a manifest, so that its name need not be its folder's?"""
        return self.repository is None


@dataclass(slots=True)
class Scan:
    """What the repositories and manifests hold now: `models` by name, `duplicates` (names found more than once, which are not in
    `models`), and the repositories that could not be read."""

    models: dict[str, ModelLocation] = field(default_factory=dict)
    duplicates: set[str] = field(default_factory=set)
    unreadable: dict[Path, str] = field(default_factory=dict)

    def names(self) -> set[str]:
        """Every name found."""
        return self.models.keys() | self.duplicates

    def _add(self, location: ModelLocation) -> None:
        if location.name in self.models or location.name in self.duplicates:
            self.models.pop(location.name, None)
            self.duplicates.add(location.name)
        else:
            self.models[location.name] = location


def quoted(name: str) -> str:
    """A caller's string for an error text: in quotes, and in ASCII when it holds what cannot be printed."""
    return f"'{name}'" if name.isprintable() else ascii(name)


def check_repository(path: Path) -> None:
    """Raise ServingError(INVALID_ARGUMENT) when `path` is no folder."""
    if not path.is_dir():
        raise invalid(f"repository path is not a valid directory: '{path}'")


def check_model_name(name: str) -> None:
    """Raise ServingError(INVALID_ARGUMENT) for a name that cannot be a model's (triton.md A12)."""
    if not name.strip():
        raise invalid("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or ".." in name or name.strip() == ".":
        raise invalid(f"invalid model name {quoted(name)}, model name must not contain path traversal characters")
    if not name.isprintable():
        raise invalid(f"invalid model name {quoted(name)}, model name must not contain control characters")
    size = len(name.encode(errors="replace"))
    if size > _MAX_NAME_BYTES:
        raise invalid(f"invalid model name '{name[:40]}...' of {size} bytes, at most {_MAX_NAME_BYTES} are allowed")


def scan(repositories: Sequence[Path], declared: Iterable[ModelLocation] = ()) -> Scan:
    """List every model. A repository that cannot be read is logged and noted, the others are listed."""
    found = Scan()
    for location in declared:
        found._add(location)
    for repository in repositories:
        try:
            names = sorted(entry.name for entry in repository.iterdir() if _holds_model(entry))
        except OSError as error:
            logger.error("failed to poll model repository '%s': %s", repository, error.strerror)
            found.unreadable[repository] = error.strerror or type(error).__name__
            continue
        for name in names:
            found._add(ModelLocation(name, repository / name, repository))
    return found


def find(name: str, repositories: Sequence[Path], declared: Iterable[ModelLocation] = ()) -> ModelLocation:
    """Find one model by its name.

    Raises ServingError(INTERNAL) with Triton's text (triton.md A12) when it is in none, or in several, of the places.
    """
    found = [location for location in declared if location.name == name]
    found += [
        ModelLocation(name, repository / name, repository)
        for repository in repositories
        if _holds_model(repository / name)
    ]
    text = f"failed to load '{name}', failed to poll from model repository"
    if len(found) > 1:
        raise internal(f"{text}: {DUPLICATE_REASON}")
    if not found:
        raise internal(text)
    return found[0]


def _holds_model(path: Path) -> bool:
    return not path.name.startswith(".") and path.name not in _NO_MODELS and path.is_dir()


def declared_model(name: str, path: Path, overlay: mc.ModelConfig | None = None) -> ModelLocation:
    """Locate the one model of a manifest: a model folder (with config.pbtxt or version folders) or a single model file.

    Raises ServingError: INVALID_ARGUMENT when `path` is neither, UNIMPLEMENTED for a kind of source that is not served yet.
    """
    check_model_name(name)
    if path.is_file():
        if path.suffix == ".gguf":
            raise unimplemented(f"the source of model '{name}' is a GGUF file, which is not supported yet: '{path}'")
        if path.suffix not in MODEL_FILE_SUFFIXES:
            expected = ", ".join(MODEL_FILE_SUFFIXES)
            raise invalid(f"the source of model '{name}' is no model file: '{path}', expected one of {expected}")
        return ModelLocation(name, path, is_file=True, overlay=overlay)
    if not path.is_dir():
        raise invalid(f"the source of model '{name}' does not exist: '{path}'")
    location = ModelLocation(name, path, overlay=overlay)
    if (path / CONFIG_FILE).is_file() or versions(location):
        return location
    if (path / "config.json").is_file() or any(path.glob("*.safetensors")) or any(path.glob("*.gguf")):
        raise unimplemented(
            f"the source of model '{name}' is a Hugging Face folder, which is not supported yet: '{path}'"
        )
    raise invalid(
        f"the source of model '{name}' is no model folder: '{path}' has neither {CONFIG_FILE} nor a version folder such as '1'"
        f"{_repository_hint(path)}"
    )


def _repository_hint(path: Path) -> str:
    inner = [entry.name for entry in sorted(path.iterdir()) if (entry / CONFIG_FILE).is_file()]
    return f"; it looks like a repository of models ({', '.join(inner[:3])})" if inner else ""


def versions(location: ModelLocation) -> dict[int, Path]:
    """The version folders of a model by their number (triton.md A1); a single file is version 1, in the folder that holds it."""
    if location.is_file:
        return {1: location.path.parent}
    found: dict[int, Path] = {}
    for entry in location.path.iterdir():
        name = entry.name
        if not (name.isascii() and name.isdigit()) or not entry.is_dir():
            continue
        if len(name) > 1 and name.startswith("0"):
            logger.warning(
                "ignore version directory '%s' of model '%s' which contains leading zeros in its directory name",
                name,
                location.name,
            )
        elif len(name) > 19 or int(name) > MAX_VERSION:
            logger.warning("ignore version directory '%s' of model '%s': the number is too large", name, location.name)
        else:
            found[int(name)] = entry
    return dict(sorted(found.items()))


def select_versions(policy: mc.ModelVersionPolicy, available: Iterable[int], name: str) -> list[int]:
    """Return the versions that a policy serves, in rising order (triton.md A5). A listed version that is not there is only logged.

    Raises ServingError(INVALID_ARGUMENT) when none is left.
    """
    there = sorted(available)
    choice = policy.WhichOneof("policy_choice")
    if choice == "specific":
        wanted = set(policy.specific.versions)
        for version in sorted(wanted.difference(there)):
            logger.error(
                "version %d is specified for model '%s', but the version directory is not present", version, name
            )
        chosen = [version for version in there if version in wanted]
    elif choice == "all":
        chosen = there
    else:
        count = policy.latest.num_versions if choice == "latest" else 1
        chosen = there[max(0, len(there) - count) :]
    if not chosen:
        raise invalid(f"at least one version must be available under the version policy of model '{name}'")
    return chosen


def config_path(location: ModelLocation, config_name: str) -> Path | None:
    """The configuration file of a model: configs/<config_name>.pbtxt if it is there, else config.pbtxt, else None."""
    if location.is_file:
        return None
    candidates = [location.path / CONFIG_FILE]
    if config_name:
        candidates.insert(0, location.path / CONFIG_FOLDER / f"{config_name}.pbtxt")
    return next((path for path in candidates if path.exists()), None)


def inside(name: str) -> bool:
    """Does a configured file name stay in the folder that it is relative to, as it is written?"""
    path = PurePosixPath(name)
    return bool(name) and "\0" not in name and not path.is_absolute() and ".." not in path.parts


def read_labels(model_dir: Path, config: mc.ModelConfig) -> dict[str, tuple[str, ...]]:
    """Read the label file of every output that names one: its lines, by the output's name.

    Raises ServingError: UNIMPLEMENTED (as Triton) for a file outside the model's folder, INVALID_ARGUMENT for one that cannot be read.
    """
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.output:
        if not output.label_filename:
            continue
        path = model_dir / output.label_filename
        if not inside(output.label_filename) or not path.resolve().is_relative_to(model_dir.resolve()):
            raise unimplemented(
                f"label file path '{path}' for output '{output.name}' in model '{config.name}' is outside model directory"
            )
        labels[output.name] = _read_lines(path, output.name, config.name)
    return labels


def _read_lines(path: Path, output: str, model: str) -> tuple[str, ...]:
    where = f"label file '{path}' for output '{output}' in model '{model}'"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LABEL_BYTES + 1)
    except OSError as error:
        raise _missing_labels(where, path, error) from None
    if len(data) > MAX_LABEL_BYTES:
        raise invalid(f"{where} is larger than {MAX_LABEL_BYTES >> 20} MiB")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise invalid(f"{where} is not UTF-8 text") from None
    return tuple(line.rstrip("\r") for line in text.removesuffix("\n").split("\n")) if text else ()


def _missing_labels(where: str, path: Path, error: OSError) -> ServingError:
    hint = ""
    if isinstance(error, FileNotFoundError) and path.parent.is_dir():
        hint = near(path.name, (entry.name for entry in path.parent.iterdir()))
    return invalid(f"{where} cannot be read: {error.strerror}{hint}")

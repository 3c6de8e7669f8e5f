"""What kind of PyTorch file a model file is, told from the names in its zip archive, without torch."""

from __future__ import annotations

import enum
import zipfile
from pathlib import Path

from shoal_dataplane.core.errors import internal


class ArchiveKind(enum.Enum):
    """The files that this backend can serve."""

    TORCHSCRIPT = "TorchScript"
    EXPORT = "torch.export"
    AOT_INDUCTOR = "AOTInductor"


def archive_kind(model: str, path: Path) -> ArchiveKind:
    """Return the kind of a model file. Raises ServingError(INTERNAL) that names the file and what it is instead."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        raise internal(f"failed to load model '{model}' from '{path}': {_not_an_archive(path)}") from None
    except OSError as error:
        raise internal(f"failed to load model '{model}' from '{path}': {error.strerror or error}") from error
    inner = [name.partition("/")[2] for name in names]
    if any(name.startswith("data/aotinductor/") for name in inner):
        return ArchiveKind.AOT_INDUCTOR
    if any(name.startswith("models/") and name.endswith(".json") for name in inner):
        return ArchiveKind.EXPORT
    if "constants.pkl" in inner:
        return ArchiveKind.TORCHSCRIPT
    if "data.pkl" in inner:
        raise internal(
            f"failed to load model '{model}' from '{path}': the file was written by torch.save (weights or a pickled module, which holds "
            "no program); save it with torch.jit.script(model).save(...) or torch.export.save(torch.export.export(model, args), ...)"
        )
    raise internal(
        f"failed to load model '{model}' from '{path}': the zip archive is neither TorchScript, torch.export nor AOTInductor "
        f"(it holds {', '.join(sorted(names)[:4]) or 'nothing'})"
    )


def _not_an_archive(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
    if start.startswith(b"PK\x03\x04"):
        return f"the archive is truncated or damaged ({size} bytes)"
    return f"not a TorchScript or torch.export archive ({size} bytes, starting with {start!r})"

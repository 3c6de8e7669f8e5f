"""The identity of a model or an adapter: what `digest` means in every kind.

A file's digest is the SHA-256 of its bytes. A folder's is the SHA-256 over the lines that `sha256sum` would print for its files,
`<hex>  <relative path>\\n`, sorted bytewise by path, of the files that the loader reads: of an adapter (a folder with
adapter_config.json) that file and adapter_model.safetensors, of a model folder every file but hidden ones and Python's caches.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_CHUNK = 1 << 20


def digest(path: Path) -> str:
    """Return "sha256:<hex>" of a file or folder. Raises OSError for what cannot be read, ValueError for a folder without files."""
    if not path.is_dir():
        return f"sha256:{file_sha256(path)}"
    files = sorted(_files(path), key=os.fsencode)
    if not files:
        raise ValueError(f"{path}: no files in this folder")
    whole = hashlib.sha256()
    for name in files:
        whole.update(file_sha256(path / name).encode() + b"  " + os.fsencode(name) + b"\n")
    return f"sha256:{whole.hexdigest()}"


def file_sha256(file: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal. Raises OSError."""
    sha = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            sha.update(chunk)
    return sha.hexdigest()


def _files(folder: Path) -> Iterator[str]:
    """Yield the relative paths, with "/", of the files that count. Links are followed, but to no folder twice."""
    if (folder / ADAPTER_FILES[0]).is_file():
        yield from (name for name in ADAPTER_FILES if (folder / name).is_file())
        return
    seen = {folder.resolve()}
    for place, folders, files in os.walk(folder, followlinks=True):
        here = Path(place)
        kept = []
        for name in sorted(folders):
            target = (here / name).resolve()
            if not name.startswith(".") and name != "__pycache__" and target not in seen:
                seen.add(target)
                kept.append(name)
        folders[:] = kept
        yield from ((here / name).relative_to(folder).as_posix() for name in files if not name.startswith("."))

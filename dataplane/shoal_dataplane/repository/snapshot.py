"""What a model's files look like from outside, to notice that they changed without reading them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from shoal_dataplane.repository.layout import ModelLocation

Snapshot = dict[str, tuple[int, int, int]]
"""Modification time (ns), size (bytes) and inode of every file by its path in the model's folder; zeros for a folder."""

_IGNORED = {"__pycache__"}  # written by a Python model that is loaded: no change of the model
_MAX_DEPTH = 32


def take_snapshot(location: ModelLocation) -> Snapshot:
    """Look at every file of a model. What vanishes meanwhile, or cannot be read, is left out: the next snapshot then differs.

    Links are followed (volumes of Kubernetes are made of them), each folder once for every entry of the model's own folder. Times of
    folders do not count: loading a Python model changes them.
    """
    files: Snapshot = {}
    if location.is_file:
        _note(location.path, location.path.name, files)
    else:
        for name in _list(location.path):
            if name not in _IGNORED and _note(location.path / name, name, files):
                _walk(location.path / name, f"{name}/", 0, set(), files)
    return files


def _walk(folder: Path, prefix: str, depth: int, seen: set[tuple[int, int]], files: Snapshot) -> None:
    try:
        status = folder.stat()
    except OSError:
        return
    identity = (status.st_dev, status.st_ino)
    if identity in seen or depth > _MAX_DEPTH:
        return
    seen.add(identity)
    for name in _list(folder):
        if name not in _IGNORED and _note(folder / name, prefix + name, files):
            _walk(folder / name, f"{prefix}{name}/", depth + 1, seen, files)


def _list(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _note(path: Path, key: str, files: Snapshot) -> bool:
    """Note one path; True when it is a folder."""
    try:
        status = path.stat()
    except OSError:
        return False
    folder = stat.S_ISDIR(status.st_mode)
    files[key] = (0, 0, 0) if folder else (status.st_mtime_ns, status.st_size, status.st_ino)
    return folder


def signature(snapshot: Snapshot, counts: Callable[[str], bool] = lambda path: True) -> bytes:
    """A digest of the part of a snapshot for whose paths `counts` is true. Equal exactly when nothing there changed."""
    digest = hashlib.blake2b(digest_size=16)
    for path, values in sorted(snapshot.items()):
        if counts(path):
            digest.update(repr((path, values)).encode(errors="surrogateescape"))
    return digest.digest()

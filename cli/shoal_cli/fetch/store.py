"""The cache: entries appear whole or not at all, and two processes that want the same one wait for each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol


class FetchError(RuntimeError):
    """Something could not be brought here. The text says what, why, and what would help."""


class Progress(Protocol):
    """Told how far one transfer is. Called from the thread that transfers."""

    def __call__(self, done: int, total: int | None) -> None:
        """`done` bytes of `total` (None: not known) are here."""


def silent(done: int, total: int | None) -> None:
    """A Progress that tells nobody."""


def cache_root() -> Path:
    """$SHOAL_CACHE, else the `shoal` folder of the user's cache ($XDG_CACHE_HOME or ~/.cache)."""
    own = os.environ.get("SHOAL_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "shoal"


def ensure_folder(target: Path, complete: Callable[[Path], bool], make: Callable[[Path], None]) -> bool:
    """Make sure that the folder `target` is there and `complete`; return whether it had to be made.

    `make` fills an empty folder beside `target`, which is then moved into place; when it raises, or the process ends, nothing
    of it stays under the name. One process or thread at a time makes a target, the others wait. Raises FetchError when the
    cache cannot be written.
    """
    if complete(target):
        return False
    with _locked(target):
        if complete(target):
            return False
        with _staging(target) as folder:
            make(folder)
            _sync(folder)
            if target.exists():  # incomplete: cut short by hand, or of another layout
                shutil.rmtree(target)
            folder.rename(target)
    return True


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    lock = target.with_name(f".{target.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("w")
    except OSError as error:
        raise FetchError(f"the cache cannot be written: {error}; SHOAL_CACHE names another folder") from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, gone at the end unless it was moved. Those that killed processes left are removed: the caller
    holds the lock, so none of them is in use."""
    for left in target.parent.glob(f".{target.name}.new-*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
    folder.chmod(0o755)
    try:
        yield folder
    except OSError as error:
        raise FetchError(f"{target} cannot be made: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Bring a folder's files to the disk, so that the rename that follows never shows an empty file after a power cut."""
    for place, _, files in os.walk(folder):
        for path in (Path(place), *(Path(place) / name for name in files)):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

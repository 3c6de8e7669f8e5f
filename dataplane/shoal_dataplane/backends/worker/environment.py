"""How a Python process is started that runs a part of this server: its command line and its environment."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import shoal_api
import shoal_dataplane
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.cores import intra_op_threads


def worker_command(module: str, *arguments: str) -> list[str]:
    """Run `module` with this interpreter. -P: a file in the current folder must not stand for a module of the same name."""
    return [sys.executable, "-P", "-m", module, *arguments]


def worker_environment(config: mc.ModelConfig) -> dict[str, str]:
    """This process's environment, and what is set there unless its user has set it.

    OMP_NUM_THREADS is the model's share of the cores: OpenMP's own default is every core of the machine, for each of the model's
    instances. Output is not buffered, so that a line is in the log when it is printed, and no __pycache__ is written into a model
    repository, which may be read-only, or be polled for changes.
    """
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(intra_op_threads(config)))
    environment.setdefault("PYTHONUNBUFFERED", "1")
    environment.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    roots = dict.fromkeys(
        Path(str(package.__file__)).resolve().parent.parent for package in (shoal_dataplane, shoal_api)
    )
    # A checkout may be on sys.path by other means; an installed package is found anyway, and its folder must not come before Python's.
    paths = [str(root) for root in roots if root.name not in ("site-packages", "dist-packages")]
    known = environment.get("PYTHONPATH", "")
    if paths or known:
        environment["PYTHONPATH"] = os.pathsep.join([*paths, *([known] if known else [])])
    return environment


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent's thread that started it ends, however it ends (Linux; elsewhere nothing).

    `parent` is the parent's process id: when it is the parent no more, this process ends at once.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)

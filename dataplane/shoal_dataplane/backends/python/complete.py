"""Call a model's `auto_complete_config` in a process that lives only for it: a model that hangs, exits or eats memory there costs its
own load and nothing else.

`python -m shoal_dataplane.backends.python.complete FILE FD PARENT` is that process: the configuration as JSON on standard input, the result
as JSON into the descriptor, whatever the model prints on its standard output.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.python import loader as python_loader
from shoal_dataplane.backends.python import pb_utils
from shoal_dataplane.backends.python.pb_utils.server import set_server
from shoal_dataplane.backends.worker.environment import die_with_parent, worker_command, worker_environment
from shoal_dataplane.backends.worker.options import LOAD_TIMEOUT, WorkerOptions
from shoal_dataplane.core.errors import Code, Reason, ServingError, internal, invalid, unavailable
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse

logger = logging.getLogger(__name__)

FUNCTION = "auto_complete_config"
MAX_OUTPUT = 64 << 10


def defines_auto_complete(path: Path) -> bool:
    """May the model define `auto_complete_config`? False only when its source shows that it does not, so that most models need no
    process for it. A source that cannot be parsed is left to the process, whose error names the line."""
    source = path.read_bytes()
    if FUNCTION.encode() in source:
        return True
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return True
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == python_loader.MODEL_CLASS:
            return bool(node.bases or node.decorator_list or node.keywords)
    return True


def complete(name: str, path: Path, config_json: str, config: mc.ModelConfig) -> dict[str, Any]:
    """Return the configuration, as plain values, that the model's function gave back; `config_json` itself when there is none.

    Raises ServingError: INVALID_ARGUMENT for a ValueError of the function (a contradiction), INTERNAL for all else.
    """
    timeout = WorkerOptions.of(config).load_seconds
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as given:
        given.write(config_json.encode())
        given.seek(0)
        process = subprocess.Popen(
            worker_command(__name__, str(path), str(result.fileno()), str(os.getpid())),
            stdin=given,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(result.fileno(),),
            env=worker_environment(config),
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise internal(
                f"{FUNCTION} of model '{name}' took longer than {timeout:g} s ({LOAD_TIMEOUT})", Reason.NOT_READY
            ) from None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # and whatever it started
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0, os.SEEK_END)
        output.seek(max(0, output.tell() - MAX_OUTPUT))
        for line in output.read().decode(errors="replace").splitlines():
            logger.info("model '%s', %s: %s", name, FUNCTION, line)
        result.seek(0)
        return _read_result(name, status, result.read())


def _read_result(name: str, status: int, text: bytes) -> dict[str, Any]:
    try:
        result = json.loads(text)
        kind, value = result["kind"], result["value"]
    except (ValueError, TypeError, KeyError):
        ended = f"was killed by signal {-status}" if status < 0 else f"exited with code {status}"
        raise internal(f"the process that ran {FUNCTION} of model '{name}' {ended}; its output is in the log") from None
    if kind == "config" and isinstance(value, dict):
        return value
    if kind == "contradiction":
        raise invalid(str(value))
    raise ServingError(Code.INTERNAL, str(value), Reason.BACKEND)


def run(path: Path, config_json: str) -> dict[str, Any]:
    """What the process does: import the model, call the function, return the result for `complete`."""
    try:
        model_class = python_loader.load_class(path)
    except ServingError as error:
        return {"kind": "error", "value": error.message}
    function = getattr(model_class, FUNCTION, None)
    if function is None:
        return {"kind": "config", "value": json.loads(config_json)}
    try:
        completed = function(pb_utils.ModelConfig(config_json))
    except ValueError as error:
        return {"kind": "contradiction", "value": str(error)}
    except (Exception, SystemExit) as error:
        return {"kind": "error", "value": python_loader.describe(error)}
    if not isinstance(completed, pb_utils.ModelConfig):
        name = json.loads(config_json)["name"]
        return {
            "kind": "error",
            "value": f"{FUNCTION} function in model '{name}' must return a valid pb.ModelConfig object.",
        }
    return {"kind": "config", "value": completed.as_dict()}


class _Console:
    """The server that `auto_complete_config` sees: a log, and nothing else."""

    _unavailable = "in auto_complete_config a model can log, and nothing else, of what the server offers"

    def log(self, level: int, message: str) -> None:
        print(f"{logging.getLevelName(level)} {message}", flush=True)

    def refuse_blocking(self) -> str:
        return self._unavailable

    def infer(self, request: InferRequest, answer: Callable[[InferResponse], None]) -> Callable[[], None]:
        raise unavailable(self._unavailable)

    def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        raise unavailable(self._unavailable)

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        raise unavailable(self._unavailable)

    def model_ready(self, name: str, version: str) -> bool:
        raise unavailable(self._unavailable)

    def metric_family(self, name: str, description: str, kind: str) -> int:
        raise ValueError(self._unavailable)

    def metric(self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None) -> int:
        raise ValueError(self._unavailable)

    def change_metric(self, metric: int, operation: str, value: float) -> None:
        raise ValueError(self._unavailable)

    def metric_value(self, metric: int) -> float:
        raise ValueError(self._unavailable)

    def release_metric(self, item: int) -> None:
        """There are none."""


def main() -> None:
    """The process's entry."""
    path, fd, parent = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    die_with_parent(parent)
    python_loader.own_process = True
    set_server(_Console())
    result = run(path, sys.stdin.read())
    with os.fdopen(fd, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()

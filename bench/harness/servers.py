"""Start and stop the servers that are measured: Shoal from this checkout, and a real Triton where tests/conformance has set one up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TRITON = ROOT / "tests" / "conformance" / "triton.sh"


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server process, ready when `with` enters its body. `grpc`, `http` and `metrics` are its ports."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        repository: Path,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.grpc, self.http, self.metrics = free_port(), free_port(), free_port()
        self._command = [
            *command,
            f"--model-repository={repository}",
            f"--grpc-port={self.grpc}",
            f"--http-port={self.http}",
            f"--metrics-port={self.metrics}",
            "--grpc-address=127.0.0.1",
            "--http-address=127.0.0.1",
            "--metrics-address=127.0.0.1",
            *flags,
        ]
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **(env or {})}
        self._log = Path(os.environ.get("TMPDIR", "/tmp")) / f"bench-{name}-{os.getpid()}-{self.grpc}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Server:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._env
            )
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/v2/health/ready", timeout=2) as answer:
                    if answer.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        self.stop()
        raise SystemExit(f"{self.name} did not become ready; its log:\n{self._log.read_text(errors='replace')[-4000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._log.unlink(missing_ok=True)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after 20 s; by pid."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def shoal(repository: Path, *flags: str, name: str = "shoal", env: Mapping[str, str] | None = None) -> Server:
    """Shoal, from this checkout's environment."""
    return Server(name, [sys.executable, "-m", "shoal_cli.main", "serve"], repository, flags, env)


def triton(repository: Path, *flags: str, name: str = "triton") -> Server:
    """A real Triton (TRITON, TRITON_PYTHON and PEERS say where; `make conformance` sets it up)."""
    return Server(name, ["bash", str(TRITON)], repository, ["--allow-gpu-metrics=false", "--log-verbose=0", *flags])


def have_triton() -> bool:
    """Is there a Triton to compare with, and torch for its Python models? Says what is missing."""
    python = Path(os.environ.get("TRITON_PYTHON", Path(os.environ.get("PEERS", ROOT / ".peers")) / "conformance"))
    packages = next(iter(python.glob("lib/python3*/site-packages")), python)
    server = Path(os.environ.get("TRITON", packages / "pytriton" / "tritonserver"))
    if not server.joinpath("bin", "tritonserver").exists():
        print(f"  no Triton in {server}: only Shoal is measured (make conformance sets one up)")
        return False
    if not packages.joinpath("torch").is_dir():
        print(f"  {python} has no torch for Triton's Python models: only Shoal is measured (install torch there)")
        return False
    return True


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                found += tree(int(child))
        except OSError:
            continue
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of the processes so far."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> dict[str, float]:
    """RssAnon, VmRSS and VmHWM of a process in MB (2**20 bytes)."""
    found: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("RssAnon", "VmRSS", "VmHWM"):
            found[key] = int(value.split()[0]) / 1024
    return found


def get_json(port: int, path: str) -> Any:
    """A GET request's JSON answer."""
    import json

    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)

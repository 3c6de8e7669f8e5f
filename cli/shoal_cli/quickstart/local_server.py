"""A server of this machine for a while: `shoal serve` in a process of its own, on free ports of the loopback interface."""

from __future__ import annotations

import contextlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

START_SECONDS = 180.0
END_SECONDS = 40.0
_PORTS = re.compile(r"^Serving: HTTP ([^\s,]+), gRPC ([^\s,]+)")
_TAIL = 30


class ServerError(RuntimeError):
    """The server did not start, or did not end well. The text has its last lines."""


class LocalServer:
    """`http` and `grpc` are "HOST:PORT" while the context is open; every model is loaded then. Leaving it drains the server."""

    def __init__(self, *paths: Path, flags: tuple[str, ...] = ()) -> None:
        self._command = [
            *(sys.executable, "-m", "shoal_cli.main", "serve", *map(str, paths)),
            *("--http-address=127.0.0.1", "--grpc-address=127.0.0.1"),
            *("--http-port=0", "--grpc-port=0", "--metrics-port=0", *flags),
        ]
        self.http = ""
        self.grpc = ""
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def __enter__(self) -> LocalServer:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name="server-output", daemon=True)
        self._reader.start()
        try:
            self._wait_serving()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        code = self._end()
        if code != 0 and kind is None:
            raise ServerError(f"the server ended with code {code}:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines that the server wrote."""
        return "\n".join(self._tail)

    def _wait_serving(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        for line in self._until(deadline):
            match = _PORTS.match(line)
            if match:
                self.http, self.grpc = match.groups()
                return
        if time.monotonic() >= deadline:
            raise ServerError(f"the server was not ready within {START_SECONDS:g} s:\n{self.tail()}")
        raise ServerError(f"the server ended with code {self._process.wait()}:\n{self.tail()}")

    def _until(self, deadline: float) -> Iterator[str]:
        """Yield the server's lines until it ends or the time is over."""
        with contextlib.suppress(queue.Empty):
            while (line := self._lines.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
                yield line

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._tail.append(line.rstrip("\n"))
                if not self.grpc:
                    self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _end(self) -> int:
        """Ask the server to drain, and return its exit code. One that does not end is killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join(1)  # not for ever: a process that the server left behind may hold the pipe
        return code

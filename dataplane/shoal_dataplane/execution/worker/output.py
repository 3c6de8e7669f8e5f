"""What a worker prints and logs, as lines of the server's log, and not more of them than a log can take."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger("shoal_dataplane.models")
"""What models log and print, whichever process they run in."""

MAX_LINE = 16 << 10
LINES_PER_SECOND = 500
BURST = 2000


class _Allowance:
    """How many lines may be logged: BURST at once, LINES_PER_SECOND for long."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._counted = time.monotonic()
        self.dropped = 0

    def take(self) -> bool:
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._counted) * LINES_PER_SECOND)
        self._counted = now
        if self._left < 1:
            self.dropped += 1
            return False
        self._left -= 1
        return True


class WorkerOutput:
    """The output of one model instance. One thread."""

    def __init__(self, model: str, instance: str) -> None:
        self._instance = instance
        self._extra = {"model": model, "instance": instance}
        self._partial = b""
        self._told = 0.0
        self._lines = _Allowance()
        self._warnings = _Allowance()  # of their own: what a model prints must not hide what went wrong in it

    def feed(self, data: bytes) -> None:
        """Bytes as they come out of the process; a line that is longer than MAX_LINE is cut into several."""
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        for line in lines:
            self._line(line)
        if len(self._partial) >= MAX_LINE:
            self.end()

    def end(self) -> None:
        """There is no more: log what has no newline."""
        partial, self._partial = self._partial, b""
        if partial:
            self._line(partial)

    def _line(self, line: bytes) -> None:
        for start in range(0, max(1, len(line)), MAX_LINE):
            self.log(logging.INFO, line[start : start + MAX_LINE].decode(errors="replace").rstrip("\r"))

    def log(self, level: int, message: str) -> None:
        """One line (or several, of a traceback), unless there were too many of late; how many were left out is logged."""
        allowance = self._warnings if level >= logging.WARNING else self._lines
        if not allowance.take():
            return
        if allowance.dropped and time.monotonic() >= self._told + 1:
            self._told = time.monotonic()
            dropped, allowance.dropped = allowance.dropped, 0
            logger.warning("%s: %d lines left out", self._instance, dropped, extra=self._extra)
        logger.log(level, "%s: %s", self._instance, message, extra=self._extra)

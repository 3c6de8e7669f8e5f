"""What a worker prints and logs, as lines of the server's log, and not more of them than a log can take."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger("shoal_dataplane.models")
"""What models log and print, whichever process they run in."""

MAX_LINE = 16 << 10
LINES_PER_SECOND = 500
BURST = 2000


class WorkerOutput:
    """The output of one model instance. One thread."""

    def __init__(self, model: str, instance: str) -> None:
        self._instance = instance
        self._extra = {"model": model, "instance": instance}
        self._partial = b""
        self._allowance = float(BURST)
        self._counted = time.monotonic()
        self._dropped = 0

    def feed(self, data: bytes) -> None:
        """Bytes as they come out of the process; a line that is longer than MAX_LINE is cut into several."""
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        for line in lines:
            for start in range(0, max(1, len(line)), MAX_LINE):
                self.log(logging.INFO, line[start : start + MAX_LINE].decode(errors="replace").rstrip("\r"))
        if len(self._partial) >= MAX_LINE:
            self.end()

    def end(self) -> None:
        """There is no more: log what has no newline."""
        partial, self._partial = self._partial, b""
        if partial:
            self.log(logging.INFO, partial.decode(errors="replace"))

    def log(self, level: int, message: str) -> None:
        """One line (or several, of a traceback), unless there were too many of late; how many were left out is logged."""
        now = time.monotonic()
        self._allowance = min(BURST, self._allowance + (now - self._counted) * LINES_PER_SECOND)
        self._counted = now
        if self._allowance < 1:
            self._dropped += 1
            return
        self._allowance -= 1
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            logger.warning("%s: %d lines left out", self._instance, dropped, extra=self._extra)
        logger.log(level, "%s: %s", self._instance, message, extra=self._extra)

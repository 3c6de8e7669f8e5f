"""Where log records go, and which: the switches of Triton's --log-* flags and of its logging extension (triton.md L5).

Records of Shoal's own packages are shown by the switches. Those of libraries are shown from warnings on; from verbose level 2 on
also their info, from 3 on everything. Python's warnings become records too, so that each line of the output is one of ours.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from shoal_dataplane.telemetry.log_format import JsonFormatter, TextFormatter, level_name

PACKAGES = ("shoal_api", "shoal_cli", "shoal_dataplane", "shoal_operator")

FORMATTERS = {"text": TextFormatter, "json": JsonFormatter}

OFF = logging.CRITICAL + 1


@dataclass(frozen=True)
class LogSettings:
    """What is logged. `verbose` 0 is off; `file` empty means standard error."""

    format: str = "text"
    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    file: str = ""


class _Switches(logging.Filter):
    """Each kind of record by its own switch: warnings may be off while infos are on."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = level_name(record.levelno)
        return _settings.verbose > 0 if kind == "verbose" else bool(getattr(_settings, kind))


class _StreamHandler(logging.StreamHandler[TextIO]):
    """To a stream, or to whatever standard error is at the moment."""

    def __init__(self, stream: TextIO | None) -> None:
        logging.Handler.__init__(self)
        self._fixed = stream

    @property
    def stream(self) -> TextIO:
        return self._fixed if self._fixed is not None else sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        self._fixed = stream

    def handleError(self, record: logging.LogRecord) -> None:
        """A log that cannot be written (a full disk, a closed pipe) is no reason to fail, and there is nowhere else to say it."""


class _FileHandler(logging.handlers.WatchedFileHandler):
    """To a file, which may be moved away while it is written (logrotate)."""

    def handleError(self, record: logging.LogRecord) -> None:
        """As with a stream."""


_lock = threading.Lock()
_settings = LogSettings()
_handler: logging.Handler | None = None


def configure(
    format: str = "text",
    verbose: int = 0,
    *,
    info: bool = True,
    warning: bool = True,
    error: bool = True,
    file: Path | None = None,
    stream: TextIO | None = None,
) -> None:
    """Send all log records to `file`, else to `stream`, else to standard error. May be called again, and then replaces.

    Raises ValueError for a format that is neither text nor json, OSError for a file that cannot be opened.
    """
    global _handler
    handler: logging.Handler
    if file is None:
        handler = _StreamHandler(stream)
    else:
        handler = _FileHandler(file, encoding="utf-8", errors="backslashreplace")
    with _lock:
        try:
            _apply(handler, LogSettings(format, verbose, info, warning, error, str(file or "")))
        except ValueError:
            handler.close()
            raise
        handler.addFilter(_Switches())
        root = logging.getLogger()
        root.addHandler(handler)
        if _handler is not None:
            root.removeHandler(_handler)
            _handler.close()
        _handler = handler
    logging.captureWarnings(True)


def settings() -> LogSettings:
    """What is logged now."""
    return _settings


def change(
    *,
    format: str | None = None,
    verbose: int | None = None,
    info: bool | None = None,
    warning: bool | None = None,
    error: bool | None = None,
) -> LogSettings:
    """Change what is logged while running; what is None stays. From any thread. Returns the new settings.

    Raises ValueError for a format that is neither text nor json.
    """
    wanted: dict[str, Any] = {
        "format": format,
        "verbose": verbose,
        "info": info,
        "warning": warning,
        "error": error,
    }
    with _lock:
        _apply(_handler, replace(_settings, **{key: value for key, value in wanted.items() if value is not None}))
        return _settings


def _apply(handler: logging.Handler | None, wanted: LogSettings) -> None:
    """Make `wanted` true. Loggers get the lowest level that any switch lets through, so that what is off costs nothing."""
    global _settings
    if wanted.format not in FORMATTERS:
        raise ValueError(f"the log format is '{wanted.format}', expected one of {', '.join(FORMATTERS)}")
    if handler is not None:
        handler.setFormatter(FORMATTERS[wanted.format]())
    level = OFF
    for on, lowest in (
        (wanted.error, logging.ERROR),
        (wanted.warning, logging.WARNING),
        (wanted.info, logging.INFO),
        (wanted.verbose > 0, logging.DEBUG),
    ):
        if on:
            level = lowest
    libraries = {0: logging.WARNING, 1: logging.WARNING, 2: logging.INFO}.get(max(0, wanted.verbose), logging.DEBUG)
    for name in PACKAGES:
        logging.getLogger(name).setLevel(level)
    logging.getLogger().setLevel(max(level, libraries))
    _settings = wanted

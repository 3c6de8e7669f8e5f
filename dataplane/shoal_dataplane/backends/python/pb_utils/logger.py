"""Logger as Python models know it."""

from __future__ import annotations

import enum
import logging

from shoal_dataplane.backends.python.pb_utils.server import server


class LogLevel(enum.Enum):
    """pb_utils.Logger.INFO and so on; the value is the logging module's level."""

    INFO = logging.INFO
    WARNING = logging.WARNING
    ERROR = logging.ERROR
    VERBOSE = logging.DEBUG


class Logger:
    """Lines for the server's log, under the model's name. Verbose ones show when the server logs verbosely."""

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        server().log(level.value, str(message))

    @staticmethod
    def log_info(message: str) -> None:
        server().log(logging.INFO, str(message))

    @staticmethod
    def log_warn(message: str) -> None:
        server().log(logging.WARNING, str(message))

    @staticmethod
    def log_error(message: str) -> None:
        server().log(logging.ERROR, str(message))

    @staticmethod
    def log_verbose(message: str) -> None:
        server().log(logging.DEBUG, str(message))

"""How a log record becomes one line of text in Triton's style, or one JSON object.

A log line shows what clients and models send, so nothing of a record can forge another line, clear a terminal or be without end:
control characters are escaped, continued lines are indented, lengths are bounded. Formatting never raises, whatever was logged.
"""

from __future__ import annotations

import datetime
import json
import logging
import math
import re
import traceback
from collections.abc import Callable
from typing import Any

MESSAGE_LIMIT = 8 << 10
EXCEPTION_LIMIT = 16 << 10
FIELD_LIMIT = 1 << 10
FIELDS_LIMIT = 32
"""Characters of a message, of a traceback (its end, which says most), of a field's name or value; and fields of a record."""

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest was given as `extra`."""

JSON_KEYS = ("time", "level", "logger", "message", "exception")
"""The keys that a field of a record cannot take: it gets a `_` behind its name."""

LETTERS = {logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "E"}

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_PLAIN = re.compile(r"[^\s\"'=\\]+")


def level_name(level: int) -> str:
    """One of verbose, info, warning, error: the switches of the logging extension (Triton L5)."""
    if level >= logging.ERROR:
        return "error"
    if level >= logging.WARNING:
        return "warning"
    return "info" if level >= logging.INFO else "verbose"


class TextFormatter(logging.Formatter):
    """`I1201 06:08:35.322943 4572 lifecycle.py:219] loading: resnet:1 model=resnet`: level, UTC, process, place, message, fields.

    Further lines of a message and of a traceback are indented by four spaces; only the first line of a record begins with a letter.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        letter = LETTERS.get(record.levelno) or level_name(record.levelno)[0].upper()
        text = message_of(record)
        for key, value in fields_of(record).items():
            text += f" {_word(key)}={_word(value if isinstance(value, str) else json.dumps(value))}"
        exception = exception_of(record)
        if exception:
            text += f"\n{exception}"
        text = _UNPRINTABLE.sub(lambda match: _escape(match.group()), text).replace("\n", "\n    ")
        place = f"{record.process} {record.filename}:{record.lineno}"
        return f"{letter}{moment:%m%d %H:%M:%S.%f} {place}] {text}"


class JsonFormatter(logging.Formatter):
    """One object a line: time (RFC 3339, UTC), level (debug, info, warning, error), logger, message, the record's fields, exception.

    ASCII only, whatever the terminal's encoding.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z",
            "level": level_name(record.levelno).replace("verbose", "debug"),
            "logger": record.name,
            "message": message_of(record),
        }
        for key, value in fields_of(record).items():
            line[f"{key}_" if key in JSON_KEYS else key] = value
        exception = exception_of(record)
        if exception:
            line["exception"] = exception
        return json.dumps(line)


def message_of(record: logging.LogRecord) -> str:
    """The message with its arguments, or what there is of it when they do not fit."""

    def message() -> str:
        try:
            return record.getMessage()
        except (TypeError, ValueError, KeyError):
            return f"{record.msg} {record.args}"

    return _cut(_safely(message, record.msg).rstrip(), MESSAGE_LIMIT)


def fields_of(record: logging.LogRecord) -> dict[str, str | int | float | bool | None]:
    """The record's `extra`: plain values as they are, anything else as text; without those that are None."""
    fields: dict[str, str | int | float | bool | None] = {}
    for key, value in list(vars(record).items()):
        if key in STANDARD or value is None:
            continue
        if len(fields) == FIELDS_LIMIT:
            break
        fields[_cut(str(key), FIELD_LIMIT)] = _plain(value)
    return fields


def exception_of(record: logging.LogRecord) -> str:
    """The traceback and the stack of a record, empty when it has none."""
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        kind, error, trace = record.exc_info
        parts.append(_safely(lambda: "".join(traceback.format_exception(kind, error, trace)), error).rstrip())
    if record.stack_info:
        parts.append(record.stack_info.rstrip())
    text = "\n".join(parts)
    return (
        text
        if len(text) <= EXCEPTION_LIMIT
        else f"... ({len(text) - EXCEPTION_LIMIT} characters)\n{text[-EXCEPTION_LIMIT:]}"
    )


def _plain(value: Any) -> str | int | float | bool:
    """A value that JSON has, of exactly that type: a subclass may print itself as anything."""
    kind = type(value)
    if kind is bool or (kind is int and value.bit_length() <= 64) or (kind is float and math.isfinite(value)):
        plain: int | float | bool = value
        return plain
    return _cut(value if kind is str else _safely(lambda: str(value), value), FIELD_LIMIT)


def _safely(text: Callable[[], str], of: object) -> str:
    """The text, or what kind of object it is that cannot be shown."""
    try:
        return text()
    except Exception as error:
        return f"<{type(of).__name__} that cannot be shown: {type(error).__name__}>"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"


def _word(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

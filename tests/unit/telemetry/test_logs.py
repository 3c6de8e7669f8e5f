"""Logs: readable, one record a line whatever is logged, never a reason to fail, and switchable while running."""

from __future__ import annotations

import datetime
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_dataplane.telemetry import logs
from shoal_dataplane.telemetry.log_format import JsonFormatter, TextFormatter
from shoal_dataplane.telemetry.logs import LogSettings

OURS = logging.getLogger("shoal_dataplane.test")
THEIRS = logging.getLogger("a_library.test")
FIRST_LINE = re.compile(r"[VIWE]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \S+:\d+\] ")


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """What is logged in the test; everything is as it was afterwards."""
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in logs.PACKAGES}
    root_level, handlers = root.level, root.handlers[:]
    stream = io.StringIO()
    try:
        logs.configure(stream=stream)
        yield stream
    finally:
        logging.captureWarnings(False)
        for handler in root.handlers[:]:
            if handler not in handlers:
                root.removeHandler(handler)
                handler.close()
        root.setLevel(root_level)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def objects(output: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def log_at_every_level(logger: logging.Logger) -> None:
    logger.debug("verbose")
    logger.info("info")
    logger.warning("warning")
    logger.error("error")


def shown(output: io.StringIO) -> list[str]:
    return [line.rpartition("] ")[2] for line in output.getvalue().splitlines()]


# -- what a record looks like


def test_text_lines_look_like_triton_s(output: io.StringIO) -> None:
    OURS.info("loading: %s:%d", "resnet", 1, extra={"model": "resnet", "note": 'two "words"', "nothing": None})
    line = output.getvalue()
    assert FIRST_LINE.match(line)
    assert line.endswith('] loading: resnet:1 model=resnet note="two \\"words\\""\n')
    assert " test_logs.py:" in line


def test_json_lines_have_the_record_s_fields(output: io.StringIO) -> None:
    logs.change(format="json")
    extra = {"model": "resnet", "version": 1, "request_id": "7", "traceparent": "00-a-b-01", "none": None}
    OURS.warning("slow: %s", "é", extra=extra)
    (line,) = objects(output)
    moment = datetime.datetime.fromisoformat(line.pop("time"))
    assert abs(datetime.datetime.now(datetime.UTC) - moment) < datetime.timedelta(minutes=5)
    assert line == {
        "level": "warning",
        "logger": "shoal_dataplane.test",
        "message": "slow: é",
        "model": "resnet",
        "version": 1,
        "request_id": "7",
        "traceparent": "00-a-b-01",
    }


@pytest.mark.parametrize(
    ("microsecond", "expected"), [(0, "2024-02-29T23:59:59.000000Z"), (120, "2024-02-29T23:59:59.000120Z")]
)
def test_times_are_rfc_3339_in_utc(microsecond: int, expected: str) -> None:
    created = datetime.datetime(2024, 2, 29, 23, 59, 59, microsecond, datetime.UTC).timestamp()
    record = logging.makeLogRecord({"msg": "x", "levelno": logging.INFO, "created": created})
    assert json.loads(JsonFormatter().format(record))["time"] == expected
    assert TextFormatter().format(record).startswith(f"I0229 23:59:59.{microsecond:06d} ")


def test_an_exception_is_one_field_in_json_and_indented_in_text(output: io.StringIO) -> None:
    def fail() -> None:
        try:
            raise RuntimeError("first\nI0101 00:00:00.000000 1 forged.py:1] second")
        except RuntimeError:
            OURS.exception("it failed")

    fail()
    first, *rest = output.getvalue().splitlines()
    assert first.endswith("] it failed")
    assert rest
    assert all(line.startswith("    ") for line in rest)
    assert "RuntimeError: first" in rest[-2]
    output.seek(0)
    output.truncate()
    logs.change(format="json")
    fail()
    (line,) = objects(output)
    assert line["message"] == "it failed"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert "RuntimeError: first" in line["exception"]


@given(st.text(), st.text())
@settings(deadline=None)
def test_no_text_can_forge_a_line(message: str, value: str) -> None:
    record = logging.makeLogRecord({"msg": message, "field": value, "levelno": logging.INFO, "filename": "x.py"})
    text = TextFormatter().format(record)
    first, *rest = text.split("\n")
    assert FIRST_LINE.match(first)
    assert all(line.startswith("    ") for line in rest)
    assert len(text.splitlines()) == len(rest) + 1
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text.replace("\n", ""))
    text.encode()
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert line.isascii()
    assert json.loads(line)["field"] == value


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Loud(int):
    def __repr__(self) -> str:
        return "not a number"

    __str__ = __repr__


RING: list[Any] = []
RING.append(RING)
ODD = {
    "unprintable": Unprintable(),
    "a subclass of int": Loud(3),
    "a cycle": RING,
    "nan": float("nan"),
    "infinity": float("-inf"),
    "a huge integer": 10**5000,
    "bytes": b"\xff",
    "unprintable inside": {1: Unprintable()},
    "a surrogate": "\ud800",
    "a class": object,
}


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_objects_are_logged_somehow(
    output: io.StringIO, format: str, odd: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.change(format=format)
    root = logging.getLogger()  # without pytest's own handlers, which do raise
    monkeypatch.setattr(
        root, "handlers", [h for h in root.handlers if isinstance(h.formatter, JsonFormatter | TextFormatter)]
    )
    OURS.info(odd)
    OURS.info("%s", odd)
    OURS.info("%d %d", odd)
    OURS.info("field", extra={"odd": odd})
    try:
        raise ValueError(odd)
    except ValueError:
        OURS.exception("raised")
    lines = [line for line in output.getvalue().splitlines() if not line.startswith("    ")]
    assert len(lines) == 5
    if format == "json":
        assert objects(output)[3]["message"] == "field"
        assert "odd" in objects(output)[3]


def test_fields_do_not_replace_the_record_s_own(output: io.StringIO) -> None:
    logs.change(format="json")
    OURS.info("hello", extra={"time": "never", "level": "none", "logger": "nobody", "exception": "no"})
    (line,) = objects(output)
    assert (line["message"], line["level"], line["logger"]) == ("hello", "info", "shoal_dataplane.test")
    assert (line["time_"], line["level_"], line["logger_"], line["exception_"]) == ("never", "none", "nobody", "no")


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_record_is_never_endless(output: io.StringIO, format: str) -> None:
    logs.change(format=format)
    try:
        raise ValueError("e" * 10**6 + "the end")
    except ValueError:
        OURS.exception("m" * 10**6, extra={f"field_{number}": "f" * 10**5 for number in range(1000)})
    assert len(output.getvalue()) < 100_000
    assert "the end" in output.getvalue()


# -- which records


def test_by_default_infos_warnings_and_errors_are_shown(output: io.StringIO) -> None:
    log_at_every_level(OURS)
    assert shown(output) == ["info", "warning", "error"]


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({"verbose": 1}, ["verbose", "info", "warning", "error"]),
        ({"info": False}, ["warning", "error"]),
        ({"warning": False}, ["info", "error"]),
        ({"error": False}, ["info", "warning"]),
        ({"info": False, "warning": False, "error": False}, []),
        ({"info": False, "warning": False, "error": False, "verbose": 1}, ["verbose"]),
    ],
)
def test_each_kind_has_its_own_switch_while_running(
    output: io.StringIO, switches: dict[str, Any], expected: list[str]
) -> None:
    logs.change(**switches)
    log_at_every_level(OURS)
    assert shown(output) == expected


def test_what_is_off_is_not_even_made(output: io.StringIO) -> None:
    assert not OURS.isEnabledFor(logging.DEBUG)
    logs.change(verbose=1)
    assert OURS.isEnabledFor(logging.DEBUG)
    logs.change(verbose=0, info=False)
    assert not OURS.isEnabledFor(logging.INFO)


@pytest.mark.parametrize(
    ("verbose", "expected"),
    [
        (0, ["warning", "error"]),
        (1, ["warning", "error"]),
        (2, ["info", "warning", "error"]),
        (3, ["verbose", "info", "warning", "error"]),
    ],
)
def test_libraries_are_quiet_unless_wanted(output: io.StringIO, verbose: int, expected: list[str]) -> None:
    logs.change(verbose=verbose)
    log_at_every_level(THEIRS)
    assert shown(output) == expected


def test_a_change_keeps_what_it_does_not_name(output: io.StringIO) -> None:
    logs.change(verbose=2, warning=False)
    assert logs.change(format="json") == LogSettings("json", 2, True, False, True, "")
    assert logs.settings() == LogSettings("json", 2, True, False, True, "")


def test_python_s_warnings_become_records(output: io.StringIO) -> None:
    logs.change(format="json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("careful", stacklevel=1)
    (line,) = objects(output)
    assert line["level"] == "warning"
    assert line["logger"] == "py.warnings"
    assert "careful" in line["message"]


# -- where to


def test_configuring_again_replaces(output: io.StringIO) -> None:
    second = io.StringIO()
    logs.configure("json", stream=second)
    OURS.info("here")
    assert output.getvalue() == ""
    assert [line["message"] for line in objects(second)] == ["here"]


def test_without_a_stream_it_is_the_standard_error_of_the_moment(
    output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure()
    late = io.StringIO()
    monkeypatch.setattr("sys.stderr", late)
    OURS.info("here")
    assert shown(late) == ["here"]


def test_a_file_is_appended_to_and_found_again_after_logrotate(output: io.StringIO, tmp_path: Path) -> None:
    path = tmp_path / "shoal.log"
    path.write_text("before\n")
    logs.configure(file=path)
    OURS.info("one")
    path.rename(tmp_path / "shoal.log.1")
    OURS.info("two")
    assert [line.rpartition("] ")[2] for line in (tmp_path / "shoal.log.1").read_text().splitlines()] == [
        "before",
        "one",
    ]
    assert path.read_text().endswith("] two\n")
    assert logs.settings().file == str(path)
    logs.configure(stream=output)


def test_what_cannot_be_is_refused_and_changes_nothing(output: io.StringIO, tmp_path: Path) -> None:
    before = logs.settings()
    with pytest.raises(ValueError, match="the log format is 'xml', expected one of text, json"):
        logs.configure("xml")
    with pytest.raises(ValueError, match="'xml'"):
        logs.change(format="xml")
    with pytest.raises(OSError, match="no/such"):
        logs.configure(file=tmp_path / "no/such/folder.log")
    assert logs.settings() == before
    OURS.info("still here")
    assert shown(output) == ["still here"]


def test_a_stream_that_cannot_be_written_to_fails_nobody(
    output: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = io.StringIO()
    closed.close()
    logs.configure(stream=closed)
    OURS.error("lost")
    assert capsys.readouterr().err == ""

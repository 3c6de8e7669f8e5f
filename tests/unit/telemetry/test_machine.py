"""Figures of the machine and the process: read right, read seldom, and missing rather than wrong."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest

from shoal_dataplane.telemetry.machine import Machine, Sampled, process_figures

STAT = "cpu  {user} 10 {system} {idle} 50 0 5 5 0 0\ncpu0 1 2 3\nbtime 1700000000\n"
MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "stat").write_text(STAT.format(user=100, system=100, idle=800))
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "self" / "fd").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "self" / "fd" / str(number)).touch()
    numbers = ["0"] * 50
    numbers[11], numbers[12], numbers[19], numbers[20], numbers[21] = "250", "50", "1000", "4096", "7"
    (tmp_path / "self" / "stat").write_text(f"42 (a) name) ({')'} S {' '.join(numbers[1:])}\n")
    return tmp_path


def values(figures: list) -> dict[str, float]:
    return {family.name: samples[0][1] for family, samples in figures}


def test_utilisation_is_of_the_time_since_the_reading_before(proc: Path) -> None:
    machine = Machine(proc)
    (proc / "stat").write_text(STAT.format(user=150, system=125, idle=825))
    assert values(machine.read())["nv_cpu_utilization"] == 0.75
    (proc / "stat").write_text(STAT.format(user=150, system=125, idle=925))
    assert values(machine.read())["nv_cpu_utilization"] == 0.0


def test_utilisation_stays_when_no_tick_has_passed_or_the_counters_run_backwards(proc: Path) -> None:
    machine = Machine(proc)
    (proc / "stat").write_text(STAT.format(user=200, system=100, idle=900))
    assert values(machine.read())["nv_cpu_utilization"] == 0.5
    assert values(machine.read())["nv_cpu_utilization"] == 0.5
    (proc / "stat").write_text(STAT.format(user=300, system=100, idle=899))
    assert values(machine.read())["nv_cpu_utilization"] == 0.5


def test_used_memory_is_what_is_not_available(proc: Path) -> None:
    figures = values(Machine(proc).read())
    assert figures["nv_cpu_memory_total_bytes"] == 1000 * 1024
    assert figures["nv_cpu_memory_used_bytes"] == 400 * 1024


@pytest.mark.parametrize(
    ("name", "content"),
    [("stat", "cpu a b"), ("stat", ""), ("meminfo", "MemTotal: 1 kB\n"), ("meminfo", "MemTotal:\nMemAvailable: x")],
)
def test_what_cannot_be_read_is_left_out(proc: Path, name: str, content: str) -> None:
    (proc / name).write_text(content)
    figures = values(Machine(proc).read())
    assert ("nv_cpu_utilization" in figures) is (name != "stat")
    assert ("nv_cpu_memory_total_bytes" in figures) is (name != "meminfo")


def test_a_machine_without_proc_has_no_figures_and_a_process_still_its_cpu_time(tmp_path: Path) -> None:
    assert Machine(tmp_path).read() == []
    figures = values(process_figures(tmp_path))
    assert figures["process_cpu_seconds_total"] > 0
    assert "process_open_fds" not in figures
    assert "process_resident_memory_bytes" not in figures


def test_the_process_is_read_behind_a_name_with_parentheses(proc: Path) -> None:
    import os
    import resource

    ticks = os.sysconf("SC_CLK_TCK")
    figures = values(process_figures(proc))
    assert figures["process_cpu_seconds_total"] == 300 / ticks
    assert figures["process_start_time_seconds"] == 1700000000 + 1000 / ticks
    assert figures["process_virtual_memory_bytes"] == 4096
    assert figures["process_resident_memory_bytes"] == 7 * resource.getpagesize()
    assert figures["process_open_fds"] == 3
    assert figures["process_max_fds"] > 0
    assert not math.isnan(figures["process_max_fds"])


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_a_figure_is_read_again_only_after_the_interval() -> None:
    clock, reads = Clock(), iter(range(10))
    sampled = Sampled(lambda: next(reads), -1, 2.0, clock)
    assert [sampled.get(), sampled.get()] == [0, 0]
    clock.time += 1.9
    assert sampled.get() == 0
    clock.time += 0.1
    assert sampled.get() == 1


def test_a_reading_that_hangs_holds_up_nobody_else() -> None:
    reading, release = threading.Event(), threading.Event()

    def read() -> str:
        reading.set()
        assert release.wait(30)
        return "read"

    sampled = Sampled(read, "first", 0.0, Clock())
    thread = threading.Thread(target=sampled.get)
    thread.start()
    try:
        assert reading.wait(30)
        assert sampled.get() == "first"
    finally:
        release.set()
        thread.join()
    assert sampled.get() == "read"


def test_a_reading_that_fails_can_be_tried_again() -> None:
    answers = iter([OSError("no"), "yes"])

    def read() -> str:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    sampled = Sampled(read, "", 1.0, Clock())
    with pytest.raises(OSError, match="no"):
        sampled.get()
    assert sampled.get() == "yes"

"""Figures of the machine and of this process, read from /proc when a scrape asks for them: no thread of their own.

`nv_cpu_*` are of the whole machine, also in a container, as in Triton (its /proc/stat and /proc/meminfo show the host).
`process_*` are the usual ones of this process; a model that runs in a process of its own is not in them. Where there is no /proc
(macOS), what cannot be read is left out.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from shoal_dataplane.telemetry.exposition import Family, Figures

T = TypeVar("T")

PROC = Path("/proc")


class Sampled(Generic[T]):
    """A figure read when it is asked for, at most once in `interval_s`.

    Thread-safe; who asks while another thread reads gets the last figure, so that a reading that hangs (a driver) holds up one
    caller and no more. `first` is the answer until the first reading has ended.
    """

    def __init__(
        self, read: Callable[[], T], first: T, interval_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._last = first
        self._interval_s = interval_s
        self._now = now
        self._due = float("-inf")
        self._reading = threading.Lock()

    def get(self) -> T:
        if self._now() >= self._due and self._reading.acquire(blocking=False):
            try:
                self._last = self._read()
                self._due = self._now() + self._interval_s
            finally:
                self._reading.release()
        return self._last


CPU_UTILIZATION = Family("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]")
CPU_MEMORY_TOTAL = Family("nv_cpu_memory_total_bytes", "gauge", "CPU total memory (RAM), in bytes", "bytes")
CPU_MEMORY_USED = Family("nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes", "bytes")


class Machine:
    """CPU utilisation since the reading before (the first: since this object was made), and memory. Not thread-safe: see Sampled."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._ticks = self._read_ticks()
        self._utilization = 0.0

    def read(self) -> list[Figures]:
        """Return the `nv_cpu_*` families, without those that cannot be read here."""
        figures: list[Figures] = []
        ticks = self._read_ticks()
        if ticks is not None:
            if self._ticks is not None:
                busy, idle = ticks[0] - self._ticks[0], ticks[1] - self._ticks[1]
                if busy >= 0 and idle >= 0 and busy + idle > 0:  # iowait may run backwards, says the kernel
                    self._utilization = busy / (busy + idle)
            self._ticks = ticks
            figures.append((CPU_UTILIZATION, [("", self._utilization)]))
        memory = self._read_memory()
        if memory is not None:
            figures.append((CPU_MEMORY_TOTAL, [("", memory[0])]))
            figures.append((CPU_MEMORY_USED, [("", memory[1])]))
        return figures

    def _read_ticks(self) -> tuple[int, int] | None:
        """Clock ticks of all CPUs, busy and idle. Guest time is within user time already."""
        try:
            with (self._proc / "stat").open() as file:
                fields = file.readline().split()
            user, nice, system, idle, iowait, irq, softirq, steal = (int(field) for field in fields[1:9])
        except (OSError, ValueError):
            return None
        return user + nice + system + irq + softirq + steal, idle + iowait

    def _read_memory(self) -> tuple[int, int] | None:
        """Bytes in all and bytes used. Used is what is not available, as in Triton."""
        found: dict[str, int] = {}
        try:
            with (self._proc / "meminfo").open() as file:
                for line in file:
                    name, _, value = line.partition(":")
                    if name in ("MemTotal", "MemAvailable"):
                        found[name] = int(value.split()[0]) * 1024
            total = found["MemTotal"]
            return total, max(0, total - found["MemAvailable"])
        except (OSError, ValueError, KeyError, IndexError):
            return None


CPU_SECONDS = Family(
    "process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", "seconds"
)
VIRTUAL_BYTES = Family("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", "bytes")
RESIDENT_BYTES = Family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", "bytes")
START_TIME = Family(
    "process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", "seconds"
)
OPEN_FDS = Family("process_open_fds", "gauge", "Number of open file descriptors.")
MAX_FDS = Family("process_max_fds", "gauge", "Maximum number of open file descriptors.")


FAMILIES = (
    CPU_UTILIZATION,
    CPU_MEMORY_TOTAL,
    CPU_MEMORY_USED,
    CPU_SECONDS,
    VIRTUAL_BYTES,
    RESIDENT_BYTES,
    START_TIME,
    OPEN_FDS,
    MAX_FDS,
)


def process_figures(proc: Path = PROC) -> list[Figures]:
    """Return the `process_*` families of this process, without those that cannot be read here."""
    values: list[tuple[Family, float]] = []
    try:
        # The command's name, in parentheses, may hold anything; the fields after it are numbers (proc(5), from field 3 on).
        fields = (proc / "self" / "stat").read_text(errors="replace").rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        values.append((CPU_SECONDS, (int(fields[11]) + int(fields[12])) / ticks))
        values.append((VIRTUAL_BYTES, int(fields[20])))
        values.append((RESIDENT_BYTES, int(fields[21]) * resource.getpagesize()))
        values.append((START_TIME, _boot_time(proc) + int(fields[19]) / ticks))
    except (OSError, ValueError, IndexError):
        if not values:
            values.append((CPU_SECONDS, time.process_time()))
    try:
        values.append((OPEN_FDS, len(os.listdir(proc / "self" / "fd"))))
    except OSError:
        pass
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    values.append((MAX_FDS, float("inf") if limit == resource.RLIM_INFINITY else limit))
    return [(family, [("", value)]) for family, value in values]


def _boot_time(proc: Path) -> int:
    """Seconds since the epoch at which the machine started. Raises ValueError where it is not told."""
    with (proc / "stat").open() as file:
        for line in file:
            if line.startswith("btime "):
                return int(line.split()[1])
    raise ValueError("no btime in /proc/stat")

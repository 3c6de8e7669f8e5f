"""Machine line and tables."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path


def machine() -> str:
    """What this ran on, in a line, with the speed of a fixed Python loop (shared machines change theirs within minutes)."""
    cpu = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    where = f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"{where}, load {os.getloadavg()[0]:.2f}, calibration loop {calibration_ms():.1f} ms"


def calibration_ms() -> float:
    """Milliseconds of a fixed loop, the best of three."""
    best = 1e9
    for _ in range(3):
        started = time.perf_counter()
        total = 0
        for index in range(300_000):
            total += index & 7
        best = min(best, time.perf_counter() - started)
    return best * 1e3


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    widths = [max(len(str(row[column])) for row in [header, *rows]) for column in range(len(header))]
    print(f"\n{title}")
    for row in [header, ["-" * width for width in widths], *rows]:
        print("  " + "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def verdict(ratio: float, target: float) -> str:
    """A ratio against its target."""
    return f"{ratio:.2f}x (target {target:g}x{'' if ratio >= target else ', MISSED'})"

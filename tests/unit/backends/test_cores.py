"""The default number of threads never asks for more cores than there are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal_dataplane.backends import cores
from tests.unit.backends.loading import config


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 cores, no limits."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16),
        ({"cpu.max": "max 100000"}, 16),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "6400000 100000"}, 16),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
        ({"cpu.max": "nonsense"}, 16),
    ],
)
def test_a_container_s_cpu_limit_counts(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert cores.usable_cores(tmp_path) == expected


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("available", "groups", "limit", "expected"),
    [
        (16, "", "", 16),
        (16, "instance_group { count: 4 kind: KIND_CPU }", "", 4),
        (16, "instance_group { count: 3 } instance_group { count: 1 passive: true }", "", 5),
        (16, "instance_group { count: 64 }", "", 1),
        (16, "instance_group { count: 8 kind: KIND_GPU }", "", 16),
        (16, "", "3", 3),
        (16, "", "all", 16),
        (2, "", "", 1),
        (1, "", "", 1),
    ],
)
def test_instances_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, available: int, groups: str, limit: str, expected: int
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: available)
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert cores.intra_op_threads(config(groups)) == expected

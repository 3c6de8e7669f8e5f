"""How many threads one instance may use inside its operators."""

from __future__ import annotations

import math
import os
from pathlib import Path

from shoal_api.protocol import model_config_pb2 as mc

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Return the cores that this process may use: its affinity, and no more than the container's CPU limit (rounded up).

    A pod limited to 2 CPUs on a node of 64 sees 64 in os.cpu_count(); 64 threads on 2 cores are far slower than 2.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = _cpu_limit(cgroup)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def intra_op_threads(config: mc.ModelConfig) -> int:
    """Return the default for threads inside one operator: the cores divided by the model's instances on the CPU.

    With one or two cores it is 1: the server's own thread and a client or sidecar need a core too, and two threads that wait for
    each other at the end of every small operator lose up to 13 times when one of them is not scheduled. OMP_NUM_THREADS, the
    user's own limit, caps it.
    """
    cores = usable_cores()
    threads = 1 if cores <= 2 else max(1, cores // _cpu_instances(config))
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads, int(limit)) if limit.isdigit() and int(limit) > 0 else threads


def _cpu_instances(config: mc.ModelConfig) -> int:
    group = mc.ModelInstanceGroup
    counts = [g.count or 1 for g in config.instance_group if g.kind != group.KIND_GPU and not g.passive]
    return max(1, sum(counts))


def _cpu_limit(cgroup: Path) -> float | None:
    """The container's CPU limit in cores, None without one (cgroup v2, else v1)."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        limit = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max": no limit
        return None
    return limit if limit > 0 else None

"""Which GPUs there are, without importing a framework."""

from __future__ import annotations

import os
import re
from pathlib import Path


def gpu_count(devices: Path = Path("/dev")) -> int:
    """Count the NVIDIA GPUs that this process may use: its device files, limited by CUDA_VISIBLE_DEVICES as CUDA reads it (the list
    ends at the first entry that is no device)."""
    try:
        present = sum(1 for entry in devices.iterdir() if re.fullmatch(r"nvidia\d+", entry.name))
    except OSError:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    count = 0
    for entry in visible.split(","):
        entry = entry.strip()
        if (entry.isdigit() and int(entry) < present) or entry.startswith(("GPU-", "MIG-")):
            count += 1
        else:
            break
    return count if present else 0

"""The two servers that the suite runs against: how each is started, and what is expected of it where they differ on purpose."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Target:
    """A kind of server. `compared` collects the ids of the differences that a run has looked at."""

    name: str
    compared: set[str] = field(default_factory=set)

    @property
    def is_shoal(self) -> bool:
        return self.name == "shoal"

    def pick(self, difference: str, *, shoal: T, triton: T) -> T:
        """What this target is expected to do where the two differ. `difference` is the id of a row in docs/reference/differences.md."""
        self.compared.add(difference)
        return shoal if self.is_shoal else triton

    def command(self, flags: Sequence[str]) -> list[str]:
        """The command line that serves; `flags` are Triton's, which both take."""
        if self.is_shoal:
            extra = os.environ.get("SHOAL_SERVE_ARGS", "").split()
            return [sys.executable, "-m", "shoal_cli.main", "serve", *flags, *extra]
        return ["bash", str(ROOT / "tests" / "conformance" / "triton.sh"), *flags]

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment that it runs in: this process's, on one thread a library, without settings of the shell that started it."""
        environment = {name: value for name, value in os.environ.items() if name != "TRITONSERVER_DELAY_SCHEDULER"}
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        return {**environment, **threads, "PYTHONFAULTHANDLER": "1", "NO_COLOR": "1", **more}

"""What an idle server costs: anonymous memory beyond `import torch`, without torch, and processor time."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.harness import models, servers
from bench.harness.report import machine, table

IMPORT_TORCH = "import torch\nprint(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('RssAnon')))"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="how long the idle servers are watched")
    options = parser.parse_args(argv)
    print(f"memory: {machine()}")
    done = subprocess.run([sys.executable, "-c", IMPORT_TORCH], capture_output=True, text=True, check=True)
    torch_mb = int(done.stdout) / 1024
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        models.torch_mlp(Path(scratch, "torch"), extra=models.dynamic())
        models.python_echo(Path(scratch, "python"))
        models.onnx_mlp(Path(scratch, "onnx"), extra=models.dynamic())
        for kind, limit in (("torch", torch_mb + 150), ("onnx", 120), ("python", 120)):
            with servers.shoal(Path(scratch, kind)) as server:
                time.sleep(1)
                pids = servers.tree(server.pid)
                before, started = servers.cpu_seconds(pids), time.monotonic()
                time.sleep(options.seconds)
                share = 100 * (servers.cpu_seconds(pids) - before) / (time.monotonic() - started)
                anonymous = servers.memory_mb(server.pid)["RssAnon"]
                workers = sum(servers.memory_mb(pid)["RssAnon"] for pid in pids[1:])
                fits = "" if anonymous < limit else " MISSED"
                rows.append(
                    [kind, f"{anonymous:.0f} (limit {limit:.0f}){fits}", f"{workers:.0f}", f"{share:.2f} % (limit 1 %)"]
                )
    table(
        f"idle, RssAnon in MB (`import torch` alone: {torch_mb:.0f})",
        ["model", "server", "its model processes", "processor"],
        rows,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

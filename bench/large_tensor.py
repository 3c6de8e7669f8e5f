"""A 64 MB tensor in and out: time and peak memory, with the copies that they show.

Lower bound of the server's part: grpcio hands the message over in one bytes object (a copy out of its slices) and takes the answer
from one (a copy into them), so in and out of Python the payload is written twice; the answer is joined to its header once more.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import grpc
import numpy as np

from bench.harness import models, servers
from bench.harness.load import METHOD, median, request
from bench.harness.report import machine, table

MB = 64


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(argv)
    print(f"large_tensor: {machine()}")
    payload = np.ones((MB << 20) // 4, np.float32)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        models.torch_identity(Path(scratch, "in"))
        models.torch_identity(Path(scratch, "own"), extra=models.own_process())
        models.python_identity(Path(scratch, "python"))
        made = {
            "shoal, torch in process": servers.shoal(Path(scratch, "in")),
            "shoal, torch in its own": servers.shoal(Path(scratch, "own")),
            "shoal, python": servers.shoal(Path(scratch, "python")),
        }
        if servers.have_triton():
            made["triton, python"] = servers.triton(Path(scratch, "python"))
        for name, server in made.items():
            with server:
                message = request("big", IN=payload)
                options_ = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
                with grpc.insecure_channel(f"127.0.0.1:{server.grpc}", options=options_) as channel:
                    call = channel.unary_unary(METHOD)
                    call(message, timeout=120, wait_for_ready=True)
                    idle = servers.memory_mb(server.pid)["VmRSS"]
                    times = []
                    for _ in range(options.rounds):
                        started = time.perf_counter()
                        answer = call(message, timeout=120)
                        times.append((time.perf_counter() - started) * 1e3)
                        assert len(answer) >= payload.nbytes
                peak = servers.memory_mb(server.pid)["VmHWM"]
                rows.append(
                    [
                        name,
                        f"{median(times):.0f} [{min(times):.0f}-{max(times):.0f}]",
                        f"{peak - idle:.0f} ({(peak - idle) / MB:.1f} tensors)",
                    ]
                )
    table(f"{MB} MB there and back", ["server", "ms, median [range]", "peak over idle RSS, MB"], rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

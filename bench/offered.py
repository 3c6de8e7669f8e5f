"""Latency at an offered load of 2,000, 5,000 and 9,000 requests/s (h2load --rps, which sends in bursts of a millisecond), beside Triton."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path

import numpy as np

from bench.harness import models, servers
from bench.harness.load import Load, h2load, median, request
from bench.harness.report import machine, table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rates", type=int, nargs="+", default=[2000, 5000, 9000])
    options = parser.parse_args(argv)
    message = request("mlp", IN=np.random.default_rng(0).standard_normal((1, models.INPUTS), np.float32))
    print(f"offered: {machine()}")
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        made: dict[str, servers.Server] = {}
        models.torch_mlp(Path(scratch, "torch"), extra=models.dynamic())
        models.python_mlp(Path(scratch, "python"), extra=models.dynamic())
        made["shoal, in process"] = servers.shoal(Path(scratch, "torch"))
        made["shoal, own process"] = servers.shoal(Path(scratch, "python"))
        if servers.have_triton():
            for count in (1, 2):
                repository = Path(scratch, f"triton-{count}")
                models.python_mlp(repository, extra=models.dynamic(0) + "\n" + models.instances(count))
                made[f"triton, {count} instance{'s' if count > 1 else ''}"] = servers.triton(repository)
        running = {name: stack.enter_context(server) for name, server in made.items()}
        runs: dict[tuple[str, int], list[Load]] = {}
        for _ in range(options.rounds):
            for rate in options.rates:
                for name, server in running.items():
                    runs.setdefault((name, rate), []).append(
                        h2load(server.grpc, message, 256, options.seconds, rate=rate)
                    )
    rows = []
    for name in made:
        cells = []
        for rate in options.rates:
            cell = runs[name, rate]
            served = median([load.rate for load in cell])
            short = "" if served > 0.97 * rate else f" (only {served:,.0f}/s)"
            cells.append(
                f"{median([load.p50 for load in cell]):.2f} / {median([load.p99 for load in cell]):.2f}{short}"
            )
        rows.append([name, *cells])
    table("p50 / p99 in ms, medians", ["server", *(f"{rate:,}/s" for rate in options.rates)], rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

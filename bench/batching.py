"""What dynamic batching is worth: the same server and MLP with and without it, at 64 callers, in process and in a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path

import numpy as np

from bench.harness import models, servers
from bench.harness.load import h2load, median, request, spread
from bench.harness.report import machine, table, verdict

CELLS = {
    "in process": (models.torch_mlp, "", 1.5),
    "own process": (models.torch_mlp, models.own_process(), 3.0),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--callers", type=int, default=64)
    options = parser.parse_args(argv)
    print(f"batching: {machine()}")
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        running = {}
        for cell, (write, extra, _) in CELLS.items():
            repository = Path(scratch, cell.replace(" ", "-"))
            write(repository, name="batched", extra=f"{models.dynamic()}\n{extra}")
            write(repository, name="single", extra=extra)
            running[cell] = stack.enter_context(servers.shoal(repository))
        rates: dict[tuple[str, str], list[float]] = {}
        for _ in range(options.rounds):
            for cell, server in running.items():
                for model in ("single", "batched"):
                    message = request(
                        model, IN=np.random.default_rng(0).standard_normal((1, models.INPUTS), np.float32)
                    )
                    load = h2load(server.grpc, message, options.callers, options.seconds)
                    rates.setdefault((cell, model), []).append(load.rate)
    rows = []
    for cell, (_, _, target) in CELLS.items():
        single, batched = rates[cell, "single"], rates[cell, "batched"]
        rows.append([cell, spread(single), spread(batched), verdict(median(batched) / median(single), target)])
    table(
        f"requests/s at {options.callers} callers, median [range]", ["model", "without", "with batching", "worth"], rows
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

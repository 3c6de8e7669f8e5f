"""Requests per second against a real Triton, closed loop: the MLP 64-256-256-16 at 1, 8, 64 and 256 callers.

Triton is tuned its best way in each cell: queue delay 0 or 100 us, one or two model processes; its model is the Python backend's,
which is what the available binary has. Shoal serves the same MLP in its own process (PyTorch backend) and in a process of its own
(the same model.py as Triton's). Rounds are interleaved; a cell is the median over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path

import numpy as np

from bench.harness import models, servers
from bench.harness.load import h2load, median, request, spread
from bench.harness.report import machine, table, verdict

CALLERS = (1, 8, 64, 256)
TARGETS = {"in process": (1.3, 1.5, 2.0, 1.3), "own process": (1.0, 1.0, 1.0, 1.0)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--callers", type=int, nargs="+", default=list(CALLERS))
    options = parser.parse_args(argv)
    message = request("mlp", IN=np.random.default_rng(0).standard_normal((1, models.INPUTS), np.float32))
    print(f"door: {machine()}")
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(server) for name, server in _servers(Path(scratch)).items()}
        rates: dict[tuple[str, int], list[float]] = {}
        tails: dict[tuple[str, int], list[float]] = {}
        for number in range(options.rounds):
            for callers in options.callers:
                for name, server in running.items():
                    load = h2load(server.grpc, message, callers, options.seconds)
                    if load.failed:
                        raise SystemExit(f"{name}: {load.failed} requests failed at {callers} callers")
                    rates.setdefault((name, callers), []).append(load.rate)
                    tails.setdefault((name, callers), []).append(load.p99)
            print(
                f"  round {number + 1} of {options.rounds}: calibration {machine().rpartition('loop ')[2]}", flush=True
            )
        _report(list(running), options.callers, rates, tails)
    return 0


def _servers(scratch: Path) -> dict[str, servers.Server]:
    made: dict[str, servers.Server] = {}
    for name, write, extra in (
        ("shoal, in process", models.torch_mlp, models.dynamic()),
        ("shoal, own process", models.python_mlp, models.dynamic()),
        ("shoal, own process (torch)", models.torch_mlp, models.dynamic() + "\n" + models.own_process()),
    ):
        repository = scratch / name.replace(", ", "-").replace(" ", "-")
        write(repository, extra=extra)
        made[name] = servers.shoal(repository, name="shoal")
    if servers.have_triton():
        for delay in (0, 100):
            for count in (1, 2):
                name = f"triton, delay {delay} us, {count} instance{'s' if count > 1 else ''}"
                repository = scratch / f"triton-{delay}-{count}"
                models.python_mlp(repository, extra=models.dynamic(delay) + "\n" + models.instances(count))
                made[name] = servers.triton(repository)
    return made


def _report(
    names: list[str],
    callers: list[int],
    rates: dict[tuple[str, int], list[float]],
    tails: dict[tuple[str, int], list[float]],
) -> None:
    rows = [[name, *(spread(rates[name, count]) for count in callers)] for name in names]
    table("requests/s, median [range]", ["server", *(f"c{count}" for count in callers)], rows)
    rows = [[name, *(f"{median(tails[name, count]):.2f}" for count in callers)] for name in names]
    table("p99, ms", ["server", *(f"c{count}" for count in callers)], rows)
    tritons = [name for name in names if name.startswith("triton")]
    if not tritons:
        return
    best = {count: max(median(rates[name, count]) for name in tritons) for count in callers}
    rows = []
    for name in names:
        if name.startswith("shoal"):
            targets = TARGETS["in process" if "in process" in name else "own process"]
            goal = dict(zip(CALLERS, targets, strict=True))
            rows.append(
                [name, *(verdict(median(rates[name, count]) / best[count], goal.get(count, 1.0)) for count in callers)]
            )
    table("ratio to the best Triton of each cell", ["server", *(f"c{count}" for count in callers)], rows)


if __name__ == "__main__":
    raise SystemExit(main())

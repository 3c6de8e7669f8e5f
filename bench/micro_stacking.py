"""What stacking costs: microseconds a request to gather 64 requests into one array and to scatter one output back.

    python bench/micro_stacking.py [--rounds N]

Requests hold views into received bytes, as the gRPC door leaves them. Each line is the median of the rounds, which interleave the
cases; the range is their minimum and maximum. `concatenate` is what numpy's own way of gathering would take.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.arrays.stacking import Stacker
from shoal_dataplane.core.model_spec import compile_spec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor

BATCH = 64
FEATURES = 64
RESULTS = 16
CALLS = 200


class NoCaller:
    """The requests here are never answered."""

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        raise AssertionError("stacking does not answer")


def requests(rows: Sequence[int]) -> list[InferRequest]:
    """Requests of these batch sizes, each with its own message."""
    made = []
    for count in rows:
        data = memoryview(np.random.default_rng(0).random((count, FEATURES), np.float32).tobytes())
        request = InferRequest("m", "", {"x": Tensor("x", "FP32", (count, FEATURES), data)}, NoCaller())
        request.batch_size = count
        made.append(request)
    return made


def cases() -> dict[str, Callable[[], Any]]:
    """Each case handles BATCH requests."""
    config = mc.ModelConfig(name="m", max_batch_size=4 * BATCH)
    config.input.add(name="x", data_type=mc.TYPE_FP32, dims=[FEATURES])
    config.output.add(name="y", data_type=mc.TYPE_FP32, dims=[RESULTS])
    stacker = Stacker(compile_spec(config, 1), config)
    uniform = requests([1] * BATCH)
    mixed = requests([1 + index % 4 for index in range(BATCH)])
    small = {"y": np.zeros((BATCH, RESULTS), np.float32)}
    large = {"y": np.zeros((sum(request.batch_size for request in mixed), RESULTS), np.float32)}
    return {
        "gather, one row each": lambda: stacker.gather(uniform),
        "gather, 1 to 4 rows": lambda: stacker.gather(mixed),
        "concatenate, one row each": lambda: np.concatenate([request.inputs["x"].array() for request in uniform]),
        "scatter, one row each": lambda: stacker.scatter(small, uniform),
        "scatter, 1 to 4 rows": lambda: stacker.scatter(large, mixed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    all_cases = cases()
    results: dict[str, list[float]] = {name: [] for name in all_cases}
    gc.freeze()
    for _ in range(rounds):
        for name, run in all_cases.items():
            run()
            started = time.perf_counter_ns()
            for _ in range(CALLS):
                run()
            results[name].append((time.perf_counter_ns() - started) / CALLS / BATCH / 1e3)
    for name, values in results.items():
        print(f"{name:28} {statistics.median(values):5.2f} us/request  [{min(values):.2f} - {max(values):.2f}]")


if __name__ == "__main__":
    main()

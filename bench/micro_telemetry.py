"""What telemetry costs in CPU time: microseconds a request to count it, and milliseconds a scrape.

    python bench/micro_telemetry.py [--rounds N]

Counting is ModelStatistics.record_batch and record_success for executions of 64 requests and of 1. A scrape is the rendering of
100 loaded versions, in both formats. Each line is the median of the rounds, which interleave the cases; the range is their
minimum and maximum.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Reason
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.options import MetricsOptions
from shoal_dataplane.scheduling.base import Cut
from shoal_dataplane.telemetry.custom_metrics import CustomMetrics
from shoal_dataplane.telemetry.metrics import MetricsRenderer
from shoal_dataplane.telemetry.statistics import ModelStatistics

US = 1_000
VERSIONS = 100


class NoCaller:
    """The requests here are never answered."""

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        raise AssertionError("statistics do not answer")


def requests(count: int) -> list[InferRequest]:
    """Requests that came 3 us after one another."""
    caller = NoCaller()
    made = [InferRequest("model", "", {}, caller, arrival_ns=index * 3 * US) for index in range(count)]
    for request in made:
        request.queued_ns = request.arrival_ns + 2 * US
    return made


def fill(counted: ModelStatistics, made: list[InferRequest], times: int) -> None:
    """Count `times` executions of the requests."""
    started = made[-1].queued_ns + 10 * US
    for _ in range(times):
        counted.record_batch(len(made), len(made), Cut.NO_DELAY, 20 * US, 300 * US, 15 * US)
        counted.record_success(made, started, started + 335 * US)


class Version:
    """A loaded version that is not there but for its numbers."""

    def __init__(self, number: int) -> None:
        self.name = f"model_{number}"
        self.version = 1
        self.config = mc.ModelConfig(name=self.name, metric_tags={"team": "search"})
        self.statistics = ModelStatistics(self.name, 1)
        fill(self.statistics, requests(7), 5)
        self.statistics.record_failure(Reason.QUEUE_FULL, 0)

    def pending(self) -> int:
        return 3

    def running(self) -> int:
        return 1

    def healthy(self) -> bool:
        return True


class Answer(NamedTuple):
    """Readiness."""

    ready: bool


class Server:
    """A server with many loaded versions."""

    def __init__(self) -> None:
        self.refusals = Counter({Reason.UNKNOWN_MODEL: 5})
        self._versions = [Version(number) for number in range(VERSIONS)]

    def served_models(self) -> list[Version]:
        return self._versions

    def ready(self) -> Answer:
        return Answer(True)


Case = tuple[str, str, Callable[[], float]]


def counting(size: int) -> Callable[[], float]:
    """CPU microseconds a request, in executions of `size` requests."""
    made, times = requests(size), 64_000 // size

    def measure() -> float:
        counted = ModelStatistics("model", 1)
        started = time.thread_time_ns()
        fill(counted, made, times)
        return (time.thread_time_ns() - started) / times / size / 1e3

    return measure


def scraping(openmetrics: bool) -> Callable[[], float]:
    """CPU milliseconds a scrape."""
    renderer = MetricsRenderer(MetricsOptions(), Server(), CustomMetrics())
    renderer.render(openmetrics)

    def measure() -> float:
        started = time.thread_time_ns()
        renderer.render(openmetrics)
        return (time.thread_time_ns() - started) / 1e6

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    cases: list[Case] = [
        ("count, batch 64", "us/request", counting(64)),
        ("count, batch 8", "us/request", counting(8)),
        ("count, batch 1", "us/request", counting(1)),
        (f"scrape, {VERSIONS} versions, text", "ms", scraping(False)),
        (f"scrape, {VERSIONS} versions, OpenMetrics", "ms", scraping(True)),
    ]
    results: dict[str, list[float]] = {name: [] for name, _, _ in cases}
    gc.freeze()
    for _ in range(rounds):
        for name, _, measure in cases:
            results[name].append(measure())
    for name, unit, _ in cases:
        values = results[name]
        print(f"{name:34} {statistics.median(values):6.2f} {unit:10} [{min(values):.2f} - {max(values):.2f}]")


if __name__ == "__main__":
    main()

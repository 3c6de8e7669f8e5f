"""What is counted for each loaded version: the source of ModelStatistics and of the metrics.

Written only on the core loop's thread, once a batch or once a refusal; read from any thread (a reader may see a batch half
counted, never a torn number). All durations are nanoseconds.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from shoal_dataplane.core.errors import Reason
from shoal_dataplane.core.request import InferRequest

# Seconds. Fine below a millisecond, where this server's own part lies, and up to a minute, where slow models are.
LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts by bucket (the last one is +Inf) and the sum, in the unit of `bounds`."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Duration:
    """A count and a sum in nanoseconds, as in Triton's StatisticDuration."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, count: int, ns: int) -> None:
        self.count += count
        self.ns += ns


class BatchStatistics:
    """Executions of one batch size."""

    __slots__ = ("compute_infer", "compute_input", "compute_output")

    def __init__(self) -> None:
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()


_BOUNDS_NS = tuple(int(bound * 1e9) for bound in LATENCY_BOUNDS_S)


class ModelStatistics:
    """Counters of one version since it was loaded."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.load_seconds = 0.0
        self.last_inference_ms = 0
        self.inference_count = 0
        self.execution_count = 0
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.cancel = Duration()
        self.by_batch: dict[int, BatchStatistics] = {}
        self.failures: Counter[Reason] = Counter()
        self.cuts: Counter[str] = Counter()
        self.queue_hist = Histogram(_BOUNDS_NS)
        self.compute_hist = Histogram(_BOUNDS_NS)
        self.request_hist = Histogram(_BOUNDS_NS)
        self.batch_hist = Histogram(BATCH_BOUNDS)

    def record_batch(self, size: int, requests: int, cut: str, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """One execution of `requests` requests with `size` inferences (rows) in all."""
        self.execution_count += 1
        self.inference_count += size
        self.last_inference_ms = time.time_ns() // 1_000_000
        self.compute_input.add(requests, input_ns * requests)
        self.compute_infer.add(requests, infer_ns * requests)
        self.compute_output.add(requests, output_ns * requests)
        batch = self.by_batch.get(size)
        if batch is None:
            batch = self.by_batch[size] = BatchStatistics()
        batch.compute_input.add(1, input_ns)
        batch.compute_infer.add(1, infer_ns)
        batch.compute_output.add(1, output_ns)
        self.cuts[cut] += 1
        self.batch_hist.observe(size)
        self.compute_hist.observe(input_ns + infer_ns + output_ns, requests)

    def record_success(self, requests: Sequence[InferRequest], started_ns: int, ended_ns: int) -> None:
        """`requests` were answered; their execution started at `started_ns`."""
        queue_counts, request_counts = self.queue_hist.counts, self.request_hist.counts
        queue_ns = request_ns = 0
        for request in requests:
            waited = started_ns - request.queued_ns
            took = ended_ns - request.arrival_ns
            queue_ns += waited
            request_ns += took
            queue_counts[bisect_left(_BOUNDS_NS, waited)] += 1
            request_counts[bisect_left(_BOUNDS_NS, took)] += 1
        self.queue_hist.total += queue_ns
        self.request_hist.total += request_ns
        self.queue.add(len(requests), queue_ns)
        self.success.add(len(requests), request_ns)

    def record_failure(self, reason: Reason, took_ns: int) -> None:
        """A request was refused, dropped or failed."""
        self.failures[reason] += 1
        self.fail.add(1, took_ns)
        if reason is Reason.CANCELLED:
            self.cancel.add(1, took_ns)

"""What is counted for each loaded version: the source of ModelStatistics and of the metrics.

Written only on the core loop's thread, once a batch or once a refusal; read from any thread (a reader may see a batch half
counted, never a torn number). All durations are nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from time import time_ns

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
        self.total: float = 0  # stays an exact int as long as ints are observed

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


_BOUNDS_NS = tuple(round(bound * 1e9) for bound in LATENCY_BOUNDS_S)


_MANY = 16
"""From this batch on, `_count_all` costs less than a search for each request (measured: bench/micro_telemetry.py)."""


def _count_all(counts: list[int], values_ns: list[int]) -> None:
    """Add every value to its bucket of _BOUNDS_NS; sorts `values_ns`, which is cheap: a batch's values are mostly in order."""
    values_ns.sort()
    first, last = bisect_left(_BOUNDS_NS, values_ns[0]), bisect_left(_BOUNDS_NS, values_ns[-1])
    done = 0
    for bucket in range(first, last):
        upto = bisect_right(values_ns, _BOUNDS_NS[bucket], done)
        counts[bucket] += upto - done
        done = upto
    counts[last] += len(values_ns) - done


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
        self.last_inference_ms = time_ns() // 1_000_000
        # Written out rather than through Duration.add and Histogram.observe: with batches of one this runs for every request.
        duration = self.compute_input
        duration.count += requests
        duration.ns += input_ns * requests
        duration = self.compute_infer
        duration.count += requests
        duration.ns += infer_ns * requests
        duration = self.compute_output
        duration.count += requests
        duration.ns += output_ns * requests
        batch = self.by_batch.get(size)
        if batch is None:
            batch = self.by_batch[size] = BatchStatistics()
        duration = batch.compute_input
        duration.count += 1
        duration.ns += input_ns
        duration = batch.compute_infer
        duration.count += 1
        duration.ns += infer_ns
        duration = batch.compute_output
        duration.count += 1
        duration.ns += output_ns
        self.cuts[cut] += 1
        hist = self.batch_hist
        hist.counts[bisect_left(BATCH_BOUNDS, size)] += 1
        hist.total += size
        hist = self.compute_hist
        compute_ns = input_ns + infer_ns + output_ns
        hist.counts[bisect_left(_BOUNDS_NS, compute_ns)] += requests
        hist.total += compute_ns * requests

    def record_failed_batch(self, size: int, took_ns: int) -> None:
        """One execution that answered nobody: it counts as an execution of its size, its inferences do not count."""
        self.execution_count += 1
        batch = self.by_batch.get(size)
        if batch is None:
            batch = self.by_batch[size] = BatchStatistics()
        for part, ns in ((batch.compute_input, 0), (batch.compute_infer, took_ns), (batch.compute_output, 0)):
            part.add(1, ns)

    def record_success(self, requests: Sequence[InferRequest], started_ns: int, ended_ns: int) -> None:
        """`requests` were answered; their execution started at `started_ns`."""
        count = len(requests)
        queue_counts, request_counts = self.queue_hist.counts, self.request_hist.counts
        queue_ns = request_ns = 0
        if count < _MANY:
            for request in requests:
                waited = started_ns - request.queued_ns
                took = ended_ns - request.arrival_ns
                queue_ns += waited
                request_ns += took
                queue_counts[bisect_left(_BOUNDS_NS, waited)] += 1
                request_counts[bisect_left(_BOUNDS_NS, took)] += 1
        else:
            waits = [started_ns - request.queued_ns for request in requests]
            times = [ended_ns - request.arrival_ns for request in requests]
            queue_ns = sum(waits)
            request_ns = sum(times)
            _count_all(queue_counts, waits)
            _count_all(request_counts, times)
        self.queue_hist.total += queue_ns
        self.request_hist.total += request_ns
        duration = self.queue
        duration.count += count
        duration.ns += queue_ns
        duration = self.success
        duration.count += count
        duration.ns += request_ns

    def record_failure(self, reason: Reason, took_ns: int) -> None:
        """A request was refused, dropped or failed."""
        self.failures[reason] += 1
        self.fail.add(1, took_ns)
        if reason is Reason.CANCELLED:
            self.cancel.add(1, took_ns)

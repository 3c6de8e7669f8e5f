"""What is exposed for each loaded version: Triton's families (triton.md K) under their own names, and Shoal's.

A family of a version is a template, made once, and a function that reads the numbers to fill in: rendering a version is then a
few dozen string formats, whatever the number of its series. Every series is there, at 0, from the moment a version is loaded:
`rate()` misses the first increment of a counter that appears with it, and a gauge that is absent when idle is no zero.

The labels are `model`, `version` and, for each of the configuration's `metric_tags`, `_TAG`; never anything of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Reason
from shoal_dataplane.telemetry.exposition import Family, bound, escape_label, label_name
from shoal_dataplane.telemetry.statistics import BATCH_BOUNDS, LATENCY_BOUNDS_S, Histogram, ModelStatistics


class ServedVersion(Protocol):
    """What is read of a loaded version (execution.ServedModel). All of it may be called from any thread."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def config(self) -> mc.ModelConfig: ...

    @property
    def statistics(self) -> ModelStatistics: ...

    def pending(self) -> int:
        """Requests that wait in the queue."""

    def running(self) -> int:
        """Batches in execution."""

    def healthy(self) -> bool:
        """Is there an instance that can run?"""


TRITON_REASONS = {
    Reason.QUEUE_FULL: "REJECTED",
    Reason.QUEUE_TIMEOUT: "REJECTED",
    Reason.DEADLINE: "REJECTED",
    Reason.CANCELLED: "CANCELED",
    Reason.BACKEND: "BACKEND",
    Reason.INVALID: "OTHER",
    Reason.UNKNOWN_MODEL: "OTHER",
    Reason.NOT_READY: "OTHER",
    Reason.SHUTTING_DOWN: "OTHER",
    Reason.UNSUPPORTED: "OTHER",
    Reason.OTHER: "OTHER",
}
"""Triton's four reasons of nv_inference_request_failure."""

REASONS = tuple(Reason)
NO_REASONS = (0,) * len(REASONS)

CUT_REASONS = (
    "preferred_size",
    "full",
    "delay_expired",
    "no_delay",
    "shape_mismatch",
    "next_too_large",
    "single",
)
"""The values of scheduling.Cut, which this room may not import."""

Suffix = tuple[str, str, str]
"""How a series differs from the others of its family and version: a suffix of the name, a label's name and its value."""

ONE: tuple[Suffix, ...] = (("", "", ""),)


def _by_reason(values: Iterable[str]) -> tuple[Suffix, ...]:
    return tuple(("", "reason", value) for value in values)


def _histogram(bounds: Sequence[float]) -> tuple[Suffix, ...]:
    buckets = (("_bucket", "le", bound(value)) for value in (*bounds, float("inf")))
    return (*buckets, ("_sum", "", ""), ("_count", "", ""))


class ModelFamily(NamedTuple):
    """A family, its series for one version, and how to read their values, in that order."""

    family: Family
    series: tuple[Suffix, ...]
    read: Callable[[ServedVersion], Iterable[float]]

    def template(self, labels: Mapping[str, str]) -> str:
        """The lines of one version, with `%s` for each value. Labels in alphabetical order, as Triton writes them, `le` last."""
        return "".join(self._line(labels, *suffix) for suffix in self.series)

    def _line(self, labels: Mapping[str, str], suffix: str, key: str, value: str) -> str:
        last = {key: value} if key == "le" else {}
        inner = sorted({**labels, key: value}.items()) if key and not last else sorted(labels.items())
        pairs = ",".join(f'{name}="{escape_label(text)}"' for name, text in (*inner, *last.items()))
        return f"{self.family.name}{suffix}{{{pairs}}}".replace("%", "%%") + " %s\n"


def version_labels(model: ServedVersion) -> dict[str, str]:
    """The labels of every series of a version. Tags that become the same label are told apart by a number."""
    labels = {"model": model.name, "version": str(model.version)}
    for tag, value in sorted(model.config.metric_tags.items()):
        name = label_name(f"_{tag}")
        number = 2
        while name in labels:
            name = label_name(f"_{tag}_{number}")
            number += 1
        labels[name] = value
    return labels


def reason_lines(labels: Mapping[str, str]) -> str:
    """The template of `shoal_refused_total` for `labels`."""
    return REFUSED.template(labels)


# -- readers


def _counter(read: Callable[[ModelStatistics], int]) -> Callable[[ServedVersion], Iterable[float]]:
    return lambda model: (read(model.statistics),)


def _observed(read: Callable[[ModelStatistics], Histogram], scale: int) -> Callable[[ServedVersion], Iterable[float]]:
    """Cumulative buckets, sum and count. The counts are copied once, so that the count is that of the buckets."""

    def values(model: ServedVersion) -> Iterable[float]:
        histogram = read(model.statistics)
        total = histogram.total
        cumulative = tuple(accumulate(tuple(histogram.counts)))
        return (*cumulative, total / scale if scale != 1 else total, cumulative[-1])

    return values


def reasons(counts: Mapping[Reason, int]) -> tuple[int, ...]:
    """The values of `shoal_refused_total`, in the order of REASONS."""
    return tuple([counts.get(reason, 0) for reason in REASONS]) if counts else NO_REASONS


def _triton_reasons(model: ServedVersion) -> Iterable[float]:
    counts = dict.fromkeys(TRITON_REASONS.values(), 0)
    for reason, count in list(model.statistics.failures.items()):  # a copy: the core loop may add a reason meanwhile
        counts[TRITON_REASONS[reason]] += count
    return counts.values()


def _cuts(model: ServedVersion) -> Iterable[float]:
    counts = model.statistics.cuts
    return tuple([counts.get(reason, 0) for reason in CUT_REASONS])


# -- families


def _triton(name: str, kind: str, text: str, read: Callable[[ServedVersion], Iterable[float]]) -> ModelFamily:
    return ModelFamily(Family(name, kind, text), ONE, read)


REFUSED = ModelFamily(
    Family("shoal_refused_total", "counter", "Requests that were refused, dropped or failed, by reason"),
    _by_reason(REASONS),
    lambda model: reasons(model.statistics.failures),
)

TRITON_FAMILIES = (
    _triton(
        "nv_inference_request_success",
        "counter",
        "Number of successful inference requests, all batch sizes",
        _counter(lambda statistics: statistics.success.count),
    ),
    ModelFamily(
        Family("nv_inference_request_failure", "counter", "Number of failed inference requests, all batch sizes"),
        _by_reason(dict.fromkeys(TRITON_REASONS.values())),
        _triton_reasons,
    ),
    _triton(
        "nv_inference_count",
        "counter",
        "Number of inferences performed (does not include cached requests)",
        _counter(lambda statistics: statistics.inference_count),
    ),
    _triton(
        "nv_inference_exec_count",
        "counter",
        "Number of model executions performed (does not include cached requests)",
        _counter(lambda statistics: statistics.execution_count),
    ),
    _triton(
        "nv_inference_request_duration_us",
        "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        _counter(lambda statistics: statistics.success.ns // 1000),
    ),
    _triton(
        "nv_inference_queue_duration_us",
        "counter",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        _counter(lambda statistics: statistics.queue.ns // 1000),
    ),
    _triton(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        _counter(lambda statistics: statistics.compute_input.ns // 1000),
    ),
    _triton(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        _counter(lambda statistics: statistics.compute_infer.ns // 1000),
    ),
    _triton(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        _counter(lambda statistics: statistics.compute_output.ns // 1000),
    ),
    _triton(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda model: (model.pending(),),
    ),
    _triton(
        "nv_model_load_duration_secs",
        "gauge",
        "Model load time in seconds",
        lambda model: (model.statistics.load_seconds,),
    ),
)

SHOAL_FAMILIES = (
    ModelFamily(
        Family("shoal_request_seconds", "histogram", "Time from arrival to answer, of answered requests", "seconds"),
        _histogram(LATENCY_BOUNDS_S),
        _observed(lambda statistics: statistics.request_hist, 1_000_000_000),
    ),
    ModelFamily(
        Family("shoal_queue_seconds", "histogram", "Time in the queue, of answered requests", "seconds"),
        _histogram(LATENCY_BOUNDS_S),
        _observed(lambda statistics: statistics.queue_hist, 1_000_000_000),
    ),
    ModelFamily(
        Family(
            "shoal_compute_seconds",
            "histogram",
            "Time in execution, counted once for each request of a batch",
            "seconds",
        ),
        _histogram(LATENCY_BOUNDS_S),
        _observed(lambda statistics: statistics.compute_hist, 1_000_000_000),
    ),
    ModelFamily(
        Family("shoal_batch_size", "histogram", "Inferences in each executed batch"),
        _histogram(BATCH_BOUNDS),
        _observed(lambda statistics: statistics.batch_hist, 1),
    ),
    ModelFamily(
        Family("shoal_batch_cut_total", "counter", "Executed batches, by why they were not larger"),
        _by_reason(CUT_REASONS),
        _cuts,
    ),
    REFUSED,
    ModelFamily(
        Family("shoal_queue_requests", "gauge", "Requests that wait in the queue now"),
        ONE,
        lambda model: (model.pending(),),
    ),
    ModelFamily(
        Family("shoal_running_batches", "gauge", "Batches in execution now"),
        ONE,
        lambda model: (model.running(),),
    ),
    ModelFamily(
        Family("shoal_model_ready", "gauge", "Whether a loaded version has an instance that can run"),
        ONE,
        lambda model: (int(model.healthy()),),
    ),
)

MODEL_FAMILIES = (*TRITON_FAMILIES, *SHOAL_FAMILIES)

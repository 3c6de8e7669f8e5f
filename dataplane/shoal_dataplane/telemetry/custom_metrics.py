"""Metrics that models define themselves (Triton's MetricFamily and Metric), by family, as plain values.

Models in other processes change them through messages, models in this process directly; the exposition reads a snapshot. As in Triton,
a family or a metric that is asked for again is the same one, and it is gone when the last one who asked for it has given it back.
Everything is bounded, because a model may make a label of anything.
"""

from __future__ import annotations

import enum
import math
import re
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

MAX_FAMILIES = 1000
MAX_METRICS = 1000
MAX_BUCKETS = 200
MAX_HANDLES = 20_000
"""Families and metrics that one model instance holds at a time, each counted as often as it asked for it."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class MetricKind(enum.StrEnum):
    """What a family's values mean, in Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class HistogramValue(NamedTuple):
    """`bounds` are upper bounds; `counts` are per bucket, not cumulative, with one more for +Inf."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Sample(NamedTuple):
    """One metric of a family."""

    labels: tuple[tuple[str, str], ...]
    value: float | HistogramValue


class Family(NamedTuple):
    """A family as it is shown."""

    name: str
    description: str
    kind: MetricKind
    samples: list[Sample]


class _Metric:
    __slots__ = ("bounds", "counts", "family", "labels", "total", "users")

    def __init__(self, family: _Family, labels: tuple[tuple[str, str], ...], bounds: tuple[float, ...]) -> None:
        self.family = family
        self.labels = labels
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1) if bounds else []
        self.total = 0.0
        self.users = 0

    def value(self) -> float | HistogramValue:
        if self.family.kind is MetricKind.HISTOGRAM:
            return HistogramValue(self.bounds, tuple(self.counts), self.total)
        return self.total


class _Family:
    __slots__ = ("description", "kind", "metrics", "name", "users")

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.metrics: dict[tuple[tuple[str, str], ...], _Metric] = {}
        self.users = 0


class CustomMetrics:
    """The registry of one server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, _Family] = {}

    def collect(self) -> list[Family]:
        """A snapshot, in the order in which families and metrics were made."""
        with self._lock:
            return [
                Family(
                    family.name,
                    family.description,
                    family.kind,
                    [Sample(metric.labels, metric.value()) for metric in family.metrics.values()],
                )
                for family in self._families.values()
            ]

    def owner(self) -> MetricsOwner:
        """A new user of the registry; what it makes is given back when it closes."""
        return MetricsOwner(self)

    def _acquire_family(self, name: str, description: str, kind: MetricKind) -> _Family:
        if not _NAME.fullmatch(name):
            raise ValueError(f"'{name}' is no name for a metric: expected letters, digits, '_' and ':', no digit first")
        with self._lock:
            family = self._families.get(name)
            if family is None:
                if len(self._families) >= MAX_FAMILIES:
                    raise ValueError(f"there are {MAX_FAMILIES} custom metric families already")
                family = self._families[name] = _Family(name, description, kind)
            elif family.kind is not kind:
                raise ValueError(f"the metric family '{name}' exists already, as a {family.kind}, not a {kind}")
            family.users += 1
            return family

    def _acquire_metric(self, family: _Family, labels: Mapping[str, str], buckets: Sequence[float] | None) -> _Metric:
        for label in labels:
            if not _LABEL.fullmatch(label) or label.startswith("__"):
                raise ValueError(f"'{label}' is no name for a label of '{family.name}'")
        bounds = _bounds(family, buckets)
        key = tuple(sorted(labels.items()))
        with self._lock:
            metric = family.metrics.get(key)
            if metric is None:
                if len(family.metrics) >= MAX_METRICS:
                    raise ValueError(f"the metric family '{family.name}' has {MAX_METRICS} metrics already")
                metric = family.metrics[key] = _Metric(family, key, bounds)
            metric.users += 1
            return metric

    def _release(self, item: _Family | _Metric) -> None:
        with self._lock:
            item.users -= 1
            if item.users > 0:
                return
            if isinstance(item, _Family):
                self._families.pop(item.name, None)
            else:
                item.family.metrics.pop(item.labels, None)

    def _change(self, metric: _Metric, operation: str, value: float) -> None:
        with self._lock:
            if operation == "observe":
                metric.counts[bisect_left(metric.bounds, value)] += 1
                metric.total += value
            elif operation == "set":
                metric.total = value
            else:
                metric.total += value


def _bounds(family: _Family, buckets: Sequence[float] | None) -> tuple[float, ...]:
    if family.kind is not MetricKind.HISTOGRAM:
        return ()
    bounds = tuple(float(bound) for bound in buckets or ())
    if not bounds or len(bounds) > MAX_BUCKETS:
        raise ValueError(f"a histogram of '{family.name}' needs 1 to {MAX_BUCKETS} buckets, got {len(bounds)}")
    if any(not math.isfinite(bound) for bound in bounds) or any(a >= b for a, b in pairwise(bounds)):
        raise ValueError(f"the buckets of '{family.name}' must be finite and increase: {list(bounds)}")
    return bounds


OPERATIONS = {
    MetricKind.COUNTER: ("increment",),
    MetricKind.GAUGE: ("increment", "set"),
    MetricKind.HISTOGRAM: ("observe",),
}


def check_change(kind: MetricKind, operation: str, value: float) -> None:
    """Raise ValueError unless a metric of this kind may be changed so."""
    if operation not in OPERATIONS[kind]:
        raise ValueError(f"a {kind} has no operation '{operation}'")
    if not math.isfinite(value):
        raise ValueError(f"{value} is no value for a metric")
    if kind is MetricKind.COUNTER and value < 0:
        raise ValueError(f"a counter can only be incremented, got {value}")


class MetricsOwner:
    """The families and metrics that one model instance uses, by numbers that mean something only here. Thread-safe."""

    def __init__(self, registry: CustomMetrics) -> None:
        self._registry = registry
        self._items: dict[int, _Family | _Metric] = {}
        self._next = 1
        self._lock = threading.Lock()

    def family(self, name: str, description: str, kind: str) -> int:
        """Make or join a family. Raises ValueError for a bad name, a bad kind, or a family of another kind."""
        return self._keep(self._registry._acquire_family(name, description, MetricKind(kind)))

    def metric(self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None) -> int:
        """Make or join a metric of a family. Raises ValueError for bad labels or buckets, or when there are too many."""
        owner = self._items.get(family)
        if not isinstance(owner, _Family):
            raise ValueError("the metric family is gone")
        return self._keep(self._registry._acquire_metric(owner, labels, buckets))

    def change(self, metric: int, operation: str, value: float) -> None:
        """increment, set or observe. Raises ValueError for what the metric's kind does not have."""
        item = self._metric(metric)
        check_change(item.family.kind, operation, value)
        self._registry._change(item, operation, value)

    def value(self, metric: int) -> float:
        """The value of a counter or gauge. Raises ValueError for a histogram, as Triton does."""
        value = self._metric(metric).value()
        if isinstance(value, HistogramValue):
            raise ValueError("a histogram has no single value")
        return value

    def release(self, item: int) -> None:
        """Give back a family or a metric; a number that is unknown is ignored."""
        with self._lock:
            found = self._items.pop(item, None)
        if found is not None:
            self._registry._release(found)

    def close(self) -> None:
        """Give back everything, metrics first."""
        for item in sorted(self._items, reverse=True):
            self.release(item)

    def _metric(self, number: int) -> _Metric:
        item = self._items.get(number)
        if not isinstance(item, _Metric):
            raise ValueError("the metric is gone")
        return item

    def _keep(self, item: _Family | _Metric) -> int:
        with self._lock:
            if len(self._items) < MAX_HANDLES:
                number = self._next
                self._next += 1
                self._items[number] = item
                return number
        self._registry._release(item)
        raise ValueError(f"the model holds {MAX_HANDLES} metrics already")

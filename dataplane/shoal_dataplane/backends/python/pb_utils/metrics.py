"""Custom metrics as Python models know them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from shoal_dataplane.backends.python.pb_utils.errors import TritonModelException
from shoal_dataplane.backends.python.pb_utils.server import Server, server
from shoal_dataplane.telemetry.custom_metrics import MetricKind, check_change


class MetricFamily:
    """A name with a description and a kind; its `Metric(labels)` are what has values. Gone when the model lets go of it."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        """Raises TritonModelException for a bad name, or a family of that name and another kind."""
        self._kind = MetricKind(kind)
        self._server: Server = server()
        try:
            self._id = self._server.metric_family(str(name), str(description), str(self._kind))
        except ValueError as error:
            raise TritonModelException(f"Error when creating MetricFamily: {error}") from None

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> Metric:
        """A metric of this family; `buckets` (upper bounds) for a histogram. Raises TritonModelException."""
        if labels is not None and not isinstance(labels, Mapping):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if self._kind is MetricKind.HISTOGRAM:
            if buckets is None:
                raise TritonModelException("Failed to create metric. Missing required buckets.")
            if not isinstance(buckets, list):
                raise TritonModelException("Failed to create metric. Buckets must be a list.")
        elif buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        texts = {str(key): str(value) for key, value in (labels or {}).items()}
        try:
            number = self._server.metric(self._id, texts, buckets)
        except ValueError as error:
            raise TritonModelException(f"Error when creating Metric: {error}") from None
        return Metric(self, number)

    def __del__(self) -> None:
        _release(self)


class Metric:
    """One value, or one histogram, of a family. Made by `MetricFamily.Metric`."""

    def __init__(self, family: MetricFamily, number: int) -> None:
        self._family = family  # keeps it: a family lives as long as its metrics
        self._server = family._server
        self._id = number

    def increment(self, value: float) -> None:
        """Add to a counter (not less than 0) or to a gauge. Raises TritonModelException."""
        self._change("increment", value)

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException."""
        self._change("set", value)

    def observe(self, value: float) -> None:
        """Count a value in a histogram. Raises TritonModelException."""
        self._change("observe", value)

    def value(self) -> float:
        """The value of a counter or gauge. Raises TritonModelException for a histogram."""
        try:
            return self._server.metric_value(self._id)
        except ValueError as error:
            raise TritonModelException(f"Failed to get metric value: {error}") from None

    def _change(self, operation: str, value: float) -> None:
        try:
            check_change(self._family._kind, operation, value)
            self._server.change_metric(self._id, operation, float(value))
        except ValueError as error:
            raise TritonModelException(f"Failed to {operation} metric value: {error}") from None

    def __del__(self) -> None:
        _release(self)


def _release(item: MetricFamily | Metric) -> None:
    with contextlib.suppress(Exception):  # half made, or at the interpreter's end
        item._server.release_metric(item._id)

"""ModelStatistics as the protocol's message."""

from __future__ import annotations

from shoal_api.protocol import inference_pb2 as pb
from shoal_dataplane.telemetry.statistics import Duration, ModelStatistics


def statistics_message(statistics: ModelStatistics) -> pb.ModelStatistics:
    """Return the counters of one version as Triton's ModelStatistics: durations in ns, `last_inference` in ms since the epoch."""
    message = pb.ModelStatistics(
        name=statistics.name,
        version=str(statistics.version),
        last_inference=statistics.last_inference_ms,
        inference_count=statistics.inference_count,
        execution_count=statistics.execution_count,
    )
    total = message.inference_stats
    _set(total.success, statistics.success)
    _set(total.fail, statistics.fail)
    _set(total.queue, statistics.queue)
    _set(total.compute_input, statistics.compute_input)
    _set(total.compute_infer, statistics.compute_infer)
    _set(total.compute_output, statistics.compute_output)
    for field in (total.cache_hit, total.cache_miss):
        field.SetInParent()
    for size, batch in sorted(statistics.by_batch.items()):
        row = message.batch_stats.add(batch_size=size)
        _set(row.compute_input, batch.compute_input)
        _set(row.compute_infer, batch.compute_infer)
        _set(row.compute_output, batch.compute_output)
    return message


def _set(field: pb.StatisticDuration, duration: Duration) -> None:
    field.count = duration.count
    field.ns = duration.ns
    field.SetInParent()

"""ModelStatistics: the numbers are exact, whatever the batches were."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_dataplane.core.errors import Reason
from shoal_dataplane.scheduling.base import Cut
from shoal_dataplane.telemetry.statistics import BATCH_BOUNDS, LATENCY_BOUNDS_S, Histogram, ModelStatistics
from tests.unit.telemetry.fakes import MS, request

BOUNDS_NS = [round(bound * 1e9) for bound in LATENCY_BOUNDS_S]

nanoseconds = st.one_of(
    st.integers(0, 200 * 10**9),
    st.sampled_from([edge + offset for edge in BOUNDS_NS for offset in (-1, 0, 1)]),
)
executions = st.lists(
    st.tuples(
        st.lists(st.tuples(nanoseconds, nanoseconds), min_size=1, max_size=70),
        st.integers(1, 4),
        st.sampled_from(list(Cut)),
        st.tuples(nanoseconds, nanoseconds, nanoseconds),
    ),
    max_size=6,
)


def buckets(bounds: list[int], values: list[int]) -> list[int]:
    """A histogram's counts, the slow way."""
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    return counts


@settings(deadline=None)
@given(executions)
def test_every_counter_is_the_sum_of_what_was_recorded(batches: list) -> None:
    statistics = ModelStatistics("model", 1)
    waits, times, computes, sizes = [], [], [], []
    by_phase = [0, 0, 0]
    start = 1000 * 10**9
    for requests, rows_each, cut, phases in batches:
        made = [request(start - before, start - waited) for before, waited in requests]
        rows = rows_each * len(made)
        end = start + sum(phases)
        statistics.record_batch(rows, len(made), cut, *phases)
        statistics.record_success(made, start, end)
        waits += [waited for _, waited in requests]
        times += [before + sum(phases) for before, _ in requests]
        computes += [sum(phases)] * len(made)
        sizes.append(rows)
        by_phase = [total + phase * len(made) for total, phase in zip(by_phase, phases, strict=True)]

    assert statistics.success.count == statistics.queue.count == len(times)
    assert (statistics.success.ns, statistics.queue.ns) == (sum(times), sum(waits))
    assert statistics.execution_count == len(sizes) == sum(statistics.cuts.values())
    assert statistics.inference_count == sum(sizes)
    assert statistics.inference_count == sum(
        size * row.compute_infer.count for size, row in statistics.by_batch.items()
    )
    phases_of = (statistics.compute_input, statistics.compute_infer, statistics.compute_output)
    assert [phase.count for phase in phases_of] == [len(times)] * 3
    assert [phase.ns for phase in phases_of] == by_phase

    for histogram, values in (
        (statistics.request_hist, times),
        (statistics.queue_hist, waits),
        (statistics.compute_hist, computes),
    ):
        assert histogram.counts == buckets(BOUNDS_NS, values)
        assert histogram.total == sum(values)
    assert statistics.batch_hist.counts == buckets(list(BATCH_BOUNDS), sizes)
    assert statistics.batch_hist.total == sum(sizes)


def test_a_batch_of_which_no_request_succeeded_adds_no_success() -> None:
    statistics = ModelStatistics("model", 1)
    statistics.record_batch(2, 2, Cut.FULL, 1, 1, 1)
    statistics.record_success([], 0, 10)
    assert statistics.success.count == statistics.queue.count == sum(statistics.request_hist.counts) == 0
    assert statistics.execution_count == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(Reason)), nanoseconds)))
def test_every_failure_is_counted_once_under_its_reason(failures: list[tuple[Reason, int]]) -> None:
    statistics = ModelStatistics("model", 1)
    for reason, took in failures:
        statistics.record_failure(reason, took)
    assert statistics.fail.count == sum(statistics.failures.values()) == len(failures)
    assert statistics.fail.ns == sum(took for _, took in failures)
    cancelled = [took for reason, took in failures if reason is Reason.CANCELLED]
    assert (statistics.cancel.count, statistics.cancel.ns) == (len(cancelled), sum(cancelled))
    assert statistics.success.count == 0


@pytest.mark.parametrize("bounds", [LATENCY_BOUNDS_S, BATCH_BOUNDS])
def test_bounds_increase(bounds: tuple[float, ...]) -> None:
    assert all(a < b for a, b in pairwise(bounds))


def test_a_value_on_a_bound_belongs_to_that_bucket() -> None:
    histogram = Histogram((1, 2))
    histogram.observe(1)
    histogram.observe(1.5, times=3)
    histogram.observe(3)
    assert histogram.counts == [1, 3, 1]
    assert histogram.total == 8.5


def test_long_sums_keep_their_last_nanosecond() -> None:
    statistics = ModelStatistics("model", 1)
    for _ in range(3):
        statistics.record_success([request(0)], 2**60 + 1, 2**60 + 1 + MS)
    assert statistics.queue_hist.total == 3 * (2**60 + 1)
    assert statistics.request_hist.total == 3 * (2**60 + 1 + MS)

"""Metrics that models define: shared by name, given back, bounded."""

from __future__ import annotations

import pytest

from shoal_dataplane.telemetry import custom_metrics
from shoal_dataplane.telemetry.custom_metrics import CustomMetrics, Family, HistogramValue, MetricKind, Sample


def test_what_is_made_and_changed_is_collected_in_order() -> None:
    registry = CustomMetrics()
    owner = registry.owner()
    hits = owner.metric(owner.family("hits", "how many", "counter"), {"b": "2", "a": "1"}, None)
    owner.change(hits, "increment", 2)
    level = owner.metric(owner.family("level", "", "gauge"), {}, None)
    owner.change(level, "set", 5)
    owner.change(level, "increment", -1.5)
    times = owner.metric(owner.family("times", "s", "histogram"), {}, [1, 2])
    for value in (0.5, 1, 1.5, 9):
        owner.change(times, "observe", value)
    assert registry.collect() == [
        Family("hits", "how many", MetricKind.COUNTER, [Sample((("a", "1"), ("b", "2")), 2.0)]),
        Family("level", "", MetricKind.GAUGE, [Sample((), 3.5)]),
        Family("times", "s", MetricKind.HISTOGRAM, [Sample((), HistogramValue((1.0, 2.0), (2, 1, 1), 12.0))]),
    ]
    assert (owner.value(hits), owner.value(level)) == (2, 3.5)


def test_the_same_family_and_labels_are_the_same_metric_until_the_last_gives_it_back() -> None:
    registry = CustomMetrics()
    first, second = registry.owner(), registry.owner()
    ones = [owner.metric(owner.family("x", "", "counter"), {"l": "1"}, None) for owner in (first, second)]
    first.change(ones[0], "increment", 1)
    second.change(ones[1], "increment", 2)
    assert second.value(ones[1]) == 3
    first.close()
    assert registry.collect()[0].samples == [Sample((("l", "1"),), 3.0)]
    second.release(ones[1])
    assert registry.collect()[0].samples == []
    second.close()
    assert registry.collect() == []
    with pytest.raises(ValueError, match="the metric is gone"):
        second.change(ones[1], "increment", 1)


@pytest.mark.parametrize("name", ["", "1x", "a b", "a-b", "é"])
def test_a_name_that_no_exposition_can_show_is_refused(name: str) -> None:
    owner = CustomMetrics().owner()
    with pytest.raises(ValueError, match="is no name for a metric"):
        owner.family(name, "", "gauge")


def test_a_family_has_one_kind() -> None:
    registry = CustomMetrics()
    registry.owner().family("x", "", "gauge")
    with pytest.raises(ValueError, match="the metric family 'x' exists already, as a gauge, not a counter"):
        registry.owner().family("x", "", "counter")
    with pytest.raises(ValueError, match="'summary' is not a valid MetricKind"):
        registry.owner().family("y", "", "summary")


def test_a_metric_needs_its_family() -> None:
    owner = CustomMetrics().owner()
    family = owner.family("x", "", "gauge")
    owner.release(family)
    owner.release(99)
    with pytest.raises(ValueError, match="the metric family is gone"):
        owner.metric(family, {}, None)


def test_everything_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_metrics, "MAX_FAMILIES", 2)
    monkeypatch.setattr(custom_metrics, "MAX_METRICS", 3)
    monkeypatch.setattr(custom_metrics, "MAX_HANDLES", 6)
    registry = CustomMetrics()
    owner = registry.owner()
    family = owner.family("a", "", "gauge")
    owner.family("b", "", "gauge")
    with pytest.raises(ValueError, match="there are 2 custom metric families already"):
        owner.family("c", "", "gauge")
    for n in range(3):
        owner.metric(family, {"n": str(n)}, None)
    with pytest.raises(ValueError, match="the metric family 'a' has 3 metrics already"):
        owner.metric(family, {"n": "3"}, None)
    owner.metric(family, {"n": "0"}, None)
    with pytest.raises(ValueError, match="the model holds 6 metrics already"):
        owner.metric(family, {"n": "0"}, None)
    owner.close()
    assert registry.collect() == []

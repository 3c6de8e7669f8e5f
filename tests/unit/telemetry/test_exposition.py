"""The two text formats: escaping, numbers, negotiation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from shoal_dataplane.telemetry.exposition import (
    Exposition,
    Family,
    accepts_openmetrics,
    bound,
    label_name,
    label_pairs,
    number,
)

PARSERS = {False: parse_text, True: parse_openmetrics}


@pytest.mark.parametrize("openmetrics", [False, True])
@settings(deadline=None)
@given(value=st.text(st.characters(exclude_categories=["Cs"])), help=st.text(st.sampled_from('ab\\n"\n\\ {}#')))
def test_any_label_and_help_text_reads_back(openmetrics: bool, value: str, help: str) -> None:
    out = Exposition(openmetrics)
    out.head(Family("a_metric", "gauge", f"[{help}]"))
    out.sample("a_metric", 1, label_pairs({"one": value, "two": "x"}))
    (family,) = PARSERS[openmetrics](out.body().decode())
    assert family.samples[0].labels == {"one": value, "two": "x"}
    assert family.documentation == f"[{help}]"


def test_text_that_is_no_unicode_does_not_fail_the_scrape() -> None:
    out = Exposition(False)
    out.sample("a_metric", 1, label_pairs({"one": "\udcff"}))
    assert out.body() == b'a_metric{one="?"} 1\n'


@settings(deadline=None)
@given(st.floats())
def test_any_number_reads_back(value: float) -> None:
    back = float(number(value))
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_numbers_have_the_formats_spelling() -> None:
    assert [number(value) for value in (3, 0.1, math.inf, -math.inf, math.nan, True)] == [
        "3", "0.1", "+Inf", "-Inf", "NaN", "1",
    ]  # fmt: skip
    assert [bound(value) for value in (1, 0.0001, math.inf)] == ["1.0", "0.0001", "+Inf"]


def test_series_have_the_same_names_in_both_formats() -> None:
    families = [
        Family("a_total", "counter", "x"),
        Family("b_seconds_total", "counter", "x", "seconds"),
        Family("old_style_count", "counter", "x"),
        Family("c_info", "info", "x"),
        Family("d_bytes", "gauge", "x", "bytes"),
    ]
    names, kinds = {}, {}
    for openmetrics, parse in PARSERS.items():
        out = Exposition(openmetrics)
        for family in families:
            out.head(family)
            out.sample(family.name, 1)
        found = list(parse(out.body().decode()))
        names[openmetrics] = [sample.name for family in found for sample in family.samples]
        kinds[openmetrics] = [family.type for family in found]
    # prometheus_client's reader of the text format adds _total to each counter's name: the text itself is what counts there.
    assert names[True] == [family.name for family in families]
    assert kinds == {
        False: ["counter", "counter", "counter", "gauge", "gauge"],
        True: ["counter", "counter", "unknown", "info", "gauge"],
    }


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0; charset=utf-8", True),
        # Prometheus 2 and 3 as they ask.
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
         "text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
         "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,*/*;q=0.2", True),
        ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=high", False),
        (";;,,q=", False),
    ],
)  # fmt: skip
def test_openmetrics_is_sent_to_who_prefers_it(accept: str, wanted: bool) -> None:
    assert accepts_openmetrics(accept) is wanted


@settings(deadline=None)
@given(st.text())
def test_any_accept_header_is_understood_somehow(accept: str) -> None:
    assert accepts_openmetrics(accept) in (True, False)


@settings(deadline=None)
@given(st.text())
def test_any_text_becomes_a_valid_label_name(text: str) -> None:
    name = label_name(text)
    assert name
    assert name.isascii()
    assert name.replace("_", "a").isalnum()
    assert not name[0].isdigit()

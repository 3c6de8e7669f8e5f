"""A scrape: what is in it, that it is valid, and that it says what was counted."""

from __future__ import annotations

import gc
import threading
import weakref
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_dataplane.core.errors import Reason
from shoal_dataplane.scheduling.base import Cut
from shoal_dataplane.telemetry.model_families import CUT_REASONS, MODEL_FAMILIES, TRITON_REASONS
from tests.unit.telemetry.fakes import MS, US, Answer, Server, Version, request

IDENT = {"model": "ident", "version": "1"}


def served(version: Version, requests: int = 3, times: int = 1) -> None:
    """Let a version run `times` batches."""
    for _ in range(times):
        made = [request(0, 100 * US) for _ in range(requests)]
        version.statistics.record_batch(requests, requests, Cut.FULL, 10 * US, 2 * MS, 5 * US)
        version.statistics.record_success(made, MS, 4 * MS)


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_series_is_there_at_zero_before_the_first_request(openmetrics: bool) -> None:
    samples = Server(Version()).samples(openmetrics)
    for family in MODEL_FAMILIES:
        for suffix, label, value in family.series:
            labels = {**IDENT, label: value} if label else IDENT
            name = family.family.name + suffix
            if not openmetrics and family.family.kind == "counter" and not name.endswith("_total"):
                name += "_total"  # the parser's doing: see the test of the series' names
            expected = 1 if name == "shoal_model_ready" else 0
            assert samples[name][tuple(sorted(labels.items()))] == expected, (name, labels)


def test_the_names_in_the_text_are_those_of_triton() -> None:
    text = Server(Version()).text()
    for line in (
        "# HELP nv_inference_request_success Number of successful inference requests, all batch sizes",
        "# TYPE nv_inference_request_success counter",
        'nv_inference_request_success{model="ident",version="1"} 0',
        'nv_inference_request_failure{model="ident",reason="REJECTED",version="1"} 0',
        'nv_inference_request_failure{model="ident",reason="CANCELED",version="1"} 0',
        'nv_inference_request_failure{model="ident",reason="BACKEND",version="1"} 0',
        'nv_inference_request_failure{model="ident",reason="OTHER",version="1"} 0',
        "# HELP nv_inference_count Number of inferences performed (does not include cached requests)",
        'nv_inference_count{model="ident",version="1"} 0',
        'nv_inference_exec_count{model="ident",version="1"} 0',
        'nv_inference_request_duration_us{model="ident",version="1"} 0',
        'nv_inference_queue_duration_us{model="ident",version="1"} 0',
        'nv_inference_compute_input_duration_us{model="ident",version="1"} 0',
        'nv_inference_compute_infer_duration_us{model="ident",version="1"} 0',
        'nv_inference_compute_output_duration_us{model="ident",version="1"} 0',
        "# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.",
        "# TYPE nv_inference_pending_request_count gauge",
        'nv_inference_pending_request_count{model="ident",version="1"} 0',
        "# TYPE nv_cpu_utilization gauge",
    ):
        assert f"\n{line}\n" in f"\n{text}"


def test_the_text_has_the_same_series_in_both_formats() -> None:
    server = Server(Version(), Version("other", 2, team="search"))

    def lines(openmetrics: bool) -> set[str]:
        return {line.rpartition(" ")[0] for line in server.text(openmetrics).splitlines() if not line.startswith("#")}

    assert lines(False) == lines(True)


def test_counters_say_what_was_counted() -> None:
    version = Version()
    server = Server(version)
    served(version, requests=3, times=2)
    version.waiting, version.batches, version.well = 7, 2, False
    version.statistics.load_seconds = 1.25
    text = server.text()
    for name, value in (
        ("nv_inference_request_success", 6),
        ("nv_inference_count", 6),
        ("nv_inference_exec_count", 2),
        ("nv_inference_request_duration_us", 24_000),
        ("nv_inference_queue_duration_us", 5_400),
        ("nv_inference_compute_input_duration_us", 60),
        ("nv_inference_compute_infer_duration_us", 12_000),
        ("nv_inference_compute_output_duration_us", 30),
        ("nv_inference_pending_request_count", 7),
        ("nv_model_load_duration_secs", 1.25),
        ("shoal_queue_requests", 7),
        ("shoal_running_batches", 2),
        ("shoal_model_ready", 0),
        ("shoal_request_seconds_count", 6),
        ("shoal_request_seconds_sum", 0.024),
        ("shoal_queue_seconds_sum", 0.0054),
        ("shoal_compute_seconds_sum", 0.01209),
        ("shoal_batch_size_count", 2),
        ("shoal_batch_size_sum", 6),
    ):
        assert f'{name}{{model="ident",version="1"}} {value}\n' in text
    assert server.value("shoal_batch_cut_total", **IDENT, reason="full") == 2
    assert server.value("shoal_request_seconds_bucket", **IDENT, le="0.0025") == 0
    assert server.value("shoal_request_seconds_bucket", **IDENT, le="0.005") == 6
    assert server.value("shoal_batch_size_bucket", **IDENT, le="4.0") == 2


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from(list(Reason))))
def test_every_failure_is_in_triton_s_counter_and_in_ours(failures: list[Reason]) -> None:
    version = Version()
    server = Server(version)
    for reason in failures:
        version.statistics.record_failure(reason, 5)
    samples = server.samples(openmetrics=True)

    def total(name: str, **labels: str) -> float:
        return sum(value for key, value in samples[name].items() if set(labels.items()) <= set(key))

    assert total("nv_inference_request_failure", **IDENT) == len(failures)
    assert total("shoal_refused_total", **IDENT) == len(failures)
    for reason in Reason:
        assert total("shoal_refused_total", **IDENT, reason=reason.value) == failures.count(reason)
    for group in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
        expected = sum(TRITON_REASONS[reason] == group for reason in failures)
        assert total("nv_inference_request_failure", **IDENT, reason=group) == expected


def test_every_reason_has_its_place() -> None:
    assert set(TRITON_REASONS) == set(Reason)
    assert set(TRITON_REASONS.values()) == {"REJECTED", "CANCELED", "BACKEND", "OTHER"}
    assert tuple(Cut) == CUT_REASONS


def test_refusals_without_a_model_are_counted_too() -> None:
    server = Server()
    assert server.value("shoal_refused_total", model="", version="", reason="unknown_model") == 0
    server.refusals[Reason.UNKNOWN_MODEL] += 3
    server.refusals[Reason.INVALID] += 1
    assert server.value("shoal_refused_total", model="", version="", reason="unknown_model") == 3
    assert server.value("shoal_refused_total", model="", version="", reason="invalid") == 1


@pytest.mark.parametrize("openmetrics", [False, True])
def test_metric_tags_become_labels_whatever_they_are(openmetrics: bool) -> None:
    version = Version(
        **{"team": 'a "b"\\\n', "cost-centre": "100%", "cost.centre": "%s", "model": "tag", "1st": "é", "": "no name"}
    )
    samples = Server(version).samples(openmetrics)
    (labels,) = samples["shoal_model_ready"]
    assert dict(labels) == {
        **IDENT,
        "_team": 'a "b"\\\n',
        "_cost_centre": "100%",
        "_cost_centre_2": "%s",
        "_model": "tag",
        "_1st": "é",
        "_": "no name",
    }


def test_labels_stand_in_alphabetical_order_as_triton_s_do() -> None:
    text = Server(Version(team="search")).text()
    assert 'nv_inference_request_failure{_team="search",model="ident",reason="OTHER",version="1"} 0' in text
    assert 'shoal_queue_seconds_bucket{_team="search",model="ident",version="1",le="0.0001"} 0' in text


@pytest.mark.parametrize("openmetrics", [False, True])
@settings(deadline=None, max_examples=25)
@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_model_of_any_name_does_not_break_the_scrape(openmetrics: bool, name: str) -> None:
    samples = Server(Version(name)).samples(openmetrics)
    assert (("model", name), ("version", "1")) in samples["shoal_model_ready"]


def test_a_label_is_never_taken_from_a_request() -> None:
    server = Server(Version(team="x"))
    served(server.versions[0])
    labels = {
        label for family in server.families(True).values() for sample in family.samples for label in sample.labels
    }
    assert labels == {"model", "version", "_team", "reason", "le"}


def test_an_unloaded_version_leaves_nothing_behind() -> None:
    version = Version()
    server = Server(version)
    assert 'version="1"' in server.text()
    gone = weakref.ref(version)
    server.versions.clear()
    del version
    gc.collect()
    assert gone() is None
    assert 'model="ident"' not in server.text()


def test_a_version_that_is_loaded_anew_starts_at_zero_with_its_new_tags() -> None:
    server = Server(Version(team="old"))
    served(server.versions[0])
    server.text()
    server.versions[0] = Version(team="new")
    text = server.text()
    assert 'nv_inference_count{_team="new",model="ident",version="1"} 0\n' in text
    assert "old" not in text


def test_readiness_and_build_are_shown() -> None:
    server = Server()
    assert server.value("shoal_server_ready") == 1
    server.answer = Answer(False, "loading")
    assert server.value("shoal_server_ready") == 0
    families = server.families(openmetrics=True)
    assert families["shoal_build"].type == "info"
    assert families["shoal_build"].samples[0].labels["version"]


def test_the_process_and_the_machine_are_shown() -> None:
    samples = Server().samples()
    assert samples["process_resident_memory_bytes"][()] > 1 << 20
    assert samples["process_cpu_seconds_total"][()] > 0
    assert samples["process_open_fds"][()] > 0
    assert samples["nv_cpu_memory_total_bytes"][()] > samples["nv_cpu_memory_used_bytes"][()] > 0
    assert 0 <= samples["nv_cpu_utilization"][()] <= 1


def test_machine_figures_can_be_switched_off() -> None:
    from shoal_dataplane.options import MetricsOptions

    assert "nv_cpu" not in Server(options=MetricsOptions(cpu=False, gpu=False)).text()


def test_content_types_name_the_formats() -> None:
    server = Server()
    assert server.renderer.render(False)[1] == "text/plain; version=0.0.4; charset=utf-8"
    body, content_type = server.renderer.render(True)
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert body.endswith(b"\n# EOF\n")


def test_a_scrape_while_requests_are_counted_is_consistent() -> None:
    version = Version()
    server = Server(version)
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            served(version, requests=20)
            version.statistics.record_failure(Reason.BACKEND, 1)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        last = 0.0
        for _ in range(15):
            samples = server.samples(openmetrics=True)
            for name in ("shoal_request_seconds", "shoal_queue_seconds", "shoal_compute_seconds", "shoal_batch_size"):
                rows = samples[f"{name}_bucket"]
                cumulative = [rows[key] for key in sorted(rows, key=lambda key: float(dict(key)["le"]))]
                assert all(a <= b for a, b in pairwise(cumulative))
                assert cumulative[-1] == samples[f"{name}_count"][tuple(IDENT.items())]
            now = samples["shoal_request_seconds_count"][tuple(IDENT.items())]
            assert now >= last
            last = now
    finally:
        stop.set()
        thread.join()


# -- families that models define themselves


@pytest.mark.parametrize("openmetrics", [False, True])
def test_custom_families_are_shown(openmetrics: bool) -> None:
    server = Server(Version())
    owner = server.custom.owner()
    counter = owner.metric(owner.family("tokens_total", "Tokens \\ seen", "counter"), {"kind": 'p"q'}, None)
    owner.change(counter, "increment", 2.5)
    plain = owner.metric(owner.family("words", "Words", "counter"), {}, None)
    owner.change(plain, "increment", 4.0)
    gauge = owner.metric(owner.family("depth", "Depth", "gauge"), {}, None)
    owner.change(gauge, "set", -3.0)
    histogram = owner.metric(owner.family("width", "Width", "histogram"), {"kind": "a"}, [1.0, 2.5])
    for value in (0.5, 1, 2, 9):
        owner.change(histogram, "observe", value)
    families = server.families(openmetrics)
    text = server.text(openmetrics)
    assert families["tokens"].documentation == "Tokens \\ seen"
    assert 'tokens_total{kind="p\\"q"} 2.5\n' in text
    assert "\nwords 4.0\n" in text
    assert "\ndepth -3.0\n" in text
    assert {(s.name, s.labels.get("le", "")): s.value for s in families["width"].samples} == {
        ("width_bucket", "1.0"): 2,
        ("width_bucket", "2.5"): 3,
        ("width_bucket", "+Inf"): 4,
        ("width_sum", ""): 12.5,
        ("width_count", ""): 4,
    }


@pytest.mark.parametrize("openmetrics", [False, True])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nv_inference_count", "gauge"),
        ("shoal_refused", "gauge"),
        ("shoal_refused_total", "counter"),
        ("shoal_request_seconds_sum", "gauge"),
        ("shoal_build", "gauge"),
        ("process_open_fds", "gauge"),
        ("nv_gpu_utilization", "gauge"),
        ("mine_count", "gauge"),
    ],
)
def test_a_custom_family_cannot_spoil_the_scrape_with_a_taken_name(
    openmetrics: bool, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(Version())
    owner = server.custom.owner()
    first = owner.metric(owner.family("mine", "Mine", "histogram"), {}, [1.0])
    owner.change(first, "observe", 1)
    before = server.samples(openmetrics)
    taken = owner.metric(owner.family(name, "Clash", kind), {}, None)
    owner.change(taken, "increment", 12345)
    for _ in range(3):
        assert server.samples(openmetrics).keys() == before.keys()
        assert "12345" not in server.text(openmetrics)
    warnings = [record.getMessage() for record in caplog.records if name in record.getMessage()]
    assert len(warnings) == 1
    assert "taken" in warnings[0]


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_custom_histogram_may_have_bounds_below_zero_but_no_label_le(openmetrics: bool) -> None:
    server = Server()
    owner = server.custom.owner()
    family = owner.family("drift", "Drift", "histogram")
    owner.change(owner.metric(family, {}, [-1.0, 1.0]), "observe", -3)
    owner.metric(family, {"le": "1"}, [1.0])
    samples = server.samples(openmetrics)
    assert samples["drift_bucket"] == {(("le", "-1.0"),): 1, (("le", "1.0"),): 1, (("le", "+Inf"),): 1}
    assert ("drift_sum" in samples) is not openmetrics


def test_a_custom_family_that_its_model_has_given_back_is_gone() -> None:
    server = Server()
    owner = server.custom.owner()
    owner.metric(owner.family("mine", "Mine", "gauge"), {}, None)
    assert "mine" in server.text()
    owner.close()
    assert "mine" not in server.text()

"""Counters: the statistics of models and the metrics, exact after a known number of requests."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc import service_pb2 as pb
from tritonclient.http import InferenceServerClient as HttpClient

from tests.protocol.conftest import Deploy
from tests.protocol.harness.grpc_calls import odd_request, refused, strings
from tests.protocol.harness.http_calls import Reply, call, infer_document
from tests.protocol.harness.repository import IN, Tensor
from tests.protocol.harness.server import HOST, Server
from tests.protocol.harness.targets import Target
from tests.protocol.harness.waiting import wait_for

X = np.zeros((1, 4), np.float32)
CODE = Tensor("CODE", "BYTES", (1,))
FAMILIES = {
    "nv_inference_request_success": "counter",
    "nv_inference_request_failure": "counter",
    "nv_inference_count": "counter",
    "nv_inference_exec_count": "counter",
    "nv_inference_request_duration_us": "counter",
    "nv_inference_queue_duration_us": "counter",
    "nv_inference_compute_input_duration_us": "counter",
    "nv_inference_compute_infer_duration_us": "counter",
    "nv_inference_compute_output_duration_us": "counter",
    "nv_inference_pending_request_count": "gauge",
}


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    deploy("m_counted", inputs=[IN], execution="thread")
    deploy("m_faults", "faults", inputs=[CODE], execution="thread")
    deploy("m_tagged", more='metric_tags { key: "team" value: "a \\"quoted\\" one" }', execution="thread")
    deploy("m_idle", execution="thread")
    deploy("m_two_versions", versions=(1, 2), more="version_policy { all { } }", execution="thread")


def scrape(server: Server, headers: dict[str, str] | None = None) -> Reply:
    return call((HOST, server.metrics_port), "GET", "/metrics", headers=headers)


def test_a_scrape_is_prometheus_text(server: Server) -> None:
    reply = scrape(server)
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain")
    kinds = {family.name: family.type for family in parse_text(reply.body.decode())}
    for name, kind in FAMILIES.items():
        assert kinds[name] == kind
    assert kinds["nv_cpu_utilization"] == "gauge"
    assert kinds["nv_cpu_memory_total_bytes"] == "gauge"
    assert kinds["nv_cpu_memory_used_bytes"] == "gauge"


@pytest.mark.differs("openmetrics")
def test_a_scraper_may_have_openmetrics(server: Server) -> None:
    reply = scrape(server, {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(reply.body.decode())}
    assert "nv_inference_count" in names


def test_every_series_of_a_loaded_model_is_there_from_the_start(server: Server) -> None:
    found = server.metrics()
    labels = (("model", "m_idle"), ("version", "1"))
    for name, kind in FAMILIES.items():
        series = found[name if kind == "gauge" else f"{name}_total"]
        if name == "nv_inference_request_failure":
            reasons = {dict(key)["reason"] for key in series if ("model", "m_idle") in key}
            assert reasons == {"REJECTED", "CANCELED", "BACKEND", "OTHER"}
        else:
            assert series[labels] == 0


def test_the_cpu_figures_make_sense(server: Server) -> None:
    total = server.metric("nv_cpu_memory_total_bytes")
    assert total > 1 << 28
    assert 0 < server.metric("nv_cpu_memory_used_bytes") < total
    assert 0 <= server.metric("nv_cpu_utilization") <= 1


def counted(server: Server, model: str) -> pb.ModelStatistics:
    return server.statistics(model)


def test_requests_are_counted_exactly(server: Server) -> None:
    began = int(time.time() * 1000)
    for _ in range(5):
        server.infer("m_counted", {"IN": X})
    server.infer("m_counted", {"IN": np.repeat(X, 3, axis=0)})
    assert server.post("/v2/models/m_counted/infer", infer_document({"IN": X})).status == 200
    with refused("INVALID_ARGUMENT"):
        server.send(odd_request("m_counted", [("IN", "FP32", (1, 5))], [bytes(20)]))
    statistics = wait_for("all are counted", lambda: (s := counted(server, "m_counted")).execution_count == 7 and s)
    assert (statistics.name, statistics.version) == ("m_counted", "1")
    assert statistics.inference_count == 9
    stats = statistics.inference_stats
    assert stats.success.count == 7
    for phase in (stats.queue, stats.compute_input, stats.compute_infer, stats.compute_output):
        assert phase.count == 7
    assert stats.compute_infer.ns > 0
    assert stats.success.ns >= stats.compute_infer.ns
    assert stats.cache_hit.count == stats.cache_miss.count == 0
    assert [(batch.batch_size, batch.compute_infer.count) for batch in statistics.batch_stats] == [(1, 6), (3, 1)]
    assert began <= statistics.last_inference <= int(time.time() * 1000) + 1
    for name, value in {
        "nv_inference_request_success": 7,
        "nv_inference_count": 9,
        "nv_inference_exec_count": 7,
        "nv_inference_pending_request_count": 0,
    }.items():
        assert server.metric(name, model="m_counted", version="1") == value, name
    assert server.metric("nv_inference_request_duration_us", model="m_counted") == pytest.approx(
        stats.success.ns / 1000, abs=10
    )


@pytest.mark.differs("refusals-counted")
def test_a_refused_request_is_counted_as_a_failure(server: Server) -> None:
    before = server.metric("nv_inference_request_failure", model="m_counted", reason="OTHER")
    fails = counted(server, "m_counted").inference_stats.fail.count
    with refused("INVALID_ARGUMENT"):
        server.send(odd_request("m_counted", [("IN", "FP32", (1, 5))], [bytes(20)]))
    assert server.metric("nv_inference_request_failure", model="m_counted", reason="OTHER") == before + 1
    assert server.metric("shoal_refused_total", model="m_counted", reason="invalid") >= 1
    assert counted(server, "m_counted").inference_stats.fail.count == fails + 1


@pytest.mark.differs("refusals-counted")
def test_requests_for_unknown_models_are_counted(server: Server) -> None:
    before = server.metric("shoal_refused_total", reason="unknown_model")
    with refused("NOT_FOUND"):
        server.infer("m_nobody", {"IN": X})
    wait_for("it is counted", lambda: server.metric("shoal_refused_total", reason="unknown_model") == before + 1)


def test_failed_executions_are_counted(server: Server, target: Target) -> None:
    def do(code: str) -> None:
        server.infer("m_faults", {"CODE": strings(code).reshape(1, 1)})

    for _ in range(2):
        with refused("INTERNAL"):
            do("raise")
    for _ in range(3):
        with refused("INTERNAL"):
            do("error")
    do("fine")
    # Triton takes an error that the model returns for a success.
    failed, succeeded = target.pick("returned-errors-fail", shoal=(5, 1), triton=(2, 4))
    statistics = wait_for(
        "all are counted", lambda: (s := counted(server, "m_faults")).inference_stats.success.count == succeeded and s
    )
    assert statistics.inference_stats.fail.count == failed
    assert server.metric("nv_inference_request_failure", model="m_faults", reason="BACKEND") == failed
    assert server.metric("nv_inference_request_success", model="m_faults") == succeeded


def test_metric_tags_are_labels(server: Server, target: Target) -> None:
    labels = [dict(key) for key in server.metrics()["nv_inference_count_total"] if ("model", "m_tagged") in key]
    assert labels == [{"model": "m_tagged", "version": "1", "_team": 'a "quoted" one'}]


def test_every_version_has_its_own_counts(server: Server) -> None:
    server.infer("m_two_versions", {"IN": X}, version="1")
    server.infer("m_two_versions", {"IN": X})
    server.infer("m_two_versions", {"IN": X}, version="2")
    wait_for("they are counted", lambda: server.statistics("m_two_versions", "2").inference_count == 2)
    assert server.statistics("m_two_versions", "1").inference_count == 1
    assert server.metric("nv_inference_count", model="m_two_versions", version="2") == 2
    both = server.stub.ModelStatistics(pb.ModelStatisticsRequest(name="m_two_versions"), timeout=10).model_stats
    assert [row.version for row in both] == ["1", "2"]


def test_statistics_of_all_models_at_once(server: Server) -> None:
    with InferenceServerClient(server.grpc_address) as client:
        names = [row.name for row in client.get_inference_statistics().model_stats]
    assert {"m_counted", "m_faults", "m_idle"} <= set(names)
    with HttpClient(server.http_address) as client:
        shown = client.get_inference_statistics()["model_stats"]
    assert {row["name"] for row in shown} == set(names)


def test_statistics_over_http_have_the_members_of_the_protocol(server: Server) -> None:
    (row,) = server.http("GET", "/v2/models/m_counted/stats").json()["model_stats"]
    expected = {
        "name",
        "version",
        "last_inference",
        "inference_count",
        "execution_count",
        "inference_stats",
        "batch_stats",
    }
    assert expected <= set(row)
    assert row["version"] == "1"
    assert row["inference_stats"]["success"].keys() == {"count", "ns"}
    assert isinstance(row["inference_count"], int)
    (again,) = server.http("GET", "/v2/models/m_counted/versions/1/stats").json()["model_stats"]
    assert again["inference_count"] == row["inference_count"]


@pytest.mark.parametrize(("name", "version"), [("m_nobody", ""), ("m_counted", "9")])
def test_statistics_of_what_is_not_loaded_are_refused(server: Server, name: str, version: str) -> None:
    with refused("INVALID_ARGUMENT", "requested model.*is not available"):
        server.stub.ModelStatistics(pb.ModelStatisticsRequest(name=name, version=version), timeout=10)
    path = f"/v2/models/{name}" + (f"/versions/{version}" if version else "") + "/stats"
    reply = server.http("GET", path)
    assert reply.status == 400
    assert "is not available" in reply.error


def test_the_series_of_an_unloaded_model_are_gone(server: Server, deploy: Deploy) -> None:
    deploy("m_gone", execution="thread")
    assert any(("model", "m_gone") in key for key in server.metrics()["nv_inference_count_total"])
    server.unload("m_gone")
    wait_for(
        "they are gone",
        lambda: not any(("model", "m_gone") in key for key in server.metrics()["nv_inference_count_total"]),
    )


def test_a_reload_begins_to_count_anew(server: Server, deploy: Deploy) -> None:
    deploy("m_again", execution="thread")
    server.infer("m_again", {"IN": X})
    wait_for("it is counted", lambda: counted(server, "m_again").inference_count == 1)
    server.unload("m_again")
    server.load("m_again")
    assert counted(server, "m_again").inference_count == 0
    assert server.metric("nv_inference_count", model="m_again") == 0


@pytest.mark.differs("own-metrics")
def test_shoals_own_metrics_count_the_same_requests(server: Server, deploy: Deploy) -> None:
    deploy("m_own", more="dynamic_batching { }", execution="thread")
    for rows in (1, 2, 8):
        server.infer("m_own", {"IN": np.repeat(X, rows, axis=0)})

    def histogram(name: str) -> tuple[float, float]:
        return server.metric(f"{name}_count", model="m_own"), server.metric(f"{name}_sum", model="m_own")

    wait_for("all are counted", lambda: histogram("shoal_request_seconds")[0] == 3)
    assert histogram("shoal_queue_seconds")[0] == histogram("shoal_compute_seconds")[0] == 3
    assert histogram("shoal_batch_size") == (3, 11)
    assert server.metric("shoal_batch_size_bucket", model="m_own", le="2.0") == 2
    cuts = {
        dict(key)["reason"]: value
        for key, value in server.metrics()["shoal_batch_cut_total"].items()
        if ("model", "m_own") in key
    }
    assert sum(cuts.values()) == 3
    assert cuts["full"] == 1
    assert server.metric("shoal_model_ready", model="m_own") == 1


def test_scraping_under_load_is_consistent(server: Server) -> None:
    futures: list[Any] = [
        server.later(odd_request("m_idle", [("IN", "FP32", (1, 4))], [bytes(16)])) for _ in range(200)
    ]
    seen = [server.metric("nv_inference_count", model="m_idle") for _ in range(10)]
    assert seen == sorted(seen)
    for future in futures:
        future.result()
    wait_for("all are counted", lambda: server.metric("nv_inference_count", model="m_idle") == 200)

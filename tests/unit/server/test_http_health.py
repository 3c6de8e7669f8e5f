"""Health, probes, metrics, and what this server does not do."""

from __future__ import annotations

import pytest

from shoal_dataplane.options import HttpOptions, MetricsOptions
from shoal_dataplane.server.http import HttpDoor
from shoal_dataplane.service import Readiness
from tests.unit.server.http_client import ask
from tests.unit.server.http_service import FakeService


def test_a_healthy_server_says_so(http_door: HttpDoor) -> None:
    for port, path, body in [
        (http_door.port, "/v2/health/live", {"live": True}),
        (http_door.port, "/v2/health/ready", {"ready": True}),
        (http_door.port, "/v2/models/ident/ready", {"name": "ident", "ready": True}),
        (http_door.port, "/v2/models/ident/versions/1/ready", {"name": "ident", "ready": True}),
        (http_door.metrics_port, "/startupz", {"started": True}),
        (http_door.metrics_port, "/livez", {"live": True}),
        (http_door.metrics_port, "/readyz", {"ready": True}),
    ]:
        answer = ask(port, "GET", path)
        assert (answer.status, answer.json) == (200, body)


def test_startup_live_and_ready_are_three_answers(http_door: HttpDoor, http_service: FakeService) -> None:
    http_service.state = {
        "started": Readiness(False, "loading 2 of 5 models"),
        "ready": Readiness(False, "model 'm' is loading"),
    }
    http, probes = http_door.port, http_door.metrics_port
    assert ask(probes, "GET", "/startupz")[::2] == (503, b'{"started":false,"error":"loading 2 of 5 models"}')
    assert ask(probes, "GET", "/livez").status == 200
    assert ask(probes, "GET", "/readyz")[::2] == (503, b'{"ready":false,"error":"model \'m\' is loading"}')
    assert ask(http, "GET", "/v2/health/live").status == 200
    assert ask(http, "GET", "/v2/health/ready")[::2] == (503, b'{"ready":false,"error":"model \'m\' is loading"}')
    http_service.is_live = False
    assert ask(probes, "GET", "/livez").status == 503
    assert ask(http, "GET", "/v2/health/live").json["live"] is False


@pytest.mark.parametrize("path", ["/v2/models/nope/ready", "/v2/models/ident/versions/9/ready"])
def test_a_model_that_is_not_ready_is_503_with_the_reason(http_door: HttpDoor, path: str) -> None:
    answer = ask(http_door.port, "GET", path)
    assert answer.status == 503
    assert answer.json["ready"] is False
    assert "is not found" in answer.json["error"]


@pytest.mark.parametrize("path", ["/v2/models/nope", "/v2/models/nope/config", "/v2/models/ident/versions/9"])
def test_an_unknown_model_is_404(http_door: HttpDoor, path: str) -> None:
    answer = ask(http_door.port, "GET", path)
    assert answer.status == 404
    assert "is not found" in answer.error


def test_statistics_of_an_unknown_model_are_400(http_door: HttpDoor) -> None:
    answer = ask(http_door.port, "GET", "/v2/models/nope/stats")
    assert (answer.status, answer.error) == (400, "requested model 'nope' is not available")


@pytest.mark.parametrize(
    "path", ["/", "/foo", "/v2/", "/v2/models/ident/foo", "/v2/models/ident/versions/abc", "/startupz"]
)
def test_an_unknown_path_is_404_in_json(http_door: HttpDoor, path: str) -> None:
    answer = ask(http_door.port, "GET", path)
    assert (answer.status, answer.error) == (404, "Not Found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v2", "GET, HEAD"),
        ("PUT", "/v2/health/live", "GET, HEAD"),
        ("DELETE", "/v2/models/ident", "GET, HEAD"),
        ("GET", "/v2/models/ident/infer", "POST"),
        ("GET", "/v2/models/ident/generate_stream", "POST"),
        ("GET", "/v2/repository/index", "POST"),
        ("OPTIONS", "/v2/repository/models/m/load", "POST"),
    ],
)
def test_a_wrong_method_is_405_and_says_the_right_one(
    http_door: HttpDoor, method: str, path: str, allowed: str
) -> None:
    answer = ask(http_door.port, method, path)
    assert (answer.status, answer.error, answer.headers["Allow"]) == (405, "Method Not Allowed", allowed)


def test_head_is_get_without_a_body(http_door: HttpDoor) -> None:
    answer = ask(http_door.port, "HEAD", "/v2/health/ready")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("GET", "/v2/logging", "logging"),
        ("POST", "/v2/logging", "logging"),
        ("GET", "/v2/trace/setting", "trace"),
        ("POST", "/v2/models/ident/trace/setting", "trace"),
        ("GET", "/v2/systemsharedmemory/status", "shared memory"),
        ("POST", "/v2/cudasharedmemory/region/r/unregister", "shared memory"),
    ],
)
def test_what_is_not_there_says_so(http_door: HttpDoor, method: str, path: str, what: str) -> None:
    answer = ask(http_door.port, method, path)
    assert (answer.status, answer.error) == (501, f"this server does not support the {what} extension")


def test_metrics_are_on_both_ports_and_rendered_off_the_loop(http_door: HttpDoor, http_service: FakeService) -> None:
    for port in (http_door.port, http_door.metrics_port):
        answer = ask(port, "GET", "/metrics")
        assert (answer.status, answer.body) == (200, b"up 1\n")
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert http_service.metrics_thread.startswith("shoal-http_")


def test_the_accept_header_chooses_openmetrics(http_door: HttpDoor) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
    answer = ask(http_door.metrics_port, "GET", "/metrics", headers={"Accept": accept})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")


def test_without_metrics_there_are_none(http_service: FakeService) -> None:
    door = HttpDoor(http_service, HttpOptions(address="127.0.0.1", port=0), MetricsOptions(enabled=False))
    door.start()
    try:
        assert door.metrics_port == 0
        assert ask(door.port, "GET", "/metrics").status == 404
    finally:
        door.stop()


def test_without_http_there_are_still_probes(http_service: FakeService) -> None:
    door = HttpDoor(http_service, HttpOptions(enabled=False), MetricsOptions(address="127.0.0.1", port=0))
    door.start()
    try:
        assert door.port == 0
        assert ask(door.metrics_port, "GET", "/readyz").status == 200
    finally:
        door.stop()


def test_a_fault_of_the_server_is_500_in_json(
    http_door: HttpDoor, http_service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Readiness:
        raise RuntimeError("a secret")

    monkeypatch.setattr(http_service, "ready", broken)
    answer = ask(http_door.port, "GET", "/v2/health/ready")
    assert (answer.status, answer.error) == (500, "internal error of the HTTP server")

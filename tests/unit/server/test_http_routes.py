"""Which path means what."""

from __future__ import annotations

import pytest

from shoal_dataplane.core.errors import Code
from shoal_dataplane.server.http_routes import Action, find_metrics_route, find_route
from shoal_dataplane.server.status import http_status


@pytest.mark.parametrize(
    ("path", "action", "model", "version", "repository"),
    [
        ("/v2", Action.SERVER_METADATA, "", "", ""),
        ("/v2?x=1", Action.SERVER_METADATA, "", "", ""),
        ("/v2/health/live", Action.LIVE, "", "", ""),
        ("/v2/health/ready?x", Action.READY, "", "", ""),
        ("/v2/models/stats", Action.MODEL_STATISTICS, "", "", ""),
        ("/v2/models/m", Action.MODEL_METADATA, "m", "", ""),
        ("/v2/models/m/versions/12", Action.MODEL_METADATA, "m", "12", ""),
        ("/v2/models/m/ready", Action.MODEL_READY, "m", "", ""),
        ("/v2/models/m/versions/1/ready", Action.MODEL_READY, "m", "1", ""),
        ("/v2/models/m/config", Action.MODEL_CONFIG, "m", "", ""),
        ("/v2/models/m/stats", Action.MODEL_STATISTICS, "m", "", ""),
        ("/v2/models/m/infer", Action.INFER, "m", "", ""),
        ("/v2/models/m/versions/1/infer", Action.INFER, "m", "1", ""),
        ("/v2/models/m/generate", Action.GENERATE, "m", "", ""),
        ("/v2/models/m/versions/3/generate_stream", Action.GENERATE_STREAM, "m", "3", ""),
        ("/v2/models/a%20b%2Fc%C3%BC/infer", Action.INFER, "a b/cü", "", ""),
        ("/v2/models/versions/infer", Action.INFER, "versions", "", ""),
        ("/v2/repository/index", Action.INDEX, "", "", ""),
        ("/v2/repository/r/index", Action.INDEX, "", "", "r"),
        ("/v2/repository/models/m/load", Action.LOAD, "m", "", ""),
        ("/v2/repository/models/m/unload", Action.UNLOAD, "m", "", ""),
        ("/v2/repository/r/models/m/load", Action.LOAD, "m", "", "r"),
        ("/v2/logging", Action.LOGGING, "", "", ""),
        ("/v2/trace/setting", Action.TRACE, "", "", ""),
        ("/v2/models/m/trace/setting", Action.TRACE, "m", "", ""),
        ("/v2/systemsharedmemory/status", Action.SHARED_MEMORY, "", "", ""),
        ("/v2/cudasharedmemory/region/r/register", Action.SHARED_MEMORY, "", "", ""),
        ("/metrics", Action.METRICS, "", "", ""),
    ],
)
def test_a_path_names_an_action(path: str, action: Action, model: str, version: str, repository: str) -> None:
    route = find_route(path)
    assert route is not None
    assert (route.action, route.model, route.version, route.repository) == (action, model, version, repository)


NOWHERE = """
    / * /foo /v1 /v2/ /v2//health/live /v2/foo /v2/health/foo /v2/models /v2/models/ /v2/models/m/ /v2/models/m/foo
    /v2/models/m/versions /v2/models/m/versions/ /v2/models/m/versions/abc /v2/models/m/versions/-1/infer
    /v2/models/m/versions/1/ /v2/models/m/versions/%D9%A1/infer /v2/models//infer /v2/models/m/config/
    /v2/repository /v2/repository/models/m/foo /v2/repository/models//load /v2/systemsharedmemory
    /v2/systemsharedmemory/a/b/status /v2/cudasharedmemory/foo /readyz
"""


@pytest.mark.parametrize("path", NOWHERE.split())
def test_any_other_path_is_not_found(path: str) -> None:
    assert find_route(path) is None


def test_the_metrics_port_has_metrics_and_probes_only() -> None:
    found = {
        path: find_metrics_route(path)
        for path in ("/metrics", "/metrics?a=b", "/startupz", "/livez", "/readyz", "/v2", "/")
    }
    assert {path: route.action for path, route in found.items() if route} == {
        "/metrics": Action.METRICS,
        "/metrics?a=b": Action.METRICS,
        "/startupz": Action.STARTUP_PROBE,
        "/livez": Action.LIVE_PROBE,
        "/readyz": Action.READY_PROBE,
    }


def test_every_error_code_has_a_status() -> None:
    assert {code.name: http_status(code) for code in Code} == {
        "OK": 200,
        "CANCELLED": 400,
        "UNKNOWN": 400,
        "INVALID_ARGUMENT": 400,
        "DEADLINE_EXCEEDED": 504,
        "NOT_FOUND": 404,
        "ALREADY_EXISTS": 400,
        "PERMISSION_DENIED": 403,
        "RESOURCE_EXHAUSTED": 429,
        "FAILED_PRECONDITION": 400,
        "ABORTED": 409,
        "OUT_OF_RANGE": 400,
        "UNIMPLEMENTED": 501,
        "INTERNAL": 500,
        "UNAVAILABLE": 503,
        "DATA_LOSS": 500,
        "UNAUTHENTICATED": 401,
    }

"""Live, ready and per-model readiness, over gRPC, HTTP and grpc.health.v1."""

from __future__ import annotations

import contextlib

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2 as pb

from tests.protocol.conftest import Deploy
from tests.protocol.harness.grpc_calls import refused
from tests.protocol.harness.http_calls import call
from tests.protocol.harness.server import HOST, Server
from tests.protocol.harness.targets import Target
from tests.protocol.harness.waiting import wait_for

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    deploy("health_a", execution="thread")


def test_grpc_says_live_and_ready(server: Server) -> None:
    assert server.stub.ServerLive(pb.ServerLiveRequest(), timeout=10).live
    wait_for("ready", lambda: server.stub.ServerReady(pb.ServerReadyRequest(), timeout=10).ready)


def test_http_says_live_and_ready(server: Server) -> None:
    wait_for("ready", server.ready)
    assert server.http("GET", "/v2/health/live").status == 200


def test_a_model_is_ready_by_name_and_by_version(server: Server) -> None:
    for version in ("", "1"):
        assert server.stub.ModelReady(pb.ModelReadyRequest(name="health_a", version=version), timeout=10).ready
    assert server.http("GET", "/v2/models/health_a/ready").status == 200
    assert server.http("GET", "/v2/models/health_a/versions/1/ready").status == 200


@pytest.mark.parametrize(("name", "version"), [("nobody", ""), ("health_a", "7")])
def test_what_does_not_exist_is_not_ready_without_an_error(
    server: Server, target: Target, name: str, version: str
) -> None:
    assert not server.stub.ModelReady(pb.ModelReadyRequest(name=name, version=version), timeout=10).ready
    path = f"/v2/models/{name}" + (f"/versions/{version}" if version else "") + "/ready"
    reply = server.http("GET", path)
    assert reply.status == target.pick("not-ready-503", shoal=503, triton=400)
    assert "error" in reply.json()


@pytest.mark.differs("not-ready-503")
def test_the_readiness_answer_says_why_not(server: Server) -> None:
    document = server.http("GET", "/v2/models/health_a/versions/7/ready").json()
    assert document["ready"] is False
    assert "version 7" in document["error"]


def test_a_version_that_is_no_number_is_refused(server: Server) -> None:
    with refused("INVALID_ARGUMENT", "'abc'"):
        server.stub.ModelReady(pb.ModelReadyRequest(name="health_a", version="abc"), timeout=10)
    assert server.http("GET", "/v2/models/health_a/versions/abc/ready").status in (400, 404)


def test_grpc_health_check_gives_the_servers_readiness(server: Server) -> None:
    stub = health_pb2_grpc.HealthStub(server.channel)
    wait_for("serving", lambda: stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status == SERVING)


@pytest.mark.differs("health-per-model")
def test_grpc_health_check_knows_each_model(server: Server) -> None:
    stub = health_pb2_grpc.HealthStub(server.channel)

    def status(service: str) -> int:
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status

    def known() -> bool:
        with contextlib.suppress(grpc.RpcError):
            return status("health_a") == SERVING
        return False

    wait_for("the model is known", known)
    assert status("health_a/1") == SERVING
    assert status("inference.GRPCInferenceService") == SERVING
    with refused("NOT_FOUND"):
        status("nobody")


@pytest.mark.differs("health-watch")
def test_grpc_health_watch_follows_a_model(server: Server, deploy: Deploy) -> None:
    deploy("health_b")
    stub = health_pb2_grpc.HealthStub(server.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="health_b"), timeout=30)
    seen = [next(watch).status]
    if seen[0] != SERVING:  # the reporter's next look tells of the new model
        seen = [next(watch).status]
    assert seen == [SERVING]
    server.unload("health_b")
    after = [next(watch).status]
    while after[-1] == SERVING:
        after.append(next(watch).status)
    assert after[-1] == NOT_SERVING
    server.load("health_b")
    while after[-1] != SERVING:
        after.append(next(watch).status)
    watch.cancel()


@pytest.mark.differs("reflection")
def test_reflection_describes_the_service(server: Server) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService"),
    ]
    listed, described = list(stub.ServerReflectionInfo(iter(asked), timeout=10))
    names = {service.name for service in listed.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names
    assert described.file_descriptor_response.file_descriptor_proto


@pytest.mark.differs("probes")
@pytest.mark.parametrize(("path", "word"), [("/startupz", "started"), ("/livez", "live"), ("/readyz", "ready")])
def test_the_metrics_port_answers_a_kubelets_probes(server: Server, path: str, word: str) -> None:
    reply = call((HOST, server.metrics_port), "GET", path)
    assert reply.status == 200
    assert reply.json() == {word: True}

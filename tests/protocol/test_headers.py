"""Headers and metadata that become request parameters, and doors that are closed."""

from __future__ import annotations

import json
import socket
from typing import Any

import numpy as np
import pytest

from tests.protocol.conftest import EXPLICIT, Serve
from tests.protocol.harness.grpc_calls import arrays, refused, request
from tests.protocol.harness.http_calls import infer_document
from tests.protocol.harness.repository import Repository, Tensor
from tests.protocol.harness.server import HOST, ServedProcess
from tests.protocol.harness.waiting import wait_for

X = np.zeros(4, np.float32)


def write(repository: Repository) -> None:
    outputs = [Tensor("OUT", "BYTES", (1,)), Tensor("UNUSED", "INT32", (1,))]
    repository.model("seen", "describe", outputs=outputs, max_batch_size=0, execution="thread")


@pytest.fixture(scope="module")
def server(start: Serve) -> ServedProcess:
    flags = [*EXPLICIT, "--load-model=*", "--http-header-forward-pattern=[Mm]y.*", "--grpc-header-forward-pattern=my.*"]
    return start(write, flags).wait_ready()


def over_grpc(
    server: ServedProcess, *metadata: tuple[str, str], what: str = "parameters", **parameters: Any
) -> dict[str, Any]:
    """What the model sees."""
    response = server.send(request("seen", {"IN": X}, parameters=parameters), metadata=metadata)
    return json.loads(arrays(response)["OUT"][0])[what]


def over_http(server: ServedProcess, what: str = "parameters", **headers: str) -> dict[str, Any]:
    """What the model sees."""
    reply = server.post("/v2/models/seen/infer", infer_document({"IN": X}), headers)
    assert reply.status == 200, reply.body
    outputs = {output["name"]: output for output in reply.json()["outputs"]}
    return json.loads(outputs["OUT"]["data"][0])[what]


def test_metadata_that_matches_the_pattern_reaches_the_model(server: ServedProcess) -> None:
    found = over_grpc(server, ("my-header", "1"), ("other", "2"), ("not-my", "3"))
    assert found == {"my-header": "1", "not-my": "3"}, "the pattern may match anywhere in the name"


def test_headers_that_match_the_pattern_reach_the_model(server: ServedProcess) -> None:
    assert over_http(server, MyHeader="1", not_my="2", Other="3") == {"MyHeader": "1", "not_my": "2"}


def test_parameters_and_headers_come_together(server: ServedProcess) -> None:
    assert over_grpc(server, ("my-header", "1"), own=5) == {"my-header": "1", "own": 5}


@pytest.mark.differs("trace-context")
def test_the_trace_context_of_a_call_reaches_the_model(server: ServedProcess) -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    assert json.loads(over_grpc(server, ("traceparent", parent), what="trace")) == {"traceparent": parent}
    assert json.loads(over_http(server, "trace", traceparent=parent)) == {"traceparent": parent}
    assert over_grpc(server, what="trace") is None


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((HOST, port)) == 0


def test_http_can_be_off(start: Serve) -> None:
    server = start(write, [*EXPLICIT, "--load-model=*", "--allow-http=false"])
    wait_for("gRPC answers", lambda: server.running() and listens(server.grpc_port), 60)
    wait_for("the model is ready", lambda: server.states("seen") == ["READY"], 60)
    assert over_grpc(server) == {}
    assert not listens(server.http_port)


def test_grpc_and_metrics_can_be_off(start: Serve) -> None:
    server = start(write, [*EXPLICIT, "--load-model=*", "--allow-grpc=false", "--allow-metrics=false"]).wait_ready()
    assert over_http(server) == {}
    assert not listens(server.grpc_port)
    assert not listens(server.metrics_port)


@pytest.mark.differs("metrics-on-http", run=False)
def test_a_server_without_metrics_has_none_on_http_either(start: Serve) -> None:
    server = start(write, [*EXPLICIT, "--load-model=*", "--allow-metrics=false"]).wait_ready()
    assert server.http("GET", "/metrics").status == 404
    with refused("NOT_FOUND"):
        server.infer("nobody", {})

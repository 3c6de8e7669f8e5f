"""The life of the process: ports open at once, three answers to three probes, a drain that finishes what it began, a clean end."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2 as pb

from tests.protocol.conftest import EXPLICIT, Gate, Serve
from tests.protocol.harness.grpc_calls import arrays, refused, request
from tests.protocol.harness.http_calls import call, infer_document
from tests.protocol.harness.repository import Repository, Tensor
from tests.protocol.harness.server import HOST, ServedProcess, free_ports
from tests.protocol.harness.targets import Target
from tests.protocol.harness.waiting import wait_for

MakeGate = Callable[[str], Gate]
ONE: dict[str, Any] = {
    "inputs": [Tensor("IN", "FP32", (1,))],
    "outputs": [Tensor("OUT", "FP32", (1,))],
    "max_batch_size": 0,
}
X = np.ones(1, np.float32)


def one_gate(repository: Repository) -> None:
    repository.model("held", "gate", more="instance_group [ { kind: KIND_CPU count: 2 } ]", execution="thread", **ONE)


@pytest.mark.differs("ports-open-at-once", run=False)
def test_ports_are_open_while_a_slow_model_loads(start: Serve, gate: MakeGate) -> None:
    hold = gate("load")

    def write(repository: Repository) -> None:
        repository.model("quick", execution="thread", **ONE)
        repository.model("slow", "slow_start", parameters={"gate": str(hold.path)}, **ONE)

    server = start(write, []).wait_live(30)
    metrics = (HOST, server.metrics_port)
    ready = server.http("GET", "/v2/health/ready")
    assert ready.status == 503
    assert "loading" in ready.json()["error"]
    assert [call(metrics, "GET", path).status for path in ("/startupz", "/livez", "/readyz")] == [503, 200, 503]
    assert server.stub.ServerLive(pb.ServerLiveRequest(), timeout=10).live
    assert not server.stub.ServerReady(pb.ServerReadyRequest(), timeout=10).ready
    health = health_pb2_grpc.HealthStub(server.channel)
    assert (
        health.Check(health_pb2.HealthCheckRequest(), timeout=10).status == health_pb2.HealthCheckResponse.NOT_SERVING
    )
    wait_for("the quick model serves", lambda: server.states("quick") == ["READY"], 60)
    assert arrays(server.infer("quick", {"IN": X}))["OUT"].tolist() == [1]
    assert server.states("slow") == ["LOADING"]
    with refused("UNAVAILABLE", "'slow'.*is not at ready state"):
        server.infer("slow", {"IN": X})
    hold.open()
    server.wait_ready(60)
    assert [call(metrics, "GET", path).status for path in ("/startupz", "/livez", "/readyz")] == [200, 200, 200]
    assert arrays(server.infer("slow", {"IN": X}))["OUT"].tolist() == [1]


def test_sigterm_finishes_what_is_in_flight(start: Serve, gate: MakeGate, target: Target) -> None:
    """Over gRPC, on a stream, and over HTTP."""
    server = start(one_gate, [*EXPLICIT, "--load-model=held", "--exit-timeout-secs=30"]).wait_ready()
    first, second = gate("grpc"), gate("http")
    unary = server.later(request("held", {"IN": X}, parameters=first.parameters))
    replies: list[Any] = []
    document = infer_document({"IN": X * 3}, parameters=second.parameters)
    asking = threading.Thread(target=lambda: replies.append(server.post("/v2/models/held/infer", document)))
    asking.start()
    wait_for("both run", lambda: first.entered() and second.entered())
    server.terminate()
    if target.is_shoal:
        wait_for("it is not ready", lambda: not server.ready())
    time.sleep(0.3)
    assert server.running()
    first.open()
    second.open()
    assert arrays(unary.result())["OUT"].tolist() == [1]
    asking.join(30)
    assert [(reply.status, reply.json()["outputs"][0]["data"]) for reply in replies] == [(200, [3.0])]
    assert server.ended(60) == 0


@pytest.mark.differs("drain-refuses", run=False)
def test_new_requests_are_refused_while_it_drains(start: Serve, gate: MakeGate) -> None:
    server = start(one_gate, [*EXPLICIT, "--load-model=held"]).wait_ready()
    hold = gate("drain")
    running = server.later(request("held", {"IN": X}, parameters=hold.parameters))
    wait_for("it runs", hold.entered)
    server.terminate()

    refusal = None
    while refusal is None:
        refusal = server.later(request("held", {"IN": X}), timeout=5).exception()
    assert refusal.code() is grpc.StatusCode.UNAVAILABLE, refusal
    hold.open()
    running.result()
    assert server.ended(60) == 0


@pytest.mark.differs("exit-timeout", run=False)
def test_requests_that_do_not_end_in_time_are_cut_off(start: Serve, gate: MakeGate) -> None:
    server = start(one_gate, [*EXPLICIT, "--load-model=held", "--exit-timeout-secs=1"]).wait_ready()
    hold = gate("stuck")
    running = server.later(request("held", {"IN": X}, parameters=hold.parameters))
    wait_for("it runs", hold.entered)
    began = time.monotonic()
    server.terminate()
    with pytest.raises(grpc.RpcError):
        running.result(timeout=40)
    hold.open()
    code = server.ended(60)
    assert code != 0, "an end that cut off requests is no clean one"
    assert time.monotonic() - began < 40


@pytest.mark.differs("lame-duck", run=False)
def test_a_lame_duck_still_accepts_while_it_says_that_it_is_not_ready(start: Serve) -> None:
    def write(repository: Repository) -> None:
        repository.model("quick", execution="thread", **ONE)

    server = start(write, [*EXPLICIT, "--load-model=quick", "--lame-duck-secs=2"]).wait_ready()
    server.terminate()
    wait_for("it is not ready", lambda: not server.ready(), 10)
    reply = server.http("GET", "/v2/health/ready")
    assert reply.status == 503
    assert "shutting down" in reply.json()["error"]
    assert server.http("GET", "/v2/health/live").status == 200
    assert arrays(server.infer("quick", {"IN": X}))["OUT"].tolist() == [1]
    assert server.post("/v2/models/quick/infer", infer_document({"IN": X})).status == 200
    assert server.ended(60) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(start: Serve, number: signal.Signals) -> None:
    def write(repository: Repository) -> None:
        repository.model("quick", **ONE)

    server = start(write, []).wait_ready()
    children = child_processes(server)
    assert children, "a Python model has a process of its own"
    server.process.send_signal(number)
    assert server.ended(60) == 0
    wait_for("its children are gone", lambda: not any(alive(pid) for pid in children))


def child_processes(server: ServedProcess) -> list[int]:
    """The process ids of all that the server has started."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found = {server.process.pid}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {server.process.pid})


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.differs("command-line", run=False)
def test_a_signal_while_it_loads_ends_it(start: Serve, gate: MakeGate) -> None:
    hold = gate("load")

    def write(repository: Repository) -> None:
        repository.model("slow", "slow_start", parameters={"gate": str(hold.path)}, **ONE)

    server = start(write, ["--exit-timeout-secs=2"]).wait_live()
    wait_for("it loads", lambda: server.states("slow") == ["LOADING"])
    server.terminate()
    server.ended(30)
    assert "Traceback" not in server.log()


@pytest.mark.differs("command-line", run=False)
@pytest.mark.parametrize("door", ["grpc", "http", "metrics"])
def test_a_port_in_use_is_named(start: Serve, door: str) -> None:
    (port,) = free_ports(1)
    with socket.socket() as taken:
        taken.bind((HOST, port))
        taken.listen()
        server = start(None, [f"--{door}-port={port}"])
        assert server.ended(30) == 1
    assert str(port) in server.log()
    assert "Traceback" not in server.log()


@pytest.mark.differs("command-line", run=False)
@pytest.mark.parametrize(
    ("flags", "pattern"),
    [
        (["--no-such-flag=1"], "no-such-flag"),
        (["--grpc-port=many"], "grpc-port"),
        (["--model-repository=/no/such/folder"], "no such folder"),
        (["--load-model=x"], "model-control-mode=explicit"),
        (["--http-restricted-api=health:key=value"], "http-restricted-api"),
        (["--grpc-use-ssl=true"], "grpc-server-cert"),
    ],
)
def test_a_command_line_that_cannot_be_honoured_says_why(start: Serve, flags: list[str], pattern: str) -> None:
    server = start(None, flags)
    assert server.ended(30) != 0
    assert pattern in server.log()
    assert "Traceback" not in server.log()


def test_a_command_line_of_triton_is_taken(start: Serve) -> None:
    def write(repository: Repository) -> None:
        repository.model("quick", execution="thread", **ONE)

    flags = [
        "--model-control-mode=explicit",
        "--load-model=*",
        "--strict-readiness=true",
        "--exit-on-error=false",
        "--exit-timeout-secs=10",
        "--log-verbose=0",
        "--log-info=true",
        "--allow-gpu-metrics=false",
        "--allow-cpu-metrics=true",
        "--metrics-interval-ms=500",
        "--grpc-infer-allocation-pool-size=8",
        "--grpc-keepalive-time=7200000",
        "--http-thread-count=4",
        "--pinned-memory-pool-byte-size=1048576",
        "--backend-config=python,shm-default-byte-size=1048576",
        "--model-load-thread-count=2",
        "--rate-limit=off",
    ]
    server = start(write, flags).wait_ready()
    assert arrays(server.infer("quick", {"IN": X}))["OUT"].tolist() == [1]


@pytest.mark.differs("command-line", run=False)
def test_json_logs_are_one_object_a_line(start: Serve) -> None:
    def write(repository: Repository) -> None:
        repository.model("broken", "broken", execution="thread")

    server = start(write, ["--log-format=json", "--exit-on-error=false"]).wait_live()
    wait_for("it has failed", lambda: server.states("broken") == ["UNAVAILABLE"])
    server.terminate()
    server.ended(30)
    lines = [line for line in server.log().splitlines() if line.strip()]
    assert lines
    for line in lines:
        document = json.loads(line)
        assert isinstance(document, dict)

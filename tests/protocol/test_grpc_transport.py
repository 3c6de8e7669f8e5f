"""gRPC below its messages: lengths that lie, ages of connections, compression, shared ports."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time

import grpc
import numpy as np
import pytest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.protocol.conftest import EXPLICIT, Deploy, Serve
from tests.protocol.harness import http2
from tests.protocol.harness.grpc_calls import arrays, request
from tests.protocol.harness.http_calls import call
from tests.protocol.harness.repository import Repository, Tensor
from tests.protocol.harness.server import HOST, UNLIMITED, Server, free_ports
from tests.protocol.harness.waiting import wait_for

X = np.arange(4, dtype=np.float32).reshape(1, 4)
METHODS = ["ModelInfer", "ModelStreamInfer", "ModelReady"]


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    deploy("t_plain", execution="thread")


def write(repository: Repository) -> None:
    repository.model(
        "plain", inputs=[Tensor("IN", "FP32", (-1,))], outputs=[Tensor("OUT", "FP32", (-1,))], execution="thread"
    )


def still_serves(server: Server) -> None:
    assert arrays(server.infer("t_plain", {"IN": X}))["OUT"].tolist() == X.tolist()


@pytest.mark.differs("message-length", run=False)
@pytest.mark.parametrize("method", METHODS)
def test_a_message_that_claims_3_gib_is_refused_before_it_has_come(server: Server, method: str) -> None:
    with socket.create_connection((HOST, server.grpc_port), timeout=20) as connection:
        head = http2.call_head(f"/inference.GRPCInferenceService/{method}")
        claim = struct.pack(">BI", 0, 3 << 30)
        connection.sendall(head + http2.frame(http2.DATA, 0, 1, claim + bytes(1000)))
        for frame in http2.frames(connection):
            if frame.stream == 1 and frame.kind in (http2.HEADERS, http2.RST_STREAM) and frame.flags & http2.END_STREAM:
                break
            if frame.kind in (http2.RST_STREAM, http2.GOAWAY):
                break
        else:
            pytest.fail("the connection ended without an answer")
    still_serves(server)


@pytest.mark.parametrize("case", ["cut short", "bad compression flag", "garbage", "preface only"])
def test_bytes_that_are_no_grpc_harm_nobody(server: Server, case: str) -> None:
    head = http2.call_head("/inference.GRPCInferenceService/ModelInfer")
    sent = {
        "cut short": head + http2.frame(http2.DATA, http2.END_STREAM, 1, struct.pack(">BI", 0, 1000) + b"abc"),
        "bad compression flag": head + http2.frame(http2.DATA, http2.END_STREAM, 1, struct.pack(">BI", 7, 3) + b"abc"),
        "garbage": random.Random(1).randbytes(4096),
        "preface only": head[:24],
    }[case]
    with socket.create_connection((HOST, server.grpc_port), timeout=20) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        try:
            while connection.recv(65536):
                pass
        except ConnectionResetError:
            pass
    still_serves(server)


def test_clients_that_leave_in_the_middle_of_a_message_harm_nobody(server: Server) -> None:
    for _ in range(20):
        with socket.create_connection((HOST, server.grpc_port), timeout=20) as connection:
            head = http2.call_head("/inference.GRPCInferenceService/ModelInfer")
            connection.sendall(head + http2.frame(http2.DATA, 0, 1, struct.pack(">BI", 0, 100_000) + bytes(1000)))
    still_serves(server)


def test_connections_of_limited_age_lose_no_request(start: Serve) -> None:
    flags = [*EXPLICIT, "--load-model=*", "--grpc-max-connection-age=300", "--grpc-max-connection-age-grace=2000"]
    server = start(write, flags).wait_ready()
    states: list[grpc.ChannelConnectivity] = []
    server.channel.subscribe(states.append, try_to_connect=True)
    until = time.monotonic() + 1.5
    count = 0
    while time.monotonic() < until:
        server.infer("plain", {"IN": X})
        count += 1
    server.channel.unsubscribe(states.append)
    assert count > 20
    assert states.count(grpc.ChannelConnectivity.READY) >= 2, f"the connection was never renewed: {states}"


@pytest.mark.parametrize("level", ["none", "low", "high"])
def test_answers_may_be_compressed(start: Serve, level: str) -> None:
    flags = [*EXPLICIT, "--load-model=*", f"--grpc-infer-response-compression-level={level}"]
    server = start(write, flags).wait_ready()
    zeros = np.zeros((1, 1 << 20), np.float32)
    with Relay(server.grpc_port) as relay:
        with grpc.insecure_channel(f"{HOST}:{relay.port}", options=UNLIMITED) as channel:
            answer = GRPCInferenceServiceStub(channel).ModelInfer(request("plain", {"IN": zeros}), timeout=20)
        assert np.array_equal(arrays(answer)["OUT"], zeros)
    assert (relay.received < zeros.nbytes / 10) == (level != "none"), f"{relay.received} bytes for {zeros.nbytes}"


class Relay:
    """Passes one connection on to a port, and counts the bytes that come back."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self.received = 0
        self._target = port
        self._accepting = threading.Thread(target=self._accept)

    def __enter__(self) -> Relay:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._accepting.join(20)
        self._listener.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection((HOST, self._target)) as server:
            up = threading.Thread(target=self._pass, args=(client, server, False))
            up.start()
            self._pass(server, client, True)
            up.join()

    def _pass(self, source: socket.socket, sink: socket.socket, count: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                if count:
                    self.received += len(piece)
                sink.sendall(piece)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def probe(port: int) -> int:
    """The status of the readiness probe; 0 while nobody listens."""
    with contextlib.suppress(OSError):
        return call((HOST, port), "GET", "/readyz").status
    return 0


@pytest.mark.differs("probes", run=False)
def test_servers_may_share_ports(start: Serve) -> None:
    ports = free_ports(2)
    shared = [f"--grpc-port={ports[0]}", f"--http-port={ports[1]}", "--reuse-grpc-port=true", "--reuse-http-port=true"]
    servers = []
    for _ in range(2):
        server = start(write, [*EXPLICIT, "--load-model=*", *shared])
        server.grpc_port, server.http_port = ports
        servers.append(server)
    for server in servers:
        wait_for("it is ready", lambda port=server.metrics_port: probe(port) == 200, 60)
    for _ in range(8):
        with grpc.insecure_channel(f"{HOST}:{ports[0]}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            GRPCInferenceServiceStub(channel).ModelInfer(request("plain", {"IN": X}), timeout=10)

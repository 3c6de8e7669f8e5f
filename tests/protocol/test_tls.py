"""gRPC over TLS, and with certificates of clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient import grpc as tritongrpc
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.protocol.conftest import EXPLICIT, Serve
from tests.protocol.harness.certificates import Authority
from tests.protocol.harness.grpc_calls import arrays, request
from tests.protocol.harness.repository import Repository
from tests.protocol.harness.server import ServedProcess

X = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority, which nobody trusts."""
    return Authority(tmp_path_factory.mktemp("strangers"), "stranger")


def write(repository: Repository) -> None:
    repository.model("secret", execution="thread")


def serve(start: Serve, authority: Authority, *flags: str) -> ServedProcess:
    cert, key = authority.issue("server")
    return start(
        write, [*EXPLICIT, "--load-model=*", *flags, f"--grpc-server-cert={cert}", f"--grpc-server-key={key}"]
    ).wait_ready()


@pytest.fixture(scope="module")
def server(start: Serve, authority: Authority) -> ServedProcess:
    return serve(start, authority, "--grpc-use-ssl=true")


@pytest.fixture(scope="module")
def mutual(start: Serve, authority: Authority) -> ServedProcess:
    return serve(start, authority, "--grpc-use-ssl-mutual=true", f"--grpc-root-cert={authority.cert}")


@pytest.fixture
def channels() -> Iterator[list[grpc.Channel]]:
    opened: list[grpc.Channel] = []
    yield opened
    for channel in opened:
        channel.close()


def ask(
    channels: list[grpc.Channel], server: ServedProcess, root: Path, client: tuple[Path, Path] | None = None
) -> list[list[float]]:
    """Infer over a connection that trusts `root` and shows the certificate and key of `client`."""
    cert, key = (path.read_bytes() for path in client) if client else (None, None)
    credentials = grpc.ssl_channel_credentials(root.read_bytes(), key, cert)
    channels.append(grpc.secure_channel(f"localhost:{server.grpc_port}", credentials))
    response = GRPCInferenceServiceStub(channels[-1]).ModelInfer(request("secret", {"IN": X}), timeout=10)
    return arrays(response)["OUT"].tolist()


def test_tls(server: ServedProcess, authority: Authority, channels: list[grpc.Channel]) -> None:
    assert ask(channels, server, authority.cert) == X.tolist()


def test_tritonclient_over_tls(server: ServedProcess, authority: Authority) -> None:
    with tritongrpc.InferenceServerClient(
        f"localhost:{server.grpc_port}", ssl=True, root_certificates=str(authority.cert)
    ) as client:
        assert client.is_server_live()
        assert client.is_model_ready("secret")


def test_a_client_that_trusts_another_authority_does_not_connect(
    server: ServedProcess, stranger: Authority, channels: list[grpc.Channel]
) -> None:
    with pytest.raises(grpc.RpcError):
        ask(channels, server, stranger.cert)


def test_plain_text_is_not_answered(server: ServedProcess, authority: Authority, channels: list[grpc.Channel]) -> None:
    with pytest.raises(grpc.RpcError):
        server.infer("secret", {"IN": X}, timeout=5)
    assert ask(channels, server, authority.cert) == X.tolist()


def test_mutual_tls(mutual: ServedProcess, authority: Authority, channels: list[grpc.Channel]) -> None:
    assert ask(channels, mutual, authority.cert, authority.issue("client")) == X.tolist()


def test_mutual_tls_refuses_a_client_without_a_certificate(
    mutual: ServedProcess, authority: Authority, channels: list[grpc.Channel]
) -> None:
    with pytest.raises(grpc.RpcError):
        ask(channels, mutual, authority.cert)


def test_mutual_tls_refuses_a_certificate_of_another_authority(
    mutual: ServedProcess, authority: Authority, stranger: Authority, channels: list[grpc.Channel]
) -> None:
    with pytest.raises(grpc.RpcError):
        ask(channels, mutual, authority.cert, stranger.issue("client"))
    assert ask(channels, mutual, authority.cert, authority.issue("client")) == X.tolist()

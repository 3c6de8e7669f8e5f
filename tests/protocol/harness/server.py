"""A served process: started on free ports over a repository, asked through its doors, stopped by SIGTERM."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.protocol.harness.grpc_calls import request
from tests.protocol.harness.http_calls import Reply, call
from tests.protocol.harness.repository import Repository
from tests.protocol.harness.targets import Target
from tests.protocol.harness.waiting import wait_for

HOST = "127.0.0.1"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

# What only a fault of the server itself writes. A model's own traceback is not among it.
_FAULTS = (
    "Task exception was never retrieved",
    "Exception in callback",
    "ended by a fault of its own",
    "internal error",
    "was never awaited",
    "Exception ignored in",
)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, below those that the system gives to clients."""
    chance = random.SystemRandom()  # hypothesis seeds the common one: two runs side by side would choose the same
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = chance.randrange(20000, 32000)
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                ports.append(port)
        return ports


class Server:
    """One server's doors. All calls have a deadline."""

    def __init__(
        self, target: Target, repository: Repository, grpc_port: int, http_port: int, metrics_port: int
    ) -> None:
        self.target = target
        self.repository = repository
        self.grpc_port, self.http_port, self.metrics_port = grpc_port, http_port, metrics_port
        self._channel: grpc.Channel | None = None

    @property
    def grpc_address(self) -> str:
        return f"{HOST}:{self.grpc_port}"

    @property
    def http_address(self) -> str:
        return f"{HOST}:{self.http_port}"

    @property
    def channel(self) -> grpc.Channel:
        """One connection, kept."""
        if self._channel is None:
            self._channel = grpc.insecure_channel(self.grpc_address, options=UNLIMITED)
        return self._channel

    @property
    def stub(self) -> GRPCInferenceServiceStub:
        return GRPCInferenceServiceStub(self.channel)

    def infer(
        self, model: str, inputs: Mapping[str, Any], *, timeout: float = 30, **more: Any
    ) -> pb.ModelInferResponse:
        """One ModelInfer of arrays; `more` as in grpc_calls.request."""
        return self.stub.ModelInfer(request(model, inputs, **more), timeout=timeout)

    def send(
        self, message: pb.ModelInferRequest, *, timeout: float = 30, metadata: Any = None
    ) -> pb.ModelInferResponse:
        """One ModelInfer of any message."""
        return self.stub.ModelInfer(message, timeout=timeout, metadata=metadata)

    def later(self, message: pb.ModelInferRequest, *, timeout: float = 60) -> Any:
        """The future of one ModelInfer."""
        return self.stub.ModelInfer.future(message, timeout=timeout)

    def http(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Reply:
        """One HTTP request."""
        return call((HOST, self.http_port), method, path, body, headers, **more)

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **more: Any) -> Reply:
        """One POST."""
        return self.http("POST", path, body, headers, **more)

    def ready(self) -> bool:
        """Does the readiness probe say so? False too when nobody listens."""
        try:
            return self.http("GET", "/v2/health/ready", timeout=5).status == 200
        except OSError:
            return False

    def load(self, name: str, *, timeout: float = 120, **parameters: Any) -> None:
        """RepositoryModelLoad; parameters whose name has a colon or a dot go in by `**{...}`."""
        message = pb.RepositoryModelLoadRequest(model_name=name)
        for key, value in parameters.items():
            field = {bool: "bool_param", int: "int64_param", str: "string_param", bytes: "bytes_param"}[type(value)]
            setattr(message.parameters[key], field, value)
        self.stub.RepositoryModelLoad(message, timeout=timeout)

    def unload(self, name: str, *, timeout: float = 60) -> None:
        """RepositoryModelUnload, and wait until the index says that it is done (Triton's answers before that)."""
        self.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name=name), timeout=timeout)
        wait_for(
            f"'{name}' is unloaded", lambda: all(s not in ("UNLOADING", "READY") for s in self.states(name)), timeout
        )

    def index(self, ready: bool = False) -> dict[tuple[str, str], tuple[str, str]]:
        """State and reason by name and version."""
        found = self.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=ready), timeout=10)
        return {(row.name, row.version): (row.state, row.reason) for row in found.models}

    def states(self, name: str) -> list[str]:
        """The states of a model's versions."""
        return [state for (model, _), (state, _) in sorted(self.index().items()) if model == name]

    def statistics(self, name: str, version: str = "") -> pb.ModelStatistics:
        """The statistics of one version."""
        reply = self.stub.ModelStatistics(pb.ModelStatisticsRequest(name=name, version=version), timeout=10)
        assert len(reply.model_stats) == 1, reply
        return reply.model_stats[0]

    def metrics(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """The samples of a scrape, by name and then by labels (sorted pairs)."""
        reply = call((HOST, self.metrics_port), "GET", "/metrics")
        assert reply.status == 200
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(reply.body.decode()):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                series = found.setdefault(sample.name, {})
                assert labels not in series, f"{sample.name}{dict(labels)} is there twice"
                series[labels] = sample.value
        return found

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 when there is none."""
        wanted = set(labels.items())
        found = self.metrics()
        series = found.get(name) or found.get(f"{name}_total", {})  # the parser names every counter so
        return sum(value for key, value in series.items() if wanted <= set(key))

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class ServedProcess(Server):
    """A server that the suite started. Use it as a context: it is stopped at the end, and its log must tell of no fault of its own."""

    def __init__(
        self,
        target: Target,
        repository: Repository,
        log: Path,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(target, repository, *free_ports(3))
        self.log_path = log
        ports = [
            f"--grpc-port={self.grpc_port}",
            f"--http-port={self.http_port}",
            f"--metrics-port={self.metrics_port}",
            *(f"--{door}-address={HOST}" for door in ("grpc", "http", "metrics")),
        ]
        command = target.command([f"--model-repository={repository.path}", *ports, *flags])
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=target.environment(environment or {}),
                start_new_session=True,
            )

    def __enter__(self) -> ServedProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        code = self.stop()
        if kind is None and self.target.is_shoal:
            assert code == 0, f"exit code {code} after SIGTERM; the log ends:\n{self.log()[-4000:]}"
            self.check_log()

    def ended(self, seconds: float = 60) -> int:
        """Wait until it has ended by itself, and return the exit code. Its log must tell of no fault of its own."""
        code = self.process.wait(seconds)
        self.close()
        if self.target.is_shoal:
            self.check_log()
        return code

    def check_log(self) -> None:
        """The log must tell of no fault of the server itself; models may have faults."""
        text = self.log()
        found = [fault for fault in _FAULTS if fault in text]
        assert not found, f"the log has {found}:\n{text[-8000:]}"

    def log(self) -> str:
        """What it has written so far."""
        return self.log_path.read_text(errors="replace")

    def running(self) -> bool:
        return self.process.poll() is None

    def wait_live(self, seconds: float = 60) -> ServedProcess:
        """Wait until both doors answer."""
        self._wait("live", self._live, seconds)
        return self

    def wait_ready(self, seconds: float = 120) -> ServedProcess:
        """Wait until it is ready. Raises AssertionError with its log when it ends or is not."""
        self._wait("ready", self.ready, seconds)
        return self

    def _live(self) -> bool:
        try:
            live = self.http("GET", "/v2/health/live", timeout=5).status == 200
            return live and self.stub.ServerLive(pb.ServerLiveRequest(), timeout=5).live
        except (OSError, grpc.RpcError):
            return False

    def _wait(self, what: str, condition: Any, seconds: float) -> None:
        try:
            wait_for(f"the server is {what}", lambda: not self.running() or condition(), seconds, period=0.03)
        except TimeoutError as error:
            raise AssertionError(f"{error}; its log:\n{self.log()[-6000:]}") from None
        if not self.running():
            raise AssertionError(f"the server ended with {self.process.returncode}; its log:\n{self.log()[-6000:]}")

    def terminate(self) -> None:
        """Send SIGTERM, and go on."""
        if self.running():
            os.kill(self.process.pid, signal.SIGTERM)

    def stop(self, seconds: float = 60) -> int:
        """Terminate, wait, and return the exit code; kill what does not end."""
        self.close()
        self.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise AssertionError(
                f"did not end within {seconds:.0f} s of SIGTERM; its log ends:\n{self.log()[-6000:]}"
            ) from None


def config_json(text: Mapping[str, Any]) -> str:
    """A model configuration as the load request's `config` parameter takes it."""
    return json.dumps(text)

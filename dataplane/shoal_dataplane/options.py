"""How a data plane is set up. The command line (shoal_cli.serve) fills this from Triton's flags and from manifests."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path


class ControlMode(enum.StrEnum):
    """How the repository changes while serving (--model-control-mode)."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


@dataclass(frozen=True)
class TlsOptions:
    """PEM files. `root_cert` with `mutual` makes client certificates required and checked against it."""

    cert: Path
    key: Path
    root_cert: Path | None = None
    mutual: bool = False


@dataclass(frozen=True)
class GrpcOptions:
    """The gRPC door. Times are milliseconds, as in Triton's flags; 0 means off for the connection ages."""

    enabled: bool = True
    address: str = "0.0.0.0"
    port: int = 8001
    reuse_port: bool = False
    tls: TlsOptions | None = None
    header_forward_pattern: str = ""
    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_ms: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    max_connection_age_grace_ms: int = 0
    response_compression: str = "none"
    front: str = "auto"
    """auto (self-test, then fast or aio), fast (own completion-queue loop) or aio (public grpc.aio API)."""


@dataclass(frozen=True)
class HttpOptions:
    """The HTTP door. `max_input_bytes` bounds the body, its decompressed form and the tensors that its JSON expands to."""

    enabled: bool = True
    address: str = "0.0.0.0"
    port: int = 8000
    reuse_port: bool = False
    header_forward_pattern: str = ""
    max_input_bytes: int = 64 << 20
    max_json_depth: int = 100


@dataclass(frozen=True)
class MetricsOptions:
    """The metrics port. `interval_ms` is how often machine figures (CPU, memory, GPU) are sampled."""

    enabled: bool = True
    address: str = "0.0.0.0"
    port: int = 8002
    interval_ms: int = 2000
    gpu: bool = True
    cpu: bool = True


@dataclass(frozen=True)
class RepositoryOptions:
    """The model repositories. `load_models` are the names for explicit mode at start ("*": all)."""

    paths: tuple[Path, ...] = ()
    control_mode: ControlMode = ControlMode.NONE
    load_models: tuple[str, ...] = ()
    poll_seconds: float = 15.0
    auto_complete: bool = True
    config_name: str = ""
    load_threads: int = 4
    load_retries: int = 0
    backend_config: dict[str, dict[str, str]] = field(default_factory=dict)
    """Options of a backend by its name; "" holds those for all (such as default-max-batch-size)."""


@dataclass(frozen=True)
class ServerOptions:
    """Everything. `lame_duck_seconds`: after SIGTERM the server reports not ready but still accepts for so long."""

    server_id: str = "shoal"
    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout_seconds: float = 30.0
    lame_duck_seconds: float = 0.0
    log_verbose: int = 0
    log_format: str = "text"
    repository: RepositoryOptions = field(default_factory=RepositoryOptions)
    grpc: GrpcOptions = field(default_factory=GrpcOptions)
    http: HttpOptions = field(default_factory=HttpOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)

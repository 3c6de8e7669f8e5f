"""What the two gRPC fronts share: channel arguments, credentials, statuses, and what of a call's metadata travels in its request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import grpc

from shoal_dataplane.core.errors import Reason, ServingError, unavailable
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.options import GrpcOptions, TlsOptions

MAX_MESSAGE = (1 << 31) - 1
"""Bytes; what Triton allows and the most that gRPC can frame."""

MAX_DETAILS = 4096
"""Bytes. A status message travels in a header, whose size clients limit to 8 KB."""

STREAM_WINDOW = 256
"""Requests of one stream that may be in the server at a time; the next one is not read from the connection before one is answered."""

CARRIED = frozenset(("authorization", "traceparent", "tracestate"))
"""Metadata that always travels in the request."""

STATUS = {code.value[0]: code for code in grpc.StatusCode}
"""grpc's status objects by their number."""

_LEVEL = {"none": 0, "low": 1, "medium": 2, "high": 3}  # grpc_compression_level


def channel_options(options: GrpcOptions) -> list[tuple[str, int]]:
    """Return grpc's channel arguments for the door's options."""
    arguments = [
        ("grpc.max_receive_message_length", MAX_MESSAGE),
        ("grpc.max_send_message_length", MAX_MESSAGE),
        ("grpc.so_reuseport", int(options.reuse_port)),
        ("grpc.max_concurrent_streams", 65536),
        ("grpc.keepalive_time_ms", options.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", options.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", int(options.keepalive_permit_without_calls)),
        ("grpc.http2.max_pings_without_data", options.max_pings_without_data),
        ("grpc.http2.min_ping_interval_without_data_ms", options.min_recv_ping_interval_ms),
        ("grpc.http2.max_ping_strikes", options.max_ping_strikes),
    ]
    if options.max_connection_age_ms:
        arguments.append(("grpc.max_connection_age_ms", options.max_connection_age_ms))
    if options.max_connection_age_grace_ms:
        arguments.append(("grpc.max_connection_age_grace_ms", options.max_connection_age_grace_ms))
    if options.response_compression != "none":
        arguments.append(("grpc.default_compression_level", _LEVEL[options.response_compression]))
    return arguments


def credentials(tls: TlsOptions) -> grpc.ServerCredentials:
    """Read the PEM files. Raises OSError naming the file."""
    root = tls.root_cert.read_bytes() if tls.root_cert else None
    return grpc.ssl_server_credentials([(tls.key.read_bytes(), tls.cert.read_bytes())], root, tls.mutual)


def details(error: ServingError) -> bytes:
    """The text of an error as a gRPC status message."""
    return error.message.encode(errors="replace")[:MAX_DETAILS]


Metadata = Iterable[tuple[str, str | bytes]]


class Carrier:
    """Takes from a call what is not in its message. `forward_pattern` is --grpc-header-forward-pattern."""

    def __init__(self, forward_pattern: str = "") -> None:
        self._forward = re.compile(forward_pattern).search if forward_pattern else None

    def carried(self, metadata: Metadata) -> dict[str, str]:
        """The metadata that later rooms see."""
        return {name: value for name, value in metadata if name in CARRIED and isinstance(value, str)}

    def forwarded(self, metadata: Metadata) -> Mapping[str, str]:
        """The metadata that becomes request parameters."""
        forward = self._forward
        if forward is None:
            return {}
        return {name: value for name, value in metadata if isinstance(value, str) and forward(name)}


def prepare(
    request: InferRequest, carried: Mapping[str, str], forwarded: Mapping[str, str], deadline_ns: int | None
) -> None:
    """Put into the request what came with the call and not with the message."""
    if carried:
        request.metadata = carried
    if forwarded:
        request.parameters = {**forwarded, **request.parameters}
    request.deadline_ns = deadline_ns


def shutting_down() -> ServingError:
    """The answer to a request that comes while the server drains; clients retry this code, elsewhere."""
    return unavailable("GRPC server is shutting down and has stopped accepting new requests.", Reason.SHUTTING_DOWN)


def cannot_listen(address: str, why: str) -> OSError:
    """The error of a port that cannot be bound."""
    return OSError(f"the gRPC door cannot listen on {address}: {why}")

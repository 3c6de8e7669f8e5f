"""The gRPC door: ports, TLS, keepalive, health, reflection, and which front serves the hot methods."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from shoal_api.protocol import INFERENCE_SERVICE, POOL
from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.options import GrpcOptions
from shoal_dataplane.server import completion_queue
from shoal_dataplane.server.grpc_common import STATUS, cannot_listen, channel_options, credentials, details
from shoal_dataplane.server.grpc_health import HealthReporter
from shoal_dataplane.server.grpc_infer import HotDoor
from shoal_dataplane.server.grpc_methods import Method, methods
from shoal_dataplane.server.listen import bind
from shoal_dataplane.service import InferenceService

logger = logging.getLogger(__name__)


def reflection_pool() -> descriptor_pool.DescriptorPool:
    """What reflection describes: the files of our private pool, with health's and reflection's own beside them."""
    pool = descriptor_pool.DescriptorPool()
    seen: set[str] = set()

    def add(file: Any) -> None:
        if file.name in seen:
            return
        seen.add(file.name)
        for dependency in file.dependencies:
            add(dependency)
        pool.AddSerializedFile(file.serialized_pb)

    add(POOL.FindFileByName("shoal_api/protocol/inference.proto"))
    default = descriptor_pool.Default()
    for service in (health.SERVICE_NAME, reflection.SERVICE_NAME):
        add(default.FindFileContainingSymbol(service))
    return pool


def _guarded(method: Method) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def call(message: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return method.answer(message)
        except ServingError as error:
            context.abort(STATUS[int(error.code)], details(error).decode(errors="replace"))
            raise AssertionError("abort raises") from error

    return call


class GrpcDoor:
    """A gRPC server over an InferenceService whose loop is a CompletionQueueLoop. `port` is the bound port."""

    def __init__(
        self, service: InferenceService, loop: completion_queue.CompletionQueueLoop, options: GrpcOptions
    ) -> None:
        self._service = service
        self._loop = loop
        self._options = options
        self.port = 0
        self._hot = HotDoor(service, options.header_forward_pattern)
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="shoal-grpc")
        # Loads may take minutes each; they must not occupy the threads that answer health checks.
        self._slow_pool = ThreadPoolExecutor(16, thread_name_prefix="shoal-grpc-load")
        self._health = health.HealthServicer(
            experimental_non_blocking=True, experimental_thread_pool=ThreadPoolExecutor(2)
        )
        self._reporter = HealthReporter(service, self._health.set)
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Bind and serve. Raises OSError when the address cannot be bound, RuntimeError when the fast front does not work here."""
        options = self._options
        server = grpc.server(self._pool, options=channel_options(options))
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        for name, method in methods(self._service).items():
            behaviour = _guarded(method)
            if method.slow:
                behaviour.experimental_thread_pool = self._slow_pool  # type: ignore[attr-defined]
            handlers[name] = grpc.unary_unary_rpc_method_handler(behaviour)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE_SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (INFERENCE_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server, pool=reflection_pool())
        address = f"{options.address}:{options.port}"
        bind(options.address, options.port, options.reuse_port, "--grpc-port").close()  # says it better than gRPC does
        try:
            if options.tls is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, credentials(options.tls))
        except RuntimeError as error:
            raise cannot_listen(address, str(error)) from error
        if self.port == 0:
            raise cannot_listen(address, "the address is in use or not this machine's")
        self._server = server
        self._reporter.refresh()
        self._loop.start_server(server, self._hot)
        self._reporter.start()

    def drain(self) -> None:
        """Answer new inference requests with UNAVAILABLE from now on; those in flight go on. Connections stay: a stop would cancel the
        calls that are on their way in, and clients do not retry a CANCELLED."""
        self._health.enter_graceful_shutdown()
        self._hot.refusing = True

    def stop(self, grace_seconds: float) -> threading.Event:
        """Refuse new calls now, let those in flight finish for at most `grace_seconds`, then cancel them. The event is set at the end."""
        self.drain()
        if self._server is None:
            ended = threading.Event()
            ended.set()
            return ended
        return self._server.stop(grace_seconds)

    def close(self) -> None:
        """After `stop`'s event: end the helpers' threads."""
        self._reporter.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._slow_pool.shutdown(wait=False, cancel_futures=True)

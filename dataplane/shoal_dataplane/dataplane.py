"""The data plane of one pod: wires loop, repository, service, doors and telemetry; starts and ends them in order."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from shoal_dataplane.backends.registry import backend_for
from shoal_dataplane.core.loop import CoreLoop, ThreadedLoop
from shoal_dataplane.execution.bridge import ServerBridge
from shoal_dataplane.execution.factory import ModelFactory
from shoal_dataplane.options import ServerOptions
from shoal_dataplane.repository.manager import ModelRepository
from shoal_dataplane.repository.types import ModelState
from shoal_dataplane.routing.table import RoutingTable
from shoal_dataplane.server.http import HttpDoor
from shoal_dataplane.serving import Serving
from shoal_dataplane.telemetry.metrics import MetricsRenderer

logger = logging.getLogger(__name__)

_FLUSH_SECONDS = 2.0
"""How long answers that have been given may take to leave."""


class DataPlane:
    """One server. `start` opens the ports and begins to load; `stop` drains. Every port can be 0 for a free one."""

    def __init__(
        self, options: ServerOptions, sources: Sequence[Any] = (), listener: Callable[[Any], None] | None = None
    ) -> None:
        self._options = options
        self._table = RoutingTable()
        self._grpc: Any = None
        self.loop: CoreLoop = self._make_loop()
        self.service = Serving(options.server_id, self.loop, self._table, options.strict_readiness)
        self.bridge = ServerBridge(self.loop, self.service)
        self._factory = ModelFactory(self.loop, self.bridge, backend_for, options.repository.backend_config)
        self.repository = ModelRepository(
            options.repository, self._factory, self._table, backend_for, sources=sources, listener=listener
        )
        self._renderer = MetricsRenderer(options.metrics, self.service, self.bridge.custom_metrics)
        self.service.attach(self.repository, self._renderer.render)
        self._http = (
            HttpDoor(self.service, options.http, options.metrics)
            if options.http.enabled or options.metrics.enabled
            else None
        )
        self._stop_lock = threading.Lock()
        self._stopped = False
        self._settled = False

    def _make_loop(self) -> CoreLoop:
        """The fast front where gRPC is on, allowed and supported by this grpcio; else a loop of its own."""
        if not self._options.grpc.enabled or self._options.grpc.front == "aio":
            return ThreadedLoop()
        from shoal_dataplane.server import completion_queue

        reason = completion_queue.supported()
        if not reason:
            return completion_queue.CompletionQueueLoop()
        if self._options.grpc.front == "fast":
            raise RuntimeError(f"the fast gRPC front is asked for, but {reason}")
        logger.warning("using the slower grpc.aio front: %s", reason)
        return ThreadedLoop()

    @property
    def grpc_port(self) -> int:
        """The bound port, 0 when the door is off."""
        return self._grpc.port if self._grpc is not None else 0

    @property
    def http_port(self) -> int:
        """The bound port, 0 when the door is off."""
        return self._http.port if self._http is not None else 0

    @property
    def metrics_port(self) -> int:
        """The bound port, 0 when it is off."""
        return self._http.metrics_port if self._http is not None else 0

    def start(self) -> None:
        """Open the ports, then begin to load the models in the background. Raises OSError when a port cannot be bound."""
        if self._http is not None:
            self._http.start()
        try:
            self._start_grpc()
        except BaseException:
            if self._http is not None:
                self._http.stop(0)
            raise
        self.repository.start()

    def _start_grpc(self) -> None:
        if not self._options.grpc.enabled:
            assert isinstance(self.loop, ThreadedLoop)
            self.loop.start()
            return
        from shoal_dataplane.server.completion_queue import CompletionQueueLoop

        if isinstance(self.loop, CompletionQueueLoop):
            from shoal_dataplane.server.grpc_door import GrpcDoor

            self._grpc = GrpcDoor(self.service, self.loop, self._options.grpc)
        else:
            from shoal_dataplane.server.grpc_aio import AioGrpcDoor

            assert isinstance(self.loop, ThreadedLoop)
            self.loop.start()
            self._grpc = AioGrpcDoor(self.service, self._options.grpc)
        self._grpc.start()

    def wait_loaded(self, timeout: float | None = None) -> bool:
        """Wait for the first load of the repository to end, well or badly; False when `timeout` seconds passed."""
        if not self.repository.wait_initial(timeout):
            return False
        if not self._settled:
            self._settled = True
            # What is loaded by now stays for good: taken out of the collector's sight, a collection costs microseconds, not tens of
            # milliseconds in the middle of a request. Requests make no cycles, so collections can be rare too.
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 50)
        return True

    def stop(self) -> bool:
        """Drain and end: not ready, lame duck, refuse new requests, finish those in flight within the exit timeout, unload.

        Returns False when requests were still in flight at the end of the timeout (they were cancelled). Idempotent.
        """
        with self._stop_lock:
            if self._stopped:
                return True
            self._stopped = True
            self.service.drain()
            if self._options.lame_duck_seconds:
                time.sleep(self._options.lame_duck_seconds)
            deadline = time.monotonic() + self._options.exit_timeout_seconds
            if self._http is not None:
                self._http.drain()
            if self._grpc is not None:
                self._grpc.drain()
            clean = self._wait_answered(deadline)
            # What is left has no request in flight (an idle stream), or has had its time.
            if self._grpc is not None:
                self._grpc.stop(_FLUSH_SECONDS if clean else 0).wait(_FLUSH_SECONDS + 5)
            # Nobody waits for a model that still loads: what it has so far is freed with the process.
            loading = any(row.state == ModelState.LOADING for row in self.repository.states())
            self.repository.close(1.0 if loading else max(1.0, deadline - time.monotonic()))
            self.service.exited()
            if self._http is not None:
                self._http.stop(_FLUSH_SECONDS if clean else 0)
            if self._grpc is not None:
                self._grpc.close()
            assert isinstance(self.loop, ThreadedLoop)
            self.loop.stop()
            return clean and not self.loop.failed

    def _wait_answered(self, deadline: float) -> bool:
        """Wait until every request that was taken is answered; False when `deadline` (time.monotonic) comes first."""
        while self._factory.open_requests():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True

"""The HTTP door: two ports, one event loop on a thread of its own.

`start` binds the ports and returns; it is called before any model is loaded, so that probes have somebody to ask. `drain` closes the
HTTP port to new work; `stop` ends everything. The metrics port (metrics and the probes of Kubernetes) stays open to the very end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from shoal_dataplane.options import HttpOptions, MetricsOptions
from shoal_dataplane.server.http_context import HttpContext, compile_pattern
from shoal_dataplane.server.http_dispatch import Dispatcher
from shoal_dataplane.server.http_protocol import Server
from shoal_dataplane.server.http_repository import RepositoryHandlers
from shoal_dataplane.server.http_routes import Route, find_metrics_route, find_route
from shoal_dataplane.server.listen import bind
from shoal_dataplane.service import InferenceService

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_WORKERS: Final = 4
_CONTROL_WORKERS: Final = 8
_CLOSE_SECONDS: Final = 1.0


class _Port:
    """One listening port: its socket, its requests, its connections."""

    def __init__(self, listener: socket.socket, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self.dispatcher = dispatcher
        self.server = Server(dispatcher, loop)
        self._loop = loop
        self._accepting: asyncio.Server | None = None

    async def open(self) -> None:
        self._accepting = await self._loop.create_server(self.server, sock=self._listener, backlog=_BACKLOG)

    def close(self) -> None:
        """Stop accepting, and let go of connections that wait for their next request."""
        if self._accepting is not None:
            self._accepting.close()
            self._accepting = None
        for connection in self.server.connections:
            if connection not in self.dispatcher.in_flight:
                connection.force_close()

    async def finish(self, grace_seconds: float) -> None:
        """Wait for the requests in flight, cancel those that take too long, close the connections."""
        self.close()
        dispatcher = self.dispatcher
        deadline = self._loop.time() + grace_seconds
        while dispatcher.in_flight and self._loop.time() < deadline:
            await asyncio.wait(dispatcher.in_flight.values(), timeout=deadline - self._loop.time())
        dispatcher.stopping = True
        left = list(dispatcher.in_flight.values())
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CLOSE_SECONDS)
        await self.server.shutdown(timeout=_CLOSE_SECONDS)
        self.server.abort()


class HttpDoor:
    """Serves the HTTP and the metrics port. Its methods may be called from any thread but its own."""

    def __init__(self, service: InferenceService, options: HttpOptions, metrics: MetricsOptions) -> None:
        """Raises ServingError(INVALID_ARGUMENT) for a header forward pattern that is no regular expression."""
        self._service = service
        self._options = options
        self._metrics = metrics
        self._forward = compile_pattern(options.header_forward_pattern)
        self._listeners: dict[str, socket.socket] = {}
        self._ports: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[str, _Port] = {}
        self._context: HttpContext | None = None
        self._ended: asyncio.Event | None = None

    @property
    def port(self) -> int:
        """The HTTP port, 0 when there is none (not started, or not enabled)."""
        return self._ports.get("http", 0)

    @property
    def metrics_port(self) -> int:
        """The metrics port, 0 when there is none."""
        return self._ports.get("metrics", 0)

    @property
    def in_flight(self) -> int:
        """Requests that are being answered on the HTTP port."""
        port = self._open.get("http")
        return len(port.dispatcher.in_flight) if port is not None else 0

    def start(self) -> None:
        """Bind the enabled ports and serve. Raises OSError that names the port when one cannot be bound; then none is."""
        http, metrics = self._options, self._metrics
        try:
            if http.enabled:
                self._listeners["http"] = bind(http.address, http.port, http.reuse_port, "--http-port", _BACKLOG)
            if metrics.enabled:
                self._listeners["metrics"] = bind(metrics.address, metrics.port, False, "--metrics-port", _BACKLOG)
        except OSError:
            self._close_listeners()
            raise
        self._ports = {name: listener.getsockname()[1] for name, listener in self._listeners.items()}
        if not self._listeners:
            return
        started = threading.Event()
        failure: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(started, failure), name="shoal-http", daemon=True)
        self._thread.start()
        started.wait()
        if failure:
            self._thread.join()
            self._close_listeners()
            raise failure[0]

    def drain(self) -> None:
        """Close the HTTP port: no new connections, no new inferences on old ones. What is in flight goes on. Returns at once."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._drain)

    def stop(self, grace_seconds: float = 0.0) -> None:
        """Drain, wait up to `grace_seconds` for what is in flight, cancel the rest, and end. Idempotent."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        self._thread = None
        if thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._stop(grace_seconds), loop).result()
            thread.join()
        self._close_listeners()

    def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self._ports = {}

    # On the door's own thread from here on.

    def _run(self, started: threading.Event, failure: list[BaseException]) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve(started))
        except BaseException as error:
            logger.exception("the HTTP door's event loop failed")
            failure.append(error)
        finally:
            started.set()

    async def _serve(self, started: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        workers = ThreadPoolExecutor(_WORKERS, "shoal-http")
        control = ThreadPoolExecutor(_CONTROL_WORKERS, "shoal-http-control")
        try:
            self._context = HttpContext(self._service, self._options, loop, workers, self._forward)
            self._ended = asyncio.Event()
            repository = RepositoryHandlers(self._context, control)
            routes: dict[str, Callable[[str], Route | None]] = {"http": find_route, "metrics": find_metrics_route}
            for name, listener in self._listeners.items():
                dispatcher = Dispatcher(self._context, repository, routes[name], self._metrics.enabled)
                port = _Port(listener, dispatcher, loop)
                await port.open()
                self._open[name] = port
            self._loop = loop
            started.set()
            await self._ended.wait()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)  # a load may take minutes: the repository ends those
            control.shutdown(wait=False, cancel_futures=True)

    def _drain(self) -> None:
        assert self._context is not None
        self._context.draining = True
        if "http" in self._open:
            self._open["http"].close()

    async def _stop(self, grace_seconds: float) -> None:
        assert self._ended is not None
        self._drain()
        if "http" in self._open:
            await self._open["http"].finish(grace_seconds)
        if "metrics" in self._open:
            await self._open["metrics"].finish(_CLOSE_SECONDS)
        self._ended.set()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

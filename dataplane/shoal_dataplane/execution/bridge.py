"""What a model may ask of the server that runs it: other models (BLS), the repository, metrics, the log.

`ServerBridge` is the server's side, made once. A worker process reaches it through messages (execution.worker_calls); a model that runs
in the server's process reaches it through `LocalServer`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shoal_dataplane.backends.python.pb_utils.server import set_server
from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.core.loop import CoreLoop
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.execution.worker.output import logger
from shoal_dataplane.telemetry.custom_metrics import CustomMetrics

UNLOAD_SECONDS = 5.0
"""How long `unload_model` waits: a model that unloads itself, or one that waits for it, would otherwise wait for its own end."""


class Ready(Protocol):
    """service.Readiness."""

    @property
    def ready(self) -> bool: ...


class ModelService(Protocol):
    """The part of service.InferenceService that a model may use."""

    def submit(self, request: InferRequest) -> None: ...

    def cancel(self, request: InferRequest) -> None: ...

    def load_model(self, repository: str, name: str, parameters: Mapping[str, str | bytes]) -> None: ...

    def unload_model(self, repository: str, name: str, unload_dependents: bool) -> None: ...

    def model_ready(self, name: str, version: str) -> Ready: ...


class ServerBridge:
    """The server, for the models that it runs. From any thread but the core loop's, unless said otherwise."""

    def __init__(self, loop: CoreLoop, service: ModelService) -> None:
        """Models that run in this process talk to this server from now on."""
        self.custom_metrics = CustomMetrics()
        self._loop = loop
        self._service = service
        set_server(LocalServer(self))

    def infer(self, request: InferRequest, answer: Callable[[InferResponse], None]) -> Callable[[], None]:
        """Send a model's request to the model that it names. `answer` is called once, on the core loop's thread. Returns what cancels the
        request. From any thread."""
        request.handle = _Call(answer)
        request.arrival_ns = self._loop.now_ns()
        self._loop.post(lambda: self._service.submit(request))
        return lambda: self._loop.post(lambda: self._cancel(request))

    def _cancel(self, request: InferRequest) -> None:
        if request.target is not None:
            self._service.cancel(request)

    def when_running(self, callback: Callable[[], None]) -> None:
        """Have `callback` run on the core loop's thread. From any thread."""
        self._loop.post(callback)

    def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        """Blocking. Raises ServingError."""
        self._service.load_model("", name, parameters)

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Returns when the model is unloaded, or after UNLOAD_SECONDS. Raises ServingError."""
        outcome: list[ServingError] = []

        def run() -> None:
            try:
                self._service.unload_model("", name, unload_dependents)
            except ServingError as error:
                outcome.append(error)

        thread = threading.Thread(target=run, name=f"shoal-unload-{name}", daemon=True)
        thread.start()
        thread.join(UNLOAD_SECONDS)
        if outcome:
            raise outcome[0]

    def model_ready(self, name: str, version: str) -> bool:
        """Raises ServingError for a version that is no number."""
        return self._service.model_ready(name, version).ready


class _Call:
    """The handle of a request that a model has made."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Callable[[InferResponse], None]) -> None:
        self._answer = answer

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        if response.final:
            self._answer(response)


class LocalServer:
    """The server as models in its own process see it (backends.pb_utils.server.Server)."""

    def __init__(self, bridge: ServerBridge) -> None:
        self._bridge = bridge
        self._loop_thread: int | None = None
        self._metrics = bridge.custom_metrics.owner()
        bridge.when_running(self._find_loop)

    def _find_loop(self) -> None:
        self._loop_thread = threading.get_ident()

    def refuse_blocking(self) -> str:
        if threading.get_ident() != self._loop_thread:
            return ""
        return (
            "the model runs inline, on the thread that would run the model it asks: waiting here would stop the server. "
            'Set the model\'s parameter SHOAL_EXECUTION to "thread" or "process"'
        )

    def infer(self, request: InferRequest, answer: Callable[[InferResponse], None]) -> Callable[[], None]:
        return self._bridge.infer(request, answer)

    def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        self._bridge.load_model(name, parameters)

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        self._bridge.unload_model(name, unload_dependents)

    def model_ready(self, name: str, version: str) -> bool:
        return self._bridge.model_ready(name, version)

    def log(self, level: int, message: str) -> None:
        logger.log(level, "%s", message)

    def metric_family(self, name: str, description: str, kind: str) -> int:
        return self._metrics.family(name, description, kind)

    def metric(self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None) -> int:
        return self._metrics.metric(family, labels, buckets)

    def change_metric(self, metric: int, operation: str, value: float) -> None:
        self._metrics.change(metric, operation, value)

    def metric_value(self, metric: int) -> float:
        return self._metrics.value(metric)

    def release_metric(self, item: int) -> None:
        self._metrics.release(item)

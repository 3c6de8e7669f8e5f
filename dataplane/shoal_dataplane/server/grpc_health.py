"""grpc.health.v1 from the truth: the service's own readiness, per server and per model, for Check and for Watch.

`Check("")` is the server's readiness, `Check("MODEL")` and `Check("MODEL/VERSION")` a model's, and the inference service's full name
stands for the server. The well-kept servicer of grpcio-health-checking does the protocol; a thread compares and tells it of changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from grpc_health.v1 import health, health_pb2

from shoal_api.protocol import INFERENCE_SERVICE
from shoal_dataplane.repository.types import ModelState
from shoal_dataplane.service import InferenceService

_PERIOD_SECONDS = 0.2
SetStatus = Callable[[str, int], None]


class HealthReporter:
    """Keeps the statuses of a health servicer equal to the service's."""

    def __init__(self, service: InferenceService, set_status: SetStatus) -> None:
        self._service = service
        self._set = set_status
        self._known: dict[str, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-health", daemon=True)

    def start(self) -> None:
        """Report now, and go on: at once after a load or unload that was asked for, soon after everything else."""
        self.refresh()
        self._service.on_change(self.refresh)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_SECONDS):
            self.refresh()

    def refresh(self) -> None:
        """Tell the servicer of what changed since the last time. From any thread."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        serving, not_serving = (
            int(health_pb2.HealthCheckResponse.SERVING),
            int(health_pb2.HealthCheckResponse.NOT_SERVING),
        )
        server = serving if self._service.ready().ready else not_serving
        wanted = {health.OVERALL_HEALTH: server, INFERENCE_SERVICE: server}
        for row in self._service.model_states():
            state = serving if row.state == ModelState.READY else not_serving
            if row.version:
                wanted[f"{row.name}/{row.version}"] = state
            if wanted.get(row.name) != serving:
                wanted[row.name] = state
        gone = int(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        for name in self._known.keys() - wanted.keys():
            wanted[name] = gone
        for name, status in wanted.items():
            if self._known.get(name) != status:
                self._set(name, status)
        self._known = {name: status for name, status in wanted.items() if status != gone}

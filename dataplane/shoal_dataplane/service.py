"""What a door may ask of the data plane. Both doors (gRPC, HTTP) translate their protocol to these calls and add no logic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from shoal_api.protocol import inference_pb2 as pb
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.core.loop import CoreLoop
from shoal_dataplane.core.model_spec import ModelSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.repository.types import IndexEntry, RepositoryParameter


class Readiness(NamedTuple):
    """`ready`, and when not, a sentence that says why."""

    ready: bool
    reason: str = ""


class InferenceService(Protocol):
    """Thread-safe, but for `submit`. The calls marked blocking take as long as a model takes to load."""

    @property
    def loop(self) -> CoreLoop: ...

    def submit(self, request: InferRequest) -> None:
        """Route, check and queue a request. Never raises: every outcome goes to `request.handle`, on this thread, perhaps before
        this returns. Core loop's thread only (other threads: `loop.post`)."""

    def cancel(self, request: InferRequest) -> None:
        """The caller is gone. The handle still gets its one final response. Core loop's thread only."""

    def started(self) -> Readiness:
        """Has the first load of the repository ended (well or badly)? The startup probe's answer."""

    def live(self) -> bool:
        """Is the process able to serve at all?"""

    def ready(self) -> Readiness:
        """May this server get traffic? False while loading, draining, or, with strict readiness, while a model is not ready."""

    def model_ready(self, name: str, version: str) -> Readiness:
        """Is this version (or the highest one) ready? Raises ServingError(INVALID_ARGUMENT) for a version that is no number."""

    def spec(self, name: str, version: str) -> ModelSpec:
        """The compiled specification a request would be checked against. Raises ServingError as routing does."""

    def server_metadata(self) -> pb.ServerMetadataResponse: ...

    def model_metadata(self, name: str, version: str) -> pb.ModelMetadataResponse:
        """Raises ServingError as routing does."""

    def model_config(self, name: str, version: str) -> mc.ModelConfig:
        """The completed configuration. Raises ServingError as routing does."""

    def model_statistics(self, name: str, version: str) -> pb.ModelStatisticsResponse:
        """Of all loaded models for an empty name, of all versions for an empty version. Raises ServingError(INVALID_ARGUMENT)
        for a model that is not loaded, as Triton does."""

    def model_states(self) -> list[IndexEntry]:
        """The versions that are loaded, loading or failed. Cheap: looks at no file."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, on any thread, before a load or an unload that was asked for returns."""

    def repository_index(self, repository: str, ready_only: bool) -> list[IndexEntry]:
        """Every model of every repository. Raises ServingError(UNIMPLEMENTED) for a repository name."""

    def load_model(self, repository: str, name: str, parameters: Mapping[str, RepositoryParameter]) -> None:
        """Blocking. Load or reload (explicit mode). Raises ServingError."""

    def unload_model(self, repository: str, name: str, unload_dependents: bool) -> None:
        """Blocking until the memory is free. Raises ServingError."""

    def metrics_text(self, openmetrics: bool) -> tuple[bytes, str]:
        """The exposition and its content type. May take milliseconds: not on an event loop's thread."""

    def refused(self, error: ServingError) -> None:
        """Count a request that a door refused before it named a model (its bytes made no request). Any thread."""

"""The service behind the doors: routing, checking, queueing, and the questions about models and the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING

from shoal_api.protocol import inference_pb2 as pb
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Reason, ServingError, invalid, unimplemented
from shoal_dataplane.core.loop import CoreLoop
from shoal_dataplane.core.model_spec import ModelSpec
from shoal_dataplane.core.request import InferRequest, Target
from shoal_dataplane.core.response import failure
from shoal_dataplane.execution.servable import ServedModel, failure_reason
from shoal_dataplane.repository.types import IndexEntry, ModelState, RepositoryParameter
from shoal_dataplane.routing.normalize import normalize
from shoal_dataplane.routing.table import RoutingTable, parse_version
from shoal_dataplane.service import Readiness
from shoal_dataplane.telemetry.messages import statistics_message

if TYPE_CHECKING:
    from shoal_dataplane.repository.manager import ModelRepository

EXTENSIONS = (
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
)
"""Of Triton's, those that this server has (sequence, shared memory, trace and logging are not among them)."""

Render = Callable[[bool], tuple[bytes, str]]


class Serving:
    """Implements service.InferenceService."""

    def __init__(self, server_id: str, loop: CoreLoop, table: RoutingTable, strict_readiness: bool) -> None:
        self.loop = loop
        self.refusals: Counter[Reason] = Counter()
        """Requests that were refused before they had a model, by reason."""
        self._server_id = server_id
        self._table = table
        self._strict = strict_readiness
        self._repository: ModelRepository | None = None
        self._render: Render | None = None
        self._watchers: list[Callable[[], None]] = []
        self._draining = False
        self._exited = False

    def attach(self, repository: ModelRepository, render: Render) -> None:
        """Give the service the rooms that are built after it."""
        self._repository = repository
        self._render = render

    @property
    def repository(self) -> ModelRepository:
        assert self._repository is not None
        return self._repository

    # -- inference (core loop's thread)

    def submit(self, request: InferRequest) -> None:
        try:
            target = self._table.resolve(request.model_name, request.model_version)
            request.target = target
            normalize(request, target.spec)
            target.enqueue(request)
        except ServingError as error:
            self._refuse(request, error)

    def _refuse(self, request: InferRequest, error: ServingError) -> None:
        if isinstance(request.target, ServedModel):
            request.target.statistics.record_failure(failure_reason(error), self.loop.now_ns() - request.arrival_ns)
        else:
            self.refusals[failure_reason(error)] += 1
        request.handle.respond(request, failure(error))

    def cancel(self, request: InferRequest) -> None:
        if request.target is not None and not request.cancelled:
            request.target.cancel(request)

    def refused(self, error: ServingError) -> None:
        self.loop.post(lambda: self.refusals.update((failure_reason(error),)))

    # -- health

    def started(self) -> Readiness:
        if self.repository.wait_initial(0):
            return Readiness(True)
        return Readiness(False, self._loading())

    def live(self) -> bool:
        return not self._exited and not self.loop.failed

    def ready(self) -> Readiness:
        if self._draining:
            return Readiness(False, "the server is shutting down")
        if not self.repository.wait_initial(0):
            return Readiness(False, self._loading())
        if self._strict:
            unready = self.repository.unready()
            if unready:
                shown = "; ".join(
                    f"model '{name}'{f' version {number}' if number else ''} is {state}{f': {reason}' if reason else ''}"
                    for name, number, state, reason in unready[:5]
                )
                more = f"; and {len(unready) - 5} more" if len(unready) > 5 else ""
                return Readiness(False, shown + more)
            for name, versions in self._table.models().items():
                for number, target in versions.items():
                    if isinstance(target, ServedModel) and not target.healthy():
                        return Readiness(False, f"model '{name}' version {number} has no instance that can run")
        return Readiness(True)

    def _loading(self) -> str:
        names = sorted({row.name for row in self.repository.states() if row.state == ModelState.LOADING})
        return f"loading models: {', '.join(names[:10])}" if names else "loading models"

    def drain(self) -> None:
        """From now on not ready."""
        self._draining = True

    def exited(self) -> None:
        """From now on not live."""
        self._exited = True

    # -- models

    def model_ready(self, name: str, version: str) -> Readiness:
        number = parse_version(name, version)
        try:
            target = self._table.resolve(name, version)
        except ServingError as error:
            return Readiness(False, error.message)
        if isinstance(target, ServedModel) and not target.healthy():
            return Readiness(False, f"model '{name}' version {number} has no instance that can run")
        return Readiness(True)

    def spec(self, name: str, version: str) -> ModelSpec:
        return self._table.resolve(name, version).spec

    def _served(self, name: str, version: str) -> ServedModel:
        target: Target = self._table.resolve(name, version)
        assert isinstance(target, ServedModel)
        return target

    def server_metadata(self) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name=self._server_id, version=package_version("shoal"), extensions=EXTENSIONS)

    def model_metadata(self, name: str, version: str) -> pb.ModelMetadataResponse:
        model = self._served(name, version)
        config = model.config
        asked = parse_version(name, version)
        versions = [str(number) for number in sorted(self._table.versions(name)) if asked in (-1, number)]
        message = pb.ModelMetadataResponse(name=name, versions=versions, platform=config.platform or config.backend)
        leading = [-1] if model.spec.max_batch_size else []
        for specs, field in ((model.spec.inputs, message.inputs), (model.spec.outputs, message.outputs)):
            for tensor in specs.values():
                field.add(name=tensor.name, datatype=tensor.datatype.wire, shape=[*leading, *tensor.dims])
        return message

    def model_config(self, name: str, version: str) -> mc.ModelConfig:
        return self._served(name, version).config

    def model_statistics(self, name: str, version: str) -> pb.ModelStatisticsResponse:
        models = self._table.models()
        if name:
            number = parse_version(name, version)
            versions = models.get(name, {})
            if number != -1:
                versions = {key: value for key, value in versions.items() if key == number}
            if not versions:
                raise invalid(
                    f"requested model '{name}'{f' version {number}' if number != -1 else ''} is not available"
                )
            models = {name: versions}
        response = pb.ModelStatisticsResponse()
        for model_name in sorted(models):
            for _, target in sorted(models[model_name].items()):
                if isinstance(target, ServedModel):
                    response.model_stats.append(statistics_message(target.statistics))
        return response

    def served_models(self) -> list[ServedModel]:
        """Every loaded version, for the metrics."""
        return [
            t for versions in self._table.models().values() for t in versions.values() if isinstance(t, ServedModel)
        ]

    def model_states(self) -> list[IndexEntry]:
        return self.repository.states()

    # -- the repository

    def repository_index(self, repository: str, ready_only: bool) -> list[IndexEntry]:
        _one_repository(repository)
        return self.repository.index(ready_only)

    def load_model(self, repository: str, name: str, parameters: Mapping[str, RepositoryParameter]) -> None:
        _one_repository(repository)
        try:
            self.repository.load(name, parameters)
        finally:
            self._changed()

    def unload_model(self, repository: str, name: str, unload_dependents: bool) -> None:
        _one_repository(repository)
        try:
            self.repository.unload(name, unload_dependents)
        finally:
            self._changed()

    def on_change(self, callback: Callable[[], None]) -> None:
        self._watchers.append(callback)

    def _changed(self) -> None:
        for callback in self._watchers:
            callback()

    # -- telemetry

    def metrics_text(self, openmetrics: bool) -> tuple[bytes, str]:
        assert self._render is not None
        return self._render(openmetrics)


def _one_repository(repository: str) -> None:
    if repository:
        raise unimplemented("'repository_name' specification is not supported")

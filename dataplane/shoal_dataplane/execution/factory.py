"""From a version's files and completed configuration to a served model: instances, where they run, queue, warm-up."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import Backend, InstanceSpec, ModelContext
from shoal_dataplane.core.errors import Code, Reason, ServingError, invalid
from shoal_dataplane.core.loop import CoreLoop
from shoal_dataplane.core.model_spec import compile_spec
from shoal_dataplane.execution.base import Executor
from shoal_dataplane.execution.bridge import ServerBridge
from shoal_dataplane.execution.inline import InlineExecutor
from shoal_dataplane.execution.process import ProcessExecutor
from shoal_dataplane.execution.servable import ServedModel
from shoal_dataplane.execution.source import VersionSource
from shoal_dataplane.execution.thread import AdaptiveExecutor, ThreadExecutor
from shoal_dataplane.execution.warmup import warm_up
from shoal_dataplane.scheduling.factory import scheduler_for
from shoal_dataplane.telemetry.statistics import ModelStatistics

logger = logging.getLogger(__name__)

EXECUTION_PARAMETER = "SHOAL_EXECUTION"
MODES = ("auto", "inline", "thread", "process")
DEFAULT_QUEUE_LIMIT = 65_536
"""Requests that may wait for a model whose queue policy sets no max_queue_size: nothing is unbounded."""
HOLD_VARIABLE = "TRITONSERVER_DELAY_SCHEDULER"
"""As in Triton: hold every scheduler until so many requests are queued, so that a test can assert how batches are composed."""


class ModelFactory:
    """Builds served models (repository.types.ServableFactory)."""

    def __init__(
        self,
        loop: CoreLoop,
        bridge: ServerBridge,
        backend_for: Callable[[str], Backend],
        backend_config: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._loop = loop
        self._bridge = bridge
        self._backend_for = backend_for
        self._backend_config = backend_config
        self._hold_until = _hold_until()
        self._models: weakref.WeakSet[ServedModel] = weakref.WeakSet()

    def build(self, source: VersionSource) -> ServedModel:
        """Load every instance, warm each up, and return the model. Raises ServingError; nothing is left behind then."""
        config = source.config
        backend = self._backend_for(config.backend or config.platform)
        spec = compile_spec(config, source.version, dict(source.labels))
        options = {**self._backend_config.get("", {}), **self._backend_config.get(config.backend, {})}
        context = ModelContext(source.name, source.version, source.model_dir, source.version_dir, config, spec, options)
        mode = execution_mode(config, backend)
        started = time.monotonic()
        executors: list[Executor] = []
        try:
            for instance in instances(config):
                executors.append(self._executor(mode, backend, context, instance))
            dynamic = config.dynamic_batching if config.HasField("dynamic_batching") else None
            model = ServedModel(
                config,
                spec,
                scheduler_for(config, default_limit=DEFAULT_QUEUE_LIMIT, hold_until=self._hold_until),
                executors,
                self._loop,
                ModelStatistics(source.name, source.version),
                preserve_ordering=bool(dynamic and dynamic.preserve_ordering),
                execution=mode,
            )
            for executor in executors:
                executor.on_ready(model.executor_ready)
            warm_up(config, spec, source.model_dir, executors, self._loop)
        except BaseException as error:
            for executor in executors:
                executor.close()
            if isinstance(error, ServingError) or not isinstance(error, Exception):
                raise
            logger.exception("loading model '%s' version %d failed", source.name, source.version)
            raise ServingError(Code.INTERNAL, f"{type(error).__name__}: {error}", Reason.BACKEND) from error
        model.statistics.load_seconds = time.monotonic() - started
        self._models.add(model)
        return model

    def open_requests(self) -> int:
        """Requests of all models that are taken and not yet answered, those of versions that are being replaced or unloaded among them."""
        return sum(model.open_requests() for model in list(self._models))

    def _executor(self, mode: str, backend: Backend, context: ModelContext, instance: InstanceSpec) -> Executor:
        if mode == "process":
            return ProcessExecutor.start(context, instance, self._loop, self._bridge)
        loaded = backend.load(context, instance)
        name = f"{instance.name}-v{context.version}"
        if mode == "inline":
            return InlineExecutor(loaded)
        if mode == "thread":
            return ThreadExecutor(loaded, self._loop, name)
        return AdaptiveExecutor(loaded, self._loop, name)


def execution_mode(config: mc.ModelConfig, backend: Backend) -> str:
    """Return where the model's instances run. Raises ServingError(INVALID_ARGUMENT) for a value of SHOAL_EXECUTION that is none."""
    if EXECUTION_PARAMETER not in config.parameters:
        return backend.default_execution
    mode = config.parameters[EXECUTION_PARAMETER].string_value.strip().lower()
    if mode not in MODES:
        raise invalid(
            f"model '{config.name}': parameter {EXECUTION_PARAMETER} is '{mode}', expected one of {', '.join(MODES)}"
        )
    return mode


def instances(config: mc.ModelConfig) -> list[InstanceSpec]:
    """Return the instances of a normalised configuration: `count` for each group, for each GPU of a GPU group; passive ones not."""
    found: list[InstanceSpec] = []
    for group in config.instance_group:
        if group.passive:
            continue
        kind = mc.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
        devices = list(group.gpus) if kind == "GPU" else [0]
        placed = [device for device in devices for _ in range(group.count)]
        found.extend(InstanceSpec(f"{group.name}_{index}", kind, device) for index, device in enumerate(placed))
    if not found:
        raise invalid(f"model '{config.name}' has no instance to run: every instance group is passive")
    return found


def _hold_until() -> int:
    value = os.environ.get(HOLD_VARIABLE, "")
    return int(value) if value.isdigit() else 0

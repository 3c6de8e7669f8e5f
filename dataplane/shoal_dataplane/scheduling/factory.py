"""Which scheduler a model's configuration asks for."""

from __future__ import annotations

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import unimplemented
from shoal_dataplane.scheduling.base import Scheduler
from shoal_dataplane.scheduling.default import DefaultScheduler
from shoal_dataplane.scheduling.dynamic import dynamic_from_config


def scheduler_for(config: mc.ModelConfig, *, default_limit: int = 0, hold_until: int = 0) -> Scheduler:
    """Build the scheduler of one loaded version.

    `default_limit` is the server's bound on waiting requests for a model that sets no max_queue_size (0: none). `hold_until` is
    TRITONSERVER_DELAY_SCHEDULER. Raises ServingError: INVALID_ARGUMENT for a configuration that contradicts itself, UNIMPLEMENTED
    for a scheduling choice that this server does not have.
    """
    choice = config.WhichOneof("scheduling_choice")
    if choice == "dynamic_batching":
        return dynamic_from_config(config, default_limit=default_limit, hold_until=hold_until)
    if choice is None:
        return DefaultScheduler(default_limit=default_limit, hold_until=hold_until)
    raise unimplemented(f"model '{config.name}' asks for {choice}, which this server does not serve")

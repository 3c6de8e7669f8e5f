"""The table of what is served, and where."""

from __future__ import annotations

from collections.abc import Sequence

from shoal_api.protocol import model_config_pb2 as mc
from shoal_cli.text import print_table
from shoal_dataplane.execution.servable import ServedModel
from shoal_dataplane.repository.types import IndexEntry

HEADERS = ("Model", "Version", "State", "Backend", "Device", "Max batch", "Scheduler", "Execution")


def print_summary(models: Sequence[ServedModel], failed: Sequence[IndexEntry]) -> None:
    """Print one line for each version that serves, and one for each that should and does not."""
    rows = [_row(model) for model in sorted(models, key=lambda model: (model.name, model.version))]
    rows += [(entry.name, entry.version or "-", entry.state, "-", "-", "-", "-", "-") for entry in failed]
    if rows:
        print_table(HEADERS, rows)


def _row(model: ServedModel) -> tuple[str, ...]:
    config = model.config
    return (
        model.name,
        str(model.version),
        "READY",
        config.backend or config.platform,
        devices(config),
        str(config.max_batch_size) if config.max_batch_size else "none",
        scheduler(config),
        model.execution,
    )


def devices(config: mc.ModelConfig) -> str:
    """ "CPU", "2 x CPU", "GPU 0, 2 x GPU 1"."""
    counts: dict[str, int] = {}
    for group in config.instance_group:
        kind = mc.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
        for device in [f"GPU {gpu}" for gpu in group.gpus] if kind == "GPU" else [kind]:
            counts[device] = counts.get(device, 0) + group.count
    return ", ".join(device if count == 1 else f"{count} x {device}" for device, count in counts.items())


def scheduler(config: mc.ModelConfig) -> str:
    """ "dynamic, waits 2 ms", "dynamic", "one by one"."""
    if not config.HasField("dynamic_batching"):
        return "one by one"
    microseconds = config.dynamic_batching.max_queue_delay_microseconds
    return f"dynamic, waits {microseconds / 1000:g} ms" if microseconds else "dynamic"

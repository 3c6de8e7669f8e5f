"""The `parameters` of a model that bound its worker process."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends import parameters
from shoal_dataplane.core.errors import invalid

LOAD_TIMEOUT = "SHOAL_LOAD_TIMEOUT_SECONDS"
EXECUTE_TIMEOUT = "SHOAL_EXECUTE_TIMEOUT_SECONDS"
MEMORY_LIMIT = "SHOAL_MEMORY_LIMIT_MB"
CLOSE_TIMEOUT = "SHOAL_CLOSE_TIMEOUT_SECONDS"
DEFAULT_LOAD_SECONDS = 600.0
DEFAULT_CLOSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Seconds, and bytes of memory of its own (RssAnon); None is no bound."""

    load_seconds: float = DEFAULT_LOAD_SECONDS
    execute_seconds: float | None = None
    memory_bytes: int | None = None
    close_seconds: float = DEFAULT_CLOSE_SECONDS

    @classmethod
    def of(cls, config: mc.ModelConfig) -> WorkerOptions:
        """Read them. Raises ServingError(INVALID_ARGUMENT) for a value that is no positive number."""
        memory = _positive(config, MEMORY_LIMIT)
        return cls(
            _positive(config, LOAD_TIMEOUT) or DEFAULT_LOAD_SECONDS,
            _positive(config, EXECUTE_TIMEOUT),
            None if memory is None else int(memory * (1 << 20)),
            _positive(config, CLOSE_TIMEOUT) or DEFAULT_CLOSE_SECONDS,
        )


def _positive(config: mc.ModelConfig, key: str) -> float | None:
    text = parameters.text(config, key)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf):
        raise invalid(f"model '{config.name}': parameter '{key}' must be a positive number, got '{text}'")
    return value

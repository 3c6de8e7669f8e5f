"""The `parameters` of a model configuration: strings that mean a number or a truth."""

from __future__ import annotations

from typing import Final

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import invalid

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


def text(config: mc.ModelConfig, key: str) -> str | None:
    """Return the value of a parameter, None when the configuration does not have it."""
    return config.parameters[key].string_value.strip() if key in config.parameters else None


def flag(config: mc.ModelConfig, key: str) -> bool | None:
    """Return a parameter that is true or false, None when it is not set. Raises ServingError(INVALID_ARGUMENT) for another text."""
    value = text(config, key)
    if value is None:
        return None
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise invalid(f"model '{config.name}': parameter '{key}' must be true or false, got '{value}'")


def count(config: mc.ModelConfig, key: str) -> int | None:
    """Return a parameter that is a whole number of 0 or more, None when it is not set. Raises ServingError(INVALID_ARGUMENT)."""
    value = text(config, key)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()):
        raise invalid(f"model '{config.name}': parameter '{key}' must be a whole number of 0 or more, got '{value}'")
    return int(value)

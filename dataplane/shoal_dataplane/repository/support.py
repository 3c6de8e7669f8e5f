"""What a configuration may ask for that this server does not do: refused, or accepted and named (triton.md B8)."""

from __future__ import annotations

import re

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import unimplemented
from shoal_dataplane.repository.normalize import config_fields_set

_NO_EFFECT = re.compile(
    r"""runtime | cc_model_filenames
      | (?:optimization|model_operations|model_repository_agents)\b.*
      | input\[\d+\]\.(?:format|is_shape_tensor|is_non_linear_format_io)
      | output\[\d+\]\.(?:is_shape_tensor|is_non_linear_format_io)
      | instance_group\[\d+\]\.(?:profile|secondary_devices\b.*|host_policy|rate_limiter\.priority)""",
    re.VERBOSE,
)
_NO_EFFECT_PARAMETERS = ("TRITON_BATCH_STRATEGY_PATH",)


def fields_without_effect(config: mc.ModelConfig) -> list[str]:
    """Paths of the fields that a configuration, as its user wrote it, sets and that mean nothing here."""
    paths = [path for path in config_fields_set(config) if _NO_EFFECT.fullmatch(path)]
    return paths + [f"parameters['{key}']" for key in _NO_EFFECT_PARAMETERS if key in config.parameters]


def refuse_unsupported(config: mc.ModelConfig) -> None:
    """Raise ServingError(UNIMPLEMENTED) that names a field which is understood but not supported yet: to load the model without it
    would serve something else than its author meant."""
    field = _unsupported(config)
    if field:
        raise unimplemented(f"the configuration of model '{config.name}' sets {field}, which is not supported yet")


def _unsupported(config: mc.ModelConfig) -> str:
    if config.platform == "ensemble" or config.HasField("ensemble_scheduling"):
        return "'ensemble_scheduling' (platform \"ensemble\")"
    if config.HasField("sequence_batching"):
        return "'sequence_batching'"
    if config.model_transaction_policy.decoupled:
        return "'model_transaction_policy.decoupled'"
    if config.response_cache.enable:
        return "'response_cache.enable'"
    for index, group in enumerate(config.instance_group):
        if group.rate_limiter.resources:
            return f"'instance_group[{index}].rate_limiter.resources'"
    return ""

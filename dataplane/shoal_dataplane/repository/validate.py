"""Check a completed and normalised configuration (triton.md B1, B2, B7; core: model_config_utils.cc, whose texts these are).

Every refusal is INVALID_ARGUMENT.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import invalid
from shoal_dataplane.repository.layout import inside

WILDCARD: Final = -1
MAX_INSTANCES: Final = 1024
"""Instances of one group and device; more is a slip of the pen that would take the machine down."""


def validate(config: mc.ModelConfig, gpus: int) -> None:
    """Check everything. Raises ServingError(INVALID_ARGUMENT) with the first thing that is wrong."""
    if config.max_batch_size < 0:
        raise invalid(f"'max_batch_size' must be non-negative value for {config.name}")
    if config.HasField("dynamic_batching"):
        _validate_dynamic_batching(config)
    _validate_metrics(config)
    _validate_tensors("input", config.input, config)
    _validate_tensors("output", config.output, config)
    _validate_batch_inputs(config)
    _validate_batch_outputs(config)
    _validate_warmup(config)
    _validate_instance_groups(config, gpus)


# -- scheduling


def _validate_dynamic_batching(config: mc.ModelConfig) -> None:
    batching = config.dynamic_batching
    for size in batching.preferred_batch_size:
        if size <= 0:
            raise invalid(f"dynamic batching preferred size must be positive for {config.name}")
        if size > config.max_batch_size:
            raise invalid(f"dynamic batching preferred size must be <= max batch size for {config.name}")
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            raise invalid(f"default priority level must be in range [1, {levels}] for {config.name}")
        if any(not 1 <= level <= levels for level in batching.priority_queue_policy):
            raise invalid(f"priority queue policy must have priority level in range [1, {levels}] for {config.name}")
    if batching.preserve_ordering:
        if levels > 1:
            raise invalid(f"Only one priority level is allowed when 'preserve_ordering' is true for {config.name}")
        policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
        if any(p.default_timeout_microseconds and p.timeout_action == mc.ModelQueuePolicy.DELAY for p in policies):
            raise invalid(
                f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {config.name}"
            )


def _validate_metrics(config: mc.ModelConfig) -> None:
    for control in config.model_metrics.metric_control:
        if not control.HasField("metric_identifier"):
            raise invalid("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            raise invalid("metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            raise invalid("metric control must specify 'histogram_options'")
        buckets = control.histogram_options.buckets
        if not buckets:
            raise invalid("histogram options must specify non-empty 'buckets'")
        if any(not low < high for low, high in itertools.pairwise(buckets)) or math.isnan(buckets[0]):
            raise invalid(f"histogram options must specify 'buckets' in rising order for {config.name}")


# -- tensors


def _validate_tensors(
    kind: str, tensors: Sequence[mc.ModelInput] | Sequence[mc.ModelOutput], config: mc.ModelConfig
) -> None:
    for tensor in tensors:
        _validate_shape(f"model {kind} ", tensor, config)
    names = Counter(tensor.name for tensor in tensors)
    for name, count in names.items():
        if count > 1:
            raise invalid(f"model {kind} '{name}' is specified {count} times for {config.name}")


def _validate_shape(prefix: str, tensor: mc.ModelInput | mc.ModelOutput, config: mc.ModelConfig) -> None:
    suffix = f" for {config.name}"
    if not tensor.name:
        raise invalid(f"{prefix}must specify 'name'{suffix}")
    prefix = f"{prefix}'{tensor.name}' "
    if tensor.data_type == mc.TYPE_INVALID:
        raise invalid(f"{prefix}must specify 'data_type'{suffix}")
    if not tensor.dims:
        raise invalid(f"{prefix}must specify 'dims'{suffix}")
    wildcard = f"must be integer >= 1, or {WILDCARD} to indicate a variable-size dimension"
    if not _are_dims(tensor.dims):
        raise invalid(f"{prefix}dimension {wildcard}{suffix}")
    if not tensor.HasField("reshape"):
        return
    shape = tensor.reshape.shape
    if not shape and config.max_batch_size == 0:
        raise invalid(
            f"{prefix}cannot have empty reshape for non-batching model as scalar tensors are not supported{suffix}"
        )
    if not _are_dims(shape):
        raise invalid(f"{prefix}reshape dimensions {wildcard}{suffix}")
    dims_parts, shape_parts = _fixed_parts(tensor.dims), _fixed_parts(shape)
    if len(dims_parts) != len(shape_parts) and WILDCARD in tensor.dims and WILDCARD in shape:
        raise invalid(f"{prefix}has different number of variable-size dimensions for dims and reshape{suffix}")
    if dims_parts != shape_parts:
        raise invalid(f"{prefix}has different size for dims and reshape{suffix}")


def _are_dims(dims: Iterable[int]) -> bool:
    return all(size >= 1 or size == WILDCARD for size in dims)


def _fixed_parts(dims: Iterable[int]) -> list[int]:
    """Element counts of the runs between variable-size dimensions: [2, 4, -1, 6] is [8, 6], and so is [8, -1, 1, 6]."""
    parts = [1]
    for size in dims:
        if size == WILDCARD:
            parts.append(1)
        else:
            parts[-1] *= size
    return parts


# -- tensors made of a batch


def _validate_batch_inputs(config: mc.ModelConfig) -> None:
    suffix = f" for {config.name}"
    inputs = {tensor.name for tensor in config.input}
    for made in config.batch_input:
        kind = mc.BatchInput.Kind.Name(made.kind)
        if len(made.source_input) != 1:
            raise invalid(f"batch input kind '{kind}' expects 1 source input, got {len(made.source_input)}{suffix}")
        if made.data_type not in (mc.TYPE_INT32, mc.TYPE_FP32):
            raise invalid(f"batch input data type must be TYPE_INT32 or TYPE_FP32{suffix}")
        if not made.target_name:
            raise invalid(f"batch input kind '{kind}' must specify 'target_name'{suffix}")
        _known_source(made.source_input, inputs, suffix)


def _validate_batch_outputs(config: mc.ModelConfig) -> None:
    suffix = f" for {config.name}"
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for made in config.batch_output:
        if len(made.source_input) != 1:
            kind = mc.BatchOutput.Kind.Name(made.kind)
            raise invalid(f"batch output kind '{kind}' expects 1 source input, got {len(made.source_input)}{suffix}")
        _known_source(made.source_input, inputs, suffix)
        seen: set[str] = set()
        for name in made.target_name:
            if name not in outputs:
                raise invalid(f"unknown target output name '{name}'{suffix}")
            if name in seen:
                raise invalid(f"target output name '{name}' can only be specified once{suffix}")
            seen.add(name)


def _known_source(names: Iterable[str], inputs: set[str], suffix: str) -> None:
    for name in names:
        if name not in inputs:
            raise invalid(f"unknown source input name '{name}'{suffix}")


def _validate_warmup(config: mc.ModelConfig) -> None:
    """Check the samples that will run (a batch_size of 0 skips one, triton.md B11); core: GenerateWarmupData."""
    for sample in config.model_warmup:
        if sample.batch_size == 0:
            continue
        where = f"of sample '{sample.name}' for {config.name}"
        for name, tensor in sample.inputs.items():
            if any(size < 0 for size in tensor.dims):
                raise invalid(
                    f"warmup setting expects all variable-size dimensions are specified for input '{name}' {where}"
                )
            if tensor.data_type == mc.TYPE_INVALID:
                raise invalid(f"warmup setting expects input '{name}' to have data_type set {where}")
            source = tensor.WhichOneof("input_data_type")
            if source is None:
                raise invalid(f"warmup setting expects input '{name}' to have input_data_type set {where}")
            if source == "input_data_file" and not inside(tensor.input_data_file):
                raise invalid(
                    f"warmup setting expects a path inside the 'warmup' folder for input '{name}' {where}, "
                    f"got '{tensor.input_data_file}'"
                )


# -- instances


def _validate_instance_groups(config: mc.ModelConfig, gpus: int) -> None:
    for group in config.instance_group:
        which = f"instance group {group.name} of model {config.name}"
        if group.kind == mc.ModelInstanceGroup.KIND_GPU:
            if not gpus:
                raise invalid(f"{which} has kind KIND_GPU but no GPUs are available")
            for gpu in group.gpus:
                if not 0 <= gpu < gpus:
                    there = ", ".join(str(number) for number in range(gpus))
                    raise invalid(f"{which} specifies invalid or unsupported gpu id {gpu}. GPUs are: {there}")
        elif group.gpus:
            kind = mc.ModelInstanceGroup.Kind.Name(group.kind)
            raise invalid(f"{which} has kind {kind} but specifies one or more GPUs")
        if group.count > MAX_INSTANCES:
            raise invalid(f"{which} asks for {group.count} instances, at most {MAX_INSTANCES} are allowed")
    if all(group.passive for group in config.instance_group):
        raise invalid(f"every instance group of model {config.name} is passive, so that nothing could run it")

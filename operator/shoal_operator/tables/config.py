"""spec.config in the words of Triton's model configuration, which the data plane reads."""

from __future__ import annotations

from typing import Final

from shoal_api.kinds.inference_model import (
    Backend,
    Config,
    DeviceKind,
    DynamicBatching,
    InferenceModelSpec,
    InstanceGroup,
    QueuePolicy,
    TensorType,
    TimeoutAction,
    VersionPolicy,
    Warmup,
)
from shoal_api.protocol import model_config_pb2 as mc

BACKENDS: Final = {Backend.PYTORCH: "pytorch", Backend.ONNX: "onnxruntime", Backend.PYTHON: "python"}
"""Triton's names, as they stand in config.pbtxt."""
DATA_TYPES: Final = {
    TensorType.BOOL: mc.TYPE_BOOL,
    TensorType.UINT8: mc.TYPE_UINT8,
    TensorType.UINT16: mc.TYPE_UINT16,
    TensorType.UINT32: mc.TYPE_UINT32,
    TensorType.UINT64: mc.TYPE_UINT64,
    TensorType.INT8: mc.TYPE_INT8,
    TensorType.INT16: mc.TYPE_INT16,
    TensorType.INT32: mc.TYPE_INT32,
    TensorType.INT64: mc.TYPE_INT64,
    TensorType.FP16: mc.TYPE_FP16,
    TensorType.BF16: mc.TYPE_BF16,
    TensorType.FP32: mc.TYPE_FP32,
    TensorType.FP64: mc.TYPE_FP64,
    TensorType.BYTES: mc.TYPE_STRING,
}
"""The configuration's names of element types, by the kinds'."""


def overlay(spec: InferenceModelSpec) -> mc.ModelConfig:
    """Return what the manifest says of the configuration; what it leaves open is left open."""
    config = mc.ModelConfig()
    if spec.backend is not None:
        config.backend = BACKENDS[spec.backend]
    if spec.version_policy is not None:
        config.version_policy.CopyFrom(_version_policy(spec.version_policy))
    if spec.config is not None:
        _fill(config, spec.config)
    return config


def _fill(config: mc.ModelConfig, source: Config) -> None:
    if source.max_batch_size is not None:
        config.max_batch_size = source.max_batch_size
    for tensor in source.inputs:
        config.input.add(name=tensor.name, data_type=DATA_TYPES[tensor.data_type], dims=tensor.dims)
    for tensor in source.outputs:
        config.output.add(name=tensor.name, data_type=DATA_TYPES[tensor.data_type], dims=tensor.dims)
    if source.dynamic_batching is not None:
        config.dynamic_batching.CopyFrom(_dynamic_batching(source.dynamic_batching))
    config.instance_group.extend(_instance_group(group) for group in source.instance_groups)
    config.model_warmup.extend(_warmup(warmup) for warmup in source.warmup)
    for key, value in source.parameters.items():
        config.parameters[key].string_value = value


def _dynamic_batching(source: DynamicBatching) -> mc.ModelDynamicBatching:
    batching = mc.ModelDynamicBatching(
        preferred_batch_size=source.preferred_batch_sizes,
        max_queue_delay_microseconds=source.max_queue_delay_microseconds,
        preserve_ordering=source.preserve_ordering,
        priority_levels=source.priority_levels,
        default_priority_level=source.default_priority,
    )
    if source.queue_policy is not None:
        batching.default_queue_policy.CopyFrom(_queue_policy(source.queue_policy))
    return batching


def _queue_policy(source: QueuePolicy) -> mc.ModelQueuePolicy:
    delay = source.timeout_action is TimeoutAction.DELAY
    return mc.ModelQueuePolicy(
        timeout_action=mc.ModelQueuePolicy.DELAY if delay else mc.ModelQueuePolicy.REJECT,
        default_timeout_microseconds=source.default_timeout_microseconds,
        allow_timeout_override=source.allow_timeout_override,
        max_queue_size=source.max_queue_size,
    )


def _instance_group(source: InstanceGroup) -> mc.ModelInstanceGroup:
    gpu = source.kind is DeviceKind.GPU
    kind = mc.ModelInstanceGroup.KIND_GPU if gpu else mc.ModelInstanceGroup.KIND_CPU
    return mc.ModelInstanceGroup(kind=kind, count=source.count, gpus=source.gpus)


def _warmup(source: Warmup) -> mc.ModelWarmup:
    warmup = mc.ModelWarmup(name=source.name, batch_size=source.batch_size, count=source.count)
    for name, content in source.inputs.items():
        target = warmup.inputs[name]
        target.data_type = DATA_TYPES[content.data_type]
        target.dims.extend(content.dims)
        if content.input_data_file is not None:
            target.input_data_file = content.input_data_file
        elif content.random_data:
            target.random_data = True
        else:
            target.zero_data = True
    return warmup


def _version_policy(source: VersionPolicy) -> mc.ModelVersionPolicy:
    policy = mc.ModelVersionPolicy()
    if source.latest is not None:
        policy.latest.num_versions = source.latest.num
    elif source.specific is not None:
        policy.specific.versions.extend(source.specific.versions)
    else:
        policy.all.SetInParent()
    return policy

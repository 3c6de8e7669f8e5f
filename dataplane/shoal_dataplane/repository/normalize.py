"""Lay configurations over each other, and fill in what one leaves open (triton.md B6)."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import Message

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.repository.schema import descriptor_of, is_map, message_type

SEQUENCE_IDLE_DEFAULT_MICROSECONDS: Final = 1_000_000


def lay_over(config: mc.ModelConfig, overlay: mc.ModelConfig) -> None:
    """Lay `overlay` over `config` field by field, in place.

    A message is laid over the message below it, a map entry by its key; lists and scalars replace what was there. A scalar at its
    default (0, "", false) cannot be told from an absent one and replaces nothing.
    """
    _lay_over(config, overlay)


def _lay_over(below: Message, above: Message) -> None:
    for field, value in above.ListFields():
        if is_map(field):
            target: Any = getattr(below, field.name)
            if message_type(field).fields_by_name["value"].message_type is None:
                target.update(value)
            else:
                for key, element in value.items():
                    target[key].CopyFrom(element)
        elif field.is_repeated:
            below.ClearField(field.name)
            getattr(below, field.name).extend(value)
        elif field.message_type is not None:
            getattr(below, field.name).SetInParent()  # an empty message says something too: dynamic_batching { }
            _lay_over(getattr(below, field.name), value)
        else:
            setattr(below, field.name, value)


def normalize(config: mc.ModelConfig, gpus: int) -> None:
    """Fill the defaults of a completed configuration in place, as Triton does (core: NormalizeModelConfig, NormalizeInstanceGroup).

    `gpus` is how many GPUs there are. KIND_AUTO becomes KIND_GPU where all GPUs that it lists (or any, when it lists none) are there,
    else KIND_CPU; KIND_GPU without a list gets all.
    """
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        if not batching.preferred_batch_size and config.max_batch_size > 0:
            batching.preferred_batch_size.append(config.max_batch_size)
    optimization = config.optimization
    if not optimization.HasField("input_pinned_memory"):
        optimization.input_pinned_memory.enable = True
    if not optimization.HasField("output_pinned_memory"):
        optimization.output_pinned_memory.enable = True
    _normalize_instance_groups(config, gpus)


def _normalize_instance_groups(config: mc.ModelConfig, gpus: int) -> None:
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        if not group.name:
            group.name = f"{config.name}_{index}"
        if group.kind == mc.ModelInstanceGroup.KIND_AUTO:
            if gpus and all(0 <= gpu < gpus for gpu in group.gpus):
                group.kind = mc.ModelInstanceGroup.KIND_GPU
            else:
                group.kind = mc.ModelInstanceGroup.KIND_CPU
                del group.gpus[:]
        if group.count < 1:
            group.count = 1
        if group.kind == mc.ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(range(gpus))


def config_fields_set(message: Message, prefix: str = "") -> list[str]:
    """The paths of the fields that a message sets, down to scalars and lists of scalars: "optimization.cuda.graphs"."""
    paths: list[str] = []
    for field in descriptor_of(message).fields:
        path = prefix + field.name
        value = getattr(message, field.name)
        if field.message_type is None or is_map(field):
            if value if field.is_repeated or not field.has_presence else message.HasField(field.name):
                paths.append(path)
        elif field.is_repeated:
            for index, element in enumerate(value):
                paths += config_fields_set(element, f"{path}[{index}].") or [f"{path}[{index}]"]
        elif message.HasField(field.name):
            paths += config_fields_set(value, f"{path}.") or [path]
    return paths

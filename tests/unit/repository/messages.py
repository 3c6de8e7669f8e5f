"""Arbitrary ModelConfig messages for property tests."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.repository.schema import descriptor_of, enum_values, is_map, message_type

_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: _TEXT,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, (1 << 64) - 1),
    FieldDescriptor.TYPE_FLOAT: st.floats(allow_nan=False, width=32),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
}


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from(sorted(enum_values(field).values()))
    return _SCALARS[field.type]


@st.composite
def _fill(draw: st.DrawFn, message: Message, descriptor: Descriptor) -> None:
    fields = [field for field in descriptor.fields if draw(st.integers(0, 3)) == 0]
    oneofs: set[str] = set()
    for field in fields:
        if field.containing_oneof is not None:
            if field.containing_oneof.name in oneofs:
                continue
            oneofs.add(field.containing_oneof.name)
        holder: Any = getattr(message, field.name)
        if is_map(field):
            entry = message_type(field)
            key = draw(_scalar(entry.fields_by_name["key"]))
            value = entry.fields_by_name["value"]
            if value.message_type is None:
                holder[key] = draw(_scalar(value))
            else:
                draw(_fill(holder[key], value.message_type))
        elif field.message_type is not None:
            if not field.is_repeated:
                holder.SetInParent()
                draw(_fill(holder, field.message_type))
            else:
                for _ in range(draw(st.integers(1, 2))):
                    draw(_fill(holder.add(), field.message_type))
        elif field.is_repeated:
            holder.extend(draw(st.lists(_scalar(field), max_size=3)))
        else:
            setattr(message, field.name, draw(_scalar(field)))


@st.composite
def configs(draw: st.DrawFn) -> mc.ModelConfig:
    """Any ModelConfig."""
    config = mc.ModelConfig()
    draw(_fill(config, descriptor_of(config)))
    return config

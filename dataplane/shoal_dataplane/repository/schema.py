"""What the readers of a configuration ask of ModelConfig's schema, and how they name what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message


def near(name: str, candidates: Iterable[str]) -> str:
    """Return "; did you mean 'a' or 'b'?" for the candidates that look like `name`, "" when none does."""
    matches = difflib.get_close_matches(name, list(candidates), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(match) for match in matches)}?" if matches else ""


def descriptor_of(message: Message) -> Descriptor:
    """The type of a message."""
    return cast(Descriptor, message.DESCRIPTOR)  # the stubs know protobuf's C classes under another name


def enum_type(field: FieldDescriptor) -> EnumDescriptor:
    """The type of an enum field."""
    assert field.enum_type is not None
    return field.enum_type


def enum_values(field: FieldDescriptor) -> dict[str, int]:
    """The names and numbers of an enum field's values."""
    return {value.name: value.number for value in enum_type(field).values}


def message_type(field: FieldDescriptor) -> Descriptor:
    """The type of a message field."""
    assert field.message_type is not None
    return field.message_type


def is_map(field: FieldDescriptor) -> bool:
    """Is it a map<key, value> field?"""
    return field.message_type is not None and field.message_type.GetOptions().map_entry

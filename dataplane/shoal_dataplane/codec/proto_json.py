"""Protocol messages as JSON, in the form in which Triton's HTTP server shows them (model configuration, statistics, metadata).

It differs from protobuf's own JSON in two ways: 64-bit integers are numbers, and fields keep their names.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message


def to_json(message: Message, *, unset_messages: bool = False) -> dict[str, Any]:
    """Return a message as plain values for a JSON encoder.

    Fields come in the order of the .proto file. A field without presence is always there, with its default if need be; one with presence
    (a message, a member of a oneof) is there when it is set. `unset_messages` also shows unset messages, as empty ones: for
    messages that do not contain themselves.
    """
    shown: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            shown[field.name] = {str(key): _plain(inner, value[key], unset_messages) for key in sorted(value)}
        elif field.is_repeated:
            shown[field.name] = [_plain(field, item, unset_messages) for item in value]
        elif (
            not field.has_presence
            or message.HasField(field.name)
            or (unset_messages and field.message_type is not None and field.containing_oneof is None)
        ):
            shown[field.name] = _plain(field, value, unset_messages)
    return shown


def _plain(field: Any, value: Any, unset_messages: bool) -> Any:
    if field.message_type is not None:
        return to_json(value, unset_messages=unset_messages)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return value

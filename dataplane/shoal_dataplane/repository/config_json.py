"""A ModelConfig as JSON: what the `config` endpoint answers and what the load parameter `config` brings."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from shoal_api.protocol import POOL
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import invalid
from shoal_dataplane.repository.schema import descriptor_of, enum_type, is_map, message_type, near

Json = dict[str, Any]


def config_to_json(config: mc.ModelConfig) -> Json:
    """Return a configuration as Triton shows it (core: ModelConfigToJson, config version 1).

    Keys are the proto's names in its order. Scalars, lists and maps are always there, unset messages and unset members of a oneof
    are not. Enums are names, and 64-bit integers are numbers, not protobuf's strings. Map keys are strings, as JSON wants.
    """
    return _message_to_json(config)


def _message_to_json(message: Message) -> Json:
    result: Json = {}
    for field in descriptor_of(message).fields:
        value = getattr(message, field.name)
        if is_map(field):
            kind = message_type(field).fields_by_name["value"]
            result[field.name] = {str(key): _value_to_json(kind, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            result[field.name] = [_value_to_json(field, element) for element in value]
        elif not field.has_presence or message.HasField(field.name):
            result[field.name] = _value_to_json(field, value)
    return result


def _value_to_json(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _message_to_json(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = enum_type(field).values_by_number.get(value)
        return known.name if known is not None else value
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        if field.type == FieldDescriptor.TYPE_FLOAT:
            return float(str(np.float32(value)))  # 0.1, not 0.10000000149011612
    return value


def parse_config_json(text: str) -> mc.ModelConfig:
    """Parse proto JSON as Triton does: snake_case or camelCase keys, enums by name in any case, 64-bit integers as numbers or strings.

    Raises ServingError(INVALID_ARGUMENT) that names the key and what is wrong with it.
    """
    try:
        document = json.loads(text, object_pairs_hook=_unique)
        if not isinstance(document, dict):
            raise ValueError(f"expected a JSON object, found {type(document).__name__}")
        config = mc.ModelConfig()
        json_format.ParseDict(_checked(descriptor_of(config), document), config, descriptor_pool=POOL)
    except RecursionError:
        raise invalid("Invalid config override: the JSON is nested too deeply") from None
    except (ValueError, json_format.ParseError) as error:
        raise invalid(f"Invalid config override: {error}") from None
    return config


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    found: Json = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key '{key}' is given twice")
        found[key] = value
    return found


def _checked(descriptor: Descriptor, document: Any) -> Any:
    """Return the document with the names of enum values in upper case, as they are declared. Raises ValueError for an unknown key."""
    if not isinstance(document, dict):
        return document
    fields = {**descriptor.fields_by_camelcase_name, **descriptor.fields_by_name}
    result: Json = {}
    for key, value in document.items():
        field = fields.get(key)
        if field is None:
            raise ValueError(f"{descriptor.name} has no field '{key}'{near(key, descriptor.fields_by_name)}")
        if is_map(field) and isinstance(value, dict):
            kind = message_type(field).fields_by_name["value"]
            result[key] = {name: _checked_value(kind, element) for name, element in value.items()}
        elif isinstance(value, list):
            result[key] = [_checked_value(field, element) for element in value]
        else:
            result[key] = _checked_value(field, value)
    return result


def _checked_value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _checked(field.message_type, value)
    if field.enum_type is not None and isinstance(value, str | int) and not isinstance(value, bool):
        return _enum_name(field, value)
    return value


def _enum_name(field: FieldDescriptor, value: str | int) -> str:
    kind = enum_type(field)
    name = value.upper() if isinstance(value, str) else getattr(kind.values_by_number.get(value), "name", "")
    if name not in kind.values_by_name:
        hint = near(name, kind.values_by_name) or f"; expected one of {', '.join(kind.values_by_name)}"
        raise ValueError(f"field '{field.name}': {value!r} is not a value of {kind.name}{hint}")
    return name

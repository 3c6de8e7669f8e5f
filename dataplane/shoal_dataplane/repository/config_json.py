"""A ModelConfig as JSON, which the load parameter `config` brings. (codec.proto_json is the way out.)"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from shoal_api.protocol import POOL
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import invalid
from shoal_dataplane.repository.schema import descriptor_of, enum_type, is_map, message_type, near

Json = dict[str, Any]


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

"""The wire messages of Shoal's gRPC services, in a descriptor pool of their own.

tritonclient and kserve register a file with the same message names in protobuf's default pool; a second registration
there would raise at import. `inference_pb2` and `model_config_pb2` look and are typed like protoc's modules, but their
messages live in `POOL`.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

INFERENCE_SERVICE = "inference.GRPCInferenceService"

POOL = descriptor_pool.DescriptorPool()


def _load() -> None:
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(
        files(__name__).joinpath("descriptors.binpb").read_bytes()
    )
    for file in descriptors.file:
        POOL.Add(file)


_load()


def module_namespace(proto_file: str) -> dict[str, Any]:
    """Return what protoc's module for `proto_file` would define: messages, enum wrappers and enum values by name."""
    file = POOL.FindFileByName(proto_file)
    names: dict[str, Any] = {"DESCRIPTOR": file}
    for name, message in file.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in file.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        names.update({value.name: value.number for value in enum.values})
    return names

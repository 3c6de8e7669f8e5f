"""The methods of GRPCInferenceService that are not inference: each a function from its request to its response.

They know nothing of how they are served (grpc.server's threads, or grpc.aio); errors are raised as ServingError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from shoal_api.protocol import inference_pb2 as pb
from shoal_dataplane.core.errors import invalid, unimplemented
from shoal_dataplane.repository.types import RepositoryParameter
from shoal_dataplane.service import InferenceService


class Method(NamedTuple):
    """One unary method. `slow` ones may take as long as a model takes to load."""

    request: type[Message]
    call: Callable[[Any], Message]
    slow: bool = False

    def answer(self, message: bytes) -> bytes:
        """The response's bytes to a request's. Raises ServingError, INVALID_ARGUMENT for bytes that are no such request."""
        try:
            request = self.request.FromString(message)
        except DecodeError as error:
            raise invalid(f"the message is not a valid {self.request.DESCRIPTOR.name}: {error}") from None
        return self.call(request).SerializeToString()


def methods(service: InferenceService) -> dict[str, Method]:
    """Return the unary methods other than ModelInfer, by name."""

    def server_live(_: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=service.live())

    def server_ready(_: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=service.ready().ready)

    def model_ready(request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(ready=service.model_ready(request.name, request.version).ready)

    def server_metadata(_: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return service.server_metadata()

    def model_metadata(request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        return service.model_metadata(request.name, request.version)

    def model_config(request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        return pb.ModelConfigResponse(config=service.model_config(request.name, request.version))

    def model_statistics(request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        return service.model_statistics(request.name, request.version)

    def repository_index(request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        rows = service.repository_index(request.repository_name, request.ready)
        index = pb.RepositoryIndexResponse()
        for row in rows:
            index.models.add(name=row.name, version=row.version, state=row.state, reason=row.reason)
        return index

    def load(request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        service.load_model(request.repository_name, request.model_name, _parameters("load", request.parameters))
        return pb.RepositoryModelLoadResponse()

    def unload(request: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        dependents = False
        for name, value in _parameters("unload", request.parameters).items():
            if name != "unload_dependents":
                raise invalid(f"unrecognized unload parameter '{name}', expecting 'unload_dependents'")
            if not isinstance(value, bool):
                raise invalid(f"invalid value type for 'unload_dependents' parameter, expected bool, got {value!r}")
            dependents = value
        service.unload_model(request.repository_name, request.model_name, dependents)
        return pb.RepositoryModelUnloadResponse()

    def absent(feature: str) -> Callable[[Any], Message]:
        def refuse(_: Any) -> Message:
            raise unimplemented(f"{feature} is not supported by this server")

        return refuse

    table = {
        "ServerLive": Method(pb.ServerLiveRequest, server_live),
        "ServerReady": Method(pb.ServerReadyRequest, server_ready),
        "ModelReady": Method(pb.ModelReadyRequest, model_ready),
        "ServerMetadata": Method(pb.ServerMetadataRequest, server_metadata),
        "ModelMetadata": Method(pb.ModelMetadataRequest, model_metadata),
        "ModelConfig": Method(pb.ModelConfigRequest, model_config),
        "ModelStatistics": Method(pb.ModelStatisticsRequest, model_statistics),
        "RepositoryIndex": Method(pb.RepositoryIndexRequest, repository_index),
        "RepositoryModelLoad": Method(pb.RepositoryModelLoadRequest, load, slow=True),
        "RepositoryModelUnload": Method(pb.RepositoryModelUnloadRequest, unload, slow=True),
    }
    for kind in ("System", "Cuda"):
        for verb in ("Status", "Register", "Unregister"):
            name = f"{kind}SharedMemory{verb}"
            table[name] = Method(getattr(pb, f"{name}Request"), absent(f"the {kind.lower()} shared memory extension"))
    table["TraceSetting"] = Method(pb.TraceSettingRequest, absent("the trace extension"))
    table["LogSettings"] = Method(pb.LogSettingsRequest, absent("the logging extension"))
    return table


def _parameters(verb: str, parameters: Mapping[str, pb.ModelRepositoryParameter]) -> dict[str, RepositoryParameter]:
    values: dict[str, RepositoryParameter] = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise invalid(f"{verb} parameter '{name}' has no value")
        values[name] = getattr(parameter, kind)
    return values

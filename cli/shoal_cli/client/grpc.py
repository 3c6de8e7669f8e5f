"""The same calls over gRPC, with the project's own messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from shoal_api.protocol import INFERENCE_SERVICE
from shoal_api.protocol import inference_pb2 as pb
from shoal_cli.client.http import ClientError
from shoal_cli.client.tensors import ClientTensor

M = TypeVar("M", bound=Message)

_UNBOUNDED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class GrpcClient:
    """One channel, without TLS. `url` is HOST:PORT."""

    def __init__(self, url: str, timeout: float) -> None:
        self._url = url.removeprefix("grpc://")
        if "://" in self._url:
            raise ClientError(f"'{url}' is no gRPC address: expected HOST:PORT")
        self._channel = grpc.insecure_channel(self._url, options=_UNBOUNDED)
        self._timeout = timeout

    def close(self) -> None:
        self._channel.close()

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """The model's versions, inputs and outputs, in the words of the HTTP protocol."""
        answer = self._call(
            "ModelMetadata", pb.ModelMetadataRequest(name=model, version=version), pb.ModelMetadataResponse
        )
        tensors = {
            side: [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in found]
            for side, found in (("inputs", answer.inputs), ("outputs", answer.outputs))
        }
        return {"name": answer.name, "versions": list(answer.versions), "platform": answer.platform, **tensors}

    def infer(
        self,
        model: str,
        inputs: Sequence[ClientTensor],
        outputs: Sequence[str] = (),
        classify: int = 0,
        version: str = "",
    ) -> tuple[dict[str, Any], list[ClientTensor]]:
        """Ask a model. Returns the response's header and its outputs."""
        request = pb.ModelInferRequest(model_name=model, model_version=version)
        for tensor in inputs:
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            request.raw_input_contents.append(tensor.data)
        for name in outputs:
            wanted = request.outputs.add(name=name)
            if classify:
                wanted.parameters["classification"].int64_param = classify
        answer = self._call("ModelInfer", request, pb.ModelInferResponse)
        tensors = [
            ClientTensor(output.name, output.datatype, tuple(output.shape), data)
            for output, data in zip(answer.outputs, answer.raw_output_contents, strict=True)
        ]
        return {"model_name": answer.model_name, "model_version": answer.model_version}, tensors

    def _call(self, method: str, request: Message, response: type[M]) -> M:
        call: Callable[..., M] = self._channel.unary_unary(
            f"/{INFERENCE_SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        try:
            return call(request, timeout=self._timeout)
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.UNAVAILABLE and not str(error.details()).strip():
                raise ClientError(f"no answer from {self._url}") from error
            raise ClientError(f"{error.details()} ({code.name})") from error

"""A data plane behind the HTTP door: real core loop, real routing and request checks, and models that are Python functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from shoal_api.protocol import inference_pb2 as pb
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import ServingError, cancelled, internal, invalid, unavailable, unimplemented
from shoal_dataplane.core.loop import ThreadedLoop
from shoal_dataplane.core.model_spec import ModelSpec, TensorSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse, failure
from shoal_dataplane.core.tensors import Tensor
from shoal_dataplane.repository.types import IndexEntry, RepositoryParameter
from shoal_dataplane.routing.normalize import normalize
from shoal_dataplane.routing.table import RoutingTable, parse_version
from shoal_dataplane.service import Readiness

Answer = Callable[[InferRequest], Iterable[InferResponse]]


def tensor_spec(name: str, datatype: str, *dims: int, **more: Any) -> TensorSpec:
    return TensorSpec(name, BY_WIRE[datatype], dims, **more)


def model_spec(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], max_batch_size: int = 0) -> ModelSpec:
    return ModelSpec(name, 1, max_batch_size, {t.name: t for t in inputs}, {t.name: t for t in outputs})


def echo(request: InferRequest) -> Iterable[InferResponse]:
    """OUT<suffix> is IN<suffix>."""
    names = request.outputs
    outputs = [Tensor("OUT" + t.name[2:], t.datatype, t.shape, t.data) for t in request.inputs.values()]
    yield InferResponse([t for t in outputs if names is None or t.name in names])


class FakeTarget:
    """A loaded version. Without an `answer` its requests wait for `FakeService.release` or a cancellation."""

    version = 1

    def __init__(self, service: FakeService, spec: ModelSpec, answer: Answer | None) -> None:
        self.service = service
        self.spec = spec
        self.name = spec.name
        self.answer = answer

    def enqueue(self, request: InferRequest) -> None:
        if self.answer is None:
            self.service.held.append(request)
            self.service.arrived.release()
            return
        for response in self.answer(request):
            request.handle.respond(request, response)

    def cancel(self, request: InferRequest) -> None:
        raise AssertionError("the service cancels")


class FakeService:
    """The InferenceService of these tests."""

    def __init__(self) -> None:
        self.loop = ThreadedLoop()
        self.table = RoutingTable()
        self.held: list[InferRequest] = []
        self.submitted: list[InferRequest] = []
        self.cancelled: list[InferRequest] = []
        self.refusals: list[ServingError] = []
        self.loads: list[tuple[str, str, dict[str, RepositoryParameter]]] = []
        self.unloads: list[tuple[str, str, bool]] = []
        self.arrived = threading.Semaphore(0)
        """Released once for each request that is held."""
        self.gone = threading.Semaphore(0)
        """Released once for each cancelled request."""
        self.load_gate = threading.Event()
        self.load_gate.set()
        self.loading = threading.Semaphore(0)
        self.state = {"started": Readiness(True), "ready": Readiness(True)}
        self.is_live = True
        self.metrics_thread = ""

    def add(self, spec: ModelSpec, answer: Answer | None = echo) -> None:
        self.table.publish(spec.name, {1: FakeTarget(self, spec, answer)})

    def set_answer(self, name: str, answer: Answer) -> None:
        """Give a model another answer."""
        self.add(self.spec(name, ""), answer)

    def release(self) -> None:
        """Answer all held requests."""

        def run() -> None:
            held, self.held = self.held, []
            for request in held:
                for response in echo(request):
                    request.handle.respond(request, response)

        self.loop.post(run)

    def submit(self, request: InferRequest) -> None:
        self.submitted.append(request)
        try:
            target = self.table.resolve(request.model_name, request.model_version)
            normalize(request, target.spec)
            request.target = target
            target.enqueue(request)
        except ServingError as error:
            request.handle.respond(request, failure(error))
        except Exception as error:
            request.handle.respond(request, failure(internal(str(error))))

    def cancel(self, request: InferRequest) -> None:
        request.cancelled = True
        self.cancelled.append(request)
        if request in self.held:
            self.held.remove(request)
            request.handle.respond(request, failure(cancelled()))
        self.gone.release()

    def started(self) -> Readiness:
        return self.state["started"]

    def live(self) -> bool:
        return self.is_live

    def ready(self) -> Readiness:
        return self.state["ready"]

    def model_ready(self, name: str, version: str) -> Readiness:
        parse_version(name, version)
        try:
            self.table.resolve(name, version)
        except ServingError as error:
            return Readiness(False, error.message)
        return Readiness(True)

    def spec(self, name: str, version: str) -> ModelSpec:
        return self.table.resolve(name, version).spec

    def server_metadata(self) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="triton", version="2.51.0", extensions=["classification", "sequence"])

    def model_metadata(self, name: str, version: str) -> pb.ModelMetadataResponse:
        spec = self.spec(name, version)
        batch = [-1] if spec.max_batch_size else []
        response = pb.ModelMetadataResponse(name=name, versions=["1"], platform="python")
        for source, target in ((spec.inputs, response.inputs), (spec.outputs, response.outputs)):
            for tensor in source.values():
                target.add(name=tensor.name, datatype=tensor.datatype.wire, shape=batch + list(tensor.dims))
        return response

    def model_config(self, name: str, version: str) -> mc.ModelConfig:
        spec = self.spec(name, version)
        config = mc.ModelConfig(name=name, backend="python", max_batch_size=spec.max_batch_size)
        for tensor in spec.inputs.values():
            config.input.add(name=tensor.name, data_type=tensor.datatype.config, dims=tensor.dims)
        return config

    def model_statistics(self, name: str, version: str) -> pb.ModelStatisticsResponse:
        names = [name] if name else sorted(self.table.models())
        response = pb.ModelStatisticsResponse()
        for each in names:
            if each not in self.table.models():
                raise invalid(f"requested model '{each}' is not available")
            response.model_stats.add(name=each, version="1", inference_count=2**40)
        return response

    def model_states(self) -> list[IndexEntry]:
        return [IndexEntry(name, "1", "READY", "") for name in self.table.models()]

    def repository_index(self, repository: str, ready_only: bool) -> list[IndexEntry]:
        if repository:
            raise unimplemented("'repository_name' specification is not supported")
        entries = [IndexEntry("never", "", "", ""), IndexEntry("ident", "1", "READY", "")]
        return [entry for entry in entries if entry.state == "READY" or not ready_only]

    def load_model(self, repository: str, name: str, parameters: Mapping[str, RepositoryParameter]) -> None:
        self.loading.release()
        self.load_gate.wait(30)
        if name == "broken":
            raise invalid("load failed for model 'broken': version 1 is at UNAVAILABLE state")
        self.loads.append((repository, name, dict(parameters)))

    def unload_model(self, repository: str, name: str, unload_dependents: bool) -> None:
        if name == "locked":
            raise unavailable("explicit model load / unload is not allowed if polling is enabled")
        self.unloads.append((repository, name, unload_dependents))

    def metrics_text(self, openmetrics: bool) -> tuple[bytes, str]:
        self.metrics_thread = threading.current_thread().name
        if openmetrics:
            return b"# EOF\n", "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return b"up 1\n", "text/plain; version=0.0.4; charset=utf-8"

    def refused(self, error: ServingError) -> None:
        self.refusals.append(error)


def numbers(count: int) -> Answer:
    """A decoupled model: `count` responses with one number each, then the final flag alone."""

    def answer(request: InferRequest) -> Iterable[InferResponse]:
        for number in range(count):
            yield InferResponse([Tensor("OUT", "INT32", (1,), np.array([number], np.int32))], final=False)
        yield InferResponse([])

    return answer


def fail(request: InferRequest) -> Iterable[InferResponse]:
    """A model that answers one number and then breaks."""
    yield from list(numbers(1)(request))[:1]
    yield failure(internal("the model broke"))


def add_models(service: FakeService) -> None:
    """The models that the tests ask."""

    def pair(datatype: str, *dims: int) -> tuple[list[TensorSpec], list[TensorSpec]]:
        return [tensor_spec("IN", datatype, *dims)], [tensor_spec("OUT", datatype, *dims)]

    service.add(model_spec("ident", *pair("FP32", 4), max_batch_size=8))
    for datatype in ("FP16", "BF16", "FP64", "INT64", "UINT8", "BOOL", "BYTES"):
        service.add(model_spec(f"ident_{datatype.lower()}", *pair(datatype, -1), max_batch_size=8))
    service.add(model_spec("flat", *pair("FP32", -1)))
    service.add(model_spec("text", *pair("BYTES", 1), max_batch_size=4))
    service.add(model_spec("a model/ü", *pair("FP32", -1)))
    service.add(model_spec("slow", *pair("FP32", -1)), None)
    labels = ("cat", "dog", "fish")
    service.add(
        model_spec("labelled", [tensor_spec("IN", "FP32", 4)], [tensor_spec("OUT", "FP32", 4, labels=labels)], 8)
    )
    two = [tensor_spec("IN0", "FP32", -1), tensor_spec("IN1", "INT32", -1, optional=True)]
    service.add(model_spec("two", two, [tensor_spec("OUT0", "FP32", -1), tensor_spec("OUT1", "INT32", -1)]))
    count = ([tensor_spec("N", "INT32", 1)], [tensor_spec("OUT", "INT32", 1)])
    for name, answer in (
        ("none", numbers(0)),
        ("once", numbers(1)),
        ("thrice", numbers(3)),
        ("broken", fail),
    ):
        service.add(model_spec(name, *count), answer)

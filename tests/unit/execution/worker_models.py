"""Small Python models written to a folder and run in real worker processes, with a server that the test plays."""

from __future__ import annotations

import os
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import Execution, InstanceSpec, ModelContext
from shoal_dataplane.core.dtypes import from_numpy
from shoal_dataplane.core.errors import ServingError, not_found
from shoal_dataplane.core.loop import CoreLoop, ThreadedLoop
from shoal_dataplane.core.model_spec import compile_spec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse, failure
from shoal_dataplane.core.tensors import Tensor
from shoal_dataplane.execution.bridge import ServerBridge
from shoal_dataplane.execution.process import ProcessExecutor
from shoal_dataplane.scheduling.base import Batch, Cut

Array = np.ndarray[Any, Any]
WAIT = 60.0
"""Seconds after which a test gives up; nothing waits for so long unless it is broken."""

ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
            for r in requests
        ]
"""
FP32_4 = """
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
"""


def vector(datatype: str, dims: str = "-1") -> str:
    """The configuration of a model that does not batch, with one input and one output."""
    tensor = f"data_type: {datatype} dims: [ {dims} ]"
    return f'input {{ name: "IN" {tensor} }} output {{ name: "OUT" {tensor} }}'


class Nobody:
    def respond(self, request: InferRequest, response: InferResponse) -> None:
        raise AssertionError("a batch is answered as a whole")


class FakeService:
    """The rest of the server, as far as a model can see it: a model "double", and a repository that notes what it is asked."""

    def __init__(self) -> None:
        self.received: list[InferRequest] = []
        self.cancelled: list[InferRequest] = []
        self.calls: list[tuple[Any, ...]] = []
        self.hold = threading.Event()
        self.held: list[InferRequest] = []
        self.arrived = threading.Event()

    def submit(self, request: InferRequest) -> None:
        self.received.append(request)
        request.target = object()  # type: ignore[assignment]
        if request.model_name == "double":
            array = request.inputs["IN"].array()
            response = InferResponse([Tensor("OUT", request.inputs["IN"].datatype, array.shape, array * 2)])
            response.parameters = {"asked": request.id}
            request.handle.respond(request, response)
        elif request.model_name == "slow":
            self.held.append(request)
            self.arrived.set()
        else:
            error = not_found(f"Request for unknown model: '{request.model_name}' is not found")
            request.handle.respond(request, failure(error))

    def cancel(self, request: InferRequest) -> None:
        self.cancelled.append(request)

    def load_model(self, repository: str, name: str, parameters: Mapping[str, str | bytes]) -> None:
        self.calls.append(("load", name, dict(parameters)))
        if name == "broken":
            raise not_found("failed to load 'broken', failed to poll from model repository")

    def unload_model(self, repository: str, name: str, unload_dependents: bool) -> None:
        self.calls.append(("unload", name, unload_dependents))

    def model_ready(self, name: str, version: str) -> Any:
        return type("Readiness", (), {"ready": name == "double"})()


def model_context(
    folder: Path, code: str, config: str = FP32_4, files: Mapping[str, str] | None = None
) -> ModelContext:
    """Write a model into `folder` and describe it."""
    version_dir = folder / "m" / "1"
    version_dir.mkdir(parents=True, exist_ok=True)
    (version_dir / "model.py").write_text(textwrap.dedent(code))
    for name, text in (files or {}).items():
        (version_dir / name).write_text(textwrap.dedent(text))
    parsed = text_format.Parse(f'name: "m" backend: "python" {config}', mc.ModelConfig())
    return ModelContext("m", 1, folder / "m", version_dir, parsed, compile_spec(parsed, 1), {})


@dataclass
class Running:
    """An executor with its loop and its server."""

    executor: ProcessExecutor
    loop: CoreLoop
    service: FakeService
    bridge: ServerBridge
    results: dict[int, Execution | ServingError] = field(default_factory=dict)

    def send(self, requests: Sequence[InferRequest]) -> Pending:
        """Submit a batch, without waiting."""
        batch = Batch(list(requests), sum(request.batch_size for request in requests), Cut.SINGLE)
        pending = Pending(batch)
        self.loop.post(lambda: self.executor.submit(batch, pending.done))
        return pending

    def run(self, *requests: InferRequest) -> Execution:
        """Run a batch that succeeds as a whole."""
        result = self.send(requests).result()
        assert isinstance(result, Execution), result
        return result

    def fail(self, *requests: InferRequest) -> ServingError:
        """Run a batch that fails as a whole."""
        result = self.send(requests).result()
        assert isinstance(result, ServingError), result
        return result

    def echo(self, *arrays: Array) -> list[Array]:
        """Send each array as IN of a request of its own, in one batch, and return the OUTs."""
        return [response.outputs[0].array() for response in self.run(*map(infer, arrays)).responses]

    def on_loop(self, function: Callable[[], Any]) -> Any:
        """Run `function` on the core loop's thread."""
        done = threading.Event()
        out: list[Any] = []

        def run() -> None:
            out.append(function())
            done.set()

        self.loop.post(run)
        assert done.wait(WAIT)
        return out[0]

    def wait_free(self) -> None:
        """Wait until the executor can take a batch."""
        wait_for(lambda: self.on_loop(self.executor.free))

    @property
    def pid(self) -> int:
        process = self.executor._process
        assert process is not None
        return process.pid


class Pending:
    """A batch that was submitted."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._done = threading.Event()
        self._results: list[Execution | ServingError] = []

    def done(self, batch: Batch, result: Execution | ServingError) -> None:
        assert batch is self.batch
        self._results.append(result)
        self._done.set()

    def result(self) -> Execution | ServingError:
        assert self._done.wait(WAIT), "the batch was not answered"
        assert len(self._results) == 1, "answered twice"
        return self._results[0]


def infer(array: Array | None = None, name: str = "IN", batch_size: int | None = None, **more: Any) -> InferRequest:
    """A request with one input; None for a row of four floats."""
    if array is None:
        array = np.arange(4, dtype=np.float32).reshape(1, 4)
    datatype = from_numpy(array.dtype).wire
    tensor = Tensor(name, datatype, array.shape, array)
    tensor.data = memoryview(bytes(tensor.buffer()))
    request = InferRequest("m", "1", {name: tensor}, Nobody(), **more)
    request.batch_size = (array.shape[0] if array.ndim else 1) if batch_size is None else batch_size
    return request


@contextmanager
def running(folder: Path, code: str, config: str = FP32_4, files: Mapping[str, str] | None = None) -> Iterator[Running]:
    """A model in a worker process."""
    loop = ThreadedLoop()
    loop.start()
    try:
        service = FakeService()
        bridge = ServerBridge(loop, service)
        context = model_context(folder, code, config, files)
        executor = ProcessExecutor.start(context, InstanceSpec("m_0", "CPU", 0), loop, bridge)
        try:
            yield Running(executor, loop, service, bridge)
        finally:
            executor.close()
    finally:
        loop.stop()


def wait_for(condition: Callable[[], object], seconds: float = WAIT) -> None:
    """Wait until `condition` is true; the test fails when it does not become so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def open_descriptors() -> set[str]:
    """What this process has open, by number."""
    return set(os.listdir("/proc/self/fd"))


def alive(pid: int) -> bool:
    """Is there such a process (a zombie counts)?"""
    return Path(f"/proc/{pid}").exists()

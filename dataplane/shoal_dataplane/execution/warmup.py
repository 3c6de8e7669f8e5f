"""Warm-up: run the configured samples on every instance before the model is ready (triton.md B11)."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.base import Execution
from shoal_dataplane.core.dtypes import BY_CONFIG, DataType
from shoal_dataplane.core.errors import Code, ServingError, invalid
from shoal_dataplane.core.loop import CoreLoop
from shoal_dataplane.core.model_spec import ModelSpec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor, encode_bytes
from shoal_dataplane.execution.base import Executor
from shoal_dataplane.routing.normalize import normalize
from shoal_dataplane.scheduling.base import Batch, Cut

MAX_SAMPLE_BYTES = 1 << 31


class _Ignore:
    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """A warm-up's answer is for nobody."""


def warm_up(
    config: mc.ModelConfig, spec: ModelSpec, model_dir: Path, executors: Sequence[Executor], loop: CoreLoop
) -> None:
    """Run each sample `count` times on each instance; returns when all have run. Raises ServingError when one fails."""
    for sample in config.model_warmup:
        if sample.batch_size == 0:
            continue  # as in Triton: a sample without a batch size is skipped; a model that does not batch wants 1
        requests = sample_requests(sample, spec, model_dir)
        for _ in range(max(1, sample.count)):
            for executor in executors:
                _run(sample.name, requests, executor, loop, spec)


def _run(name: str, requests: list[InferRequest], executor: Executor, loop: CoreLoop, spec: ModelSpec) -> None:
    finished = threading.Event()
    outcome: list[Execution | ServingError] = []

    def done(_: Batch, result: Execution | ServingError) -> None:
        outcome.append(result)
        finished.set()

    batch = Batch(requests, sum(request.batch_size for request in requests), Cut.SINGLE)
    loop.post(lambda: executor.submit(batch, done))
    finished.wait()
    result = outcome[0]
    errors = (
        [result] if isinstance(result, ServingError) else [r.error for r in result.responses if r.error is not None]
    )
    if errors:
        raise ServingError(
            Code.INTERNAL, f"warm-up sample '{name}' of model '{spec.name}' failed: {errors[0]}", errors[0].reason
        )


def sample_requests(sample: mc.ModelWarmup, spec: ModelSpec, model_dir: Path) -> list[InferRequest]:
    """Return the requests of one sample: `batch_size` requests of batch 1 for a batching model, else one.

    Raises ServingError(INVALID_ARGUMENT) for an input that is no sample of the model's.
    """
    inputs: dict[str, Tensor] = {}
    batched = spec.max_batch_size > 0
    if sample.batch_size > max(1, spec.max_batch_size):
        raise invalid(
            f"warm-up sample '{sample.name}' of model '{spec.name}' has batch_size {sample.batch_size}, "
            f"expected at most {max(1, spec.max_batch_size)}"
        )
    for name, entry in sample.inputs.items():
        where = f"input '{name}' of warm-up sample '{sample.name}' of model '{spec.name}'"
        dims = tuple(entry.dims)
        if any(size < 0 for size in dims):
            raise invalid(f"{where} has a variable dimension {list(dims)}")
        datatype = BY_CONFIG.get(entry.data_type)
        if datatype is None:
            raise invalid(f"{where} has no data_type")
        shape = (1, *dims) if batched else dims
        inputs[name] = Tensor(name, datatype.wire, shape, _content(where, entry, datatype, dims, model_dir))
    requests = [
        InferRequest(spec.name, str(spec.version), inputs, _Ignore())
        for _ in range(sample.batch_size if batched else 1)
    ]
    for request in requests:
        normalize(request, spec)
    return requests


def _content(
    where: str, entry: mc.ModelWarmup.Input, datatype: DataType, dims: tuple[int, ...], model_dir: Path
) -> bytes:
    elements = math.prod(dims)
    if elements * max(1, datatype.itemsize) > MAX_SAMPLE_BYTES:
        raise invalid(f"{where} is larger than {MAX_SAMPLE_BYTES} bytes")
    kind = entry.WhichOneof("input_data_type")
    if kind == "input_data_file":
        folder = (model_dir / "warmup").resolve()
        path = (folder / entry.input_data_file).resolve()
        if not path.is_relative_to(folder):
            raise invalid(f"{where}: '{entry.input_data_file}' is outside the model's warmup folder")
        try:
            return path.read_bytes()
        except OSError as error:
            raise invalid(f"{where}: cannot read '{entry.input_data_file}': {error.strerror}") from None
    if datatype.itemsize == 0:
        return encode_bytes([b""] * elements)
    if kind == "random_data":
        random = np.random.default_rng(0)
        if datatype.numpy.kind == "f":
            return random.standard_normal(elements).astype(datatype.numpy).tobytes()
        return random.integers(0, 2, elements).astype(datatype.numpy).tobytes()
    return bytes(elements * datatype.itemsize)

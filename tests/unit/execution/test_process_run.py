"""A Python model in a worker process is given what was sent, and what it returns arrives."""

from __future__ import annotations

import errno
import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import Code
from shoal_dataplane.core.request import Signature
from shoal_dataplane.core.tensors import Tensor, encode_bytes
from tests.unit.execution.worker_models import (
    ECHO,
    FP32_4,
    Array,
    Running,
    infer,
    open_descriptors,
    running,
    vector,
    wait_for,
)

ANY_DATATYPE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT_BF16", t) if t.name() == "IN_BF16"
                                        else pb_utils.Tensor("OUT" + t.name()[2:], t.as_numpy()) for t in r.inputs()])
            for r in requests
        ]
"""


def datatype_config() -> str:
    def tensors(kind: str, prefix: str, extra: str) -> str:
        return " ".join(
            f'{kind} {{ name: "{prefix}_{d.wire}" data_type: {d.config} dims: [ -1, -1 ] {extra} }}'
            for d in BY_WIRE.values()
        )

    return tensors("input", "IN", "optional: true") + tensors("output", "OUT", "")


@pytest.fixture(scope="module")
def any_datatype(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("any"), ANY_DATATYPE, datatype_config()) as model:
        yield model


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("echo"), ECHO) as model:
        yield model


@pytest.fixture(scope="module")
def bulk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("bulk"), ECHO, vector("TYPE_UINT8")) as model:
        yield model


def elements(wire: str, shape: tuple[int, ...]) -> bytes:
    """The wire encoding of a tensor whose bytes differ from one another."""
    count = int(np.prod(shape))
    if wire == "BYTES":
        return encode_bytes([bytes(range(n % 7)) + b"\0" for n in range(count)])
    if wire == "BOOL":
        return bytes(n % 2 for n in range(count))
    return bytes(n % 251 for n in range(count * BY_WIRE[wire].itemsize))


@pytest.mark.parametrize("shape", [(2, 3), (0, 5), (1, 1), (3, 1)])
@pytest.mark.parametrize("wire", sorted(BY_WIRE))
def test_every_datatype_arrives_and_comes_back_to_the_byte(
    any_datatype: Running, wire: str, shape: tuple[int, ...]
) -> None:
    data = elements(wire, shape)
    request = infer(np.zeros((1, 1), np.uint8), outputs=(f"OUT_{wire}",))
    request.inputs = {f"IN_{wire}": Tensor(f"IN_{wire}", wire, shape, memoryview(data))}
    (response,) = any_datatype.run(request).responses
    assert response.error is None
    (output,) = response.outputs
    assert (output.name, output.datatype, output.shape) == (f"OUT_{wire}", wire, shape)
    assert bytes(output.buffer()) == data


def test_a_batch_comes_back_request_by_request(echo: Running) -> None:
    rows = [np.full((n, 4), n, dtype=np.float32) for n in (1, 2, 1, 3)]
    for _ in range(3):
        for sent, got in zip(rows, echo.echo(*rows), strict=True):
            np.testing.assert_array_equal(got, sent)


def test_requests_that_share_a_header_keep_their_own_tensors_and_ids(tmp_path: Path) -> None:
    code = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(
                [r.request_id().encode() + b"/" + x for x in pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()], object))])
                for r in requests]
    """
    with running(tmp_path, code, vector("TYPE_STRING")) as model:
        signature = Signature()
        requests = [infer(np.array([b"x" * n], object), id=f"r{n}") for n in (1, 1, 5, 3, 3)]
        for request in requests:
            request.signature = signature
        answers = [response.outputs[0].array()[0] for response in model.run(*requests).responses]
    assert answers == [b"r1/x", b"r1/x", b"r5/xxxxx", b"r3/xxx", b"r3/xxx"]


def test_a_model_sees_all_of_a_request(tmp_path: Path) -> None:
    code = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            out = []
            for r in requests:
                seen = {"id": r.request_id(), "correlation": r.correlation_id(), "flags": r.flags(), "timeout": r.timeout(),
                        "parameters": r.parameters(), "outputs": r.requested_output_names(), "trace": r.trace().get_context(),
                        "cancelled": r.is_cancelled(), "version": r.model_version(), "inputs": [t.name() for t in r.inputs()],
                        "missing": pb_utils.get_input_tensor_by_name(r, "NO") is None}
                array = np.empty((1, 1), object)
                array[0, 0] = json.dumps(seen)
                out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array), pb_utils.Tensor("MORE", array)],
                                                      parameters={"k": "v", "n": 3, "b": True, "f": 1.5}))
            return out
    """
    config = (
        FP32_4.replace('output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }', "")
        + 'output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } output { name: "MORE" data_type: TYPE_STRING dims: [ 1 ] }'
    )
    with running(tmp_path, code, config) as model:
        full = infer(id="é1", parameters={"b": "x", "a": 1, "c": True, "huge": 1 << 70}, outputs=("OUT",))
        full.correlation_id = "seq"
        full.sequence_start = True
        full.timeout_us = 5
        full.metadata = {"traceparent": "00-ab-cd-01", "authorization": "secret"}
        first, second = model.run(full, infer()).responses
    seen = json.loads(first.outputs[0].array()[0, 0])
    assert seen == {
        "id": "é1",
        "correlation": "seq",
        "flags": 1,
        "timeout": 5,
        "parameters": '{"b":"x","a":1,"c":true,"huge":1.1805916207174113e+21}',
        "outputs": ["OUT"],
        "trace": '{"traceparent":"00-ab-cd-01"}',
        "cancelled": False,
        "version": 1,
        "inputs": ["IN"],
        "missing": True,
    }
    assert [output.name for output in first.outputs] == ["OUT"]
    assert first.parameters == {"k": "v", "n": 3, "b": True, "f": 1.5}
    plain = json.loads(second.outputs[0].array()[0, 0])
    assert plain["outputs"] == ["OUT", "MORE"]
    assert (plain["id"], plain["parameters"], plain["trace"]) == ("", "{}", None)
    assert [output.name for output in second.outputs] == ["OUT", "MORE"]


def test_inputs_may_be_written_and_outputs_reused_by_the_model(tmp_path: Path) -> None:
    code = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.out = np.zeros(4, np.float32)
        def execute(self, requests):
            x = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()
            x *= 2
            self.out[:] = x[:4]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.out)])]
    """
    with running(tmp_path, code, vector("TYPE_FP32")) as model:
        for size in (4, 100_000):
            first = model.run(infer(np.full(size, 1, np.float32))).responses[0].outputs[0]
            model.run(infer(np.full(size, 5, np.float32)))
            np.testing.assert_array_equal(first.array(), [2, 2, 2, 2])


def test_a_model_with_reshape_sees_the_shape_that_it_wants(tmp_path: Path) -> None:
    config = """
    max_batch_size: 4
    input { name: "IN" data_type: TYPE_FP32 dims: [ 1, -1, 2 ] reshape { shape: [ -1, 2 ] } }
    output { name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [ ] } }
    """
    code = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            shapes = [pb_utils.get_input_tensor_by_name(r, "IN").as_numpy().shape for r in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(s[:1], s[1] * 10 + len(s)))]) for s in shapes]
    """
    with running(tmp_path, code, config) as model:
        (response,) = model.run(infer(np.zeros((2, 1, 7, 2), np.float32))).responses
        np.testing.assert_array_equal(response.outputs[0].array(), [[73], [73]])


def test_an_async_model_runs_its_requests_together(tmp_path: Path) -> None:
    code = """
    import asyncio
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        async def execute(self, requests):
            self.barrier = asyncio.Barrier(len(requests))
            return await asyncio.gather(*map(self.one, requests)) and [await self.one(r, False) for r in requests]
        async def one(self, r, meet=True):
            if meet:
                await self.barrier.wait()
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
    """
    with running(tmp_path, code) as model:
        rows = [np.full((1, 4), n, np.float32) for n in range(3)]
        np.testing.assert_array_equal(np.concatenate(model.echo(*rows)), np.concatenate(rows))


def test_a_batch_that_cannot_be_encoded_fails_and_the_next_one_runs(echo: Running) -> None:
    request = infer()
    request.inputs["IN"].data = 5  # type: ignore[assignment]
    assert "could not be sent to the model's process" in echo.fail(request).message
    assert echo.run(infer()).responses[0].error is None


def test_a_batch_for_which_there_is_no_shared_memory_fails_and_the_next_one_runs(
    bulk: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = bulk.executor._process
    assert worker is not None

    def acquire(size: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch:
        patch.setattr(worker.pool, "acquire", acquire)
        error = bulk.fail(infer(np.zeros(1 << 20, np.uint8)))
    assert error.code is Code.RESOURCE_EXHAUSTED
    assert error.message == "no shared memory for a batch of model 'm': [Errno 12] Cannot allocate memory"
    assert bulk.echo(np.zeros(1 << 20, np.uint8))[0].size == 1 << 20


# -- shared memory


def sizes_up_to_64_mib() -> list[int]:
    return [0, 1, 65_535, 65_536, 65_537, 1 << 20, 64 << 20]


@pytest.mark.parametrize("size", sizes_up_to_64_mib())
def test_a_tensor_of_any_size_arrives_whole(bulk: Running, size: int) -> None:
    sent = np.arange(size, dtype=np.uint32).astype(np.uint8)
    (got,) = bulk.echo(sent)
    assert got.tobytes() == sent.tobytes()


def test_large_answers_stay_as_they_are_while_they_are_held(bulk: Running) -> None:
    held = [bulk.echo(np.full(1 << 20, n, np.uint8))[0] for n in range(5)]
    for n, array in enumerate(held):
        assert (array == n).all()


def test_large_answers_are_read_only_views_that_cost_no_copy(bulk: Running) -> None:
    output = bulk.run(infer(np.ones(1 << 20, np.uint8))).responses[0].outputs[0]
    assert isinstance(output.data, memoryview)
    assert output.data.readonly
    assert not output.array().flags.owndata


def test_segments_are_used_again_and_never_pile_up(bulk: Running) -> None:
    worker = bulk.executor._process
    assert worker is not None
    array = np.zeros(3 << 20, np.uint8)
    for _ in range(5):
        bulk.echo(array)
    gc.collect()
    ours, theirs, descriptors = worker.pool.segments(), worker.table.segments(), len(open_descriptors())
    for _ in range(30):
        bulk.echo(array)
    assert worker.pool.segments() <= ours
    assert worker.table.segments() <= theirs
    assert len(open_descriptors()) <= descriptors


def test_many_small_tensors_that_are_large_together_share_a_segment(bulk: Running) -> None:
    arrays: list[Array] = [np.full(3000, n, np.uint8) for n in range(64)]
    for sent, got in zip(arrays, bulk.echo(*arrays), strict=True):
        np.testing.assert_array_equal(got, sent)


def test_a_request_with_a_head_larger_than_a_message_arrives(tmp_path: Path) -> None:
    code = ECHO.replace(
        "InferenceResponse([", "InferenceResponse(parameters={'n': len(r.parameters())}, output_tensors=["
    )
    with running(tmp_path, code) as model:
        parameters = {f"key{n}": "v" * 100 for n in range(2000)}
        (response,) = model.run(infer(parameters=parameters)).responses
        assert response.parameters is not None
        assert int(response.parameters["n"]) > 200_000


def test_shared_memory_has_no_name_and_nothing_is_open_after_close(tmp_path: Path) -> None:
    gc.collect()
    descriptors = open_descriptors()
    with running(tmp_path, ECHO, vector("TYPE_UINT8")) as model:
        model.echo(np.zeros(1 << 20, np.uint8))
        pid = model.pid
        mapped = {
            line.split(maxsplit=5)[5].strip()
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if "shoal" in line
        }
        assert "/memfd:shoal (deleted)" in mapped
        assert not [name for name in mapped if name.startswith("/dev/shm")]
    gc.collect()
    assert open_descriptors() <= descriptors
    assert not Path(f"/proc/{pid}").exists()


def test_memory_kept_for_later_is_given_back_when_idle(bulk: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    bulk.echo(np.zeros(1 << 20, np.uint8))
    worker = bulk.executor._process
    assert worker is not None
    gc.collect()
    monkeypatch.setattr("shoal_dataplane.execution.worker.watch.IDLE_SECONDS", 0.0)
    wait_for(lambda: not worker.pool.segments() and not worker.table.segments())

"""ONNX and PyTorch models behind the protocol: completion, batching, ragged batches, broken files, and what is imported for them.

The Triton that the suite is compared with has the Python backend only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as tritongrpc
from tritonclient.grpc import service_pb2 as pb

from tests.protocol.conftest import EXPLICIT, Deploy, Serve
from tests.protocol.harness.framework_models import affine_onnx, affine_torch, ragged_onnx
from tests.protocol.harness.grpc_calls import arrays, refused, request
from tests.protocol.harness.http_calls import infer_document
from tests.protocol.harness.repository import Repository, Tensor
from tests.protocol.harness.server import ServedProcess, Server
from tests.protocol.harness.targets import Target
from tests.protocol.harness.waiting import wait_for

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module", autouse=True)
def _here(target: Target) -> None:
    if not target.is_shoal:
        pytest.skip("the Triton at hand has no ONNX and no PyTorch backend")


def write_onnx(folder: Path) -> None:
    affine_onnx(folder, ["n", 4])


def write_torchscript(folder: Path) -> None:
    affine_torch(folder, exported=False)


def write_export(folder: Path) -> None:
    affine_torch(folder, exported=True)


FORMATS: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "onnx": (write_onnx, "onnxruntime", "x", "y"),
    "torchscript": (write_torchscript, "pytorch", "INPUT__0", "OUTPUT__0"),
    "export": (write_export, "pytorch", "INPUT__0", "OUTPUT__0"),
}


@pytest.fixture(scope="module", params=FORMATS)
def model(request: pytest.FixtureRequest, deploy: Deploy, server: Server) -> tuple[str, str, str]:
    """A model of each format with a whole configuration: its name, its input, its output."""
    write, backend, input_name, output_name = FORMATS[request.param]
    name = f"f_{request.param}"
    write(server.repository.path / name / "1")
    deploy(
        name,
        source="",
        backend=backend,
        inputs=[Tensor(input_name)],
        outputs=[Tensor(output_name)],
        more="dynamic_batching { }",
        parameters={"INFERENCE_MODE": "true"} if backend == "pytorch" else {},
    )
    return name, input_name, output_name


def test_a_model_computes(server: Server, model: tuple[str, str, str]) -> None:
    name, input_name, output_name = model
    assert arrays(server.infer(name, {input_name: X}))[output_name].tolist() == (2 * X + 1).tolist()
    reply = server.post(f"/v2/models/{name}/infer", infer_document({input_name: X}))
    assert reply.json()["outputs"][0]["data"] == (2 * X + 1).ravel().tolist()


def test_tritonclient_asks_it(server: Server, model: tuple[str, str, str]) -> None:
    name, input_name, output_name = model
    with tritongrpc.InferenceServerClient(server.grpc_address) as client:
        tensor = tritongrpc.InferInput(input_name, [2, 4], "FP32")
        tensor.set_data_from_numpy(X)
        assert client.infer(name, [tensor]).as_numpy(output_name).tolist() == (2 * X + 1).tolist()


def test_many_callers_get_their_own_rows_of_a_batch(server: Server, model: tuple[str, str, str]) -> None:
    name, input_name, output_name = model
    futures = [server.later(request(name, {input_name: np.full((1 + n % 3, 4), n, np.float32)})) for n in range(100)]
    for number, future in enumerate(futures):
        found = arrays(future.result())[output_name]
        assert found.shape == (1 + number % 3, 4)
        assert set(found.ravel()) == {2.0 * number + 1}
    statistics = server.statistics(name)
    assert statistics.execution_count <= statistics.inference_count


def test_a_wrong_request_is_refused_before_it_reaches_the_framework(
    server: Server, model: tuple[str, str, str]
) -> None:
    name, input_name, _ = model
    with refused("INVALID_ARGUMENT", r"Expected \[-1,4\], got \[1,5\]"):
        server.infer(name, {input_name: np.zeros((1, 5), np.float32)})
    with refused("INVALID_ARGUMENT", "data-type"):
        server.infer(name, {input_name: X.astype(np.float64)})


def test_an_onnx_model_needs_no_configuration(server: Server, deploy: Deploy) -> None:
    write_onnx(server.repository.path / "f_bare" / "1")
    deploy("f_bare", source="", config="")
    shown = server.http("GET", "/v2/models/f_bare/config").json()
    assert shown["platform"] == "onnxruntime_onnx"
    assert shown["max_batch_size"] == 4
    assert [(tensor["name"], tensor["dims"]) for tensor in shown["input"]] == [("x", [4])]
    assert "dynamic_batching" in shown
    assert arrays(server.infer("f_bare", {"x": X}))["y"].tolist() == (2 * X + 1).tolist()
    metadata = server.http("GET", "/v2/models/f_bare").json()
    assert metadata["platform"] == "onnxruntime_onnx"
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({"inputs": [Tensor("x", "INT32")], "outputs": [Tensor("y")]}, "x.*INT32|INT32.*x"),
        ({"inputs": [Tensor("x", "FP32", (5,))], "outputs": [Tensor("y")]}, "x.*5"),
        ({"inputs": [Tensor("z")], "outputs": [Tensor("y")]}, "z"),
        ({"inputs": [Tensor("x")], "outputs": [Tensor("z")]}, "z"),
    ],
)
def test_a_configuration_that_contradicts_the_file_is_refused(
    server: Server, settings: dict[str, Any], pattern: str
) -> None:
    write_onnx(server.repository.path / "f_contradiction" / "1")
    server.repository.model("f_contradiction", source="", backend="onnxruntime", **settings)
    try:
        with refused("INVALID_ARGUMENT", f"(?s)f_contradiction.*({pattern})"):
            server.load("f_contradiction")
    finally:
        server.unload("f_contradiction")
        server.repository.remove("f_contradiction")


@pytest.mark.parametrize(
    ("file", "backend"), [("model.onnx", "onnxruntime"), ("model.pt", "pytorch"), ("model.pt2", "pytorch")]
)
@pytest.mark.parametrize("content", [b"", b"no model at all", b"\x00" * 4096], ids=["empty", "text", "zeros"])
def test_a_broken_model_file_fails_its_load_and_nothing_else(
    server: Server, file: str, backend: str, content: bytes
) -> None:
    server.repository.model(
        "f_broken",
        source="",
        backend=backend,
        files={f"1/{file}": content},
        inputs=[Tensor("INPUT__0")],
        outputs=[Tensor("OUTPUT__0")],
        more=f'default_model_filename: "{file}"',
    )
    try:
        with refused("INVALID_ARGUMENT", "(?s)load failed for model 'f_broken'"):
            server.load("f_broken")
        assert server.stub.ServerLive(pb.ServerLiveRequest(), timeout=10).live
    finally:
        server.unload("f_broken")
        server.repository.remove("f_broken")


@pytest.mark.parametrize(("file", "backend"), [("model.onnx", "onnxruntime"), ("model.pt", "pytorch")])
def test_a_version_without_its_file_is_named(server: Server, file: str, backend: str) -> None:
    server.repository.model("f_missing", source="", backend=backend)
    try:
        with refused("INVALID_ARGUMENT", f"(?s)f_missing.*{file}"):
            server.load("f_missing")
    finally:
        server.unload("f_missing")
        server.repository.remove("f_missing")


RAGGED = {
    "BATCH_ELEMENT_COUNT": [2, 3, 1],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": [2, 5, 6],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 2, 5],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": [3, 3, 3],
    "BATCH_ITEM_SHAPE": [2, 3, 1],
    "BATCH_ITEM_SHAPE_FLATTEN": [2, 3, 1],
}


@pytest.fixture(scope="module")
def held(start: Serve) -> ServedProcess:
    """A server whose schedulers hold until three requests wait."""

    def write(repository: Repository) -> None:
        for kind in RAGGED:
            ragged_onnx(repository.path / kind.lower() / "1", kind)
            source = 'data_type: TYPE_FP32 source_input: "X"'
            repository.model(
                kind.lower(),
                source="",
                backend="onnxruntime",
                inputs=[Tensor("X", "FP32", (-1,), "allow_ragged_batch: true")],
                outputs=[Tensor("Y", "FP32", (-1,)), Tensor("SEEN", "FP32", (1,))],
                more=f"""
                batch_input [
                  {{ kind: {kind} target_name: "B" {source} }},
                  {{ kind: BATCH_ELEMENT_COUNT target_name: "COUNT" {source} }}
                ]
                batch_output [ {{ target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }} ]
                dynamic_batching {{ }}
                """,
            )

    return start(write, [*EXPLICIT, "--load-model=*"], TRITONSERVER_DELAY_SCHEDULER="3").wait_ready()


@pytest.mark.parametrize("kind", RAGGED)
def test_requests_of_different_lengths_share_a_ragged_batch(held: ServedProcess, kind: str) -> None:
    name = kind.lower()
    values = [np.arange(length, dtype=np.float32).reshape(1, length) + 10 * length for length in (2, 3, 1)]
    futures = []
    for number, array in enumerate(values):
        futures.append(held.later(request(name, {"X": array})))
        if number < 2:
            wait_for(
                "it waits", lambda n=number + 1: held.metric("nv_inference_pending_request_count", model=name) == n
            )
    found = [arrays(future.result()) for future in futures]
    assert [answer["Y"].tolist() for answer in found] == [(2 * array).tolist() for array in values]
    assert [float(answer["SEEN"].ravel()[0]) for answer in found] == RAGGED[kind]
    assert held.statistics(name).execution_count == 1


def mapped(server: ServedProcess) -> str:
    return Path(f"/proc/{server.process.pid}/maps").read_text()


def test_onnx_models_are_served_without_torch(start: Serve) -> None:
    def write(repository: Repository) -> None:
        write_onnx(repository.path / "only" / "1")
        repository.model("plain", execution="thread")

    server = start(write, []).wait_ready()
    assert arrays(server.infer("only", {"x": X}))["y"].tolist() == (2 * X + 1).tolist()
    libraries = mapped(server)
    assert "onnxruntime" in libraries
    assert "libtorch" not in libraries


def test_python_models_are_served_without_frameworks(start: Serve) -> None:
    server = start(lambda repository: repository.model("plain"), []).wait_ready()
    assert server.infer("plain", {"IN": X}).model_name == "plain"
    libraries = mapped(server)
    assert "onnxruntime" not in libraries
    assert "libtorch" not in libraries

"""What the server says of itself and of its models: metadata, configuration, index."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc import service_pb2 as pb
from tritonclient.http import InferenceServerClient as HttpClient

from tests.protocol.conftest import Deploy
from tests.protocol.harness.grpc_calls import refused
from tests.protocol.harness.repository import IN, OUT, Tensor
from tests.protocol.harness.server import Server
from tests.protocol.harness.targets import Target


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    deploy(
        "meta_batched",
        inputs=[IN, Tensor("IN1", "BYTES", (-1, 2), "optional: true")],
        outputs=[OUT, Tensor("OUT1", "BYTES", (-1, 2))],
    )
    deploy("meta_plain", max_batch_size=0)
    deploy("meta_versions", versions=(1, 2, 10), more="version_policy { latest { num_versions: 2 } }")
    tensor = "data_type: TYPE_FP32 dims: [ 4 ]"
    deploy(
        "meta_minimal", config=f'backend: "python" input {{ name: "IN" {tensor} }} output {{ name: "OUT" {tensor} }}'
    )
    deploy("meta_dynamic", more="dynamic_batching { max_queue_delay_microseconds: 100 }", parameters={"note": "kept"})


def test_server_metadata(server: Server, target: Target) -> None:
    metadata = server.stub.ServerMetadata(pb.ServerMetadataRequest(), timeout=10)
    assert metadata.name == target.pick("server-name", shoal="shoal", triton="triton")
    assert metadata.version
    shown = server.http("GET", "/v2").json()
    assert shown == {"name": metadata.name, "version": metadata.version, "extensions": list(metadata.extensions)}
    common = {
        "classification",
        "model_repository",
        "model_repository(unload_dependents)",
        "schedule_policy",
        "model_configuration",
        "binary_tensor_data",
        "parameters",
        "statistics",
    }
    later = {"sequence", "system_shared_memory", "cuda_shared_memory", "trace", "logging"}
    assert set(metadata.extensions) == target.pick("extensions", shoal=common, triton=common | later)


def test_model_metadata_puts_the_batch_dimension_first(server: Server) -> None:
    metadata = server.stub.ModelMetadata(pb.ModelMetadataRequest(name="meta_batched"), timeout=10)
    assert metadata.name == "meta_batched"
    assert metadata.platform == "python"
    assert list(metadata.versions) == ["1"]
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
        ("IN", "FP32", [-1, 4]),
        ("IN1", "BYTES", [-1, -1, 2]),
    ]
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.outputs] == [
        ("OUT", "FP32", [-1, 4]),
        ("OUT1", "BYTES", [-1, -1, 2]),
    ]


def test_model_metadata_over_http_is_the_same(server: Server) -> None:
    shown = server.http("GET", "/v2/models/meta_plain")
    assert shown.headers["content-type"] == "application/json"
    assert shown.json() == {
        "name": "meta_plain",
        "versions": ["1"],
        "platform": "python",
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [4]}],
        "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [4]}],
    }
    assert server.http("GET", "/v2/models/meta_plain/versions/1").json() == shown.json()


def test_metadata_lists_the_versions_that_the_policy_serves_in_order(server: Server) -> None:
    assert server.http("GET", "/v2/models/meta_versions").json()["versions"] == ["2", "10"]


def test_metadata_of_one_version_lists_that_one(server: Server) -> None:
    assert server.http("GET", "/v2/models/meta_versions/versions/10").json()["versions"] == ["10"]
    metadata = server.stub.ModelMetadata(pb.ModelMetadataRequest(name="meta_versions", version="2"), timeout=10)
    assert list(metadata.versions) == ["2"]


@pytest.mark.parametrize("what", ["ModelMetadata", "ModelConfig"])
def test_an_unknown_model_or_version_is_not_found(server: Server, what: str) -> None:
    call, message = getattr(server.stub, what), getattr(pb, f"{what}Request")
    with refused("NOT_FOUND", r"^Request for unknown model: 'nobody' is not found$"):
        call(message(name="nobody"), timeout=10)
    with refused("NOT_FOUND", r"^Request for unknown model: 'meta_versions' version 1 is not found$"):
        call(message(name="meta_versions", version="1"), timeout=10)
    for path in ("nobody", "meta_versions/versions/1"):
        reply = server.http("GET", f"/v2/models/{path}" + ("/config" if what == "ModelConfig" else ""))
        assert reply.status == 404
        assert "is not found" in reply.error


def _config(server: Server, name: str) -> dict[str, Any]:
    return server.http("GET", f"/v2/models/{name}/config").json()


def test_the_configuration_is_completed_and_shown_as_triton_shows_it(server: Server) -> None:
    tensor = {
        "name": "IN",
        "data_type": "TYPE_FP32",
        "dims": [4],
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }
    assert _config(server, "meta_minimal") == {
        "name": "meta_minimal",
        "platform": "",
        "backend": "python",
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": [{**tensor, "format": "FORMAT_NONE", "allow_ragged_batch": False, "optional": False}],
        "output": [{**tensor, "name": "OUT", "label_filename": ""}],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
        "instance_group": [
            {
                "name": "meta_minimal",
                "kind": "KIND_CPU",
                "count": 1,
                "gpus": [],
                "secondary_devices": [],
                "profile": [],
                "passive": False,
                "host_policy": "",
            }
        ],
        "default_model_filename": "model.py",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }


def test_the_configuration_shows_defaults_of_dynamic_batching_and_parameters(server: Server) -> None:
    shown = _config(server, "meta_dynamic")
    assert shown["dynamic_batching"] == {
        "preferred_batch_size": [8],
        "max_queue_delay_microseconds": 100,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "priority_queue_policy": {},
    }
    assert shown["parameters"] == {"note": {"string_value": "kept"}}


def test_the_configuration_is_the_same_over_grpc(server: Server) -> None:
    with InferenceServerClient(server.grpc_address) as client:
        config = client.get_model_config("meta_dynamic", as_json=True)["config"]
    assert config["name"] == "meta_dynamic"
    assert config["max_batch_size"] == 8
    assert config["dynamic_batching"]["preferred_batch_size"] == [8]
    with HttpClient(server.http_address) as client:
        assert client.get_model_config("meta_dynamic")["input"][0]["name"] == config["input"][0]["name"]


def test_every_version_has_a_row_in_the_index(server: Server) -> None:
    index = server.index()
    assert index["meta_versions", "2"] == ("READY", "")
    assert index["meta_versions", "10"] == ("READY", "")
    assert ("meta_versions", "1") not in index


def test_the_index_over_http_leaves_out_what_is_empty(server: Server) -> None:
    server.repository.model("meta_never_loaded")
    try:
        rows = server.post("/v2/repository/index").json()
        assert {"name": "meta_never_loaded"} in rows
        assert {"name": "meta_plain", "version": "1", "state": "READY"} in rows
        assert [row["name"] for row in rows] == sorted(row["name"] for row in rows)
        ready = server.post("/v2/repository/index", {"ready": True}).json()
        assert {row["state"] for row in ready} == {"READY"}
        assert ("meta_never_loaded", "") not in server.index(ready=True)
    finally:
        server.repository.remove("meta_never_loaded")


def test_the_index_of_a_named_repository_is_not_supported(server: Server) -> None:
    with refused("UNIMPLEMENTED", "'repository_name' specification is not supported"):
        server.stub.RepositoryIndex(pb.RepositoryIndexRequest(repository_name="r"), timeout=10)


@pytest.mark.parametrize(
    "method", ["SystemSharedMemoryStatus", "CudaSharedMemoryStatus", "TraceSetting", "LogSettings"]
)
@pytest.mark.differs("later-extensions")
def test_extensions_that_are_not_there_say_so(server: Server, method: str) -> None:
    with refused("UNIMPLEMENTED", "not supported by this server"):
        getattr(server.stub, method)(getattr(pb, f"{method}Request")(), timeout=10)


@pytest.mark.parametrize(
    "path", ["/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status"]
)
@pytest.mark.differs("later-extensions")
def test_http_extensions_that_are_not_there_say_so(server: Server, path: str) -> None:
    reply = server.http("GET", path)
    assert reply.status == 501
    assert "does not support" in reply.error


def test_responses_are_plain_json(server: Server) -> None:
    for path in ("/v2", "/v2/models/meta_plain", "/v2/models/meta_plain/config", "/v2/models/stats"):
        reply = server.http("GET", path)
        assert reply.headers["content-type"] == "application/json"
        json.loads(reply.body)

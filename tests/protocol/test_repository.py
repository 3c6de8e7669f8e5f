"""The model repository in explicit mode: load, reload, unload, overrides, versions, errors that say what is wrong."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc import service_pb2 as pb
from tritonclient.http import InferenceServerClient as HttpClient

from tests.protocol.conftest import Gate
from tests.protocol.harness.grpc_calls import arrays, refused, request
from tests.protocol.harness.repository import MODELS, Repository, Tensor
from tests.protocol.harness.server import Server
from tests.protocol.harness.targets import Target
from tests.protocol.harness.waiting import wait_for

X = np.zeros((1, 4), np.float32)
CONSTANT: dict[str, Any] = {
    "source": "constant",
    "inputs": [Tensor("IN", "FP32", (1,))],
    "outputs": [Tensor("OUT", "INT32", (1,))],
    "max_batch_size": 0,
    "execution": "thread",
}


@pytest.fixture
def repository(server: Server) -> Iterator[Repository]:
    """The shared server's repository; what a test writes into it is unloaded and removed."""
    before = {path.name for path in server.repository.path.iterdir()}
    yield server.repository
    for path in list(server.repository.path.iterdir()):
        if path.name not in before:
            server.unload(path.name)
            server.repository.remove(path.name)


def value_of(server: Server, name: str, version: str = "") -> int:
    """What a constant model answers."""
    return int(arrays(server.infer(name, {"IN": np.zeros(1, np.float32)}, version=version))["OUT"][0])


def constant(repository: Repository, name: str, value: int, **more: Any) -> None:
    repository.model(name, parameters={"value": str(value)}, **{**CONSTANT, **more})


def constant_config(value: int, **more: Any) -> str:
    """The configuration of a constant model as the `config` parameter of a load takes it."""
    return json.dumps(
        {
            "backend": "python",
            "max_batch_size": 0,
            "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
            "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
            "parameters": {"value": {"string_value": str(value)}, "SHOAL_EXECUTION": {"string_value": "thread"}},
            **more,
        }
    )


# -- load and unload


def test_load_and_unload(server: Server, repository: Repository) -> None:
    repository.model("r_plain", execution="thread")
    with refused("NOT_FOUND", "^Request for unknown model: 'r_plain' is not found$"):
        server.infer("r_plain", {"IN": X})
    server.load("r_plain")
    assert server.index()["r_plain", "1"] == ("READY", "")
    server.infer("r_plain", {"IN": X})
    server.unload("r_plain")
    assert server.index()["r_plain", "1"] == ("UNAVAILABLE", "unloaded")
    with refused("NOT_FOUND", "^Request for unknown model: 'r_plain' has no available versions$"):
        server.infer("r_plain", {"IN": X})
    assert not server.stub.ModelReady(pb.ModelReadyRequest(name="r_plain"), timeout=10).ready
    wait_for("the server is ready", server.ready)


def test_load_and_unload_over_http(server: Server, repository: Repository) -> None:
    repository.model("r_http", execution="thread")
    reply = server.post("/v2/repository/models/r_http/load")
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b"", "application/json")
    assert server.http("GET", "/v2/models/r_http/ready").status == 200
    reply = server.post("/v2/repository/models/r_http/unload", {"parameters": {"unload_dependents": False}})
    assert (reply.status, reply.body) == (200, b"")
    wait_for("it is gone", lambda: server.http("GET", "/v2/models/r_http/ready").status != 200)


def test_tritonclient_loads_and_unloads(server: Server, repository: Repository) -> None:
    repository.model("r_client", execution="thread")
    with InferenceServerClient(server.grpc_address) as client:
        client.load_model("r_client")
        assert client.is_model_ready("r_client")
        client.unload_model("r_client")
    with HttpClient(server.http_address) as client:
        client.load_model("r_client")
        assert client.is_model_ready("r_client")
        client.unload_model("r_client")


def test_unloading_what_is_not_loaded_is_fine(server: Server, repository: Repository) -> None:
    repository.model("r_never")
    server.unload("r_never")
    server.unload("nobody")


def test_a_second_load_of_unchanged_files_does_nothing(server: Server, repository: Repository) -> None:
    constant(repository, "r_same", 1)
    server.load("r_same")
    value_of(server, "r_same")
    server.load("r_same")
    server.load("r_same")
    first = server.statistics("r_same").inference_count
    server.load("r_same")
    assert server.statistics("r_same").inference_count == first
    assert value_of(server, "r_same") == 1


def test_a_load_takes_changed_files(server: Server, repository: Repository) -> None:
    constant(repository, "r_changed", 1)
    server.load("r_changed")
    assert value_of(server, "r_changed") == 1
    constant(repository, "r_changed", 2)
    repository.touch("r_changed")
    assert value_of(server, "r_changed") == 1
    server.load("r_changed")
    assert value_of(server, "r_changed") == 2


def test_no_request_fails_while_a_model_is_replaced_again_and_again(server: Server, repository: Repository) -> None:
    constant(repository, "r_swap", 0)
    server.load("r_swap")
    stop = threading.Event()
    seen: list[int] = []
    errors: list[str] = []

    def ask() -> None:
        while not stop.is_set():
            try:
                seen.append(value_of(server, "r_swap"))
            except grpc.RpcError as error:
                errors.append(f"{error.code()}: {error.details()}")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for value in range(1, 6):
            constant(repository, "r_swap", value)
            repository.touch("r_swap")
            server.load("r_swap")
            assert value_of(server, "r_swap") == value, "the load was answered before the new version served"
            count = len(seen)
            wait_for("requests go on", lambda count=count: len(seen) > count + 10)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert set(seen) == set(range(6))


def test_a_failed_reload_keeps_what_serves(server: Server, repository: Repository) -> None:
    constant(repository, "r_failed", 1)
    server.load("r_failed")
    repository.model("r_failed", config="nonsense {")
    repository.touch("r_failed")
    with refused("INTERNAL|INVALID_ARGUMENT", "r_failed"):
        server.load("r_failed")
    assert value_of(server, "r_failed") == 1
    constant(repository, "r_failed", 1, source="broken")
    repository.touch("r_failed")
    with refused("INVALID_ARGUMENT", "init failed"):
        server.load("r_failed")
    assert value_of(server, "r_failed") == 1


def test_requests_that_run_finish_while_their_model_is_unloaded(
    server: Server, repository: Repository, gate: Callable[[str], Gate]
) -> None:
    repository.model(
        "r_busy", "gate", inputs=[Tensor("IN", "FP32", (1,))], outputs=[Tensor("OUT", "FP32", (1,))], max_batch_size=0
    )
    server.load("r_busy")
    hold = gate("busy")
    running = server.later(request("r_busy", {"IN": np.ones(1, np.float32)}, parameters=hold.parameters))
    wait_for("it runs", hold.entered)
    queued = server.later(request("r_busy", {"IN": np.ones(1, np.float32) * 2}))
    wait_for("it waits", lambda: server.metric("nv_inference_pending_request_count", model="r_busy") == 1)
    unloading = server.stub.RepositoryModelUnload.future(
        pb.RepositoryModelUnloadRequest(model_name="r_busy"), timeout=30
    )
    wait_for("it is unloading", lambda: "READY" not in server.states("r_busy"))
    with refused("NOT_FOUND|UNAVAILABLE", "r_busy"):
        server.infer("r_busy", {"IN": np.ones(1, np.float32)})
    hold.open()
    assert arrays(running.result())["OUT"].tolist() == [1]
    assert arrays(queued.result())["OUT"].tolist() == [2]
    unloading.result()
    wait_for("it is unloaded", lambda: server.index()["r_busy", "1"] == ("UNAVAILABLE", "unloaded"))


def test_loads_of_different_models_do_not_wait_for_each_other(
    server: Server, repository: Repository, gate: Callable[[str], Gate]
) -> None:
    hold = gate("slow")
    repository.model("r_slow", "slow_start", parameters={"gate": str(hold.path)})
    repository.model("r_quick", execution="thread")
    slow = server.stub.RepositoryModelLoad.future(pb.RepositoryModelLoadRequest(model_name="r_slow"), timeout=60)
    wait_for("it is loading", lambda: server.states("r_slow") == ["LOADING"])
    server.load("r_quick")
    server.infer("r_quick", {"IN": X})
    assert not slow.done()
    with refused("UNAVAILABLE|NOT_FOUND", "r_slow"):
        server.infer("r_slow", {"IN": X})
    hold.open()
    slow.result()
    server.infer("r_slow", {"IN": X})


# -- overrides


def test_a_configuration_in_the_load_request_replaces_the_files_one(server: Server, repository: Repository) -> None:
    constant(repository, "r_override", 1)
    server.load("r_override")
    server.load("r_override", config=constant_config(7))
    assert value_of(server, "r_override") == 7
    repository.touch("r_override")
    server.load("r_override")
    assert value_of(server, "r_override") == 1


@pytest.mark.differs("override-reverts")
def test_the_next_plain_load_goes_back_to_the_files(server: Server, repository: Repository) -> None:
    constant(repository, "r_back", 1)
    server.load("r_back")
    server.load("r_back", config=constant_config(7))
    server.load("r_back")
    assert value_of(server, "r_back") == 1


def test_an_override_over_http(server: Server, repository: Repository) -> None:
    constant(repository, "r_override_http", 1)
    reply = server.post("/v2/repository/models/r_override_http/load", {"parameters": {"config": constant_config(8)}})
    assert (reply.status, reply.body) == (200, b"")
    assert value_of(server, "r_override_http") == 8


def test_files_in_the_load_request_make_versions(server: Server, repository: Repository) -> None:
    constant(repository, "r_files", 1)
    server.load("r_files")
    source = (MODELS / "constant.py").read_bytes()
    server.load("r_files", config=constant_config(9), **{"file:7/model.py": source})
    assert value_of(server, "r_files") == 9
    assert value_of(server, "r_files", "7") == 9
    wait_for("the old version is gone", lambda: server.index().get(("r_files", "1"), ("", ""))[0] != "READY")
    with refused("NOT_FOUND|UNAVAILABLE", "'r_files' version 1 is not"):
        value_of(server, "r_files", "1")


def test_files_over_http_are_base64(server: Server, repository: Repository) -> None:
    source = base64.b64encode((MODELS / "constant.py").read_bytes()).decode()
    parameters = {"config": constant_config(4), "file:1/model.py": source}
    reply = server.post("/v2/repository/models/r_files_http/load", {"parameters": parameters})
    assert (reply.status, reply.body) == (200, b"")
    assert value_of(server, "r_files_http") == 4
    server.unload("r_files_http")


def test_a_failed_override_keeps_what_serves(server: Server, repository: Repository) -> None:
    constant(repository, "r_bad_override", 1)
    server.load("r_bad_override")
    broken = (MODELS / "broken.py").read_bytes()
    with refused("INVALID_ARGUMENT", "init failed"):
        server.load("r_bad_override", config=constant_config(2), **{"file:2/model.py": broken})
    assert value_of(server, "r_bad_override") == 1


BAD_LOADS: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown parameter": ("r_params", {"foo": "x"}, r"unrecognized load parameter 'foo'"),
    "a config that is no text": ("r_params", {"config": 5}, r"'config'"),
    "a config that is no JSON": ("r_params", {"config": "nonsense"}, r"r_params|config"),
    "a config with an unknown field": ("r_params", {"config": '{"nosuchfield": 3}'}, r"r_params|nosuchfield"),
    "a config with a wrong type": ("r_params", {"config": '{"max_batch_size": "many"}'}, r"r_params|max_batch_size"),
    "a file without a config": ("r_params", {"file:1/model.py": b"x"}, r"r_params|config"),
    "a file that is no bytes": ("r_params", {"config": "{}", "file:1/model.py": "x"}, r"file:1/model.py"),
    "a file outside the model": ("r_params", {"config": "{}", "file:../../x.py": b"x"}, r"r_params|file"),
    "a file outside the model, hidden": ("r_params", {"config": "{}", "file:1/../../x.py": b"x"}, r"r_params|file"),
    "an absolute file": ("r_params", {"config": "{}", "file:/x.py": b"x"}, r"r_params|file"),
    "a name that climbs": ("..", {}, r"\.\."),
    "a name with a slash": ("a/b", {}, r"a/b"),
    "no name": ("", {}, r"."),
    "a model that is not there": ("nobody", {}, r"^failed to load 'nobody', failed to poll from model repository"),
}


@pytest.mark.parametrize("case", BAD_LOADS)
def test_a_load_that_makes_no_sense_is_refused(server: Server, repository: Repository, case: str) -> None:
    repository.model("r_params", execution="thread")
    name, parameters, pattern = BAD_LOADS[case]
    with refused("INTERNAL|INVALID_ARGUMENT", pattern):
        server.load(name, **parameters)
    assert server.states("r_params") in ([""], ["UNAVAILABLE"])


@pytest.mark.parametrize(
    ("config", "pattern"),
    [
        ("nosuchfield: 3\n", r"config\.pbtxt:1:.*nosuchfield"),
        ('backend: "python"\nmax_batch_size: "many"\n', r"config\.pbtxt:2:17: .*max_batch_size"),
        (
            'backend: "python"\ninput [ { name: "IN" data_type: TYPE_FP31 dims: [ 1 ] } ]\n',
            r"config\.pbtxt:2:33: .*TYPE_FP31",
        ),
        ('backend: "python"\n\n\ninput [ {', r"config\.pbtxt:4:10: "),
        ('name: "another"\nbackend: "python"\n', r"another"),
        ('backend: "python"\nmax_batch_size: -1\n', r"max_batch_size|batch"),
    ],
)
@pytest.mark.differs("config-errors")
def test_a_broken_configuration_is_named_by_file_line_and_field(
    server: Server, repository: Repository, config: str, pattern: str
) -> None:
    repository.model("r_config", config=config)
    with refused("INTERNAL|INVALID_ARGUMENT", f"(?s)r_config.*{pattern}"):
        server.load("r_config")


def test_an_unknown_backend_is_named(server: Server, repository: Repository) -> None:
    repository.model("r_backend", backend="nosuchbackend")
    with refused("INTERNAL|INVALID_ARGUMENT", "r_backend.*nosuchbackend"):
        server.load("r_backend")


def test_a_model_that_cannot_start_says_why(server: Server, repository: Repository, target: Target) -> None:
    repository.model("r_broken", "broken")
    with refused(
        "INVALID_ARGUMENT", "(?s)^load failed for model 'r_broken': version 1 is at UNAVAILABLE state: .*init failed"
    ):
        server.load("r_broken")
    state, reason = server.index()["r_broken", "1"]
    assert state == "UNAVAILABLE"
    assert "init failed" in reason
    with refused(target.pick("failed-model-code", shoal="UNAVAILABLE", triton="NOT_FOUND"), "r_broken"):
        server.infer("r_broken", {"IN": X})
    wait_for("the server is not ready", lambda: not server.ready())
    server.unload("r_broken")
    if target.pick("failed-model-readiness", shoal=True, triton=False):
        wait_for("it is ready again", server.ready)


def test_a_model_without_a_version_says_so(server: Server, repository: Repository) -> None:
    for versions in ((), ("01",), ("one",)):
        repository.model("r_versionless", versions=versions)
        with refused(
            "INVALID_ARGUMENT",
            "at least one version must be available under the version policy of model 'r_versionless'",
        ):
            server.load("r_versionless")
        repository.remove("r_versionless")
    repository.model("r_versionless")


@pytest.mark.differs("missing-model-file", run=False)
def test_a_version_folder_without_its_file_says_so(server: Server, repository: Repository) -> None:
    repository.model("r_fileless", source="")
    with refused("INVALID_ARGUMENT", r"r_fileless.*model\.py"):
        server.load("r_fileless")


# -- versions


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", [10]),
        ("version_policy { latest { num_versions: 2 } }", [3, 10]),
        ("version_policy { all { } }", [1, 3, 10]),
        ("version_policy { specific { versions: [ 1, 3 ] } }", [1, 3]),
        ("version_policy { specific { versions: [ 3, 99 ] } }", [3]),
    ],
)
def test_the_version_policy_chooses(server: Server, repository: Repository, policy: str, served: list[int]) -> None:
    repository.model("r_policy", versions=(1, 3, 10, "02", "x"), more=policy, execution="thread")
    server.load("r_policy")
    assert sorted(int(version) for name, version in server.index(ready=True) if name == "r_policy") == served
    assert server.infer("r_policy", {"IN": X}).model_version == str(served[-1])
    for version in served:
        assert server.infer("r_policy", {"IN": X}, version=str(version)).model_version == str(version)


def test_a_new_version_is_served_beside_or_instead_of_the_old(server: Server, repository: Repository) -> None:
    constant(repository, "r_next", 1)
    server.load("r_next")
    repository.model("r_next", parameters={"value": "1"}, **{**CONSTANT, "versions": (2,)})
    (repository.path / "r_next" / "2" / "model.py").write_text((MODELS / "constant.py").read_text())
    server.load("r_next")
    assert server.infer("r_next", {"IN": np.zeros(1, np.float32)}).model_version == "2"
    wait_for("the old version is gone", lambda: server.index().get(("r_next", "1"), ("", ""))[0] != "READY")


# -- completion


def test_a_python_model_completes_its_own_configuration(server: Server, repository: Repository) -> None:
    repository.model("r_auto", "autocomplete", config="")
    server.load("r_auto")
    shown = server.http("GET", "/v2/models/r_auto/config").json()
    assert shown["max_batch_size"] == 4
    assert shown["backend"] == "python"
    assert [tensor["name"] for tensor in shown["input"]] == ["IN"]
    assert "dynamic_batching" in shown
    assert arrays(server.infer("r_auto", {"IN": X + 1}))["OUT"].tolist() == (X + 1).tolist()


def test_the_backend_is_found_by_the_file(server: Server, repository: Repository) -> None:
    repository.model("r_found", backend="", execution="thread")
    server.load("r_found")
    assert server.http("GET", "/v2/models/r_found/config").json()["backend"] == "python"


def test_fields_without_a_meaning_here_are_accepted(server: Server, repository: Repository) -> None:
    more = """
    optimization { graph { level: 1 } cuda { graphs: true busy_wait_events: true } execution_accelerators { } }
    instance_group [ { name: "mine" kind: KIND_CPU count: 2 host_policy: "none" } ]
    cc_model_filenames { key: "7.5" value: "x" }
    metric_tags { key: "team" value: "search" }
    model_repository_agents { }
    """
    repository.model("r_fields", more=more.replace("model_repository_agents { }", ""), execution="thread")
    server.load("r_fields")
    shown = server.http("GET", "/v2/models/r_fields/config").json()
    assert shown["instance_group"][0]["name"] == "mine"
    assert shown["metric_tags"] == {"team": "search"}
    assert shown["optimization"]["cuda"]["busy_wait_events"] is True


def test_a_warmup_runs_before_the_model_is_ready(
    server: Server, repository: Repository, target: Target, tmp_path: Any
) -> None:
    tensor = 'inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }'
    warmup = f'model_warmup [ {{ name: "w" batch_size: 2 count: 3 {tensor} }} ]'
    repository.model("r_warm", "marks", more=warmup, parameters={"folder": str(tmp_path)})
    server.load("r_warm")
    assert (tmp_path / "executed").read_text() == "xxx"
    counted = target.pick("warmup-statistics", shoal=0, triton=3)
    assert server.statistics("r_warm").execution_count == counted
    assert server.metric("nv_inference_exec_count", model="r_warm") == counted


@pytest.mark.parametrize(
    ("warmup", "pattern"),
    [
        ('name: "w" batch_size: 1', "r_warm"),
        (
            'name: "w" batch_size: 1 inputs { key: "XX" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }',
            "XX|IN",
        ),
        (
            'name: "w" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 5 ] zero_data: true } }',
            "IN",
        ),
        (
            'name: "w" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 4 ] input_data_file: "no" } }',
            "no",
        ),
    ],
)
def test_a_warmup_that_does_not_fit_fails_the_load(
    server: Server, repository: Repository, warmup: str, pattern: str
) -> None:
    repository.model("r_warm", more=f"model_warmup [ {{ {warmup} }} ]", execution="thread")
    with refused("INVALID_ARGUMENT|INTERNAL", f"(?s)r_warm.*({pattern})"):
        server.load("r_warm")


@pytest.mark.differs("warmup-batch", run=False)
def test_a_warmup_of_a_batch_beyond_the_largest_fails_the_load(server: Server, repository: Repository) -> None:
    tensor = 'inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }'
    repository.model("r_warm", more=f'model_warmup [ {{ name: "w" batch_size: 99 {tensor} }} ]', execution="thread")
    with refused("INVALID_ARGUMENT|INTERNAL", "(?s)r_warm.*8"):
        server.load("r_warm")


@pytest.mark.differs("later-schedulers")
@pytest.mark.parametrize(
    "more",
    [
        "model_transaction_policy { decoupled: true }",
        "sequence_batching { }",
    ],
)
def test_what_is_not_served_yet_is_refused_when_it_is_loaded(server: Server, repository: Repository, more: str) -> None:
    repository.model("r_later", more=more)
    with refused("UNIMPLEMENTED", "r_later"):
        server.load("r_later")

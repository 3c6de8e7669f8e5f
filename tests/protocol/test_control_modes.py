"""The modes none and poll, several repositories, and what happens when models fail at the start."""

from __future__ import annotations

import contextlib
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.protocol.conftest import Serve
from tests.protocol.harness.grpc_calls import arrays, refused
from tests.protocol.harness.repository import Repository, Tensor
from tests.protocol.harness.server import ServedProcess
from tests.protocol.harness.targets import Target
from tests.protocol.harness.waiting import wait_for

ONE: dict[str, Any] = {
    "source": "constant",
    "inputs": [Tensor("IN", "FP32", (1,))],
    "outputs": [Tensor("OUT", "INT32", (1,))],
    "max_batch_size": 0,
    "execution": "thread",
}
NOT_ALLOWED = "^explicit model load / unload is not allowed if polling is enabled$"


def constant(repository: Repository, name: str, value: int) -> None:
    repository.model(name, parameters={"value": str(value)}, **ONE)
    repository.touch(name)


def value_of(server: ServedProcess, name: str) -> int:
    return int(arrays(server.infer(name, {"IN": np.zeros(1, np.float32)}))["OUT"][0])


def not_allowed(server: ServedProcess) -> None:
    for name in ("a", "nobody"):
        with refused("UNAVAILABLE", NOT_ALLOWED):
            server.load(name)
        with refused("UNAVAILABLE", NOT_ALLOWED):
            server.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name=name), timeout=10)
        for verb in ("load", "unload"):
            reply = server.post(f"/v2/repository/models/{name}/{verb}")
            assert reply.status == 503
            assert "is not allowed if polling is enabled" in reply.error


def test_mode_none_loads_everything_once(start: Serve) -> None:
    def write(repository: Repository) -> None:
        constant(repository, "a", 1)
        constant(repository, "b", 2)

    server = start(write, []).wait_ready()
    assert (value_of(server, "a"), value_of(server, "b")) == (1, 2)
    constant(server.repository, "a", 5)
    constant(server.repository, "c", 3)
    assert value_of(server, "a") == 1
    assert ("c", "") in server.index()
    with refused("NOT_FOUND", "'c' is not found"):
        value_of(server, "c")
    not_allowed(server)


def test_mode_poll_follows_the_folder(start: Serve) -> None:
    def write(repository: Repository) -> None:
        constant(repository, "a", 1)
        constant(repository, "going", 2)

    server = start(write, ["--model-control-mode=poll", "--repository-poll-secs=1"]).wait_ready()
    assert value_of(server, "a") == 1
    not_allowed(server)

    constant(server.repository, "new", 3)
    wait_for("the new model serves", lambda: server.states("new") == ["READY"], 30)
    assert value_of(server, "new") == 3

    constant(server.repository, "a", 7)
    wait_for("the changed model serves", lambda: value_of(server, "a") == 7, 30)

    server.repository.remove("going")
    wait_for("the removed model is gone", lambda: server.states("going") == [], 30)
    wait_for("nobody is routed to it any more", lambda: not answers(server, "going"))
    with refused("NOT_FOUND", "'going'"):
        value_of(server, "going")

    (server.repository.path / "a" / "config.pbtxt").write_text("nonsense {")
    server.repository.touch("a")
    constant(server.repository, "after", 4)  # once it is there, the broken file has been seen as well
    wait_for("a poll has passed", lambda: server.states("after") == ["READY"], 30)
    assert value_of(server, "a") == 7


def test_a_failed_model_leaves_the_others_serving_and_the_server_unready(start: Serve, target: Target) -> None:
    def write(repository: Repository) -> None:
        constant(repository, "good", 1)
        repository.model("bad", "broken", execution="thread")

    server = start(write, ["--exit-on-error=false"])
    wait_for("the good model serves", lambda: server.running() and answers(server, "good"), 60)
    wait_for("the bad one has failed", lambda: server.states("bad") == ["UNAVAILABLE"], 60)
    assert not server.ready()
    reply = server.http("GET", "/v2/health/ready")
    assert reply.status == target.pick("not-ready-503", shoal=503, triton=400)
    if target.is_shoal:
        assert "init failed" in reply.json()["error"]


def answers(server: ServedProcess, name: str) -> bool:
    with contextlib.suppress(grpc.RpcError):
        return value_of(server, name) > 0
    return False


def test_without_strict_readiness_a_failed_model_does_not_matter(start: Serve) -> None:
    def write(repository: Repository) -> None:
        constant(repository, "good", 1)
        repository.model("bad", "broken", execution="thread")

    server = start(write, ["--exit-on-error=false", "--strict-readiness=false"]).wait_ready()
    assert value_of(server, "good") == 1
    assert server.states("bad") == ["UNAVAILABLE"]


@pytest.mark.differs("exit-on-error", run=False)
def test_by_default_a_failed_model_at_the_start_ends_the_server(start: Serve) -> None:
    server = start(lambda repository: repository.model("bad", "broken", execution="thread"), [])
    assert server.ended(60) != 0
    assert "init failed" in server.log()
    assert "bad" in server.log()


def test_a_model_in_two_repositories_is_not_served(start: Serve, tmp_path: Any) -> None:
    second = Repository(tmp_path / "second")
    constant(second, "twice", 2)
    constant(second, "other", 5)

    def write(repository: Repository) -> None:
        constant(repository, "twice", 1)
        constant(repository, "single", 3)

    server = start(write, [f"--model-repository={second.path}", "--exit-on-error=false"])
    wait_for(
        "the others serve", lambda: server.running() and answers(server, "single") and answers(server, "other"), 60
    )
    with refused("NOT_FOUND|UNAVAILABLE", "twice"):
        value_of(server, "twice")


def test_only_the_models_named_are_loaded_in_explicit_mode(start: Serve) -> None:
    def write(repository: Repository) -> None:
        for number, name in enumerate(("a", "b", "c")):
            constant(repository, name, number + 1)

    server = start(write, ["--model-control-mode=explicit", "--load-model=a", "--load-model=c"]).wait_ready()
    assert (value_of(server, "a"), value_of(server, "c")) == (1, 3)
    assert server.index()["b", ""] == ("", "")


def test_a_configuration_may_be_chosen_by_name(start: Serve) -> None:
    def write(repository: Repository) -> None:
        constant(repository, "a", 1)
        folder = repository.path / "a"
        (folder / "configs").mkdir()
        text = (folder / "config.pbtxt").read_text().replace('string_value: "1"', 'string_value: "9"')
        (folder / "configs" / "large.pbtxt").write_text(text)
        constant(repository, "b", 2)

    server = start(write, ["--model-config-name=large"]).wait_ready()
    assert (value_of(server, "a"), value_of(server, "b")) == (9, 2)


def test_without_completion_a_configuration_must_be_whole(start: Serve) -> None:
    def write(repository: Repository) -> None:
        constant(repository, "whole", 1)
        repository.model("auto", "autocomplete", config="")

    server = start(write, ["--disable-auto-complete-config", "--exit-on-error=false"])
    wait_for("the whole one serves", lambda: server.running() and answers(server, "whole"), 60)
    assert server.states("auto") != ["READY"]

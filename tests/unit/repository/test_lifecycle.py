"""Loading, replacing and unloading while requests are served: what is routed at each moment, and what is freed when."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path

import pytest

from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.options import ControlMode
from shoal_dataplane.repository.manager import ModelRepository
from shoal_dataplane.repository.records import LoadEvent
from shoal_dataplane.repository.threads import run_all
from shoal_dataplane.repository.types import IndexEntry, ModelState, RepositoryParameter
from tests.unit.repository.fakes import CONFIG, PATIENCE, Bench, in_thread, join, refusal

READY, UNLOADING, UNAVAILABLE = ModelState.READY, ModelState.UNLOADING, ModelState.UNAVAILABLE
ALL_VERSIONS = CONFIG + "version_policy { all { } }"
OUTDATED = "Newer operation has been applied to the model lifecycle, current load operation is out-dated."


@pytest.fixture
def repository(bench: Bench) -> ModelRepository:
    return bench.started(ControlMode.EXPLICIT)


def config_json(**fields: object) -> str:
    tensor = {"data_type": "TYPE_FP32", "dims": [4]}
    return json.dumps(
        {"backend": "fake", "input": [{"name": "IN", **tensor}], "output": [{"name": "OUT", **tensor}], **fields}
    )


class TestReplacement:
    def test_the_old_version_serves_until_every_new_one_is_ready(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        folder = bench.model("m", 1, 2, config=ALL_VERSIONS, content="old")
        repository.load("m")
        bench.version(folder, 1, "new")
        bench.version(folder, 2, "new")
        bench.factory.hold("m", 2)
        load, raised = in_thread(lambda: repository.load("m"))
        bench.factory.wait_begun("m", 2)
        assert bench.publisher.serving("m") == {1: "old", 2: "old"}
        assert repository.index() == [IndexEntry("m", "1", "READY", ""), IndexEntry("m", "2", "READY", "")]
        assert repository.unready() == []
        bench.factory.release("m", 2)
        join(load)
        assert not raised
        assert bench.publisher.history["m"] == [{1: "old", 2: "old"}, {1: "new", 2: "new"}]

    def test_what_was_replaced_is_freed_after_it_is_no_longer_routed_and_idle(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        folder = bench.model("m", content="old")
        repository.load("m")
        old = bench.factory.last("m")
        old.idle.clear()
        bench.version(folder, 1, "new")
        repository.load("m")  # returns although the old version runs a request still
        assert bench.publisher.serving("m") == {1: "new"}
        assert old.draining.wait(PATIENCE)
        assert old.closes == 0
        unload, _ = in_thread(lambda: repository.unload("m"))
        old.idle.set()
        join(unload)
        assert (old.drained, old.closes) == (True, 1)
        assert [s.closes for s in bench.factory.built] == [1, 1]

    def test_a_reload_that_fails_keeps_what_serves_and_frees_what_it_built(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        folder = bench.model("m", 1, 2, config=ALL_VERSIONS, content="old")
        repository.load("m")
        bench.version(folder, 1, "new")
        bench.version(folder, 2, "corrupt")
        error = refusal(lambda: repository.load("m"))
        assert "version 2 is at UNAVAILABLE state: Invalid argument: " in str(error)
        assert bench.publisher.history["m"] == [{1: "old", 2: "old"}]
        assert [(s.content, s.closes) for s in bench.factory.built] == [("old", 0), ("old", 0), ("new", 1)]
        assert [row.state for row in repository.index()] == ["READY", "READY"]

    def test_a_load_that_failed_is_tried_again_though_nothing_changed(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        bench.model("m")
        bench.factory.errors["m", 1] = RuntimeError("no memory")
        assert refusal(lambda: repository.load("m")) is not None
        bench.factory.errors.clear()
        repository.load("m")
        assert repository.index() == [IndexEntry("m", "1", "READY", "")]

    def test_a_version_that_a_policy_drops_is_shown_as_unloaded(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        folder = bench.model("m", 1, 2, config=ALL_VERSIONS)
        repository.load("m")
        (folder / "config.pbtxt").write_text(CONFIG)
        repository.load("m")
        bench.events.wait("m", UNAVAILABLE)
        assert repository.index() == [
            IndexEntry("m", "1", "UNAVAILABLE", "unloaded"),
            IndexEntry("m", "2", "READY", ""),
        ]
        assert repository.unready() == []


class TestNothingToDo:
    def test_loading_what_did_not_change_succeeds_without_a_build(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        bench.model("m")
        repository.load("m")
        repository.load("m")
        assert len(bench.factory.built) == 1
        assert len(bench.publisher.history["m"]) == 1

    def test_an_unloaded_model_is_loaded_again(self, bench: Bench, repository: ModelRepository) -> None:
        bench.model("m")
        repository.load("m")
        repository.unload("m")
        repository.load("m")
        assert bench.publisher.history["m"] == [{1: "weights"}, {}, {1: "weights"}]

    def test_another_policy_builds_only_the_versions_it_adds(self, bench: Bench, repository: ModelRepository) -> None:
        folder = bench.model("m", 1, 2)
        repository.load("m")
        kept = bench.factory.last("m", 2)
        (folder / "config.pbtxt").write_text(ALL_VERSIONS)
        repository.load("m")
        assert bench.factory.attempts == {("m", 2): 1, ("m", 1): 1}
        assert bench.publisher.tables["m"][2] is kept
        assert kept.source.config.version_policy.WhichOneof("policy_choice") == "all"
        (folder / "config.pbtxt").write_text(CONFIG)
        repository.load("m")
        assert bench.publisher.tables["m"] == {2: kept}
        assert kept.source.config.version_policy.latest.num_versions == 1
        assert kept.closes == 0

    def test_only_the_version_whose_files_changed_is_built_again(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        folder = bench.model("m", 1, 2, config=ALL_VERSIONS)
        repository.load("m")
        bench.version(folder, 2, "new")
        repository.load("m")
        assert bench.factory.attempts == {("m", 1): 1, ("m", 2): 2}

    def test_a_comment_builds_nothing_and_a_setting_or_a_shared_file_everything(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        folder = bench.model("m", 1, 2, config=ALL_VERSIONS)
        repository.load("m")
        (folder / "config.pbtxt").write_text("# a comment\n" + ALL_VERSIONS)
        repository.load("m")
        assert bench.factory.attempts == {("m", 1): 1, ("m", 2): 1}
        (folder / "config.pbtxt").write_text(ALL_VERSIONS + "max_batch_size: 2")
        repository.load("m")
        assert bench.factory.attempts == {("m", 1): 2, ("m", 2): 2}
        (folder / "labels.txt").touch()
        repository.load("m")
        assert bench.factory.attempts == {("m", 1): 3, ("m", 2): 3}


class TestUnload:
    def test_it_returns_when_the_memory_is_free(self, bench: Bench, repository: ModelRepository) -> None:
        bench.model("m")
        repository.load("m")
        servable = bench.factory.last("m")
        servable.idle.clear()
        servable.close_gate = threading.Event()
        unload, _ = in_thread(lambda: repository.unload("m"))
        assert servable.draining.wait(PATIENCE)
        assert bench.publisher.serving("m") == {}
        assert bench.publisher.waiting["m"] == {1}
        assert repository.index() == [IndexEntry("m", "1", "UNLOADING", "")]
        assert repository.unready() == []  # it goes as asked: no reason to take the server out of service
        servable.idle.set()
        assert unload.is_alive()
        servable.close_gate.set()
        join(unload)
        assert servable.closes == 1
        assert repository.index() == [IndexEntry("m", "1", "UNAVAILABLE", "unloaded")]
        assert bench.publisher.waiting["m"] == set()

    def test_a_request_that_does_not_end_is_waited_for_no_longer_than_allowed(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench.model("m")
        repository = bench.started(ControlMode.EXPLICIT, load_models=("m",), drain_seconds=0.01)
        servable = bench.factory.last("m")
        servable.idle.clear()
        repository.unload("m")
        assert (servable.drained, servable.closes) == (False, 1)
        assert "'m' version 1 still ran requests" in caplog.text

    def test_a_model_that_fails_while_it_closes_is_unloaded_all_the_same(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        bench.model("m", 1, 2, config=ALL_VERSIONS)
        repository.load("m")

        bench.factory.last("m", 1).fails = "close"
        bench.factory.last("m", 2).fails = "drain"
        repository.unload("m")
        assert [row.reason for row in repository.index()] == ["unloaded", "unloaded"]
        assert bench.factory.last("m", 2).closes == 1


class TestConcurrency:
    def test_an_unload_makes_the_load_before_it_pointless(self, bench: Bench, repository: ModelRepository) -> None:
        bench.model("m")
        bench.factory.hold("m")
        load, raised = in_thread(lambda: repository.load("m"))
        bench.factory.wait_begun("m")
        assert repository.index() == [IndexEntry("m", "1", "LOADING", "")]
        assert bench.publisher.waiting["m"] == {1}
        unload, _ = in_thread(lambda: repository.unload("m"))
        bench.wait_came("m", 2)
        bench.factory.release("m")
        join(load)
        join(unload)
        assert [str(error) for error in raised] == [f"load failed for model 'm': {OUTDATED}"]
        assert "m" not in {name for name, history in bench.publisher.history.items() if any(history)}
        assert bench.factory.open() == []
        assert repository.index() == [IndexEntry("m", "1", "UNAVAILABLE", "unloaded")]

    def test_a_load_with_a_configuration_makes_the_load_before_it_pointless(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        bench.model("m")
        bench.factory.hold("m")
        first, raised = in_thread(lambda: repository.load("m"))
        bench.factory.wait_begun("m")
        second, nothing = in_thread(lambda: repository.load("m", {"config": config_json(max_batch_size=3)}))
        bench.wait_came("m", 2)
        bench.factory.release("m")
        join(first)
        join(second)
        assert isinstance(raised[0], ServingError)
        assert raised[0].code is Code.INVALID_ARGUMENT
        assert not nothing
        assert [s.source.config.max_batch_size for s in bench.publisher.tables["m"].values()] == [3]
        assert bench.factory.open() == [("m", 1)]

    def test_two_loads_of_the_same_files_both_succeed_with_one_build(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        bench.model("m")
        bench.factory.hold("m")
        loads = [in_thread(lambda: repository.load("m")) for _ in range(3)]
        bench.factory.wait_begun("m")
        bench.wait_came("m", 3)
        bench.factory.release("m")
        for thread, raised in loads:
            join(thread)
            assert not raised
        assert bench.factory.attempts == {("m", 1): 1}

    def test_operations_on_one_model_run_in_the_order_they_came(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        folder = bench.model("m", content="0")
        repository.load("m")
        old = bench.factory.last("m")
        old.idle.clear()
        threads = [in_thread(lambda: repository.unload("m"))[0]]
        assert old.draining.wait(PATIENCE)
        for step in range(2):
            call = repository.load if step % 2 == 0 else repository.unload
            threads.append(in_thread(partial(call, "m"))[0])
            bench.wait_came("m", step + 3)
        bench.version(folder, 1, "1")
        old.idle.set()
        for thread in threads:
            join(thread)
        # The load in the middle was overtaken by the unload after it.
        assert bench.publisher.history["m"] == [{1: "0"}, {}, {}]

    def test_a_model_that_hangs_holds_up_no_other(self, bench: Bench, repository: ModelRepository) -> None:
        for name in ("stuck", "other", "third"):
            bench.model(name)
        bench.factory.hold("stuck")
        stuck, _ = in_thread(lambda: repository.load("stuck"))
        bench.factory.wait_begun("stuck")
        repository.load("other")
        repository.load("third")
        repository.unload("other")
        assert repository.index(ready_only=True) == [IndexEntry("third", "1", "READY", "")]
        bench.factory.release("stuck")
        join(stuck)

    def test_many_threads_leave_a_consistent_state(self, bench: Bench, repository: ModelRepository) -> None:
        names = ["a", "b"]
        for name in names:
            bench.model(name)

        def work(seed: int) -> None:
            for step in range(6):
                name = names[(seed + step) % 2]
                if (seed + step) % 3:
                    refusal(partial(repository.load, name))
                else:
                    repository.unload(name)

        threads = [in_thread(partial(work, seed)) for seed in range(6)]
        for thread, raised in threads:
            join(thread)
            assert not raised
        for name in names:
            repository.load(name)
        assert bench.factory.open() == [("a", 1), ("b", 1)]
        assert [list(bench.publisher.tables[name]) for name in names] == [[1], [1]]
        assert [row.state for row in repository.index()] == ["READY", "READY"]

    def test_a_listener_that_raises_is_harmless(self, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
        def listener(event: LoadEvent) -> None:
            raise RuntimeError("boom")

        bench.listener = listener
        bench.model("m")
        assert bench.started().unready() == []
        assert "a listener of the repository raised" in caplog.text


class TestOverride:
    def test_a_configuration_is_served_until_the_next_load_without_one(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        bench.model("m", config=CONFIG + "max_batch_size: 1")
        repository.load("m")
        repository.load("m", {"config": config_json(max_batch_size=9)})
        assert bench.publisher.tables["m"][1].source.config.max_batch_size == 9
        repository.load("m")
        assert bench.publisher.tables["m"][1].source.config.max_batch_size == 1

    def test_the_same_configuration_again_builds_nothing(self, bench: Bench, repository: ModelRepository) -> None:
        bench.model("m")
        for _ in range(2):
            repository.load("m", {"config": config_json(max_batch_size=9)})
        assert len(bench.factory.built) == 1

    def test_files_replace_those_of_the_repository_until_the_next_load(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        bench.model("m", 1, 2)
        repository.load("m")
        repository.load("m", {"config": config_json(), "file:3/model.txt": b"sent"})
        workspace = bench.factory.last("m", 3).source.model_dir
        assert bench.publisher.serving("m") == {3: "sent"}
        assert bench.path not in workspace.parents
        assert (workspace / "3" / "model.txt").read_bytes() == b"sent"
        repository.load("m")
        repository.load("m")  # has its turn once the replaced version is freed
        assert bench.publisher.serving("m") == {2: "weights"}
        assert not workspace.exists()

    def test_files_are_gone_after_an_unload_and_after_another_override(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        bench.model("m")
        workspaces: list[Path] = []
        for content in (b"first", b"second"):
            repository.load("m", {"config": config_json(), "file:1/model.txt": content})
            workspaces.append(bench.factory.last("m").source.model_dir)
        repository.unload("m")
        assert not any(path.exists() for path in workspaces)

    def test_a_model_that_only_a_request_knows_is_served_and_then_forgotten(
        self, bench: Bench, repository: ModelRepository
    ) -> None:
        repository.load("sent", {"config": config_json(), "file:1/model.txt": b"x"})
        assert repository.index() == [IndexEntry("sent", "1", "READY", "")]
        repository.unload("sent")
        assert repository.index() == []
        assert bench.publisher.forgotten == ["sent"]

    def test_an_override_that_fails_leaves_nothing_behind(self, bench: Bench, repository: ModelRepository) -> None:
        bench.model("m")
        repository.load("m")
        bench.backend.completed.clear()
        for name in ("m", "stranger"):
            corrupt: dict[str, RepositoryParameter] = {"config": config_json(), "file:1/model.txt": b"corrupt"}
            assert "is corrupt" in str(refusal(partial(repository.load, name, corrupt)))
            misnamed: dict[str, RepositoryParameter] = {"config": '{"name": "other"}', "file:1/model.txt": b""}
            assert "directory name must equal model name" in str(refusal(partial(repository.load, name, misnamed)))
        assert bench.publisher.serving("m") == {1: "weights"}
        assert repository.index() == [IndexEntry("m", "1", "READY", "")]
        assert repository.unready() == []
        assert len(bench.backend.completed) == 2
        assert not any(path.exists() for path in bench.backend.completed)

    def test_a_configuration_for_another_model_is_refused(self, bench: Bench, repository: ModelRepository) -> None:
        bench.model("m")
        error = refusal(lambda: repository.load("m", {"config": config_json(name="n")}))
        assert str(error) == (
            "load failed for model 'm': unexpected directory name 'm' for model 'n', directory name must equal model name"
        )
        assert repository.index() == [IndexEntry("m", "", "", "")]


class TestClose:
    def test_models_stay_routed_until_all_of_them_are_idle(self, bench: Bench) -> None:
        bench.model("a")
        bench.model("b")
        repository = bench.started()
        busy, quiet = bench.factory.last("a"), bench.factory.last("b")
        busy.idle.clear()
        close, _ = in_thread(lambda: repository.close(PATIENCE))
        assert busy.draining.wait(PATIENCE)
        assert quiet.draining.wait(PATIENCE)
        assert bench.publisher.serving("b") == {1: "weights"}  # the request that runs in a may call it
        assert quiet.closes == 0
        busy.idle.set()
        join(close)
        assert bench.publisher.serving("a") == bench.publisher.serving("b") == {}
        assert (busy.closes, quiet.closes) == (1, 1)

    def test_it_says_whether_everything_ended_in_time(self, bench: Bench) -> None:
        bench.model("a")
        assert bench.started().close(PATIENCE) is True
        repository = bench.started()
        bench.factory.last("a").idle.clear()
        assert repository.close(0.01) is False
        assert bench.factory.last("a").closes == 1

    def test_a_version_that_is_being_built_is_never_served(self, bench: Bench, repository: ModelRepository) -> None:
        bench.model("m")
        bench.factory.hold("m")
        load, raised = in_thread(lambda: repository.load("m"))
        bench.factory.wait_begun("m")
        assert repository.close(0.01) is False
        bench.factory.release("m")
        join(load)
        assert len(raised) == 1
        assert bench.publisher.history.get("m", [{}]) == [{}]
        assert bench.factory.open() == []

    def test_nothing_is_loaded_or_unloaded_any_more(self, bench: Bench, repository: ModelRepository) -> None:
        bench.model("m")
        repository.load("m")
        repository.close(1.0)
        for call in (repository.load, repository.unload):
            error = refusal(partial(call, "m"))
            assert error is not None
            assert error.code is Code.UNAVAILABLE
            assert "shutting down" in error.message

    def test_closing_before_the_first_load_has_begun_ends_it(self, bench: Bench) -> None:
        bench.model("m")
        repository = bench.repository()
        repository.close(1.0)
        repository.start()
        assert repository.wait_initial(PATIENCE)
        assert "shutting down" in repository.initial_failures()[0].reason

    def test_a_version_that_is_being_freed_is_shown_as_such(self, bench: Bench, repository: ModelRepository) -> None:
        bench.model("m")
        repository.load("m")
        servable = bench.factory.last("m")
        servable.close_gate = threading.Event()
        close, _ = in_thread(lambda: repository.close(PATIENCE))
        assert servable.closing.wait(PATIENCE)
        assert repository.state("m", 1) == (UNLOADING, "")
        servable.close_gate.set()
        join(close)
        assert repository.state("m", 1) == (UNAVAILABLE, "unloaded")

    def test_files_of_an_override_are_gone(self, bench: Bench, repository: ModelRepository) -> None:
        repository.load("m", {"config": config_json(), "file:1/model.txt": b"x"})
        workspace = bench.factory.last("m").source.model_dir
        assert workspace.exists()
        repository.close(1.0)
        assert not workspace.exists()


class TestRunAll:
    def test_every_call_runs_though_one_raises(self) -> None:
        done: list[int] = []

        def fail() -> None:
            raise SystemExit(1)

        assert run_all([fail, *(partial(done.append, n) for n in range(5))], 2, "t")
        assert sorted(done) == [0, 1, 2, 3, 4]

    def test_no_more_calls_run_at_once_than_workers(self) -> None:
        barrier = threading.Barrier(2)
        assert run_all([lambda: barrier.wait(PATIENCE)] * 6, 2, "t", PATIENCE)

    def test_a_call_that_hangs_is_left_behind(self) -> None:
        gate = threading.Event()
        assert run_all([gate.wait], 1, "t", timeout=0.01) is False
        gate.set()

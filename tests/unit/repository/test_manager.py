"""Which models are loaded when, in each control mode, and what the index and readiness say of them."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.options import ControlMode
from shoal_dataplane.repository.config_pbtxt import parse_config
from shoal_dataplane.repository.layout import declared_model
from shoal_dataplane.repository.types import IndexEntry, ModelState
from tests.unit.repository.fakes import CONFIG, Bench, in_thread, join, refusal

NONE, POLL, EXPLICIT = ControlMode.NONE, ControlMode.POLL, ControlMode.EXPLICIT
READY, UNAVAILABLE = ModelState.READY, ModelState.UNAVAILABLE
SETTLED = 5.0


def code_and_text(error: ServingError | None) -> tuple[Code, str]:
    assert error is not None
    return error.code, error.message


class TestStart:
    def test_mode_none_loads_every_model_by_its_policy(self, bench: Bench) -> None:
        bench.model("a", 1, 2, 3)
        bench.model("b", 1, 2, 10, config=CONFIG + "version_policy { all { } }")
        repository = bench.started()
        assert bench.publisher.serving("a") == {3: "weights"}
        assert list(bench.publisher.serving("b")) == [1, 2, 10]
        assert repository.initial_models() == ("a", "b")
        assert repository.initial_failures() == repository.unready() == []

    def test_one_broken_model_harms_no_other(self, bench: Bench) -> None:
        bench.model("bad", config="nosuchfield: 3")
        bench.model("corrupt", content="corrupt")
        bench.model("empty").joinpath("1/model.txt").unlink()
        bench.model("good")
        bench.model("misnamed", config='name: "other"')
        (bench.path / "nothing").mkdir()
        (bench.path / "nothing" / "config.pbtxt").write_text(CONFIG)
        repository = bench.started()
        assert bench.publisher.serving("good") == {1: "weights"}
        failures = {row.name: row.reason for row in repository.initial_failures()}
        assert sorted(failures) == ["bad", "corrupt", "empty", "misnamed", "nothing"]
        assert failures["bad"].startswith("Invalid argument: failed to read text proto from ")
        assert "config.pbtxt:1:1: ModelConfig has no field 'nosuchfield'" in failures["bad"]
        assert failures["corrupt"].endswith("1/model.txt' is corrupt")
        assert "unable to find" in failures["empty"]
        assert "directory name must equal model name" in failures["misnamed"]
        assert failures["nothing"] == (
            "Invalid argument: at least one version must be available under the version policy of model 'nothing'"
        )
        assert repository.unready() == repository.initial_failures()

    def test_a_model_that_hangs_while_it_loads_holds_up_no_other(self, bench: Bench) -> None:
        for name in ("a", "b", "c", "d"):
            bench.model(name)
        bench.factory.hold("a")
        repository = bench.repository(load_threads=2)
        repository.start()
        bench.factory.wait_begun("a")
        for name in ("b", "c", "d"):
            bench.events.wait(name, READY)
        assert not repository.wait_initial(0)
        assert [row.state for row in repository.unready()] == [ModelState.LOADING]
        bench.factory.release("a")
        bench.events.wait("a", READY)

    def test_no_more_versions_are_built_at_once_than_load_threads(self, bench: Bench) -> None:
        for name in ("a", "b", "c"):
            bench.model(name, 1, 2, 3, config=CONFIG + "version_policy { all { } }")
        bench.started(load_threads=2)
        assert bench.factory.most_building <= 2
        assert len(bench.factory.built) == 9

    def test_a_load_is_tried_again_as_often_as_asked(self, bench: Bench) -> None:
        bench.model("a")
        bench.factory.errors["a", 1] = RuntimeError("boom")
        repository = bench.started(load_retries=2)
        assert bench.factory.attempts["a", 1] == 3
        assert [row.reason for row in repository.unready()] == ["Internal: RuntimeError: boom"]

    def test_a_model_that_ends_the_interpreter_while_loading_fails_alone(self, bench: Bench) -> None:
        bench.model("a")
        bench.model("b")
        bench.factory.errors["a", 1] = SystemExit(3)
        repository = bench.started()
        assert [(row.name, row.reason) for row in repository.unready()] == [("a", "Internal: SystemExit: 3")]
        assert bench.publisher.serving("b") == {1: "weights"}

    def test_progress_is_told_with_the_time_it_took(self, bench: Bench) -> None:
        bench.model("a")
        bench.model("b", content="corrupt")
        bench.started()
        told = [(e.name, e.version, e.state) for e in bench.events.seen]
        assert [t for t in told if t[0] == "a"] == [("a", 1, ModelState.LOADING), ("a", 1, READY)]
        assert [t for t in told if t[0] == "b"] == [("b", 1, ModelState.LOADING), ("b", 1, UNAVAILABLE)]
        assert all(event.seconds > 0 for event in bench.events.seen if event.state is not ModelState.LOADING)

    @pytest.mark.parametrize(
        ("mode", "options", "problem"),
        [
            (
                NONE,
                {"load_models": ("a",)},
                "Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
            ),
            (
                EXPLICIT,
                {"load_models": ("*", "a")},
                "Wildcard model name '*' must be the ONLY startup model if specified at all.",
            ),
            (EXPLICIT, {"load_models": ("../a",)}, "invalid model name '../a'"),
            (NONE, {"paths": (Path("nowhere"),)}, "repository path is not a valid directory: 'nowhere'"),
        ],
    )
    def test_options_that_contradict_each_other_are_refused(
        self, bench: Bench, mode: ControlMode, options: dict[str, Any], problem: str
    ) -> None:
        error = refusal(lambda: bench.repository(mode, **options))
        code, text = code_and_text(error)
        assert code is Code.INVALID_ARGUMENT
        assert text.startswith(problem)


class TestSeveralRepositories:
    def test_a_name_in_two_repositories_is_unavailable_and_the_others_serve(self, bench: Bench, tmp_path: Path) -> None:
        bench.model("a")
        bench.model("b")
        bench.model("a", where=tmp_path / "more")
        bench.model("c", where=tmp_path / "more")
        repository = bench.started(paths=(bench.path, tmp_path / "more"))
        duplicate = IndexEntry("a", "", "UNAVAILABLE", "model appears in two or more repositories")
        assert repository.index() == [duplicate, IndexEntry("b", "1", "READY", ""), IndexEntry("c", "1", "READY", "")]
        assert repository.index(ready_only=True) == repository.index()[1:]
        assert repository.initial_failures() == repository.unready() == [duplicate]
        assert bench.factory.open() == [("b", 1), ("c", 1)]

    def test_a_duplicate_cannot_be_loaded(self, bench: Bench, tmp_path: Path) -> None:
        bench.model("a")
        bench.model("a", where=tmp_path / "more")
        repository = bench.started(EXPLICIT, paths=(bench.path, tmp_path / "more"))
        assert code_and_text(refusal(lambda: repository.load("a"))) == (
            Code.INTERNAL,
            "failed to load 'a', failed to poll from model repository: model appears in two or more repositories",
        )


class TestDeclaredModels:
    def test_they_are_loaded_beside_a_repository_under_their_own_name(self, bench: Bench, tmp_path: Path) -> None:
        bench.model("a")
        folder = bench.model("folder", where=tmp_path, config=CONFIG + "max_batch_size: 2")
        source = declared_model("served", folder, parse_config("max_batch_size: 7"))
        for mode in (NONE, EXPLICIT):
            repository = bench.started(mode, sources=(source,))
            config = bench.factory.last("served").source.config
            assert (config.name, config.max_batch_size) == ("served", 7)
            assert ("a", "1") in [row[:2] for row in repository.index()] or mode is EXPLICIT
            repository.close(1.0)

    def test_a_single_file_is_version_1(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "net.onnx").write_text("network")
        repository = bench.started(paths=(), sources=(declared_model("net", tmp_path / "net.onnx"),))
        source = bench.factory.last("net").source
        assert (source.version, source.version_dir, source.config.backend) == (1, tmp_path, "onnxruntime")
        assert source.config.default_model_filename == "net.onnx"
        assert repository.index() == [IndexEntry("net", "1", "READY", "")]

    def test_one_declared_twice_is_refused(self, bench: Bench, tmp_path: Path) -> None:
        source = declared_model("m", bench.model("folder", where=tmp_path))
        error = refusal(lambda: bench.repository(sources=(source, source)))
        assert str(error) == "model 'm' is declared twice"

    def test_one_with_the_name_of_a_repositorys_model_is_a_duplicate(self, bench: Bench, tmp_path: Path) -> None:
        bench.model("m")
        repository = bench.started(sources=(declared_model("m", bench.model("folder", where=tmp_path)),))
        assert [row.reason for row in repository.unready()] == ["model appears in two or more repositories"]


class TestExplicit:
    def test_only_what_is_named_is_loaded_at_start(self, bench: Bench) -> None:
        bench.model("a")
        bench.model("b")
        repository = bench.started(EXPLICIT, load_models=("a",))
        assert repository.index() == [IndexEntry("a", "1", "READY", ""), IndexEntry("b", "", "", "")]
        assert repository.unready() == []

    def test_a_star_loads_everything(self, bench: Bench) -> None:
        bench.model("a")
        bench.model("b")
        repository = bench.started(EXPLICIT, load_models=("*",))
        assert [row.state for row in repository.index()] == ["READY", "READY"]
        repository.unload("a")
        assert bench.publisher.serving("a") == {}

    def test_a_model_named_at_start_that_is_nowhere_is_a_failure_until_it_comes(self, bench: Bench) -> None:
        repository = bench.started(EXPLICIT, load_models=("later",))
        row = IndexEntry(
            "later", "", "UNAVAILABLE", "Internal: failed to load 'later', failed to poll from model repository"
        )
        assert repository.initial_failures() == repository.unready() == repository.index() == [row]
        bench.model("later")
        repository.load("later")
        assert repository.unready() == []

    @pytest.mark.parametrize("mode", [NONE, POLL])
    def test_load_and_unload_are_refused_in_other_modes(self, bench: Bench, mode: ControlMode) -> None:
        repository = bench.started(mode)
        expected = (Code.UNAVAILABLE, "explicit model load / unload is not allowed if polling is enabled")
        assert code_and_text(refusal(lambda: repository.load("a"))) == expected
        assert code_and_text(refusal(lambda: repository.unload("a"))) == expected

    def test_a_name_that_cannot_be_is_refused(self, bench: Bench) -> None:
        repository = bench.started(EXPLICIT)
        for name in ("", "a/b", "..", "a\0"):
            assert code_and_text(refusal(partial(repository.load, name)))[0] is Code.INVALID_ARGUMENT

    def test_a_model_in_no_repository_is_an_error_that_leaves_nothing_behind(self, bench: Bench) -> None:
        repository = bench.started(EXPLICIT)
        assert code_and_text(refusal(lambda: repository.load("x"))) == (
            Code.INTERNAL,
            "failed to load 'x', failed to poll from model repository",
        )
        assert repository.index() == repository.unready() == []

    def test_unloading_what_is_not_loaded_succeeds(self, bench: Bench) -> None:
        bench.model("a")
        repository = bench.started(EXPLICIT)
        repository.unload("a")
        repository.unload("x")
        assert repository.index() == [IndexEntry("a", "", "", "")]

    def test_an_unloaded_model_is_shown_as_such_and_keeps_the_server_ready(self, bench: Bench) -> None:
        bench.model("a")
        repository = bench.started(EXPLICIT, load_models=("a",))
        repository.unload("a", unload_dependents=True)
        assert repository.index() == [IndexEntry("a", "1", "UNAVAILABLE", "unloaded")]
        assert repository.state("a", 1) == (UNAVAILABLE, "unloaded")
        assert repository.unready() == []
        assert bench.publisher.waiting["a"] == set()

    def test_unloading_a_model_that_failed_clears_the_failure(self, bench: Bench) -> None:
        bench.model("a", content="corrupt")
        bench.model("b", config="x: 1")
        repository = bench.started(EXPLICIT, load_models=("*",))
        assert len(repository.unready()) == 2
        repository.unload("a")
        repository.unload("b")
        assert repository.unready() == []
        assert repository.index() == [IndexEntry("a", "1", "UNAVAILABLE", "unloaded"), IndexEntry("b", "", "", "")]

    def test_a_model_whose_folder_is_gone_is_forgotten_when_unloaded(self, bench: Bench, tmp_path: Path) -> None:
        folder = bench.model("a")
        repository = bench.started(EXPLICIT, load_models=("a",))
        folder.rename(tmp_path / "elsewhere")
        assert repository.index() == [IndexEntry("a", "1", "READY", "")]
        repository.unload("a")
        assert repository.index() == []
        assert bench.publisher.forgotten == ["a"]

    def test_failed_loads_say_why_in_tritons_words(self, bench: Bench) -> None:
        bench.model("v", 1, 2, config=CONFIG + "version_policy { all { } }")
        bench.factory.errors["v", 2] = RuntimeError("boom")
        bench.model("e", config='platform: "ensemble"')
        bench.model("d", content="decoupled")
        bench.model("n", config="version_policy { specific { versions: 7 } }")
        repository = bench.started(EXPLICIT)
        assert code_and_text(refusal(lambda: repository.load("v"))) == (
            Code.INVALID_ARGUMENT,
            "load failed for model 'v': version 2 is at UNAVAILABLE state: Internal: RuntimeError: boom;",
        )
        assert code_and_text(refusal(lambda: repository.load("e"))) == (
            Code.UNIMPLEMENTED,
            "load failed for model 'e': the configuration of model 'e' sets 'ensemble_scheduling' (platform \"ensemble\"), "
            "which is not supported yet",
        )
        code, text = code_and_text(refusal(lambda: repository.load("d")))
        assert code is Code.UNIMPLEMENTED
        assert text.startswith("load failed for model 'd': version 1 is at UNAVAILABLE state: Unsupported: ")
        assert code_and_text(refusal(lambda: repository.load("n"))) == (
            Code.INVALID_ARGUMENT,
            "load failed for model 'n': at least one version must be available under the version policy of model 'n'",
        )
        assert repository.index() == [
            IndexEntry("d", "1", "UNAVAILABLE", text.split("state: ")[1].rstrip(";")),
            IndexEntry("e", "", "UNAVAILABLE", repository.index()[1].reason),
            IndexEntry("n", "", "UNAVAILABLE", repository.index()[2].reason),
            IndexEntry("v", "1", "UNAVAILABLE", "unloaded"),
            IndexEntry("v", "2", "UNAVAILABLE", "Internal: RuntimeError: boom"),
        ]
        assert bench.publisher.waiting["v"] == {2}


class TestPoll:
    def polled(self, bench: Bench) -> None:
        """Two looks, far enough apart for a change to settle."""
        repository = bench.repositories[-1]
        repository.poll()
        bench.now += SETTLED
        assert repository.poll() is False

    def test_models_that_come_change_and_go_are_followed(self, bench: Bench, tmp_path: Path) -> None:
        folder = bench.model("a")
        bench.started(POLL, poll_seconds=3600.0)
        bench.model("b")
        bench.version(folder, 1, "new")
        self.polled(bench)
        bench.events.wait("b", READY)
        bench.events.wait("a", READY, times=2)
        assert bench.publisher.serving("a") == {1: "new"}
        folder.rename(tmp_path / "gone")
        self.polled(bench)
        bench.events.wait("a", UNAVAILABLE)
        assert bench.factory.open() == [("b", 1)]

    def test_a_version_that_comes_takes_over(self, bench: Bench) -> None:
        folder = bench.model("a")
        bench.started(POLL, poll_seconds=3600.0)
        bench.version(folder, 2, "second")
        self.polled(bench)
        bench.events.wait("a", UNAVAILABLE, version=1)
        assert bench.publisher.history["a"] == [{1: "weights"}, {2: "second"}]

    def test_a_model_that_is_still_being_copied_is_not_touched(self, bench: Bench) -> None:
        repository = bench.started(POLL, poll_seconds=3600.0)
        folder = bench.path / "a"
        folder.mkdir()
        assert repository.poll() is True
        for step in range(3):
            bench.now += 0.9
            (folder / f"part{step}").touch()
            assert repository.poll() is True
        assert bench.events.seen == []
        bench.model("a")
        assert repository.poll() is True
        bench.now += 1.0
        assert repository.poll() is False
        bench.events.wait("a", READY)
        assert [event.state for event in bench.events.seen] == [ModelState.LOADING, READY]

    def test_a_reload_that_fails_keeps_what_serves(self, bench: Bench) -> None:
        folder = bench.model("a")
        repository = bench.started(POLL, poll_seconds=3600.0)
        bench.version(folder, 1, "corrupt")
        self.polled(bench)
        assert "is corrupt" in bench.events.wait("a", UNAVAILABLE).reason
        (folder / "config.pbtxt").write_text("nosuchfield: 1")
        self.polled(bench)
        assert "nosuchfield" in bench.events.wait("a", UNAVAILABLE, version=None).reason
        assert bench.publisher.serving("a") == {1: "weights"}
        assert repository.index() == [IndexEntry("a", "1", "READY", "")]
        assert repository.unready() == []
        assert bench.factory.open() == [("a", 1)]

    def test_a_model_that_becomes_a_duplicate_is_unloaded(self, bench: Bench, tmp_path: Path) -> None:
        bench.model("a")
        more = tmp_path / "more"
        more.mkdir()
        repository = bench.started(POLL, poll_seconds=3600.0, paths=(bench.path, more))
        bench.model("a", where=more)
        self.polled(bench)
        bench.events.wait("a", UNAVAILABLE)
        assert bench.publisher.serving("a") == {}
        assert [row.reason for row in repository.unready()] == ["model appears in two or more repositories"]

    def test_a_repository_that_is_away_for_a_moment_takes_no_model_down(self, bench: Bench, tmp_path: Path) -> None:
        bench.model("a")
        more = tmp_path / "more"
        bench.model("b", where=more)
        repository = bench.started(POLL, poll_seconds=3600.0, paths=(bench.path, more))
        more.rename(tmp_path / "away")
        bench.model("a").rename(tmp_path / "a")
        self.polled(bench)
        bench.events.wait("a", UNAVAILABLE)
        assert bench.publisher.serving("b") == {1: "weights"}
        (tmp_path / "away").rename(more)
        self.polled(bench)
        assert bench.factory.open() == [("b", 1)]
        assert repository.unready() == []

    def test_a_model_that_hangs_while_it_loads_keeps_no_other_from_following_its_files(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        bench.model("a")
        b = bench.model("b")
        bench.factory.hold("a")
        repository = bench.repository(POLL, poll_seconds=3600.0, load_threads=2)
        repository.start()
        bench.factory.wait_begun("a")
        bench.events.wait("b", READY)
        bench.version(b, 1, "new")
        self.polled(bench)
        bench.events.wait("b", READY, times=2)
        b.rename(tmp_path / "b")
        self.polled(bench)
        bench.events.wait("b", UNAVAILABLE)
        bench.factory.release("a")

    def test_a_model_that_changes_faster_than_it_loads_waits_once(self, bench: Bench) -> None:
        folder = bench.model("a")
        bench.started(POLL, poll_seconds=3600.0)
        bench.factory.hold("a")
        for content in ("1", "2", "3", "4"):
            bench.version(folder, 1, content)
            self.polled(bench)
            bench.factory.wait_begun("a")
        assert bench.came("a") == 3  # the first load, the one that is held, and one for all that came since
        bench.factory.release("a")
        bench.events.wait("a", READY, times=3)
        assert bench.publisher.serving("a") == {1: "4"}

    def test_the_loop_polls_by_itself(self, bench: Bench) -> None:
        bench.started(POLL, poll_seconds=0.01)
        bench.model("a")
        ticking = threading.Event()

        def tick() -> None:
            while not ticking.wait(0.01):
                bench.now += 0.5

        thread, _ = in_thread(tick)
        bench.events.wait("a", READY)
        ticking.set()
        join(thread)


class TestStates:
    def test_they_are_the_index_without_what_was_never_to_be_loaded(self, bench: Bench) -> None:
        bench.model("a", 2, 10, config=CONFIG + "version_policy { all { } }")
        bench.model("b")
        repository = bench.started(EXPLICIT, load_models=("a", "nowhere"))
        assert repository.states() == [row for row in repository.index() if row.name != "b"]
        assert [(row.name, row.version) for row in repository.states()] == [("a", "2"), ("a", "10"), ("nowhere", "")]


class TestReadiness:
    def test_a_ready_version_that_cannot_run_is_not_ready(self, bench: Bench) -> None:
        bench.model("a")
        repository = bench.started()
        bench.factory.last("a").is_healthy = False
        assert repository.unready() == [IndexEntry("a", "1", "UNAVAILABLE", "no instance of the model can run")]
        bench.factory.last("a").is_healthy = True
        assert repository.unready() == []

    def test_the_state_of_a_version_is_known_by_its_number(self, bench: Bench) -> None:
        bench.model("a", 1, 2)
        repository = bench.started()
        assert repository.state("a", 2) == (READY, "")
        assert repository.state("a", 1) is None
        assert repository.state("b", 1) is None

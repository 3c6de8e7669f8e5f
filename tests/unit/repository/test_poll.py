"""A change of a model's files is seen, and taken only once it is over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_dataplane.repository.layout import ModelLocation
from shoal_dataplane.repository.poll import ChangeDetector, Changes
from shoal_dataplane.repository.snapshot import signature, take_snapshot

A, B, C = b"a", b"b", b"c"
NOTHING = Changes(set(), set(), False)
UNSETTLED = Changes(set(), set(), True)


class TestChangeDetector:
    def test_what_was_taken_is_no_change(self) -> None:
        detector = ChangeDetector(1.0)
        detector.take({"m": A})
        assert detector.observe({"m": A}, 0) == NOTHING

    def test_a_change_counts_once_it_has_settled_and_is_told_once(self) -> None:
        detector = ChangeDetector(1.0)
        detector.take({"m": A})
        assert detector.observe({"m": B}, 10) == UNSETTLED
        assert detector.observe({"m": B}, 10.9) == UNSETTLED
        assert detector.observe({"m": B}, 11) == Changes({"m"}, set(), False)
        assert detector.observe({"m": B}, 12) == NOTHING

    def test_every_further_change_starts_the_wait_again(self) -> None:
        detector = ChangeDetector(1.0)
        for now, seen in [(0, A), (0.5, B), (1, C)]:
            assert detector.observe({"m": seen}, now) == UNSETTLED
        assert detector.observe({"m": C}, 2) == Changes({"m"}, set(), False)

    def test_a_model_that_is_gone_settles_too(self) -> None:
        detector = ChangeDetector(1.0)
        detector.take({"m": A, "n": A})
        assert detector.observe({"n": A}, 0) == UNSETTLED
        assert detector.observe({"n": A}, 1) == Changes(set(), {"m"}, False)
        assert detector.taken() == {"n": A}

    def test_a_model_that_is_replaced_by_removing_it_first_is_never_removed(self) -> None:
        detector = ChangeDetector(1.0)
        detector.take({"m": A})
        assert detector.observe({}, 0) == UNSETTLED
        assert detector.observe({"m": B}, 0.5) == UNSETTLED
        assert detector.observe({"m": B}, 1.5) == Changes({"m"}, set(), False)

    def test_a_change_that_is_taken_back_is_none(self) -> None:
        detector = ChangeDetector(1.0)
        detector.take({"m": A})
        detector.observe({"m": B}, 0)
        assert detector.observe({"m": A}, 5) == NOTHING
        assert detector.observe({"m": B}, 6) == UNSETTLED

    def test_a_model_that_comes_and_goes_before_it_settles_leaves_nothing(self) -> None:
        detector = ChangeDetector(1.0)
        detector.observe({"m": A}, 0)
        assert detector.observe({}, 5) == NOTHING
        assert detector.taken() == {}

    @given(st.lists(st.dictionaries(st.sampled_from("mno"), st.sampled_from([A, B, C])), max_size=12))
    def test_in_the_end_what_was_told_is_what_is_there(self, looks: list[dict[str, bytes]]) -> None:
        detector = ChangeDetector(1.0)
        told: dict[str, bytes] = {}
        final = looks[-1] if looks else {}
        for now, seen in enumerate([*looks, final, final]):
            changes = detector.observe(seen, float(now))
            told |= {name: seen[name] for name in changes.changed}
            for name in changes.removed:
                del told[name]
        assert told == final == detector.taken()


def replace(path: Path, text: str) -> None:
    fresh = path.with_name("fresh")
    fresh.write_text(text)
    fresh.rename(path)


class TestSnapshot:
    @pytest.fixture
    def model(self, tmp_path: Path) -> ModelLocation:
        folder = tmp_path / "m"
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text("x")
        (folder / "config.pbtxt").write_text("")
        return ModelLocation("m", folder, tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: replace(m / "1/model.py", "y"),
            lambda m: (m / "1/model.py").write_text("longer"),
            lambda m: os.utime(m / "1/model.py", ns=(1, 1)),
            lambda m: (m / "1/model.py").unlink(),
            lambda m: (m / "labels.txt").touch(),
            lambda m: (m / "2").mkdir(),
            lambda m: (m / "1/sub/deep").mkdir(parents=True),
            lambda m: (m / "config.pbtxt").rename(m / "config2.pbtxt"),
        ],
    )
    def test_every_change_of_a_file_shows(self, model: ModelLocation, change: Callable[[Path], object]) -> None:
        before = signature(take_snapshot(model))
        assert signature(take_snapshot(model)) == before
        change(model.path)
        assert signature(take_snapshot(model)) != before

    def test_what_loading_a_python_model_writes_does_not_show(self, model: ModelLocation) -> None:
        before = signature(take_snapshot(model))
        (model.path / "1" / "__pycache__").mkdir()
        (model.path / "1" / "__pycache__" / "model.pyc").touch()
        assert signature(take_snapshot(model)) == before

    def test_links_are_followed_and_loops_end(self, model: ModelLocation, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "weights").write_text("w")
        (model.path / "1" / "linked").symlink_to(tmp_path / "data")
        (model.path / "1" / "loop").symlink_to(model.path / "1")
        (model.path / "1" / "broken").symlink_to(tmp_path / "nowhere")
        before = take_snapshot(model)
        assert "1/linked/weights" in before
        replace(tmp_path / "data" / "weights", "v")
        assert signature(take_snapshot(model)) != signature(before)

    def test_two_versions_may_link_to_the_same_folder(self, model: ModelLocation, tmp_path: Path) -> None:
        for version in ("2", "3"):
            (model.path / version).symlink_to(model.path / "1")
        assert {"1/model.py", "2/model.py", "3/model.py"} <= take_snapshot(model).keys()

    def test_a_part_of_a_snapshot_has_a_signature_of_its_own(self, model: ModelLocation) -> None:
        before = take_snapshot(model)
        replace(model.path / "config.pbtxt", "x")
        after = take_snapshot(model)
        assert signature(after) != signature(before)
        assert signature(after, lambda path: path.startswith("1")) == signature(
            before, lambda path: path.startswith("1")
        )

    def test_a_single_file_is_all_that_counts_of_its_folder(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx").write_text("x")
        location = ModelLocation("m", tmp_path / "m.onnx", is_file=True)
        before = signature(take_snapshot(location))
        (tmp_path / "other").touch()
        assert signature(take_snapshot(location)) == before
        replace(tmp_path / "m.onnx", "y")
        assert signature(take_snapshot(location)) != before

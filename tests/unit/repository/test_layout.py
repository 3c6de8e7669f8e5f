"""Which folders are models, which folders are versions, and which files belong to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.repository.layout import (
    ModelLocation,
    check_model_name,
    config_path,
    declared_model,
    find,
    inside,
    read_labels,
    scan,
    select_versions,
    versions,
)
from tests.unit.repository.fakes import refusal


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
    return root


def test_every_folder_is_a_model_but_for_what_file_systems_leave(tmp_path: Path) -> None:
    tree(tmp_path, "b/", "a/1/model.py", ".git/", "..data/", "lost+found/", "README.md")
    assert sorted(scan([tmp_path]).models) == ["a", "b"]


def test_a_linked_folder_is_a_model(tmp_path: Path) -> None:
    tree(tmp_path, "real/m/1/model.py", "repo/")
    (tmp_path / "repo/m").symlink_to(tmp_path / "real/m")
    assert list(scan([tmp_path / "repo"]).models) == ["m"]


def test_a_name_in_two_places_is_a_duplicate_and_the_others_are_not(tmp_path: Path) -> None:
    tree(tmp_path, "r1/a/", "r1/b/", "r2/a/", "r2/c/", "r3/a/")
    declared = ModelLocation("c", tmp_path / "r1/b")
    found = scan([tmp_path / "r1", tmp_path / "r2", tmp_path / "r3"], [declared])
    assert (sorted(found.models), found.duplicates) == (["b"], {"a", "c"})
    with pytest.raises(ServingError, match="model appears in two or more repositories"):
        find("a", [tmp_path / "r1", tmp_path / "r2"])


def test_a_repository_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    tree(tmp_path, "r1/a/")
    found = scan([tmp_path / "gone", tmp_path / "r1"])
    assert list(found.models) == ["a"]
    assert found.unreadable == {tmp_path / "gone": "No such file or directory"}


def test_a_model_in_no_repository_gets_tritons_error(tmp_path: Path) -> None:
    with pytest.raises(ServingError) as caught:
        find("x", [tmp_path])
    assert (caught.value.code, caught.value.message) == (
        Code.INTERNAL,
        "failed to load 'x', failed to poll from model repository",
    )


def test_version_folders_are_plain_numbers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tree(tmp_path, "m/0/", "m/1/", "m/12/", "m/01/", "m/-1/", "m/1a/", "m/warmup/", "m/configs/", "m/3", "m/٤/")
    tree(tmp_path, f"m/{1 << 63}/", f"m/{(1 << 63) - 1}/")
    assert list(versions(ModelLocation("m", tmp_path / "m", tmp_path))) == [0, 1, 12, (1 << 63) - 1]
    assert "ignore version directory '01'" in caplog.text


@given(st.sets(st.integers(0, 50)), st.integers(0, 60))
def test_latest_serves_the_numerically_greatest(available: set[int], count: int) -> None:
    policy = mc.ModelVersionPolicy()
    policy.latest.num_versions = count
    expected = sorted(available)[-count:] if count else []
    if not expected:
        with pytest.raises(
            ServingError, match="at least one version must be available under the version policy of model 'm'"
        ):
            select_versions(policy, available, "m")
    else:
        assert select_versions(policy, available, "m") == expected


@given(st.sets(st.integers(0, 20)), st.lists(st.integers(0, 20)))
def test_specific_serves_what_is_listed_and_there(available: set[int], listed: list[int]) -> None:
    policy = mc.ModelVersionPolicy()
    policy.specific.versions.extend(listed)
    expected = sorted(available & set(listed))
    if not expected:
        with pytest.raises(ServingError):
            select_versions(policy, available, "m")
    else:
        assert select_versions(policy, available, "m") == expected


def test_all_serves_all_and_no_policy_the_latest() -> None:
    policy = mc.ModelVersionPolicy()
    assert select_versions(policy, [2, 10, 9], "m") == [10]
    policy.all.SetInParent()
    assert select_versions(policy, [2, 10, 9], "m") == [2, 9, 10]


def test_a_named_configuration_is_used_where_it_is(tmp_path: Path) -> None:
    tree(tmp_path, "a/config.pbtxt", "a/configs/gpu.pbtxt", "b/config.pbtxt", "c/1/")
    a, b, c = (ModelLocation(name, tmp_path / name, tmp_path) for name in "abc")
    assert config_path(a, "gpu") == tmp_path / "a/configs/gpu.pbtxt"
    assert config_path(a, "") == tmp_path / "a/config.pbtxt"
    assert config_path(b, "gpu") == tmp_path / "b/config.pbtxt"
    assert config_path(c, "gpu") is None


@pytest.mark.parametrize(
    "name", ["", " ", "\t", "/", "a/b", "..", "../x", "a..b", ".", "a\0b", "a\nb", "é" * 128, "\ud800"]
)
def test_a_name_that_cannot_be_a_models_is_refused(name: str) -> None:
    with pytest.raises(ServingError) as caught:
        check_model_name(name)
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_the_names_errors_are_tritons() -> None:
    empty, traversal = refusal(lambda: check_model_name("  ")), refusal(lambda: check_model_name("../x"))
    assert str(empty) == "Model name cannot be empty. Please enter a valid name to deploy."
    assert str(traversal) == "invalid model name '../x', model name must not contain path traversal characters"
    check_model_name("resnet-50_v1.5 (fp16) é")


class TestDeclaredModel:
    def test_a_model_folder_is_used_as_it_is(self, tmp_path: Path) -> None:
        tree(tmp_path, "a/config.pbtxt", "b/1/model.onnx")
        for folder in ("a", "b"):
            location = declared_model("served", tmp_path / folder)
            assert (location.name, location.model_dir, location.declared) == ("served", tmp_path / folder, True)

    @pytest.mark.parametrize("name", ["m.onnx", "m.pt", "m.pt2", "model.py"])
    def test_a_single_file_is_version_1_of_its_folder(self, tmp_path: Path, name: str) -> None:
        tree(tmp_path, name)
        location = declared_model("served", tmp_path / name)
        assert versions(location) == {1: tmp_path}
        assert (location.model_dir, config_path(location, "")) == (tmp_path, None)

    @pytest.mark.parametrize(
        ("names", "source", "code", "problem"),
        [
            (["m.txt"], "m.txt", Code.INVALID_ARGUMENT, "is no model file"),
            (["m.gguf"], "m.gguf", Code.UNIMPLEMENTED, "GGUF file, which is not supported yet"),
            (["m/config.json"], "m", Code.UNIMPLEMENTED, "Hugging Face folder, which is not supported yet"),
            (["m/"], "m", Code.INVALID_ARGUMENT, "has neither config.pbtxt nor a version folder"),
            (["m/a/config.pbtxt"], "m", Code.INVALID_ARGUMENT, "it looks like a repository of models \\(a\\)"),
            ([], "gone", Code.INVALID_ARGUMENT, "does not exist"),
        ],
    )
    def test_anything_else_is_refused_by_name(
        self, tmp_path: Path, names: list[str], source: str, code: Code, problem: str
    ) -> None:
        tree(tmp_path, *names)
        with pytest.raises(ServingError, match=f"source of model 'x' .*{problem}") as caught:
            declared_model("x", tmp_path / source)
        assert caught.value.code is code


class TestLabels:
    def config(self, filename: str) -> mc.ModelConfig:
        return mc.ModelConfig(name="m", output=[{"name": "OUT", "label_filename": filename}, {"name": "PLAIN"}])

    def test_lines_are_labels(self, tmp_path: Path) -> None:
        (tmp_path / "labels.txt").write_bytes("cat\r\ndög\n\nfish\n".encode())
        assert read_labels(tmp_path, self.config("labels.txt")) == {"OUT": ("cat", "dög", "", "fish")}
        (tmp_path / "labels.txt").write_bytes(b"")
        assert read_labels(tmp_path, self.config("labels.txt")) == {"OUT": ()}

    @pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "link", "a\0b"])
    def test_a_file_outside_the_models_folder_is_refused(self, tmp_path: Path, name: str) -> None:
        folder = tree(tmp_path, "secret", "m/a/") / "m"
        (folder / "link").symlink_to(tmp_path / "secret")
        with pytest.raises(ServingError, match="for output 'OUT' in model 'm' is outside model directory") as caught:
            read_labels(folder, self.config(name))
        assert caught.value.code is Code.UNIMPLEMENTED

    def test_a_link_inside_the_models_folder_is_followed(self, tmp_path: Path) -> None:
        folder = tree(tmp_path, "m/..data/labels.txt") / "m"
        (folder / "labels.txt").symlink_to("..data/labels.txt")
        assert read_labels(folder, self.config("labels.txt")) == {"OUT": ("x",)}

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "labels.txt").write_bytes(b"\xff")
        with pytest.raises(
            ServingError, match=r"label file '.*labels\.txt' for output 'OUT' in model 'm' is not UTF-8"
        ):
            read_labels(tmp_path, self.config("labels.txt"))
        with pytest.raises(
            ServingError, match=r"cannot be read: No such file or directory; did you mean 'labels.txt'\?"
        ):
            read_labels(tmp_path, self.config("label.txt"))


def test_a_configured_path_stays_in_its_folder() -> None:
    assert all(inside(name) for name in ("model.onnx", "sub/model.onnx", "..model", "./a"))
    assert not any(inside(name) for name in ("", "/a", "..", "a/../b", "../a", "a\0"))

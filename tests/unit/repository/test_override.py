"""The parameters of a load request: what they may be, and where their files may go."""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.repository.override import Workspace, parse_load_parameters
from shoal_dataplane.repository.types import RepositoryParameter
from tests.unit.repository.fakes import refusal


def test_no_parameters_are_no_override() -> None:
    assert parse_load_parameters({}) is None


def test_a_configuration_and_files() -> None:
    override = parse_load_parameters(
        {"config": '{"max_batch_size": 3}', "file:1/model.py": b"x", "file:1/./a//b": b"y"}
    )
    assert override is not None
    assert override.config.max_batch_size == 3
    assert override.files == {"1/model.py": b"x", "1/a/b": b"y"}


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"config": b"{}"}, "invalid value type for load parameter 'config', expected string_param."),
        ({"file:1/m": "x"}, "invalid value type for load parameter 'file:1/m', expected bytes_param."),
        ({"file:1/m": b"x"}, "Load parameter 'config' must be specified for model file override"),
        ({"other": "x"}, "unrecognized load parameter 'other'."),
        ({"other": True}, "unrecognized load parameter 'other'."),
        ({"other": 3}, "unrecognized load parameter 'other'."),
        ({"other": b""}, "unrecognized load parameter 'other'."),
        ({"config": "{", "file:1/m": b"x"}, "Invalid config override: Expecting property name"),
        (
            {"config": "{}", "file:../m": b""},
            "Invalid file parameter 'file:../m' with normalized path '../m' must stay within model directory.",
        ),
        ({"config": "{}", "file:/etc/passwd": b""}, "must stay within model directory."),
        ({"config": "{}", "file:1/../../m": b""}, "must stay within model directory."),
        ({"config": "{}", "file:": b""}, "must stay within model directory."),
        ({"config": "{}", "file:.": b""}, "must stay within model directory."),
        ({"config": "{}", "file:a\0b": b""}, "must stay within model directory."),
        ({"config": "{}", "file:1/\ud800": b""}, "Invalid file parameter 'file:1/\\ud800' with"),
        ({"config": "{}", "file:" + "a" * 256: b""}, "the path is longer than a file system takes"),
        ({"config": "{}", "file:" + "a/" * 600 + "b": b""}, "the path is longer than a file system takes"),
        ({"config": "{}", "file:1": b"", "file:1/m": b""}, "'file:1/m', directory has been created as a file"),
    ],
)
def test_anything_else_is_refused_by_name(parameters: dict[str, RepositoryParameter], problem: str) -> None:
    with pytest.raises(ServingError) as caught:
        parse_load_parameters(parameters)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert problem in caught.value.message


@given(st.lists(st.sampled_from(["..", ".", "", "a", "1", "/", "\0", "é"]), max_size=6).map("/".join))
def test_no_path_leaves_the_folder(path: str) -> None:
    parameter = f"file:{path}"
    error = refusal(lambda: parse_load_parameters({"config": "{}", parameter: b""}))
    if error is None:
        assert ".." not in PurePosixPath(path).parts
        assert not path.startswith("/")


class TestWorkspace:
    def test_it_holds_the_files_until_it_is_removed(self) -> None:
        workspace = Workspace({"1/model.py": b"x", "1/sub/data": b"y"})
        assert (workspace.path / "1/sub/data").read_bytes() == b"y"
        assert workspace.path.stat().st_mode & 0o077 == 0
        workspace.remove()
        workspace.remove()
        assert not workspace.path.exists()

    def test_nothing_is_left_of_one_that_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with pytest.raises(ServingError, match="cannot be written"):
            Workspace({"1": b"", "1/m": b""})
        assert list(tmp_path.iterdir()) == []

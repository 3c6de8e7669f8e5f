"""What `shoal serve PATH` takes for manifests, and what for a repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal_cli.serve.command import command
from shoal_cli.serve.other_flags import FlagError
from shoal_cli.serve.paths import plan_paths
from shoal_operator.tables import LocalPath

MANIFEST = """\
apiVersion: serving.shoal.dev/v1alpha1
kind: InferenceModel
metadata: {name: m}
spec: {model: {uri: "file://models/m"}}
"""


def test_a_yaml_file_and_a_folder_with_one_are_manifests(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MANIFEST)
    for path in (tmp_path, tmp_path / "m.yaml"):
        plan = plan_paths([path])
        assert plan.repositories == ()
        assert [(e.name, e.source) for e in plan.entries] == [("m", LocalPath(tmp_path / "models/m"))]


def test_a_folder_of_folders_is_a_repository_even_when_it_is_empty(tmp_path: Path) -> None:
    assert plan_paths([tmp_path]).repositories == (tmp_path,)
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/config.pbtxt").write_text("")
    assert plan_paths([tmp_path]).repositories == (tmp_path,)


def test_both_may_be_served_together(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "m.yaml").write_text(MANIFEST)
    plan = plan_paths([tmp_path / "repository", tmp_path / "m.yaml"])
    assert plan.repositories == (tmp_path / "repository",)
    assert len(plan.entries) == 1


def test_one_models_folder_is_not_taken_for_a_repository(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text("")
    with pytest.raises(FlagError, match="is one model's folder; a repository is the folder around it"):
        plan_paths([tmp_path])


@pytest.mark.parametrize(
    ("name", "hint"), [("model.onnx", "; an InferenceModel manifest can name a single model file"), ("notes.txt", "")]
)
def test_another_file_is_refused(tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(FlagError) as raised:
        plan_paths([tmp_path / name])
    assert str(raised.value).endswith(f"expected a YAML manifest, a folder of manifests, or a model repository{hint}")


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlagError, match="no such file or folder"):
        plan_paths([tmp_path / "nope"])


def test_problems_of_manifests_end_the_command_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MANIFEST + "  extra: 1\n")
    result = CliRunner().invoke(command, [str(tmp_path)])
    assert result.exit_code == 1
    assert "m.yaml:" in result.output
    assert "nothing was started" in result.output


def test_nothing_to_serve_is_a_usage_error() -> None:
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 2
    assert "nothing to serve" in result.output

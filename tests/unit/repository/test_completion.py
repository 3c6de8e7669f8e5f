"""From the files of a version to its complete configuration: which backend, which file, and what the backend adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Code
from shoal_dataplane.options import RepositoryOptions
from shoal_dataplane.repository.backend_fields import fill_backend_fields
from shoal_dataplane.repository.completion import Completer, written_config
from shoal_dataplane.repository.config_pbtxt import parse_config
from shoal_dataplane.repository.layout import ModelLocation
from tests.unit.repository.fakes import CONFIG, Bench, FakeBackend, refusal


def filled(tmp_path: Path, text: str, *files: str) -> tuple[str, str, str] | str:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    config = parse_config('name: "m" ' + text)
    error = refusal(lambda: fill_backend_fields(config, tmp_path, lambda name: FakeBackend()))
    if error is not None:
        assert error.code is Code.INVALID_ARGUMENT
        return error.message.replace(str(tmp_path), "V")
    return config.backend, config.platform, config.default_model_filename


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ("", ["model.onnx"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", ["model.onnx/weights"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", ["model.pt"], ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", ["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        ("", ["model.pt", "model.pt2"], ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", ["model.onnx", "model.py"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('backend: "pytorch"', ["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        ('platform: "torch_aoti"', ["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        ('platform: "libtorch"', ["model.pt"], ("pytorch", "libtorch", "model.pt")),
        ('default_model_filename: "resnet.onnx"', ["resnet.onnx"], ("onnxruntime", "onnxruntime_onnx", "resnet.onnx")),
        ('default_model_filename: "a/b.py"', ["a/b.py"], ("python", "", "a/b.py")),
        ('backend: "pytorch" default_model_filename: "x.pt2"', ["x.pt2"], ("pytorch", "torch_aoti", "x.pt2")),
        ('backend: "python" platform: "mine"', ["model.txt"], ("python", "mine", "model.txt")),
        ('backend: "own"', ["model.txt"], ("own", "", "model.txt")),
    ],
)
def test_backend_platform_and_file_are_found_from_each_other(
    tmp_path: Path, text: str, files: list[str], expected: tuple[str, str, str]
) -> None:
    assert filled(tmp_path, text, *files) == expected


@pytest.mark.parametrize(
    ("text", "files", "problem"),
    [
        (
            "",
            ["weights.bin"],
            "could not determine the backend of model 'm': its configuration names no 'backend' or 'platform', and version folder 'V' "
            "holds weights.bin; expected one of model.plan, model.onnx, model.xml, model.pt, model.pt2, model.py",
        ),
        (
            'platform: "pytorch_libtorh"',
            [],
            "unexpected platform type 'pytorch_libtorh' for m; did you mean 'pytorch_libtorch'",
        ),
        (
            'backend: "pytorch" platform: "onnxruntime_onnx"',
            [],
            "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, pytorch",
        ),
        ('backend: "onnxruntime"', [], "unable to find 'V/model.txt' for model 'm': version folder 'V' holds nothing"),
        (
            'default_model_filename: "model.onnx"',
            ["modle.onnx"],
            "unable to find 'V/model.onnx' for model 'm': version folder 'V' holds modle.onnx; did you mean 'modle.onnx'?",
        ),
        (
            'default_model_filename: "../1/model.py"',
            ["model.py"],
            "'default_model_filename' must be a path inside the version folder, got '../1/model.py' for m",
        ),
    ],
)
def test_a_version_without_a_usable_model_file_is_named(
    tmp_path: Path, text: str, files: list[str], problem: str
) -> None:
    message = filled(tmp_path, text, *files)
    assert isinstance(message, str)
    assert message.startswith(problem)


def test_a_folder_of_many_files_is_not_listed_in_full(tmp_path: Path) -> None:
    message = filled(tmp_path, "", *(f"part{i:03}" for i in range(100)))
    assert "part007 and 92 more; expected" in message


class TestWrittenConfig:
    def location(self, bench: Bench, **kwargs: Any) -> ModelLocation:
        return ModelLocation("m", bench.path / "m", bench.path, **kwargs)

    def test_no_configuration_is_fine_while_auto_complete_is_on(self, bench: Bench) -> None:
        (bench.model("m") / "config.pbtxt").unlink()
        assert written_config(self.location(bench), RepositoryOptions()) == mc.ModelConfig(name="m")
        error = refusal(lambda: written_config(self.location(bench), RepositoryOptions(auto_complete=False)))
        assert "failed to open text file for read" in str(error)

    def test_the_name_is_the_folders(self, bench: Bench) -> None:
        bench.model("m", config='name: "n"')
        error = refusal(lambda: written_config(self.location(bench), RepositoryOptions()))
        assert str(error) == "unexpected directory name 'm' for model 'n', directory name must equal model name"
        declared = ModelLocation("served", bench.path / "m")
        assert written_config(declared, RepositoryOptions()).name == "served"

    def test_a_named_configuration_takes_the_place_of_the_default_one(self, bench: Bench) -> None:
        folder = bench.model("m", config="max_batch_size: 1")
        (folder / "configs").mkdir()
        (folder / "configs" / "big.pbtxt").write_text("max_batch_size: 9")
        assert written_config(self.location(bench), RepositoryOptions(config_name="big")).max_batch_size == 9
        assert written_config(self.location(bench), RepositoryOptions(config_name="other")).max_batch_size == 1

    def test_a_manifests_configuration_lies_over_the_models(self, bench: Bench) -> None:
        bench.model("m", config='backend: "fake" max_batch_size: 1')
        overlay = parse_config("max_batch_size: 5")
        config = written_config(self.location(bench, overlay=overlay), RepositoryOptions())
        assert (config.backend, config.max_batch_size) == ("fake", 5)

    def test_a_single_file_names_itself(self, tmp_path: Path) -> None:
        location = ModelLocation("m", tmp_path / "net.onnx", is_file=True)
        assert written_config(location, RepositoryOptions(auto_complete=False)).default_model_filename == "net.onnx"


class TestCompleter:
    def complete(self, bench: Bench, text: str, version: int = 1, **options: Any) -> mc.ModelConfig:
        folder = bench.path / "m"
        completer = Completer(RepositoryOptions(**options), bench.backend_for, lambda: 0)
        source = completer.complete(parse_config('name: "m" ' + text), version, folder, folder / str(version))
        assert (source.name, source.version, source.version_dir) == ("m", version, folder / str(version))
        return source.config

    def test_each_version_is_completed_from_its_own_file(self, bench: Bench) -> None:
        folder = bench.model("m", 1, 2, content="4")
        bench.version(folder, 2, "8")
        assert [self.complete(bench, CONFIG, version).max_batch_size for version in (1, 2)] == [4, 8]

    def test_what_the_backend_adds_is_normalised(self, bench: Bench) -> None:
        bench.model("m", content="4")
        config = self.complete(bench, CONFIG + "dynamic_batching { }")
        assert list(config.dynamic_batching.preferred_batch_size) == [4]

    def test_what_was_written_stays_as_it_is(self, bench: Bench) -> None:
        bench.model("m", content="4")
        written = parse_config('name: "m" ' + CONFIG)
        before = written.SerializeToString(deterministic=True)
        Completer(RepositoryOptions(), bench.backend_for, lambda: 0).complete(
            written, 1, bench.path / "m", bench.path / "m/1"
        )
        assert written.SerializeToString(deterministic=True) == before

    def test_auto_complete_can_be_switched_off(self, bench: Bench) -> None:
        bench.model("m", content="4")
        assert self.complete(bench, CONFIG, auto_complete=False).max_batch_size == 0
        assert not bench.backend.completed

    def test_the_backend_gets_its_options_over_those_for_all(self, bench: Bench) -> None:
        bench.model("m")
        options = {"": {"default-max-batch-size": "4", "a": "1"}, "fake": {"a": "2"}, "other": {"a": "3"}}
        self.complete(bench, CONFIG, backend_config=options)
        assert bench.backend.options == [{"default-max-batch-size": "4", "a": "2"}]

    def test_a_model_that_completes_itself_into_something_unsupported_is_refused(self, bench: Bench) -> None:
        bench.model("m", content="decoupled")
        error = refusal(lambda: self.complete(bench, CONFIG))
        assert error is not None
        assert error.code is Code.UNIMPLEMENTED
        assert "'model_transaction_policy.decoupled'" in error.message

    def test_an_invalid_result_is_refused(self, bench: Bench) -> None:
        bench.model("m", content="4")
        error = refusal(lambda: self.complete(bench, CONFIG + "dynamic_batching { preferred_batch_size: 5 }"))
        assert str(error) == "dynamic batching preferred size must be <= max batch size for m"

    def test_labels_come_with_the_version(self, bench: Bench) -> None:
        folder = bench.model("m")
        (folder / "labels.txt").write_text("a\nb\n")
        config = parse_config(CONFIG)
        config.name = "m"
        config.output[0].label_filename = "labels.txt"
        completer = Completer(RepositoryOptions(), bench.backend_for, lambda: 0)
        assert completer.complete(config, 1, folder, folder / "1").labels == {"OUT": ("a", "b")}

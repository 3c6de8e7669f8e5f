"""A configuration is completed from an ONNX file and checked against it, as Triton's onnxruntime backend does."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.onnx.backend import BACKEND
from shoal_dataplane.core.errors import Code, ServingError
from tests.unit.backends.loading import completed, config, load
from tests.unit.backends.onnx_models import FLOAT, elementwise, mlp, save, sum_and_difference


def refusal(version_dir: Path, text: str) -> ServingError:
    with pytest.raises(ServingError) as caught:
        load(BACKEND, version_dir, text)
    return caught.value


def test_inputs_outputs_batch_size_and_batching_come_from_the_file(tmp_path: Path) -> None:
    found = completed(BACKEND, mlp(tmp_path / "1"))
    assert found.max_batch_size == 4
    assert found.HasField("dynamic_batching")
    assert [(t.name, t.data_type, list(t.dims)) for t in found.input] == [("x", mc.TYPE_FP32, [8])]
    assert [(t.name, t.data_type, list(t.dims)) for t in found.output] == [("y", mc.TYPE_FP32, [3])]


@pytest.mark.parametrize(("value", "expected"), [("32", 32), ("0", 0), ("", 4)])
def test_the_backend_option_sets_the_default_batch_size(tmp_path: Path, value: str, expected: int) -> None:
    found = completed(BACKEND, mlp(tmp_path / "1"), default_max_batch_size=value)
    assert found.max_batch_size == expected
    assert list(found.input[0].dims) == ([8] if expected else [-1, 8])
    assert found.HasField("dynamic_batching") == (expected > 1)


def test_a_batch_size_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="default-max-batch-size must be a whole number of 0 or more, got 'many'"):
        completed(BACKEND, mlp(tmp_path / "1"), default_max_batch_size="many")


def test_what_is_configured_is_kept(tmp_path: Path) -> None:
    found = completed(BACKEND, mlp(tmp_path / "1"), "max_batch_size: 16 dynamic_batching { preserve_ordering: true }")
    assert found.max_batch_size == 16
    assert found.dynamic_batching.preserve_ordering
    sequences = completed(BACKEND, tmp_path / "1", "sequence_batching { }")
    assert not sequences.HasField("dynamic_batching")


def test_a_complete_configuration_is_left_alone(tmp_path: Path) -> None:
    text = 'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 8 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] }'
    assert completed(BACKEND, mlp(tmp_path / "1"), text) == config(text)


def test_only_the_missing_side_is_filled(tmp_path: Path) -> None:
    text = 'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }'
    found = completed(BACKEND, mlp(tmp_path / "1"), text)
    assert list(found.output[0].dims) == [3]
    full = completed(BACKEND, tmp_path / "1", 'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 8 ] }')
    assert (full.max_batch_size, list(full.output[0].dims)) == (0, [-1, 3])


@pytest.mark.parametrize("shape", [[2, 3], [None], ["n", 3]])
def test_a_model_batches_when_its_first_sizes_are_free(tmp_path: Path, shape: list[int | str | None]) -> None:
    found = completed(BACKEND, elementwise(tmp_path / "1", "Neg", FLOAT, shape))
    free = not isinstance(shape[0], int)
    assert found.max_batch_size == (4 if free else 0)
    rest = [size if isinstance(size, int) else -1 for size in shape][int(free) :]
    assert list(found.input[0].dims) == (rest or [1])
    assert found.input[0].HasField("reshape") == (not rest)


def test_first_sizes_with_different_names_are_no_batch(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["a"], ["y"]), helper.make_node("Neg", ["b"], ["z"])]
    values = [("y", FLOAT, ["words", 2]), ("z", FLOAT, ["images", 2])]
    save(tmp_path / "1", nodes, [("a", FLOAT, ["words", 2]), ("b", FLOAT, ["images", 2])], values)
    assert completed(BACKEND, tmp_path / "1").max_batch_size == 0
    made_up = [("a", FLOAT, ["unk__1", 2]), ("b", FLOAT, ["unk__2", 2])]
    save(tmp_path / "2", nodes, made_up, values)
    assert completed(BACKEND, tmp_path / "2").max_batch_size == 4


def test_a_batch_size_for_a_model_that_cannot_batch_is_refused(tmp_path: Path) -> None:
    elementwise(tmp_path / "1", "Neg", FLOAT, [2, 3])
    with pytest.raises(ServingError) as caught:
        completed(BACKEND, tmp_path / "1", "max_batch_size: 8")
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert caught.value.message == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )


X = 'input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }'
Y = 'output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"max_batch_size: 4 {X.replace('8', '9')} {Y}",
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,8]) but the model configuration specifies 2 dimensions "
            "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape [-1,9])",
        ),
        (
            f"{X} {Y}",
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,8]) but the model configuration specifies 1 dimensions "
            "(shape [8])",
        ),
        (
            f"max_batch_size: 4 {X.replace('FP32', 'FP16')} {Y}",
            "unable to load model 'm', configuration expects datatype TYPE_FP16 for input 'x', model provides TYPE_FP32",
        ),
        (
            f"max_batch_size: 4 {X} {Y.replace('FP32', 'INT64')}",
            "unable to load model 'm', configuration expects datatype TYPE_INT64 for output 'y', model provides TYPE_FP32",
        ),
        (
            f"max_batch_size: 4 {X.replace('x', 'images', 1)} {Y}",
            "unable to load model 'm', unexpected inference input 'images', allowed inputs are: x",
        ),
        (
            f"max_batch_size: 4 {X} {Y.replace('y', 'scores', 1)}",
            "unable to load model 'm', unexpected inference output 'scores', allowed outputs are: y",
        ),
        (
            f"max_batch_size: 4 {X} {X.replace('x', 'z', 1)} {Y}",
            "unable to load model 'm', configuration expects 2 inputs, model provides 1: x",
        ),
        (
            f"max_batch_size: 4 {X.replace('dims', 'allow_ragged_batch: true dims')} {Y}",
            "unable to load model 'm', configuration expects model provides input with shape [-1] for ragged input 'x', "
            "model provides [-1,8]",
        ),
        (
            f"{X.replace('dims: [ 8 ]', 'dims: [ -1, 8 ]')} {Y.replace('dims: [ 3 ]', 'dims: [ -1, 3 ]')} "
            'parameters { key: "execution_mode" value { string_value: "2" } }',
            "model 'm': Invalid configuration value provided. Expected values for execution_mode are 0 or 1 but got 2.",
        ),
        (
            f'max_batch_size: 4 {X} {Y} parameters {{ key: "intra_op_thread_count" value {{ string_value: "two" }} }}',
            "model 'm': parameter 'intra_op_thread_count' must be a whole number of 0 or more, got 'two'",
        ),
        (
            f"max_batch_size: 4 {X} {Y} optimization {{ graph {{ level: 5 }} }}",
            "model 'm': optimization.graph.level must be -1, 0, 1 or 2, got 5",
        ),
        (
            f"max_batch_size: 4 {X} {Y} optimization {{ execution_accelerators {{ "
            'cpu_execution_accelerator { name: "abacus" } } }',
            "model 'm': unknown Execution Accelerator 'abacus' is requested",
        ),
    ],
)
def test_a_configuration_that_contradicts_the_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    error = refusal(mlp(tmp_path / "1"), text)
    assert (error.code, error.message) == (Code.INVALID_ARGUMENT, message)


def test_a_batch_in_front_of_a_fixed_first_size_is_refused(tmp_path: Path) -> None:
    elementwise(tmp_path / "1", "Neg", FLOAT, [2, 3])
    text = 'max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }'
    assert refusal(tmp_path / "1", text).message == (
        "model 'm', tensor 'x': for the model to support batching the shape should have at least 1 dimension and the first dimension "
        "must be -1; but shape expected by the model is [2,3]"
    )


def test_an_input_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    value = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node("SequenceLength", ["x"], ["y"])],
        "g",
        [value],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [])],
    )
    (tmp_path / "1").mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "1/model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ServingError, match=r"Unsupported ONNX Type 'seq\(tensor\(float\)\)' for I/O 'x'"):
        completed(BACKEND, tmp_path / "1")


def test_a_missing_file_is_named_with_what_is_there_instead(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/net.onnx").touch()
    with pytest.raises(ServingError) as caught:
        completed(BACKEND, tmp_path / "1")
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message == (
        f"unable to find '{tmp_path}/1/model.onnx' for model 'm'; the version folder holds net.onnx"
    )


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, "truncated"])
def test_a_corrupt_file_is_named(tmp_path: Path, content: bytes | str) -> None:
    path = mlp(tmp_path / "1") / "model.onnx"
    path.write_bytes(path.read_bytes()[:-200] if isinstance(content, str) else content)
    for attempt in (
        lambda: completed(BACKEND, tmp_path / "1"),
        lambda: load(BACKEND, tmp_path / "1", f"max_batch_size: 4 {X} {Y}"),
    ):
        with pytest.raises(ServingError) as caught:
            attempt()
        assert caught.value.code is Code.INTERNAL
        assert caught.value.message.startswith(f"failed to load model 'm' from '{path}': onnx runtime error ")
        assert "\n" not in caught.value.message


def test_a_file_name_outside_the_version_folder_is_refused(tmp_path: Path) -> None:
    mlp(tmp_path / "1")
    with pytest.raises(ServingError, match="must be inside the version folder"):
        completed(BACKEND, tmp_path / "2", 'default_model_filename: "../1/model.onnx"')


def test_a_gpu_instance_without_cuda_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    from shoal_dataplane.backends.base import InstanceSpec

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    found = completed(BACKEND, sum_and_difference(tmp_path / "1"))
    with pytest.raises(ServingError, match="instance 'm_0' is KIND_GPU, but this onnxruntime has no CUDA"):
        load(BACKEND, tmp_path / "1", found, InstanceSpec("m_0", "GPU", 0))


def test_a_known_accelerator_that_is_not_here_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = 'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }'
    found = completed(BACKEND, mlp(tmp_path / "1"), text)
    load(BACKEND, tmp_path / "1", found).close()
    assert "the execution accelerator 'openvino' is not in this onnxruntime and is ignored" in caplog.text

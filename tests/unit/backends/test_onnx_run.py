"""What an ONNX model answers through the backend is what ONNX Runtime answers directly."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from shoal_dataplane.backends.onnx.backend import BACKEND
from shoal_dataplane.backends.onnx.session import session_options
from shoal_dataplane.core.errors import Code, ServingError
from tests.unit.backends.loading import (
    Array,
    bfloat16,
    completed,
    config,
    from_bfloat16,
    load,
    ramp,
    request,
    run,
    run_one,
)
from tests.unit.backends.onnx_models import FLOAT, STRING, elementwise, mlp, save, sum_and_difference


def directly(version_dir: Path, **inputs: Array) -> list[Array]:
    session = ort.InferenceSession(str(version_dir / "model.onnx"), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)  # type: ignore[no-any-return]


def test_a_batch_of_requests_equals_direct_calls(tmp_path: Path) -> None:
    instance = load(BACKEND, mlp(tmp_path / "1"), completed(BACKEND, tmp_path / "1"))
    parts = [ramp((rows, 8)) * rows for rows in (1, 3, 2)]
    found = run(instance, *(request({"x": part}) for part in parts))
    for part, answer in zip(parts, found, strict=True):
        np.testing.assert_allclose(answer["y"], directly(tmp_path / "1", x=part)[0], rtol=1e-6)
    instance.close()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_how_rows_are_spread_over_requests_changes_no_answer(tmp_path: Path, rows: list[int]) -> None:
    folder = tmp_path / "1"
    if not folder.exists():
        elementwise(folder, "Neg", FLOAT, ["batch", 3])
    instance = load(BACKEND, folder, completed(BACKEND, folder))
    values = ramp((sum(rows), 3))
    parts = np.split(values, np.cumsum(rows)[:-1])
    found = run(instance, *(request({"x": part}) for part in parts))
    assert [len(answer["y"]) for answer in found] == rows
    np.testing.assert_array_equal(np.concatenate([answer["y"] for answer in found]), -values)


def test_ragged_inputs_are_joined_flat_with_their_counts(tmp_path: Path) -> None:
    """C12 of Triton's features: what is sent is ragged, what the model sees is flat, and a generated input says how long each is."""
    save(
        tmp_path / "1",
        [
            helper.make_node("ReduceSum", ["x", "all"], ["total"], keepdims=1),
            helper.make_node("Mul", ["total", "count"], ["products"]),
            helper.make_node("Unsqueeze", ["products", "axis"], ["y"]),
        ],
        [("x", FLOAT, ["elements"]), ("count", FLOAT, ["requests"])],
        [("y", FLOAT, ["requests", 1])],
        {"all": np.array([0]), "axis": np.array([1])},
    )
    text = (
        'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } '
        'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "count" data_type: TYPE_FP32 source_input: "x" } '
        'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }'
    )
    instance = load(BACKEND, tmp_path / "1", text)
    parts = [np.ones((1, 2), np.float32), np.ones((1, 3), np.float32)]
    found = run(instance, *(request({"x": part}) for part in parts))
    assert [answer["y"].tolist() for answer in found] == [[[10.0]], [[15.0]]]


def test_times_of_the_three_phases_are_measured(tmp_path: Path) -> None:
    instance = load(BACKEND, mlp(tmp_path / "1"), completed(BACKEND, tmp_path / "1"))
    execution = instance.execute([request({"x": ramp((2, 8))})])
    assert min(execution.input_ns, execution.infer_ns, execution.output_ns) > 0


def test_only_requested_outputs_are_computed(tmp_path: Path) -> None:
    instance = load(BACKEND, sum_and_difference(tmp_path / "1"), completed(BACKEND, tmp_path / "1"))
    inputs = {"a": ramp((1, 4)), "b": ramp((1, 4)) * 3}
    fetched: list[list[str]] = []
    inner = instance._run  # type: ignore[attr-defined]

    def watch(wanted: list[str], feeds: dict[str, Array]) -> list[Array]:
        fetched.append(list(wanted))
        return inner(wanted, feeds)  # type: ignore[no-any-return]

    instance._run = watch  # type: ignore[attr-defined]
    one = run(instance, request(dict(inputs), outputs=("difference",)))[0]
    assert fetched.pop() == ["difference"]
    np.testing.assert_array_equal(one["difference"], inputs["a"] - inputs["b"])
    run(instance, request(dict(inputs), outputs=("difference",)), request(dict(inputs), outputs=("sum",)))
    assert fetched.pop() == ["sum", "difference"]
    both = run(instance, request(dict(inputs), outputs=("sum",)), request(dict(inputs)))
    assert fetched.pop() == ["sum", "difference"]
    np.testing.assert_array_equal(both[1]["sum"], inputs["a"] + inputs["b"])


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.DOUBLE, np.float64),
        (TensorProto.INT8, np.int8),
        (TensorProto.INT32, np.int32),
        (TensorProto.INT64, np.int64),
    ],
)
def test_numbers_of_every_width_go_through(tmp_path: Path, kind: int, dtype: type) -> None:
    instance = load(BACKEND, elementwise(tmp_path / "1", "Neg", kind, ["n", 3]), completed(BACKEND, tmp_path / "1"))
    values: Array = (ramp((2, 3), np.float64) * 100).astype(dtype)
    np.testing.assert_array_equal(run_one(instance, x=values)["y"], -values)


@pytest.mark.parametrize(
    "kind", [TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64, TensorProto.BOOL]
)
def test_unsigned_numbers_and_truths_go_through(tmp_path: Path, kind: int) -> None:
    instance = load(BACKEND, elementwise(tmp_path / "1", "Identity", kind, ["n"]), completed(BACKEND, tmp_path / "1"))
    values = np.array([[1], [0], [1]], helper.tensor_dtype_to_np_dtype(kind))
    np.testing.assert_array_equal(run_one(instance, x=values)["y"], values)


def test_bf16_goes_in_and_out_as_bit_patterns(tmp_path: Path) -> None:
    shape = ["n", 2]
    save(
        tmp_path / "1",
        [
            helper.make_node("Cast", ["x"], ["wide"], to=FLOAT),
            helper.make_node("Neg", ["wide"], ["negative"]),
            helper.make_node("Cast", ["negative"], ["y"], to=TensorProto.BFLOAT16),
        ],
        [("x", TensorProto.BFLOAT16, shape)],
        [("y", TensorProto.BFLOAT16, shape), ("negative", FLOAT, shape)],
    )
    instance = load(BACKEND, tmp_path / "1", completed(BACKEND, tmp_path / "1"))
    values = np.array([[1.5, -2.0], [0.0, 3.25]], np.float32)
    execution = instance.execute([request({"x": bfloat16("x", values[:1])}), request({"x": bfloat16("x", values[1:])})])
    answers = [{t.name: t for t in response.outputs} for response in execution.responses]
    np.testing.assert_array_equal(np.concatenate([from_bfloat16(answer["y"]) for answer in answers]), -values)
    np.testing.assert_array_equal(np.concatenate([answer["negative"].array() for answer in answers]), -values)


def test_strings_go_in_and_out_as_bytes(tmp_path: Path) -> None:
    instance = load(
        BACKEND, elementwise(tmp_path / "1", "Identity", STRING, ["n", 2]), completed(BACKEND, tmp_path / "1")
    )
    values = np.array([[b"a", "käse".encode()], [b"", b"x\0y"]], object)
    answer = run_one(instance, x=values)["y"]
    assert answer.tolist() == values.tolist()


def test_text_that_is_not_utf8_fails_its_own_request_only(tmp_path: Path) -> None:
    instance = load(
        BACKEND, elementwise(tmp_path / "1", "Identity", STRING, ["n", 2]), completed(BACKEND, tmp_path / "1")
    )
    good = np.array([[b"a", b"b"]], object)
    bad = np.array([[b"a", b"\xff"]], object)
    responses = instance.execute([request({"x": good}), request({"x": bad}), request({"x": good})]).responses
    assert [response.error is None for response in responses] == [True, False, True]
    error = responses[1].error
    assert error is not None
    assert error.code is Code.INVALID_ARGUMENT
    assert error.message.startswith("element 1 of input 'x' for model 'm' is not valid UTF-8")
    assert responses[2].outputs[0].array().tolist() == good.tolist()
    alone = instance.execute([request({"x": bad})]).responses
    assert [response.error is None for response in alone] == [False]


def test_free_sizes_take_any_length(tmp_path: Path) -> None:
    instance = load(
        BACKEND, elementwise(tmp_path / "1", "Neg", FLOAT, ["b", "length"]), completed(BACKEND, tmp_path / "1")
    )
    for length in (1, 7, 300):
        values = ramp((2, length))
        np.testing.assert_array_equal(run_one(instance, x=values)["y"], -values)


def test_a_model_without_a_batch_takes_full_shapes(tmp_path: Path) -> None:
    instance = load(BACKEND, elementwise(tmp_path / "1", "Neg", FLOAT, [2, 3]), completed(BACKEND, tmp_path / "1"))
    np.testing.assert_array_equal(run_one(instance, x=ramp((2, 3)))["y"], -ramp((2, 3)))


def test_a_scalar_is_served_as_one_number(tmp_path: Path) -> None:
    instance = load(BACKEND, elementwise(tmp_path / "1", "Neg", FLOAT, []), completed(BACKEND, tmp_path / "1"))
    assert run_one(instance, x=np.array([2.5], np.float32))["y"].tolist() == [-2.5]


def test_one_number_for_each_row_of_a_batch(tmp_path: Path) -> None:
    instance = load(BACKEND, elementwise(tmp_path / "1", "Neg", FLOAT, ["batch"]), completed(BACKEND, tmp_path / "1"))
    assert run_one(instance, x=np.array([[1.0], [2.0]], np.float32))["y"].tolist() == [[-1.0], [-2.0]]


def test_a_weight_that_may_be_replaced_is_an_optional_input(tmp_path: Path) -> None:
    save(
        tmp_path / "1",
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        [("x", FLOAT, [2]), ("factor", FLOAT, [1])],
        [("y", FLOAT, [2])],
        {"factor": np.array([10.0], np.float32)},
    )
    text = (
        'input [ { name: "factor" data_type: TYPE_FP32 dims: [ 1 ] optional: true }, { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ] '
        'output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }'
    )
    instance = load(BACKEND, tmp_path / "1", text)
    x = np.array([1, 2], np.float32)
    assert run_one(instance, x=x)["y"].tolist() == [10, 20]
    assert run_one(instance, x=x, factor=np.array([3], np.float32))["y"].tolist() == [3, 6]
    with pytest.raises(ServingError, match="optional input 'factor' is not supported for models that support batching"):
        load(BACKEND, tmp_path / "1", "max_batch_size: 2 " + text)


def test_weights_in_a_file_beside_the_model_are_found(tmp_path: Path) -> None:
    plain = load(BACKEND, mlp(tmp_path / "1"), completed(BACKEND, tmp_path / "1"))
    split = load(BACKEND, mlp(tmp_path / "2", external=True), completed(BACKEND, tmp_path / "2"))
    assert (tmp_path / "2/weights.bin").stat().st_size > 0
    np.testing.assert_array_equal(run_one(split, x=ramp((2, 8)))["y"], run_one(plain, x=ramp((2, 8)))["y"])


def test_a_folder_of_the_file_s_name_holds_the_model(tmp_path: Path) -> None:
    mlp(tmp_path / "1/model.onnx", external=True)
    instance = load(BACKEND, tmp_path / "1", completed(BACKEND, tmp_path / "1"))
    assert run_one(instance, x=ramp((1, 8)))["y"].shape == (1, 3)


def test_a_failure_while_running_is_the_batch_s_and_the_instance_goes_on(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    save(tmp_path / "1", nodes, [("x", FLOAT, ["n"]), ("shape", TensorProto.INT64, [2])], [("y", FLOAT, ["a", "b"])])
    instance = load(BACKEND, tmp_path / "1", completed(BACKEND, tmp_path / "1"))
    x = ramp((6,))
    with pytest.raises(ServingError) as caught:
        run(instance, request({"x": x, "shape": np.array([4, 2])}))
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message.startswith("onnx runtime error ")
    assert "Reshape" in caught.value.message
    assert "\n" not in caught.value.message
    assert run_one(instance, x=x, shape=np.array([3, 2]))["y"].shape == (3, 2)


def test_bytes_at_an_odd_offset_give_the_same_answer(tmp_path: Path) -> None:
    instance = load(BACKEND, mlp(tmp_path / "1"), completed(BACKEND, tmp_path / "1"))
    values = ramp((4, 8))
    shifted = request({"x": values})
    shifted.inputs["x"].data = memoryview(b"\0" + values.tobytes())[1:]
    np.testing.assert_array_equal(run(instance, shifted)[0]["y"], run_one(instance, x=values)["y"])


def test_large_tensors_are_not_copied(tmp_path: Path) -> None:
    instance = load(BACKEND, elementwise(tmp_path / "1", "Neg", FLOAT, ["n", 1]), completed(BACKEND, tmp_path / "1"))
    seen: list[Array] = []
    inner = instance._run  # type: ignore[attr-defined]

    def watch(wanted: list[str], feeds: dict[str, Array]) -> list[Array]:
        results: list[Array] = inner(wanted, feeds)
        seen.extend([feeds["x"], results[0]])
        return results

    instance._run = watch  # type: ignore[attr-defined]
    asked = request({"x": ramp((1 << 16, 1))})
    data = asked.inputs["x"].data
    answer = run(instance, asked)[0]["y"]
    assert isinstance(data, bytes)
    assert np.shares_memory(seen[0], np.frombuffer(data, np.uint8))
    assert np.shares_memory(seen[1], answer)


def test_a_closed_instance_frees_its_session_and_refuses_batches(tmp_path: Path) -> None:
    instance = load(BACKEND, mlp(tmp_path / "1"), completed(BACKEND, tmp_path / "1"))
    gone = weakref.ref(instance._run._session)  # type: ignore[attr-defined]
    instance.close()
    gc.collect()
    assert gone() is None
    with pytest.raises(ServingError, match="instance of model 'm' is closed"):
        run(instance, request({"x": ramp((1, 8))}))


def test_instances_share_a_session_when_the_configuration_says_so(tmp_path: Path) -> None:
    mlp(tmp_path / "1")
    shared = 'parameters { key: "share_session_between_instances" value { string_value: "true" } }'
    one, two = (load(BACKEND, tmp_path / "1", completed(BACKEND, tmp_path / "1", shared)) for _ in range(2))
    assert one._run._session is two._run._session  # type: ignore[attr-defined]
    alone = load(BACKEND, tmp_path / "1", completed(BACKEND, tmp_path / "1"))
    assert alone._run._session is not one._run._session  # type: ignore[attr-defined]


def test_parameters_reach_onnx_runtime() -> None:
    def parameter(key: str, value: str) -> str:
        return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'

    options = session_options(
        config(
            "optimization { graph { level: -1 } } "
            + parameter("intra_op_thread_count", "3")
            + parameter("inter_op_thread_count", "2")
            + parameter("execution_mode", "1")
            + parameter("enable_mem_arena", "0")
            + parameter("enable_mem_pattern", "0")
        )
    )
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert session_options(config()).get_session_config_entry("session.intra_op.allow_spinning") == "0"

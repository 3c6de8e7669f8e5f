"""TorchScript models answer through the backend as they do when called directly, under Triton's naming conventions."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal_dataplane.backends.torch_backend import BACKEND
from shoal_dataplane.core.errors import Code, ServingError
from tests.unit.backends.loading import (
    Array,
    bfloat16,
    completed,
    from_bfloat16,
    load,
    ramp,
    request,
    run,
    run_one,
)
from tests.unit.backends.torch_models import (
    Identity,
    Mlp,
    RunningTotal,
    SumAndDifference,
    WritesItsInput,
    script,
    trace,
)

MLP = (
    'max_batch_size: 8 input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 8 ] } '
    'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] }'
)


def tensor(kind: str, name: str, dtype: str = "FP32", dims: str = "4", more: str = "") -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{dtype} dims: [ {dims} ] {more} }} '


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


def program(instance: object) -> object:
    return instance._program  # type: ignore[attr-defined]


@pytest.mark.parametrize("traced", [False, True])
def test_a_batch_of_requests_equals_direct_calls(tmp_path: Path, traced: bool) -> None:
    module = Mlp()
    folder = trace(tmp_path / "1", module, torch.zeros(2, 8)) if traced else script(tmp_path / "1", module)
    instance = load(BACKEND, folder, MLP)
    parts = [ramp((rows, 8)) * rows for rows in (1, 3, 2)]
    found = run(instance, *(request({"INPUT__0": part}) for part in parts))
    together = module(torch.from_numpy(np.concatenate(parts))).detach().numpy()
    np.testing.assert_array_equal(np.concatenate([answer["OUTPUT__0"] for answer in found]), together)
    execution = instance.execute([request({"INPUT__0": parts[0]})])
    assert min(execution.input_ns, execution.infer_ns, execution.output_ns) > 0


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (("a", "b"), ("OUTPUT__0", "OUTPUT__1")),  # arguments of forward()
        (("b", "a"), ("OUTPUT__1", "OUTPUT__0")),
        (("INPUT__1", "INPUT__0"), ("OUT__1", "OUT__0")),  # by index, in whatever order
        (("left", "right"), ("sum", "difference")),  # neither: the order of the configuration
    ],
)
def test_names_mean_arguments_or_indices_or_the_order_of_the_configuration(
    tmp_path: Path, inputs: tuple[str, str], outputs: tuple[str, str]
) -> None:
    text = (
        "max_batch_size: 2 "
        + "".join(tensor("input", n) for n in inputs)
        + "".join(tensor("output", n) for n in outputs)
    )
    instance = load(BACKEND, script(tmp_path / "1", SumAndDifference()), text)
    a, b = ramp((1, 4)), ramp((1, 4)) * 3
    first, second = (b, a) if inputs[0] in ("b", "INPUT__1") else (a, b)
    answer = run_one(instance, **{inputs[0]: first, inputs[1]: second})
    sums = outputs[1] if outputs[0].endswith("1") else outputs[0]
    differences = outputs[0] if outputs[0].endswith("1") else outputs[1]
    np.testing.assert_array_equal(answer[sums], a + b)
    np.testing.assert_array_equal(answer[differences], a - b)


def test_names_that_match_nothing_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = tensor("input", "a") + tensor("input", "c") + tensor("output", "OUTPUT__0")
    load(BACKEND, script(tmp_path / "1", SumAndDifference()), text)
    assert (
        "the inputs a, c are neither names that the model knows (a, b) nor of the form <name>__<index>" in caplog.text
    )


class FromDictionary(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": tensors["a"] + tensors["b"], "twice": tensors["a"] * 2}


def test_a_dictionary_goes_in_and_out_by_name(tmp_path: Path) -> None:
    text = (
        "max_batch_size: 2 "
        + "".join(tensor("input", n) for n in "ab")
        + "".join(tensor("output", n) for n in ("twice", "sum"))
    )
    instance = load(BACKEND, script(tmp_path / "1", FromDictionary()), text)
    a, b = ramp((1, 4)), ramp((1, 4)) * 3
    answer = run_one(instance, a=a, b=b)
    np.testing.assert_array_equal(answer["sum"], a + b)
    np.testing.assert_array_equal(answer["twice"], a * 2)
    other = load(BACKEND, tmp_path / "1", text.replace("twice", "thrice"))
    with pytest.raises(
        ServingError, match="model 'm' did not return output 'thrice': the dictionary's keys are sum, twice"
    ):
        run_one(other, a=a, b=b)


class ListOfTensors(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x, x * 2]


def test_a_list_of_tensors_comes_out_by_index(tmp_path: Path) -> None:
    text = "max_batch_size: 2 " + tensor("input", "x") + tensor("output", "OUTPUT__1")
    instance = load(BACKEND, script(tmp_path / "1", ListOfTensors()), text)
    np.testing.assert_array_equal(run_one(instance, x=ramp((1, 4)))["OUTPUT__1"], ramp((1, 4)) * 2)
    missing = load(BACKEND, tmp_path / "1", text.replace("OUTPUT__1", "OUTPUT__2"))
    with pytest.raises(
        ServingError, match="did not return output 'OUTPUT__2': it returned 2 values, the output is the one at index 2"
    ):
        run_one(missing, x=ramp((1, 4)))


class WithDefaults(torch.nn.Module):
    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None, factor: int = 3) -> torch.Tensor:
        return x * factor if bias is None else x * factor + bias


def test_arguments_with_defaults_may_be_optional_or_not_configured(tmp_path: Path) -> None:
    script(tmp_path / "1", WithDefaults())
    x, bias = ramp((1, 4)), ramp((1, 4)) + 1
    bare = load(BACKEND, tmp_path / "1", tensor("input", "x", dims="1, 4") + tensor("output", "y", dims="1, 4"))
    np.testing.assert_array_equal(run_one(bare, x=x)["y"], x * 3)
    text = tensor("input", "x") + tensor("input", "bias", more="optional: true") + tensor("output", "y")
    instance = load(BACKEND, tmp_path / "1", "max_batch_size: 2 " + text)
    np.testing.assert_array_equal(run_one(instance, x=x, bias=bias)["y"], x * 3 + bias)
    np.testing.assert_array_equal(run_one(instance, x=x)["y"], x * 3)
    with pytest.raises(ServingError, match="input 'x' is optional, the model's argument 'x' has no default"):
        load(BACKEND, tmp_path / "1", tensor("input", "x", more="optional: true") + tensor("output", "y"))


class Numbers(torch.nn.Module):
    def forward(self, x: torch.Tensor, times: int, plus: float = 0.5, negate: bool = False) -> torch.Tensor:
        y = x * times + plus
        return -y if negate else y


def test_numbers_come_from_tensors_of_one_element(tmp_path: Path) -> None:
    text = tensor("input", "x") + tensor("output", "y") + tensor("input", "times", "INT64", "1")
    script(tmp_path / "1", Numbers())
    x, times = ramp((4,)), np.array([3])
    np.testing.assert_array_equal(run_one(load(BACKEND, tmp_path / "1", text), x=x, times=times)["y"], x * 3 + 0.5)
    full = text + tensor("input", "negate", "BOOL", "1") + tensor("input", "plus", "FP32", "-1", "optional: true")
    instance = load(BACKEND, tmp_path / "1", full)
    more = {"plus": np.array([2], np.float32), "negate": np.array([True])}
    np.testing.assert_array_equal(run_one(instance, x=x, times=times, **more)["y"], -(x * 3 + 2))
    with pytest.raises(
        ServingError, match="input 'plus' for model 'm' must be one number, got shape \\[2\\]"
    ) as caught:
        run_one(instance, x=x, times=times, negate=more["negate"], plus=np.zeros(2, np.float32))
    assert caught.value.code is Code.INVALID_ARGUMENT
    with pytest.raises(
        ServingError, match="one int for the whole batch: such a model is configured with max_batch_size 0"
    ):
        load(BACKEND, tmp_path / "1", "max_batch_size: 2 " + text)


class Strings(torch.nn.Module):
    def forward(self, words: list[str]) -> tuple[list[str], torch.Tensor]:
        shouted: list[str] = []
        for word in words:
            shouted.append(word + "!")
        return shouted, torch.tensor([len(word) for word in words])


STRINGS = (
    'input { name: "words" data_type: TYPE_STRING dims: [ -1 ] } '
    'output { name: "shouted" data_type: TYPE_STRING dims: [ -1 ] } output { name: "lengths" data_type: TYPE_INT64 dims: [ -1 ] }'
)


def test_lists_of_strings_go_in_and_out(tmp_path: Path) -> None:
    instance = load(BACKEND, script(tmp_path / "1", Strings()), STRINGS)
    answer = run_one(instance, words=np.array([b"a", "käse".encode()], object))
    assert answer["shouted"].tolist() == [b"a!", "käse!".encode()]
    assert answer["lengths"].tolist() == [1, 5], "TorchScript counts bytes"
    with pytest.raises(ServingError, match="element 1 of input 'words' for model 'm' is not valid UTF-8") as caught:
        run_one(instance, words=np.array([b"a", b"\xff"], object))
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "text", ["max_batch_size: 2 " + STRINGS, STRINGS.replace("dims: [ -1 ]", "dims: [ -1, 2 ]", 1)]
)
def test_strings_of_more_than_one_dimension_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        ServingError, match="only 1 dimensional List of String is supported as input for 'words' for model 'm'"
    ):
        load(BACKEND, script(tmp_path / "1", Strings()), text)


@pytest.mark.parametrize(
    "wire", ["FP16", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL"]
)
def test_numbers_of_every_kind_go_through(tmp_path: Path, wire: str) -> None:
    from shoal_dataplane.core.dtypes import BY_WIRE

    text = "max_batch_size: 4 " + tensor("input", "x", wire) + tensor("output", "y", wire)
    instance = load(BACKEND, script(tmp_path / "1", Identity()), text)
    values = (np.arange(8).reshape(2, 4) % 5).astype(BY_WIRE[wire].numpy)
    parts = run(instance, request({"x": values[:1]}), request({"x": values[1:]}))
    np.testing.assert_array_equal(np.concatenate([part["y"] for part in parts]), values)


def test_bf16_goes_in_and_out_as_bit_patterns(tmp_path: Path) -> None:
    text = "max_batch_size: 4 " + tensor("input", "INPUT__0", "BF16", "8") + tensor("output", "OUTPUT__0", "BF16", "3")
    instance = load(BACKEND, script(tmp_path / "1", Mlp().bfloat16()), text)
    x = ramp((2, 8))
    expected = Mlp().bfloat16()(torch.from_numpy(from_bfloat16(bfloat16("", x))).bfloat16()).float().detach().numpy()
    response = instance.execute([request({"INPUT__0": bfloat16("INPUT__0", x)})]).responses[0]
    np.testing.assert_array_equal(from_bfloat16(response.outputs[0]), expected)


@pytest.mark.parametrize(("configured", "got"), [("FP16", "TYPE_FP32"), ("INT64", "TYPE_FP32")])
def test_a_wrong_output_type_is_an_error_that_names_both(tmp_path: Path, configured: str, got: str) -> None:
    instance = load(
        BACKEND, script(tmp_path / "1", Mlp()), MLP.replace("TYPE_FP32 dims: [ 3", f"TYPE_{configured} dims: [ 3")
    )
    with pytest.raises(ServingError) as caught:
        run_one(instance, INPUT__0=ramp((1, 8)))
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message == (
        f"configuration expects datatype TYPE_{configured} for output 'OUTPUT__0', model provides {got}"
    )


@pytest.mark.parametrize("wire", [True, False])
def test_a_model_that_writes_into_its_input_does_not_write_into_the_request(tmp_path: Path, wire: bool) -> None:
    text = "max_batch_size: 4 " + tensor("input", "x") + tensor("output", "y")
    instance = load(BACKEND, script(tmp_path / "1", WritesItsInput()), text)
    asked = request({"x": ramp((2, 4))}, wire=wire)
    np.testing.assert_array_equal(run(instance, asked)[0]["y"], ramp((2, 4)) + 1)
    np.testing.assert_array_equal(asked.inputs["x"].array(), ramp((2, 4)))


class WritesIntoItsDictionary(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        return tensors["x"].add_(1)


def test_a_model_that_writes_into_a_tensor_of_its_dictionary_does_not_write_into_the_request(tmp_path: Path) -> None:
    text = "max_batch_size: 4 " + tensor("input", "x") + tensor("output", "y")
    instance = load(BACKEND, script(tmp_path / "1", WritesIntoItsDictionary()), text)
    asked = request({"x": ramp((2, 4))})
    np.testing.assert_array_equal(run(instance, asked)[0]["y"], ramp((2, 4)) + 1)
    np.testing.assert_array_equal(asked.inputs["x"].array(), ramp((2, 4)))


def test_a_model_that_only_reads_is_given_the_request_s_own_memory(tmp_path: Path) -> None:
    text = "max_batch_size: 70000 " + tensor("input", "x", dims="1") + tensor("output", "y", dims="1")
    instance = load(BACKEND, script(tmp_path / "1", Identity()), text)
    asked = request({"x": ramp((1 << 16, 1))})
    answer = run(instance, asked)[0]["y"]
    data = asked.inputs["x"].data
    assert isinstance(data, bytes)
    assert np.shares_memory(answer, np.frombuffer(data, np.uint8))


def test_a_state_that_is_returned_is_not_changed_by_the_next_batch(tmp_path: Path) -> None:
    text = tensor("input", "x", dims="-1, 2") + tensor("output", "total", dims="2")
    instance = load(BACKEND, script(tmp_path / "1", RunningTotal()), text)
    first = run_one(instance, x=np.ones((3, 2), np.float32))["total"]
    second = run_one(instance, x=np.ones((1, 2), np.float32))["total"]
    assert (first.tolist(), second.tolist()) == ([3, 3], [4, 4])


def test_instances_share_a_model_without_a_state(tmp_path: Path) -> None:
    script(tmp_path / "1", Mlp())
    one, two = load(BACKEND, tmp_path / "1", MLP), load(BACKEND, tmp_path / "1", MLP)
    assert program(one) is program(two)
    assert program(load(BACKEND, tmp_path / "1", MLP + parameter("ENABLE_WEIGHT_SHARING", "false"))) is not program(one)
    script(tmp_path / "1", Mlp())
    assert program(load(BACKEND, tmp_path / "1", MLP)) is not program(one), "the file was written again"


def test_instances_share_no_state_unless_told_to(tmp_path: Path) -> None:
    text = tensor("input", "x", dims="-1, 2") + tensor("output", "total", dims="2")
    script(tmp_path / "1", RunningTotal())
    one, two = load(BACKEND, tmp_path / "1", text), load(BACKEND, tmp_path / "1", text)
    run_one(one, x=np.ones((3, 2), np.float32))
    assert run_one(two, x=np.ones((1, 2), np.float32))["total"].tolist() == [1, 1]
    shared = text + parameter("ENABLE_WEIGHT_SHARING", "true")
    three, four = load(BACKEND, tmp_path / "1", shared), load(BACKEND, tmp_path / "1", shared)
    run_one(three, x=np.ones((3, 2), np.float32))
    assert run_one(four, x=np.ones((1, 2), np.float32))["total"].tolist() == [4, 4]


def test_a_closed_instance_frees_its_model_and_refuses_batches(tmp_path: Path) -> None:
    instance = load(BACKEND, script(tmp_path / "1", Mlp()), MLP)
    gone = weakref.ref(program(instance))
    instance.close()
    gc.collect()
    assert gone() is None
    with pytest.raises(ServingError, match="instance of model 'm' is closed"):
        run_one(instance, INPUT__0=ramp((1, 8)))


class Dropout(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dropout(x)
        return result


def test_a_module_saved_while_training_is_served_for_inference(tmp_path: Path) -> None:
    text = "max_batch_size: 4 " + tensor("input", "x") + tensor("output", "y")
    instance = load(BACKEND, script(tmp_path / "1", Dropout().train()), text)
    np.testing.assert_array_equal(run_one(instance, x=ramp((4, 4)))["y"], ramp((4, 4)))


def test_a_module_saved_frozen_is_served(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    frozen = torch.jit.freeze(torch.jit.script(Mlp().eval()))
    torch.jit.save(frozen, str(tmp_path / "1/model.pt"))
    instance = load(BACKEND, tmp_path / "1", MLP)
    assert run_one(instance, INPUT__0=ramp((1, 8)))["OUTPUT__0"].shape == (1, 3)


@pytest.mark.parametrize(
    "setting",
    [
        parameter("INFERENCE_MODE", "false"),
        parameter("DISABLE_OPTIMIZED_EXECUTION", "true"),
        parameter("INTRA_OP_THREAD_COUNT", "2"),
        parameter("DISABLE_CUDNN", "true"),
        parameter("ENABLE_CACHE_CLEANING", "true"),
        parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", "{}"),
    ],
)
def test_parameters_change_how_a_model_runs_and_not_its_answers(tmp_path: Path, setting: str) -> None:
    instance = load(BACKEND, script(tmp_path / "1", Mlp()), MLP + setting)
    x = ramp((2, 8))
    np.testing.assert_array_equal(
        run_one(instance, INPUT__0=x)["OUTPUT__0"], Mlp()(torch.from_numpy(x)).detach().numpy()
    )


class Grad(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * self.weight
        return torch.tensor([torch.is_grad_enabled(), y.requires_grad, y.is_inference()]), self.weight


@pytest.mark.parametrize("inference_mode", ["true", "false"])
def test_no_gradients_are_tracked_with_or_without_inference_mode(tmp_path: Path, inference_mode: str) -> None:
    text = tensor("input", "x") + tensor("output", "OUTPUT__0", "BOOL", "3") + tensor("output", "OUTPUT__1")
    instance = load(BACKEND, script(tmp_path / "1", Grad()), text + parameter("INFERENCE_MODE", inference_mode))
    answer = run_one(instance, x=ramp((4,)))
    assert answer["OUTPUT__0"].tolist() == [False, False, inference_mode == "true"]
    assert answer["OUTPUT__1"].tolist() == [1, 1, 1, 1]
    assert torch.is_grad_enabled(), "the mode ended with the batch"
    assert not torch.is_inference_mode_enabled()


def test_each_model_runs_with_its_own_number_of_threads(tmp_path: Path) -> None:
    script(tmp_path / "1", Mlp())
    instances = [load(BACKEND, tmp_path / "1", MLP + parameter("INTRA_OP_THREAD_COUNT", n)) for n in ("2", "1")]
    seen = []
    for instance in (*instances, *instances):
        run_one(instance, INPUT__0=ramp((1, 8)))
        seen.append(torch.get_num_threads())
    assert seen == [2, 1, 2, 1]


def test_process_wide_settings_are_set_when_a_model_asks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script(tmp_path / "1", Mlp())
    before = torch._C._jit_set_profiling_mode(False), torch._C._jit_set_profiling_executor(True)
    try:
        load(BACKEND, tmp_path / "1", MLP)
        assert torch._C._jit_set_profiling_mode(False) is False, "no model asked"
        both = parameter("ENABLE_JIT_PROFILING", "true") + parameter("ENABLE_JIT_EXECUTOR", "false")
        x = ramp((2, 8))
        found = [run_one(load(BACKEND, tmp_path / "1", MLP + both), INPUT__0=x)["OUTPUT__0"] for _ in range(3)]
        for answer in found:
            np.testing.assert_array_equal(answer, Mlp()(torch.from_numpy(x)).detach().numpy())
        assert torch._C._jit_set_profiling_mode(False) is True
        assert torch._C._jit_set_profiling_executor(True) is False
    finally:
        torch._C._jit_set_profiling_mode(before[0])
        torch._C._jit_set_profiling_executor(before[1])


def test_the_first_number_of_inter_op_threads_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script(tmp_path / "1", Mlp())
    before = torch.get_num_interop_threads()
    for count in ("1", "3"):
        load(BACKEND, tmp_path / "1", MLP + parameter("INTER_OP_THREAD_COUNT", count))
    assert "INTER_OP_THREAD_COUNT 3" in caplog.text
    assert torch.get_num_interop_threads() in (1, before)


def test_instances_that_share_a_model_run_at_once(tmp_path: Path) -> None:
    script(tmp_path / "1", Mlp())
    instances = [load(BACKEND, tmp_path / "1", MLP) for _ in range(4)]
    inputs = [ramp((rows, 8)) * rows for rows in (1, 2, 3, 4)]

    def answers_of(at: int) -> list[Array]:
        return [run_one(instances[at], INPUT__0=inputs[at])["OUTPUT__0"] for _ in range(50)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(answers_of, range(4)))
    for x, answers in zip(inputs, found, strict=True):
        expected = Mlp()(torch.from_numpy(x)).detach().numpy()
        for answer in answers:
            np.testing.assert_array_equal(answer, expected)


class Ragged(torch.nn.Module):
    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return (x.sum() * count).unsqueeze(1)


def test_ragged_inputs_are_joined_flat_with_their_counts(tmp_path: Path) -> None:
    text = (
        'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } '
        'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "count" data_type: TYPE_FP32 source_input: "x" } '
        'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }'
    )
    instance = load(BACKEND, script(tmp_path / "1", Ragged()), text)
    parts = [np.ones((1, 2), np.float32), np.ones((1, 3), np.float32)]
    found = run(instance, *(request({"x": part}) for part in parts))
    assert [answer["y"].tolist() for answer in found] == [[[10.0]], [[15.0]]]


def test_a_failure_while_running_is_the_batch_s_and_the_instance_goes_on(tmp_path: Path) -> None:
    instance = load(BACKEND, script(tmp_path / "1", Mlp()), MLP.replace("[ 8 ]", "[ -1 ]"))
    with pytest.raises(ServingError) as caught:
        run_one(instance, INPUT__0=ramp((1, 9)))
    assert caught.value.code is Code.INTERNAL
    assert caught.value.message == ("PyTorch execute failure: mat1 and mat2 shapes cannot be multiplied (1x9 and 8x16)")
    assert run_one(instance, INPUT__0=ramp((1, 8)))["OUTPUT__0"].shape == (1, 3)


class Raises(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            raise ValueError("the sum must not be positive")
        return x


def test_what_a_model_raises_reaches_the_caller_without_its_traceback(tmp_path: Path) -> None:
    text = tensor("input", "x") + tensor("output", "y")
    instance = load(BACKEND, script(tmp_path / "1", Raises()), text)
    with pytest.raises(ServingError) as caught:
        run_one(instance, x=np.ones(4, np.float32))
    assert caught.value.message == "PyTorch execute failure: the sum must not be positive"


class TakesAShape(torch.nn.Module):
    def forward(self, x: torch.Tensor, shape: list[int]) -> torch.Tensor:
        return x.reshape(shape)


class TakesAListOfNumbers(torch.nn.Module):
    def forward(self, x: torch.Tensor, values: list[int] | None = None) -> torch.Tensor:
        return x if values is None else x * len(values)


class ReturnsANumber(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> int:
        return x.size(0)


X4 = tensor("input", "x")
Y4 = tensor("output", "OUTPUT__0")


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        (TakesAShape(), X4 + Y4, "An input of type 'List[int]' was detected in the model ('shape')"),
        (
            ReturnsANumber(),
            X4 + Y4,
            "output must be of type Tensor, List[str], a Tuple of these, List[Tensor] or Dict[str, Tensor], "
            "forward() returns int",
        ),
        (SumAndDifference(), X4 + Y4, "configuration expects 1 inputs, model provides 2: no input feeds b"),
        (
            SumAndDifference(),
            tensor("input", "a") + tensor("input", "b") + tensor("input", "c") + Y4,
            "configuration expects input 'c' at index 2, model provides 2 inputs",
        ),
        (
            SumAndDifference(),
            tensor("input", "X__0") + tensor("input", "Y__0") + Y4,
            "inputs 'X__0' and 'Y__0' both mean the model's input at index 0",
        ),
        (
            Identity(),
            X4 + tensor("output", "OUTPUT__1"),
            "configuration expects output 'OUTPUT__1' at index 1, model provides 1 outputs",
        ),
        (
            Identity(),
            tensor("input", "x", "STRING", "-1") + Y4,
            "input 'x' is TYPE_STRING, the model's argument 'x' is a Tensor",
        ),
        (
            Strings(),
            tensor("input", "words", "FP32", "-1") + Y4,
            "input 'words' is no TYPE_STRING, the model's argument 'words' is a List[str]",
        ),
        (
            TakesAListOfNumbers(),
            X4 + tensor("input", "values", "INT64", "1") + Y4,
            "input 'values' feeds the argument 'values', which takes no tensor",
        ),
        (
            Identity(),
            X4 + Y4 + parameter("INFERENCE_MODE", "maybe"),
            "parameter 'INFERENCE_MODE' must be true or false, got 'maybe'",
        ),
        (
            Identity(),
            X4 + Y4 + parameter("INTRA_OP_THREAD_COUNT", "-2"),
            "parameter 'INTRA_OP_THREAD_COUNT' must be a whole number of 0 or more, got '-2'",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_forward_is_refused(
    tmp_path: Path, module: torch.nn.Module, text: str, message: str
) -> None:
    with pytest.raises(ServingError) as caught:
        load(BACKEND, script(tmp_path / "1", module), text)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert message in caught.value.message
    assert "'m'" in caught.value.message


def test_an_incomplete_configuration_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(ServingError) as caught:
        completed(BACKEND, script(tmp_path / "1", SumAndDifference()))
    assert caught.value.code is Code.INVALID_ARGUMENT
    for part in (
        "a TorchScript file holds neither datatypes nor shapes, so config.pbtxt must say them",
        'input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]',
        "The model in model.pt is forward(Tensor a, Tensor b) -> ",
    ):
        assert part in caught.value.message


def test_a_complete_configuration_is_not_touched_and_the_file_not_read(tmp_path: Path) -> None:
    assert completed(BACKEND, tmp_path / "nowhere", MLP).max_batch_size == 8


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    from shoal_dataplane.backends.base import InstanceSpec

    with pytest.raises(ServingError, match=r"instance 'm_0' is on GPU 99, torch .* finds \d+ CUDA devices here"):
        load(BACKEND, script(tmp_path / "1", Mlp()), MLP, InstanceSpec("m_0", "GPU", 99))


def test_bytes_at_an_odd_offset_give_the_same_answer(tmp_path: Path) -> None:
    instance = load(BACKEND, script(tmp_path / "1", Mlp()), MLP)
    values = ramp((4, 8))
    shifted = request({"INPUT__0": values})
    shifted.inputs["INPUT__0"].data = memoryview(b"\0" + values.tobytes())[1:]
    found = run(instance, shifted)[0]["OUTPUT__0"]
    np.testing.assert_array_equal(found, run_one(instance, INPUT__0=values)["OUTPUT__0"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_instance_answers_as_the_cpu_does(tmp_path: Path) -> None:
    from shoal_dataplane.backends.base import InstanceSpec

    script(tmp_path / "1", Mlp())
    x = ramp((4, 8))
    cpu = run_one(load(BACKEND, tmp_path / "1", MLP), INPUT__0=x)["OUTPUT__0"]
    gpu = run_one(load(BACKEND, tmp_path / "1", MLP, InstanceSpec("m_0", "GPU", 0)), INPUT__0=x)["OUTPUT__0"]
    np.testing.assert_allclose(gpu, cpu, rtol=1e-2, atol=1e-3)

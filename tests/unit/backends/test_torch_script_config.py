"""How a configuration names, shares and sets up a TorchScript model, and what it is told when it does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shoal_dataplane.backends.base import InstanceSpec
from shoal_dataplane.backends.pytorch.backend import BACKEND
from shoal_dataplane.core.errors import Code, ServingError
from tests.unit.backends.loading import (
    completed,
    load,
    parameter,
    ramp,
    run_one,
    tensor,
)
from tests.unit.backends.torch_models import (
    MLP_CONFIG,
    STRINGS_CONFIG,
    Identity,
    Mlp,
    RunningTotal,
    Strings,
    SumAndDifference,
    script,
)


def program(instance: object) -> object:
    return instance._program  # type: ignore[attr-defined]


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


@pytest.mark.parametrize(
    "text", ["max_batch_size: 2 " + STRINGS_CONFIG, STRINGS_CONFIG.replace("dims: [ -1 ]", "dims: [ -1, 2 ]", 1)]
)
def test_strings_of_more_than_one_dimension_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        ServingError, match="only 1 dimensional List of String is supported as input for 'words' for model 'm'"
    ):
        load(BACKEND, script(tmp_path / "1", Strings()), text)


def test_instances_share_a_model_without_a_state(tmp_path: Path) -> None:
    script(tmp_path / "1", Mlp())
    one, two = load(BACKEND, tmp_path / "1", MLP_CONFIG), load(BACKEND, tmp_path / "1", MLP_CONFIG)
    assert program(one) is program(two)
    assert program(
        load(BACKEND, tmp_path / "1", MLP_CONFIG + parameter("ENABLE_WEIGHT_SHARING", "false"))
    ) is not program(one)
    script(tmp_path / "1", Mlp())
    assert program(load(BACKEND, tmp_path / "1", MLP_CONFIG)) is not program(one), "the file was written again"


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
    instance = load(BACKEND, script(tmp_path / "1", Mlp()), MLP_CONFIG + setting)
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
    instances = [load(BACKEND, tmp_path / "1", MLP_CONFIG + parameter("INTRA_OP_THREAD_COUNT", n)) for n in ("2", "1")]
    seen = []
    for instance in (*instances, *instances):
        run_one(instance, INPUT__0=ramp((1, 8)))
        seen.append(torch.get_num_threads())
    assert seen == [2, 1, 2, 1]


def test_process_wide_settings_are_set_when_a_model_asks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script(tmp_path / "1", Mlp())
    before = torch._C._jit_set_profiling_mode(False), torch._C._jit_set_profiling_executor(True)
    try:
        load(BACKEND, tmp_path / "1", MLP_CONFIG)
        assert torch._C._jit_set_profiling_mode(False) is False, "no model asked"
        both = parameter("ENABLE_JIT_PROFILING", "true") + parameter("ENABLE_JIT_EXECUTOR", "false")
        x = ramp((2, 8))
        found = [run_one(load(BACKEND, tmp_path / "1", MLP_CONFIG + both), INPUT__0=x)["OUTPUT__0"] for _ in range(3)]
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
        load(BACKEND, tmp_path / "1", MLP_CONFIG + parameter("INTER_OP_THREAD_COUNT", count))
    assert "INTER_OP_THREAD_COUNT 3" in caplog.text
    assert torch.get_num_interop_threads() in (1, before)


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
    assert completed(BACKEND, tmp_path / "nowhere", MLP_CONFIG).max_batch_size == 8


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match=r"instance 'm_0' is on GPU 99, torch .* finds \d+ CUDA devices here"):
        load(BACKEND, script(tmp_path / "1", Mlp()), MLP_CONFIG, InstanceSpec("m_0", "GPU", 99))

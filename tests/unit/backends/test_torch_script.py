"""TorchScript models answer through the backend as they do when called directly."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal_dataplane.backends.base import InstanceSpec
from shoal_dataplane.backends.pytorch.backend import BACKEND
from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import Code, ServingError
from tests.unit.backends.loading import (
    Array,
    bfloat16,
    from_bfloat16,
    load,
    ramp,
    request,
    run,
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
    WithDefaults,
    WritesItsInput,
    script,
    trace,
)


def program(instance: object) -> object:
    return instance._program  # type: ignore[attr-defined]


@pytest.mark.parametrize("traced", [False, True])
def test_a_batch_of_requests_equals_direct_calls(tmp_path: Path, traced: bool) -> None:
    module = Mlp()
    folder = trace(tmp_path / "1", module, torch.zeros(2, 8)) if traced else script(tmp_path / "1", module)
    instance = load(BACKEND, folder, MLP_CONFIG)
    parts = [ramp((rows, 8)) * rows for rows in (1, 3, 2)]
    found = run(instance, *(request({"INPUT__0": part}) for part in parts))
    together = module(torch.from_numpy(np.concatenate(parts))).detach().numpy()
    np.testing.assert_array_equal(np.concatenate([answer["OUTPUT__0"] for answer in found]), together)
    execution = instance.execute([request({"INPUT__0": parts[0]})])
    assert min(execution.input_ns, execution.infer_ns, execution.output_ns) > 0


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


def test_lists_of_strings_go_in_and_out(tmp_path: Path) -> None:
    instance = load(BACKEND, script(tmp_path / "1", Strings()), STRINGS_CONFIG)
    answer = run_one(instance, words=np.array([b"a", "käse".encode()], object))
    assert answer["shouted"].tolist() == [b"a!", "käse!".encode()]
    assert answer["lengths"].tolist() == [1, 5], "TorchScript counts bytes"
    with pytest.raises(ServingError, match="element 1 of input 'words' for model 'm' is not valid UTF-8") as caught:
        run_one(instance, words=np.array([b"a", b"\xff"], object))
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "wire", ["FP16", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL"]
)
def test_numbers_of_every_kind_go_through(tmp_path: Path, wire: str) -> None:
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
        BACKEND,
        script(tmp_path / "1", Mlp()),
        MLP_CONFIG.replace("TYPE_FP32 dims: [ 3", f"TYPE_{configured} dims: [ 3"),
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


def test_a_closed_instance_frees_its_model_and_refuses_batches(tmp_path: Path) -> None:
    instance = load(BACKEND, script(tmp_path / "1", Mlp()), MLP_CONFIG)
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
    instance = load(BACKEND, tmp_path / "1", MLP_CONFIG)
    assert run_one(instance, INPUT__0=ramp((1, 8)))["OUTPUT__0"].shape == (1, 3)


def test_instances_that_share_a_model_run_at_once(tmp_path: Path) -> None:
    script(tmp_path / "1", Mlp())
    instances = [load(BACKEND, tmp_path / "1", MLP_CONFIG) for _ in range(4)]
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
    instance = load(BACKEND, script(tmp_path / "1", Mlp()), MLP_CONFIG.replace("[ 8 ]", "[ -1 ]"))
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


def test_bytes_at_an_odd_offset_give_the_same_answer(tmp_path: Path) -> None:
    instance = load(BACKEND, script(tmp_path / "1", Mlp()), MLP_CONFIG)
    values = ramp((4, 8))
    shifted = request({"INPUT__0": values})
    shifted.inputs["INPUT__0"].data = memoryview(b"\0" + values.tobytes())[1:]
    found = run(instance, shifted)[0]["OUTPUT__0"]
    np.testing.assert_array_equal(found, run_one(instance, INPUT__0=values)["OUTPUT__0"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_instance_answers_as_the_cpu_does(tmp_path: Path) -> None:
    script(tmp_path / "1", Mlp())
    x = ramp((4, 8))
    cpu = run_one(load(BACKEND, tmp_path / "1", MLP_CONFIG), INPUT__0=x)["OUTPUT__0"]
    gpu = run_one(load(BACKEND, tmp_path / "1", MLP_CONFIG, InstanceSpec("m_0", "GPU", 0)), INPUT__0=x)["OUTPUT__0"]
    np.testing.assert_allclose(gpu, cpu, rtol=1e-2, atol=1e-3)

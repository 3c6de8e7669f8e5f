"""torch.export programs complete the configuration, and answer through the backend as they do when called directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.backends.pytorch.backend import BACKEND
from shoal_dataplane.core.errors import Code, ServingError
from tests.unit.backends.loading import (
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
    ScaledPair,
    SumAndDifference,
    WritesItsInput,
    export,
)

FREE = ({0: Dim.DYNAMIC},)


def described(tensors: Any) -> list[tuple[str, str, list[int]]]:
    return [(t.name, mc.DataType.Name(t.data_type), list(t.dims)) for t in tensors]


def test_the_configuration_is_completed_from_the_program(tmp_path: Path) -> None:
    found = completed(BACKEND, export(tmp_path / "1", Mlp(), torch.zeros(4, 8), shapes=FREE))
    assert found.max_batch_size == 4
    assert found.HasField("dynamic_batching")
    assert described(found.input) == [("x", "TYPE_FP32", [8])]
    assert described(found.output) == [("OUTPUT__0", "TYPE_FP32", [3])]
    assert completed(BACKEND, tmp_path / "1", default_max_batch_size="32").max_batch_size == 32


def test_fixed_sizes_make_a_model_without_a_batch(tmp_path: Path) -> None:
    found = completed(BACKEND, export(tmp_path / "1", Mlp(), torch.zeros(4, 8)))
    assert (found.max_batch_size, described(found.input)) == (0, [("x", "TYPE_FP32", [4, 8])])
    x = ramp((4, 8))
    expected = Mlp()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_array_equal(run_one(load(BACKEND, tmp_path / "1", found), x=x)["OUTPUT__0"], expected)
    with pytest.raises(
        ServingError, match="model does not support batching while non-zero max_batch_size is specified"
    ):
        completed(BACKEND, tmp_path / "1", "max_batch_size: 4")


def test_a_batch_of_requests_equals_direct_calls(tmp_path: Path) -> None:
    folder = export(tmp_path / "1", Mlp(), torch.zeros(4, 8), shapes=FREE)
    instance = load(BACKEND, folder, completed(BACKEND, folder, default_max_batch_size="8"))
    parts = [ramp((rows, 8)) * rows for rows in (1, 3, 2)]
    found = np.concatenate([answer["OUTPUT__0"] for answer in run(instance, *(request({"x": part}) for part in parts))])
    np.testing.assert_array_equal(found, Mlp()(torch.from_numpy(np.concatenate(parts))).detach().numpy())
    alone = run_one(instance, x=parts[0])["OUTPUT__0"]
    np.testing.assert_allclose(alone, found[:1], rtol=1e-6)


def test_the_exporter_s_limit_to_the_batch_is_kept(tmp_path: Path) -> None:
    folder = export(tmp_path / "1", Mlp(), torch.zeros(4, 8), shapes=({0: Dim("batch", max=6)},))
    assert completed(BACKEND, folder, default_max_batch_size="16").max_batch_size == 6
    with pytest.raises(ServingError, match="configuration sets max_batch_size 8, model was exported for at most 6"):
        load(BACKEND, folder, completed(BACKEND, folder, "max_batch_size: 8"))


class Lengths(torch.nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": (ids * mask).sum(1, keepdim=True), "first": ids[:, :1]}


def test_free_sizes_are_held_to_their_limits(tmp_path: Path) -> None:
    batch, length = Dim("batch"), Dim("length", min=4, max=64)
    example = (torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64))
    shapes = {"ids": {0: batch, 1: length}, "mask": {0: batch, 1: length}}
    folder = export(tmp_path / "1", Lengths(), *example, shapes=shapes)
    found = completed(BACKEND, folder)
    assert described(found.input) == [("ids", "TYPE_INT64", [-1]), ("mask", "TYPE_INT64", [-1])]
    assert described(found.output) == [("sum", "TYPE_INT64", [1]), ("first", "TYPE_INT64", [1])]
    instance = load(BACKEND, folder, found)
    for size in (4, 64):
        ids = np.arange(size, dtype=np.int64)[None]
        assert run_one(instance, ids=ids, mask=ids)["sum"].tolist() == [[int((ids * ids).sum())]]
    for size in (3, 65):
        ids = np.zeros((1, size), np.int64)
        with pytest.raises(ServingError) as caught:
            run_one(instance, ids=ids, mask=ids)
        assert caught.value.code is Code.INVALID_ARGUMENT
        assert caught.value.message == (
            f"input 'ids' for model 'm': dimension 1 must be from 4 to 64, as the model was exported; got {size}"
        )


NESTED_SHAPES = {"x": {0: Dim.DYNAMIC}, "options": {"a": {0: Dim.DYNAMIC}}, "bias": {0: Dim.DYNAMIC}}


def nested(folder: Path) -> Path:
    # Three tensors: torch.export takes one tensor that is given twice for one argument.
    x, a, bias = (torch.zeros(4, 2) for _ in range(3))
    return export(folder, ScaledPair(), x, {"a": a}, keywords={"bias": bias}, shapes=NESTED_SHAPES)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (("x", "options_a", "bias"), ("scaled", "RESULT[pair][0]", "RESULT[pair][1]")),
        (("ARGS[0]", "ARGS[1][a]", "KWARGS[bias]"), ("RESULT[scaled]", "RESULT[pair][0]", "RESULT[pair][1]")),
        (("INPUT__0", "INPUT__1", "INPUT__2"), ("OUTPUT__0", "OUTPUT__1", "OUTPUT__2")),
        (("first", "second", "third"), ("doubled", "with_a", "with_bias")),
    ],
)
def test_nested_arguments_and_results_have_names(
    tmp_path: Path, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> None:
    folder = nested(tmp_path / "1")
    text = "max_batch_size: 4 "
    text += "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }} ' for name in reversed(inputs))
    text += "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }} ' for name in outputs)
    if inputs[0] == "first":  # names that mean nothing: the order is the model's own
        text = text.replace("first", "swap").replace("third", "first").replace("swap", "third")
    instance = load(BACKEND, folder, text)
    x, a, bias = ramp((1, 2)), ramp((1, 2)) + 1, ramp((1, 2)) + 2
    answer = run_one(instance, **dict(zip(inputs, (x, a, bias), strict=True)))
    for name, expected in zip(outputs, (x * 2, x + a, x + bias), strict=True):
        np.testing.assert_array_equal(answer[name], expected)


def test_nested_arguments_are_completed_with_names_that_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = completed(BACKEND, nested(tmp_path / "1"))
    assert [t.name for t in found.input] == ["x", "options_a", "bias"]
    assert [t.name for t in found.output] == ["scaled", "OUTPUT__1", "OUTPUT__2"]
    instance = load(BACKEND, tmp_path / "1", found)
    assert not [record for record in caplog.records if record.name.startswith("shoal")]
    x, a, bias = ramp((1, 2)), ramp((1, 2)) + 1, ramp((1, 2)) + 2
    answer = run_one(instance, x=x, options_a=a, bias=bias)
    for name, expected in (("scaled", x * 2), ("OUTPUT__1", x + a), ("OUTPUT__2", x + bias)):
        np.testing.assert_array_equal(answer[name], expected)


@pytest.mark.parametrize("decomposed", [False, True])
def test_a_program_that_writes_into_its_input_does_not_write_into_the_request(tmp_path: Path, decomposed: bool) -> None:
    folder = export(tmp_path / "1", WritesItsInput(), torch.zeros(2, 4), shapes=FREE, decomposed=decomposed)
    instance = load(BACKEND, folder, completed(BACKEND, folder))
    asked = request({"x": ramp((2, 4))})
    np.testing.assert_array_equal(run(instance, asked)[0]["OUTPUT__0"], ramp((2, 4)) + 1)
    np.testing.assert_array_equal(asked.inputs["x"].array(), ramp((2, 4)))


@pytest.mark.parametrize("decomposed", [False, True])
def test_a_state_is_kept_and_what_was_returned_of_it_does_not_change(tmp_path: Path, decomposed: bool) -> None:
    folder = export(tmp_path / "1", RunningTotal(), torch.zeros(3, 2), shapes=FREE, decomposed=decomposed)
    found = completed(BACKEND, folder)
    assert found.max_batch_size == 0, "the output has no batch"
    instance, other = load(BACKEND, folder, found), load(BACKEND, folder, found)
    first = run_one(instance, x=np.ones((3, 2), np.float32))["OUTPUT__0"]
    second = run_one(instance, x=np.ones((2, 2), np.float32))["OUTPUT__0"]
    assert (first.tolist(), second.tolist()) == ([3, 3], [5, 5])
    assert run_one(other, x=np.ones((2, 2), np.float32))["OUTPUT__0"].tolist() == [2, 2]


class Everything(torch.nn.Module):
    """A parameter, a buffer that is not saved, a constant, and a number among the arguments."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), 3.0))
        self.register_buffer("scale", torch.full((2,), 2.0), persistent=False)
        self.offset = torch.tensor(5.0)

    def forward(self, x: torch.Tensor, power: int) -> torch.Tensor:
        return (x**power) * self.weight * self.scale + self.offset + torch.tensor(0.5)


def test_every_kind_of_constant_is_in_its_place(tmp_path: Path) -> None:
    folder = export(tmp_path / "1", Everything(), torch.ones(2, 2), 2, shapes=({0: Dim.DYNAMIC}, None))
    found = completed(BACKEND, folder)
    assert described(found.input) == [("x", "TYPE_FP32", [2])]
    x = ramp((3, 2))
    expected = Everything()(torch.from_numpy(x), 2).detach().numpy()
    np.testing.assert_array_equal(run_one(load(BACKEND, folder, found), x=x)["OUTPUT__0"], expected)


def test_a_reader_is_given_the_request_s_own_memory_and_is_shared(tmp_path: Path) -> None:
    folder = export(tmp_path / "1", Identity(), torch.zeros(4, 1), shapes=FREE)
    found = completed(BACKEND, folder, default_max_batch_size="100000")
    one, two = load(BACKEND, folder, found), load(BACKEND, folder, found)
    assert one._program is two._program  # type: ignore[attr-defined]
    asked = request({"x": ramp((1 << 16, 1))})
    answer = run(one, asked)[0]["OUTPUT__0"]
    data = asked.inputs["x"].data
    assert isinstance(data, bytes)
    assert np.shares_memory(answer, np.frombuffer(data, np.uint8))


def test_bf16_goes_in_and_out_as_bit_patterns(tmp_path: Path) -> None:
    folder = export(tmp_path / "1", Mlp().bfloat16(), torch.zeros(4, 8, dtype=torch.bfloat16), shapes=FREE)
    instance = load(BACKEND, folder, completed(BACKEND, folder))
    x = ramp((2, 8))
    expected = Mlp().bfloat16()(torch.from_numpy(from_bfloat16(bfloat16("", x))).bfloat16()).float().detach().numpy()
    response = instance.execute([request({"x": bfloat16("x", x)})]).responses[0]
    np.testing.assert_array_equal(from_bfloat16(response.outputs[0]), expected)


class Scalar(torch.nn.Module):
    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return x.sum() * factor


def test_scalars_are_served_as_one_number(tmp_path: Path) -> None:
    folder = export(tmp_path / "1", Scalar(), torch.zeros(3), torch.tensor(1.0))
    found = completed(BACKEND, folder)
    assert (described(found.input)[1], described(found.output)) == (
        ("factor", "TYPE_FP32", [1]),
        [("OUTPUT__0", "TYPE_FP32", [1])],
    )
    answer = run_one(load(BACKEND, folder, found), x=np.ones(3, np.float32), factor=np.array([2], np.float32))
    assert answer["OUTPUT__0"].tolist() == [6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ 9 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }',
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,8]) but the model configuration specifies 2 dimensions "
            "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape [-1,9])",
        ),
        (
            'max_batch_size: 4 input { name: "x" data_type: TYPE_INT64 dims: [ 8 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }',
            "unable to load model 'm', configuration expects datatype TYPE_INT64 for input 'x', model provides TYPE_FP32",
        ),
        (
            'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }',
            "model 'm', tensor 'y': the model expects 2 dimensions (shape [-1,3]) but the model configuration specifies 2 dimensions "
            "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape [-1,4])",
        ),
    ],
)
def test_a_configuration_that_contradicts_the_program_is_refused(tmp_path: Path, text: str, message: str) -> None:
    folder = export(tmp_path / "1", Mlp(), torch.zeros(4, 8), shapes=FREE)
    with pytest.raises(ServingError) as caught:
        load(BACKEND, folder, text)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, message)


def test_two_inputs_in_either_order(tmp_path: Path) -> None:
    example = (torch.zeros(4, 2), torch.zeros(4, 2))
    shapes = {"a": {0: Dim.DYNAMIC}, "b": {0: Dim.DYNAMIC}}
    folder = export(tmp_path / "1", SumAndDifference(), *example, shapes=shapes)
    text = "max_batch_size: 2 " + "".join(f'input {{ name: "{n}" data_type: TYPE_FP32 dims: [ 2 ] }} ' for n in "ba")
    instance = load(BACKEND, folder, completed(BACKEND, folder, text))
    a, b = ramp((1, 2)), ramp((1, 2)) * 3
    answer = run(instance, request({"a": a, "b": b}, outputs=("OUTPUT__1",)))[0]
    assert list(answer) == ["OUTPUT__1"]
    np.testing.assert_array_equal(answer["OUTPUT__1"], a - b)

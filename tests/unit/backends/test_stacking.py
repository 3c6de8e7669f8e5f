"""Batches to arrays and back: what a model is given, who gets which rows, and what is said of outputs that do not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_dataplane.backends.arrays.stacking import Stacker
from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import Code, Reason, ServingError
from shoal_dataplane.core.model_spec import compile_spec
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.core.tensors import Tensor
from tests.unit.backends.loading import Nobody, config, ramp, request

Array = np.ndarray[Any, Any]

VECTORS = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 3 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
"""
VARIABLE = VECTORS.replace("dims: 3", "dims: -1")


def stacker(text: str = VECTORS) -> Stacker:
    found = config(text)
    return Stacker(compile_spec(found, 1), found)


def objects(*elements: bytes) -> Array:
    made = np.empty(len(elements), object)
    made[:] = elements
    return made


def arrays(responses: list[InferResponse]) -> list[dict[str, Array]]:
    return [{tensor.name: tensor.array() for tensor in response.outputs} for response in responses]


def scattered(
    text: str, outputs: Mapping[str, Array], *requests: InferRequest
) -> list[dict[str, tuple[tuple[int, ...], list[Any]]]]:
    """Shape and flat values of each output of each response."""
    return [
        {name: (array.shape, array.ravel().tolist()) for name, array in each.items()}
        for each in arrays(stacker(text).scatter(outputs, requests))
    ]


# Gathering


def test_rows_of_all_requests_are_joined_in_order() -> None:
    rows = ramp((4, 3))
    made = [request({"x": rows[:1]}), request({"x": rows[1:3]}), request({"x": rows[3:]})]
    np.testing.assert_array_equal(stacker().gather(made)["x"], rows)


@pytest.mark.parametrize("wire", [True, False])
def test_a_single_request_is_not_copied(wire: bool) -> None:
    data = ramp((2, 3))
    tensor = Tensor("x", "FP32", (2, 3), data.data.cast("B") if wire else data)
    gathered = stacker().gather([request({"x": tensor})])["x"]
    assert gathered.shape == (2, 3)
    assert np.shares_memory(gathered, data)


def test_arrays_in_any_memory_layout_and_bytes_are_joined_alike() -> None:
    rows = ramp((6, 3))
    made = [
        request({"x": rows[:2]}, wire=False),
        request({"x": np.asfortranarray(rows[2:4])}, wire=False),
        request({"x": rows[4:5]}),
        request({"x": Tensor("x", "FP32", (1, 3), bytearray(rows[5:].tobytes()))}),
    ]
    np.testing.assert_array_equal(stacker().gather(made)["x"], rows)


@pytest.mark.parametrize("wire", [name for name in BY_WIRE if name != "BYTES"])
def test_every_datatype_of_fixed_size_is_joined_as_its_numpy_type(wire: str) -> None:
    datatype = BY_WIRE[wire]
    text = f'max_batch_size: 8 input {{ name: "x" data_type: TYPE_{wire} dims: 2 }}'
    rows = np.arange(6).reshape(3, 2).astype(datatype.numpy)
    made = [request({"x": Tensor("x", wire, (1, 2), rows[index].tobytes())}) for index in range(3)]
    gathered = stacker(text).gather(made)["x"]
    assert gathered.dtype == datatype.numpy
    np.testing.assert_array_equal(gathered, rows)


def test_bytes_become_object_arrays() -> None:
    text = 'max_batch_size: 8 input { name: "x" data_type: TYPE_STRING dims: 2 }'
    made = [request({"x": objects(b"a", b"").reshape(1, 2)}), request({"x": objects(b"\xff", b"dd").reshape(1, 2)})]
    gathered = stacker(text).gather(made)["x"]
    assert gathered.tolist() == [[b"a", b""], [b"\xff", b"dd"]]
    assert stacker(text).gather(made[:1])["x"].tolist() == [[b"a", b""]]


def test_an_optional_input_that_no_request_has_is_absent() -> None:
    text = VECTORS + 'input { name: "bias" data_type: TYPE_FP32 dims: 1 optional: true }'
    without = [request({"x": ramp((1, 3))}), request({"x": ramp((1, 3))})]
    assert set(stacker(text).gather(without)) == {"x"}
    given = [request({"x": ramp((1, 3)), "bias": ramp((1, 1))}) for _ in range(2)]
    assert stacker(text).gather(given)["bias"].shape == (2, 1)


def test_dimensions_of_size_zero_keep_their_place() -> None:
    made = [request({"x": ramp((2, 0))}), request({"x": ramp((1, 0))})]
    assert stacker(VARIABLE).gather(made)["x"].shape == (3, 0)
    assert stacker(VARIABLE).gather(made[:1])["x"].shape == (2, 0)


@pytest.mark.parametrize(
    ("dims", "reshape", "shape", "seen"),
    [
        ("dims: 1", "shape: []", (1,), ()),
        ("dims: [ 2, 3 ]", "shape: 6", (2, 3), (6,)),
        ("dims: -1", "shape: [ -1, 1 ]", (5,), (5, 1)),
        ("dims: [ -1, 4, -1 ]", "shape: [ 2, -1, 2, -1 ]", (3, 4, 7), (2, 3, 2, 7)),
    ],
)
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_reshape_is_applied_to_inputs_and_undone_on_outputs(
    dims: str, reshape: str, shape: tuple[int, ...], seen: tuple[int, ...], batch: int
) -> None:
    text = f"""max_batch_size: {8 if batch else 0}
    input {{ name: "x" data_type: TYPE_FP32 {dims} reshape {{ {reshape} }} }}
    output {{ name: "y" data_type: TYPE_FP32 {dims} reshape {{ {reshape} }} }}"""
    made = [
        request({"x": ramp((2, *shape) if batch else shape)}, batch_size=2 if batch else 1)
        for _ in range(max(1, batch))
    ]
    gathered = stacker(text).gather(made)["x"]
    assert gathered.shape == ((2 * batch, *seen) if batch else seen)
    for each, response in zip(made, stacker(text).scatter({"y": gathered}, made), strict=True):
        assert response.outputs[0].shape == each.inputs["x"].shape
        np.testing.assert_array_equal(response.outputs[0].array(), each.inputs["x"].array())


def test_a_model_that_does_not_batch_gets_full_shapes_and_one_request() -> None:
    text = VARIABLE.replace("max_batch_size: 8", "")
    made = request({"x": ramp((5,))}, batch_size=1)
    assert stacker(text).gather([made])["x"].shape == (5,)
    assert scattered(text, {"y": np.arange(2, dtype=np.float32)}, made) == [{"y": ((2,), [0, 1])}]
    with pytest.raises(ServingError, match="model 'm' does not batch, but was given 2 requests at once"):
        stacker(text).gather([made, made])


def test_bytes_that_do_not_fill_their_shape_are_refused() -> None:
    short = request({"x": Tensor("x", "FP32", (1, 3), bytes(8))})
    for made in ([short], [request({"x": ramp((1, 3))}), short]):
        with pytest.raises(ServingError, match="byte size mismatch for input 'x'") as refused:
            stacker().gather(made)
        assert refused.value.code is Code.INVALID_ARGUMENT


def test_requests_that_cannot_share_a_batch_are_never_mixed_up() -> None:
    with pytest.raises(ServingError, match=r"shapes of input 'x' differ in one batch: \[1, 2\], \[1, 3\]"):
        stacker(VARIABLE).gather([request({"x": ramp((1, 2))}), request({"x": ramp((1, 3))})])
    text = VECTORS + 'input { name: "bias" data_type: TYPE_FP32 dims: 1 optional: true }'
    with pytest.raises(ServingError, match="with and without input 'bias' of model 'm'"):
        stacker(text).gather([request({"x": ramp((1, 3)), "bias": ramp((1, 1))}), request({"x": ramp((1, 3))})])


# Ragged inputs and tensors that describe the batch


def ragged(kind: str, datatype: str = "TYPE_INT32", extra: str = "") -> str:
    return f"""max_batch_size: 8
    input {{ name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] allow_ragged_batch: true {extra} }}
    batch_input {{ kind: {kind} target_name: "about" data_type: {datatype} source_input: "x" }}"""


def lengths(*shapes: tuple[int, ...]) -> list[InferRequest]:
    """Requests with tensors of these shapes, filled with consecutive numbers."""
    made, start = [], 0
    for shape in shapes:
        count = math.prod(shape)
        made.append(request({"x": np.arange(start, start + count, dtype=np.float32).reshape(shape)}))
        start += count
    return made


def test_a_ragged_input_is_flat_for_one_request_and_for_many() -> None:
    made = lengths((1, 1, 2), (2, 3, 2), (1, 0, 2))
    text = ragged("BATCH_ELEMENT_COUNT")
    assert stacker(text).gather(made)["x"].tolist() == list(range(14))
    assert stacker(text).gather(made[:1])["x"].tolist() == [0, 1]


def test_a_ragged_input_of_bytes_is_flat() -> None:
    text = 'max_batch_size: 8 input { name: "x" data_type: TYPE_STRING dims: -1 allow_ragged_batch: true }'
    made = [request({"x": objects(b"a", b"b").reshape(1, 2)}), request({"x": objects(b"c").reshape(1, 1)})]
    assert stacker(text).gather(made)["x"].tolist() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("datatype", ["INT32", "FP32"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # three requests: 2, 12 and 4 elements; 1, 2 and 1 rows
        ("BATCH_ELEMENT_COUNT", [2, 12, 4]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [2, 14, 18]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 2, 14, 18]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 12),
        ("BATCH_ITEM_SHAPE", [[1, 2], [3, 2], [3, 2], [2, 2]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [1, 2, 3, 2, 3, 2, 2, 2]),
    ],
)
def test_a_batch_input_describes_the_batch(kind: str, expected: list[Any], datatype: str) -> None:
    about = stacker(ragged(kind, f"TYPE_{datatype}")).gather(lengths((1, 1, 2), (2, 3, 2), (1, 2, 2)))["about"]
    assert about.tolist() == expected
    assert about.dtype == BY_WIRE[datatype].numpy


def test_every_target_of_a_batch_input_gets_the_tensor() -> None:
    text = (
        ragged("BATCH_ELEMENT_COUNT")
        + """
    batch_input { kind: BATCH_ITEM_SHAPE target_name: [ "a", "b" ] data_type: TYPE_INT32 source_input: "x" }"""
    )
    gathered = stacker(text).gather(lengths((1, 5, 2)))
    assert gathered["a"].tolist() == gathered["b"].tolist() == [[5, 2]]
    assert gathered["about"].tolist() == [10]


def test_a_batch_input_sees_the_source_as_the_model_does() -> None:
    text = ragged("BATCH_ITEM_SHAPE", extra="reshape { shape: [ 2, -1, 1 ] }")
    assert stacker(text).gather(lengths((1, 5, 2)))["about"].tolist() == [[2, 5, 1]]


def test_a_batch_input_needs_its_source() -> None:
    text = ragged("BATCH_ELEMENT_COUNT", extra="optional: true")
    with pytest.raises(ServingError, match="input 'x' is needed to describe the batch to the model") as refused:
        stacker(text).gather([InferRequest("m", "", {}, Nobody())])
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_an_element_count_beyond_the_target_type_is_an_error_and_not_a_wrong_number() -> None:
    text = ragged("BATCH_ACCUMULATED_ELEMENT_COUNT")
    many = [
        request({"x": Tensor("x", "FP32", (1, 2**29, 2), np.broadcast_to(np.float32(0), (1, 2**29, 2)))})
        for _ in range(2)
    ]
    made = stacker(text)._batch_inputs[0]
    with pytest.raises(ServingError, match="batch input 'about' cannot hold the element counts of input 'x' in int32"):
        made.build(many)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'batch_input { target_name: "t" data_type: TYPE_INT64 source_input: "x" }',
            "batch_input of model 'm': data type must be TYPE_INT32 or TYPE_FP32",
        ),
        (
            'batch_input { target_name: "t" data_type: TYPE_INT32 }',
            "batch_input of model 'm': expects 1 source input, got 0",
        ),
        (
            'batch_input { data_type: TYPE_INT32 source_input: "x" }',
            "batch_input of model 'm': expects at least one target name",
        ),
        (
            'batch_input { target_name: "x" data_type: TYPE_INT32 source_input: "x" }',
            "batch_input of model 'm': target 'x' is also an input of the model",
        ),
        (
            'batch_input { target_name: "t" data_type: TYPE_INT32 source_input: "z" }',
            "batch_input of model 'm': unknown source input name 'z'",
        ),
        (
            'batch_output { target_name: "z" source_input: "x" }',
            "batch_output of model 'm': target 'z' is no output of the model",
        ),
        (
            'batch_output { target_name: "y" source_input: [ "x", "x" ] }',
            "batch_output of model 'm': expects 1 source input, got 2",
        ),
        (
            'output { name: "w" data_type: TYPE_FP32 dims: [ 1, -1 ] } batch_output { target_name: "w" source_input: "x" }',
            "output 'w' has variable dimensions",
        ),
        (
            'output { name: "w" data_type: TYPE_FP32 dims: [ -1, -1 ] reshape { shape: -1 } }',
            "tensor 'w' differ in the number of their variable dimensions: 1 and 2",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_the_model_is_refused(text: str, message: str) -> None:
    with pytest.raises(ServingError) as refused:
        stacker(VECTORS + text)
    assert message in refused.value.message
    assert refused.value.code is Code.INVALID_ARGUMENT


# Scattering


def test_each_request_gets_its_own_rows_without_a_copy() -> None:
    output = ramp((4, 3))
    made = [request({"x": ramp((count, 3))}) for count in (1, 2, 1)]
    responses = stacker().scatter({"y": output}, made)
    for response, expected in zip(arrays(responses), (output[:1], output[1:3], output[3:]), strict=True):
        np.testing.assert_array_equal(response["y"], expected)
        assert np.shares_memory(response["y"], output)
    tensor = responses[1].outputs[0]
    assert (tensor.name, tensor.datatype, tensor.shape) == ("y", "FP32", (2, 3))
    assert bytes(tensor.buffer()) == output[1:3].tobytes()
    assert all(response.final and response.error is None for response in responses)


def test_an_output_in_another_memory_layout_is_split_by_rows() -> None:
    output = np.asfortranarray(ramp((3, 3)))
    made = [request({"x": ramp((1, 3))}) for _ in range(3)]
    for index, response in enumerate(arrays(stacker().scatter({"y": output}, made))):
        np.testing.assert_array_equal(response["y"], output[index : index + 1])


@pytest.mark.parametrize("sizes", [(1,), (2,), (1, 1), (2, 1)])
def test_an_output_of_no_elements_is_split(sizes: tuple[int, ...]) -> None:
    made = [request({"x": ramp((size, 2))}) for size in sizes]
    responses = stacker(VARIABLE).scatter({"y": np.empty((sum(sizes), 0), np.float32)}, made)
    assert [each["y"].shape for each in arrays(responses)] == [(size, 0) for size in sizes]


@pytest.mark.parametrize("output", [objects(b"a", b"b", b"c"), np.array(["a", "b", "c"]), np.array([b"a", b"b", b"c"])])
def test_strings_are_split_as_bytes(output: Array) -> None:
    text = VECTORS + 'output { name: "s" data_type: TYPE_STRING dims: 1 }'
    made = [request({"x": ramp((count, 3))}, outputs=("s",)) for count in (1, 2)]
    assert scattered(text, {"s": output.reshape(3, 1)}, *made) == [
        {"s": ((1, 1), [b"a"])},
        {"s": ((2, 1), [b"b", b"c"])},
    ]


def test_a_response_holds_what_was_asked_for_in_the_models_order() -> None:
    text = VECTORS + 'output { name: "z" data_type: TYPE_FP32 dims: 1 }'
    outputs = {"z": ramp((4, 1)), "y": ramp((4, 3)), "not configured": ramp((9,))}
    asked: list[tuple[str, ...] | None] = [None, ("z",), ("z", "y"), ("y", "y")]
    made = [request({"x": ramp((1, 3))}, outputs=each) for each in asked]
    responses = stacker(text).scatter(outputs, made)
    assert [[tensor.name for tensor in response.outputs] for response in responses] == [
        ["y", "z"],
        ["z"],
        ["y", "z"],
        ["y"],
    ]
    np.testing.assert_array_equal(responses[1].outputs[0].array(), outputs["z"][1:2])


def test_an_output_that_nobody_asked_for_may_be_missing() -> None:
    text = VECTORS + 'output { name: "z" data_type: TYPE_FP32 dims: 1 }'
    made = [request({"x": ramp((1, 3))}, outputs=("z",)) for _ in range(2)]
    assert scattered(text, {"z": np.ones((2, 1), np.float32)}, *made) == [{"z": ((1, 1), [1])}] * 2


def test_a_model_without_outputs_answers_with_none() -> None:
    text = 'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 3 }'
    assert scattered(text, {}, request({"x": ramp((1, 3))}), request({"x": ramp((1, 3))})) == [{}, {}]


@pytest.mark.parametrize(
    ("output", "what"),
    [
        (None, "it was not returned"),
        (np.zeros((3, 3)), "expected datatype FP32 (float32), got float64"),
        (np.zeros((3, 3), ">f4"), "expected datatype FP32 (float32), got >f4"),
        (np.array([["a"] * 3] * 3), "expected datatype FP32 (float32), got <U1"),
        (np.zeros((3, 4), np.float32), "expected shape [-1, 3], got [3, 4]"),
        (np.zeros((3, 3, 1), np.float32), "expected shape [-1, 3], got [3, 3, 1]"),
        (np.zeros((), np.float32), "expected shape [-1, 3], got []"),
        (np.zeros((2, 3), np.float32), "expected batch size of 3, got 2 (shape [2, 3])"),
        (np.zeros((4, 3), np.float32), "expected batch size of 3, got 4 (shape [4, 3])"),
    ],
)
def test_an_output_that_is_not_as_configured_is_the_models_fault(output: Array | None, what: str) -> None:
    made = [request({"x": ramp((count, 3))}) for count in (1, 2)]
    with pytest.raises(ServingError) as failed:
        stacker().scatter({} if output is None else {"y": output}, made)
    assert failed.value.message == f"unexpected output 'y' of model 'm': {what}"
    assert (failed.value.code, failed.value.reason) == (Code.INTERNAL, Reason.BACKEND)


def test_a_scalar_where_rows_are_expected_is_refused_with_an_empty_reshape_too() -> None:
    text = 'max_batch_size: 8 output { name: "y" data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }'
    with pytest.raises(ServingError, match=r"expected shape \[-1\], got \[\]"):
        stacker(text).scatter({"y": np.zeros((), np.float32)}, [request({"x": ramp((1, 3))})])


def test_full_shapes_are_checked_where_the_model_does_not_batch() -> None:
    with pytest.raises(ServingError, match=r"output 'y' of model 'm': expected shape \[3\], got \[1, 3\]"):
        stacker(VECTORS.replace("max_batch_size: 8", "")).scatter(
            {"y": np.zeros((1, 3), np.float32)}, [request({"x": ramp((3,))}, batch_size=1)]
        )


LIKE_INPUT = """max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] allow_ragged_batch: true }
batch_output { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" }
"""


@pytest.mark.parametrize(
    ("output", "shapes"),
    [
        ("dims: [ -1, 2 ]", [(1, 1, 2), (2, 3, 2)]),
        ("dims: -1", [(1, 1), (2, 3)]),
        ("dims: [ -1, 3 ]", [(1, 1, 3), (2, 3, 3)]),
        ("dims: 2", [(1, 2), (2, 2)]),
        ("dims: [ 1, -1 ] reshape { shape: -1 }", [(1, 1, 1), (2, 1, 3)]),
    ],
)
def test_an_output_is_split_by_the_shapes_of_an_input(output: str, shapes: list[tuple[int, ...]]) -> None:
    text = LIKE_INPUT + f'output {{ name: "y" data_type: TYPE_FP32 {output} }}'
    counts = [math.prod(shape) for shape in shapes]
    values = np.arange(sum(counts), dtype=np.float32)
    first, second = scattered(text, {"y": values}, *lengths((1, 1, 2), (2, 3, 2)))
    assert first["y"] == (shapes[0], values[: counts[0]].tolist())
    assert second["y"] == (shapes[1], values[counts[0] :].tolist())


def test_an_output_with_fewer_elements_than_the_inputs_shapes_is_the_models_fault() -> None:
    text = LIKE_INPUT + 'output { name: "y" data_type: TYPE_FP32 dims: [ -1, 2 ] }'
    with pytest.raises(
        ServingError, match=r"output 'y' of model 'm': expected 14 elements, .* input 'x' say, got 13 \(shape \[13\]\)"
    ):
        stacker(text).scatter({"y": np.zeros(13, np.float32)}, lengths((1, 1, 2), (2, 3, 2)))


# Both ways


@st.composite
def batches(draw: st.DrawFn) -> tuple[str, str, list[int], tuple[int, ...], int]:
    """A datatype, dims of a configuration, batch sizes, the shape of a row that fits, and a seed."""
    wire = draw(st.sampled_from(sorted(BY_WIRE)))
    row = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    dims = [-1 if size == 0 or draw(st.booleans()) else size for size in row]
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    return wire, str(dims), sizes, row, draw(st.integers(0, 2**16))


@given(batches())
def test_scatter_gives_back_what_gather_took(drawn: tuple[str, str, list[int], tuple[int, ...], int]) -> None:
    wire, dims, sizes, row, seed = drawn
    name = "STRING" if wire == "BYTES" else wire
    text = f"""max_batch_size: 32
    input {{ name: "a" data_type: TYPE_{name} dims: {dims} }} output {{ name: "a" data_type: TYPE_{name} dims: {dims} }}
    input {{ name: "b" data_type: TYPE_{name} dims: {dims} }} output {{ name: "b" data_type: TYPE_{name} dims: {dims} }}"""
    random = np.random.default_rng(seed)

    def tensor(name: str, size: int) -> Tensor:
        numbers = random.integers(0, 2, (size, *row))
        if wire == "BYTES":
            values = objects(*(str(number).encode() * number for number in numbers.ravel())).reshape(numbers.shape)
        else:
            values = numbers.astype(BY_WIRE[wire].numpy)
        made = Tensor(name, wire, values.shape, values)
        return made if random.integers(2) else Tensor(name, wire, values.shape, memoryview(bytes(made.buffer())))

    made = [request({"a": tensor("a", size), "b": tensor("b", size)}) for size in sizes]
    gathered = stacker(text).gather(made)
    assert gathered["a"].shape == (sum(sizes), *row)
    responses = stacker(text).scatter(gathered, made)
    assert len(responses) == len(made)
    for each, response in zip(made, responses, strict=True):
        assert [tensor.name for tensor in response.outputs] == ["a", "b"]
        for answered in response.outputs:
            sent = each.inputs[answered.name]
            assert (answered.datatype, answered.shape) == (sent.datatype, sent.shape)
            assert bytes(answered.buffer()) == bytes(sent.buffer())

"""Encoding responses: what protobuf reads back is what was answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_api.protocol import inference_pb2 as pb
from shoal_dataplane.codec.reply import ResponseEncoder, varint
from shoal_dataplane.core.errors import invalid
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse, failure
from shoal_dataplane.core.tensors import Tensor


def request(identifier: str = "", model: str = "m", version: int = 3) -> InferRequest:
    handle: Any = None
    made = InferRequest(model, "", {}, handle, id=identifier)
    target: Any = SimpleNamespace(name=model, version=version)
    made.target = target
    return made


@given(
    st.text(max_size=300),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=3),
    st.dictionaries(
        st.text(max_size=5),
        st.one_of(st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(allow_nan=False), st.text(max_size=5)),
        max_size=2,
    ),
)
def test_protobuf_reads_back_what_was_answered(
    identifier: str, shapes: list[tuple[int, int]], parameters: dict[str, Any]
) -> None:
    outputs = [Tensor(f"Y{i}", "FP32", shape, np.full(shape, i, np.float32)) for i, shape in enumerate(shapes)]
    encoder = ResponseEncoder()
    for _ in range(2):  # the second time from the remembered header
        message = pb.ModelInferResponse.FromString(
            encoder.encode(request(identifier), InferResponse(outputs, parameters=parameters))
        )
        assert (message.model_name, message.model_version, message.id) == ("m", "3", identifier)
        assert [(t.name, t.datatype, tuple(t.shape)) for t in message.outputs] == [
            (t.name, t.datatype, t.shape) for t in outputs
        ]
        assert list(message.raw_output_contents) == [bytes(t.buffer()) for t in outputs]
        assert set(message.parameters) == set(parameters)


def test_string_outputs_of_one_shape_and_several_lengths_are_not_confused() -> None:
    encoder = ResponseEncoder()
    for text in (b"a", b"longer", b"", b"a"):
        array = np.array([text], dtype=object)
        message = pb.ModelInferResponse.FromString(
            encoder.encode(request(), InferResponse([Tensor("Y", "BYTES", (1,), array)]))
        )
        assert message.raw_output_contents[0][4:] == text


def test_stream_messages_carry_the_final_mark_and_errors_the_id() -> None:
    encoder = ResponseEncoder()
    answered = pb.ModelStreamInferResponse.FromString(
        encoder.encode_stream(request("7"), InferResponse([Tensor("Y", "UINT8", (1,), b"x")]))
    )
    assert answered.error_message == ""
    assert answered.infer_response.id == "7"
    assert answered.infer_response.parameters["triton_final_response"].bool_param
    failed = pb.ModelStreamInferResponse.FromString(encoder.encode_stream(request("8"), failure(invalid("no"))))
    assert (failed.error_message, failed.infer_response.id) == ("no", "8")


def test_the_memory_of_headers_is_bounded() -> None:
    encoder = ResponseEncoder(capacity=5)
    for size in range(50):
        encoder.encode(request(), InferResponse([Tensor("Y", "UINT8", (size,), bytes(size))]))
        assert len(encoder._single) <= 5


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, (1 << 32) - 1, 1 << 40])
def test_varints_are_protobufs(value: int) -> None:
    assert pb.StatisticDuration.FromString(b"\x08" + varint(value)).count == value

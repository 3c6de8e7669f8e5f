"""Batches and answers keep their meaning between processes, and a peer that lies is found out, whatever it says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_dataplane.backends.base import Execution
from shoal_dataplane.core.dtypes import BY_WIRE
from shoal_dataplane.core.errors import Code, Reason, ServingError, internal
from shoal_dataplane.core.request import InferRequest, Signature
from shoal_dataplane.core.response import InferResponse, failure
from shoal_dataplane.core.tensors import Buffer, Tensor, encode_bytes
from shoal_dataplane.execution import messages
from shoal_dataplane.execution.channel import WireError
from shoal_dataplane.execution.wire import (
    RequestEncoder,
    decode_answer,
    decode_requests,
    encode_answer,
    encode_failure,
)


class Nobody:
    def respond(self, request: InferRequest, response: InferResponse) -> None:
        raise AssertionError


names = st.text(min_size=1, max_size=8)
parameters = st.dictionaries(
    names,
    st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    max_size=3,
)


@st.composite
def tensors(draw: st.DrawFn, name: str | None = None) -> Tensor:
    datatype = draw(st.sampled_from(sorted(BY_WIRE)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    count = int(np.prod(shape))
    data: Buffer
    if datatype == "BYTES":
        data = encode_bytes(draw(st.lists(st.binary(max_size=9), min_size=count, max_size=count)))
    else:
        size = count * BY_WIRE[datatype].itemsize
        data = draw(st.binary(min_size=size, max_size=size))
    tensor = Tensor(name or draw(names), datatype, shape, memoryview(data))
    if draw(st.booleans()):
        tensor.data = tensor.array()
    return tensor


@st.composite
def requests(draw: st.DrawFn) -> InferRequest:
    inputs = {tensor.name: tensor for tensor in draw(st.lists(tensors(), max_size=3))}
    outputs = draw(st.none() | st.lists(names, min_size=1, max_size=2).map(tuple))
    request = InferRequest("m", "1", inputs, Nobody(), id=draw(st.text(max_size=5)), outputs=outputs)
    request.parameters = draw(parameters)
    request.batch_size = draw(st.integers(1, 1 << 20))
    request.correlation_id = draw(st.integers(0, (1 << 64) - 1) | st.text(min_size=1, max_size=5))
    request.sequence_start, request.sequence_end = draw(st.booleans()), draw(st.booleans())
    request.timeout_us, request.priority = draw(st.integers(0, 1 << 62)), draw(st.integers(0, 1 << 63))
    if draw(st.booleans()):
        request.metadata = {"traceparent": draw(st.text(max_size=5)), "authorization": "secret"}
    return request


def like(request: InferRequest, data: list[bytes]) -> InferRequest:
    """Another request with the same header."""
    inputs = {
        tensor.name: Tensor(tensor.name, tensor.datatype, tensor.shape, memoryview(buffer))
        for tensor, buffer in zip(request.inputs.values(), data, strict=True)
    }
    other = InferRequest("m", "1", inputs, Nobody(), outputs=request.outputs, parameters=request.parameters)
    for field in (
        "batch_size",
        "correlation_id",
        "sequence_start",
        "sequence_end",
        "timeout_us",
        "priority",
        "signature",
    ):
        setattr(other, field, getattr(request, field))
    return other


@st.composite
def batches(draw: st.DrawFn) -> list[InferRequest]:
    """Requests, some of which share a header, as the door's `signature` tells."""
    batch: list[InferRequest] = []
    for request in draw(st.lists(requests(), max_size=4)):
        request.signature = draw(st.none() | st.builds(Signature))
        batch.append(request)
        if request.signature is not None:
            for _ in range(draw(st.integers(0, 3))):
                data = [
                    encode_bytes(
                        draw(
                            st.lists(st.binary(max_size=9), min_size=tensor.array().size, max_size=tensor.array().size)
                        )
                    )
                    if tensor.datatype == "BYTES"
                    else draw(st.binary(min_size=tensor.nbytes(), max_size=tensor.nbytes()))
                    for tensor in request.inputs.values()
                ]
                batch.append(like(request, data))
    return batch


def shown(tensors: list[Tensor]) -> list[tuple[Any, ...]]:
    return [(t.name, t.datatype, tuple(t.shape), bytes(t.buffer())) for t in tensors]


def seen(request: InferRequest) -> tuple[Any, ...]:
    """All of a request that a model can see."""
    return (
        request.id,
        shown(list(request.inputs.values())),
        request.outputs,
        dict(request.parameters),
        request.batch_size,
        request.correlation_id,
        request.sequence_start,
        request.sequence_end,
        request.timeout_us,
        request.priority,
        request.metadata.get("traceparent"),
    )


def joined(parts: list[Buffer], size: int) -> memoryview:
    payload = b"".join(parts)
    assert len(payload) == size
    return memoryview(payload)


@given(batches(), st.integers(1, 1 << 60))
def test_a_batch_arrives_as_it_was_sent(batch: list[InferRequest], sequence: int) -> None:
    encoder = RequestEncoder()
    for _ in range(2):  # the second time with what it remembers of the first
        head, parts, size = encoder.encode(sequence, batch)
        number, arrived = decode_requests(head, joined(parts, size), "m", "1", Nobody())
        assert number == sequence
        assert [seen(request) for request in arrived] == [seen(request) for request in batch]
        assert all("authorization" not in request.metadata for request in arrived), "a model has no business with it"


def test_only_what_is_different_is_described_again() -> None:
    signature = Signature()
    batch = []
    for _ in range(64):
        request = InferRequest("m", "1", {"IN": Tensor("IN", "FP32", (1, 4), memoryview(bytes(16)))}, Nobody())
        request.signature = signature
        batch.append(request)
    head, _, _ = RequestEncoder().encode(1, batch)
    assert len(head) < 200


def test_what_the_encoder_remembers_is_bounded() -> None:
    encoder = RequestEncoder()
    for _ in range(2000):
        request = InferRequest("m", "1", {}, Nobody())
        request.signature = Signature()
        encoder.encode(1, [request])
    assert len(encoder._known) <= 256


def test_tensors_start_where_a_cpu_reads_them_well() -> None:
    batch = [
        InferRequest(
            "m", "1", {"A": Tensor("A", "UINT8", (n,), bytes(n)), "B": Tensor("B", "FP64", (1,), bytes(8))}, Nobody()
        )
        for n in (1, 7, 8, 9)
    ]
    head, parts, size = RequestEncoder().encode(1, batch)
    _, arrived = decode_requests(head, memoryview(bytearray(joined(parts, size))), "m", "1", Nobody())
    assert all(request.inputs["B"].array().flags.aligned for request in arrived)


errors = st.builds(ServingError, st.sampled_from(Code), st.text(max_size=10), st.sampled_from(Reason))


@given(
    st.lists(
        st.builds(InferResponse, st.lists(tensors(), max_size=3), st.none(), parameters) | errors.map(failure),
        max_size=6,
    )
)
def test_answers_arrive_as_they_were_sent(responses: list[InferResponse]) -> None:
    head, parts, size = encode_answer(7, Execution(responses, 1, 2, 3))
    execution = decode_answer(head, joined(parts, size), 7, len(responses))
    assert isinstance(execution, Execution)
    assert (execution.input_ns, execution.infer_ns, execution.output_ns) == (1, 2, 3)
    for sent, got in zip(responses, execution.responses, strict=True):
        if sent.error is None:
            assert got.error is None
            assert shown(got.outputs) == shown(sent.outputs)
            assert dict(got.parameters or {}) == dict(sent.parameters or {})
        else:
            assert got.error is not None
            assert (got.error.code, got.error.message, got.error.reason) == (
                sent.error.code,
                sent.error.message,
                sent.error.reason,
            )


@given(errors)
def test_the_error_of_a_batch_arrives_as_it_was_sent(error: ServingError) -> None:
    got = decode_answer(encode_failure(3, error), memoryview(b""), 3, 9)
    assert isinstance(got, ServingError)
    assert (got.code, got.message, got.reason) == (error.code, error.message, error.reason)


# -- a peer that lies


def answer(**changes: Any) -> tuple[bytes, memoryview]:
    """An answer to two requests, as a worker that wants to do harm might change it."""
    response = InferResponse([Tensor("OUT", "FP32", (1, 2), np.ones((1, 2), np.float32))])
    head, parts, size = encode_answer(1, Execution([response, failure(internal("x"))], 1, 2, 3))
    fields = msgspec.msgpack.decode(head)
    order = ("sequence", "error", "heads", "which", "failures", "parameters", "input_ns", "infer_ns", "output_ns")
    for name, value in changes.items():
        if name != "payload":
            fields[order.index(name)] = value
    return msgspec.msgpack.encode(fields), memoryview(changes.get("payload", joined(parts, size)))


def test_the_answer_that_is_changed_below_is_good_as_it_is() -> None:
    assert isinstance(decode_answer(*answer(), 1, 2), Execution)


@pytest.mark.parametrize(
    "changes",
    [
        {"sequence": 2},
        {"sequence": "1"},
        {"which": [0]},
        {"which": [0, 0]},
        {"which": [0, 1]},
        {"which": [0, 9]},
        {"which": [-1, -1]},
        {"which": "ab"},
        {"payload": b""},
        {"payload": bytes(16)},
        {"heads": [[["OUT", "FP32", [1, 2], 4]]]},
        {"heads": [[["OUT", "FP32", [1, -2], 8]]]},
        {"heads": [[["OUT", "FP32", [-1, -2], 8]]]},
        {"heads": [[["OUT", "FP99", [1, 2], 8]]]},
        {"heads": [[["OUT", "BYTES", [1, 2], -8]]]},
        {"heads": [[["OUT", "BYTES", [1, 2], 1 << 62]]]},
        {"heads": [[["OUT", "FP32", [1 << 62, 1 << 62], 8]]]},
        {"heads": [[[b"OUT", "FP32", [1, 2], 8]]]},
        {"heads": []},
        {"failures": {}},
        {"failures": {1: [99, "x", "backend"]}},
        {"failures": {1: [13, "x", "nonsense"]}},
        {"error": [99, "x", "backend"]},
        {"parameters": {9: {"a": 1}}},
        {"parameters": {-1: {"a": 1}}},
        {"parameters": {0: {"a": [1]}}},
        {"infer_ns": 1.5},
        {"infer_ns": None},
    ],
)
def test_an_answer_that_does_not_hold_what_it_says_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode_answer(*answer(**changes), 1, 2)


@given(st.binary(max_size=60), st.binary(max_size=20))
def test_garbage_is_refused_and_nothing_else_happens(head: bytes, payload: bytes) -> None:
    decodes: list[Callable[[], object]] = [partial(messages.decode, kind, head) for kind in messages._decoders]
    decodes.append(partial(decode_answer, head, memoryview(payload), 1, 2))
    decodes.append(partial(decode_requests, head, memoryview(payload), "m", "1", Nobody()))
    for decode in decodes:
        with suppress(WireError):
            decode()


@given(st.data())
def test_a_good_answer_with_wrong_bytes_is_refused_or_still_an_answer(data: st.DataObject) -> None:
    head, payload = answer()
    changed = bytearray(head)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        result = decode_answer(bytes(changed), payload, 1, 2)
    except WireError:
        return
    assert isinstance(result, ServingError) or len(result.responses) == 2


@given(requests(), st.integers(1, 1 << 40))
def test_a_models_request_arrives_as_it_was_made(request: InferRequest, number: int) -> None:
    head, parts, size = messages.encode_infer(number, request)
    decoded = messages.decode(messages.InferHead, head)
    arrived = messages.decode_infer(decoded, joined(parts, size), Nobody())
    assert decoded.number == number
    arrived.batch_size, arrived.priority = request.batch_size, request.priority  # the server's to decide
    assert seen(arrived)[:-1] == seen(request)[:-1]
    assert arrived.metadata.get("traceparent", "") == request.metadata.get("traceparent", "")


def test_a_models_request_with_a_lying_payload_is_refused() -> None:
    request = InferRequest("m", "", {"IN": Tensor("IN", "FP32", (2,), bytes(8))}, Nobody())
    head, _, _ = messages.encode_infer(1, request)
    with pytest.raises(WireError, match="a request's tensors have 8 bytes, its payload 16"):
        messages.decode_infer(messages.decode(messages.InferHead, head), memoryview(bytes(16)), Nobody())


def test_integers_beyond_64_bits_become_floats_as_in_triton() -> None:
    request = InferRequest(
        "m", "1", {}, Nobody(), parameters={"big": 1 << 70, "small": -(1 << 70), "fits": (1 << 64) - 1}
    )
    head, _, _ = RequestEncoder().encode(1, [request])
    _, (arrived,) = decode_requests(head, memoryview(b""), "m", "1", Nobody())
    assert arrived.parameters == {"big": 2.0**70, "small": -(2.0**70), "fits": (1 << 64) - 1}


def test_a_lone_surrogate_in_one_request_does_not_fail_the_others() -> None:
    bad = InferRequest("m", "1", {}, Nobody(), id="a\ud800", parameters={"k\udfff": "\ud800", "n": 1})
    bad.correlation_id = "\ud800"
    bad.metadata = {"traceparent": "\ud800"}
    head, _, _ = RequestEncoder().encode(1, [InferRequest("m", "1", {}, Nobody(), id="good"), bad])
    _, (good, arrived) = decode_requests(head, memoryview(b""), "m", "1", Nobody())
    assert good.id == "good"
    assert (arrived.id, arrived.parameters, arrived.correlation_id) == ("a?", {"k?": "?", "n": 1}, "?")

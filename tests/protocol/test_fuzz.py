"""Bytes that chance wrote, from nothing and from good requests: the answer is a clear one, and the server goes on.

Bounded by default; SHOAL_SOAK=1 tries fifty times as many.
"""

from __future__ import annotations

import json
import os
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.protocol.conftest import Deploy
from tests.protocol.harness.grpc_calls import arrays, request, strings
from tests.protocol.harness.http_calls import HEADER_LENGTH, binary_body, infer_document
from tests.protocol.harness.repository import IN, Tensor
from tests.protocol.harness.server import Server

pytestmark = pytest.mark.differs("json-errors-400", run=False)

EXAMPLES = 3000 if os.environ.get("SHOAL_SOAK") else 60
bounded = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

X = np.arange(4, dtype=np.float32).reshape(1, 4)
TEXT = strings("ab", "c").reshape(1, 2)
CLEAR = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"}
METHODS = ["ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex"]


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    inputs = [IN, Tensor("IN1", "BYTES", (-1,), "optional: true")]
    deploy("z_model", inputs=inputs, outputs=[Tensor("OUT"), Tensor("OUT1", "BYTES", (-1,))], execution="thread")


def still_serves(server: Server) -> None:
    found = arrays(server.infer("z_model", {"IN": X, "IN1": TEXT}))
    assert found["OUT"].tolist() == X.tolist()
    assert found["OUT1"].tolist() == TEXT.tolist()


def good_message() -> bytes:
    message = request("z_model", {"IN": X, "IN1": TEXT}, outputs=["OUT"], parameters={"a": 1, "b": "x"}, id="fuzz")
    return message.SerializeToString()


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    """The original with some bytes changed, cut out, put in or repeated."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "repeat", "truncate"])):
            case "flip" if data:
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 16))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=16))
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 64))] * draw(st.integers(1, 8))
            case "truncate":
                del data[at:]
    return bytes(data)


def grpc_code(server: Server, method: str, data: bytes) -> str:
    call = server.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
    try:
        call(data, timeout=20)
    except grpc.RpcError as error:
        assert error.details(), "an error says what is wrong"
        return error.code().name
    return "OK"


@bounded
@given(data=mutated(good_message()))
def test_changed_messages_are_answered_clearly(server: Server, data: bytes) -> None:
    assert grpc_code(server, "ModelInfer", data) in CLEAR


@bounded
@given(data=st.binary(max_size=200), method=st.sampled_from(METHODS))
def test_random_messages_are_answered_clearly(server: Server, data: bytes, method: str) -> None:
    # grpc itself says INTERNAL for what it cannot deserialize.
    assert grpc_code(server, method, data) in CLEAR | ({"INTERNAL"} if method != "ModelInfer" else set())


@bounded
@given(pieces=st.lists(mutated(good_message()), max_size=4))
def test_streams_of_changed_messages_are_answered_clearly(server: Server, pieces: list[bytes]) -> None:
    call = server.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    answers = list(call(iter(pieces), timeout=20))
    assert len(answers) == len(pieces)


def http_status(server: Server, body: bytes, headers: dict[str, str]) -> int:
    reply = server.post("/v2/models/z_model/infer", body, headers)
    if reply.status != 200:
        assert reply.error
    return reply.status


@bounded
@given(data=mutated(json.dumps(infer_document({"IN": X, "IN1": TEXT}, id="f", parameters={"a": 1})).encode()))
def test_changed_documents_are_answered_clearly(server: Server, data: bytes) -> None:
    assert http_status(server, data, {}) in (200, 400, 404, 501)


@bounded
@given(data=st.data())
def test_changed_binary_requests_are_answered_clearly(server: Server, data: st.DataObject) -> None:
    body, headers = binary_body({"IN": X, "IN1": TEXT})
    changed = data.draw(mutated(body))
    length = data.draw(st.one_of(st.just(headers[HEADER_LENGTH]), st.integers(-2, 400).map(str)))
    assert http_status(server, changed, {HEADER_LENGTH: length}) in (200, 400, 404, 501)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), inner)
    ),
    max_leaves=12,
)


@bounded
@given(inputs=st.lists(JSON, max_size=3), more=st.dictionaries(st.sampled_from(["id", "outputs", "parameters"]), JSON))
def test_random_documents_are_answered_clearly(server: Server, inputs: list[Any], more: dict[str, Any]) -> None:
    assert http_status(server, json.dumps({"inputs": inputs, **more}).encode(), {}) in (200, 400, 404, 501)


def test_after_all_of_it_the_server_serves(server: Server) -> None:
    still_serves(server)

"""The generate extension: flat JSON in, flat JSON or server-sent events out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.protocol.conftest import Deploy
from tests.protocol.harness.http_calls import Reply
from tests.protocol.harness.repository import Tensor
from tests.protocol.harness.server import Server
from tests.protocol.harness.targets import Target

OUTPUTS = [
    Tensor("text_output", "BYTES", (-1,)),
    Tensor("parameters_seen", "BYTES", (1,)),
    Tensor("numbers", "INT32", (3,)),
    Tensor("scale_seen", "FP32", (1,)),
    Tensor("flag", "BOOL", (1,)),
    Tensor("shape_seen", "INT64", (-1,)),
]


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    inputs = [Tensor("text_input", "BYTES", (-1,)), Tensor("scale", "FP32", (1,), "optional: true")]
    deploy("gen", "text", inputs=inputs, outputs=OUTPUTS, max_batch_size=0, execution="thread")
    deploy(
        "gen_batched",
        inputs=[Tensor("IN", "BYTES", (1,))],
        outputs=[Tensor("OUT", "BYTES", (1,))],
        max_batch_size=4,
        execution="thread",
    )
    deploy("gen_faults", "faults", inputs=[Tensor("CODE", "BYTES", (1,))], execution="thread")


def generate(server: Server, document: Any, model: str = "gen", how: str = "generate") -> Reply:
    return server.post(f"/v2/models/{model}/{how}", document)


def test_outputs_become_members_and_single_elements_scalars(server: Server) -> None:
    reply = generate(server, {"text_input": "hi", "id": "7"})
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    document = reply.json()
    seen = json.loads(document.pop("parameters_seen"))
    assert seen.get("id") in (None, "7")
    assert document.pop("scale_seen") == pytest.approx(0.1)
    assert document == {
        "flag": True,
        "id": "7",
        "model_name": "gen",
        "model_version": "1",
        "numbers": [1, 2, 3],
        "shape_seen": 1,
        "text_output": "HI",
    }


def test_a_list_fills_an_open_dimension(server: Server) -> None:
    document = generate(server, {"text_input": ["a", "b"], "scale": 2}).json()
    assert document["text_output"] == ["A", "B"]
    assert document["scale_seen"] == 2.0


def test_a_batching_model_gets_a_batch_of_one(server: Server) -> None:
    assert generate(server, {"IN": "hi"}, "gen_batched").json() == {
        "OUT": "hi",
        "model_name": "gen_batched",
        "model_version": "1",
    }


def test_other_members_and_nested_ones_become_parameters(server: Server) -> None:
    sent = {
        "text_input": "x",
        "temperature": 0.5,
        "stop": True,
        "n": 3,
        "parameters": {"lora": "a", "priority": 2, "scale": 4},
    }
    document = generate(server, sent).json()
    assert json.loads(document["parameters_seen"]) == {
        "temperature": 0.5,
        "stop": True,
        "n": 3,
        "lora": "a",
        "priority": 2,
    }
    assert document["scale_seen"] == 4.0


def test_triton_parameters_pass_through_generate(server: Server) -> None:
    document = generate(server, {"text_input": "x", "triton_foo": 1}).json()
    assert json.loads(document["parameters_seen"]) == {"triton_foo": 1}


def test_the_version_in_the_path_is_used(server: Server) -> None:
    assert server.post("/v2/models/gen/versions/1/generate", {"text_input": "x"}).status == 200
    assert server.post("/v2/models/gen/versions/2/generate", {"text_input": "x"}).status == 404


def test_generate_stream_sends_an_event(server: Server) -> None:
    reply = generate(server, {"text_input": "hi"}, how="generate_stream")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.body.startswith(b"data: ")
    assert reply.body.endswith(b"\n\n")
    events = [json.loads(event.removeprefix(b"data: ")) for event in reply.body.split(b"\n\n") if event]
    assert [event["text_output"] for event in events] == ["HI"]


@pytest.mark.parametrize("how", ["generate", "generate_stream"])
def test_an_unknown_model_is_not_found(server: Server, how: str) -> None:
    reply = generate(server, {"text_input": "x"}, "nobody", how)
    assert reply.status == 404
    assert reply.error == "Request for unknown model: 'nobody' is not found"


@pytest.mark.parametrize("how", ["generate", "generate_stream"])
@pytest.mark.parametrize(("code", "status"), [("raise", 500), ("code_UNAVAILABLE", 503), ("code_INVALID_ARG", 400)])
def test_the_status_of_a_models_error_is_that_of_its_code(
    server: Server, target: Target, how: str, code: str, status: int
) -> None:
    reply = generate(server, {"CODE": code}, "gen_faults", how)
    assert reply.status == target.pick("generate-error-status", shoal=status, triton=400)
    body = reply.body.removeprefix(b"data: ") if not target.is_shoal else reply.body
    assert json.loads(body)["error"]


@pytest.mark.parametrize("how", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("document", "pattern"),
    [
        ({"text_input": "x", "scale": [1, 2]}, "can not convert input 'scale' to tensor with proper shape"),
        ({"text_input": "x", "other": [1]}, "parameter 'other' has invalid type"),
        ({"text_input": "x", "other": None}, "parameter 'other' has invalid type"),
        ({}, "expected .* inputs? .*but got 0 inputs for model 'gen'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(server: Server, how: str, document: Any, pattern: str) -> None:
    reply = generate(server, document, how=how)
    assert reply.status == 400, reply.body
    assert re.search(pattern, reply.error), reply.error


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        '{"text_input": ',
        "[" * 100_000,
        '{"text_input": 5}',
        '{"text_input": "x", "id": 5}',
        '{"text_input": "x", "parameters": []}',
    ],
)
def test_json_that_is_no_request_is_refused(server: Server, target: Target, document: str) -> None:
    if document.startswith("[[") and not target.is_shoal:
        pytest.skip("deep nesting is not tried on a server that may recurse")
    reply = generate(server, document)
    assert reply.status in target.pick("json-errors-400", shoal=(400,), triton=(400, 500))
    assert reply.error

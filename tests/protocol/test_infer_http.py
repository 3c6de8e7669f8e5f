"""POST .../infer: JSON and binary tensors, compression, classification, limits of HTTP itself, tritonclient."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import zlib
from typing import Any

import numpy as np
import pytest
from tritonclient import http as tritonhttp
from tritonclient.http import aio as tritonaio

from tests.protocol.conftest import Deploy
from tests.protocol.harness.grpc_calls import BY_NAME, decode_bytes, encode_bytes, strings
from tests.protocol.harness.http_calls import HEADER_LENGTH, binary_body, infer_document, split_binary
from tests.protocol.harness.repository import IN, Tensor
from tests.protocol.harness.server import HOST, Server
from tests.protocol.harness.targets import Target

X = np.arange(4, dtype=np.float32).reshape(1, 4)
KINDS = [*BY_NAME, "BYTES"]
IN_JSON = [kind for kind in KINDS if kind not in ("FP16", "BF16")]


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    deploy(
        "h_types",
        inputs=[Tensor(f"IN_{kind}", kind, (-1,), "optional: true") for kind in KINDS],
        outputs=[Tensor(f"OUT_{kind}", kind, (-1,)) for kind in KINDS],
        execution="thread",
    )
    deploy(
        "h_two",
        inputs=[Tensor("IN0"), Tensor("IN1", "INT32")],
        outputs=[Tensor("OUT0"), Tensor("OUT1", "INT32")],
        execution="thread",
    )
    deploy("h_one", inputs=[IN], execution="thread")
    deploy(
        "h_flat",
        inputs=[Tensor("IN", "FP32", (-1,))],
        outputs=[Tensor("OUT", "FP32", (-1,))],
        max_batch_size=0,
        execution="thread",
    )
    deploy(
        "h_text",
        inputs=[Tensor("IN", "BYTES", (1,))],
        outputs=[Tensor("OUT", "BYTES", (1,))],
        max_batch_size=0,
        execution="thread",
    )
    deploy(
        "h_describe",
        "describe",
        outputs=[Tensor("OUT", "BYTES", (1,)), Tensor("UNUSED", "INT32", (1,))],
        max_batch_size=0,
        execution="thread",
    )


def ask(server: Server, model: str, document: Any, headers: dict[str, str] | None = None) -> Any:
    reply = server.post(f"/v2/models/{model}/infer", document, headers)
    assert reply.status == 200, reply.body
    return reply.json()


def test_the_answer_has_the_members_of_the_protocol_in_their_order(server: Server) -> None:
    reply = server.post("/v2/models/h_two/infer", infer_document({"IN0": X, "IN1": X.astype(np.int32)}, id="a-1"))
    assert reply.headers["content-type"] == "application/json"
    document = reply.json()
    assert list(document) == ["id", "model_name", "model_version", "outputs"]
    assert (document["id"], document["model_name"], document["model_version"]) == ("a-1", "h_two", "1")
    assert document["outputs"] == [
        {"name": "OUT0", "datatype": "FP32", "shape": [1, 4], "data": [0.0, 1.0, 2.0, 3.0]},
        {"name": "OUT1", "datatype": "INT32", "shape": [1, 4], "data": [0, 1, 2, 3]},
    ]


def test_an_answer_without_an_id_has_none(server: Server) -> None:
    assert "id" not in ask(server, "h_one", infer_document({"IN": X}))


def test_the_version_in_the_path_is_used(server: Server) -> None:
    assert ask(server, "h_one/versions/1", infer_document({"IN": X}))["model_version"] == "1"
    reply = server.post("/v2/models/h_one/versions/9/infer", infer_document({"IN": X}))
    assert reply.status == 404
    assert reply.error == "Request for unknown model: 'h_one' version 9 is not found"


def json_values(kind: str) -> list[Any]:
    if kind == "BYTES":
        return ["", "grüße", 'a\n"\\\u0000', "x" * 100]
    if kind == "BOOL":
        return [True, False, False, True]
    if kind in ("FP32", "FP64"):
        return [0.0, 1.5, -2.25, 1024]
    limits = np.iinfo(BY_NAME[kind])
    return [int(limits.min), int(limits.max), 0, 1]


@pytest.mark.parametrize("kind", IN_JSON)
def test_every_datatype_in_json(server: Server, kind: str) -> None:
    values = json_values(kind)
    tensor = {"name": f"IN_{kind}", "datatype": kind, "shape": [1, 4], "data": values}
    (output,) = ask(server, "h_types", {"inputs": [tensor], "outputs": [{"name": f"OUT_{kind}"}]})["outputs"]
    assert output == {"name": f"OUT_{kind}", "datatype": kind, "shape": [1, 4], "data": values}


@pytest.mark.parametrize("data", [[[1, 2], [3, 4]], [[1], [2, [3]], 4], [[[[1, 2, 3, 4]]]]])
def test_nested_data_is_taken_row_by_row(server: Server, data: list[Any]) -> None:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": data}
    assert ask(server, "h_one", {"inputs": [tensor]})["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("value", [0.1, 1e10, 1e-8, 3.4e38, -0.0, 16777217.0, 1 / 3])
def test_fp32_reads_back_as_the_same_float(server: Server, value: float) -> None:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [value]}
    (shown,) = ask(server, "h_flat", {"inputs": [tensor]})["outputs"][0]["data"]
    assert np.float32(shown).tobytes() == np.float32(value).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_every_datatype_in_binary_both_ways(server: Server, kind: str) -> None:
    raw = encode_bytes([b"", b"\xff\x00", b"abc"]) if kind == "BYTES" else bytes(range(3 * BY_NAME[kind].itemsize))
    if kind == "BOOL":
        raw = b"\x01\x00\x01"
    entry = {"name": f"IN_{kind}", "datatype": kind, "shape": [1, 3], "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps(
        {"inputs": [entry], "outputs": [{"name": f"OUT_{kind}", "parameters": {"binary_data": True}}]}
    ).encode()
    reply = server.post("/v2/models/h_types/infer", head + raw, {HEADER_LENGTH: str(len(head))})
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/octet-stream"
    document, tail = split_binary(reply)
    assert document["outputs"] == [
        {"name": f"OUT_{kind}", "datatype": kind, "shape": [1, 3], "parameters": {"binary_data_size": len(raw)}}
    ]
    assert tail == raw


def test_binary_and_json_tensors_in_one_request(server: Server) -> None:
    raw = (X + 1).tobytes()
    head = json.dumps(
        {
            "inputs": [
                {"name": "IN1", "datatype": "INT32", "shape": [1, 4], "data": [5, 6, 7, 8]},
                {"name": "IN0", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}},
            ],
            "outputs": [{"name": "OUT0", "parameters": {"binary_data": True}}, {"name": "OUT1"}],
        }
    ).encode()
    document, tail = split_binary(server.post("/v2/models/h_two/infer", head + raw, {HEADER_LENGTH: str(len(head))}))
    by_name = {output["name"]: output for output in document["outputs"]}
    assert by_name["OUT1"]["data"] == [5, 6, 7, 8]
    assert tail == raw


def test_binary_data_output_makes_every_output_binary(server: Server) -> None:
    document = infer_document({"IN0": X, "IN1": X.astype(np.int32)}, parameters={"binary_data_output": True})
    shown, tail = split_binary(server.post("/v2/models/h_two/infer", document))
    assert [output["parameters"]["binary_data_size"] for output in shown["outputs"]] == [16, 16]
    assert tail == X.tobytes() + X.astype(np.int32).tobytes()


def test_only_requested_outputs_come(server: Server) -> None:
    document = infer_document({"IN0": X, "IN1": X.astype(np.int32)}, outputs=[{"name": "OUT1"}])
    assert [output["name"] for output in ask(server, "h_two", document)["outputs"]] == ["OUT1"]
    document["outputs"] = []
    assert len(ask(server, "h_two", document)["outputs"]) == 2


def test_a_whole_body_can_be_the_one_input(server: Server) -> None:
    reply = server.post("/v2/models/h_one/infer", X.tobytes(), {HEADER_LENGTH: "0"})
    document, tail = split_binary(reply)
    assert document["outputs"][0]["shape"] == [1, 4]
    assert tail == X.tobytes()


def test_the_length_of_a_whole_body_gives_the_open_dimension(server: Server) -> None:
    document, tail = split_binary(server.post("/v2/models/h_flat/infer", bytes(28), {HEADER_LENGTH: "0"}))
    assert document["outputs"][0]["shape"] == [7]
    assert tail == bytes(28)


def test_a_whole_body_can_be_one_string(server: Server) -> None:
    _, tail = split_binary(server.post("/v2/models/h_text/infer", b"hello", {HEADER_LENGTH: "0"}))
    assert decode_bytes(tail) == [b"hello"]


def described(server: Server, **more: Any) -> dict[str, Any]:
    document = ask(server, "h_describe", infer_document({"IN": X[0]}, **more))
    return json.loads(document["outputs"][0]["data"][0])


def test_parameters_reach_the_model_with_their_types(server: Server) -> None:
    sent = {"text": "x", "number": -5, "yes": True, "half": 0.5, "headers": "h"}
    assert described(server, parameters=sent)["parameters"] == sent


def test_reserved_parameters_become_what_they_mean(server: Server) -> None:
    sent = {
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": False,
        "priority": 1,
        "timeout": 5000000,
        "own": "x",
    }
    seen = described(server, parameters=sent, id="h")
    assert seen["parameters"] == {"own": "x"}
    assert (seen["correlation_id"], seen["flags"], seen["timeout"], seen["id"]) == (7, 1, 5000000, "h")
    assert described(server, parameters={"sequence_id": "s"})["correlation_id"] == "s"


def test_unknown_members_are_ignored(server: Server) -> None:
    assert ask(server, "h_one", infer_document({"IN": X}, more={"deep": [1]}))["outputs"][0]["data"] == [
        0.0,
        1.0,
        2.0,
        3.0,
    ]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_requests_are_taken(server: Server, encoding: str) -> None:
    text = json.dumps(infer_document({"IN": X})).encode()
    body = gzip.compress(text) if encoding == "gzip" else zlib.compress(text)
    assert ask(server, "h_one", body, {"Content-Encoding": encoding})["outputs"][0]["data"] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_binary_requests_are_taken(server: Server, encoding: str) -> None:
    body, headers = binary_body({"IN": X})
    packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    document = ask(server, "h_one", packed, {**headers, "Content-Encoding": encoding})
    assert document["outputs"][0]["data"] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br", None),
        ("identity", None),
        ("deflate;q=0.2, gzip;q=0.9", "gzip"),
        ("*", None),
    ],
)
def test_answers_are_compressed_as_the_client_accepts(server: Server, accept: str, chosen: str | None) -> None:
    reply = server.post("/v2/models/h_one/infer", infer_document({"IN": X}), {"Accept-Encoding": accept})
    assert reply.headers.get("content-encoding") == chosen
    body = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[chosen](reply.body)
    assert json.loads(body)["outputs"][0]["data"] == [0.0, 1.0, 2.0, 3.0]


def test_errors_are_never_compressed(server: Server) -> None:
    reply = server.post("/v2/models/nobody/infer", infer_document({"IN": X}), {"Accept-Encoding": "gzip"})
    assert "content-encoding" not in reply.headers
    assert reply.error


def test_classification(server: Server) -> None:
    document = infer_document(
        {"IN": np.array([[1, 4, 2, 3]], np.float32)}, outputs=[{"name": "OUT", "parameters": {"classification": 2}}]
    )
    (output,) = ask(server, "h_one", document)["outputs"]
    assert output == {"name": "OUT", "datatype": "BYTES", "shape": [1, 2], "data": ["4.000000:1", "3.000000:3"]}


def test_classification_of_nothing_is_off(server: Server) -> None:
    document = infer_document({"IN": X}, outputs=[{"name": "OUT", "parameters": {"classification": 0}}])
    assert ask(server, "h_one", document)["outputs"][0]["datatype"] == "FP32"


def test_a_connection_is_kept_for_many_requests(server: Server) -> None:
    connection = http.client.HTTPConnection(HOST, server.http_port, timeout=10)
    body = json.dumps(infer_document({"IN": X})).encode()
    for _ in range(20):
        connection.request("POST", "/v2/models/h_one/infer", body)
        response = connection.getresponse()
        assert response.status == 200
        assert json.loads(response.read())["model_name"] == "h_one"
        assert not response.will_close
    connection.close()


def test_a_refused_request_leaves_the_connection_usable(server: Server) -> None:
    connection = http.client.HTTPConnection(HOST, server.http_port, timeout=10)
    connection.request("POST", "/v2/models/nobody/infer", b"{}")
    first = connection.getresponse()
    first.read()
    connection.request("POST", "/v2/models/h_one/infer", json.dumps(infer_document({"IN": X})))
    assert connection.getresponse().status == 200
    connection.close()


def test_a_chunked_body_is_taken(server: Server) -> None:
    body = json.dumps(infer_document({"IN": X})).encode()
    connection = http.client.HTTPConnection(HOST, server.http_port, timeout=10)
    connection.request(
        "POST",
        "/v2/models/h_one/infer",
        iter([body[:10], body[10:]]),
        {"Transfer-Encoding": "chunked"},
        encode_chunked=True,
    )
    response = connection.getresponse()
    assert response.status == 200
    response.read()
    connection.close()


def test_a_client_that_asks_first_is_told_to_go_on(server: Server) -> None:
    body = json.dumps(infer_document({"IN": X})).encode()
    head = f"POST /v2/models/h_one/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection((HOST, server.http_port), timeout=10) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v3", 404),
        ("GET", "/v2/models/h_one/nothing", 404),
        ("GET", "/v2/models/h_one/infer", 405),
        ("POST", "/v2/models/h_one", 405),
        ("POST", "/v2/health/live", 405),
        ("DELETE", "/v2/models/h_one/infer", 405),
        ("GET", "/v2/repository/models/h_one/load", 405),
    ],
)
def test_unknown_paths_and_wrong_methods(server: Server, method: str, path: str, status: int) -> None:
    reply = server.http(method, path)
    assert reply.status == status
    assert reply.error == {404: "Not Found", 405: "Method Not Allowed"}[status]


def test_a_query_is_ignored(server: Server) -> None:
    assert server.http("GET", "/v2/health/live?verbose=1").status == 200


@pytest.mark.differs("head-requests")
def test_head_goes_where_get_goes(server: Server) -> None:
    reply = server.http("HEAD", "/v2/health/live")
    assert reply.status == 200
    assert reply.body == b""


@pytest.mark.differs("percent-encoding")
def test_names_in_a_path_are_decoded(server: Server) -> None:
    assert server.http("GET", "/v2/models/h%5fone").json()["name"] == "h_one"


@pytest.mark.differs("metrics-on-http")
def test_metrics_are_on_the_http_port_too(server: Server) -> None:
    reply = server.http("GET", "/metrics")
    assert reply.status == 200
    assert b"nv_inference_count" in reply.body


def test_a_64_mib_limit_lets_large_tensors_through_in_binary(server: Server) -> None:
    array = np.arange((60 << 20) // 4, dtype=np.float32)
    body, headers = binary_body({"IN": array}, parameters={"binary_data_output": True})
    reply = server.post("/v2/models/h_flat/infer", body, headers, timeout=60)
    assert reply.status == 200
    document, tail = split_binary(reply)
    assert document["outputs"][0]["shape"] == [array.size]
    assert tail == array.tobytes()


def test_tritonclient_infers_in_json_and_in_binary(server: Server, target: Target) -> None:
    with tritonhttp.InferenceServerClient(server.http_address) as client:
        for binary in (False, True):
            tensor = tritonhttp.InferInput("IN_BYTES", [1, 2], "BYTES")
            tensor.set_data_from_numpy(strings("a", "b").reshape(1, 2), binary_data=binary)
            wanted = tritonhttp.InferRequestedOutput("OUT_BYTES", binary_data=binary)
            result = client.infer("h_types", [tensor], outputs=[wanted], request_id="r")
            shown = result.as_numpy("OUT_BYTES").tolist()
            assert shown in ([[b"a", b"b"]], [["a", "b"]])
            assert result.get_response()["id"] == "r"
        assert client.is_model_ready("h_types")
        assert client.get_server_metadata()["name"] == target.pick("server-name", shoal="shoal", triton="triton")


def test_tritonclient_infers_compressed(server: Server) -> None:
    with tritonhttp.InferenceServerClient(server.http_address) as client:
        tensor = tritonhttp.InferInput("IN", [1000], "FP32")
        tensor.set_data_from_numpy(np.ones(1000, np.float32))
        result = client.infer(
            "h_flat", [tensor], request_compression_algorithm="gzip", response_compression_algorithm="deflate"
        )
        assert result.as_numpy("OUT").sum() == 1000


async def test_tritonclient_aio_infers(server: Server) -> None:
    async with tritonaio.InferenceServerClient(server.http_address) as client:
        tensor = tritonaio.InferInput("IN", [1, 4], "FP32")
        tensor.set_data_from_numpy(X)
        results = await asyncio.gather(*(client.infer("h_one", [tensor], request_id=str(i)) for i in range(20)))
        assert [result.get_response()["id"] for result in results] == [str(i) for i in range(20)]
        assert all(result.as_numpy("OUT").tolist() == X.tolist() for result in results)

"""HTTP requests that are wrong: each gets a clear error with the right status, and the server goes on serving."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.protocol.conftest import EXPLICIT, Deploy, Serve
from tests.protocol.harness.http_calls import HEADER_LENGTH, binary_body, infer_document, raw_call
from tests.protocol.harness.repository import IN, Repository, Tensor
from tests.protocol.harness.server import HOST, Server
from tests.protocol.harness.targets import Target

X = np.zeros((1, 4), np.float32)


@pytest.fixture(scope="module", autouse=True)
def _models(deploy: Deploy) -> None:
    deploy("w_one", inputs=[IN], execution="thread")
    deploy(
        "w_two",
        inputs=[Tensor("IN0"), Tensor("IN1", "INT32")],
        outputs=[Tensor("OUT0"), Tensor("OUT1", "INT32")],
        execution="thread",
    )
    kinds = ("INT64", "UINT8", "BOOL", "BYTES", "FP16")
    deploy(
        "w_kinds",
        inputs=[Tensor(f"IN_{kind}", kind, (1,), "optional: true") for kind in kinds],
        outputs=[Tensor(f"OUT_{kind}", kind, (1,)) for kind in kinds],
        max_batch_size=0,
        execution="thread",
    )


@pytest.fixture(autouse=True)
def _still_serves(server: Server) -> Iterator[None]:
    """Nothing that a test sends may harm the next caller."""
    yield
    assert (
        server.post("/v2/models/w_one/infer", infer_document({"IN": X + 3})).json()["outputs"][0]["data"] == [3.0] * 4
    )


def tensor(
    name: str = "IN", datatype: str = "FP32", shape: Any = (1, 4), data: Any = (1, 2, 3, 4), **more: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(shape),
        "data": list(data) if isinstance(data, tuple) else data,
        **more,
    }


def one(**more: Any) -> dict[str, Any]:
    return {"inputs": [tensor(**more)]}


def without(member: str) -> dict[str, Any]:
    return {"inputs": [{key: value for key, value in tensor().items() if key != member}]}


def kind(name: str, value: Any) -> dict[str, Any]:
    return {"inputs": [tensor(f"IN_{name}", name, (1,), [value])]}


# (document, a pattern of the text). Triton answers 400 to these as well.
REFUSED: dict[str, tuple[Any, str]] = {
    "unknown input": (one(name="XX"), r"unexpected inference input 'XX' for model 'w_one'"),
    "no input": ({"inputs": []}, r"expected 1 inputs? but got 0 inputs? for model 'w_one'"),
    "another datatype": (one(datatype="INT32"), r"data-type is 'INT32', but model 'w_one' expects 'FP32'"),
    "an unknown datatype": (one(datatype="FP31"), r"invalid datatype for input IN"),
    "a wrong shape": (one(shape=(1, 5), data=[0] * 5), r"Expected \[-1,4\], got \[1,5\]"),
    "a batch beyond the largest": (
        one(shape=(9, 4), data=[0] * 36),
        r"inference request batch-size must be <= 8 for 'w_one'",
    ),
    "an unknown output": (
        {**one(), "outputs": [{"name": "ZZ"}]},
        r"unexpected inference output 'ZZ' for model 'w_one'",
    ),
    "the same input twice": ({"inputs": [tensor(), tensor()]}, r"input 'IN' already exists in request"),
    "no data": (without("data"), r"must set only one of .*But no field is set"),
    "data and binary data": (
        one(parameters={"binary_data_size": 16}),
        r"must set only one of .*But set 'data' 'binary_data_size'",
    ),
    "a reserved parameter": (
        {**one(), "parameters": {"triton_x": 1}},
        r"parameter keys starting with 'triton_' are reserved",
    ),
    "a parameter that is a list": ({**one(), "parameters": {"own": [1]}}, r"parameter 'own' has invalid type"),
    "a parameter that is null": ({**one(), "parameters": {"own": None}}, r"parameter 'own' has invalid type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_request_is_400_and_names_what_is_wrong(server: Server, case: str) -> None:
    document, pattern = REFUSED[case]
    reply = server.post("/v2/models/w_one/infer", document)
    assert reply.status == 400, reply.body
    assert re.search(pattern, reply.error), reply.error


# Triton answers 500 to these.
MALFORMED: dict[str, tuple[str, Any, str]] = {
    "no object": ("w_one", "[]", r"inputs|object"),
    "no inputs": ("w_one", {}, r"inputs"),
    "inputs that are no list": ("w_one", {"inputs": 5}, r"inputs"),
    "an input that is no object": ("w_one", {"inputs": [5]}, r""),
    "broken JSON": ("w_one", '{"inputs": [', r"failed to parse the request JSON buffer"),
    "a word": ("w_one", "hello", r"failed to parse the request JSON buffer"),
    "no name": ("w_one", without("name"), r"name"),
    "no datatype": ("w_one", without("datatype"), r"datatype"),
    "no shape": ("w_one", without("shape"), r"shape"),
    "a shape of text": ("w_one", one(shape=["1", "4"]), r"shape"),
    "a shape of fractions": ("w_one", one(shape=[1.5, 4]), r"shape"),
    "a negative dimension": ("w_one", one(shape=[-1, 4]), r"shape"),
    "an id that is no string": ("w_one", {**one(), "id": 5}, r"id"),
    "parameters that are no object": ("w_one", {**one(), "parameters": [1]}, r"param"),
    "data that is a scalar": ("w_one", one(data=5), r"data"),
    "too little data": ("w_one", one(data=[1, 2]), r"data"),
    "too much data": ("w_one", one(data=[1] * 5), r"data"),
    "text for numbers": ("w_one", one(data=["1", 2, 3, 4]), r"data"),
    "null for numbers": ("w_one", one(data=[None, 2, 3, 4]), r"data"),
    "true for numbers": ("w_one", one(data=[True, 2, 3, 4]), r"data"),
    "a fraction for an integer": ("w_kinds", kind("INT64", 1.5), r"data"),
    "an integer beyond int64": ("w_kinds", kind("INT64", 2**63), r"data"),
    "a negative unsigned integer": ("w_kinds", kind("UINT8", -1), r"data"),
    "a number for a boolean": ("w_kinds", kind("BOOL", 1), r"data"),
    "a number for a string": ("w_kinds", kind("BYTES", 1), r"."),
    "a timeout of text": ("w_one", {**one(), "parameters": {"timeout": "1"}}, r"timeout"),
    "a negative timeout": ("w_one", {**one(), "parameters": {"timeout": -1}}, r"timeout"),
    "a negative priority": ("w_one", {**one(), "parameters": {"priority": -1}}, r"priority"),
    "a sequence flag that is no flag": ("w_one", {**one(), "parameters": {"sequence_start": 1}}, r"sequence_start"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_json_that_is_no_request_is_400_and_says_where(server: Server, target: Target, case: str) -> None:
    model, document, pattern = MALFORMED[case]
    reply = server.post(f"/v2/models/{model}/infer", document)
    assert reply.status in target.pick("json-errors-400", shoal=(400,), triton=(400, 500)), reply.body
    assert re.search(pattern, reply.error), reply.error


@pytest.mark.differs("typed-range")
def test_json_values_beyond_the_datatype_are_refused(server: Server) -> None:
    reply = server.post("/v2/models/w_kinds/infer", kind("UINT8", 300))
    assert reply.status == 400
    assert "IN_UINT8" in reply.error


def test_the_same_output_twice_is_sent_once(server: Server) -> None:
    reply = server.post("/v2/models/w_one/infer", {**one(), "outputs": [{"name": "OUT"}, {"name": "OUT"}]})
    assert reply.status == 200
    assert [output["name"] for output in reply.json()["outputs"]] == ["OUT"]


def test_fp16_is_for_binary_data_only(server: Server) -> None:
    reply = server.post("/v2/models/w_kinds/infer", kind("FP16", 1))
    assert reply.status == 400
    assert reply.error.startswith(
        "receiving FP16 data via JSON is not supported. Please use the binary data format for input IN_FP16"
    )
    body, headers = binary_body({"IN_FP16": np.ones(1, np.float16)}, outputs=[{"name": "OUT_FP16"}])
    reply = server.post("/v2/models/w_kinds/infer", body, headers)
    assert reply.status == 400
    assert "FP16 data via JSON is not supported" in reply.error


@pytest.mark.parametrize(
    "place", [b'"name": "I\xffN"', b'"name": "IN", "extra": "\xff"', b'"name": "IN", "data": ["\xff"]']
)
def test_json_that_is_no_utf8_is_refused(server: Server, target: Target, place: bytes) -> None:
    reply = server.post(
        "/v2/models/w_one/infer", b'{"inputs": [{' + place + b', "datatype": "FP32", "shape": [1, 4]}]}'
    )
    assert reply.status in target.pick("json-errors-400", shoal=(400,), triton=(400, 500))
    assert reply.error


@pytest.mark.differs("json-invalid-utf8")
def test_bytes_that_are_no_text_are_not_sent_as_broken_json(server: Server) -> None:
    body, headers = binary_body({"IN_BYTES": np.array([b"\xff\xfe"], dtype=object)}, outputs=[{"name": "OUT_BYTES"}])
    reply = server.post("/v2/models/w_kinds/infer", body, headers)
    assert reply.status == 400
    assert "UTF-8" in reply.error
    json.loads(reply.body)


BINARY: dict[str, tuple[Any, dict[str, str], str]] = {
    "a header longer than the body": (
        {},
        {HEADER_LENGTH: "100000"},
        r"inference header size should be in range \(0, \d+\), got: 100000",
    ),
    "a negative header": ({}, {HEADER_LENGTH: "-1"}, r"inference header size should be in range \(0, \d+\), got: -1"),
    "more bytes than the tensor says": ({"extra": b"1234"}, {}, r"unexpected additional input data for model 'w_one'"),
    "fewer bytes than the tensor says": (
        {"cut": 4},
        {},
        r"unexpected size for input 'IN', expecting \d+ additional bytes for model 'w_one'",
    ),
    "a size that does not fit the shape": (
        {"size": 12},
        {},
        r"input byte size mismatch for input 'IN' for model 'w_one'. Expected 16, got 12",
    ),
}


@pytest.mark.parametrize("case", BINARY)
def test_binary_data_that_does_not_add_up_is_400(server: Server, case: str) -> None:
    change, more, pattern = BINARY[case]
    size = change.get("size", 16)
    entry = {"name": "IN", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [entry]}).encode()
    tail = bytes(size)[: size - change.get("cut", 0)] + change.get("extra", b"")
    reply = server.post("/v2/models/w_one/infer", head + tail, {HEADER_LENGTH: str(len(head)), **more})
    assert reply.status == 400
    assert re.search(pattern, reply.error), reply.error


@pytest.mark.parametrize("size", ["16", -1, 1.5, None, 2**70])
def test_a_binary_size_that_is_no_size_is_refused(server: Server, target: Target, size: Any) -> None:
    entry = {"name": "IN", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [entry]}).encode()
    reply = server.post("/v2/models/w_one/infer", head + bytes(16), {HEADER_LENGTH: str(len(head))})
    assert reply.status in target.pick("json-errors-400", shoal=(400,), triton=(400, 500))
    assert reply.error


def test_a_whole_body_needs_a_model_with_one_input(server: Server) -> None:
    reply = server.post("/v2/models/w_two/infer", bytes(16), {HEADER_LENGTH: "0"})
    assert reply.status == 400
    assert "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'w_two'" in reply.error
    reply = server.post("/v2/models/w_one/infer", bytes(12), {HEADER_LENGTH: "0"})
    assert reply.status == 400
    assert "byte size mismatch" in reply.error


def test_no_body_is_refused(server: Server) -> None:
    reply = server.post("/v2/models/w_one/infer", b"")
    assert reply.status == 400
    assert reply.error


def test_an_unknown_encoding_is_refused_with_those_that_are_known(server: Server) -> None:
    reply = server.post("/v2/models/w_one/infer", b"xxxx", {"Content-Encoding": "br"})
    assert reply.status == 501
    assert reply.error.startswith("Unsupported compression type")
    assert reply.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"no gzip at all"),
        ("gzip", gzip.compress(b'{"inputs": []}')[:-4]),
        ("deflate", zlib.compress(b'{"inputs": []}')[:-2]),
        ("deflate", b"\xff\xff\xff"),
        ("gzip", gzip.compress(b"{}") + b"more"),
    ],
)
def test_a_broken_compressed_body_is_refused(server: Server, target: Target, encoding: str, body: bytes) -> None:
    reply = server.post("/v2/models/w_one/infer", body, {"Content-Encoding": encoding})
    assert reply.status in target.pick("broken-compression", shoal=(400,), triton=(400, 500))
    if target.is_shoal:
        assert f"failed to decompress the request body as {encoding}" in reply.error


@pytest.mark.differs("json-depth", run=False)
@pytest.mark.parametrize("where", ["data", "document", "parameters"])
def test_deep_json_is_refused(server: Server, where: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    head = '{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": '
    body = {
        "data": head + deep + "}]}",
        "document": deep,
        "parameters": head + '[1,2,3,4]}], "parameters": {"a": ' + deep + "}}",
    }[where]
    reply = server.post("/v2/models/w_one/infer", body)
    assert reply.status == 400
    assert reply.error


def test_a_hundred_thousand_inputs_are_refused_quickly(server: Server) -> None:
    document = {"inputs": [tensor(f"IN{i}") for i in range(100_000)]}
    reply = server.post("/v2/models/w_one/infer", document, timeout=30)
    assert reply.status == 400
    assert "inputs" in reply.error


@pytest.mark.parametrize(
    "shape", [[2**31] * 3, [2**62, 4], [1, 2**63], [0, 2**62, 2**62], [10**30, 1], [1] * 5000], ids=str
)
def test_shapes_that_overflow_are_refused(server: Server, target: Target, shape: list[int]) -> None:
    for data in ({"data": []}, {"parameters": {"binary_data_size": 0}}):
        entry = {"name": "IN", "datatype": "FP32", "shape": shape, **data}
        reply = server.post("/v2/models/w_one/infer", {"inputs": [entry]})
        statuses = target.pick("json-errors-400", shoal=(400,), triton=(400, 500))
        assert reply.status in statuses, (reply.status, reply.body[:300])
        assert reply.error


RAW = {
    "no HTTP": b"hello\r\n\r\n",
    "an unknown protocol": b"GET /v2 SPDY/9\r\n\r\n",
    "a length that is no number": b"POST /v2/models/w_one/infer HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
    "a negative length": b"POST /v2/models/w_one/infer HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "a body that ends early": b"POST /v2/models/w_one/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{",
    "a chunk without a length": b"POST /v2/models/w_one/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a header without a colon": b"GET /v2 HTTP/1.1\r\nHost x\r\n\r\n",
    "a header of a megabyte": b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (1 << 20) + b"\r\n\r\n",
    "a path of a megabyte": b"GET /" + b"y" * (1 << 20) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "binary": bytes(range(256)) * 4,
}


def answered(server: Server, sent: bytes) -> bytes:
    """What comes back before the connection is closed."""
    try:
        return raw_call((HOST, server.http_port), sent)
    except OSError:  # closed while it was still being sent
        return b""


@pytest.mark.parametrize("case", RAW)
def test_bytes_that_are_no_http_end_in_a_400_or_a_closed_connection(server: Server, case: str) -> None:
    received = answered(server, RAW[case])
    assert not received or received.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), received[:200]


@pytest.mark.differs("http-input-limit", run=False)
def test_a_body_that_claims_3_gib_is_refused_by_its_head(server: Server) -> None:
    head = f"POST /v2/models/w_one/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {3 << 30}\r\n\r\n"
    with socket.create_connection((HOST, server.http_port), timeout=10) as connection:
        connection.sendall(head.encode())
        assert connection.recv(12) == b"HTTP/1.1 400"


def test_a_client_that_leaves_in_the_middle_of_its_body_harms_nobody(server: Server) -> None:
    for _ in range(20):
        with socket.create_connection((HOST, server.http_port), timeout=5) as connection:
            connection.sendall(b"POST /v2/models/w_one/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{")


@pytest.mark.differs("http-input-limit", run=False)
def test_bodies_beyond_the_limit_are_refused_however_they_come(start: Serve) -> None:
    def write(repository: Repository) -> None:
        repository.model(
            "small", inputs=[Tensor("IN", "FP32", (-1,))], outputs=[Tensor("OUT", "FP32", (-1,))], max_batch_size=0
        )

    limit = 1 << 16
    server = start(write, [*EXPLICIT, "--load-model=small", f"--http-max-input-size={limit}"]).wait_ready()
    path = "/v2/models/small/infer"
    body, headers = binary_body({"IN": np.zeros(limit, np.float32)})
    packed = gzip.compress(body)
    assert len(packed) < limit
    expanding = json.dumps({"inputs": [tensor(shape=(20_000,), data=[0] * 20_000)]})  # 40 KB of text are 80 KB of FP32
    assert len(expanding.replace(" ", "")) < limit
    for sent, more in (
        (body, headers),
        (packed, {**headers, "Content-Encoding": "gzip"}),
        (expanding.replace(" ", ""), {}),
    ):
        reply = server.post(path, sent, more)
        assert reply.status == 400, reply.body[:200]
        assert re.search(r"http-max-input-size|at most \d+ bytes|exceed", reply.error), reply.error
    chunks = (body[at : at + 4096] for at in range(0, len(body), 4096))
    connection = http.client.HTTPConnection(HOST, server.http_port, timeout=10)
    try:
        connection.request("POST", path, chunks, {**headers, "Transfer-Encoding": "chunked"}, encode_chunked=True)
        assert connection.getresponse().status == 400
    except (BrokenPipeError, ConnectionResetError):
        pass  # refused before it had sent all
    finally:
        connection.close()
    reply = server.post(path, infer_document({"IN": np.ones(3, np.float32)}))
    assert reply.status == 200

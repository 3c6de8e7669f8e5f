"""Clients that leave, stall, lie and flood."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shoal_dataplane.server import http_io, http_protocol
from shoal_dataplane.server.http import HttpDoor
from tests.unit.server.conftest import OpenDoor
from tests.unit.server.http_client import ask, infer, tensor, until
from tests.unit.server.http_service import FakeService

BODY = json.dumps({"inputs": [tensor(shape=[4])]}).encode()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def post(path: str, body: bytes = b"", *headers: bytes, length: int | None = None) -> bytes:
    lines = [
        b"POST %s HTTP/1.1" % path.encode(),
        b"Host: h",
        b"Content-Length: %d" % (len(body) if length is None else length),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def read_all(client: socket.socket) -> bytes:
    received = b""
    try:
        while part := client.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def error_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.fixture
def healthy(http_door: HttpDoor) -> Iterator[HttpDoor]:
    """A door that must serve as before when the test is over."""
    yield http_door
    answer = infer(http_door.port, "ident")
    assert answer.json["outputs"][0]["data"] == [1, 2, 3, 4]


def test_a_client_that_leaves_cancels_its_request(healthy: HttpDoor, http_service: FakeService) -> None:
    client = connect(healthy.port)
    client.sendall(post("/v2/models/slow/infer", BODY))
    assert http_service.arrived.acquire(timeout=10)
    client.close()
    assert http_service.gone.acquire(timeout=10)
    assert http_service.cancelled == http_service.submitted
    assert http_service.held == []


def test_a_client_that_leaves_cancels_only_its_own_request(healthy: HttpDoor, http_service: FakeService) -> None:
    clients = [connect(healthy.port) for _ in range(4)]
    for client in clients:
        client.sendall(post("/v2/models/slow/infer", BODY, b"Connection: close"))
        assert http_service.arrived.acquire(timeout=10)
    clients[1].close()
    assert http_service.gone.acquire(timeout=10)
    http_service.release()
    for client in (clients[0], clients[2], clients[3]):
        assert read_all(client).startswith(b"HTTP/1.1 200")
        client.close()
    assert http_service.cancelled == [http_service.submitted[1]]


def test_a_client_that_leaves_in_the_middle_of_its_upload_submits_nothing(
    healthy: HttpDoor, http_service: FakeService
) -> None:
    client = connect(healthy.port)
    client.sendall(post("/v2/models/slow/infer", b"{", length=1000))
    until(lambda: healthy.in_flight)
    client.close()
    until(lambda: not healthy.in_flight)
    assert http_service.submitted == []


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS on a port in clear
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: h\r\nbad header\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: h\r\nA: b\x00c\r\n\r\n",
        b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 6\r\n\r\n",
        b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: h\r\nA: " + b"b" * 40_000 + b"\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: h\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(5000)) + b"\r\n",
    ],
)
def test_malformed_http_is_answered_in_json_and_ends_the_connection(healthy: HttpDoor, request_: bytes) -> None:
    with connect(healthy.port) as client:
        client.sendall(request_)
        answer = read_all(client)
    if answer:  # a client that goes on sending may see a reset instead
        status, message = error_of(answer)
        assert status == 400
        assert message.startswith("malformed HTTP request: ")


def test_a_malformed_chunk_ends_the_request(
    open_door: OpenDoor, http_service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_io, "STALL_SECONDS", 0.1)  # aiohttp does not tell the reader of the body
    door = open_door()
    with connect(door.port) as client:
        client.sendall(
            b'POST /v2/models/ident/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"i\r\nzz\r\nx\r\n\r\n'
        )
        status, _ = error_of(read_all(client))
    assert status in (400, 408)
    assert http_service.submitted == []


def test_a_body_cut_short_is_nobodys_request(healthy: HttpDoor, http_service: FakeService) -> None:
    with connect(healthy.port) as client:
        client.sendall(post("/v2/models/ident/infer", BODY, length=len(BODY) + 1))
        until(lambda: healthy.in_flight)
        client.shutdown(socket.SHUT_WR)
        read_all(client)
    assert http_service.submitted == []


def test_a_body_above_the_limit_is_refused_before_it_is_sent(open_door: OpenDoor, http_service: FakeService) -> None:
    door = open_door(max_input_bytes=1000)
    with connect(door.port) as client:
        client.sendall(post("/v2/models/ident/infer", b"", b"Expect: 100-continue", length=3 << 30))
        status, message = error_of(client.recv(65536))
    assert status == 400
    assert message.startswith(
        f"request body of {3 << 30} bytes or more exceeds the maximum allowed input size of 1000 bytes. Use --http-max-input-size"
    )
    assert len(http_service.refusals) == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_above_the_limit_is_refused_while_it_comes(open_door: OpenDoor, chunked: bool) -> None:
    door = open_door(max_input_bytes=100_000)
    with connect(door.port) as client:
        if chunked:
            client.sendall(b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
            piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
            client.sendall(piece * 2)
        else:
            client.sendall(post("/v2/models/ident/infer", bytes(100_001)))
        status, message = error_of(client.recv(65536))
    assert status == 400
    assert "exceeds the maximum allowed input size of 100000 bytes" in message


def test_a_body_of_exactly_the_limit_is_taken(open_door: OpenDoor) -> None:
    door = open_door(max_input_bytes=len(BODY))
    assert ask(door.port, "POST", "/v2/models/flat/infer", BODY).status == 200


def test_a_client_that_waits_to_be_told_is_told(healthy: HttpDoor) -> None:
    with connect(healthy.port) as client:
        client.sendall(
            post("/v2/models/flat/infer", b"", b"Expect: 100-continue", b"Connection: close", length=len(BODY))
        )
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(BODY)
        assert read_all(client).startswith(b"HTTP/1.1 200")


def test_a_gzip_bomb_is_refused(open_door: OpenDoor) -> None:
    door = open_door(max_input_bytes=1 << 20)
    bomb = gzip.compress(bytes(50 << 20), compresslevel=1)
    assert len(bomb) < 1 << 20
    answer = ask(door.port, "POST", "/v2/models/ident/infer", bomb, {"Content-Encoding": "gzip"})
    assert answer.status == 400
    assert answer.error.startswith("Decompressed data size exceeds the maximum allowed value of 1048576 bytes")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"inputs":[' + b",".join([b'{"name":"IN","shape":[1],"datatype":"FP32","data":[1]}'] * 100_000) + b"]}", "100000 inputs"),
        (b'{"inputs":[{"name":"IN","shape":[1],"datatype":"FP32","data":' + b"[" * 10_000 + b"]" * 10_000 + b"}]}", "JSON nesting depth"),
        (b"[" * 1_000_000, "failed to parse|Expected 'object', got 'array'|nesting depth"),
        (b'{"inputs":[{"name":"IN","shape":[4611686018427387904,4],"datatype":"FP32","data":[1]}]}', "exceed maximum size"),
        (b'{"inputs":[{"name":"IN","shape":[1000000000000],"datatype":"FP32","data":[1]}]}', "exceeds the maximum allowed value"),
        (b'{"inputs":[{"name":"\xff\xfe","shape":[1],"datatype":"FP32","data":[1]}]}', "Invalid UTF-8"),
        (b'{"inputs":[{"name":"IN","shape":[1],"datatype":"FP32","parameters":{"binary_data_size":1%s}}]}' % (b"0" * 19), "additional"),
    ],
    ids=["100000-inputs", "deep-data", "deep-document", "overflow", "huge", "utf8", "binary-size"],
)  # fmt: skip
def test_monstrous_requests_get_an_answer(healthy: HttpDoor, text: bytes, said: str) -> None:
    answer = ask(healthy.port, "POST", "/v2/models/ident/infer", text)
    assert answer.status == 400
    assert any(part in answer.error for part in said.split("|"))


def test_health_is_answered_while_a_large_request_is_decoded(
    healthy: HttpDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_io, "OFFLOAD_BYTES", 0)
    entered, leave = threading.Event(), threading.Event()

    def decode(*arguments: object) -> None:
        entered.set()
        leave.wait(20)
        raise AssertionError

    monkeypatch.setattr("shoal_dataplane.server.http_infer.decode_infer", decode)
    with connect(healthy.port) as client:
        client.sendall(post("/v2/models/ident/infer", BODY))
        assert entered.wait(10)
        assert ask(healthy.port, "GET", "/v2/health/live").status == 200
        leave.set()
        assert client.recv(1000).startswith(b"HTTP/1.1 500")
    monkeypatch.undo()


def test_an_upload_that_stalls_is_ended(open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_io, "STALL_SECONDS", 0.1)
    door = open_door()
    with connect(door.port) as client:
        client.sendall(post("/v2/models/ident/infer", b"{", length=100))
        status, message = error_of(client.recv(65536))
    assert status == 408
    assert message.startswith("no byte of the request body came for")


def test_a_client_that_does_not_read_is_disconnected(
    open_door: OpenDoor, http_service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(http_protocol, "SWEEP_SECONDS", 0.02)
    door = open_door()
    data = bytes(32 << 20)
    entry = {"name": "IN", "datatype": "UINT8", "shape": [1, len(data)], "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.settimeout(20)
        client.connect(("127.0.0.1", door.port))
        client.sendall(
            post("/v2/models/ident_uint8/infer", text + data, b"Inference-Header-Content-Length: %d" % len(text))
        )
        until(lambda: http_service.submitted and not door.in_flight)
        assert len(read_all(client)) < len(data)


def test_a_connection_that_never_asks_is_closed(open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(http_protocol._LIMITS, "keepalive_timeout", 0.1)
    door = open_door()
    with connect(door.port) as silent, connect(door.port) as slow:
        slow.sendall(b"GET /v2 HTTP/1.1\r\nHost:")
        assert silent.recv(1) == b""
        assert slow.recv(1) == b""


def test_pipelined_requests_are_answered_in_order(healthy: HttpDoor) -> None:
    with connect(healthy.port) as client:
        requests = [
            post("/v2/models/flat/infer", json.dumps({"id": str(n), "inputs": [tensor(shape=[4])]}).encode())
            for n in range(100)
        ]
        client.sendall(b"".join(requests) + b"GET /v2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        answer = read_all(client)
    assert [int(part.split(b'"')[0]) for part in answer.split(b'"id":"')[1:]] == list(range(100))


_REQUEST_LINE = st.sampled_from(
    [
        b"POST /v2/models/ident/infer HTTP/1.1",
        b"POST /v2/models/text/generate HTTP/1.1",
        b"POST /v2/repository/index HTTP/1.1",
    ]
)
_HEADERS = (
    b"Host: h", b"Content-Encoding: gzip", b"Content-Encoding: deflate", b"Inference-Header-Content-Length: 5",
    b"Inference-Header-Content-Length: 0", b"Accept-Encoding: gzip", b"Expect: 100-continue", b"Transfer-Encoding: chunked",
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    _REQUEST_LINE,
    st.lists(st.sampled_from(_HEADERS), max_size=4),
    st.binary(max_size=40) | st.sampled_from([BODY, gzip.compress(BODY), struct.pack("<4f", 1, 2, 3, 4)]),
)
@example(
    b"POST /v2/models/ident/infer HTTP/1.1",
    [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
    b"0\r\n\r\n",
)
def test_any_request_gets_a_well_formed_answer(
    http_door: HttpDoor, monkeypatch: pytest.MonkeyPatch, line: bytes, headers: list[bytes], body: bytes
) -> None:
    monkeypatch.setattr(http_io, "STALL_SECONDS", 0.05)  # for bodies that are not whole
    length = [] if b"Transfer-Encoding: chunked" in headers else [b"Content-Length: %d" % len(body)]
    with connect(http_door.port) as client:
        client.sendall(b"\r\n".join([line, *headers, *length, b"Connection: close"]) + b"\r\n\r\n" + body)
        answer = read_all(client)
    if answer.startswith(b"HTTP/1.1 100"):
        answer = answer.partition(b"\r\n\r\n")[2]
    status = int(answer.split()[1])
    assert status in (200, 400, 404, 408, 501)
    if status != 200:
        error_of(answer)

"""generate and generate_stream."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any

import aiohttp
import pytest

from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.server import http_reply
from shoal_dataplane.server.http import HttpDoor
from tests.unit.server.conftest import OpenDoor
from tests.unit.server.http_client import Answer, ask
from tests.unit.server.http_service import FakeService, numbers


def generate(
    door: HttpDoor, model: str, value: Any, verb: str = "generate", headers: dict[str, str] | None = None
) -> Answer:
    return ask(door.port, "POST", f"/v2/models/{model}/{verb}", value, headers)


def events(answer: Answer) -> list[Any]:
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    *parts, last = answer.body.split(b"\n\n")
    assert last == b""
    assert all(part.startswith(b"data: ") for part in parts)
    return [json.loads(part[6:]) for part in parts]


def test_one_response_is_one_object(http_door: HttpDoor) -> None:
    answer = generate(http_door, "ident_bytes", {"IN": ["a", "b"], "id": "7"})
    assert answer.json == {"OUT": ["a", "b"], "id": "7", "model_name": "ident_bytes", "model_version": "1"}
    assert generate(http_door, "text", {"IN": "x"}).json["OUT"] == "x"
    assert generate(http_door, "once", {"N": 1}).json["OUT"] == 0


def test_other_keys_reach_the_model(open_door: OpenDoor, http_service: FakeService) -> None:
    door = open_door(header_forward_pattern="^X-My")
    generate(
        door,
        "text",
        {"IN": "x", "temperature": 0.5, "parameters": {"timeout": 1}},
        headers={"X-My-Header": "v", "traceparent": "t"},
    )
    (request,) = http_service.submitted
    assert request.parameters == {"temperature": 0.5, "timeout": 1, "X-My-Header": "v"}
    assert request.timeout_us == 0
    assert request.metadata == {"traceparent": "t", "x-my-header": "v"}


@pytest.mark.parametrize("model", ["none", "thrice"])
def test_generate_wants_exactly_one_response(http_door: HttpDoor, model: str) -> None:
    answer = generate(http_door, model, {"N": 1})
    assert answer.status == 500
    assert answer.error.startswith("generate expects model to produce exactly 1 response, use generate stream")


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("model", "value", "status", "said"),
    [
        ("nope", {"N": 1}, 404, "Request for unknown model: 'nope' is not found"),
        ("once", b"{", 400, "failed to parse the request JSON buffer"),
        ("once", {}, 400, "missing required input(s) ['N']"),
        ("once", {"N": [1, 2]}, 400, "The schema can not convert input 'N' to tensor with proper shape"),
        ("once", {"N": "x"}, 400, 'element 0 is "x", expected an integer'),
        ("ident_fp16", {"IN": 1}, 400, "receiving FP16 data via JSON is not supported"),
    ],
)
def test_a_wrong_request_is_a_status_and_json(
    http_door: HttpDoor, verb: str, model: str, value: Any, status: int, said: str
) -> None:
    answer = generate(http_door, model, value, verb)
    assert answer.status == status
    assert said in answer.error


@pytest.mark.parametrize(("model", "count"), [("none", 0), ("once", 1), ("thrice", 3)])
def test_a_stream_has_an_event_a_response(http_door: HttpDoor, model: str, count: int) -> None:
    answer = generate(http_door, model, {"N": 1, "id": "9"}, "generate_stream")
    assert answer.status == 200
    expected = [{"OUT": number, "id": "9", "model_name": model, "model_version": "1"} for number in range(count)]
    assert events(answer) == expected


def test_a_late_error_is_an_event(http_door: HttpDoor) -> None:
    answer = generate(http_door, "broken", {"N": 1}, "generate_stream")
    assert answer.status == 200
    first, last = events(answer)
    assert first["OUT"] == 0
    assert last == {"error": "the model broke"}


def test_an_output_json_cannot_hold_is_an_event(http_door: HttpDoor, http_service: FakeService) -> None:
    answer = ask(http_door.port, "POST", "/v2/models/text/generate_stream", b'{"IN":"\\u0000"}')
    assert events(answer)[0]["OUT"] == "\0"


def test_a_stream_over_http_1_0_ends_with_the_connection(http_door: HttpDoor) -> None:
    body = b'{"N":1}'
    with socket.create_connection(("127.0.0.1", http_door.port), timeout=10) as client:
        client.sendall(
            b"POST /v2/models/thrice/generate_stream HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        answer = b""
        while part := client.recv(65536):
            answer += part
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert rest.count(b"data: ") == 3


async def test_events_come_as_they_are_made(http_door: HttpDoor, http_service: FakeService) -> None:
    held: list[InferRequest] = []
    arrived = threading.Semaphore(0)

    def hold(request: InferRequest) -> list[InferResponse]:
        held.append(request)
        arrived.release()
        return []

    http_service.set_answer("once", hold)
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{http_door.port}/v2/models/once/generate_stream"
        pending = asyncio.ensure_future(session.post(url, json={"N": 1}))
        assert await asyncio.to_thread(arrived.acquire, timeout=10)
        request = held[0]
        first, last = list(numbers(1)(request))
        http_service.loop.post(lambda: request.handle.respond(request, first))
        response = await pending
        assert json.loads((await response.content.readuntil(b"\n\n"))[6:])["OUT"] == 0
        http_service.loop.post(lambda: request.handle.respond(request, last))
        assert await response.content.read() == b""
    assert http_service.cancelled == []


async def test_leaving_a_stream_cancels_it(http_door: HttpDoor, http_service: FakeService) -> None:
    http_service.set_answer("once", lambda request: list(numbers(1)(request))[:1])
    async with aiohttp.ClientSession() as session:
        response = await session.post(
            f"http://127.0.0.1:{http_door.port}/v2/models/once/generate_stream", json={"N": 1}
        )
        await response.content.readuntil(b"\n\n")
        response.close()
    assert await asyncio.to_thread(http_service.gone.acquire, timeout=10)
    assert http_service.cancelled == http_service.submitted


def test_a_reader_that_is_too_slow_is_cut_off_and_its_request_cancelled(
    http_door: HttpDoor, http_service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_reply, "MAX_PENDING", 64)
    body = b'{"N":1}'
    http_service.set_answer("once", lambda request: list(numbers(5000)(request))[:-1])  # it never ends
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(10)
        client.connect(("127.0.0.1", http_door.port))
        client.sendall(
            b"POST /v2/models/once/generate_stream HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        assert http_service.gone.acquire(timeout=10)
    assert http_service.cancelled == http_service.submitted

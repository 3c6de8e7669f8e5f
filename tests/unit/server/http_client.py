"""A plain HTTP client for the tests: one request, one answer."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.headers["Content-Type"] == "application/json"
        assert list(self.json) == ["error"]
        return str(self.json["error"])


def ask(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 30
) -> Answer:
    """Send a request; a body that is no bytes is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, raw, headers or {})
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def tensor(name: str = "IN", datatype: str = "FP32", shape: list[int] | None = None, **more: Any) -> dict[str, Any]:
    """An input; [1, 2, 3, 4] of shape [1, 4] if nothing else is said."""
    data = {} if "data" in more or "parameters" in more else {"data": [1, 2, 3, 4]}
    return {"name": name, "datatype": datatype, "shape": [1, 4] if shape is None else shape, **data, **more}


def infer(port: int, model: str, *inputs: dict[str, Any], headers: dict[str, str] | None = None, **more: Any) -> Answer:
    return ask(port, "POST", f"/v2/models/{model}/infer", {"inputs": list(inputs) or [tensor()], **more}, headers)


def infer_binary(
    port: int,
    model: str,
    request: dict[str, Any],
    section: bytes,
    headers: dict[str, str] | None = None,
    length: object = None,
) -> Answer:
    """An inference with binary data behind its JSON; `length` replaces the true Inference-Header-Content-Length."""
    text = json.dumps(request).encode()
    known = {"Inference-Header-Content-Length": str(len(text) if length is None else length)}
    return ask(port, "POST", f"/v2/models/{model}/infer", text + section, {**known, **(headers or {})})


def split(answer: Answer) -> tuple[Any, bytes]:
    """The JSON of an answer, and the binary data behind it."""
    at = int(answer.headers.get("Inference-Header-Content-Length", len(answer.body)))
    return json.loads(answer.body[:at]), answer.body[at:]


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Look again and again until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


def is_closed(port: int) -> bool:
    """Does nobody listen on this port?"""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it closes just now
        pass
    return False

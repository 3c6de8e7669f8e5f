"""HTTP calls of any form: the infer documents that clients write, and bytes that none would."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.protocol.harness.grpc_calls import datatype_of, raw_of

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Reply:
    """A response. `headers` are by lower-case name."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of a refusal; its body must be {"error": text} and nothing else."""
        document = self.json()
        assert list(document) == ["error"], document
        assert isinstance(document["error"], str)
        return document["error"]


def call(
    address: tuple[str, int],
    method: str,
    path: str,
    body: bytes | str | Mapping[str, Any] | list[Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Reply:
    """One request on a connection of its own. A mapping or list is sent as JSON."""
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request(method, path, body.encode() if isinstance(body, str) else body, dict(headers or {}))
        response = connection.getresponse()
        shown = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, response.reason, shown, response.read())
    finally:
        connection.close()


def raw_call(address: tuple[str, int], data: bytes, timeout: float = 20.0) -> bytes:
    """Send bytes as they are and return all that comes until the server closes, or the deadline."""
    received = []
    with socket.create_connection(address, timeout=timeout) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            received.append(piece)
    return b"".join(received)


def infer_document(inputs: Mapping[str, np.ndarray[Any, Any]], **more: Any) -> dict[str, Any]:
    """An inference request in JSON."""
    listed = []
    for name, array in inputs.items():
        data = array.tolist() if array.dtype.kind != "O" else [element.decode() for element in array.ravel()]
        listed.append({"name": name, "datatype": datatype_of(array), "shape": list(array.shape), "data": data})
    return {"inputs": listed, **more}


def binary_body(inputs: Mapping[str, np.ndarray[Any, Any]], **more: Any) -> tuple[bytes, dict[str, str]]:
    """An inference request with binary tensors: its body, and the header that says where they begin."""
    listed, tail = [], b""
    for name, array in inputs.items():
        raw = raw_of(array)
        entry = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        listed.append({**entry, "parameters": {"binary_data_size": len(raw)}})
        tail += raw
    head = json.dumps({"inputs": listed, **more}).encode()
    return head + tail, {HEADER_LENGTH: str(len(head))}


def split_binary(reply: Reply) -> tuple[dict[str, Any], bytes]:
    """The JSON of a response with binary tensors, and the bytes behind it."""
    length = int(reply.headers[HEADER_LENGTH.lower()])
    return json.loads(reply.body[:length]), reply.body[length:]

"""Just enough of HTTP/2 to send a gRPC call that no gRPC library would."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

DATA, HEADERS, RST_STREAM, GOAWAY = 0, 1, 3, 7
END_STREAM, END_HEADERS = 1, 4


class Frame(NamedTuple):
    """One frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Encode a frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def call_head(method: str, stream: int = 1) -> bytes:
    """What a client sends to begin a gRPC call on a new connection: preface, settings, headers (each a literal, without indexing)."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(b"\x00" + _string(name) + _string(value) for name, value in headers.items())
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    return preface + frame(4, 0, 0, b"") + frame(HEADERS, END_HEADERS, stream, block)


def _string(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) < 127
    return bytes((len(raw),)) + raw


def frames(connection: socket.socket) -> Iterator[Frame]:
    """The frames that come until the connection ends."""
    with connection.makefile("rb") as file:
        while head := file.read(9):
            length = int.from_bytes(head[:3], "big")
            yield Frame(head[3], head[4], int.from_bytes(head[5:], "big"), file.read(length))

"""Reading request bodies and sending responses, with bounds on size and on how slow a client may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Final, NoReturn, TypeVar

import numpy as np
from aiohttp import web

from shoal_dataplane.codec.compression import ENCODINGS, compress, decompress
from shoal_dataplane.core.errors import Code, invalid
from shoal_dataplane.core.tensors import Buffer, Tensor
from shoal_dataplane.server.http_protocol import SERVER, STALL_SECONDS
from shoal_dataplane.server.status import http_status

OFFLOAD_BYTES: Final = 1 << 18
"""Work on more bytes than this leaves the event loop, so that health checks and other callers are served meanwhile."""

_JOIN_BYTES: Final = 1 << 16
_SEND_BYTES: Final = 1 << 20

T = TypeVar("T")


class HttpError(Exception):
    """A refusal that is about HTTP itself: its status, its text, and headers of the answer. `close` ends the connection after it."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers
        self.close = close


async def run_in(executor: Executor, size: int, function: Callable[..., T], *arguments: Any) -> T:
    """Call `function` here when it works on few bytes, else on a thread of `executor`."""
    if size <= OFFLOAD_BYTES:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)


def work_size(tensors: Sequence[Tensor]) -> int:
    """About how many bytes it takes to encode these, found without encoding them."""
    return sum(t.data.nbytes if isinstance(t.data, np.ndarray) else len(t.data) for t in tensors)


async def read_body(request: web.BaseRequest, limit: int) -> Buffer:
    """Read the body as it was sent, of at most `limit` bytes.

    One that comes in many pieces is put together once, where its Content-Length says how much room it needs.
    Raises HttpError: 400 when it is larger or broken, 408 when nothing comes for STALL_SECONDS.
    """
    content = request.content
    length = request.content_length
    if length is not None and length > limit:
        _too_large(length, limit)
    if content.is_eof():
        data = content.read_nowait(-1)
        if len(data) > limit:
            _too_large(len(data), limit)
        return data
    await _continue(request)
    try:
        if length is not None:
            return await _read_known(content, length)
        return await _read_chunked(content, limit)
    except TimeoutError:
        raise HttpError(408, f"no byte of the request body came for {STALL_SECONDS:.0f} seconds", close=True) from None
    except web.RequestPayloadError as error:
        raise HttpError(
            400, f"malformed request body: {str(error).strip().partition(chr(10))[0]}", close=True
        ) from None


async def _continue(request: web.BaseRequest) -> None:
    """Tell a client that waits for it to go on (curl does for uploads above 1 MB)."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the response has not begun


async def _read_known(content: Any, length: int) -> Buffer:
    async with asyncio.timeout(STALL_SECONDS):
        first: bytes = await content.readany()
    if len(first) == length:
        return first
    body = bytearray(length)
    at = len(first)
    body[:at] = first
    while at < length:
        async with asyncio.timeout(STALL_SECONDS):
            piece = await content.readany()
        if not piece:
            raise HttpError(400, f"malformed request body: it ends after {at} of {length} bytes", close=True)
        body[at : at + len(piece)] = piece
        at += len(piece)
    return body


async def _read_chunked(content: Any, limit: int) -> Buffer:
    pieces: list[bytes] = []
    size = 0
    while True:
        async with asyncio.timeout(STALL_SECONDS):
            piece = await content.readany()
        if not piece:
            return b"".join(pieces)
        size += len(piece)
        if size > limit:
            _too_large(size, limit)
        pieces.append(piece)


def _too_large(size: int, limit: int) -> NoReturn:
    raise HttpError(
        http_status(Code.INVALID_ARGUMENT),
        f"request body of {size} bytes or more exceeds the maximum allowed input size of {limit} bytes. "
        "Use --http-max-input-size to increase the limit.",
        close=True,
    )


async def decode_body(request: web.BaseRequest, body: Buffer, limit: int, executor: Executor) -> Buffer:
    """Undo the body's Content-Encoding. Raises ServingError, and HttpError 501 for an encoding that is not known."""
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ENCODINGS:
        message = f"Unsupported compression type '{encoding[:40]}': expected gzip, deflate or identity"
        raise HttpError(501, message, {"Accept-Encoding": ", ".join(ENCODINGS)})
    # A small body may expand to a large one.
    return await run_in(executor, len(body) * 16, decompress, encoding, body, limit)


def header_length(request: web.BaseRequest, body_length: int) -> int:
    """Return how much of the body is JSON: Inference-Header-Content-Length, or all of it. Raises ServingError(INVALID_ARGUMENT)."""
    text = request.headers.get("Inference-Header-Content-Length")
    if text is None:
        return body_length
    digits = text.strip()
    number = digits.removeprefix("-")
    if not (number.isascii() and number.isdigit()):
        raise invalid(f"Unable to parse Inference-Header-Content-Length, got: {text[:40]}")
    if digits != number or len(digits) > 18 or int(digits) > body_length:
        raise invalid(f"inference header size should be in range (0, {body_length}), got: {text[:40]}")
    return int(digits)


async def send(
    request: web.BaseRequest,
    parts: Sequence[Buffer],
    headers: dict[str, str],
    encoding: str,
    executor: Executor,
    keep_alive: bool,
) -> web.StreamResponse:
    """Send a response of several buffers, each from where it lies, or compressed by `encoding`."""
    size = sum(len(part) for part in parts)
    if encoding in ENCODINGS:
        parts = [await run_in(executor, size, compress, encoding, parts)]
        size = len(parts[0])
        headers = {**headers, "Content-Encoding": encoding}
    headers["Server"] = SERVER
    if size <= _JOIN_BYTES:
        return web.Response(body=b"".join(parts), headers=headers)
    response = web.StreamResponse(headers=headers)
    response.content_length = size
    if not keep_alive:
        response.force_close()
    await response.prepare(request)
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), _SEND_BYTES):
            await response.write(view[at : at + _SEND_BYTES])
    await response.write_eof()
    return response

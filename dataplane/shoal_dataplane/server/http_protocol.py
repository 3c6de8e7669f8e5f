"""What the HTTP server does before there is a request: aiohttp's connection handling, with our limits and our errors.

The low-level server is used, without aiohttp's application: the routes are few and fixed, and an inference passes no middleware.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

logger = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

KEEP_ALIVE_SECONDS: Final = 75.0
"""How long a connection may stay without a complete request header: idle ones, and ones that send it byte by byte."""

STALL_SECONDS: Final = 60.0
"""How long a client may take to send the next bytes of a body, or to read the next bytes of an answer."""

SWEEP_SECONDS: Final = 5.0

_LIMITS: Final[dict[str, Any]] = {
    "keepalive_timeout": KEEP_ALIVE_SECONDS,
    "read_bufsize": 1 << 18,  # bytes of a body that wait to be taken; one read of the socket
    "lingering_time": 5.0,  # to read what is left of a refused upload, so that its sender reads the answer
    "max_line_size": 8190,  # bytes
    "max_field_size": 16380,  # bytes: a bearer token fits
    "auto_decompress": False,  # codec.compression bounds what a body expands to
    "access_log": None,
}

JSON: Final = "application/json"
SERVER: Final = "shoal"


def json_response(
    body: Any, status: int = 200, headers: dict[str, str] | None = None, *, encoded: bytes | None = None
) -> web.Response:
    """A JSON response of `body`, or of text that is `encoded` already."""
    raw = msgspec.json.encode(body) if encoded is None else encoded
    return web.Response(body=raw, status=status, headers={"Content-Type": JSON, "Server": SERVER, **(headers or {})})


def error_response(message: str, status: int, headers: dict[str, str] | None = None) -> web.Response:
    """The body of every refusal: {"error": message}."""
    return json_response({"error": message}, status, headers)


class Connection(web.RequestHandler):
    """One client connection. Answers malformed HTTP in JSON, and logs it only for debugging: anybody can send it."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):  # the client is gone, there is nobody to tell
            raise exc
        if request.writer.output_size > 0:
            raise ConnectionError("the response has begun: the connection ends without the rest")
        if status >= 500:
            logger.error("answering a request of %s failed", request.remote, exc_info=exc)
            text = "internal error of the HTTP server"
        else:
            logger.debug("malformed HTTP from %s", request.remote, exc_info=exc)
            reason = (message or str(exc) or "no valid request").strip().partition("\n")[0].rstrip(":")
            text = f"malformed HTTP request: {reason}"
        response = error_response(text, status)
        response.force_close()
        return response


class Server(web.Server):
    """The connections of one listening port. When a client leaves, the task that answers it is cancelled."""

    def __init__(self, handler: Handler, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(handler, handler_cancellation=True, loop=loop)
        self._event_loop = loop
        self._transports: dict[web.RequestHandler, asyncio.Transport] = {}
        self._stalled: dict[web.RequestHandler, tuple[float, int]] = {}
        self._next_sweep = loop.call_later(SWEEP_SECONDS, self._sweep)

    def __call__(self) -> web.RequestHandler:
        return Connection(self, loop=self._event_loop, **_LIMITS)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        self._transports[handler] = transport
        super().connection_made(handler, transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._transports.pop(handler, None)
        super().connection_lost(handler, exc)

    def _sweep(self) -> None:
        """Disconnect clients that have not read a byte of what waits for them for STALL_SECONDS.

        One look at all connections every few seconds, instead of a timer around every write; also at those that are closing, which
        wait for their last bytes to be read.
        """
        self._next_sweep = self._event_loop.call_later(SWEEP_SECONDS, self._sweep)
        now = self._event_loop.time()
        stalled: dict[web.RequestHandler, tuple[float, int]] = {}
        for connection, transport in list(self._transports.items()):
            waiting = transport.get_write_buffer_size()
            if not waiting:
                continue
            since, before = self._stalled.get(connection, (now, waiting))
            if waiting != before:
                since = now
            if now - since >= STALL_SECONDS:
                transport.abort()
            else:
                stalled[connection] = (since, waiting)
        self._stalled = stalled

    def abort(self) -> None:
        """Disconnect everybody, and sweep no more."""
        self._next_sweep.cancel()
        for transport in list(self._transports.values()):
            transport.abort()

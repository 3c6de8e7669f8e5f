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

_LIMITS: Final[dict[str, Any]] = {
    "keepalive_timeout": KEEP_ALIVE_SECONDS,
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
    return web.Response(
        body=raw, status=status, headers={"Content-Type": JSON, "Server": SERVER, **(headers or {})}
    )


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

    def __call__(self) -> web.RequestHandler:
        return Connection(self, loop=self._event_loop, **_LIMITS)

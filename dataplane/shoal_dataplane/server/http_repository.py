"""POST /v2/repository/...: the index, load and unload (triton.md A11-A14, A17)."""

from __future__ import annotations

import binascii
from concurrent.futures import Executor
from typing import Any, Final

import msgspec
from aiohttp import web

from shoal_dataplane.codec.kserve_json import decode_json
from shoal_dataplane.core.errors import Reason, invalid, unavailable
from shoal_dataplane.core.tensors import Buffer
from shoal_dataplane.repository.types import RepositoryParameter
from shoal_dataplane.server.http_context import HttpContext
from shoal_dataplane.server.http_io import decode_body, read_body
from shoal_dataplane.server.http_protocol import SERVER, json_response

MAX_OPERATIONS: Final = 64
"""Loads and unloads that may be under way or wait here. A load takes as long as its model does, and holds its request's files."""


class _IndexRequest(msgspec.Struct):
    ready: bool = False


class _ControlRequest(msgspec.Struct):
    parameters: dict[str, Any] | None = None


_INDEX = msgspec.json.Decoder(_IndexRequest)
_CONTROL = msgspec.json.Decoder(_ControlRequest)


class RepositoryHandlers:
    """The repository's verbs. `control` has the threads on which models are loaded and unloaded."""

    def __init__(self, context: HttpContext, control: Executor) -> None:
        self._context = context
        self._control = control
        self._under_way = 0

    async def index(self, source: web.BaseRequest, repository: str) -> web.Response:
        """List the models. Raises ServingError and HttpError."""
        request = await self._document(source, _INDEX, _IndexRequest())
        context = self._context
        entries = await context.loop.run_in_executor(
            context.workers, context.service.repository_index, repository, request.ready
        )
        return json_response([{key: value for key, value in entry._asdict().items() if value} for entry in entries])

    async def load(self, source: web.BaseRequest, repository: str, model: str) -> web.Response:
        """Load or reload a model; answers when it is ready. Raises ServingError and HttpError."""
        with self._operation():
            request = await self._document(source, _CONTROL, _ControlRequest())
            parameters = load_parameters(request.parameters or {})
            del request
            await self._context.loop.run_in_executor(
                self._control, self._context.service.load_model, repository, model, parameters
            )
        return _done()

    async def unload(self, source: web.BaseRequest, repository: str, model: str) -> web.Response:
        """Unload a model; answers when it is gone. Raises ServingError and HttpError."""
        with self._operation():
            request = await self._document(source, _CONTROL, _ControlRequest())
            dependents = (request.parameters or {}).get("unload_dependents", False)
            if type(dependents) is not bool:
                raise invalid(f"Unable to parse 'unload_dependents': expected true or false, got {dependents!r}")
            await self._context.loop.run_in_executor(
                self._control, self._context.service.unload_model, repository, model, dependents
            )
        return _done()

    def _operation(self) -> _Operation:
        if self._under_way >= MAX_OPERATIONS:
            raise unavailable(
                f"{MAX_OPERATIONS} loads and unloads are under way already: try again later", Reason.QUEUE_FULL
            )
        return _Operation(self)

    async def _document(self, source: web.BaseRequest, decoder: msgspec.json.Decoder[Any], empty: Any) -> Any:
        context = self._context
        body: Buffer = await read_body(source, context.max_bytes)
        body = await decode_body(source, body, context.max_bytes, context.workers)
        return decode_json(decoder, body, context.limits) if len(body) else empty


class _Operation:
    """Counts a load or unload while it is under way."""

    def __init__(self, handlers: RepositoryHandlers) -> None:
        self._handlers = handlers

    def __enter__(self) -> None:
        self._handlers._under_way += 1

    def __exit__(self, *_: object) -> None:
        self._handlers._under_way -= 1


def load_parameters(values: dict[str, Any]) -> dict[str, RepositoryParameter]:
    """Return the parameters of a load: `file:` ones, base64 in JSON, become bytes. Which names there are is the repository's matter.

    Raises ServingError(INVALID_ARGUMENT) for a value that is no string, integer or boolean, and for base64 that is none.
    """
    parameters: dict[str, RepositoryParameter] = {}
    for name, value in values.items():
        if type(value) not in (str, int, bool):
            raise invalid(f"load parameter '{name}' has invalid type: expected a string, an integer or a boolean")
        if name.startswith("file:"):
            if not isinstance(value, str):
                raise invalid(f"load parameter '{name}' must be a string that holds the file in base64")
            try:
                value = binascii.a2b_base64(value, strict_mode=True)
            except ValueError as error:
                raise invalid(f"Unable to decode the base64 of load parameter '{name}': {error}") from None
        parameters[name] = value
    return parameters


def _done() -> web.Response:
    return web.Response(headers={"Content-Type": "application/json", "Server": SERVER})

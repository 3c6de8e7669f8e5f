"""One HTTP request from its first line to its answer: find the route, call the handler, turn errors into responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web

from shoal_dataplane.core.errors import Reason, ServingError, invalid, unavailable
from shoal_dataplane.server import http_health, http_models
from shoal_dataplane.server.http_context import HttpContext
from shoal_dataplane.server.http_generate import generate, generate_stream
from shoal_dataplane.server.http_infer import infer
from shoal_dataplane.server.http_io import HttpError
from shoal_dataplane.server.http_protocol import error_response
from shoal_dataplane.server.http_repository import RepositoryHandlers
from shoal_dataplane.server.http_routes import Action, Route
from shoal_dataplane.server.status import http_status

logger = logging.getLogger(__name__)

_INFERENCE: Final = {Action.INFER: infer, Action.GENERATE: generate, Action.GENERATE_STREAM: generate_stream}
_MODELS: Final = {
    Action.MODEL_METADATA: http_models.model_metadata,
    Action.MODEL_CONFIG: http_models.model_config,
    Action.MODEL_STATISTICS: http_models.model_statistics,
    Action.MODEL_READY: http_health.model_ready,
}
_SERVER: Final = {
    Action.SERVER_METADATA: http_models.server_metadata,
    Action.LIVE: http_health.live,
    Action.READY: http_health.ready,
    Action.STARTUP_PROBE: http_health.started,
    Action.LIVE_PROBE: http_health.live,
    Action.READY_PROBE: http_health.ready,
}
_NOT_BUILT: Final = {
    Action.TRACE: "the trace extension",
    Action.LOGGING: "the logging extension",
    Action.SHARED_MEMORY: "the shared memory extension",
}
_SHUTTING_DOWN: Final = "HTTP server is shutting down and has stopped accepting new requests."


class Dispatcher:
    """Handles the requests of one port. `in_flight` has the tasks that answer one at the moment, by connection."""

    def __init__(
        self,
        context: HttpContext,
        repository: RepositoryHandlers,
        find_route: Callable[[str], Route | None],
        metrics: bool,
    ) -> None:
        self._context = context
        self._repository = repository
        self._find_route = find_route
        self._metrics = metrics
        self.in_flight: dict[object, asyncio.Task[object]] = {}
        self.stopping = False

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request. Raises only CancelledError and ConnectionError: the client is gone."""
        task = asyncio.current_task()
        assert task is not None
        self.in_flight[request.protocol] = task
        try:
            response = await self._answer(request)
            if self._context.draining:
                response.force_close()
            return response
        finally:
            del self.in_flight[request.protocol]

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._route(request)
        except ServingError as error:
            return error_response(error.message, http_status(error.code))
        except HttpError as error:
            response = error_response(error.message, error.status, error.headers)
            if error.close:
                response.force_close()
            return response
        except asyncio.CancelledError:
            if not self.stopping or request.transport is None or request.writer.output_size:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return error_response("the server stopped before it could answer", 503)
        except ConnectionError:
            raise
        except Exception:
            logger.exception("handling %s %s failed", request.method, request.raw_path[:200])
            if request.writer.output_size:
                raise ConnectionResetError("failed in the middle of a response") from None
            return error_response("internal error of the HTTP server", 500)

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        route = self._find_route(request.raw_path)
        if route is None or (route.action is Action.METRICS and not self._metrics):
            raise HttpError(404, "Not Found")
        if request.method not in route.methods:
            raise HttpError(405, "Method Not Allowed", {"Allow": ", ".join(route.methods)})
        context, action = self._context, route.action
        inference = _INFERENCE.get(action)
        if inference is not None:
            if context.draining:
                raise context.refused(unavailable(_SHUTTING_DOWN, Reason.SHUTTING_DOWN))
            try:
                return await inference(context, request, route.model, route.version)
            except HttpError as error:
                context.refused(invalid(error.message))
                raise
        of_model = _MODELS.get(action)
        if of_model is not None:
            return of_model(context, route.model, route.version)
        of_server = _SERVER.get(action)
        if of_server is not None:
            return of_server(context)
        if action is Action.METRICS:
            return await http_health.metrics(context, request)
        if action is Action.INDEX:
            return await self._repository.index(request, route.repository)
        if action is Action.LOAD:
            return await self._repository.load(request, route.repository, route.model)
        if action is Action.UNLOAD:
            return await self._repository.unload(request, route.repository, route.model)
        raise HttpError(501, f"this server does not support {_NOT_BUILT[action]}")

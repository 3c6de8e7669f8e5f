"""Health, readiness, probes and metrics (triton.md J; not ready is 503 with the reason, where Triton says 400 without one)."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from shoal_dataplane.server.http_context import HttpContext
from shoal_dataplane.server.http_protocol import SERVER, json_response
from shoal_dataplane.service import Readiness
from shoal_dataplane.telemetry.exposition import accepts_openmetrics


def started(context: HttpContext) -> web.Response:
    """Has the first load of the repository ended? For a startup probe."""
    return _answer("started", context.service.started())


def live(context: HttpContext) -> web.Response:
    """Can the process serve at all? For a liveness probe."""
    return _answer("live", Readiness(context.service.live(), "the server is not live: it is exiting or cannot serve"))


def ready(context: HttpContext) -> web.Response:
    """May the server get traffic? For a readiness probe."""
    return _answer("ready", context.service.ready())


def model_ready(context: HttpContext, model: str, version: str) -> web.Response:
    """Is this version of a model (the highest, for "") ready? Raises ServingError."""
    return _answer("ready", context.service.model_ready(model, version), {"name": model})


def _answer(word: str, state: Readiness, shown: dict[str, Any] | None = None) -> web.Response:
    body = {**(shown or {}), word: state.ready}
    if state.ready:
        return json_response(body)
    return json_response({**body, "error": state.reason or f"not {word}"}, 503)


async def metrics(context: HttpContext, source: web.BaseRequest) -> web.Response:
    """The exposition, in OpenMetrics for a client that accepts it, else in Prometheus' text format."""
    openmetrics = accepts_openmetrics(source.headers.get("Accept", ""))
    text, content_type = await context.loop.run_in_executor(context.workers, context.service.metrics_text, openmetrics)
    return web.Response(body=text, headers={"Content-Type": content_type, "Server": SERVER})

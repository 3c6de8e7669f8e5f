"""GET: what the server is, what its models are, and how they do (triton.md I1, I16, L1)."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from shoal_dataplane.codec.proto_json import to_json
from shoal_dataplane.server.http_context import HttpContext
from shoal_dataplane.server.http_protocol import json_response


def server_metadata(context: HttpContext) -> web.Response:
    """Name, version and extensions."""
    return json_response(to_json(context.service.server_metadata()))


def model_metadata(context: HttpContext, model: str, version: str) -> web.Response:
    """Versions, platform, inputs and outputs. Raises ServingError."""
    return json_response(to_json(context.service.model_metadata(model, version)))


def model_config(context: HttpContext, model: str, version: str) -> web.Response:
    """The completed configuration. Raises ServingError."""
    return json_response(to_json(context.service.model_config(model, version)))


def model_statistics(context: HttpContext, model: str, version: str) -> web.Response:
    """Statistics of one version, of all of a model's versions, or of all models. Raises ServingError."""
    shown: dict[str, Any] = to_json(context.service.model_statistics(model, version), unset_messages=True)
    return json_response(shown)

"""What the handlers of the HTTP door share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Final

from aiohttp import web

from shoal_dataplane.codec.json_data import Limits
from shoal_dataplane.core.errors import ServingError, invalid
from shoal_dataplane.core.parameter import Parameter
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.options import HttpOptions
from shoal_dataplane.server.http_reply import Mailbox
from shoal_dataplane.service import InferenceService

CARRIED: Final = ("authorization", "traceparent", "tracestate")
"""Headers that always travel in the request's metadata."""

RESERVED: Final = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
"""Parameters with a meaning of their own, which no forwarded header may set (triton.md I7)."""


def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """Compile --http-header-forward-pattern. Raises ServingError(INVALID_ARGUMENT) for one that is no regular expression."""
    if not pattern:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise invalid(f"--http-header-forward-pattern '{pattern}' is not a regular expression: {error}") from None


class HttpContext:
    """The service behind the door, and the door's own means. Handlers run on `loop`; `workers` takes what would hold it up."""

    def __init__(
        self,
        service: InferenceService,
        options: HttpOptions,
        loop: asyncio.AbstractEventLoop,
        workers: Executor,
        forward: re.Pattern[str] | None,
    ) -> None:
        self.service = service
        self.loop = loop
        self.workers = workers
        self.mailbox = Mailbox(loop)
        self.max_bytes = options.max_input_bytes
        self.limits = Limits(options.max_input_bytes, options.max_json_depth)
        self.draining = False
        self._forward = forward

    def submit(self, request: InferRequest) -> None:
        """Hand a request to the core loop; its handle gets the answer."""
        service = self.service
        service.loop.post(lambda: service.submit(request))

    def cancel(self, request: InferRequest) -> None:
        """The client of a submitted request is gone."""
        service = self.service
        service.loop.post(lambda: service.cancel(request))

    def refused(self, error: ServingError) -> ServingError:
        """Count a request that the door itself refuses."""
        self.service.refused(error)
        return error

    def carry(self, source: web.BaseRequest, request: InferRequest) -> None:
        """Put into `request` what came in headers. Raises ServingError(INVALID_ARGUMENT) for a forwarded header with a reserved name."""
        headers = source.headers
        metadata = {name: headers[name] for name in CARRIED if name in headers}
        if self._forward is not None:
            forwarded = self._forwarded(source)
            metadata.update((name.lower(), str(value)) for name, value in forwarded.items())
            request.parameters = {**forwarded, **request.parameters}
        if metadata:
            request.metadata = metadata

    def _forwarded(self, source: web.BaseRequest) -> Mapping[str, Parameter]:
        assert self._forward is not None
        found: dict[str, Parameter] = {}
        for raw_name, raw_value in source.raw_headers:
            name = raw_name.decode(errors="replace")
            if self._forward.search(name):
                if name in RESERVED or name.startswith("triton_"):
                    raise invalid(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
                found[name] = raw_value.decode(errors="replace")
        return found

"""preserve_ordering: responses leave in the order in which their requests came, whatever order they are ready in."""

from __future__ import annotations

from collections import deque

from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse


class ResponseOrder:
    """Holds back the responses that are ready before an older request's. Errors keep the order too. Bounded by the queue itself."""

    def __init__(self) -> None:
        self._waiting: deque[InferRequest] = deque()
        self._ready: dict[int, InferResponse] = {}

    def expect(self, request: InferRequest) -> None:
        """`request` was queued."""
        self._waiting.append(request)

    def complete(self, request: InferRequest, response: InferResponse) -> None:
        """The final response to `request` is there: send it and all that waited for it, in order."""
        self._ready[id(request)] = response
        waiting, ready = self._waiting, self._ready
        while waiting:
            held = ready.pop(id(waiting[0]), None)
            if held is None:
                return
            oldest = waiting.popleft()
            oldest.handle.respond(oldest, held)

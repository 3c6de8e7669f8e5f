"""Which of many requests runs out of time next."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from shoal_dataplane.core.request import InferRequest


class ExpiryIndex:
    """Requests by the time at which they expire. Every operation is O(log n) or, amortised, O(1).

    The heap holds numbers only: a request that leaves early, and its tensors, are freed at once. What it leaves in the heap is
    swept out when most of the heap is such remains.
    """

    __slots__ = ("_heap", "_requests", "_sequence", "_tokens")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []  # (when_ns, token)
        self._requests: dict[int, InferRequest] = {}
        self._tokens: dict[InferRequest, int] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, request: InferRequest, when_ns: int) -> None:
        """Watch a request that is not watched yet. Of two with the same expiry, the one added first comes first."""
        self._sequence = token = self._sequence + 1
        self._tokens[request] = token
        self._requests[token] = request
        heapq.heappush(self._heap, (when_ns, token))

    def discard(self, requests: Iterable[InferRequest]) -> None:
        """Forget requests; those that are not watched are passed over."""
        tokens, live = self._tokens, self._requests
        for request in requests:
            token = tokens.pop(request, None)
            if token is not None:
                del live[token]
        if len(self._heap) > 2 * len(tokens) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in live]
            heapq.heapify(self._heap)

    def next_ns(self) -> int | None:
        """The earliest expiry, None when nothing is watched."""
        heap = self._heap
        while heap and heap[0][1] not in self._requests:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_ns: int) -> tuple[InferRequest, int] | None:
        """Remove the request that expires first, if that is at `now_ns` or before, and return it with its expiry."""
        when_ns = self.next_ns()
        if when_ns is None or when_ns > now_ns:
            return None
        token = heapq.heappop(self._heap)[1]
        request = self._requests.pop(token)
        del self._tokens[request]
        return request, when_ns

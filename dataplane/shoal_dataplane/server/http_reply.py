"""How a response finds its way back: from the core loop's thread to the task that waits on the HTTP loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse

MAX_PENDING: Final = 1024
"""Responses of one stream that its client has not read yet. One more, and the request is cancelled."""


class Mailbox:
    """Calls from any thread onto an event loop. One wake-up carries all that were posted since the last: the answers to a batch."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._awake = False

    def post(self, callback: Callable[[Any], None], argument: Any) -> None:
        """Call `callback(argument)` on the loop's thread soon. Nothing happens when the loop has ended."""
        self._items.append((callback, argument))
        if not self._awake:
            self._awake = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._items.clear()

    def _run(self) -> None:
        self._awake = False  # before the first look: what is posted from here on is seen below, or wakes the loop again
        items = self._items
        while items:
            callback, argument = items.popleft()
            callback(argument)


class SingleReply:
    """The handle of a request that wants one response. `wait` returns it; `count` says how many there really were."""

    __slots__ = ("_first", "_future", "_mailbox", "count")

    def __init__(self, mailbox: Mailbox, loop: asyncio.AbstractEventLoop) -> None:
        self._mailbox = mailbox
        self._future: asyncio.Future[InferResponse] = loop.create_future()
        self._first: InferResponse | None = None
        self.count = 0

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """Core loop's thread."""
        self._mailbox.post(self._receive, response)

    def _receive(self, response: InferResponse) -> None:
        if not is_empty_final(response):
            self.count += 1
        self._first = self._first or response
        if response.final and not self._future.done():
            self._future.set_result(self._first)

    async def wait(self) -> InferResponse:
        """Return the first response, once the last one has come."""
        return await self._future


class StreamReply:
    """The handle of a request that wants its responses as they come. `too_slow` is called when MAX_PENDING of them wait to be taken."""

    __slots__ = ("_mailbox", "_responses", "_too_slow", "_waiter", "ended")

    def __init__(self, mailbox: Mailbox, too_slow: Callable[[], None]) -> None:
        self._mailbox = mailbox
        self._responses: deque[InferResponse] = deque()
        self._too_slow = too_slow
        self._waiter: asyncio.Future[None] | None = None
        self.ended = False

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """Core loop's thread."""
        self._mailbox.post(self._receive, response)

    def _receive(self, response: InferResponse) -> None:
        self.ended = response.final
        if len(self._responses) >= MAX_PENDING:
            self._too_slow()
        elif not is_empty_final(response):
            self._responses.append(response)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> InferResponse | None:
        """Return the next response, None when the last one has been taken."""
        while not self._responses:
            if self.ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._responses.popleft()


def is_empty_final(response: InferResponse) -> bool:
    """Does this response only say that there are no more?"""
    return response.final and response.error is None and not response.outputs

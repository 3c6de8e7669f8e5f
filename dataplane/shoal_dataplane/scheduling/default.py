"""The default scheduler: first in, first out, each request executed alone (triton.md C1)."""

from __future__ import annotations

from typing import Final

from shoal_dataplane.scheduling.base import Batch, Cut, Decision
from shoal_dataplane.scheduling.policy import PriorityLevels, QueuePolicy
from shoal_dataplane.scheduling.queue import IDLE, RequestQueue


class DefaultScheduler(RequestQueue):
    """One queue without levels or a policy to configure, one request a batch whatever its own batch size.

    Triton's has no timeouts; here a request's own `timeout_us` and deadline hold for every scheduler.
    """

    preserve_ordering: Final = False

    def __init__(self, *, default_limit: int = 0, hold_until: int = 0) -> None:
        levels = PriorityLevels(default_policy=QueuePolicy(allow_override=True))
        super().__init__(levels, default_limit=default_limit, hold_until=hold_until)

    def next_batch(self, now_ns: int) -> Decision:
        """The request at the front, once `hold_until` requests have come."""
        if self._hold > 0:
            return IDLE
        if self._expiry:
            self._sweep(now_ns)
        while self._length:
            request = next(iter(self._waiting()))
            if not request.cancelled:
                self._take((request,))
                return Decision(Batch([request], request.batch_size, Cut.SINGLE), None)
            self._drop_cancelled((request,), now_ns)
        return IDLE

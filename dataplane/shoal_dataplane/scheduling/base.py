"""What every scheduler is: a pure queue that says, given the time, which requests run together now.

A scheduler owns no thread, no timer and no clock: the model's pump (execution.pump) calls it on the core loop's thread, gives
it the time, and arms one timer for `wake_ns`.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

from shoal_dataplane.core.errors import ServingError
from shoal_dataplane.core.request import InferRequest


class Cut(enum.StrEnum):
    """Why a batch was closed: the `reason` label of shoal_batch_cut_total. Part of the metrics contract.

    PREFERRED: at a preferred size. FULL: at max_batch_size, or past the largest preferred size. DELAY: the oldest request had waited for
    max_queue_delay. NO_DELAY: all that was there, none being configured. SHAPE: the next request cannot share a batch with these.
    OVERSIZE: with the next request it would be too large. SINGLE: the model runs requests one by one.
    """

    PREFERRED = "preferred_size"
    FULL = "full"
    DELAY = "delay_expired"
    NO_DELAY = "no_delay"
    SHAPE = "shape_mismatch"
    OVERSIZE = "next_too_large"
    SINGLE = "single"


class Batch(NamedTuple):
    """Requests that run together, in order. `size` is the sum of their batch sizes."""

    requests: list[InferRequest]
    size: int
    cut: Cut


class Decision(NamedTuple):
    """What to do now: run `batch` (then ask again), or, with no batch, ask again at `wake_ns` (None: when a request comes)."""

    batch: Batch | None
    wake_ns: int | None


class Scheduler(Protocol):
    """The contract of default, dynamic and (later) sequence scheduling. Not thread-safe: core loop's thread only."""

    def enqueue(self, request: InferRequest, now_ns: int) -> None:
        """Take a normalised request and stamp `queued_ns`. Raises ServingError (UNAVAILABLE, reason QUEUE_FULL) when the queue is full."""

    def next_batch(self, now_ns: int) -> Decision:
        """Form the next batch, by the scheduler's rule. Called only while an instance is free. Cancelled requests are never in it."""

    def expire(self, now_ns: int) -> list[tuple[InferRequest, ServingError]]:
        """Remove and return the queued requests whose queue timeout or deadline has passed, each with its error. Called also while
        every instance is busy; `next_expiry_ns` says when."""

    def next_expiry_ns(self) -> int | None:
        """The earliest time at which `expire` could return something, None when nothing in the queue can expire."""

    def remove(self, request: InferRequest) -> bool:
        """Take a cancelled request out of the queue; False when it is not queued (any more)."""

    def pending(self) -> int:
        """Requests waiting in the queue."""

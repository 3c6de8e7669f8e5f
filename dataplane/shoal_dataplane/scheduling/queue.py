"""The queue under every scheduler: levels in order, limits, timeouts, deadlines and cancellation.

A request waits in the lane of its priority level. A lane has two lines: `fresh`, and `delayed` for those that outstayed a
timeout whose action is DELAY. Requests are served level by level, in each level first the fresh, then the delayed ones
(triton.md C7, C8).
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from shoal_dataplane.core.errors import ServingError, cancelled
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.scheduling.base import Decision
from shoal_dataplane.scheduling.expiry import ExpiryIndex
from shoal_dataplane.scheduling.policy import (
    FOREVER_NS,
    PriorityLevels,
    QueuePolicy,
    deadline_passed,
    queue_full,
    timeout_expired,
)

IDLE: Final = Decision(None, None)
"""Nothing to run, and nothing to wait for but a request."""

Line = OrderedDict[InferRequest, None]
"""Requests in order of arrival. Not a deque: a cancelled request leaves from the middle in O(1), and its tensors with it."""


class Lane:
    """The requests that wait at one level, under one policy."""

    __slots__ = ("delayed", "fresh", "level", "limit", "policy", "timed")

    def __init__(self, level: int, policy: QueuePolicy) -> None:
        self.level = level
        self.policy = policy
        self.limit = policy.max_queue_size
        self.timed = policy.timeout_ns > 0
        self.fresh: Line = OrderedDict()
        self.delayed: Line = OrderedDict()


class RequestQueue:
    """All of a scheduler but its rule: `next_batch` is a subclass's. See scheduling.base.Scheduler for the methods' contract.

    `default_limit` bounds the requests at levels whose policy sets no `max_queue_size`, all together; 0 is no bound. `hold_until`
    is Triton's TRITONSERVER_DELAY_SCHEDULER: no batch is formed before so many requests have been queued, once.

    A request has expired when the time *is* its timeout or deadline, so that a timer set to `next_expiry_ns` always finds it.
    """

    def __init__(self, levels: PriorityLevels, *, default_limit: int = 0, hold_until: int = 0) -> None:
        self._levels = levels
        self._default_limit = default_limit or sys.maxsize
        self._hold = hold_until
        self._lanes: dict[int, Lane] = {}
        self._order: list[Lane] = []
        self._single = None if levels.count else self._open_lane(0)
        self._length = 0
        self._rows = 0
        self._limited = 0  # requests in lanes that have a limit of their own
        self._expiry = ExpiryIndex()
        self._dropped: dict[InferRequest, tuple[int, ServingError]] = {}  # taken out, not yet fetched by `expire`
        # A subclass sets these when it waits for more requests. Cleared by every change of the queue that could matter to it: all but
        # the arrival of a request, with the same batch key, at its very end.
        self._quiet = False
        self._quiet_key: Any = None

    def enqueue(self, request: InferRequest, now_ns: int) -> None:
        """Take a request and stamp `queued_ns`. Raises ServingError (UNAVAILABLE, reason QUEUE_FULL) when its level is full."""
        lane = self._single or self._lane_of(request)
        if lane.limit:
            if len(lane.fresh) + len(lane.delayed) >= lane.limit:
                raise queue_full(request)
            self._limited += 1
        elif self._length - self._limited >= self._default_limit:
            if not lane.fresh and not lane.delayed:
                self._close_lane(lane)
            raise queue_full(request, self._default_limit)
        if lane.timed or request.timeout_us or request.deadline_ns is not None:
            self._watch(request, lane, now_ns)
        if self._quiet and (request.batch_key != self._quiet_key or lane.delayed or lane is not self._order[-1]):
            self._quiet = False
        request.queued_ns = now_ns
        request.state = lane
        lane.fresh[request] = None
        self._length += 1
        self._rows += request.batch_size
        if self._hold:
            self._hold -= 1

    def expire(self, now_ns: int) -> list[tuple[InferRequest, ServingError]]:
        """Hand out the requests that expired (or turned out to be cancelled while a batch was formed), each with its error."""
        self._sweep(now_ns)
        dropped = [(request, error) for request, (_, error) in self._dropped.items()]
        self._dropped.clear()
        return dropped

    def next_expiry_ns(self) -> int | None:
        """When `expire` has something to do; a time in the past when it has already. None when nothing can expire."""
        for when_ns, _ in self._dropped.values():
            return when_ns
        return self._expiry.next_ns()

    def remove(self, request: InferRequest) -> bool:
        """Take a cancelled request out, in O(1); False when it is not here (any more)."""
        if self._dropped.pop(request, None) is not None:
            return True
        lane = request.state
        if not isinstance(lane, Lane) or self._lanes.get(lane.level) is not lane:
            return False
        if request not in lane.fresh and request not in lane.delayed:
            return False
        self._take((request,))
        self._quiet = False
        return True

    def pending(self) -> int:
        """Requests waiting in the queue, with those that have expired until `expire` hands them out."""
        return self._length + len(self._dropped)

    def _waiting(self) -> Iterable[InferRequest]:
        """The requests in the order in which they are served. The queue must not change while this is read."""
        single = self._single
        if single is not None and not single.delayed:
            return single.fresh
        return chain.from_iterable(self._lines())

    def _lines(self) -> Iterator[Line]:
        for lane in self._order:
            yield lane.fresh
            yield lane.delayed

    def _in_arrival_order(self) -> bool:
        """Is `_waiting` ordered by arrival, so that its first request is its oldest?"""
        return len(self._order) == 1 and not self._order[0].delayed

    def _take(self, requests: Sequence[InferRequest]) -> None:
        """Take waiting requests out."""
        single = self._single
        rows = 0
        if single is not None and not single.delayed:
            fresh = single.fresh
            for request in requests:
                rows += request.batch_size
                del fresh[request]
            if single.limit:
                self._limited -= len(requests)
        else:
            for request in requests:
                rows += request.batch_size
                lane = request.state
                assert isinstance(lane, Lane)
                del (lane.fresh if request in lane.fresh else lane.delayed)[request]
                if lane.limit:
                    self._limited -= 1
                if not lane.fresh and not lane.delayed:
                    self._close_lane(lane)
        self._length -= len(requests)
        self._rows -= rows
        if self._expiry:
            self._expiry.discard(requests)

    def _drop_cancelled(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        """Take out requests that were cancelled without `remove`; `expire` hands them out."""
        self._take(requests)
        for request in requests:
            self._dropped[request] = (now_ns, cancelled())

    def _watch(self, request: InferRequest, lane: Lane, now_ns: int) -> None:
        """Note when the request expires, if it does."""
        when_ns = request.deadline_ns if request.deadline_ns is not None else FOREVER_NS
        timeout_ns = lane.policy.timeout_of(request)
        if timeout_ns:
            when_ns = min(when_ns, now_ns + timeout_ns)
        if when_ns < FOREVER_NS:
            self._expiry.add(request, when_ns)

    def _sweep(self, now_ns: int) -> None:
        """Drop the requests that have expired, or put them into the delayed line."""
        while (due := self._expiry.pop_due(now_ns)) is not None:
            request, when_ns = due
            self._quiet = False
            lane = request.state
            assert isinstance(lane, Lane)
            deadline_ns = request.deadline_ns
            if deadline_ns is not None and deadline_ns <= when_ns:
                self._take((request,))
                self._dropped[request] = (when_ns, deadline_passed(now_ns - request.queued_ns))
            elif lane.policy.delay:
                del lane.fresh[request]
                lane.delayed[request] = None
                if deadline_ns is not None and deadline_ns < FOREVER_NS:
                    self._expiry.add(request, deadline_ns)
            else:
                self._take((request,))
                self._dropped[request] = (when_ns, timeout_expired())

    def _lane_of(self, request: InferRequest) -> Lane:
        level = self._levels.level_of(request)
        lane = self._lanes.get(level)
        return lane if lane is not None else self._open_lane(level)

    def _open_lane(self, level: int) -> Lane:
        lane = self._lanes[level] = Lane(level, self._levels.policy_of(level))
        self._order.insert(bisect_left(self._order, level, key=_level), lane)
        return lane

    def _close_lane(self, lane: Lane) -> None:
        """Forget an empty lane: there may be as many levels as there are requests (not when there is one level for all)."""
        if lane is not self._single:
            del self._lanes[lane.level]
            del self._order[bisect_left(self._order, lane.level, key=_level)]


def _level(lane: Lane) -> int:
    return lane.level

"""The dynamic batcher: requests that wait together run together, by Triton's rule (triton.md C2-C14).

The rule, for preferred sizes P with the largest M, a batch limit B and a queue delay D (in rows, the sum of batch sizes):
walk the queue in order and count up. Remember the longest prefix whose size is in P ("best"); if none is found before the next
request would cross M, the prefix up to there is best. Stop where B would be crossed or where the next request cannot share a
batch. Then, while the oldest request of the walk is younger than D (always, with D = 0), run the best prefix if there is one.
Else run everything walked if the walk was stopped, if it reached M, if D is over, or if D is 0. Else wait for more.

Triton keeps a cursor between two looks at the queue. Here a look that ends in waiting leaves its conclusion instead (`_quiet`:
nothing can be decided before so many rows have come or D is over), which gives the same decisions: a walk that ends in waiting
has walked the whole queue and found no best prefix, so a new walk would find the same as one resumed at the cursor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from typing import Any

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import invalid
from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.scheduling.base import Batch, Cut, Decision
from shoal_dataplane.scheduling.policy import FOREVER_NS, PriorityLevels, levels_from_config
from shoal_dataplane.scheduling.queue import IDLE, RequestQueue


class DynamicScheduler(RequestQueue):
    """Forms batches of up to `max_batch_size` rows (0 counts as 1: the model does not batch and every request runs alone).

    `preferred` are batch sizes between 1 and `max_batch_size`; none means `max_batch_size` alone. `delay_ns` is how long the
    oldest request waits for company. `preserve_ordering` is only carried here: it concerns responses. `default_limit` and
    `hold_until` are the queue's (see RequestQueue).
    """

    def __init__(
        self,
        max_batch_size: int,
        *,
        preferred: Collection[int] = (),
        delay_ns: int = 0,
        preserve_ordering: bool = False,
        levels: PriorityLevels | None = None,
        default_limit: int = 0,
        hold_until: int = 0,
    ) -> None:
        super().__init__(levels or PriorityLevels(), default_limit=default_limit, hold_until=hold_until)
        self.preserve_ordering = preserve_ordering
        self._limit = max(1, max_batch_size)
        self._sizes = sorted(set(preferred)) or [self._limit]
        self._preferred = frozenset(self._sizes)
        self._largest = self._sizes[-1]
        self._delay_ns = min(delay_ns, FOREVER_NS)
        self._quiet_until_ns = 0
        self._quiet_rows = 0
        self._wait = IDLE

    def next_batch(self, now_ns: int) -> Decision:
        """Form a batch by the rule at the top of this file, or say when to ask again."""
        if self._hold > 0:
            return IDLE
        if self._expiry:
            self._sweep(now_ns)
        if self._quiet and now_ns < self._quiet_until_ns and self._rows < self._quiet_rows:
            return self._wait if not self._expiry else self._wait_or_expiry()
        if not self._length:
            return IDLE

        limit, largest, preferred, delay_ns = self._limit, self._largest, self._preferred, self._delay_ns
        # Past M only a delay that is over lets a batch grow: without a delay the walk ends there.
        enough = limit if delay_ns else largest
        walked: list[InferRequest] = []
        gone: list[InferRequest] = []
        size = best = mark = 0
        key: Any = None
        stopped: Cut | None = None
        for request in self._waiting():
            if request.cancelled:
                gone.append(request)
                continue
            total = size + request.batch_size
            if not walked:
                key = request.batch_key
            else:
                if total > largest and not best:
                    best, mark = size, len(walked)
                if total > enough:
                    stopped = Cut.OVERSIZE
                    break
                if request.batch_key != key:
                    stopped = Cut.SHAPE
                    break
            walked.append(request)
            size = total
            if size in preferred:
                best, mark = size, len(walked)
            if size >= enough:
                break
        if gone:
            self._drop_cancelled(gone, now_ns)
        if not walked:
            return IDLE

        over = False
        if delay_ns:
            oldest_ns = walked[0].queued_ns if self._in_arrival_order() else min(r.queued_ns for r in walked)
            over = now_ns - oldest_ns >= delay_ns
        if best and not over:
            if mark < len(walked):
                del walked[mark:]
            return self._run(walked, best, Cut.OVERSIZE if best < largest else Cut.FULL)
        if stopped is not None:
            return self._run(walked, size, stopped)
        if size >= largest:
            return self._run(walked, size, Cut.FULL)
        if over or not delay_ns:
            return self._run(walked, size, Cut.DELAY if delay_ns else Cut.NO_DELAY)
        self._quiet = True
        self._quiet_key = key
        self._quiet_until_ns = oldest_ns + delay_ns
        self._quiet_rows = self._sizes[bisect_right(self._sizes, size)]
        self._wait = Decision(None, self._quiet_until_ns)
        return self._wait if not self._expiry else self._wait_or_expiry()

    def _run(self, requests: list[InferRequest], size: int, cut: Cut) -> Decision:
        self._take(requests)
        self._quiet = False
        if self._limit == 1:
            cut = Cut.SINGLE
        elif size >= self._limit:
            cut = Cut.FULL
        elif size in self._preferred:
            cut = Cut.PREFERRED
        return Decision(Batch(requests, size, cut), None)

    def _wait_or_expiry(self) -> Decision:
        """Ask again when a request expires, too: what is left may then be a preferred size."""
        expiry_ns = self._expiry.next_ns()
        return self._wait if expiry_ns is None or expiry_ns >= self._quiet_until_ns else Decision(None, expiry_ns)


def dynamic_from_config(config: mc.ModelConfig, *, default_limit: int = 0, hold_until: int = 0) -> DynamicScheduler:
    """Build the dynamic batcher of `config.dynamic_batching`.

    Raises ServingError(INVALID_ARGUMENT) for a preferred size or a default priority level out of range.
    """
    batching = config.dynamic_batching
    for size in batching.preferred_batch_size:
        if size <= 0:
            raise invalid(f"dynamic batching preferred size must be positive for {config.name}")
        if size > config.max_batch_size:
            raise invalid(f"dynamic batching preferred size must be <= max batch size for {config.name}")
    return DynamicScheduler(
        config.max_batch_size,
        preferred=batching.preferred_batch_size,
        delay_ns=batching.max_queue_delay_microseconds * 1000,
        preserve_ordering=batching.preserve_ordering,
        levels=levels_from_config(config),
        default_limit=default_limit,
        hold_until=hold_until,
    )

"""What the tests of schedulers share. Time is a plain number of nanoseconds."""

from __future__ import annotations

from typing import Any

from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.scheduling.base import Cut, Scheduler

US = 1_000
MS = 1_000_000


class NoCaller:
    """A scheduler never answers a request itself."""

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        raise AssertionError(f"a scheduler answered {request.id}")


def request(
    id: str = "",
    rows: int = 1,
    *,
    key: Any = None,
    priority: int = 0,
    timeout_us: int = 0,
    deadline_ns: int | None = None,
) -> InferRequest:
    """A request as it comes out of routing."""
    made = InferRequest("m", "", {}, NoCaller(), id=id)
    made.batch_size = rows
    made.batch_key = key
    made.priority = priority
    made.timeout_us = timeout_us
    made.deadline_ns = deadline_ns
    return made


def queue(scheduler: Scheduler, *rows: int, at: int = 0) -> list[InferRequest]:
    """Queue requests of these sizes, named a, b, c ... in order."""
    made = [request(chr(ord("a") + index), size) for index, size in enumerate(rows)]
    for each in made:
        scheduler.enqueue(each, at)
    return made


def batch(scheduler: Scheduler, now_ns: int) -> tuple[list[str], Cut] | None:
    """Ask for one batch: the ids in it and why it was cut, None when there is none."""
    formed = scheduler.next_batch(now_ns).batch
    if formed is None:
        return None
    assert formed.size == sum(each.batch_size for each in formed.requests)
    return [each.id for each in formed.requests], formed.cut


def sizes(scheduler: Scheduler, now_ns: int) -> list[int]:
    """The sizes of all batches that can be formed now."""
    found = []
    while (formed := scheduler.next_batch(now_ns).batch) is not None:
        found.append(formed.size)
    return found


def ids(scheduler: Scheduler, now_ns: int) -> list[list[str]]:
    """The ids in all batches that can be formed now."""
    found = []
    while (formed := batch(scheduler, now_ns)) is not None:
        found.append(formed[0])
    return found


def compositions(scheduler: Scheduler, now_ns: int) -> list[list[int]]:
    """The batch sizes of the requests in all batches that can be formed now."""
    found = []
    while (formed := scheduler.next_batch(now_ns).batch) is not None:
        found.append([each.batch_size for each in formed.requests])
    return found

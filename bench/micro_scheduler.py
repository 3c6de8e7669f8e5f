"""What a scheduler costs: microseconds a request for `enqueue` and `next_batch`, at batch 64.

    python bench/micro_scheduler.py [--rounds N]

The clock is fake and requests are made beforehand, so that only the scheduler is timed. Each line is the median of the rounds,
which interleave the cases; the range is their minimum and maximum.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator

from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.core.response import InferResponse
from shoal_dataplane.scheduling.base import Scheduler
from shoal_dataplane.scheduling.default import DefaultScheduler
from shoal_dataplane.scheduling.dynamic import DynamicScheduler
from shoal_dataplane.scheduling.policy import PriorityLevels, QueuePolicy

BATCH = 64
BURSTS = 200
US = 1_000
MS = 1_000_000


class NoCaller:
    """The requests here are never answered."""

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        raise AssertionError("a scheduler does not answer")


def requests(count: int) -> list[InferRequest]:
    """Requests for one model, all of one shape."""
    caller = NoCaller()
    made = [InferRequest("model", "", {}, caller) for _ in range(count)]
    for request in made:
        request.batch_key = ((64,),)
    return made


def with_priorities(made: list[InferRequest]) -> None:
    for index, request in enumerate(made):
        request.priority = index % 4


def with_deadlines(made: list[InferRequest]) -> None:
    for request in made:
        request.deadline_ns = 1 << 50


Requests = list[InferRequest]


def burst(scheduler: Scheduler, made: Requests, now_ns: int) -> Requests:
    """Queue a batch of requests at once, then take what is formed: natural batching under load."""
    enqueue, next_batch = scheduler.enqueue, scheduler.next_batch
    for request in made:
        enqueue(request, now_ns)
    taken: Requests = []
    while len(taken) < len(made):
        batch = next_batch(now_ns).batch
        assert batch is not None
        taken += batch.requests
    return taken


def trickle(scheduler: Scheduler, made: Requests, now_ns: int) -> Requests:
    """Ask after every request, as with a queue delay and one request a wake-up."""
    enqueue, next_batch = scheduler.enqueue, scheduler.next_batch
    for request in made:
        enqueue(request, now_ns)
        next_batch(now_ns)
    assert not scheduler.pending()
    return made


def backlog(scheduler: Scheduler, made: Requests, now_ns: int) -> Requests:
    """The same as `burst`, behind a thousand waiting requests."""
    if not scheduler.pending():
        for request in requests(1024):
            scheduler.enqueue(request, now_ns)
    return burst(scheduler, made, now_ns)


Case = tuple[
    str, Callable[[], Scheduler], Callable[[Requests], None] | None, Callable[[Scheduler, Requests, int], Requests]
]


def cases() -> Iterator[Case]:
    timed = PriorityLevels(4, 2, QueuePolicy(timeout_ns=100 * MS, allow_override=True, max_queue_size=10_000))
    yield "dynamic, common case", lambda: DynamicScheduler(BATCH), None, burst
    yield "dynamic, 1024 waiting", lambda: DynamicScheduler(BATCH), None, backlog
    yield "dynamic, delay, asked after each", lambda: DynamicScheduler(BATCH, delay_ns=100 * US), None, trickle
    yield "dynamic, deadlines", lambda: DynamicScheduler(BATCH), with_deadlines, burst
    yield "dynamic, priorities and timeouts", lambda: DynamicScheduler(BATCH, levels=timed), with_priorities, burst
    yield "default (batches of one)", DefaultScheduler, None, burst


def measure(case: Case) -> float:
    """One round of a case: microseconds a request."""
    _, build, prepare, drive = case
    scheduler, made = build(), requests(BATCH)
    if prepare is not None:
        prepare(made)
    made = drive(scheduler, made, 0)
    started = time.perf_counter_ns()
    for step in range(BURSTS):
        made = drive(scheduler, made, step * US)
    return (time.perf_counter_ns() - started) / BURSTS / BATCH / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    all_cases = list(cases())
    results: dict[str, list[float]] = {case[0]: [] for case in all_cases}
    gc.freeze()
    for _ in range(rounds):
        for case in all_cases:
            results[case[0]].append(measure(case))
    for name, values in results.items():
        print(f"{name:34} {statistics.median(values):5.2f} us/request  [{min(values):.2f} - {max(values):.2f}]")


if __name__ == "__main__":
    main()

"""The default scheduler: one request a batch, first in, first out; and the choice of a scheduler."""

from __future__ import annotations

import pytest

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Code, Reason, ServingError
from shoal_dataplane.scheduling.base import Batch, Cut, Decision
from shoal_dataplane.scheduling.default import DefaultScheduler
from shoal_dataplane.scheduling.dynamic import DynamicScheduler
from shoal_dataplane.scheduling.factory import scheduler_for
from tests.unit.scheduling.support import MS, US, batch, ids, queue, request


def test_each_request_runs_alone_in_order_whatever_its_batch_size() -> None:
    scheduler = DefaultScheduler()
    made = queue(scheduler, 1, 8, 2)
    assert [each.queued_ns for each in made] == [0, 0, 0]
    decision = scheduler.next_batch(0)
    assert decision == Decision(Batch([made[0]], 1, Cut.SINGLE), None)
    assert scheduler.pending() == 2
    assert batch(scheduler, 0) == (["b"], Cut.SINGLE)
    assert ids(scheduler, 0) == [["c"]]
    assert scheduler.next_batch(0) == Decision(None, None)


def test_a_priority_changes_nothing() -> None:
    scheduler = DefaultScheduler()
    scheduler.enqueue(request("a", priority=5), 0)
    scheduler.enqueue(request("b", priority=1), 0)
    assert ids(scheduler, 0) == [["a"], ["b"]]


def test_a_requests_own_timeout_holds_in_the_queue() -> None:
    scheduler = DefaultScheduler()
    scheduler.enqueue(request("a", timeout_us=10), 0)
    scheduler.enqueue(request("b"), 0)
    assert scheduler.next_expiry_ns() == 10 * US
    assert batch(scheduler, 10 * US) == (["b"], Cut.SINGLE)
    ((gone, error),) = scheduler.expire(10 * US)
    assert (gone.id, error.code, error.message) == ("a", Code.UNAVAILABLE, "Request timeout expired")
    assert error.reason is Reason.QUEUE_TIMEOUT


def test_a_deadline_holds_in_the_queue() -> None:
    scheduler = DefaultScheduler()
    scheduler.enqueue(request("a", deadline_ns=MS), 0)
    assert scheduler.next_batch(MS) == Decision(None, None)
    ((gone, error),) = scheduler.expire(MS)
    assert (gone.id, error.code, error.reason) == ("a", Code.DEADLINE_EXCEEDED, Reason.DEADLINE)


def test_cancelled_requests_are_removed_or_skipped() -> None:
    scheduler = DefaultScheduler()
    a, b, _ = queue(scheduler, 1, 1, 1)
    assert scheduler.remove(a)
    b.cancelled = True
    assert ids(scheduler, 0) == [["c"]]
    assert [(each.id, error.code) for each, error in scheduler.expire(0)] == [("b", Code.CANCELLED)]


def test_the_servers_limit_bounds_the_queue() -> None:
    scheduler = DefaultScheduler(default_limit=2)
    queue(scheduler, 1, 1)
    with pytest.raises(ServingError, match="Exceeds maximum queue size") as refused:
        scheduler.enqueue(request("c"), 0)
    assert (refused.value.code, refused.value.reason) == (Code.UNAVAILABLE, Reason.QUEUE_FULL)
    assert ids(scheduler, 0) == [["a"], ["b"]]


def test_a_held_scheduler_waits_for_n_requests_once() -> None:
    scheduler = DefaultScheduler(hold_until=2)
    scheduler.enqueue(request("a"), 0)
    assert scheduler.next_batch(0) == Decision(None, None)
    scheduler.enqueue(request("b"), 0)
    assert batch(scheduler, 0) == (["a"], Cut.SINGLE)
    assert batch(scheduler, 0) == (["b"], Cut.SINGLE)
    scheduler.enqueue(request("c"), 0)
    assert batch(scheduler, 0) == (["c"], Cut.SINGLE)


def test_a_model_without_a_scheduling_choice_gets_the_default_scheduler() -> None:
    scheduler = scheduler_for(mc.ModelConfig(max_batch_size=8), default_limit=1, hold_until=1)
    assert isinstance(scheduler, DefaultScheduler)
    assert not scheduler.preserve_ordering
    scheduler.enqueue(request("a"), 0)
    with pytest.raises(ServingError, match="Exceeds maximum queue size"):
        scheduler.enqueue(request("b"), 0)


def test_dynamic_batching_gets_the_dynamic_batcher_with_the_servers_settings() -> None:
    config = mc.ModelConfig(max_batch_size=8)
    config.dynamic_batching.SetInParent()
    scheduler = scheduler_for(config, default_limit=2, hold_until=2)
    assert isinstance(scheduler, DynamicScheduler)
    scheduler.enqueue(request("a"), 0)
    assert scheduler.next_batch(0).batch is None
    scheduler.enqueue(request("b"), 0)
    with pytest.raises(ServingError, match="Exceeds maximum queue size"):
        scheduler.enqueue(request("c"), 0)
    assert ids(scheduler, 0) == [["a", "b"]]


def test_a_scheduling_choice_that_is_not_served_is_refused_by_name() -> None:
    config = mc.ModelConfig(name="m")
    config.sequence_batching.SetInParent()
    with pytest.raises(ServingError, match="model 'm' asks for sequence_batching") as refused:
        scheduler_for(config)
    assert refused.value.code is Code.UNIMPLEMENTED


@pytest.mark.parametrize("default", [0, 4])
def test_a_default_level_that_is_no_level_is_refused(default: int) -> None:
    config = mc.ModelConfig(name="m", max_batch_size=8)
    config.dynamic_batching.priority_levels = 3
    config.dynamic_batching.default_priority_level = default
    with pytest.raises(ServingError, match=r"default priority level must be in range \[1, 3\] for m"):
        scheduler_for(config)

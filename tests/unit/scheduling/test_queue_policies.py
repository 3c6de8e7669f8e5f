"""Levels, limits, timeouts, deadlines and cancellation of the queue (triton.md C7-C10), timer-driven."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Code, Reason, ServingError
from shoal_dataplane.core.tensors import Tensor
from shoal_dataplane.scheduling.base import Cut, Decision
from shoal_dataplane.scheduling.dynamic import DynamicScheduler, dynamic_from_config
from tests.unit.scheduling.support import MS, US, batch, ids, queue, request


def config(levels: int = 0, default: int = 0, limit: int = 1) -> mc.ModelConfig:
    made = mc.ModelConfig(name="m", max_batch_size=limit)
    made.dynamic_batching.priority_levels = levels
    made.dynamic_batching.default_priority_level = default
    return made


def policy(
    timeout_us: int = 0, *, delay: bool = False, override: bool = False, max_queue_size: int = 0
) -> mc.ModelQueuePolicy:
    return mc.ModelQueuePolicy(
        timeout_action=mc.ModelQueuePolicy.DELAY if delay else mc.ModelQueuePolicy.REJECT,
        default_timeout_microseconds=timeout_us,
        allow_timeout_override=override,
        max_queue_size=max_queue_size,
    )


def with_policy(of_queue: mc.ModelQueuePolicy, limit: int = 1) -> DynamicScheduler:
    made = config(limit=limit)
    made.dynamic_batching.default_queue_policy.CopyFrom(of_queue)
    return dynamic_from_config(made)


def expired(scheduler: DynamicScheduler, now_ns: int) -> list[tuple[str, Code, str, Reason]]:
    return [(each.id, error.code, error.message, error.reason) for each, error in scheduler.expire(now_ns)]


def rejected(id: str) -> tuple[str, Code, str, Reason]:
    return id, Code.UNAVAILABLE, "Request timeout expired", Reason.QUEUE_TIMEOUT


# Priorities


def test_priorities_are_strict_and_first_in_first_out_inside_a_level() -> None:
    scheduler = dynamic_from_config(config(levels=3, default=2))
    for id, priority in [("c1", 3), ("b1", 2), ("a1", 1), ("c2", 3), ("a2", 1), ("b2", 2)]:
        scheduler.enqueue(request(id, priority=priority), 0)
    assert ids(scheduler, 0) == [["a1"], ["a2"], ["b1"], ["b2"], ["c1"], ["c2"]]


@pytest.mark.parametrize("priority", [0, 4, 2**64 - 1])
def test_an_unset_or_unknown_priority_is_the_default_level(priority: int) -> None:
    scheduler = dynamic_from_config(config(levels=3, default=2))
    scheduler.enqueue(request("low", priority=3), 0)
    scheduler.enqueue(request("default", priority=priority), 0)
    scheduler.enqueue(request("high", priority=1), 0)
    assert ids(scheduler, 0) == [["high"], ["default"], ["low"]]


def test_without_levels_priorities_are_ignored() -> None:
    scheduler = dynamic_from_config(config())
    scheduler.enqueue(request("a", priority=9), 0)
    scheduler.enqueue(request("b", priority=1), 0)
    assert ids(scheduler, 0) == [["a"], ["b"]]


def test_more_than_two_to_the_32_levels_cost_only_what_is_queued() -> None:
    scheduler = dynamic_from_config(config(levels=2**32 + 10, default=2**32 + 5))
    for id, priority in [("last", 2**32 + 10), ("default", 0), ("first", 1), ("big", 2**32)]:
        scheduler.enqueue(request(id, priority=priority), 0)
    assert ids(scheduler, 0) == [["first"], ["big"], ["default"], ["last"]]
    for priority in range(1, 5000):
        scheduler.enqueue(request(priority=priority), 0)
    while scheduler.next_batch(0).batch:
        pass
    assert len(scheduler._lanes) == len(scheduler._order) == 0


def test_one_batch_spans_levels_in_order() -> None:
    scheduler = dynamic_from_config(config(levels=2, default=1, limit=8))
    for id, priority in [("b", 2), ("a", 1), ("c", 2)]:
        scheduler.enqueue(request(id, priority=priority), 0)
    assert batch(scheduler, 0) == (["a", "b", "c"], Cut.NO_DELAY)


def test_levels_are_composed_as_a_real_triton_composes_them() -> None:
    scheduler = dynamic_from_config(config(levels=3, default=2, limit=2), hold_until=5)
    for id, priority in [("r0", 3), ("r1", 3), ("r2", 2), ("r3", 1), ("r4", 0)]:
        scheduler.enqueue(request(id, priority=priority), 0)
    assert ids(scheduler, 0) == [["r3", "r2"], ["r4", "r0"], ["r1"]]


def test_a_higher_priority_that_arrives_while_waiting_goes_first() -> None:
    made = config(levels=2, default=1, limit=8)
    made.dynamic_batching.preferred_batch_size.extend([2, 6])
    made.dynamic_batching.max_queue_delay_microseconds = 100
    scheduler = dynamic_from_config(made)
    scheduler.enqueue(request("low", 3, priority=2), 0)
    assert scheduler.next_batch(0) == Decision(None, 100 * US)
    scheduler.enqueue(request("high", 2, priority=1), 1)
    assert batch(scheduler, 1) == (["high"], Cut.PREFERRED)


# Limits


def test_a_full_queue_refuses_at_once_and_takes_again_after_a_batch() -> None:
    scheduler = with_policy(policy(max_queue_size=2))
    queue(scheduler, 1, 1)
    with pytest.raises(ServingError) as refused:
        scheduler.enqueue(request(), 0)
    assert refused.value.code is Code.UNAVAILABLE
    assert refused.value.message == "[request id: <id_unknown>] Exceeds maximum queue size"
    assert refused.value.reason is Reason.QUEUE_FULL
    with pytest.raises(ServingError, match=r"\[request id: seven\] Exceeds maximum queue size"):
        scheduler.enqueue(request("seven"), 0)
    assert scheduler.pending() == 2
    assert batch(scheduler, 0) == (["a"], Cut.SINGLE)
    scheduler.enqueue(request("c"), 0)
    assert ids(scheduler, 0) == [["b"], ["c"]]


def test_each_level_has_its_own_limit() -> None:
    made = config(levels=3, default=3)
    made.dynamic_batching.default_queue_policy.CopyFrom(policy(max_queue_size=1))
    made.dynamic_batching.priority_queue_policy[2].CopyFrom(policy(max_queue_size=2))
    scheduler = dynamic_from_config(made)
    for priority in (1, 2, 2, 3):
        scheduler.enqueue(request(priority=priority), 0)
    for priority in (1, 2, 3):
        with pytest.raises(ServingError, match="Exceeds maximum queue size"):
            scheduler.enqueue(request(priority=priority), 0)
    assert scheduler.pending() == 4


def test_the_servers_limit_holds_over_all_levels_that_set_none() -> None:
    made = config(levels=100, default=1)
    made.dynamic_batching.priority_queue_policy[1].CopyFrom(policy(max_queue_size=3))
    scheduler = dynamic_from_config(made, default_limit=2)
    for priority in (1, 1, 1, 7, 8):
        scheduler.enqueue(request(priority=priority), 0)
    with pytest.raises(ServingError) as refused:
        scheduler.enqueue(request(priority=9), 0)
    assert refused.value.reason is Reason.QUEUE_FULL
    assert "Exceeds maximum queue size" in refused.value.message
    assert refused.value.message.endswith("(the server's default for a model that sets none: 2)")
    assert 9 not in scheduler._lanes  # a refusal leaves nothing behind
    while scheduler.next_batch(0).batch:
        pass
    scheduler.enqueue(request(priority=9), 0)
    scheduler.enqueue(request(priority=9), 0)
    with pytest.raises(ServingError):
        scheduler.enqueue(request(priority=9), 0)


def test_expired_and_removed_requests_make_room() -> None:
    scheduler = with_policy(policy(1000, max_queue_size=2))
    first, _ = queue(scheduler, 1, 1)
    assert scheduler.remove(first)
    scheduler.enqueue(request("c"), 0)
    scheduler.expire(MS)
    queue(scheduler, 1, 1, at=MS)
    assert scheduler.pending() == 2


# Timeouts


def test_reject_answers_at_the_timeout_while_every_instance_is_busy() -> None:
    scheduler = with_policy(policy(1000))
    scheduler.enqueue(request("a"), 0)
    scheduler.enqueue(request("b"), 10)
    assert scheduler.next_expiry_ns() == MS
    assert expired(scheduler, MS - 1) == []
    assert expired(scheduler, MS) == [rejected("a")]
    assert scheduler.next_expiry_ns() == MS + 10
    assert ids(scheduler, MS + 9) == [["b"]]
    assert scheduler.next_expiry_ns() is None


def test_a_batch_never_holds_an_expired_request_and_expire_still_hands_it_out() -> None:
    scheduler = with_policy(policy(1000))
    queue(scheduler, 1, 1)
    assert batch(scheduler, MS) is None
    assert scheduler.pending() == 2
    assert scheduler.next_expiry_ns() == MS
    assert expired(scheduler, MS) == [rejected("a"), rejected("b")]
    assert scheduler.pending() == 0
    assert expired(scheduler, MS) == []


def test_delay_moves_a_request_behind_the_unexpired_ones_of_its_level() -> None:
    scheduler = with_policy(policy(1000, delay=True))
    queue(scheduler, 1, 1)
    scheduler.enqueue(request("fresh"), MS // 2)
    assert expired(scheduler, MS) == []
    scheduler.enqueue(request("fresher"), MS)
    assert ids(scheduler, MS) == [["fresh"], ["fresher"], ["a"], ["b"]]


def test_delayed_requests_are_still_served_before_a_lower_level() -> None:
    made = config(levels=2, default=1)
    made.dynamic_batching.priority_queue_policy[1].CopyFrom(policy(1000, delay=True))
    scheduler = dynamic_from_config(made)
    scheduler.enqueue(request("late", priority=1), 0)
    scheduler.enqueue(request("low", priority=2), 0)
    scheduler.enqueue(request("high", priority=1), MS)
    assert ids(scheduler, MS) == [["high"], ["late"], ["low"]]


def test_a_delayed_request_still_obeys_its_deadline() -> None:
    scheduler = with_policy(policy(1000, delay=True))
    scheduler.enqueue(request("a", deadline_ns=3 * MS), 0)
    assert scheduler.expire(2 * MS) == []
    assert scheduler.next_expiry_ns() == 3 * MS
    assert [row[:2] for row in expired(scheduler, 3 * MS)] == [("a", Code.DEADLINE_EXCEEDED)]
    assert ids(scheduler, 3 * MS) == []


def test_a_delayed_request_counts_against_the_limit_of_its_level() -> None:
    scheduler = with_policy(policy(1000, delay=True, max_queue_size=1))
    scheduler.enqueue(request("a"), 0)
    scheduler.expire(MS)
    with pytest.raises(ServingError, match="Exceeds maximum queue size"):
        scheduler.enqueue(request("b"), MS)


@pytest.mark.parametrize(
    ("default_us", "override", "own_us", "expected_ns"),
    [
        (1000, False, 0, MS),
        (1000, False, 10, MS),  # not allowed
        (1000, True, 0, MS),
        (1000, True, 10, 10 * US),
        (1000, True, 5000, MS),  # only ever lowers
        (0, True, 10, 10 * US),  # also with a default of 0, unlike Triton (C9)
        (0, False, 10, None),
        (0, True, 0, None),
        (0, True, 2**64 - 1, None),
        (2**64 - 1, True, 0, None),
    ],
)
def test_the_timeout_that_counts(default_us: int, override: bool, own_us: int, expected_ns: int | None) -> None:
    scheduler = with_policy(policy(default_us, override=override))
    scheduler.enqueue(request(timeout_us=own_us), 0)
    assert scheduler.next_expiry_ns() == expected_ns


def test_a_level_follows_its_own_policy_and_the_others_the_default() -> None:
    made = config(levels=3, default=3)
    made.dynamic_batching.default_queue_policy.CopyFrom(policy(2000))
    made.dynamic_batching.priority_queue_policy[2].CopyFrom(policy(1000, delay=True))
    scheduler = dynamic_from_config(made)
    for id, priority in [("default", 1), ("own", 2), ("default too", 3)]:
        scheduler.enqueue(request(id, priority=priority), 0)
    assert scheduler.next_expiry_ns() == MS
    assert expired(scheduler, MS) == []
    assert expired(scheduler, 2 * MS) == [rejected("default"), rejected("default too")]
    assert ids(scheduler, 2 * MS) == [["own"]]


def test_an_expiry_that_makes_the_rest_a_preferred_size_wakes_the_batcher() -> None:
    made = config(limit=8)
    made.dynamic_batching.preferred_batch_size.extend([2, 6])
    made.dynamic_batching.max_queue_delay_microseconds = 1000
    made.dynamic_batching.default_queue_policy.CopyFrom(policy(0, override=True))
    scheduler = dynamic_from_config(made)
    scheduler.enqueue(request("short", 1, timeout_us=10), 0)
    scheduler.enqueue(request("long", 2), 0)
    assert scheduler.next_batch(0) == Decision(None, 10 * US)
    assert batch(scheduler, 10 * US) == (["long"], Cut.PREFERRED)
    assert expired(scheduler, 10 * US) == [rejected("short")]


def test_an_arrival_before_delayed_requests_is_looked_at_while_waiting() -> None:
    made = config(limit=8)
    made.dynamic_batching.preferred_batch_size.extend([2, 6])
    made.dynamic_batching.max_queue_delay_microseconds = 5000
    made.dynamic_batching.default_queue_policy.CopyFrom(policy(1000, delay=True))
    scheduler = dynamic_from_config(made)
    scheduler.enqueue(request("late", 3), 0)
    assert scheduler.next_batch(MS) == Decision(None, 5 * MS)
    scheduler.enqueue(request("fresh", 2), MS)
    assert batch(scheduler, MS) == (["fresh"], Cut.PREFERRED)


def test_a_timeout_that_arrives_while_waiting_shortens_the_wait() -> None:
    made = config(limit=8)
    made.dynamic_batching.max_queue_delay_microseconds = 1000
    made.dynamic_batching.default_queue_policy.CopyFrom(policy(0, override=True))
    scheduler = dynamic_from_config(made)
    scheduler.enqueue(request("a"), 0)
    assert scheduler.next_batch(0) == Decision(None, MS)
    scheduler.enqueue(request("b", timeout_us=10), 0)
    assert scheduler.next_batch(0) == Decision(None, 10 * US)
    assert scheduler.next_batch(10 * US) == Decision(None, MS)


# Deadlines


def test_a_deadline_expires_in_the_queue_without_any_policy() -> None:
    scheduler = DynamicScheduler(1)
    scheduler.enqueue(request("a", deadline_ns=5 * MS), 2 * MS)
    scheduler.enqueue(request("b"), 2 * MS)
    assert scheduler.next_expiry_ns() == 5 * MS
    assert batch(scheduler, 5 * MS) == (["b"], Cut.SINGLE)
    assert expired(scheduler, 5 * MS) == [
        ("a", Code.DEADLINE_EXCEEDED, "the request's deadline passed after 3.0 ms in the queue", Reason.DEADLINE)
    ]


def test_a_deadline_that_has_passed_at_arrival_is_never_executed() -> None:
    scheduler = DynamicScheduler(1)
    scheduler.enqueue(request("a", deadline_ns=MS), 2 * MS)
    assert batch(scheduler, 2 * MS) is None
    assert [row[:2] for row in expired(scheduler, 2 * MS)] == [("a", Code.DEADLINE_EXCEEDED)]


@pytest.mark.parametrize(
    ("deadline_ns", "code"),
    [(MS - 1, Code.DEADLINE_EXCEEDED), (MS, Code.DEADLINE_EXCEEDED), (MS + 1, Code.UNAVAILABLE)],
)
def test_of_timeout_and_deadline_the_earlier_one_is_reported(deadline_ns: int, code: Code) -> None:
    scheduler = with_policy(policy(1000))
    scheduler.enqueue(request("a", deadline_ns=deadline_ns), 0)
    assert [row[1] for row in expired(scheduler, 5 * MS)] == [code]


# Cancellation


def test_a_removed_request_is_in_no_batch_and_is_removed_once() -> None:
    scheduler = DynamicScheduler(8)
    a, b, c = queue(scheduler, 1, 1, 1)
    assert scheduler.remove(b)
    assert not scheduler.remove(b)
    assert scheduler.pending() == 2
    assert ids(scheduler, 0) == [["a", "c"]]
    assert not scheduler.remove(a)
    assert not scheduler.remove(c)
    assert not DynamicScheduler(8).remove(a)


@pytest.mark.parametrize("delayed", [False, True])
def test_a_request_is_removed_from_the_middle_of_a_level(delayed: bool) -> None:
    made = config(levels=2, default=2)
    made.dynamic_batching.default_queue_policy.CopyFrom(policy(1000, delay=True))
    scheduler = dynamic_from_config(made)
    _, b, _ = queue(scheduler, 1, 1, 1)
    if delayed:
        scheduler.expire(MS)
    assert scheduler.remove(b)
    assert ids(scheduler, MS) == [["a"], ["c"]]


def test_a_removed_request_does_not_expire() -> None:
    scheduler = with_policy(policy(1000))
    a, _ = queue(scheduler, 1, 1)
    assert scheduler.remove(a)
    assert expired(scheduler, MS) == [rejected("b")]
    assert scheduler.next_expiry_ns() is None


def test_an_expired_request_that_is_cancelled_before_its_answer_gets_no_second_one() -> None:
    scheduler = with_policy(policy(1000))
    (a,) = queue(scheduler, 1)
    assert batch(scheduler, MS) is None  # noticed as expired
    assert scheduler.remove(a)
    assert scheduler.expire(MS) == []
    assert scheduler.pending() == 0


def test_a_request_marked_cancelled_is_skipped_and_answered_as_cancelled() -> None:
    scheduler = DynamicScheduler(8)
    a, _, c = queue(scheduler, 1, 1, 1)
    a.cancelled = c.cancelled = True
    assert ids(scheduler, 7) == [["b"]]
    assert scheduler.next_expiry_ns() == 7
    assert [row[:2] for row in expired(scheduler, 7)] == [("a", Code.CANCELLED), ("c", Code.CANCELLED)]
    assert scheduler.pending() == 0


def test_a_queue_of_cancelled_requests_gives_no_batch() -> None:
    scheduler = DynamicScheduler(8, delay_ns=MS)
    for each in queue(scheduler, 1, 1):
        each.cancelled = True
    assert scheduler.next_batch(0) == Decision(None, None)
    assert len(scheduler.expire(0)) == 2


def test_a_removal_that_makes_the_rest_a_preferred_size_is_noticed() -> None:
    scheduler = DynamicScheduler(8, preferred=[2, 6], delay_ns=MS)
    a, _ = queue(scheduler, 1, 2)
    assert scheduler.next_batch(0) == Decision(None, MS)
    assert scheduler.remove(a)
    assert batch(scheduler, 1) == (["b"], Cut.PREFERRED)


def test_the_tensors_of_a_removed_request_are_freed_at_once() -> None:
    scheduler = with_policy(policy(10_000_000))
    queue(scheduler, 1, 1)
    big = request("big", deadline_ns=MS)
    data = np.zeros(8)
    alive = weakref.ref(data)
    big.inputs["x"] = Tensor("x", "FP64", (8,), data)
    scheduler.enqueue(big, 0)
    assert scheduler.remove(big)
    del big, data
    gc.collect()
    assert alive() is None


def test_requests_with_far_deadlines_leave_nothing_behind_when_they_run() -> None:
    scheduler = DynamicScheduler(1)
    for step in range(10_000):
        scheduler.enqueue(request(deadline_ns=step + 3600 * 1000 * MS), step)
        assert scheduler.next_batch(step).batch is not None
    assert scheduler.next_expiry_ns() is None
    assert len(scheduler._expiry._heap) < 100


# Holding


def test_a_held_scheduler_forms_no_batch_before_n_requests_have_come_and_then_runs_freely() -> None:
    scheduler = DynamicScheduler(8, preferred=[2, 4], hold_until=5)
    queue(scheduler, 1, 1, 1, 1)
    assert scheduler.next_batch(0) == Decision(None, None)
    scheduler.enqueue(request("e"), 0)
    assert ids(scheduler, 0) == [["a", "b", "c", "d"], ["e"]]
    scheduler.enqueue(request("f"), 0)
    assert ids(scheduler, 0) == [["f"]]


def test_a_held_scheduler_still_expires_and_counts_what_has_left() -> None:
    scheduler = DynamicScheduler(8, hold_until=3)
    scheduler.enqueue(request("a", deadline_ns=MS), 0)
    assert [row[0] for row in expired(scheduler, MS)] == ["a"]
    queue(scheduler, 1, 1, at=MS)
    assert ids(scheduler, MS) == [["a", "b"]]


def test_a_refused_request_does_not_count_for_the_hold() -> None:
    made = config()
    made.dynamic_batching.default_queue_policy.CopyFrom(policy(max_queue_size=1))
    scheduler = dynamic_from_config(made, hold_until=2)
    scheduler.enqueue(request("a"), 0)
    with pytest.raises(ServingError):
        scheduler.enqueue(request("b"), 0)
    assert scheduler.next_batch(0).batch is None

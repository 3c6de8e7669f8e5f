"""The index of what expires next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.scheduling.expiry import ExpiryIndex
from tests.unit.scheduling.support import request


def test_requests_come_out_by_expiry_and_then_in_order_of_addition() -> None:
    index = ExpiryIndex()
    for id, when in [("late", 9), ("first", 3), ("second", 3)]:
        index.add(request(id), when)
    assert index.next_ns() == 3
    assert index.pop_due(2) is None
    assert [index.pop_due(9)[0].id for _ in range(3)] == ["first", "second", "late"]  # type: ignore[index]
    assert index.pop_due(9) is None
    assert index.next_ns() is None


def test_a_request_may_be_watched_again_after_it_was_discarded() -> None:
    index = ExpiryIndex()
    again = request("a")
    index.add(again, 1)
    index.discard([again, request("unknown")])
    assert index.next_ns() is None
    index.add(again, 5)
    assert index.pop_due(4) is None
    assert index.pop_due(5) == (again, 5)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=200))
def test_the_index_agrees_with_a_sorted_list(steps: list[tuple[bool, int]]) -> None:
    index = ExpiryIndex()
    model: list[tuple[int, int, InferRequest]] = []
    for sequence, (add, value) in enumerate(steps):
        if add:
            new = request(str(sequence))
            index.add(new, value)
            model.append((value, sequence, new))
        elif value % 2 and model:
            _, _, gone = model.pop(value % len(model))
            index.discard([gone])
        else:
            model.sort(key=lambda row: row[:2])
            due = index.pop_due(value)
            if model and model[0][0] <= value:
                when, _, first = model.pop(0)
                assert due == (first, when)
            else:
                assert due is None
        assert len(index) == len(model)
        assert index.next_ns() == min((when for when, _, _ in model), default=None)

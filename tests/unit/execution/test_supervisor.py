"""The supervisor's thread: there while somebody needs it, and woken by descriptors, timers and calls."""

from __future__ import annotations

import gc
import os
import selectors
import threading

import pytest

from shoal_dataplane.execution.supervisor import acquire_supervisor, release_supervisor
from tests.unit.execution.worker_models import WAIT, open_descriptors


def supervisors() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "shoal-supervisor"]


def test_it_lives_from_its_first_user_to_its_last() -> None:
    gc.collect()
    before = open_descriptors()
    first = acquire_supervisor()
    assert acquire_supervisor() is first
    assert len(supervisors()) == 1
    release_supervisor()
    assert len(supervisors()) == 1
    release_supervisor()
    assert not supervisors()
    assert open_descriptors() <= before
    second = acquire_supervisor()
    assert second is not first
    assert second.call(lambda: 3) == 3
    release_supervisor()


def test_calls_return_and_raise_what_they_do() -> None:
    supervisor = acquire_supervisor()
    try:
        assert supervisor.call(threading.get_ident) == supervisors()[0].ident
        with pytest.raises(ZeroDivisionError):
            supervisor.call(lambda: 1 / 0)
    finally:
        release_supervisor()


def test_descriptors_and_timers_wake_it_and_a_failing_callback_does_not_end_it() -> None:
    supervisor = acquire_supervisor()
    read, write = os.pipe()
    try:
        heard = threading.Event()

        def readable(events: int) -> None:
            assert events == selectors.EVENT_READ
            os.read(read, 100)
            heard.set()
            raise ValueError("logged, and no more")

        supervisor.call(lambda: supervisor.watch(read, selectors.EVENT_READ, readable))
        for _ in range(2):
            os.write(write, b"x")
            assert heard.wait(WAIT)
            heard.clear()
        supervisor.call(lambda: supervisor.unwatch(read))
        supervisor.call(lambda: supervisor.unwatch(read))
        late = threading.Event()
        supervisor.call_later(0.01, late.set)
        assert late.wait(WAIT)
        os.write(write, b"x")
        assert not heard.is_set()
    finally:
        release_supervisor()
        os.close(read)
        os.close(write)

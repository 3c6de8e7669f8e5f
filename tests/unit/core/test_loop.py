"""The core loop: posted, timed and deferred calls, on a fake clock and on a real thread."""

from __future__ import annotations

import threading

from shoal_dataplane.core.loop import CoreLoop, ThreadedLoop


class Clock:
    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


def test_deferred_calls_run_after_everything_posted_and_due() -> None:
    clock = Clock()
    loop = CoreLoop(clock)
    ran: list[str] = []
    loop.defer(lambda: ran.append("deferred"))
    loop.call_at(1000, lambda: ran.append("timer"))
    loop.post(lambda: ran.append("posted"))
    loop.run_ready()
    assert ran == ["posted", "timer", "deferred"]


def test_work_added_by_a_call_waits_for_the_next_round() -> None:
    loop = CoreLoop(Clock())
    ran: list[int] = []

    def again() -> None:
        ran.append(1)
        if len(ran) < 10:
            loop.defer(again)

    loop.defer(again)
    loop.run_ready()
    assert len(ran) == 1
    assert loop.has_ready()


def test_timers_run_in_order_of_time_and_only_when_due() -> None:
    clock = Clock()
    loop = CoreLoop(clock)
    ran: list[int] = []
    for when in (3000, 1500, 2000):
        loop.call_at(when, lambda when=when: ran.append(when))
    loop.run_ready()
    assert ran == []
    assert loop.next_timer_ns() == 1500
    clock.now = 2000
    loop.run_ready()
    assert ran == [1500, 2000]
    assert loop.next_timer_ns() == 3000


def test_a_cancelled_timer_does_not_run_and_is_not_waited_for() -> None:
    clock = Clock()
    loop = CoreLoop(clock)
    ran: list[int] = []
    timer = loop.call_at(1500, lambda: ran.append(1))
    timer.cancel()
    assert loop.next_timer_ns() is None
    clock.now = 9000
    loop.run_ready()
    assert ran == []


def test_a_raising_callback_does_not_stop_the_others(caplog) -> None:
    loop = CoreLoop(Clock())
    ran: list[int] = []

    def bad() -> None:
        raise ValueError("broken on purpose")

    loop.post(bad)
    loop.post(lambda: ran.append(1))
    loop.run_ready()
    assert ran == [1]
    assert "broken on purpose" in caplog.text


def test_threaded_loop_wakes_for_posts_from_other_threads_and_for_timers() -> None:
    loop = ThreadedLoop()
    loop.start()
    try:
        done = threading.Event()
        threads: set[str] = set()

        def on_loop() -> None:
            threads.add(threading.current_thread().name)
            loop.call_at(loop.now_ns() + 2_000_000, done.set)

        loop.post(on_loop)
        assert done.wait(10)
        assert threads == {"shoal-core"}
    finally:
        loop.stop()


def test_no_post_is_lost_under_contention() -> None:
    loop = ThreadedLoop()
    loop.start()
    counts = [0]
    finished = threading.Event()

    def one() -> None:
        counts[0] += 1
        if counts[0] == 4 * 2000:
            finished.set()

    def poster() -> None:
        for _ in range(2000):
            loop.post(one)

    threads = [threading.Thread(target=poster) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert finished.wait(30)
    for thread in threads:
        thread.join()
    loop.stop()


def test_coarse_timers_run_when_due_and_count_for_the_next_wake() -> None:
    clock = Clock()
    loop = CoreLoop(clock)
    ran: list[str] = []
    loop.call_at(3000, lambda: ran.append("coarse"), coarse=True)
    assert (loop.next_exact_ns(), loop.next_coarse_ns(), loop.next_timer_ns()) == (None, 3000, 3000)
    loop.call_at(4000, lambda: ran.append("exact"))
    assert (loop.next_exact_ns(), loop.next_coarse_ns(), loop.next_timer_ns()) == (4000, 3000, 3000)
    clock.now = 3000
    loop.run_ready()
    assert ran == ["coarse"]
    clock.now = 4000
    loop.run_ready()
    assert ran == ["coarse", "exact"]

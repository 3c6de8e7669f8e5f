"""Run calls on a few daemon threads: a model that hangs while it loads or closes must not keep the process from exiting."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)


def run_all(calls: Iterable[Callable[[], object]], workers: int, name: str, timeout: float | None = None) -> bool:
    """Run every call, at most `workers` at a time, and wait for them.

    False when they were not done within `timeout` seconds; they go on then. A call that raises is logged; the others run.
    """
    waiting = deque(calls)
    if len(waiting) <= 1 and timeout is None:
        _work(waiting)
        return True
    threads = [
        threading.Thread(target=_work, args=(waiting,), name=f"{name}-{index}", daemon=True)
        for index in range(min(workers, len(waiting)))
    ]
    for thread in threads:
        thread.start()
    deadline = None if timeout is None else time.monotonic() + timeout
    for thread in threads:
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _work(waiting: deque[Callable[[], object]]) -> None:
    while True:
        try:
            call = waiting.popleft()
        except IndexError:
            return
        try:
            call()
        except BaseException:  # a model's code may raise SystemExit; the calls that wait must still run
            logger.exception("a repository task failed")

"""The one thread of the server that looks after all worker processes: starts them, hears them, sees them end.

A worker asks the kernel to be killed when the thread that started it ends (worker_environment.die_with_parent), so only a thread that
outlives every worker may start one. The thread begins with the first user and ends with the last.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal_dataplane.core.loop import CoreLoop


class Supervisor(CoreLoop):
    """A loop that sleeps on descriptors and timers. `watch`, `unwatch` and what the base says: on its thread only."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="shoal-supervisor", daemon=True)

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call `callback` with the events (selectors.EVENT_READ, EVENT_WRITE) when `fd` is ready, or change what is watched."""
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)

    def unwatch(self, fd: int) -> None:
        """Watch `fd` no more; to be called before it is closed."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except (BlockingIOError, OSError):
            """It is awake already, or at its end."""

    def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` on the supervisor's thread and wait for it; returns and raises what it does. From any other thread."""
        done = threading.Event()
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append((True, function()))
            except BaseException as error:
                outcome.append((False, error))
            finally:
                done.set()

        self.post(run)
        done.wait()
        good, value = outcome[0]
        if good:
            return value
        raise value

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Run `callback` after `seconds`. From any thread."""
        when_ns = self.now_ns() + int(seconds * 1e9)

        def arm() -> None:
            self.call_at(when_ns, callback)

        self.post(arm)

    def _run(self) -> None:
        while True:
            self.run_ready()
            if self._stopping:
                break
            if self.has_ready():
                continue
            due = self.next_timer_ns()
            timeout = None if due is None else max(0.0, (due - self.now_ns()) / 1e9)
            for key, events in self._selector.select(timeout):
                if key.data is None:
                    self._drain_wakes()
                else:
                    self._call(partial(key.data, events))
        self._selector.close()

    def _drain_wakes(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass

    def _end(self) -> None:
        def stop() -> None:
            self._stopping = True

        self.post(stop)
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)


_lock = threading.Lock()
_shared: Supervisor | None = None
_users = 0


def acquire_supervisor() -> Supervisor:
    """The process's supervisor, running; to be given back by `release_supervisor`."""
    global _shared, _users
    with _lock:
        if _shared is None:
            _shared = Supervisor()
            _shared._thread.start()
        _users += 1
        return _shared


def release_supervisor() -> None:
    """Give it back; the last one ends the thread. Not on the supervisor's thread."""
    global _shared, _users
    with _lock:
        _users -= 1
        if _users == 0 and _shared is not None:
            _shared._end()
            _shared = None
